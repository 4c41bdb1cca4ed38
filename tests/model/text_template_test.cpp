// Chat templates against the texts and errors of transformers.
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "tests/model/text_goldens.h"

namespace lorad::model::text_template_test {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kGoldenNow = 1772694489;  // 2026-03-05 07:08:09, the clock that the goldens saw

std::vector<std::string> template_names() {
    std::vector<std::string> names;
    const Json index = golden_index();
    for (const Json& entry : index["chat_templates"]) names.push_back(entry["name"]);
    return names;
}

std::string input_of(const Json& row) {
    return Json{{"messages", row["messages"]},
                {"tools", row["tools"]},
                {"documents", row["documents"]},
                {"add_generation_prompt", row["add_generation_prompt"]},
                {"extra", row["variables"]}}
        .dump();
}

class TemplateGolden : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, TemplateGolden, ::testing::ValuesIn(template_names()), [](const auto& param) {
    std::string name = param.param;
    for (char& c : name) {
        if (c == '-') c = '_';
    }
    return name;
});

TEST_P(TemplateGolden, RendersEveryConversationAsTheReference) {
    std::string tokens;
    const Json index = golden_index();
    for (const Json& entry : index["chat_templates"]) {
        if (entry["name"] != GetParam()) continue;
        EXPECT_EQ(entry["now"], "2026-03-05T07:08:09");
        tokens = entry["tokens"].dump();
    }
    const auto chat = ChatTemplate::from_source(read_golden("chat-templates/" + GetParam() + ".jinja"), tokens).value();
    for (const Json& row : golden_lines("expected/chat-templates/" + GetParam() + ".jsonl")) {
        const auto text = chat->render(input_of(row), kGoldenNow);
        if (!row.contains("error")) {
            ASSERT_TRUE(text.ok()) << text.error().message << "\n" << row.dump();
            EXPECT_EQ(text.value(), row["text"].get<std::string>()) << row.dump();
            continue;
        }
        ASSERT_FALSE(text.ok()) << row.dump();
        EXPECT_EQ(text.error().code, ErrorCode::kInvalidRequest);
        if (row["error"]["type"] == "TemplateError") {
            EXPECT_EQ(text.error().message, row["error"]["message"].get<std::string>());
        }
    }
}

std::string render(const std::string& source, const Json& extra = Json::object(), const Json& tokens = Json::object()) {
    const auto chat = ChatTemplate::from_source(source, tokens.dump());
    if (!chat.ok()) return "ERROR " + chat.error().message;
    const auto text = chat.value()->render(Json{{"messages", Json::array()}, {"extra", extra}}.dump(), kGoldenNow);
    return text.ok() ? text.value() : "ERROR " + text.error().message;
}

struct Case {
    const char* source;
    const char* expected;
};

