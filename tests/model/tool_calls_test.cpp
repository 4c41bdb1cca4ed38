// Tool calls and thoughts found in text, however it is cut into pieces.
#include "model/text/tool_calls.h"

#include <functional>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "model/text/reasoning.h"

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

const std::vector<proto::FunctionTypes> kFunctions = {{"f", {}}, {"g", {}}, {"add", {}}};

// `next`: how many bytes the next piece has.
Answer read_pieces(ToolFormat family, std::string_view text, const std::function<size_t()>& next,
                   const std::string& function = {}, bool cut = false) {
    ToolCallParser parser(family, function, kFunctions);
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
    for (size_t at = 0; at < text.size();) {
        const size_t n_piece = next();
        take(parser.push(text.substr(at, n_piece)));
        at += n_piece;
    }
    take(parser.finish(cut));
    EXPECT_EQ(parser.n_calls(), answer.calls.size());
    return answer;
}

Answer read(ToolFormat family, std::string_view text, size_t n_piece, const std::string& function = {},
            bool cut = false) {
    return read_pieces(family, text, [n_piece] { return n_piece; }, function, cut);
}

void expect_read(ToolFormat family, std::string_view text, const Answer& expected, bool cut = false) {
    for (size_t n_piece = 1; n_piece <= text.size(); ++n_piece) {
        ASSERT_EQ(read(family, text, n_piece, {}, cut), expected) << text << "\nin pieces of " << n_piece;
    }
}

TEST(ToolCalls, HermesAndQwen) {
    const auto family = ToolFormat::kHermes;
    expect_read(family, "Hello <there>, 1 < 2", {"Hello <there>, 1 < 2", {}});
    expect_read(family, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
                {"", {{"f", "{\"a\": 1}"}}});
    expect_read(
        family,
        "Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"}<tool_call>\\\"{\"}}\n</tool_call>\n"
        "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        {"Let me look.\n", {{"f", "{\"x\": \"}<tool_call>\\\"{\"}"}, {"g", "{}"}}});
    // The name behind the arguments, no arguments, arguments as the text of a string.
    expect_read(family, "<tool_call>{\"arguments\": {\"a\": [1, {}]}, \"name\": \"f\"}</tool_call>",
                {"", {{"f", "{\"a\": [1, {}]}"}}});
    expect_read(family, "<tool_call>{\"name\": \"f\"}</tool_call> done", {" done", {{"f", "{}"}}});
    expect_read(family, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
                {"", {{"f", "{\"a\": 1}"}}});
    // Cut by max_tokens: what there is of the arguments.
    expect_read(family, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"xy", {"", {{"f", "{\"a\": \"xy"}}});
    // What is no call stays whole.
    for (const char* text : {"<tool_call>\n{\"name\": \"f", "<tool_call>\nnot json</tool_call>", "<tool_call>\n",
                             "Write\n<tool_call> before a call.", "<tool_call>{\"a\": 1}</tool_call>"})
        expect_read(family, text, {text, {}});
    expect_read(family, "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>no", {"\n<tool_call>no", {{"f", "{}"}}});
    expect_read(family, "a <tool_call></tool_call> b", {"a  b", {}});
    expect_read(family, "a <tool_c", {"a <tool_c", {}});
}

TEST(ToolCalls, Llama3) {
    const auto family = ToolFormat::kLlama3;
    expect_read(family, "{\"name\": \"f\", \"parameters\": {\"q\": \"x\"}}", {"", {{"f", "{\"q\": \"x\"}"}}});
    expect_read(family,
                "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"a\": null}}",
                {"", {{"f", "{}"}, {"g", "{\"a\": null}"}}});
    expect_read(family, "{\"answer\": 4}", {"{\"answer\": 4}", {}});
    expect_read(family, "<|python_tag|>print(4)", {"<|python_tag|>print(4)", {}});
    expect_read(family, "The set {1, 2} has two.", {"The set {1, 2} has two.", {}});
    expect_read(family, " {\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}\n",
                {"", {{"f", "{\"a\": 1}"}}});
}

