// Calls that are not written in JSON, and messages in channels, however the text is cut into pieces.
#include <random>

#include <gtest/gtest.h>

#include "model/text/harmony.h"
#include "model/text/reasoning.h"
#include "model/text/tool_calls.h"
#include "proto/json/json.h"

namespace lorad::model::tool_forms_test {
namespace {

struct Answer {
    std::string content;
    std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
    bool operator==(const Answer&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Answer& answer) {
    out << '"' << answer.content << '"';
    for (const auto& [name, arguments] : answer.calls) out << " " << name << "(" << arguments << ")";
    return out;
}

const char* const kTools = R"([
 {"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
   "s":{"type":"string"},"n":{"type":"integer"},"b":{"type":"boolean"},"l":{"type":"array"},"o":{"$ref":"#/$defs/o"},"u":{"anyOf":[{"type":"string"},{"type":"null"}]},
   "e":{"enum":["x",5]},"any":{}},"$defs":{"o":{"type":"object"}}}}},
 {"type":"function","function":{"name":"g"}},
 {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}}])";

Answer read(ToolFormat format, std::string_view text, size_t n_piece, bool cut) {
    ToolCallParser parser(format, {}, proto::argument_types(kTools));
    Answer answer;
    const auto take = [&](const ToolCallParser::Output& out) {
        answer.content += out.content;
        for (const ToolCallPiece& piece : out.calls) {
            if (!piece.name.empty()) answer.calls.emplace_back(piece.name, "");
            ASSERT_EQ(size_t(piece.index) + 1, answer.calls.size());
            answer.calls.back().second += piece.arguments;
        }
    };
    for (size_t at = 0; at < text.size(); at += n_piece) take(parser.push(text.substr(at, n_piece)));
    take(parser.finish(cut));
    return answer;
}

void expect_read(ToolFormat format, std::string_view text, const Answer& expected, bool cut = false) {
    for (size_t n_piece = 1; n_piece <= text.size(); ++n_piece)
        ASSERT_EQ(read(format, text, n_piece, cut), expected) << text << "\nin pieces of " << n_piece;
    if (cut) return;
    for (const auto& [name, arguments] : expected.calls)
        EXPECT_TRUE(parse_json(arguments).ok()) << name << ": " << arguments;
}

std::string parameter(std::string_view key, std::string_view value) {
    return "<parameter=" + std::string(key) + ">\n" + std::string(value) + "\n</parameter>\n";
}
std::string function(std::string_view name, std::string_view parameters) {
    return "<function=" + std::string(name) + ">\n" + std::string(parameters) + "</function>";
}
std::string block(std::string_view call) { return "<tool_call>\n" + std::string(call) + "\n</tool_call>"; }