// The results are Jinja2's, of its sandbox with the settings of transformers.
TEST(ChatTemplate, MeansWhatJinjaAndPythonMean) {
    const Json values = {{"n", nullptr},
                         {"t", true},
                         {"big", 1e20},
                         {"small", 1.5e-7},
                         {"whole", 2.0},
                         {"list", {1, 2.5, "it's", nullptr, false}},
                         {"map", {{"b", 1}, {"a", {"x", "y"}}, {"items", 3}}},
                         {"text", "one two  three"}};
    for (const Case& c : std::vector<Case>{
             {"{{ n }} {{ t }} {{ big }} {{ small }} {{ whole }}", "None True 1e+20 1.5e-07 2.0"},
             {"{{ n ~ t ~ whole }}", "NoneTrue2.0"},
             {"{{ list }}", "[1, 2.5, \"it's\", None, False]"},
             {"{{ map }}", "{'b': 1, 'a': ['x', 'y'], 'items': 3}"},
             {"{{ (1, 'a') }}{{ (1,) }}{{ () }}", "(1, 'a')(1,)()"},
             {"{{ list | tojson }}", "[1, 2.5, \"it's\", null, false]"},
             {"{{ map | tojson(indent=2) }}",
              "{\n  \"b\": 1,\n  \"a\": [\n    \"x\",\n    \"y\"\n  ],\n  \"items\": 3\n}"},
             {"{{ '<é&\"' | tojson }}", "\"<é&\\\"\""},
             {"{{ {'a': 1} | tojson(separators=(',', ':')) }}", "{\"a\":1}"},
             {"{{ map['items'] }}{% for k, v in map.items() %}{{ k }}{% endfor %}", "3baitems"},
             {"{{ list[-2:] }}{{ text[::-1] }}{{ list[1:4:2] }}{{ 'abc'[5:] }}",
              "[None, False]eerht  owt eno[2.5, None]"},
             {"{{ text.split() }}{{ text.split(' ') }}{{ text.split(' ', 1)[1] }}",
              "['one', 'two', 'three']['one', 'two', '', 'three']two  three"},
             {"{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
              "3 -4 -2 3.5 1024 0.5"},
             {"{{ 'ab' * 2 }}{{ [1] + [2] }}{{ true + 1 }}", "abab[1, 2]2"},
             {"{{ '%s is %05.1f and %d' % ('x', 2.25, 7) }}", "x is 002.2 and 7"},
             {"{{ '{:>5}|{!r}|{a[0]}'.format(7, 'q', a=[1]) }}", "    7|'q'|1"},
             {"{{ 1 == 1.0 }}{{ 'a' in 'abc' }}{{ 3 not in [1] }}{{ 1 < 2 < 3 }}", "TrueTrueTrueTrue"},
             {"{{ missing }}|{{ missing is defined }}|{{ missing or 'x' }}|{{ missing | "
              "default('d') }}",
              "|False|x|d"},
             {"{% for x in missing %}a{% else %}none{% endfor %}", "none"},
             {"{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", "1"},
             {"{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 2 %}{% endfor %}{{ "
              "ns.x }}",
              "2"},
             {"{% if true %}{% set x = 3 %}{% endif %}{{ x }}", "3"},
             {"{% macro m(a, b=2) %}{{ a }}{{ b }}{{ kwargs }}{{ varargs }}{% endmacro %}{{ m(1, "
              "3, 4, c=5) }}",
              "13{'c': 5}(4,)"},
             {"{% macro m() %}<{{ caller('x') }}>{% endmacro %}{% call(y) m() %}{{ y }}!{% endcall "
              "%}",
              "<x!>"},
             {"{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} "
              "{% endfor %}",
              "1/2False 2/2True "},
             {"{% for x in [1, 2] %}{% for y in [1, 2] if y != loop.index %}{{ x }}{{ y }} {% endfor "
              "%}{% endfor %}",
              "12 21 "},
             {"{% for x in [3, 4] recursive %}{{ x }}{% if x == 3 %}{{ loop([5]) }}{% endif %}{% "
              "endfor %}",
              "354"},
             {"{% for x in range(5) %}{% if x == 1 %}{% continue %}{% elif x == 3 %}{% break %}{% "
              "endif %}{{ x }}{% endfor %}",
              "02"},
             {"{% generation %}a{% set z = 1 %}{% endgeneration %}{{ z is defined }}", "aFalse"},
             {"{{ '{% generation %}' }}{% raw %}{% generation %}{% endraw %}", "{% generation %}{% generation %}"},
             {"a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"},
             {"a\r\n{{ 'b' }}\r\n", "a\nb"},
             {"{{ [3, 1, 2] | sort | join('-') }}{{ ['b', 'A'] | sort }}{{ [1, 1, 2] | unique | "
              "list }}",
              "1-2-3['A', 'b'][1, 2]"},
             {"{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'gt', 1) | map(attribute='a') | list }}", "[2]"},
             {"{{ 'hello wORLD-x' | title }}{{ 'hELLO' | capitalize }}{{ ' x ' | trim }}", "Hello World-XHellox"},
             {"{{ 'a\nb' | indent }}|{{ 'a\nb' | indent(2, true) }}", "a\n    b|  a\n  b"},
             {"{{ 2.5 | round }} {{ 3.14159 | round(2) }} {{ 7 | round }} {{ '12x' | int }} {{ "
              "'0x1f' | int(0, 16) }}",
              "2.0 3.14 7 0 31"},
             {"{{ dict(a=1, b=2) | dictsort(reverse=true) }}", "[('b', 2), ('a', 1)]"},
             {"{{ strftime_now('%d %b %Y %-d %A %H:%M') }}", "05 Mar 2026 5 Thursday 07:08"},
             {"{{ 'x' if false }}{{ ('x' if false) is defined }}", "False"},
             {"{{ [1, 2] | length }}{{ 'äö' | length }}{{ {} | length }}", "220"},
             {"{{ 'Straße'.upper() }}{{ 'a,b'.partition(',') }}{{ 'aXbX'.replace('X', '-', 1) }}",
              "STRASSE('a', ',', 'b')a-bX"},
             {"{{ 'a' 'b' }}{{ \"\\x41\\u00e9\\n\" }}", "abAé\n"},
             {"{{ 'abc'.startswith(('x', 'a')) }}{{ 'x'.join(['a', 'b']) }}{{ 'a-b'.rsplit('-', 1) "
              "}}",
              "Trueaxb['a', 'b']"},
             {"{{ 12345678901234567890123 }}{{ none is none }}{{ 1 is number }}{{ [] is sequence "
              "}}{{ {} is mapping }}",
              "12345678901234567890123TrueTrueTrueTrue"},
         }) {
        EXPECT_EQ(render(c.source, values), c.expected) << c.source;
    }
}