TEST(ToolCalls, Mistral) {
    const auto family = ToolFormat::kMistral;
    expect_read(family,
                "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, {\"name\": \"g\", "
                "\"arguments\": {}}]",
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
    expect_read(family, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<|/tool_call|>",
                {"", {{"f", "{\"a\": 1}"}}});
    expect_read(
        family,
        "Sure. functools[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"f\", \"arguments\": {\"a\": 2}}]",
        {"Sure. ", {{"f", "{\"a\": 1}"}, {"f", "{\"a\": 2}"}}});
}

TEST(ToolCalls, AnswersThatHaveToBeCalls) {
    expect_read(ToolFormat::kList,
                "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n, {\"name\": \"g\", \"arguments\": {\"b\": \"]\"}}]",
                {"", {{"f", "{\"a\": 1}"}, {"g", "{\"b\": \"]\"}"}}});
    for (size_t n_piece = 1; n_piece < 9; ++n_piece) {
        EXPECT_EQ(read(ToolFormat::kArguments, "{\"a\": 1}", n_piece, "f"), (Answer{"", {{"f", "{\"a\": 1}"}}}));
    }
}

TEST(ToolCalls, BlanksBetweenTextAndCallsAreTheTexts) {
    const auto family = ToolFormat::kHermes;
    const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    expect_read(family, "\n Yes. " + call + "\n" + call + "\n\nDone. ",
                {"\n Yes. \n\nDone. ", {{"f", "{}"}, {"f", "{}"}}});
    expect_read(family, "\n" + call + " \n " + call + "\n", {"", {{"f", "{}"}, {"f", "{}"}}});
    expect_read(family, " \n", {" \n", {}});
    expect_read(ToolFormat::kLlama3, "{\"name\": \"f\", \"parameters\": {}} and more", {" and more", {{"f", "{}"}}});
}

TEST(ToolCalls, AnObjectWithoutMarksIsACallOfAKnownFunctionOnly) {
    for (ToolFormat family : {ToolFormat::kLlama3, ToolFormat::kHermes, ToolFormat::kMistral, ToolFormat::kPhi}) {
        for (const char* text :
             {"{\"name\": \"Bob\", \"age\": 3}", "{\"age\": 3, \"name\": \"Bob\"}", "{\"name\": \"f\", \"age\": 3}",
              "{\"name\": \"f\"}", "{\"name\": \"nobody\", \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": [1]}",
              "{\"arguments\": {\"a\": 1}}", "{\"name\": 5, \"arguments\": {}}", "[{\"age\": 3}]", "{}",
              " {\"a\": {}}\n", "{\"name\": \"f\", \"arguments\": \"{}\"}", "Say {\"name\": \"f\", \"arguments\": {}}"})
            expect_read(family, text, {text, {}});
        expect_read(family, "{\"name\": \"f\", \"arguments\": {\"a\": 1}}", {"", {{"f", "{\"a\": 1}"}}});
        expect_read(family, "\n{\"parameters\": {\"a\": \"}\"}, \"type\": \"function\", \"name\": \"g\"}\n",
                    {"", {{"g", "{\"a\": \"}\"}"}}});
        expect_read(family, "{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": {}}\n{\"age\": 3}",
                    {"\n{\"age\": 3}", {{"f", "{}"}, {"g", "{}"}}});
    }
    ToolCallParser unknowing(ToolFormat::kHermes);
    EXPECT_EQ(unknowing.push("{\"name\": \"f\", \"arguments\": {}}").content.substr(0, 6), "{\"name");
}

