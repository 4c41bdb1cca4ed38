#include "server/model_text.h"

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "proto/json/json.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::model_text_test {
namespace {

const std::string kDemo = (lorad::testing::source_dir() / "deploy/demo-model").string();

TEST(ModelText, ChatsBecomeTheReferencesTokensAndTokensItsText) {
    auto text = ModelText::load(kDemo + "/base");
    ASSERT_TRUE(text.ok()) << text.error().message;
    std::ifstream file(kDemo + "/samples.json");
    std::string samples_text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    auto samples = parse_json(samples_text);
    ASSERT_TRUE(samples.ok());
    for (const JsonValue& sample : *samples->root().find("samples")->as_array()) {
        auto prompt = (*text)->render_chat({.messages_json = sample.find("messages")->dump()});
        ASSERT_TRUE(prompt.ok()) << prompt.error().message;
        EXPECT_EQ(prompt->text, *sample.string_or("prompt", ""));
        auto ids = (*text)->encode(prompt->text, false);
        ASSERT_TRUE(ids.ok());
        std::string written = "[";
        for (TokenId id : *ids) written += (written.size() > 1 ? "," : "") + std::to_string(id);
        EXPECT_EQ(written + "]", sample.find("prompt_ids")->dump());
        JsonValue output = *sample.find("outputs")->find("base");
        auto decoder = (*text)->make_decoder({});
        std::string answer;
        for (const JsonValue& id : *output.find("ids")->as_array()) answer += *decoder->push(TokenId(*id.as_int()));
        answer += *decoder->finish();
        EXPECT_EQ(answer, *output.string_or("text", ""));
    }
}

TEST(ModelText, AnAnswerIsContinuedWhereItsTextEnds) {
    auto text = ModelText::load(kDemo + "/base");
    ASSERT_TRUE(text.ok());
    auto rendered = [&](const std::string& begun, const std::string& source) {
        ChatInput chat;
        JsonWriter messages;
        messages.begin_array().begin_object().field("role", "user").field("content", begun).end_object();
        messages.begin_object().field("role", "assistant").field("content", begun).end_object();
        chat.messages_json = messages.end_array().take();
        chat.add_generation_prompt = false;
        chat.continued_text = begun;
        chat.template_digest = source;
        chat.template_sources = [&]() -> Result<std::vector<model::NamedTemplate>> {
            return std::vector{model::NamedTemplate{"default", source}};
        };
        Result<RenderedChat> prompt = (*text)->render_chat(chat);
        return prompt.ok() ? prompt->text : "refused: " + prompt.error().param;
    };
    // Also texts that occur in what the template writes behind them.
    for (const std::string begun : {"Sure", "<", "end", "|>", " ok ", "\n", "a\n\n"}) {
        EXPECT_EQ(rendered(begun, ""), "<|im_start|>user\n" + begun + "<|im_end|>\n<|im_start|>assistant\n" + begun);
    }
    const std::string trims = "{% for m in messages %}{{ m.role }}\n{{ m.content | trim }}</s>\n{% endfor %}";
    EXPECT_EQ(rendered(" s ", trims), "user\ns</s>\nassistant\ns");
    EXPECT_EQ(rendered("\n", trims), "user\n</s>\nassistant\n");
    EXPECT_EQ(rendered("a", "{{ messages[0].content }}"), "refused: continue_final_message");
}

TEST(ModelText, AnAdaptersTemplateIsCompiledOnceAndHasTheModelsSpecialTokens) {
    auto text = ModelText::load(kDemo + "/base");
    ASSERT_TRUE(text.ok());
    int n_read = 0;
    ChatInput chat{.messages_json = R"([{"role":"user","content":"hi"}])"};
    chat.template_digest = "d1";
    chat.template_sources = [&]() -> Result<std::vector<model::NamedTemplate>> {
        ++n_read;
        return std::vector{model::NamedTemplate{"default", "{{ messages[0].content }}{{ eos_token }}"}};
    };
    EXPECT_EQ((*text)->render_chat(chat)->text, "hi<|im_end|>");
    EXPECT_EQ((*text)->render_chat(chat)->text, "hi<|im_end|>");
    EXPECT_EQ(n_read, 1);
    for (int i = 0; i < 100; ++i) {
        chat.template_digest = "other" + std::to_string(i);
        EXPECT_EQ((*text)->render_chat(chat)->text, "hi<|im_end|>");
    }
    chat.template_digest = "d1";
    EXPECT_TRUE((*text)->render_chat(chat).ok());
    EXPECT_EQ(n_read, 102) << "those that were not used for long are forgotten";
}

TEST(ModelText, AStopStringEndsTheText) {
    auto text = ModelText::load(kDemo + "/base");
    ASSERT_TRUE(text.ok());
    auto ids = (*text)->encode("The capital of Italy is Rome.", false);
    ASSERT_TRUE(ids.ok());
    auto decoder = (*text)->make_decoder({.stop = {"f It"}});
    std::string out;
    for (TokenId id : *ids) out += *decoder->push(id);
    out += *decoder->finish();
    EXPECT_EQ(out, "The capital o");
    EXPECT_TRUE(decoder->found_stop());
}

TEST(ModelText, AFolderWithoutTokenizerServesTokenIdsOnly) {
    const lorad::testing::TempDir empty;
    auto text = ModelText::load(empty.path());
    ASSERT_TRUE(text.ok());
    EXPECT_FALSE((*text)->has_tokenizer());
    EXPECT_EQ((*text)->encode("hello", true).error().code, ErrorCode::kInvalidRequest);
    EXPECT_EQ((*text)->render_chat({.messages_json = "[]"}).error().code, ErrorCode::kInvalidRequest);
    EXPECT_EQ(*(*text)->make_decoder({})->push(5), "");
}

}  // namespace
}  // namespace lorad::server::model_text_test
