// Which answers the grammars of calls let through where calls are not JSON, and in gpt-oss's channels; what they let
// through is read as it is meant.
#include <gtest/gtest.h>

#include "model/text/harmony.h"
#include "model/text/tool_calls.h"
#include "proto/schema/argument_types.h"
#include "server/http/generate/call_grammar.h"
#include "tests/server/grammar_accepts.h"

namespace lorad::server::own_form_grammar_test {
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
    R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{"n":{"type":"integer","enum":[1,2]},"s":{"type":"string"},)"
    R"("l":{"type":"array","items":{"type":"object","properties":{"k":{"type":"boolean"}},"required":["k"],"additionalProperties":false}}},"required":["n"]}}},)"
    R"({"type":"function","function":{"name":"say"}}])";

proto::Structure structure_of(const std::string& fields, ToolFormat format) {
    auto request = proto::parse_generate_request(R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}",
                                                 proto::ApiKind::kChat, 1000);
    EXPECT_TRUE(request.ok()) << request.error().message;
    std::optional<proto::Structure> structure = answer_structure(*request, format, PlainCodec());
    EXPECT_TRUE(structure);
    return structure.value_or(proto::Structure());
}

void expect(const proto::Structure& structure, const std::vector<std::string>& yes,
            const std::vector<std::string>& no) {
    for (const std::string& text : yes) EXPECT_TRUE(accepts(structure, text)) << text << "\n" << structure.source;
    for (const std::string& text : no) EXPECT_FALSE(accepts(structure, text)) << text;
}

const std::string kTool = std::string(kTools);
const std::string kRequired = kTool + R"(,"tool_choice":"required")";
const std::string kNamed = kTool + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})";

std::string xml(const std::string& inner) { return "<tool_call>\n" + inner + "\n</tool_call>"; }
const std::string kXmlGood = xml("<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\nline\n<b>\n</"
                                 "parameter>\n<parameter=l>\n[{\"k\": true}]\n</parameter>\n</function>");
const std::string kXmlBad = xml("<function=f>\n<parameter=n>\n3\n</parameter>\n</function>");
const std::string kXmlSay = xml("<function=say>\n</function>"),
                  kXmlFree = xml("<function=say>\n<parameter=x>\nanything\n</parameter>\n</function>");

TEST(OwnFormGrammar, QwenXml) {
    const auto format = ToolFormat::kQwenXml;
    expect(structure_of(kRequired, format), {kXmlGood, kXmlGood + "\n" + kXmlSay, kXmlSay},
           {"Hello", kXmlBad, kXmlGood + "x", "<function=say>\n</function>", kXmlFree});
    expect(structure_of(kNamed, format), {kXmlGood}, {kXmlSay, kXmlGood + "\n" + kXmlGood, kXmlBad});
    expect(structure_of(kTool, format), {"Hello <x>", "Sure.\n" + kXmlGood, kXmlFree + "\n" + kXmlGood + " done"},
           {kXmlBad, "Sure. " + kXmlBad, "<function=f>\n</function>"});
}

TEST(OwnFormGrammar, Gemma4) {
    const auto format = ToolFormat::kGemma4;
    const std::string q = "<|\"|>",
                      good = "<|tool_call>call:f{l:[{k:true},{k:false}],n:1,s:" + q + "a \"b\"\n" + q + "}<tool_call|>",
                      bad = "<|tool_call>call:f{n:3}<tool_call|>";
    const std::string say = "<|tool_call>call:say{}<tool_call|>";
    expect(structure_of(kRequired, format), {good, good + say, "<|tool_call>call:f{n:2}<tool_call|>"},
           {bad, "Hi", "<|tool_call>call:f{}<tool_call|>", "<|tool_call>call:f{l:[{}],n:1}<tool_call|>"});
    expect(structure_of(kTool, format),
           {"Hi", "Hi " + good, "<|tool_call>call:say{x:" + q + "y" + q + ",o:{a:[1,null]}}<tool_call|>"}, {bad});
}

TEST(OwnFormGrammar, Python) {
    const auto format = ToolFormat::kPython;
    const std::string good = R"([f(n=1, s="a\"b", l=[{"k": True}])])";
    expect(structure_of(kRequired, format), {good, "[f(n=2), say()]"}, {"[f(n=3)]", "Hi", "[f()]", "[f(n=1)] x"});
    expect(structure_of(kTool, format), {"Hi [x]", good, "[say(x=[1, None, {\"a\": \"b\"}])]"},
           {"[f(n=3)]", "[ f(n=3)]"});
}

TEST(OwnFormGrammar, Harmony) {
    const auto format = ToolFormat::kHarmony;
    const std::string thought = "<|channel|>analysis<|message|>Hm, 2 < 3.<|end|><|start|>assistant",
                      call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}";
    const std::string other = " to=functions.f<|channel|>commentary json<|message|>{\"n\": 2}",
                      bad = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 3}";
    const std::string final = "<|channel|>final<|message|>",
                      preamble = "<|channel|>commentary<|message|>Look.<|end|><|start|>assistant";
    expect(structure_of(kRequired, format), {call, thought + call, thought + other},
           {final + "Hi", bad, thought + bad, "Hi", thought});
    expect(structure_of(kTool, format),
           {final + "Hi", thought + final + "Hi", thought + preamble + call, thought + other},
           {bad, thought + bad, "Hi"});
    const std::string json = R"("response_format":{"type":"json_object"})";
    expect(structure_of(json, format), {final + "{\"a\": 1}", thought + final + "{}"}, {final + "Hi", "{}", thought});
    expect(structure_of(R"("guided_regex":"a/b+")", format), {final + "a/bb", thought + final + "a/b"},
           {"a/b", final + "b"});
    expect(structure_of(R"("guided_grammar":"start: \"x\" y\ny: \"z\"+")", format), {final + "xzz"},
           {final + "x", "xz"});
}

// A forced answer is read as the call that it is.
TEST(OwnFormGrammar, WhatIsForcedIsReadAsCalls) {
    const auto functions = proto::argument_types("[" + kTool.substr(std::string_view(R"("tools":[)").size()));
    for (const auto& [format, text] :
         {std::pair(ToolFormat::kQwenXml, kXmlGood),
          std::pair(ToolFormat::kGemma4,
                    std::string("<|tool_call>call:f{l:[{k:true}],n:1,s:<|\"|>line\n<b><|\"|>}<tool_call|>")),
          std::pair(ToolFormat::kPython, std::string(R"([f(n=1, s="line\n<b>", l=[{"k": True}])])"))}) {
        EXPECT_TRUE(accepts(structure_of(kRequired, format), text)) << text;
        model::ToolCallParser parser(format, {}, functions);
        std::string name, arguments, content;
        for (const auto& out : {parser.push(text), parser.finish()}) {
            content += out.content;
            for (const auto& piece : out.calls) {
                name += piece.name;
                arguments += piece.arguments;
            }
        }
        EXPECT_EQ(content, "");
        EXPECT_EQ(name, "f");
        const auto read = parse_json(arguments);
        ASSERT_TRUE(read.ok()) << arguments;
        EXPECT_EQ(read->root().find("n")->dump(), "1");
        EXPECT_EQ(*read->root().find("s")->as_string(), "line\n<b>");
        EXPECT_EQ(read->root().find("l")->dump(), R"([{"k":true}])");
    }
}

}  // namespace
}  // namespace lorad::server::own_form_grammar_test