TEST(ToolCalls, WhatWasCutIsNoText) {
    struct Case {
        ToolFormat family;
        std::string text;
        Answer expected;
    };
    const Answer one{"", {{"add", "{\"a\": 1}"}}};
    for (const Case& c : std::vector<Case>{
             {ToolFormat::kList, "[{\"name\": \"add\", \"arguments\": {\"a\": 1}}, { \"name\": \"ad", one},
             {ToolFormat::kList, "[{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {", one},
             {ToolFormat::kList, "[{\"name\": \"add\", \"arguments\": {\"a\": 1}},", one},
             {ToolFormat::kList, "[{ \"name\": \"ad", {"", {}}},
             {ToolFormat::kHermes, "<tool_call>\n{\"name\": \"ad", {"", {}}},
             {ToolFormat::kHermes, "Yes.\n<tool_call>\n", {"Yes.\n", {}}},
             {ToolFormat::kHermes, "Yes.\n<tool_ca", {"Yes.\n", {}}},
             {ToolFormat::kHermes, "a <t", {"a <t", {}}},
             {ToolFormat::kHermes, "<", {"", {}}},
             {ToolFormat::kPhi, "That was fun", {"That was fun", {}}},
             {ToolFormat::kHermes, "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_c", one},
             {ToolFormat::kHermes,
              "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>{", one},
             {ToolFormat::kHermes, "{\"name\": \"ad", {"", {}}},
             {ToolFormat::kHermes, "{\"na", {"", {}}},
             {ToolFormat::kHermes, "{\"ag", {"{\"ag", {}}},
             {ToolFormat::kHermes, "{\"name\": \"Bo", {"{\"name\": \"Bo", {}}},
             {ToolFormat::kLlama3, "{\"name\": \"Bo", {"{\"name\": \"Bo", {}}},
             {ToolFormat::kHermes, "{\"age\": 3", {"{\"age\": 3", {}}},
             {ToolFormat::kLlama3, "{\"name\": \"ad", {"", {}}},
             {ToolFormat::kLlama3, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}; {", one},
             {ToolFormat::kLlama3, "<|python_tag|>{\"na", {"", {}}},
             {ToolFormat::kMistral, "[TOOL_CALLS]ad", {"", {}}},
             {ToolFormat::kMistral, "[TOOL_CALLS] [{\"name\"", {"", {}}},
             {ToolFormat::kPhi, "<|tool_call|>[", {"", {}}}})
        expect_read(c.family, c.text, c.expected, true);
}

// What answers are made of, at random.
const std::vector<std::string> kWords = {"<tool_call>",
                                         "</tool_call>",
                                         "\n",
                                         " ",
                                         "{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}",
                                         "{\"name\": \"Bob\", \"age\": 3}",
                                         "{",
                                         "}",
                                         "Sure. ",
                                         "<tool",
                                         "[TOOL_CALLS]",
                                         "add[ARGS]{\"x\": \"\\\"y\"}",
                                         "[{\"name\": \"g\", \"arguments\": {}}, ",
                                         "]",
                                         "; ",
                                         "<|python_tag|>",
                                         "<function=f>",
                                         "<function=",
                                         "\n<parameter=a>\n",
                                         "</parameter>",
                                         "</function>",
                                         "[f(a=1)",
                                         "add(x='{', y=[1, None])",
                                         "```tool_code\n",
                                         "```json\n",
                                         "```",
                                         "<|tool_call>",
                                         "<tool_call|>",
                                         "call:f{a:<|\"|>x{",
                                         "<|\"|>,b:[1,{c:true}]}",
                                         "(",
                                         ")",
                                         "call:g{}",
                                         "{\"parameters\": {}, \"name\": \"g\"}",
                                         "functools",
                                         "<|tool_call|>",
                                         "<|/tool_call|>",
                                         "größe",
                                         "\"",
                                         ",",
                                         "{\"name\": \"unknown\", \"arguments\": {}}"};

const std::vector<ToolFormat> kFormats = {ToolFormat::kHermes,  ToolFormat::kLlama3, ToolFormat::kMistral,
                                          ToolFormat::kPhi,     ToolFormat::kList,   ToolFormat::kArguments,
                                          ToolFormat::kQwenXml, ToolFormat::kGemma4, ToolFormat::kFunctionGemma,
                                          ToolFormat::kPython};

// However an answer comes, in whatever pieces and wherever it ends, it is read as if it came whole.
TEST(ToolCalls, PiecesSayWhatTheWholeSays) {
    const uint32_t seed = std::random_device{}();
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    for (int i = 0; i < 3000; ++i) {
        std::string text;
        for (uint32_t n = 1 + rng() % 8; n > 0; --n) text += kWords[rng() % kWords.size()];
        text.resize(text.size() - rng() % std::min<size_t>(text.size(), 10));
        const auto family = kFormats[rng() % kFormats.size()];
        const bool cut = rng() % 2 == 0;
        const Answer whole = read(family, text, std::max<size_t>(text.size(), 1), "f", cut);
        const Answer pieces = read_pieces(family, text, [&] { return 1 + rng() % 5; }, "f", cut);
        ASSERT_EQ(pieces, whole) << int(family) << (cut ? " cut: " : ": ") << text;
        if (whole.calls.empty() && !cut && (family == ToolFormat::kLlama3 || family == ToolFormat::kMistral)) {
            EXPECT_EQ(whole.content, text);
        }
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
    EXPECT_EQ(tool_format_of("qwen3_xml"), ToolFormat::kQwenXml);
    EXPECT_EQ(tool_format_of("qwen3_coder"), ToolFormat::kQwenXml);
    EXPECT_EQ(tool_format_of("gemma4"), ToolFormat::kGemma4);
    EXPECT_EQ(tool_format_of("functiongemma"), ToolFormat::kFunctionGemma);
    EXPECT_EQ(tool_format_of("pythonic"), ToolFormat::kPython);
    EXPECT_EQ(tool_format_of("openai"), ToolFormat::kHarmony);
    EXPECT_EQ(tool_format_of("auto"), std::nullopt);
}

TEST(Reasoning, IsWhatStandsBetweenTheMarks) {
    struct Case {
        std::string text;
        bool inside;
        std::string reasoning, content;
    };
    for (const Case& c : std::vector<Case>{{"<think>\nSo 2 < 3.\n</think>\n\nYes.", false, "\nSo 2 < 3.", "Yes."},
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
