// What chat templates get of a conversation, with templates of the families that models come with.
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "model/text/text.h"
#include "server/chat/fit.h"
#include "tests/support/source_dir.h"

namespace lorad::server::chat_fit_test {
namespace {

std::string golden_template(const std::string& name) {
    std::ifstream file(lorad::testing::source_dir() / "tests/goldens/chat-templates" / (name + ".jinja"));
    return {std::istreambuf_iterator<char>(file), {}};
}

// A template, and what it makes of chats.
class Template {
  public:
    explicit Template(const std::string& source)
        : template_(*model::ChatTemplate::from_source(source, R"({"bos_token":"<s>","eos_token":"</s>"})")) {}

    // The prompt, then "| " and what was not shown; or the error and its param.
    std::string of(const std::string& messages, ChatInput chat = {}) {
        chat.messages_json = messages;
        const RenderChat render = [&](const std::string& input) -> Result<std::string> {
            if (++n_renders >= failing_render && n_renders < failing_render + n_failing)
                return make_error(failure, "not the template's word");
            return template_->render(input, 0);
        };
        Result<FittedChat> fitted = fits_.fit("t", chat, {}, render);
        if (!fitted.ok() && fitted.error().code == failure) return fitted.error().message;
        if (!fitted.ok()) return "refused " + fitted.error().param;
        Result<std::string> text = render(fitted->input);
        if (!text.ok()) return "raised " + fitted->developer + text.error().message;
        std::string out = *text;
        for (const std::string& field : fitted->unread) out += " |" + field;
        return out;
    }
    std::optional<bool> has_tools() {
        return shows_tools([&](const std::string& input) { return template_->render(input, 0); });
    }
    int n_renders = 0;
    int failing_render = 0, n_failing = 1;  // the first that fails, counted by n_renders, and how many do; 0: none
    ErrorCode failure = ErrorCode::kOverloaded;

  private:
    std::shared_ptr<const model::ChatTemplate> template_;
    ChatFits fits_;
};

// As gpt-oss's: one thought or one text before a call, under a name of its own.
const std::string kOneThought =
    R"({% for m in messages %}{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('not both') }}{% endif %})"
    R"([{{ m.content or m.thinking }}]{{ m.tool_calls[0].function.name }}({{ m.tool_calls[0].function.arguments | tojson }}){% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %})";

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string kDeveloper = R"([{"role":"developer","content":"D"},{"role":"user","content":"u"}])";
const std::string kBoth =
    R"([{"role":"system","content":"S"},{"role":"developer","content":"D"},{"role":"user","content":"u"}])";
const std::string kMiddle =
    R"([{"role":"system","content":"S"},{"role":"user","content":"u"},{"role":"assistant","content":"a"},)"
    R"({"role":"developer","content":"D1"},{"role":"developer","content":"D2"},{"role":"user","content":"v"}])";
// Drops what it does not know.
const std::string kThree = "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}[{{ m.role }}]{{ "
                           "m.content }}{% endif %}{% endfor %}";
// Takes one system message, at the start; drops others.
const std::string kFirst = "{% if messages[0].role == 'system' %}<<{{ messages[0].content }}>>{% set rest = "
                           "messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
                           "{% for m in rest %}{% if m.role == 'user' or m.role == 'assistant' %}[{{ m.role }}]{{ "
                           "m.content }}{% endif %}{% endfor %}";
// The same, but what else comes has to alternate.
const std::string kAlternating =
    "{% if messages[0].role == 'system' %}<<{{ messages[0].content }}>>{% set rest = messages[1:] %}{% else %}{% set "
    "rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% "
    "endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";

// A model may write a key twice, and its answer comes back.
TEST(ChatFit, ArgumentsMayHaveAKeyTwice) {
    const std::string chat =
        R"([{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":"1","a":"2"}}}]}])";
    EXPECT_EQ(Template("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ "
                       "c.function.arguments.a }}{% endfor %}{% endfor %}")
                  .of(chat),
              "qf2");
}

// Arguments that are no object stay a text, for templates that walk through them one under a name.
TEST(ChatFit, ArgumentsThatAreATextAreWrappedWhereATemplateWalksThroughThem) {
    const std::string chat =
        R"([{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{\"a\": "}}]}])";
    const std::string printing = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}({{ "
                                 "c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}{% endfor %}";
    const std::string walking =
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }}"
        "{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}){% endfor %}{% endfor %}";
    EXPECT_EQ(Template(printing).of(chat), R"(q(f "{\"a\": "))");
    EXPECT_EQ(Template(walking).of(chat), R"(q(f arguments={"a": ))");
}

