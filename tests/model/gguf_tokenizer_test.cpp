// Tokenizers and chat templates made from GGUF fields: the same ids and texts as of the tokenizers that they were made
// from.
#include "model/gguf/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/files/model_files.h"
#include "tests/model/text_goldens.h"
#include "tests/support/gguf_writer.h"

namespace lorad::model::gguf_tokenizer_test {
namespace {

using lorad::testing::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct TokenizerCase {
    const char* tokenizer;
    const char* model;
};
class GgufTokenizers : public ::testing::TestWithParam<TokenizerCase> {
  protected:
    void SetUp() override {
        auto files = ModelFiles::open(golden_path(std::string("quantized/gguf/") + GetParam().model + ".gguf"));
        ASSERT_TRUE(files.ok()) << files.error().message;
        files_ = std::move(files).value();
        auto tokenizer = files_->tokenizer();
        ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
        tokenizer_ = *tokenizer;
    }
    static std::string file_of(const char* ending) {
        return std::string("quantized/expected/tokenizers/") + GetParam().tokenizer + ending;
    }

    std::unique_ptr<const ModelFiles> files_;
    std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(GgufTokenizers, GiveTheIdsAndTextsOfTheOriginal) {
    const auto rows = golden_lines(file_of(".jsonl"));
    EXPECT_EQ(rows.size(), 72u);
    for (const auto& row : rows) {
        const std::string text = row["text"];
        const std::vector<TokenId> ids = row["ids"], with_special = row["ids_with_special"];
        EXPECT_EQ(tokenizer_->encode(text, false).value(), ids) << text;
        EXPECT_EQ(tokenizer_->encode(text, true).value(), with_special) << text;
        EXPECT_EQ(tokenizer_->decode(ids, false).value(), row["decoded"].get<std::string>()) << text;
        EXPECT_EQ(tokenizer_->decode(ids, true).value(), row["decoded_skip_special"].get<std::string>()) << text;
    }
}

TEST_P(GgufTokenizers, ChatsAreThoseOfTheOriginal) {
    const auto chat = files_->chat_template();
    ASSERT_TRUE(chat.ok()) << chat.error().message;
    const auto rows = golden_lines(file_of("-chats.jsonl"));
    EXPECT_EQ(rows.size(), 10u);
    for (const auto& row : rows) {
        const nlohmann::ordered_json input = {{"messages", row["messages"]},
                                              {"add_generation_prompt", row["add_generation_prompt"]}};
        const auto text = (*chat)->render(input.dump());
        ASSERT_TRUE(text.ok()) << text.error().message;
        EXPECT_EQ(*text, row["text"].get<std::string>());
        EXPECT_EQ(tokenizer_->encode(*text, false).value(), row["ids"].get<std::vector<TokenId>>()) << *text;
    }
}

INSTANTIATE_TEST_SUITE_P(All, GgufTokenizers,
                         ::testing::Values(TokenizerCase{"bpe-llama3", "llama-mid-Q8_0"},
                                           TokenizerCase{"bpe-qwen2", "qwen3-Q5_K_M"},
                                           TokenizerCase{"spm-gemma", "llama-tiny-Q8_0"},
                                           TokenizerCase{"spm-llama2", "llama-small-F32"}),
                         [](const auto& instance) {
                             std::string name = instance.param.tokenizer;
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

// A tokenizer of a few tokens, whose fields a test may change.
GgufWriter small_bpe(const char* cutting = "gpt-2", const char* kind = "gpt2") {
    GgufWriter writer;
    writer.text("tokenizer.ggml.model", kind).text("tokenizer.ggml.pre", cutting);
    return writer;
}
struct Text {
    std::string tokenizer_json, kind;
    GgufChat chat;
};
Result<Text> text_of(const GgufWriter& writer) {
    const std::string bytes = writer.file();
    const auto gguf = parse_gguf(std::as_bytes(std::span(bytes)), kGgufModelCodes);
    EXPECT_TRUE(gguf.ok());
    Text text{.tokenizer_json = {}, .kind = tokenizer_kind(*gguf), .chat = {}};
    TRY_ASSIGN(text.tokenizer_json, tokenizer_from_gguf(*gguf, 16));
    TRY_ASSIGN(text.chat, chat_from_gguf(*gguf, 16));
    return text;
}
std::string refused(const GgufWriter& writer) {
    const auto text = text_of(writer);
    if (!text.ok()) return text.error().message;
    const auto tokenizer = Tokenizer::from_json(text->tokenizer_json, "x");
    return tokenizer.ok() ? std::string() : tokenizer.error().message;
}

TEST(GgufTokenizer, WhatIsNotKnownIsRefusedByName) {
    EXPECT_THAT(refused(small_bpe("gpt-2", "rwkv")),
                HasSubstr("tokenizer.ggml.model: a tokenizer of the kind \"rwkv\" is not supported"));
    EXPECT_THAT(refused(small_bpe("chameleon").texts("tokenizer.ggml.tokens", {"a"})),
                HasSubstr("words cut as \"chameleon\" are not supported; supported are gpt-2"));
    EXPECT_THAT(refused(small_bpe()), HasSubstr("tokenizer.ggml.tokens is missing"));
    EXPECT_THAT(refused(small_bpe().texts("tokenizer.ggml.tokens", std::vector<std::string>(17, "a"))),
                HasSubstr("expected 1 to 16 texts"));
    const auto with_tokens = [] { return small_bpe().texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<s>"}); };
    EXPECT_THAT(refused(with_tokens()), HasSubstr("tokenizer.ggml.merges is missing"));
    EXPECT_THAT(refused(with_tokens().texts("tokenizer.ggml.merges", {"a b", "ac"})),
                HasSubstr("merge 1: expected two tokens with a blank between, found \"ac\""));
    EXPECT_EQ(refused(with_tokens().texts("tokenizer.ggml.merges", {"a b"})), "");
    EXPECT_THAT(refused(with_tokens().texts("tokenizer.ggml.merges", {}).array("tokenizer.ggml.token_type", {1})),
                HasSubstr("4 integers, one for each token"));
    EXPECT_THAT(
        refused(with_tokens().texts("tokenizer.ggml.merges", {}).number<uint32_t>("tokenizer.ggml.bos_token_id", 4, 4)),
        HasSubstr("bos_token_id: expected 0 to 3"));
    EXPECT_THAT(
        refused(with_tokens().texts("tokenizer.ggml.merges", {}).number<uint8_t>("tokenizer.ggml.add_bos_token", 7, 1)),
        HasSubstr("there is no tokenizer.ggml.bos_token_id"));
    EXPECT_THAT(refused(small_bpe().texts("tokenizer.ggml.tokens", {"a", "\xff"})),
                HasSubstr("token 1: expected UTF-8"));
    GgufWriter pieces = small_bpe("default", "llama");
    pieces.texts("tokenizer.ggml.tokens", {"a", "b"});
    EXPECT_THAT(refused(pieces), HasSubstr("tokenizer.ggml.scores is missing"));
}

TEST(GgufTokenizer, TokensAroundATextAndNamedTemplates) {
    GgufWriter writer = small_bpe()
                            .texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<s>", "</s>", "[PAD5]"})
                            .texts("tokenizer.ggml.merges", {"a b"});
    writer.array("tokenizer.ggml.token_type", {1, 1, 1, 3, 4, 5})
        .number<uint32_t>("tokenizer.ggml.bos_token_id", 4, 3)
        .number<uint32_t>("tokenizer.ggml.eos_token_id", 4, 4);
    writer.number<uint8_t>("tokenizer.ggml.add_bos_token", 7, 1).number<uint8_t>("tokenizer.ggml.add_eos_token", 7, 1);
    writer.text("tokenizer.chat_template", "one")
        .text("tokenizer.chat_template.tool_use", "two")
        .texts("tokenizer.chat_templates", {"tool_use"});
    const auto text = text_of(writer);
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_EQ(text->kind, "gpt2 (gpt-2)");
    EXPECT_EQ(text->chat.tokens_json, R"({"bos_token":"<s>","eos_token":"</s>"})");
    EXPECT_THAT(text->chat.templates, ElementsAre(NamedTemplate{"default", "one"}, NamedTemplate{"tool_use", "two"}));
    const auto tokenizer = Tokenizer::from_json(text->tokenizer_json, "x");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    EXPECT_THAT((*tokenizer)->encode("ab</s>a", true).value(), ElementsAre(3, 2, 4, 0, 4));
    EXPECT_TRUE((*tokenizer)->is_special(3));
    EXPECT_FALSE((*tokenizer)->is_special(4));
    EXPECT_FALSE((*tokenizer)->exists(5));
}

}  // namespace
}  // namespace lorad::model::gguf_tokenizer_test
