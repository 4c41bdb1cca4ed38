// Tool calls and thoughts found in text, however it is cut into pieces.
#include "model/tool_calls.h"

#include <gtest/gtest.h>

#include <tuple>

#include "model/reasoning.h"

namespace lorad::model::tool_calls_test {
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

Answer read(ToolFormat family, std::string_view text, size_t n_piece, const std::string& function = {}) {
    ToolCallParser parser(family, function);
    Answer answer;
    const auto take = [&](const ToolCallParser::Output& out) {
        answer.content += out.content;
        for (const ToolCallPiece& piece : out.calls) {
            if (!piece.name.empty()) {
                EXPECT_EQ(piece.index, answer.calls.size());
                answer.calls.emplace_back(piece.name, "");
            }
            ASSERT_EQ(size_t(piece.index) + 1, answer.calls.size()) << "a call that has not begun";
            answer.calls.back().second += piece.arguments;
        }
    };
    for (size_t at = 0; at < text.size(); at += n_piece) take(parser.push(text.substr(at, n_piece)));
    take(parser.finish());
    EXPECT_EQ(parser.n_calls(), answer.calls.size());
    return answer;
}

void expect_read(ToolFormat family, std::string_view text, const Answer& expected) {
    for (size_t n_piece = 1; n_piece <= text.size(); ++n_piece) {
        ASSERT_EQ(read(family, text, n_piece), expected) << text << "\nin pieces of " << n_piece;
    }
}

TEST(ToolCalls, HermesAndQwen) {
    const auto family = ToolFormat::kHermes;
    expect_read(family, "Hello <there>, 1 < 2", {"Hello <there>, 1 < 2", {}});
    expect_read(family, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
                {"", {{"f", "{\"a\": 1}"}}});
    expect_read(family,
                "Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"}<tool_call>\\\"{\"}}\n</tool_call>\n"
                "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
                {"Let me look.", {{"f", "{\"x\": \"}<tool_call>\\\"{\"}"}, {"g", "{}"}}});
    // The name behind the arguments, no arguments, arguments as the text of a string.
    expect_read(family, "<tool_call>{\"arguments\": {\"a\": [1, {}]}, \"name\": \"f\"}</tool_call>",
                {"", {{"f", "{\"a\": [1, {}]}"}}});
    expect_read(family, "<tool_call>{\"name\": \"f\"}</tool_call> done", {"done", {{"f", "{}"}}});
    expect_read(family, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
                {"", {{"f", "{\"a\": 1}"}}});
    // Cut by max_tokens: what there is of the arguments.
    expect_read(family, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"xy", {"", {{"f", "{\"a\": \"xy"}}});
    // What is no call stays whole.
    for (const char* text : {"<tool_call>\n{\"name\": \"f", "<tool_call>\nnot json</tool_call>", "<tool_call>\n",
                             "Write\n<tool_call> before a call.", "<tool_call>{\"a\": 1}</tool_call>"})
        expect_read(family, text, {text, {}});
    expect_read(family, "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>no", {"<tool_call>no", {{"f", "{}"}}});
    expect_read(family, "a <tool_call></tool_call> b", {"a b", {}});
    expect_read(family, "a <tool_c", {"a <tool_c", {}});
}

TEST(ToolCalls, Llama3) {
    const auto family = ToolFormat::kLlama3;
    expect_read(family, "{\"name\": \"f\", \"parameters\": {\"q\": \"x\"}}", {"", {{"f", "{\"q\": \"x\"}"}}});
    expect_read(family, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"a\": null}}",
                {"", {{"f", "{}"}, {"g", "{\"a\": null}"}}});
    expect_read(family, "{\"answer\": 4}", {"{\"answer\": 4}", {}});
    expect_read(family, "<|python_tag|>print(4)", {"<|python_tag|>print(4)", {}});
    expect_read(family, "The set {1, 2} has two.", {"The set {1, 2} has two.", {}});
    expect_read(family, " {\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}\n",
                {"", {{"f", "{\"a\": 1}"}}});
}