TEST(ChatFit, DeveloperMessagesThatATemplateDropsAreSystemMessages) {
    EXPECT_EQ(Template(kThree).of(kDeveloper), "[system]D[user]u");
    EXPECT_EQ(Template(kThree).of(kBoth), "[system]S[system]D[user]u");
    EXPECT_EQ(Template(kThree).of(kMiddle), "[system]S[user]u[assistant]a[system]D1[system]D2[user]v");
    EXPECT_EQ(Template(kFirst).of(kDeveloper), "<<D>>[user]u");
    EXPECT_EQ(Template(kFirst).of(kBoth), "<<S\n\nD>>[user]u");
    EXPECT_EQ(Template(kFirst).of(kMiddle), "<<S\n\nD1\n\nD2>>[user]u[assistant]a[user]v");
    EXPECT_EQ(Template(kAlternating).of(kDeveloper), "<<D>>[user]u");
    EXPECT_EQ(Template(kAlternating).of(kBoth), "<<S\n\nD>>[user]u");
    EXPECT_EQ(Template(kAlternating).of(kMiddle), "<<S\n\nD1\n\nD2>>[user]u[assistant]a[user]v");
    // Whoever writes every role is left to.
    EXPECT_EQ(Template("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}").of(kBoth),
              "[system]S[developer]D[user]u");
}

TEST(ChatFit, ALaterSystemMessageThatWouldVanishJoinsTheFirst) {
    EXPECT_EQ(Template(kFirst).of(
                  R"([{"role":"system","content":"S"},{"role":"user","content":"u"},{"role":"system","content":"T"}])"),
              "<<S\n\nT>>[user]u");
    EXPECT_EQ(
        Template(kAlternating)
            .of(R"([{"role":"user","content":"u"},{"role":"user","content":"v"},{"role":"system","content":"T"}])"),
        "raised must alternate")
        << "what a template refuses it says itself";
}

TEST(ChatFit, MessagesOfWhichNothingIsShownAreRefused) {
    EXPECT_EQ(Template(kThree).of(R"([{"role":"user","content":"u"},{"role":"tool","content":"t"}])"),
              "refused messages[1].role");
    EXPECT_EQ(Template(kThree).of(R"([{"role":"critic","content":"t"},{"role":"user","content":"u"}])"),
              "refused messages[0].role");
    const std::string no_system =
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    EXPECT_EQ(Template(no_system).of(kDeveloper), "D\n\nu");
    EXPECT_EQ(
        Template(no_system).of(
            R"([{"role":"user","content":[{"type":"text","text":"u"}]},{"role":"system","content":"S"},{"role":"developer","content":"D"}])"),
        "S\n\nD\n\nu");
    EXPECT_EQ(Template(no_system).of(R"([{"role":"system","content":"S"}])"), "refused messages[0].role")
        << "nobody could say it";
    EXPECT_EQ(
        Template("{{ messages[-1].content }}").of(R"([{"role":"user","content":"u"},{"role":"user","content":"v"}])"),
        "v |messages[0].content")
        << "others of its role are shown";
    EXPECT_EQ(Template(kThree).of(R"([{"role":"user","content":"u"},{"role":"tool","content":"  "}])"), "[user]u")
        << "blanks are no loss";
}

TEST(ChatFit, RealTemplatesShowDeveloperMessagesOrRefuseThem) {
    for (const char* name :
         {"chatml", "deepseek", "llama3", "llama31-tools", "mistral-v3-tools", "phi3", "qwen25-tools", "qwen3-think"}) {
        for (const std::string& messages : {kDeveloper, kBoth}) {
            const std::string prompt = Template(golden_template(name)).of(messages);
            EXPECT_TRUE(has(prompt, "D") && has(prompt, "u") && !has(prompt, "raised") && !has(prompt, "refused"))
                << name << ": " << prompt;
        }
        const std::string middle = Template(golden_template(name)).of(kMiddle);
        EXPECT_TRUE((has(middle, "D1") && has(middle, "D2")) || has(middle, "raised")) << name << ": " << middle;
    }
    EXPECT_EQ(Template(golden_template("gemma2")).of(kDeveloper), "raised messages[0].roleSystem role not supported");
    EXPECT_EQ(Template(golden_template("mistral-v1")).of(kDeveloper).substr(0, 23), "raised messages[0].role");
    EXPECT_EQ(
        Template(golden_template("gemma2")).of(R"([{"role":"system","content":"S"},{"role":"user","content":"u"}])"),
        "raised System role not supported");
}

