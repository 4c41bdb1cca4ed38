// Which answers the grammars of calls let through, in each format.
#include "server/http/generate/call_grammar.h"

#include <gtest/gtest.h>

#include "proto/base/format.h"
#include "tests/server/grammar_accepts.h"

namespace lorad::server::call_grammar_test {
namespace {

using model::ToolFormat;

// No mark is a token of its own.
class PlainCodec : public TextCodec {
  public:
    Result<std::vector<TokenId>> encode(std::string_view text, bool) const override {
        return std::vector<TokenId>(text.begin(), text.end());
    }
    Result<std::string> decode(std::span<const TokenId>, bool) const override { return std::string("text"); }
    std::string token_bytes(TokenId) const override { return {}; }
    std::optional<TokenId> token_id(std::string_view) const override { return std::nullopt; }
    Result<RenderedChat> render_chat(const ChatInput&) const override { return RenderedChat(); }
    std::unique_ptr<TextDecoder> make_decoder(DecodeOptions) const override { return nullptr; }
    Result<std::unique_ptr<TokenConstraint>> make_constraint(const proto::Structure&, std::span<const TokenId>,
                                                             uint32_t, const access::Holder&) const override {
        return std::unique_ptr<TokenConstraint>();
    }
    ToolFormat tool_format() const override { return ToolFormat::kHermes; }
};

const char* const kTools =
    R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"properties":{"n":{"enum":[1,2]}},"required":["n"]}}},)"
    R"({"type":"function","function":{"name":"say"}}])";

proto::Structure structure_of(const std::string& fields, ToolFormat format, const TextCodec& codec = PlainCodec()) {
    auto request = proto::parse_generate_request(R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}",
                                                 proto::ApiKind::kChat, 1000);
    EXPECT_TRUE(request.ok()) << request.error().message;
    std::optional<proto::Structure> structure = answer_structure(*request, format, codec);
    EXPECT_TRUE(structure);
    return structure.value_or(proto::Structure());
}

void expect(const proto::Structure& structure, const std::vector<std::string>& yes,
            const std::vector<std::string>& no) {
    for (const std::string& text : yes) EXPECT_TRUE(accepts(structure, text)) << text;
    for (const std::string& text : no) EXPECT_FALSE(accepts(structure, text)) << text;
}

std::string call(const std::string& name, const std::string& arguments, const std::string& key = "arguments") {
    return format(R"({{"name": "{}", "{}": {}}})", name, key, arguments);
}
std::string marked(const std::string& call) { return "<tool_call>\n" + call + "\n</tool_call>"; }

const std::string kGood = call("f", R"({"n": 1})"), kBad = call("f", R"({"n": 3})"),
                  kFree = call("say", R"({"x": [null]})");

TEST(CallGrammar, StrictFunctionsLeaveTextsFreeAndBindTheirArguments) {
    expect(
        structure_of(kTools, ToolFormat::kHermes),
        {"Hello {there}", "a <tool_cal", R"({"type": "circle"})", R"({"name": "Bob", "age": 3})",
         "<think>\nhm\n</think>\n\nYes", "Sure. " + marked(kGood), marked(kGood) + "\n" + marked(kFree) + "\nDone.",
         kGood, kGood + "\n" + kFree + " ok", "x " + kBad},
        {marked(kBad), "Sure. " + marked(kBad), marked(call("nobody", "{}")), kBad, kGood + "\n" + kBad,
         R"({"arguments": {"n": 3}, "name": "f"})", R"({ "type" : "function", "name": "f", "arguments": {"n": 3}})"});
    const std::string good = call("f", R"({"n": 1})", "parameters"), bad = call("f", R"({"n": 3})", "parameters");
    expect(structure_of(kTools, ToolFormat::kLlama3),
           {"Hello", good, good + "; " + good, "<|python_tag|>" + good, R"({"a": 1})"},
           {bad, good + "; " + bad, "<|python_tag|>" + bad});
    expect(structure_of(kTools, ToolFormat::kMistral), {"Hello", "[TOOL_CALLS][" + kGood + ", " + kFree + "]", kGood},
           {"[TOOL_CALLS][" + kBad + "]", kBad});
    expect(structure_of(kTools, ToolFormat::kPhi), {"Hello", "Yes <|tool_call|>[" + kGood + "]<|/tool_call|>"},
           {"<|tool_call|>[" + kBad + "]<|/tool_call|>"});
    expect(structure_of(std::string(kTools) + R"(,"parallel_tool_calls":false)", ToolFormat::kHermes),
           {"Yes " + marked(kGood) + " ok"}, {marked(kGood) + marked(kFree)});
}

TEST(CallGrammar, AFormatBesideFunctionsIsItsAnswerOrCalls) {
    const std::string fields =
        std::string(kTools) +
        R"(,"response_format":{"type":"json_object","schema":{"type":"object","properties":{"a":{"type":"null"}},)"
        R"("required":["a"],"additionalProperties":false}})";
    const std::string answer = R"({"a": null})";
    expect(structure_of(fields, ToolFormat::kHermes),
           {answer, marked(kGood), marked(kGood) + "\n" + marked(call("say", "{}"))},
           {"Hello", R"({"a": 1})", marked(kBad), marked(kFree), marked(kGood) + " x", answer + answer});
    expect(structure_of(fields, ToolFormat::kMistral), {answer, "[TOOL_CALLS][" + kGood + "]"},
           {kGood, "[TOOL_CALLS][" + kBad + "]"});
    expect(structure_of(fields, ToolFormat::kPhi), {answer, "<|tool_call|>[" + kGood + "]<|/tool_call|>"}, {kGood});
    expect(structure_of(fields, ToolFormat::kLlama3), {answer, call("f", R"({"n": 2})", "parameters")},
           {call("f", R"({"n": 3})", "parameters")});
    EXPECT_EQ(structure_of(fields, ToolFormat::kHermes).param, "response_format.schema");
}

TEST(CallGrammar, SpecialTokensAreNamedByTheirNumber) {
    struct SpecialCodec : PlainCodec {
        Result<std::vector<TokenId>> encode(std::string_view, bool) const override { return std::vector<TokenId>{7}; }
        Result<std::string> decode(std::span<const TokenId>, bool) const override { return std::string(); }
    };
    const proto::Structure structure = structure_of(kTools, ToolFormat::kMistral, SpecialCodec());
    EXPECT_NE(structure.source.find("lead: TEXT? <[7]>"), std::string::npos) << structure.source;
}

TEST(CallGrammar, OtherRequestsKeepTheirStructure) {
    const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
    auto plain = proto::parse_generate_request(R"({"messages":[{"role":"user","content":"hi"}],)" + tools + "}",
                                               proto::ApiKind::kChat, 1000);
    EXPECT_FALSE(answer_structure(*plain, ToolFormat::kHermes, PlainCodec()));
    EXPECT_EQ(structure_of(tools + R"(,"guided_regex":"a")", ToolFormat::kHermes).source, "a");
    EXPECT_EQ(structure_of(std::string(kTools) + R"(,"guided_regex":"a")", ToolFormat::kHermes).source, "a");
}

}  // namespace
}  // namespace lorad::server::call_grammar_test