TEST(ToolCalls, Mistral) {
    const auto family = ToolFormat::kMistral;
    expect_read(family, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, {\"name\": \"g\", \"arguments\": {}}]",
                {"", {{"f", "{\"a\": 1}"}, {"g", "{}"}}});
    expect_read(family, "[TOOL_CALLS]f[ARGS]{\"a\": {\"b\": \"}\"}}[TOOL_CALLS]g{\"c\": 2}",
                {"", {{"f", "{\"a\": {\"b\": \"}\"}}"}, {"g", "{\"c\": 2}"}}});
    expect_read(family, "I like [TOOLS].", {"I like [TOOLS].", {}});
    expect_read(family, "[TOOL_CALLS] is a mark.", {"[TOOL_CALLS] is a mark.", {}});
    ToolCallParser parser(family);
    std::string content = parser.push("[TOOL_CALLS]").content;
    for (int i = 0; i < 100; ++i) content += parser.push("a name? ").content;
    EXPECT_EQ(content.substr(0, 20), "[TOOL_CALLS]a name? ") << "no name is that long";
}

TEST(ToolCalls, Phi) {
    const auto family = ToolFormat::kPhi;
    expect_read(family, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<|/tool_call|>", {"", {{"f", "{\"a\": 1}"}}});
    expect_read(family, "Sure. functools[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"f\", \"arguments\": {\"a\": 2}}]",
                {"Sure.", {{"f", "{\"a\": 1}"}, {"f", "{\"a\": 2}"}}});
}

TEST(ToolCalls, AnswersThatHaveToBeCalls) {
    expect_read(ToolFormat::kList, "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n, {\"name\": \"g\", \"arguments\": {\"b\": \"]\"}}]",
                {"", {{"f", "{\"a\": 1}"}, {"g", "{\"b\": \"]\"}"}}});
    for (size_t n_piece = 1; n_piece < 9; ++n_piece) {
        EXPECT_EQ(read(ToolFormat::kArguments, "{\"a\": 1}", n_piece, "f"), (Answer{"", {{"f", "{\"a\": 1}"}}}));
    }
}

TEST(ToolCalls, ArgumentsComeAsTheyAreWritten) {
    ToolCallParser parser(ToolFormat::kHermes);
    (void)parser.push("<tool_call>{\"name\": \"f\", \"arguments\": ");
    ToolCallParser::Output out = parser.push("{\"a\": \"begin");
    ASSERT_EQ(out.calls.size(), 1u);
    EXPECT_EQ(out.calls[0].arguments, "{\"a\": \"begin");
    std::string long_text(1 << 20, 'x');
    out = parser.push(long_text);
    EXPECT_EQ(out.calls[0].arguments.size(), long_text.size());
}

TEST(ToolCalls, ACallIsOpenUntilItsEnd) {
    ToolCallParser parser(ToolFormat::kHermes);
    (void)parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1");
    EXPECT_TRUE(parser.in_call());
    (void)parser.push("}}");
    EXPECT_FALSE(parser.in_call());
}

TEST(ToolCalls, FormatsHaveTheNamesOfVllmsParsers) {
    EXPECT_EQ(tool_format_of("hermes"), ToolFormat::kHermes);
    EXPECT_EQ(tool_format_of("llama3_json"), ToolFormat::kLlama3);
    EXPECT_EQ(tool_format_of("mistral"), ToolFormat::kMistral);
    EXPECT_EQ(tool_format_of("phi4_mini_json"), ToolFormat::kPhi);
    EXPECT_EQ(tool_format_of("auto"), std::nullopt);
}

TEST(Reasoning, IsWhatStandsBetweenTheMarks) {
    struct Case {
        std::string text;
        bool inside;
        std::string reasoning, content;
    };
    for (const Case& c : std::vector<Case>{
             {"<think>\nSo 2 < 3.\n</think>\n\nYes.", false, "\nSo 2 < 3.", "Yes."},
             {"hm</think>ok", true, "hm", "ok"},
             {"\n<think></think> a", false, "", "a"},
             {"No thoughts <think>x</think>", false, "", "No thoughts <think>x</think>"},
             {"<think>cut </thi", false, "cut </thi", ""},
             {"<thin", false, "", "<thin"},
             {"plain", false, "", "plain"}}) {
        for (size_t n_piece = 1; n_piece <= c.text.size(); ++n_piece) {
            ReasoningParser parser(c.inside);
            std::string reasoning, content;
            const auto take = [&](const ReasoningParser::Output& out) {
                reasoning += out.reasoning;
                content += out.content;
            };
            for (size_t at = 0; at < c.text.size(); at += n_piece)
                take(parser.push(std::string_view(c.text).substr(at, n_piece)));
            take(parser.finish());
            EXPECT_EQ(std::tuple(reasoning, content), std::tuple(c.reasoning, c.content))
                << c.text << " in pieces of " << n_piece;
        }
    }
}

}  // namespace
}  // namespace lorad::model::tool_calls_test