TEST(ToolForms, QwenXml) {
    const auto format = ToolFormat::kQwenXml;
    expect_read(format, "Hello <there>, <function x>, 1 < 2", {"Hello <there>, <function x>, 1 < 2", {}});
    expect_read(format, block(function("get_weather", parameter("city", "Paris") + parameter("days", "3"))),
                {"", {{"get_weather", R"({"city": "Paris", "days": 3})"}}});
    expect_read(format, "Look.\n" + block(function("g", "")) + "\n" + block(function("g", "")) + "\n\nDone.",
                {"Look.\n\n\nDone.", {{"g", "{}"}, {"g", "{}"}}});
    // Types are those of the schema: what looks like a number is a text where the schema has texts.
    expect_read(
        format,
        block(function("f", parameter("s", "5") + parameter("n", "5") + parameter("b", "True") +
                                parameter("l", "[1, \"a\"]") + parameter("o", "{\"k\": null}") +
                                parameter("u", "null") + parameter("e", "5") + parameter("any", "[2]"))),
        {"",
         {{"f", R"({"s": "5", "n": 5, "b": true, "l": [1, "a"], "o": {"k": null}, "u": null, "e": 5, "any": [2]})"}}});
    // A value that is none of its type is said as it was written; of an unknown parameter as it looks.
    expect_read(format,
                block(function("f", parameter("n", "many") + parameter("x", "true") + parameter("y", "plain text"))),
                {"", {{"f", R"({"n": "many", "x": true, "y": "plain text"})"}}});
    // Line breaks, quotes and marks within a text are its own.
    expect_read(format,
                block(function("f", parameter("s", "\n  if a < b:\n\tprint(\"größe\\n\")\n</param>\n<tool_call>\n"))),
                {"", {{"f", R"({"s": "\n  if a < b:\n\tprint(\"größe\\n\")\n</param>\n<tool_call>\n"})"}}});
    expect_read(format, block(function("f", parameter("s", "") + parameter("u", ""))),
                {"", {{"f", R"({"s": "", "u": ""})"}}});
    expect_read(format, block("<function=f><parameter=s>on one line</parameter></function>"),
                {"", {{"f", R"({"s": "on one line"})"}}});
    // Marks that models forget: around the call, and behind a value.
    expect_read(format, function("g", ""), {"", {{"g", "{}"}}});
    expect_read(format, "So: " + function("g", "") + "\n</tool_call>", {"So: ", {{"g", "{}"}}});
    expect_read(format, block("<function=f>\n<parameter=s>\nx\n<parameter=n>\n4\n</function>"),
                {"", {{"f", R"({"s": "x", "n": 4})"}}});
    // Without the mark around it only a function that there is.
    expect_read(format, "In XML, <function=main> opens it.", {"In XML, <function=main> opens it.", {}});
    expect_read(format, "<tool_call>\nno call\n</tool_call>", {"<tool_call>\nno call\n</tool_call>", {}});
    // As Hermes writes them, too.
    expect_read(format, block(R"({"name": "g", "arguments": {"a": 1}})"), {"", {{"g", R"({"a": 1})"}}});
    // Cut by max_tokens: what there is.
    expect_read(format, "<tool_call>\n<function=f>\n<parameter=s>\nsome text that is long enough",
                {"", {{"f", R"({"s": "some text that i)"}}}, true);
    expect_read(format, "<tool_call>\n<function=get_wea", {"", {}}, true);
    expect_read(format, "<tool_call>\n<function=f>\n" + parameter("n", "1"), {"", {{"f", R"({"n": 1})"}}});
}

TEST(ToolForms, TextsOfXmlCallsComeAsTheyAreWritten) {
    ToolCallParser parser(ToolFormat::kQwenXml, {}, proto::argument_types(kTools));
    (void)parser.push("<tool_call>\n<function=f>\n<parameter=s>\nbegin");
    const ToolCallParser::Output out = parser.push(std::string(1 << 16, 'x'));
    ASSERT_EQ(out.calls.size(), 1u);
    EXPECT_GT(out.calls[0].arguments.size(), (1u << 16) - 16);
}

// References that lead to the same schema by many ways.
TEST(ToolForms, TypesOfSchemasThatReferToThemselvesAreToldSoon) {
    std::string choices;
    for (int i = 0; i < 100; ++i) choices += (i == 0 ? "" : ",") + std::string(R"({"$ref":"#/$defs/a"})");
    const auto functions = proto::argument_types(
        R"([{"function":{"name":"f","parameters":{"properties":{"x":{"$ref":"#/$defs/a"},"s":{"type":"string"}},"$defs":{"a":{"anyOf":[)" +
        choices + "]}}}}}]");
    ASSERT_EQ(functions.size(), 1u);
    EXPECT_EQ(functions[0].of("x"), proto::ValueTypes());
    EXPECT_TRUE(functions[0].of("s").is_text_only());
}

TEST(ToolForms, Gemma4) {
    const auto format = ToolFormat::kGemma4;
    expect_read(format, "Plain {text}", {"Plain {text}", {}});
    expect_read(format, "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:3}<tool_call|>",
                {"", {{"get_weather", R"({"city": "Paris", "days": 3})"}}});
    expect_read(
        format,
        "Hm.<|tool_call>call:g{}<tool_call|><|tool_call>call:f{b:true,l:[1,<|\"|>a}]\"<|\"|>,{k:null,<|\"|>q "
        "k<|\"|>:-2.5e3}],s:<|\"|>x\n<|<|\"|>}<tool_call|>",
        {"Hm.", {{"g", "{}"}, {"f", R"({"b": true, "l": [1, "a}]\"", {"k": null, "q k": -2.5e3}], "s": "x\n<|"})"}}});
    // Quotes of JSON's, and texts without any.
    expect_read(format, "<|tool_call>call:f{s:\"a\\\"b\",u:word}<tool_call|>",
                {"", {{"f", R"({"s": "a\"b", "u": "word"})"}}});
    expect_read(format, "<|tool_call>call:get_weather{city:<|\"|>Par", {"", {{"get_weather", R"({"city": "Par)"}}},
                true);
    expect_read(format, "<|tool_call>call:get_wea", {"", {}}, true);
    // The model ended without the last bracket.
    expect_read(format, "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:3",
                {"", {{"get_weather", R"({"city": "Paris", "days": 3})"}}});
    expect_read(format, "<|tool_call>call:g{", {"", {{"g", "{}"}}});
    expect_read(ToolFormat::kFunctionGemma,
                "<start_function_call>call:get_weather{city:<escape>São Paulo<escape>}<end_function_call>",
                {"", {{"get_weather", R"({"city": "São Paulo"})"}}});
}

TEST(ToolForms, Python) {
    const auto format = ToolFormat::kPython;
    expect_read(format, "[1, 2] and [f] are lists.", {"[1, 2] and [f] are lists.", {}});
    expect_read(format, "[unknown(a=1)]", {"[unknown(a=1)]", {}});
    expect_read(format, "[get_weather(city=\"Paris\", days=3), g()]",
                {"", {{"get_weather", R"({"city": "Paris", "days": 3})"}, {"g", "{}"}}});
    expect_read(format, "```tool_code\nprint(get_weather('Paris', days=3))\n```",
                {"", {{"get_weather", R"({"city": "Paris", "days": 3})"}}});
    // The model ended without the last bracket, or the last two.
    expect_read(format, "```tool_code\nprint(get_weather('Paris', days=3)",
                {"", {{"get_weather", R"({"city": "Paris", "days": 3})"}}});
    expect_read(format, "```tool_code\nprint(get_weather('Paris', days=3",
                {"", {{"get_weather", R"({"city": "Paris", "days": 3})"}}});
    expect_read(format, "I look.\n```tool_code\nget_weather(city=\"A\")\nget_weather(city=\"B\")\n```\nDone.",
                {"I look.\n\nDone.", {{"get_weather", R"({"city": "A"})"}, {"get_weather", R"({"city": "B"})"}}});
    expect_read(
        format,
        "<|tool_call_start|>[f(s='it\\'s \"q\"\\n', b=True, u=None, l=[1, (2, 'x')], o={'k': {'n': "
        "-1.5}})]<|tool_call_end|>Checking.",
        {"Checking.",
         {{"f", R"({"s": "it's \"q\"\n", "b": true, "u": null, "l": [1, [2, "x"]], "o": {"k": {"n": -1.5}}})"}}});
    expect_read(format, "{\"name\": \"g\", \"parameters\": {\"a\": 1}}", {"", {{"g", R"({"a": 1})"}}});
    expect_read(format, "```json\n{\"name\": \"g\", \"parameters\": {\"a\": 1}}\n```", {"", {{"g", R"({"a": 1})"}}});
    expect_read(format, "```json\n{\"name\": \"Bob\"}\n```\nis JSON",
                {"```json\n{\"name\": \"Bob\"}\n```\nis JSON", {}});
    expect_read(format, "[get_weather(city=\"Par", {"", {{"get_weather", R"({"city": "Par)"}}}, true);
}

struct Told {
    std::string reasoning, content;
    std::vector<std::pair<std::string, std::string>> calls;
    bool operator==(const Told&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Told& told) {
    out << '"' << told.reasoning << "\" | \"" << told.content << '"';
    for (const auto& [name, arguments] : told.calls) out << " " << name << "(" << arguments << ")";
    return out;
}

void expect_told(std::string_view text, const Told& expected,
                 std::string_view prompt = "<|start|>user<|message|>hi<|end|><|start|>assistant",
                 bool has_functions = true) {
    for (size_t n_piece = 1; n_piece <= text.size(); ++n_piece) {
        HarmonyParser parser(prompt, has_functions);
        Told told;
        const auto take = [&](const std::vector<HarmonyParser::Piece>& pieces) {
            for (const HarmonyParser::Piece& piece : pieces) {
                if (piece.kind == HarmonyParser::Kind::kReasoning) told.reasoning += piece.text;
                if (piece.kind == HarmonyParser::Kind::kContent) told.content += piece.text;
                if (piece.kind != HarmonyParser::Kind::kCall) continue;
                if (!piece.name.empty()) told.calls.emplace_back(piece.name, "");
                ASSERT_EQ(piece.call + 1, told.calls.size());
                told.calls.back().second += piece.text;
            }
        };
        for (size_t at = 0; at < text.size(); at += n_piece) take(parser.push(text.substr(at, n_piece)));
        take(parser.finish());
        ASSERT_EQ(told, expected) << text << "\nin pieces of " << n_piece;
        EXPECT_EQ(parser.n_calls(), expected.calls.size());
    }
}

TEST(Harmony, ChannelsComeApart) {
    expect_told("<|channel|>final<|message|>Hello <there>.", {"", "Hello <there>.", {}});
    expect_told(
        "<|channel|>analysis<|message|>2 < 3, <| so.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        {"2 < 3, <| so.", "Yes.", {}});
    expect_told("<|channel|>analysis<|message|>A.<|end|><|start|>assistant<|channel|>analysis<|message|>B.<|end|><|"
                "start|>assistant<|channel|>final<|message|>C",
                {"A.\n\nB.", "C", {}});
    // A call, its recipient before or behind the channel; <|call|> ends the answer and is no text.
    const Told call{"Look.", "", {{"get_weather", R"({"city": "Paris"})"}}};
    for (const char* header : {"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
                               " to=functions.get_weather<|channel|>commentary json<|message|>",
                               "<|channel|>commentary to=functions.get_weather<|message|>"}) {
        expect_told("<|channel|>analysis<|message|>Look.<|end|><|start|>assistant" + std::string(header) +
                        R"({"city": "Paris"})",
                    call);
        expect_told("<|channel|>analysis<|message|>Look.<|end|><|start|>assistant" + std::string(header) +
                        R"({"city": "Paris"}<|call|>)",
                    call);
    }
    expect_told("<|channel|>commentary to=functions.g<|message|>", {"", "", {{"g", "{}"}}});
    // A text before a call is said to the user.
    expect_told("<|channel|>commentary<|message|>I check.<|end|><|start|>assistant<|channel|>commentary "
                "to=functions.g<|message|>{}",
                {"", "I check.", {{"g", "{}"}}});
    // Tools of the model's own are thoughts; so is a call where there are no functions.
    expect_told("<|channel|>analysis to=python code<|message|>print(1)<|call|>", {"print(1)", "", {}});
    expect_told("<|channel|>commentary to=functions.g<|message|>{}", {"{}", "", {}}, "<|start|>assistant", false);
    // Cut anywhere, no header is content.
    for (std::string_view header = "<|channel|>analysis<|message|>"; !header.empty(); header.remove_suffix(1))
        expect_told(header, {});
    expect_told("<|channel|>analysis<|message|>x<|end|><|start|>assis", {"x", "", {}});
}

TEST(Harmony, AMarkThatIsCutIsNoText) {
    for (const bool cut : {false, true}) {
        HarmonyParser parser("<|start|>assistant", false);
        EXPECT_EQ(parser.push("<|channel|>final<|message|>Yes<|re").front().text, "Yes");
        EXPECT_EQ(parser.finish(cut).empty(), cut);
    }
}

TEST(Harmony, APromptMayEndWithinAMessage) {
    expect_told(" more.", {"", " more.", {}},
                "<|start|>user<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>Some");
    expect_told("hm<|end|><|start|>assistant<|channel|>final<|message|>Yes", {"hm", "Yes", {}},
                "<|start|>assistant<|channel|>analysis<|message|>");
    // A model that does not write in channels.
    expect_told("Hello there", {"", "Hello there", {}}, "User: hi");
    expect_told("Hello there", {"", "Hello there", {}});
}

TEST(Harmony, ThoughtsOfGemma4) {
    for (const auto& [text, inside, reasoning, content] :
         std::vector<std::tuple<std::string, bool, std::string, std::string>>{
             {"<|channel>thought\nSo.\n<channel|>Yes.", false, "\nSo.", "Yes."},
             {"<|channel>thought\n<channel|>Yes.", false, "", "Yes."},
             {"So.<channel|>Yes.", true, "So.", "Yes."},
             {"Yes.", false, "", "Yes."}}) {
        for (size_t n_piece = 1; n_piece <= text.size(); ++n_piece) {
            ReasoningParser parser(inside, kGemma4Thoughts);
            std::string thought, said;
            for (size_t at = 0; at < text.size(); at += n_piece) {
                const ReasoningParser::Output out = parser.push(std::string_view(text).substr(at, n_piece));
                thought += out.reasoning;
                said += out.content;
            }
            const ReasoningParser::Output out = parser.finish();
            EXPECT_EQ(thought + out.reasoning, reasoning);
            EXPECT_EQ(said + out.content, content);
        }
    }
}

}  // namespace
}  // namespace lorad::model::tool_forms_test