TEST(ChatFit, PartsReachTemplatesThatWalkThroughThem) {
    const std::string parts =
        R"([{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}])";
    const std::string text = R"([{"role":"user","content":"one"}])";
    const std::string walks =
        "{% for m in messages %}{% for p in m.content %}<{{ p.type }}>{{ p.text }}{% endfor %}{% endfor %}";
    EXPECT_EQ(Template(walks).of(parts), "<text>one<text>two");
    EXPECT_EQ(Template(walks).of(text), "<text>one") << "a text is a list of one part to it";
    const std::string either = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p "
                               "in m.content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}";
    EXPECT_EQ(Template(either).of(parts), "(one)(two)");
    EXPECT_EQ(Template(either).of(text), "one");
    EXPECT_EQ(Template("{% for m in messages %}{{ m.content }}{% endfor %}").of(parts), "one\ntwo")
        << "a list is not printed";
    EXPECT_EQ(Template("{% for m in messages %}{{ m.content | tojson }}{% endfor %}").of(parts), R"("one\ntwo")");
    EXPECT_EQ(Template("{% for m in messages %}{{ 'x' + m.content }}{% endfor %}").of(parts), "xone\ntwo");
    EXPECT_EQ(Template("{% for m in messages %}{{ m.content[0].text }}{% endfor %}").of(parts), "one\ntwo")
        << "one part of both";
    EXPECT_EQ(Template("{% for m in messages %}{{ m.content[0]['text'] + '.' }}{% endfor %}").of(text), "one.");
    for (const char* name : {"chatml", "gemma2", "llama3", "qwen25-tools"}) {
        const std::string prompt = Template(golden_template(name)).of(parts);
        EXPECT_TRUE(has(prompt, "one\ntwo")) << name << ": " << prompt;
    }
    EXPECT_TRUE(has(Template(golden_template("gemma3")).of(parts), "onetwo"))
        << Template(golden_template("gemma3")).of(parts);
}

TEST(ChatFit, SystemTextsMayBeTextsWhereUsersHaveParts) {
    const std::string source = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content | trim }}{% else %}{% "
                               "for p in m.content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}";
    EXPECT_EQ(
        Template(source).of(R"([{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
                            R"({"role":"user","content":[{"type":"text","text":"c"},{"type":"text","text":"d"}]}])"),
        "a\nb(c)(d)");
}

std::string with_thought(const std::string& name) {
    return R"([{"role":"user","content":"q"},{"role":"assistant","content":"a",")" + name + R"(":"because"}])";
}

TEST(ChatFit, ThoughtsComeUnderTheNameThatTheTemplateReads) {
    for (const std::string name : {"reasoning", "reasoning_content"}) {
        for (const std::string read : {"reasoning", "reasoning_content", "thinking"}) {
            const std::string source = "{% for m in messages %}{% if m." + read + " %}<think>{{ m." + read +
                                       " }}</think>{% endif %}{{ m.content }}{% endfor %}";
            EXPECT_EQ(Template(source).of(with_thought(name)), "q<think>because</think>a") << name << read;
        }
        const std::string both =
            "{% for m in messages %}{{ m.reasoning }}{{ m.reasoning_content }}{{ m.content }}{% endfor %}";
        EXPECT_EQ(Template(both).of(with_thought(name)), "qbecausea") << "not twice";
        EXPECT_EQ(Template(kThree).of(with_thought(name)), "[user]q[assistant]a |messages[1]." + name);
    }
    EXPECT_TRUE(
        has(Template(golden_template("qwen3-think")).of(with_thought("reasoning")), "<think>\nbecause\n</think>"));
    // Left out on purpose: a thought before the last question.
    std::string earlier = with_thought("reasoning");
    earlier.insert(earlier.size() - 1, R"(,{"role":"user","content":"again"})");
    const std::string prompt = Template(golden_template("qwen3-think")).of(earlier);
    EXPECT_TRUE(!has(prompt, "because") && !has(prompt, "|messages")) << prompt;
}

