// GET /tokenizer_info: tokenizer_config.json in vLLM's words.
#include "proto/tokenizer_info.h"

#include <gtest/gtest.h>

namespace lorad::proto::tokenizer_info_test {
namespace {

TEST(TokenizerInfo, TokensAreTextsAndPathsAreLeftOut) {
    EXPECT_EQ(
        *tokenizer_info(
            R"({"tokenizer_class":"LlamaTokenizer","name_or_path":"/home/me/model","bos_token":{"content":"<s>","lstrip":false,"special":true},)"
            R"("eos_token":"</s>","model_max_length":1000000000000000019884624838656,)"
            R"("added_tokens_decoder":{"0":{"content":"<unk>","special":true}},"additional_special_tokens":[{"content":"<x>","special":true}]})",
            ""),
        R"({"tokenizer_class":"LlamaTokenizer","bos_token":"<s>","eos_token":"</s>","model_max_length":1000000000000000019884624838656,)"
        R"("added_tokens_decoder":{"0":"<unk>"},"additional_special_tokens":["<x>"]})");
    EXPECT_EQ(*tokenizer_info("", "{{ x }}"),
              R"({"tokenizer_class":"PreTrainedTokenizerFast","chat_template":"{{ x }}"})");
}

TEST(TokenizerInfo, TheTemplateIsTheFileOrElseTheDefaultOne) {
    const std::string named =
        R"({"tokenizer_class":"X","chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]})";
    EXPECT_EQ(*tokenizer_info(named, ""), R"({"tokenizer_class":"X","chat_template":"d"})");
    EXPECT_EQ(*tokenizer_info(named, "f"), R"({"tokenizer_class":"X","chat_template":"f"})");
    EXPECT_EQ(tokenizer_info("[]", "").error().code, ErrorCode::kInvalidModel);
    EXPECT_EQ(tokenizer_info("{", "").error().code, ErrorCode::kInvalidModel);
}

}  // namespace
}  // namespace lorad::proto::tokenizer_info_test
