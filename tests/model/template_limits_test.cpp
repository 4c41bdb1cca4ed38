// Templates that somebody made to use up time, memory or the stack: each ends with an error, and soon. They run on a
// thread with a stack of 1 MiB, a fraction of what the threads that answer requests have.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>

#include <malloc.h>
#include <pthread.h>

#include "tests/model/text_goldens.h"
#include "tests/support/sanitized.h"

namespace lorad::model::template_limits_test {
namespace {

constexpr size_t kStackBytes = size_t{1} << 20;
constexpr const char* kInput = R"({"messages":[{"role":"user","content":"hi"}]})";

void on_small_stack(std::function<void()> work) {
    pthread_attr_t attributes;
    ASSERT_EQ(pthread_attr_init(&attributes), 0);
    ASSERT_EQ(pthread_attr_setstacksize(&attributes, kStackBytes), 0);
    pthread_t thread;
    const auto run = [](void* argument) -> void* {
        (*static_cast<std::function<void()>*>(argument))();
        return nullptr;
    };
    ASSERT_EQ(pthread_create(&thread, &attributes, run, &work), 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
}

Result<std::string> render(const std::string& source, const std::string& input = kInput) {
    Result<std::string> text = make_error(ErrorCode::kInternal, "not rendered");
    on_small_stack([&] {
        const auto chat = ChatTemplate::from_source(source, "{}");
        text = chat.ok() ? chat.value()->render(input) : Result<std::string>(chat.error());
    });
    return text;
}

std::string many(const std::string& part, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += part;
    return text;
}

// What each template does to `ns.a`, so many times.
std::string repeated(const std::string& set, const std::string& then, int times = 100000,
                     const std::string& start = "[]") {
    return "{% set ns = namespace(a=" + start + ", b=" + start + ") %}{% for i in range(" + std::to_string(times) +
           ") %}" + set + "{% endfor %}" + then;
}

// Two values that hold the one before twice, sixty times over: 2^60 of them, if each visit counts.
std::string shared(const std::string& open, const std::string& close, const std::string& then) {
    return repeated(
        "{% set ns.a = " + open + "ns.a, ns.a" + close + " %}{% set ns.b = " + open + "ns.b, ns.b" + close + " %}",
        then, 60, open + "1," + close);
}

size_t resident_peak_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmHWM:")) return std::stoul(line.substr(6));
    }
    return 0;
}

void forget_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

struct Bomb {
    std::string source;
    std::string message;  // a part of it
};

// The message of each is stable: clients and operators see it, under the code input_too_complex.
std::vector<Bomb> bombs() {
    const std::string steps = "too many steps";
    const std::string nested = "nested deeper";
    const std::string memory = "memory";
    const std::string longer = "longer than";
    const std::string recursion = "recursion depth";
    return {
        {repeated("{% set ns.a = [ns.a] %}", "x"), nested},
        {repeated("{% set ns.a = {'k': ns.a} %}", "x"), nested},
        {repeated("{% set ns.a = (ns.a,) %}", "x"), nested},
        {repeated("{% set ns.a = cycler(ns.a) %}", "x"), nested},
        {repeated("{% set ns.a = {'k': ns.a}.items() %}", "x"), nested},
        {repeated("{% set ns.a = [ns.a].count %}", "x"), nested},
        {repeated("{% set ns.a = [ns.a] | select %}", "x", 100000, "1"), nested},
        {repeated("{% for x in [ns.a] %}{% set ns.a = loop %}{% endfor %}", "x"), nested},
        {shared("[", "]", "{{ ns.a == ns.b }}"), steps},
        {shared("[", "]", "{{ ns.a < ns.b }}"), steps},
        {shared("[", "]", "{{ ns.a in [ns.b] }}"), steps},
        {shared("[", "]", "{{ [ns.b].count(ns.a) }}"), steps},
        {shared("[", "]", "{{ ns.a | tojson }}"), steps},
        {shared("[", "]", "{{ ns.a }}"), steps},
        {shared("[", "]", "{{ '%s' % (ns.a,) }}"), steps},
        {shared("(", ")", "{{ [ns.a, ns.b] | unique | list }}"), steps},
        {shared("(", ")", "{{ [ns.a, ns.b] | sort }}"), steps},
        {shared("(", ")", "{{ [ns.a, ns.b] | max }}"), steps},
        {shared("(", ")", "{{ {ns.a: 1}[ns.b] }}"), steps},
        {shared("(", ")", "{{ [{'x': ns.a}, {'x': ns.b}] | groupby('x') }}"), steps},
        {shared("[", "]", "{% for x in [1] %}{{ loop.changed(ns.a) }}{{ loop.changed(ns.b) }}{% endfor %}"), steps},
        {repeated("{% set ns.a = {'x': ns.a, 'y': ns.a} %}", "{{ ns.a | tojson }}", 60), steps},
        {repeated("{% set x = range(100000) | list %}", "x"), steps},
        {repeated("{% set x = range(100000) | max %}", "x"), steps},
        {repeated("{% set x = range(100000) | sum %}", "x"), steps},
        {repeated("{% set x = 'a' in (range(100000) | list) %}", "x"), steps},
        {repeated("{% set x = '%60000d' % i %}", "x"), steps},
        {repeated("{% set x = 'abc'.ljust(1000000) %}", "x"), steps},
        {repeated("{% set ns.b = dict(ns.b, **{'k' ~ i: i}) %}", "x", 100000, "{}"), steps},
        {repeated("{% set x %}" + many("raw text ", 10000) + "{% endset %}", "x"), steps},
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", steps},
        {"{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", steps},
        {"{% set s = 'a' * 4000000 %}{% for i in range(100000) %}{% set x = s.count('b') %}{% endfor %}", steps},
        {"{% set s = 'a' * 4000000 %}{% set t = 'bcdefg' * 100000 ~ 'a' %}{% for i in range(100000) %}{% set x = "
         "s.strip(t) %}{% endfor %}",
         steps},
        {repeated("{% set x = ('ab' * 1000000) | last %}", "x"), steps},
        {repeated("{% set x = ('ab' * 1000000) | first %}{% set y = {} | items | list %}{% set z = 'ab' * 1000000 %}",
                  "x"),
         steps},
        {"{{ ('ba' * 8000000) | sort }}", memory},
        {"{{ ('a ' * 8000000).split() }}", memory},
        {"{{ ('a\\n' * 8000000).splitlines() }}", memory},
        {"{{ ('a' * 16000000) | list }}", memory},
        {"{{ range(10) | slice(1000000000) | list }}", memory},
        {"{{ [1] | batch(1000000000, 'x') | list }}", memory},
        {repeated("{% set ns.a = [ns.a, ns.a] | sum(start=[]) %}", "x", 30, "[1]"), memory},
        {"{{ ('a\\n' * 1000000) | indent(1000000) }}", longer},
        {"{{ 'a' | center(1000000000) }}", longer},
        {"{{ 'a'.zfill(1000000000) }}", longer},
        {"{{ '\\t'.expandtabs(1000000000) }}", longer},
        {"{{ range(100000) | join('x' * 100000) }}", longer},
        {"{{ [[1]] | tojson(indent=1000000000) }}", longer},
        {"{% set s = 'a' * 9999999 %}{{ ([s] * 100000) | join }}", longer},
        {"{% set s = 'a' * 9999999 %}{{ [s] * 100000 }}", memory},
        {"{% set s = 'a' * 9999999 %}{{ ([s] * 100000) | tojson }}", longer},
        {"{% set s = 'a' * 9999999 %}{{ s | replace('a', s) }}", longer},
        {"{% set s = 'a' * 9999999 %}{{ s.join([s] * 100) }}", longer},
        {"{% set s = 'a' * 1000000 %}{% for i in range(100) %}{{ s }}{% endfor %}", longer},
        {"{% for i in range(100000) %}" + many("raw text ", 10000) + "{% endfor %}", longer},
        {"{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", recursion},
        {"{% macro f(n) %}{% call f(n + 1) %}x{{ f(1) }}{% endcall %}{% endmacro %}{{ f(0) }}", recursion},
        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", recursion},
        {"{{ 'a' | map(*(['map'] * 2000)) | list }}", recursion},
    };
}

// The sanitizers keep freed memory.
constexpr bool kMemoryIsCounted = !lorad::testing::kIsSanitized;

TEST(TemplateLimits, WhatWouldTakeForEverOrAllMemoryEndsSoon) {
    for (const Bomb& bomb : bombs()) {
        forget_peak();
        const size_t before_kib = resident_peak_kib();
        const auto begin = std::chrono::steady_clock::now();
        const Result<std::string> text = render(bomb.source);
        // Two seconds by the clock, and what the machine is busy with besides.
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << bomb.source;
        if (kMemoryIsCounted) {
            EXPECT_LT(resident_peak_kib(), before_kib + (size_t{256} << 10)) << bomb.source;
        }
        ASSERT_FALSE(text.ok()) << bomb.source << ": " << text->substr(0, 100);
        EXPECT_EQ(text.error().code, ErrorCode::kInputTooComplex) << bomb.source << ": " << text.error().message;
        const std::string& message = text.error().message;
        // On a busy machine the clock ends it before the bound that it is made for does.
        const bool is_late = message.find("longer than 2 s") != std::string::npos;
        EXPECT_TRUE(is_late || message.find(bomb.message) != std::string::npos) << bomb.source << ": " << message;
    }
}

// The tree is as deep as the longest chain, so that the parser, the evaluator and the tree's drop would go as deep.
TEST(TemplateLimits, ChainsThatWouldUseUpTheStackAreRefused) {
    for (const std::string& source :
         {"{% if 0 %}" + many("{% elif 0 %}", 50000) + "{% endif %}",
          many("{% if 1 %}", 20000) + many("{% endif %}", 20000),
          many("{% if 0 %}{% elif 0 %}", 20000) + many("{% endif %}", 20000),
          many("{% with a=1 %}", 20000) + many("{% endwith %}", 20000),
          many("{% set x %}", 20000) + many("{% endset %}", 20000),
          many("{% for x in [1] %}", 300) + many("{% endfor %}", 300), "{{ " + many("not ", 100000) + "1 }}",
          "{{ " + many("-", 100000) + "1 }}", "{{ " + many("(", 20000) + "1" + many(")", 20000) + " }}",
          "{{ " + many("[", 20000) + many("]", 20000) + " }}", "{{ 1" + many("+1", 100000) + " }}",
          "{{ 1" + many("**1", 100000) + " }}", "{{ a" + many(".a", 100000) + " }}",
          "{{ a" + many("[0]", 100000) + " }}", "{{ a" + many("()", 100000) + " }}",
          "{{ 1" + many("|string", 100000) + " }}", "{{ 1" + many(" is odd", 100000) + " }}",
          "{{ 1" + many(" if 0 else 1", 100000) + " }}", "{{ 1" + many(" if 1", 100000) + " }}",
          "{% set " + many("(", 100000) + "x" + many(")", 100000) + " = 1 %}",
          "{% set x" + many(".a", 100000) + " = 1 %}",
          "{% filter upper" + many("|upper", 100000) + " %}{% endfilter %}",
          // Not deep, but a tree of more memory than it is worth to keep.
          many("{{ 1 }}", 100000), "{{ [" + many("1, ", 100000) + "] }}",
          // What a simpler look at tags would take for the end of one.
          "{{ {1: {}}['{{}}'] ~ {2: {}}" + many("+1", 100000) + " }}", "{{ [1, 2" + many("+1", 100000) + ", 3] }}",
          "{# {{ ' }} #}{{ 1" + many("+1", 100000) + " }}",
          "{% raw %}{{ ' }}{% endraw %}{{ 1" + many("+1", 100000) + " }}"}) {
        const Result<std::string> text = render(source);
        ASSERT_FALSE(text.ok()) << source.substr(0, 60);
        EXPECT_EQ(text.error().code, ErrorCode::kInvalidRequest) << source.substr(0, 60);
        const std::string& message = text.error().message;
        EXPECT_TRUE(message.find("nested deeper") != std::string::npos ||
                    message.find("recursion limits") != std::string::npos ||
                    message.find("more than 60000 tokens") != std::string::npos)
            << source.substr(0, 60) << ": " << message;
    }
}

TEST(TemplateLimits, WhatIsAsDeepAsItMayBeStillRenders) {
    for (const auto& [source, expected] : std::vector<std::pair<std::string, std::string>>{
             {"{% if 0 %}" + many("{% elif 0 %}", 198) + "{% else %}x{% endif %}", "x"},
             {"{{ 1" + many("+1", 590) + " }}", "591"},
             {"{{ " + many("not ", 590) + "1 }}", "True"},
             {"{{ [" + many("'a' ~ 'b', ", 2000) + "] | length }}", "2000"},
             {"{{ " + many("[", 70) + many("]", 70) + " }}", many("[", 70) + many("]", 70)},
             {many("{% if 1 %}", 140) + "x" + many("{% endif %}", 140), "x"},
             {repeated("{% set ns.a = [ns.a] %}{% set ns.b = [ns.b] %}", "{{ ns.a == ns.b }}{{ ns.a < ns.b }}", 290),
              "TrueFalse"},
             {repeated("{% set ns.a = (ns.a,) %}{% set ns.b = (ns.b,) %}",
                       "{{ {ns.a: 1}[ns.b] }}{{ [ns.a, ns.b] | unique | list | length }}", 290, "()"),
              "11"},
             {repeated("{% set ns.a = [ns.a] %}", "{{ ns.a }}", 150), many("[", 151) + many("]", 151)},
             {repeated("{% set ns.a = namespace(b=ns.a) %}", "x"), "x"},
             {shared("[", "]", "{{ ns.a == ns.a }}"), "True"}}) {
        const Result<std::string> text = render(source);
        ASSERT_TRUE(text.ok()) << source.substr(0, 80) << ": " << text.error().message;
        EXPECT_EQ(*text, expected) << source.substr(0, 80);
    }
}

// Values that hold themselves, or make a chain of any length: all go with the rendering.
TEST(TemplateLimits, NothingIsLeftOfValuesThatHoldThemselves) {
    const std::string big = "{% set s = 'abcdefgh' * 10000 %}";
    const std::vector<std::string> sources = {
        big + "{% set ns = namespace(s=s ~ 'x') %}{% set ns.a = ns %}{{ ns.a.a.a is defined }}",
        big + "{% set a = namespace(s=s ~ 'x') %}{% set b = namespace(a=a) %}{% set a.b = [b] %}x",
        big + "{% set t = s ~ 'x' %}{% macro m() %}{{ t }}{% endmacro %}{% set ns = namespace(m=m) %}x",
        big + "{% for x in [s ~ 'x'] %}{{ loop.changed(loop, x) }}{% endfor %}",
        "{% set ns = namespace(f=0) %}{% macro mk(f) %}{% macro g() %}{{ f }}{% endmacro %}{% set ns.f = g %}{% "
        "endmacro %}{% for i in range(20000) %}{{ mk(ns.f) }}{% endfor %}x",
        "{% set ns = namespace(f=0) %}{% macro st() %}{% set ns.f = caller %}{% endmacro %}{% macro mk(f) %}{% if 1 "
        "%}{% call st() %}{{ f }}{% endcall %}{% endif %}"
        "{% endmacro %}{% for i in range(20000) %}{{ mk(ns.f) }}{% endfor %}x",
        "{% set ns = namespace(l=0) %}{% for i in range(20000) %}{% for x in [1] %}{% set _ = loop.changed(ns.l) %}{% "
        "set ns.l = loop %}{% endfor %}{% endfor %}x",
        "{% set ns = namespace(l=0) %}{% macro mk(f) %}{% for x in [1] recursive %}{% set ns.l = loop %}{% endfor %}{% "
        "endmacro %}"
        "{% for i in range(20000) %}{{ mk(ns.l) }}{% endfor %}x",
    };
    for (const std::string& source : sources) {
        size_t before = 0;
        constexpr int kTimes = 12;
        for (int i = 0; i < kTimes; ++i) {
            ASSERT_TRUE(render(source).ok()) << source << ": " << render(source).error().message;
            if (i == 1) before = mallinfo2().uordblks;
        }
        // One rendering holds at least 80,000 bytes.
        EXPECT_LT(mallinfo2().uordblks, before + 80000 * (kTimes - 2) / 2) << source;
    }
}

TEST(TemplateLimits, MessagesAreShortAndSayNothingOfLibraries) {
    const auto message = [](const std::string& source) {
        const Result<std::string> text = render(source);
        EXPECT_FALSE(text.ok()) << source;
        return text.ok() ? std::string() : text.error().message;
    };
    EXPECT_EQ(message("{{ raise_exception('x' * 16000000) }}").size(), 2000);
    EXPECT_LT(message("{{ {} [{'a' * 16000000: 1}] }}{{ none['a' * 16000000].x }}").size(), 2100);
    EXPECT_LT(message("{{ range(3).index('a' * 16000000) }}").size(), 2100);
    EXPECT_LT(message("{{ 1 | default(**{'a' * 16000000: 1}) }}").size(), 2100);
    EXPECT_EQ(message("{{ raise_exception('a\\x1b[31m\\u202e\\x00\\n\\u200bb') }}"),
              "a\\u{1b}[31m\\u{202e}\\u{0}\n\\u{200b}b");
    for (const char* source : {"{{ '%.1000000000f' % 1.5 }}", "{{ '{:.70000f}'.format(1.5) }}",
                               "{{ '%1000000000d' % 1 }}", "{{ '{:>1000000000}'.format(1) }}"}) {
        EXPECT_NE(message(source).find("width or precision of a format is larger than 60000"), std::string::npos)
            << source;
    }
}

TEST(TemplateLimits, NumbersAtTheirEndsAreErrorsOrRight) {
    const std::string most = "170141183460469231731687303715884105727";
    EXPECT_EQ(*render("{{ ('%.60000f' % 1.5) | length }}"), "60002");
    EXPECT_EQ(*render("{{ " + most + " }}"), most);
    for (const std::string& expression :
         {"-(-" + most + " - 1)", "(-" + most + " - 1) // -1", "(-" + most + " - 1) | abs", most + " + 1",
          most + " * 2", std::string("2 ** 200")}) {
        EXPECT_FALSE(render("{{ " + expression + " }}").ok()) << expression;
    }
    EXPECT_EQ(*render("{{ (-" + most + " - 1) % -1 }}"), "0");
    EXPECT_EQ(*render("{{ range(" + most + ", " + most + ") | list }}{{ range(-" + most + ", -" + most +
                      " + 3)[::-1] | length }}"),
              "[]3");
}

// A conversation as long as the longest contexts, in every template of the goldens.
TEST(TemplateLimits, LongConversationsAreFarFromThem) {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    const std::string words = many("Some words of a message. ", 80);
    for (int i = 0; i < 2000; ++i)
        messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", words + std::to_string(i)}});
    const std::string input = nlohmann::ordered_json{{"messages", messages}, {"add_generation_prompt", true}}.dump();
    const auto index = golden_index();
    for (const auto& entry : index["chat_templates"]) {
        const auto chat = ChatTemplate::from_source(read_golden(entry["file"]), entry["tokens"].dump()).value();
        const auto text = chat->render(input);
        ASSERT_TRUE(text.ok()) << entry["name"] << ": " << text.error().message;
        EXPECT_GT(text->size(), 4'000'000) << entry["name"];
    }
}

TEST(TemplateLimits, InputIsBoundedAsTemplatesAre) {
    std::string numbers = "[1";
    for (int i = 0; i < 8'000'000; ++i) numbers += ",1";
    const Result<std::string> text = render("x", R"({"messages":)" + numbers + "]}");
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.error().code, ErrorCode::kInputTooComplex) << text.error().message;
    EXPECT_FALSE(render("x", R"({"messages":)" + many("[", 100000)).ok());
    EXPECT_FALSE(render("x", R"({"messages":)" + many("{\"a\":", 100000)).ok());
    EXPECT_FALSE(render("x", R"({"messages":[)" + many("1", 100000) + "]}").ok());
}

}  // namespace
}  // namespace lorad::model::template_limits_test