const std::string kCalls =
    R"([{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"abcdefghi","type":"function",)"
    R"("function":{"name":"add","arguments":{"x":7}}}]},{"role":"tool","tool_call_id":"abcdefghi","name":"add","content":"42"}])";
const std::string kTools =
    R"([{"type":"function","function":{"name":"add","description":"Adds.","parameters":{"type":"object","properties":{"x":{"type":"integer"}}}}}])";

TEST(ChatFit, ToolsCallsAndDocumentsThatAreNotShownAreSaid) {
    ChatInput chat;
    chat.tools_json = kTools;
    chat.documents_json = R"([{"title":"t","text":"x"}])";
    EXPECT_EQ(Template("{% for m in messages %}[{{ m.content }}]{% endfor %}").of(kCalls, chat),
              "[q][][42] |messages[1].tool_calls[0] |tools |documents[0]");
    EXPECT_EQ(Template("{% for t in tools %}{{ t.function.name }}{% endfor %}{% for d in documents %}{{ d.text }}{% "
                       "endfor %}{% for m in messages %}[{{ m.content }}"
                       "{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}]{% endfor %}")
                  .of(kCalls, chat),
              "addx[q][add][42] |messages[1].tool_calls[0].function.arguments |tools.function.description "
              "|tools.function.parameters");
    EXPECT_EQ(Template(kThree).of(R"([{"role":"user","name":"Bo","content":"u"}])"), "[user]u |messages[0].name");
    chat.documents_json.clear();
    for (const char* name : {"llama31-tools", "mistral-v3-tools", "qwen25-tools", "qwen3-think"}) {
        const std::string prompt = Template(golden_template(name)).of(kCalls, chat);
        EXPECT_TRUE(has(prompt, "Adds.") && has(prompt, "\"x\": 7") && has(prompt, "42") && !has(prompt, " |"))
            << name << ": " << prompt;
        EXPECT_EQ(Template(golden_template(name)).has_tools(), true) << name;
    }
    for (const char* name : {"chatml", "gemma2", "llama3", "mistral-v1"})
        EXPECT_EQ(Template(golden_template(name)).has_tools(), false) << name;
    EXPECT_FALSE(Template("{{ raise_exception('no') }}").has_tools().has_value());
}

TEST(ChatFit, ASystemTextThatATemplateShowsInSomeTurnsOnlyIsShownInAll) {
    // Mistral's stands in the last message, if that is the user's.
    std::string messages = kCalls;
    messages.insert(1, R"({"role":"system","content":"S"},)");
    Template mistral(golden_template("mistral-v3-tools"));
    EXPECT_TRUE(has(mistral.of(kBoth), "[INST] S\n\nD\n\nu[/INST]")) << mistral.of(kBoth);
    EXPECT_TRUE(has(mistral.of(messages), "[INST] S\n\nq[/INST]")) << mistral.of(messages);
}

TEST(ChatFit, NothingIsPrintedWhereAContentIsNull) {
    EXPECT_EQ(
        Template(
            "{% for m in messages %}[{{ m.content }}{{ m.tool_calls and m.tool_calls[0].function.name }}]{% endfor %}")
            .of(kCalls),
        "[q][add][42] |messages[1].tool_calls[0].function.arguments");
    EXPECT_EQ(Template("{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}").of(kCalls),
              "[q][][42] |messages[1].tool_calls[0]");
    EXPECT_EQ(
        Template("{% for m in messages %}[{% if m.content is none %}-{% else %}{{ m.content }}{% endif %}]{% endfor %}")
            .of(kCalls),
        "[q][-][42] |messages[1].tool_calls[0]")
        << "who asks for null gets it";
    EXPECT_EQ(Template(golden_template("chatml")).of(kCalls), "raised Unknown role: tool")
        << "the role is at fault, not null";
}

TEST(ChatFit, ArgumentsAsDeepAsABodyMayBeAreNoObstacle) {
    std::string deep = "1";
    for (int i = 0; i < 64; ++i) deep = R"({"a":)" + deep + "}";
    std::string messages = kCalls;
    messages.replace(messages.find(R"({"x":7})"), 7, deep);
    EXPECT_EQ(Template("{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}").of(messages),
              "[q][][42] |messages[1].tool_calls[0]");
}