TEST(ChatTemplate, FailsWherePythonRaises) {
    for (const char* source : {"{{ missing.x }}",
                               "{{ missing['x'] }}",
                               "{{ missing + 'a' }}",
                               "{{ 'a' + missing }}",
                               "{{ 'a' + none }}",
                               "{{ 'a' + 1 }}",
                               "{{ none | length }}",
                               "{{ missing() }}",
                               "{{ 1 < 'a' }}",
                               "{{ missing | tojson }}",
                               "{{ [1].append(2) }}",
                               "{{ {}.update({'a': 1}) }}",
                               "{{ ''.__class__.x }}",
                               "{{ 1 // 0 }}",
                               "{{ none.x.y }}",
                               "{{ {'a': 1}.b.c }}",
                               "{{ [1][5].x }}",
                               "{% for a, b in [[1]] %}{% endfor %}",
                               "{% for x in 5 %}{% endfor %}",
                               "{{ x | nosuchfilter }}",
                               "{{ x is nosuchtest }}",
                               "{% include 'x' %}",
                               "{{ range(1000000) }}",
                               "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
                               "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
                               "{{ 'x' in none }}",
                               "{{ [1] | map('upper') | length }}",
                               "{% if x %}",
                               "{{ 'a' }",
                               "{% nosuchtag %}",
                               "{% set x.y = 1 %}",
                               "{{ {[1]: 2} }}",
                               "{{ 'a'.nosuch() }}",
                               "{% break %}"}) {
        EXPECT_EQ(render(source).substr(0, 6), "ERROR ") << source;
    }
    EXPECT_EQ(render("{{ raise_exception('no ' ~ 1) }}"), "ERROR no 1");
}

TEST(ChatTemplate, WorksOnDeeplyNestedInput) {
    std::string nested = "1";
    for (int i = 0; i < 100; ++i) nested = "[" + nested + "]";
    const auto chat = ChatTemplate::from_source("{{ messages }}{{ messages | tojson }}", "{}").value();
    EXPECT_EQ(chat->render("{\"messages\":" + nested + "}").value(), nested + nested);
    std::string too_deep(100000, '[');
    EXPECT_FALSE(chat->render("{\"messages\":" + too_deep).ok());
}

TEST(ChatTemplate, RefusesTemplatesThatWouldUseUpTheStack) {
    const auto many = [](const char* part, int count) {
        std::string text;
        for (int i = 0; i < count; ++i) text += part;
        return text;
    };
    for (const std::string& expression :
         {many("-", 100000) + "1", many("not ", 100000) + "1", "1" + many("+1", 100000), "1" + many(".b", 100000),
          many("[", 100000), "1" + many("**1", 1000), many("not ", 2500) + "1", "1" + many(" is not odd", 700)}) {
        EXPECT_EQ(render("{{ " + expression + " }}").substr(0, 6), "ERROR ") << expression.substr(0, 20);
    }
    EXPECT_EQ(render(many("{% if 1 %}", 10000)).substr(0, 6), "ERROR ");
}

class TemplateFolder : public ::testing::Test {
  protected:
    TemplateFolder() : folder_(::testing::TempDir() + "lorad-template-" + std::to_string(::getpid())) {
        std::filesystem::create_directories(folder_);
    }
    ~TemplateFolder() override { std::filesystem::remove_all(folder_); }

    void write(const std::string& name, const std::string& content) { std::ofstream(folder_ / name) << content; }

    std::string rendered(const std::string& input = "{\"messages\":[]}") {
        const auto chat = ChatTemplate::load(folder_);
        if (!chat.ok()) return "LOAD " + chat.error().message;
        const auto text = chat.value()->render(input);
        return text.ok() ? text.value() : "ERROR " + text.error().message;
    }

    std::filesystem::path folder_;
};