TEST(ChatFit, ConversationsOfOneShapeAreTriedOnce) {
    Template chatml("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}");
    chatml.of(kMiddle);
    EXPECT_EQ(chatml.n_renders, 2);
    chatml.of(
        R"([{"role":"system","content":"other"},{"role":"user","content":"words"},{"role":"assistant","content":"of"},)"
        R"({"role":"developer","content":"the"},{"role":"developer","content":"same"},{"role":"user","content":"shape"}])");
    EXPECT_EQ(chatml.n_renders, 3);
    for (int i = 0; i < 3000; ++i) {
        std::string messages = R"([{"role":"user","content":"u"})";
        for (int bit = 0; bit < 12; ++bit)
            messages +=
                (i >> bit & 1) != 0 ? R"(,{"role":"user","content":"u"})" : R"(,{"role":"assistant","content":"u"})";
        chatml.of(messages + "]");
    }
    const int n_before = chatml.n_renders;
    chatml.of(kMiddle);
    EXPECT_EQ(chatml.n_renders, n_before + 2) << "what was not used for long is forgotten";
}

TEST(ChatFit, ATemplateThatFailsIsTriedAFewTimesOnly) {
    Template failing("{{ raise_exception('no') }}");
    EXPECT_EQ(
        failing.of(
            R"([{"role":"developer","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":null,"reasoning":"r"}])"),
        "raised messages[0].roleno");
    EXPECT_LE(failing.n_renders, 28);
}

TEST(ChatFit, WhatIsNotTheTemplatesFaultIsReturnedAndTellsNothingOfIt) {
    std::string thoughtful = kMiddle;
    thoughtful.insert(thoughtful.size() - 1,
                      R"(,{"role":"assistant","content":"b","reasoning":"because"},{"role":"user","content":"w"})");
    for (ErrorCode code :
         {ErrorCode::kOverloaded, ErrorCode::kSandboxUnavailable, ErrorCode::kOutOfMemory, ErrorCode::kInternal}) {
        for (const std::string& messages : {kMiddle, thoughtful}) {
            const std::string expected = Template(kFirst).of(messages);
            // Whichever rendering it is; the last one is not fit()'s.
            Template undisturbed(kFirst);
            undisturbed.of(messages);
            for (int i = 1; i < undisturbed.n_renders; ++i) {
                Template disturbed(kFirst);
                disturbed.failure = code;
                disturbed.failing_render = i;
                EXPECT_EQ(disturbed.of(messages), "not the template's word") << i;
                EXPECT_EQ(disturbed.n_renders, i) << "nothing is rendered after it";
                EXPECT_EQ(disturbed.of(messages), expected) << i << ": nothing is kept of it";
            }
        }
    }
}

TEST(ChatFit, AFormThatIsTooComplexIsNoneThatTheTemplateTakes) {
    const std::string source = "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}";
    Template once(source);
    once.failure = ErrorCode::kInputTooComplex;
    once.failing_render = 1;
    EXPECT_EQ(once.of(kBoth), "[system]S[system]D[user]u") << "another one is not";
    EXPECT_EQ(once.of(kBoth), "[system]S[developer]D[user]u") << "nothing is kept of it";
    Template always(source);
    always.failure = ErrorCode::kInputTooComplex;
    always.failing_render = 1;
    always.n_failing = 1000;
    EXPECT_EQ(always.of(R"([{"role":"user","content":"u"}])"), "raised not the template's word")
        << "the rendering itself says so";
}

TEST(ChatFit, AThoughtAndATextBeforeACallAreOneWhereATemplateTakesOne) {
    const std::string call =
        R"("tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":{"a":1}}}])";
    const auto chat = [&](const std::string& assistant) {
        return R"([{"role":"user","content":"u"},{"role":"assistant",)" + assistant + "," + call +
               R"(},{"role":"tool","tool_call_id":"c","content":"r"}])";
    };
    Template one(kOneThought);
    EXPECT_EQ(one.of(chat(R"("content":"I look.","reasoning_content":"Hm.")")), R"(<user>u[Hm.

I look.]f({"a": 1})<tool>r)");
    EXPECT_EQ(one.of(chat(R"("content":null,"reasoning":"Hm.")")), R"(<user>u[Hm.]f({"a": 1})<tool>r)");
    EXPECT_EQ(one.of(chat(R"("content":"I look.")")), R"(<user>u[I look.]f({"a": 1})<tool>r)");
}

}  // namespace
}  // namespace lorad::server::chat_fit_test