TEST_F(TemplateFolder, TakesTheTemplateAndTokensOfTheConfig) {
    write(
        "tokenizer_config.json",
        R"({"chat_template":"{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}","bos_token":{"content":"<b>","lstrip":false},"eos_token":"</b>","pad_token":null})");
    EXPECT_EQ(rendered(), "<b></b>False");
    EXPECT_EQ(rendered(R"({"messages":[],"extra":{"bos_token":"mine"}})"), "mine</b>False");
}

TEST_F(TemplateFolder, PrefersTheTemplateFileOverTheConfig) {
    write("tokenizer_config.json", R"({"chat_template":"config","bos_token":"<b>"})");
    write("chat_template.json", R"({"chat_template":"json"})");
    EXPECT_EQ(rendered(), "json");
    write("chat_template.jinja", "file {{ bos_token }}\n");
    EXPECT_EQ(rendered(), "file <b>");
}

TEST_F(TemplateFolder, ChoosesTheNamedTemplateForTools) {
    write(
        "tokenizer_config.json",
        R"({"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"tools {{ tools | length }}"}]})");
    EXPECT_EQ(rendered(), "plain");
    EXPECT_EQ(rendered(R"({"messages":[],"tools":[{},{}]})"), "tools 2");
}

TEST_F(TemplateFolder, ReadsTheNamedTemplatesBesideTheDefaultOne) {
    std::filesystem::create_directories(folder_ / "additional_chat_templates");
    write("additional_chat_templates/tool_use.jinja", "tools {{ tools | length }}{{ bos_token }}");
    write("additional_chat_templates/rag.jinja", "rag");
    write("additional_chat_templates/notes.txt", "no template");
    write(
        "tokenizer_config.json",
        R"({"chat_template":[{"name":"default","template":"old"},{"name":"rag","template":"old rag"}],"bos_token":"<b>"})");
    EXPECT_EQ(rendered(R"({"messages":[],"template":"rag"})"), "rag") << "files count, not the config";
    EXPECT_EQ(rendered(), "old") << "but for the default one, if they lack it";
    write("tokenizer_config.json", R"({"chat_template":"config","bos_token":"<b>"})");
    EXPECT_EQ(rendered(), "config");
    write("tokenizer_config.json", R"({"bos_token":"<b>"})");
    EXPECT_EQ(rendered(), "ERROR of several chat templates none is the default; name one: rag, tool_use");
    write("chat_template.json", R"({"chat_template":"json"})");
    EXPECT_EQ(rendered(), "json");
    write("chat_template.jinja", "file");
    EXPECT_EQ(rendered(), "file");
    EXPECT_EQ(rendered(R"({"messages":[],"tools":[{},{}]})"), "tools 2<b>");
    EXPECT_EQ(rendered(R"({"messages":[],"tools":[{}],"template":"rag"})"), "rag");
    EXPECT_EQ(rendered(R"({"messages":[],"template":"default"})"), "file");
    const auto refused = ChatTemplate::load(folder_).value()->render(R"({"messages":[],"template":"none"})");
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupportedParameter);
    EXPECT_EQ(refused.error().param, "chat_template");
    EXPECT_EQ(refused.error().message, "chat_template: no template of this name, there are: default, rag, tool_use");
    EXPECT_TRUE(ChatTemplate::load(folder_).value()->mentions("tools | length"));
}

TEST_F(TemplateFolder, LoadsWithoutATemplateAndSaysSoWhenAsked) {
    EXPECT_FALSE(ChatTemplate::load(folder_).value()->exists());
    EXPECT_EQ(rendered().substr(0, 35), "ERROR this model has no chat templa");
    write("tokenizer_config.json", "{}");
    EXPECT_FALSE(ChatTemplate::load(folder_).value()->exists());
}

TEST_F(TemplateFolder, NamesTheFileThatIsDamaged) {
    write("tokenizer_config.json", "{\"chat_template\": ");
    EXPECT_NE(rendered().find("tokenizer_config.json"), std::string::npos);
    EXPECT_EQ(rendered().substr(0, 5), "LOAD ");
    write("tokenizer_config.json", "[]");
    EXPECT_EQ(rendered().substr(0, 5), "LOAD ");
    write("tokenizer_config.json", R"({"chat_template": 5})");
    EXPECT_EQ(rendered().substr(0, 5), "LOAD ");
}

TEST_F(TemplateFolder, ServesPlainCompletionsWithATemplateThatDoesNotParse) {
    write("chat_template.jinja", "line one\n{% if %}");
    EXPECT_TRUE(ChatTemplate::load(folder_).value()->exists());
    EXPECT_NE(rendered().find("line 2"), std::string::npos) << rendered();
}

}  // namespace
}  // namespace lorad::model::text_template_test
