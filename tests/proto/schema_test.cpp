// JSON schemas as the grammar compiler gets them.
#include "proto/schema/schema.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <random>
#include <regex>

#include <gtest/gtest.h>

#include "proto/base/format.h"
#include "proto/schema/schema_patterns.h"

namespace lorad::proto::schema_test {
namespace {

struct Written {
    std::string text;
    std::vector<std::string> not_enforced;
};

Written write(const std::string& schema, const SchemaUse& use = {}) {
    Result<JsonDocument> document = parse_json(schema);
    EXPECT_TRUE(document.ok()) << schema;
    Written out;
    Result<GrammarSchema> written = schema_for_grammar(document->root(), use, out.not_enforced);
    out.text = written.ok() ? written->whole() : "error: " + written.error().message;
    return out;
}

std::string text_of(const std::string& schema, const SchemaUse& use = {}) {
    Written written = write(schema, use);
    EXPECT_TRUE(written.not_enforced.empty()) << schema << " loses " << written.not_enforced[0];
    return written.text;
}

TEST(Schema, DescriptionsAndUnknownWordsAreLeftOut) {
    EXPECT_EQ(
        text_of(
            R"({"title":"T","$schema":"x","type":"string","description":"d","default":1,"x-order":3,"maxLength":4})"),
        R"({"type":"string","maxLength":4})");
    for (const char* format : {"password", "binary", "int32", "nobody knows"})
        EXPECT_EQ(text_of(R"({"type":"string","format":")" + std::string(format) + "\"}"), R"({"type":"string"})");
    EXPECT_EQ(text_of(R"({"type":"string","format":"date"})"), R"({"type":"string","format":"date"})");
    EXPECT_EQ(text_of(R"({"type":"string","format":"time"})"),
              R"({"type":"string","format":"time","allOf":[{"pattern":"^[^:]*:[^:]*:[0-5]"}]})");
    EXPECT_EQ(text_of("true"), "true");
    EXPECT_EQ(text_of("{}"), "{}");
}

TEST(Schema, ReferencesFindWhateverPointersName) {
    const auto at_a = [](const std::string& reference, const std::string& more) {
        return text_of(R"({"properties":{"a":{"$ref":")" + reference + "\"}" + more);
    };
    const std::string expected = R"({"properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{"d0":{"type":"null"}}})";
    EXPECT_EQ(at_a("#/$defs/A", R"(},"$defs":{"A":{"type":"null"}}})"), expected);
    EXPECT_EQ(at_a("#/definitions/x~1y~0z", R"(},"definitions":{"x/y~z":{"type":"null"}}})"), expected);
    EXPECT_EQ(at_a("#/definitions/a%20b%25", R"(},"definitions":{"a b%":{"type":"null"}}})"), expected);
    EXPECT_EQ(at_a("#there", R"(},"$defs":{"A":{"$anchor":"there","type":"null"}}})"), expected);
    EXPECT_EQ(at_a("#/allOf/1", R"(},"allOf":[true,{"type":"null"}]})").substr(0, 43), expected.substr(0, 43));
    EXPECT_EQ(at_a("#/properties/b", R"(,"b":{"type":"null"}}})"),
              R"({"properties":{"a":{"$ref":"#/$defs/d0"},"b":{"type":"null"}},"$defs":{"d0":{"type":"null"}}})");
    EXPECT_EQ(text_of(R"({"$id":"urn:x","properties":{"a":{"$ref":"urn:x#/$defs/A"}},"$defs":{"A":{"type":"null"}}})"),
              expected);
    EXPECT_EQ(
        at_a("#", "}}"),
        R"({"properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{"d0":{"properties":{"a":{"$ref":"#/$defs/d0"}}}}})");
    for (const char* nowhere :
         {"#/$defs/B", "#/$defs", "#/a%2", "#nowhere", "http://example.org/x", "other.json#/a", "#/properties/a/b"}) {
        Written refused = write(R"({"properties":{"a":{"$ref":")" + std::string(nowhere) + R"("}},"$defs":{"A":{}}})");
        if (std::string(nowhere) == "#/$defs") continue;  // a schema without any known keyword
        EXPECT_TRUE(refused.text.starts_with("error: properties.a.$ref: ")) << nowhere << " " << refused.text;
    }
}

TEST(Schema, DefinitionsThatAreOnlyThemselvesAreRefused) {
    const auto defined = [](const std::string& definitions) {
        return write(R"({"$ref":"#/$defs/a","$defs":{)" + definitions + "}}").text;
    };
    for (const char* circle :
         {R"("a":{"$ref":"#/$defs/a"})",
          R"("a":{"$ref":"#/$defs/b"},"b":{"allOf":[{"type":"object"},{"$ref":"#/$defs/a"}]})",
          R"("a":{"type":"string","$ref":"#/$defs/b"},"b":{"allOf":[{"allOf":[{"$ref":"#/$defs/b"}]}]})",
          R"("a":{"$ref":"#"})"}) {
        const std::string refused = defined(circle);
        EXPECT_TRUE(refused.ends_with("the schema refers to itself for the same value, so it describes none"))
            << circle << " " << refused;
        EXPECT_NE(refused.find("$ref: "), std::string::npos) << refused;
    }
    // Trees and lists go on to a property, an element or an alternative; two ways to one definition are no circle.
    for (
        const char* ends :
        {R"("a":{"properties":{"next":{"$ref":"#/$defs/a"}}})", R"("a":{"type":"array","items":{"$ref":"#/$defs/a"}})",
         R"("a":{"allOf":[{"$ref":"#/$defs/b"},{"$ref":"#/$defs/c"}]},"b":{"$ref":"#/$defs/c"},"c":{"type":"null"})"}) {
        const std::string written = defined(ends);
        EXPECT_FALSE(written.starts_with("error")) << written;
    }
}

TEST(Schema, ParametersAreAnObject) {
    const SchemaUse arguments{.is_arguments = true, .is_closed = true};
    EXPECT_EQ(text_of("{}", arguments), R"({"type":"object","additionalProperties":false})");
    EXPECT_EQ(text_of(R"({"type":["null","object"],"properties":{"a":{}},"required":["a"]})", arguments),
              R"({"type":"object","properties":{"a":{}},"required":["a"],"additionalProperties":false})");
    EXPECT_EQ(text_of(R"({"$ref":"#/$defs/A","$defs":{"A":{"properties":{"a":{"type":"object"}}}}})", arguments),
              R"({"type":"object","properties":{"a":{"type":"object"}},"additionalProperties":false})");
    // Open where the schema says so, where it wants more than it names, and beside other schemas of the same object.
    EXPECT_EQ(
        text_of(R"({"properties":{"a":{"properties":{"b":{}}}},"additionalProperties":true})", arguments),
        R"({"type":"object","properties":{"a":{"properties":{"b":{}},"additionalProperties":false}},"additionalProperties":true})");
    EXPECT_EQ(text_of(R"({"properties":{"a":{}},"required":["b"]})", arguments),
              R"({"type":"object","properties":{"a":{}},"required":["b"]})");
    EXPECT_EQ(text_of(R"({"allOf":[{"properties":{"a":{}}},{"properties":{"b":{}}}]})", arguments),
              R"({"type":"object","allOf":[{"properties":{"a":{}}},{"properties":{"b":{}}}]})");
    EXPECT_EQ(
        text_of(R"({"anyOf":[{"properties":{"a":{}}},{"properties":{"b":{}}}]})", arguments),
        R"({"type":"object","anyOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}},"additionalProperties":false}]})");
    EXPECT_EQ(text_of(R"({"properties":{"a":{}}})", {.is_arguments = true}),
              R"({"type":"object","properties":{"a":{}}})");
    EXPECT_TRUE(write(R"({"type":"string"})", arguments).text.starts_with("error: type: "));
}

TEST(Schema, AlternativesThatExcludeEachOtherAreAnyOfThem) {
    for (
        const char* same :
        {R"([{"type":"string"},{"type":"integer"},{"type":["null","boolean"]}])", R"([{"const":1},{"const":2}])",
         R"([{"enum":["a","b"]},{"enum":["c"]}])", R"([{"type":"integer","maximum":3},{"type":"integer","minimum":4}])",
         R"([{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}])",
         R"([{"type":"object","required":["a"]},{"type":"object","properties":{"b":{}},"additionalProperties":false}])"}) {
        const std::string schema =
            R"({"oneOf":)" + std::string(same) +
            R"(,"$defs":{"cat":{"type":"object","properties":{"kind":{"const":"cat"}},"required":["kind"]},)"
            R"("dog":{"type":"object","properties":{"kind":{"const":"dog"}},"required":["kind"]}}})";
        Written written = write(schema);
        EXPECT_TRUE(written.not_enforced.empty()) << same;
        EXPECT_TRUE(written.text.starts_with("{\"anyOf\":[")) << written.text;
    }
    for (const char* overlapping : {R"([{"type":"number"},{"type":"integer"}])", R"([{},{"type":"null"}])",
                                    R"([{"required":["a"]},{"required":["b"]}])", R"([{"const":1},{"const":1.0}])",
                                    R"([{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/cat"}])"}) {
        Written written = write(R"({"oneOf":)" + std::string(overlapping) + R"(,"$defs":{"cat":{"type":"object"}}})");
        EXPECT_EQ(written.not_enforced, std::vector<std::string>{"oneOf"}) << overlapping;
        EXPECT_TRUE(written.text.starts_with("{\"anyOf\":[")) << written.text;
    }
    EXPECT_EQ(text_of(R"({"anyOf":[{"maximum":1}],"oneOf":[{"type":"integer"}],"allOf":[{"minimum":0}]})"),
              R"({"anyOf":[{"maximum":1}],"allOf":[{"anyOf":[{"type":"integer"}]},{"allOf":[{"minimum":0}]}]})");
}

// A client's schema may have anything anywhere: it is refused with a reason or written, alone and beside each other
// keyword.
TEST(Schema, NoValueOfAnyKeywordIsAnAccident) {
    const std::vector<std::string> keywords = {"type",
                                               "enum",
                                               "const",
                                               "not",
                                               "allOf",
                                               "anyOf",
                                               "oneOf",
                                               "if",
                                               "then",
                                               "else",
                                               "$ref",
                                               "$dynamicRef",
                                               "$anchor",
                                               "$id",
                                               "$defs",
                                               "definitions",
                                               "properties",
                                               "patternProperties",
                                               "additionalProperties",
                                               "unevaluatedProperties",
                                               "propertyNames",
                                               "required",
                                               "dependentRequired",
                                               "dependentSchemas",
                                               "dependencies",
                                               "minProperties",
                                               "maxProperties",
                                               "items",
                                               "prefixItems",
                                               "additionalItems",
                                               "unevaluatedItems",
                                               "contains",
                                               "minContains",
                                               "maxContains",
                                               "minItems",
                                               "maxItems",
                                               "uniqueItems",
                                               "minLength",
                                               "maxLength",
                                               "pattern",
                                               "format",
                                               "minimum",
                                               "maximum",
                                               "exclusiveMinimum",
                                               "exclusiveMaximum",
                                               "multipleOf",
                                               "x-guidance",
                                               "description",
                                               "odd"};
    const std::vector<std::string> values = {"null",
                                             "true",
                                             "-1",
                                             "0.5",
                                             "1e308",
                                             R"("")",
                                             R"("#")",
                                             R"("^a")",
                                             "[]",
                                             "[null]",
                                             R"(["a",1])",
                                             "[{}]",
                                             "{}",
                                             R"({"a":null})",
                                             R"({"a":{}})",
                                             R"({"a":["b"]})",
                                             R"({"not":null})",
                                             R"({"type":null})"};
    for (const std::string& keyword : keywords) {
        for (const std::string& value : values) {
            const std::string one = '"' + keyword + "\":" + value;
            for (const std::string& other : keywords) {
                for (const char* beside : {"null", "[]"}) {
                    const std::string both = other == keyword ? one : one + ",\"" + other + "\":" + beside;
                    for (const SchemaUse& use : {SchemaUse{}, SchemaUse{.is_arguments = true, .is_closed = true}}) {
                        const Written written = write(R"({"properties":{"p":{)" + both + "}}}", use);
                        ASSERT_FALSE(written.text.empty()) << both;
                    }
                }
            }
        }
    }
    EXPECT_EQ(write(R"({"not":null})").text, "error: not: expected a JSON schema, found null");
    EXPECT_EQ(write(R"({"not":[]})").text, "error: not: expected a JSON schema, found array of 0");
}

TEST(Schema, WhatNoGrammarHoldsIsSaidInOtherWordsOrListed) {
    EXPECT_EQ(text_of(R"({"enum":["a","b",1],"not":{"const":"b"}})"), R"({"enum":["a",1]})");
    EXPECT_EQ(text_of(R"({"type":["string","null"],"not":{"type":"null"}})"), R"({"type":["string"]})");
    EXPECT_EQ(text_of(R"({"type":"boolean","not":{"enum":[true]}})"), R"({"type":"boolean","enum":[false]})");
    EXPECT_EQ(text_of(R"({"type":"string","not":{"type":"integer"}})"), R"({"type":"string"})");
    EXPECT_EQ(text_of(R"({"type":"object","properties":{"a":{},"b":{}},"not":{"required":["a"]}})"),
              R"({"type":"object","properties":{"a":false,"b":{}}})");
    EXPECT_EQ(text_of(R"({"not":{}})"), "false");
    // Whole numbers cannot be left out of numbers by their type.
    for (const auto& [schema, said] :
         {std::pair(R"({"not":{"type":"integer"}})", "{}"),
          std::pair(R"({"type":["null","number"],"not":{"type":"integer"}})", R"({"type":["null","number"]})")}) {
        Written written = write(schema);
        EXPECT_EQ(written.text, said);
        EXPECT_EQ(written.not_enforced, std::vector<std::string>{"not"}) << schema;
    }
    EXPECT_EQ(text_of(R"({"type":"array","uniqueItems":true,"minItems":1,"items":{"enum":["a","b"]}})"),
              R"({"enum":[["a"],["a","b"],["b"],["b","a"]]})");
    EXPECT_EQ(text_of(R"({"type":"array","uniqueItems":true,"maxItems":1})"), R"({"type":"array","maxItems":1})");
    EXPECT_EQ(
        text_of(R"({"type":"object","additionalProperties":{"type":"null"},"propertyNames":{"enum":["a.","b"]}})"),
        R"({"type":"object","patternProperties":{"^(?:a\\.|b)$":{"type":"null"}},"additionalProperties":false})");
    EXPECT_EQ(text_of(R"({"type":"object","properties":{"a":{}},"unevaluatedProperties":false})"),
              R"({"type":"object","properties":{"a":{}},"additionalProperties":false})");
    EXPECT_EQ(text_of(R"({"if":{"type":"null"},"minContains":2})"), "{}");
    for (const char* keyword :
         {R"("not":{"pattern":"a"})", R"("uniqueItems":true)", R"("contains":{"type":"null"})", R"("if":{},"then":{})",
          R"("dependentRequired":{"a":["b"]})", R"("dependentSchemas":{})", R"x("pattern":"^(?=a)")x",
          R"x("pattern":"(a)\\1")x", R"("format":"regex")", R"("propertyNames":{"format":"email"})"}) {
        const std::string name = std::string(keyword).substr(1, std::string(keyword).find('"', 1) - 1);
        Written written =
            write(R"({"type":["array","object","string"],"items":{"type":"null",)" + std::string(keyword) + "}}");
        EXPECT_EQ(written.text, R"({"type":["array","object","string"],"items":{"type":"null"}})") << keyword;
        EXPECT_EQ(written.not_enforced, std::vector<std::string>{"items." + name}) << keyword;
    }
    for (const char* keyword :
         {R"("exclusiveMinimum":1e18)", R"("minimum":18446744073709551615)", R"("maximum":-1e300)",
          R"("multipleOf":0.12345)", R"("multipleOf":1e-15)", R"("multipleOf":999983)"}) {
        const std::string name = std::string(keyword).substr(1, std::string(keyword).find('"', 1) - 1);
        Written written = write(R"({"type":"number",)" + std::string(keyword) + "}");
        EXPECT_EQ(written.text, R"({"type":"number"})") << keyword;
        EXPECT_EQ(written.not_enforced, std::vector<std::string>{name}) << keyword;
    }
    // Claims about far numbers hold for nearer ones, too.
    EXPECT_EQ(text_of(R"({"minimum":-1.7976931348623157e308,"maximum":1e19})"),
              R"({"minimum":-9000000000000000000,"maximum":9000000000000000000})");
    EXPECT_EQ(text_of(R"({"minimum":-9223372036854775808,"maximum":9223372036854775807})"),
              R"({"minimum":-9000000000000000000,"maximum":9000000000000000000})");
    EXPECT_EQ(text_of(R"({"exclusiveMinimum":1e-300,"maximum":1})"), R"({"exclusiveMinimum":1e-60,"maximum":1})");
    EXPECT_EQ(text_of(R"({"exclusiveMaximum":-1e-100})"), R"({"exclusiveMaximum":-1e-60})");
    for (const char* kept :
         {R"({"minimum":-9e18})", R"({"maximum":1e18})", R"({"minimum":1e-60})", R"({"maximum":1e-300})",
          R"({"minimum":0,"maximum":9007199254740991})", R"({"multipleOf":0.01})", R"({"multipleOf":1000000000})",
          R"({"multipleOf":86400})", R"({"multipleOf":0})", R"({"multipleOf":-1})", R"({"minimum":"1"})"})
        EXPECT_EQ(text_of(kept), kept);
    for (const char* pattern : {R"(^a\\Z)", R"(\\Ga)", R"([\\b])", R"(\\0)", R"(\\cA)", R"((?>a))", R"((?#a)b)",
                                R"((?m)^a$)", R"((?P=x))", R"([^])", R"([])", R"(a{,3})", R"(a{2)", R"({)"}) {
        Written written = write(R"({"pattern":")" + std::string(pattern) + "\"}");
        EXPECT_EQ(written.text, "{}") << pattern;
        EXPECT_EQ(written.not_enforced, std::vector<std::string>{"pattern"}) << pattern;
    }
    for (const char* pattern : {R"(\\A\\w{2,}\\z)", R"(^[\\w\\-]+$)", R"((?i)a)", R"((?i:a)(?<n>b)(?P<m>c))",
                                R"(\\p{L}\\u{1f600}\\x{41})", R"([{}()]{1,2}})", R"(^\\/a$)"})
        EXPECT_EQ(text_of(R"({"pattern":")" + std::string(pattern) + "\"}"),
                  R"({"pattern":")" + std::string(pattern) + "\"}");
    EXPECT_EQ(write(R"({"properties":{"a":{},"b":{}},"minProperties":2})").not_enforced,
              std::vector<std::string>{"minProperties"});
    EXPECT_TRUE(write(R"({"type":"null","x-guidance":{}})").text.starts_with("error: x-guidance: "));
    EXPECT_TRUE(write("[]").text.starts_with("error: "));
    EXPECT_TRUE(write(R"({"items":5})").text.starts_with("error: items: "));
}

TEST(Schema, OfPatternsThatANameMayMatchTogetherOneIsKeptAndOthersAreListed) {
    const auto patterns = [](const std::string& members) {
        return write(R"({"type":"object","patternProperties":{)" + members + "}}");
    };
    Written apart = patterns(R"("^S_":{"type":"string"},"^I_":{"type":"integer"},"^[0-9]+$":{})");
    EXPECT_EQ(
        apart.text,
        R"({"type":"object","patternProperties":{"^S_":{"type":"string"},"^I_":{"type":"integer"},"^[0-9]+$":{}}})");
    EXPECT_TRUE(apart.not_enforced.empty());
    Written together = patterns(R"("^a":{"type":"string"},"b$":{"type":"integer"},"^c":{"type":"null"})");
    EXPECT_EQ(together.text, R"({"type":"object","patternProperties":{"^a":{"type":"string"},"^c":{"type":"null"}}})");
    EXPECT_EQ(together.not_enforced, std::vector<std::string>{"patternProperties.b$"});
    // One schema for both says the same.
    Written same = patterns(R"("^a":{"type":"string"},"b$":{"type":"string"})");
    EXPECT_EQ(same.text, R"({"type":"object","patternProperties":{"^a|b$":{"type":"string"}}})");
    EXPECT_TRUE(same.not_enforced.empty());
    // Many of them take bounded time.
    std::string many;
    for (int i = 0; i < 4000; ++i) many += (i == 0 ? "" : ",") + format(R"("^(a{}|[a-z]{{2,9}}){{1,40}}x":{{}})", i);
    const auto began = std::chrono::steady_clock::now();
    (void)patterns(many);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
}

// Against all short names, by another matcher.
TEST(Schema, PatternsMeetWhereSomeNameMatchesBoth) {
    std::mt19937 random(5);
    std::function<std::string(int)> pattern = [&](int depth) -> std::string {
        const auto one_of = [&](std::initializer_list<const char*> texts) {
            return std::string(texts.begin()[random() % texts.size()]);
        };
        std::string out;
        for (uint32_t n = random() % 3 + 1; n > 0; --n) {
            out += depth < 2 && random() % 4 == 0 ? "(" + pattern(depth + 1) + one_of({"", "|a", "|bc"}) + ")"
                                                  : one_of({"a", "b", "c", "[ab]", "[^a]", "."});
            out += one_of({"", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}"});
        }
        return out;
    };
    std::vector<std::string> names{""};
    for (size_t i = 0; names[i].size() < 6; ++i) {
        for (const char letter : {'a', 'b', 'c'}) names.push_back(names[i] + letter);
    }
    int n_apart = 0;
    for (int i = 0; i < 300; ++i) {
        std::string texts[2];
        for (std::string& text : texts)
            text = std::string(random() % 3 != 0 ? "^" : "") + pattern(0) + (random() % 2 != 0 ? "$" : "");
        size_t steps = 100'000;
        const PatternOverlap found = pattern_overlap(texts[0], texts[1], steps);
        const std::regex a(texts[0]), b(texts[1]);
        const bool meet = std::ranges::any_of(
            names, [&](const std::string& name) { return std::regex_search(name, a) && std::regex_search(name, b); });
        // Matches of longer names alone are not seen here.
        if (meet || found == PatternOverlap::kNone) {
            EXPECT_EQ(found, meet ? PatternOverlap::kSome : PatternOverlap::kNone) << texts[0] << "  " << texts[1];
        }
        n_apart += found == PatternOverlap::kNone ? 1 : 0;
    }
    EXPECT_GT(n_apart, 20);
    for (const char* beyond : {"(?i)a", "\\bx", "[[a]]", "a**", "(a", "^(^a)", "\\p{L}", "((((a{99}){99}){99}){99})"}) {
        size_t steps = 100'000;
        EXPECT_EQ(pattern_overlap(beyond, "a", steps), PatternOverlap::kUnknown) << beyond;
    }
}

// Each definition is written once, however often it is meant, and what cannot be is refused in good time.
TEST(Schema, TextsDoNotGrowBeyondMeasure) {
    std::string doubling = R"({"$ref":"#/$defs/a0","$defs":{"a30":{})";
    for (int i = 0; i < 30; ++i) {
        const std::string next = R"({"$ref":"#/$defs/a)" + std::to_string(i + 1) + "\"}";
        doubling += format(R"(,"a{}":{{"prefixItems":[{},{}]}})", i, next, next);
    }
    EXPECT_LT(text_of(doubling + "}}").size(), 4000u);
    std::string nested = R"({"enum":[")" + std::string(40000, 'x') + "\"]}", references, pointer = "#";
    for (int i = 0; i < 28; ++i) {
        nested = R"({"items":)" + nested + "}";
        pointer += "/items";
        references += format(R"({}{{"$ref":"{}"}})", i == 0 ? "" : ",", pointer);
    }
    Written refused = write(R"({"anyOf":[)" + references + "]," + nested.substr(1));
    EXPECT_NE(refused.text.find("at most"), std::string::npos) << refused.text.size();

    // Comparisons and long pointers are bounded, too: all of these took minutes otherwise.
    const auto times = [](int n, const std::string& text) {
        std::string list;
        for (int i = 0; i < n; ++i) list += (i == 0 ? "" : ",") + text;
        return list;
    };
    const auto began = std::chrono::steady_clock::now();
    const std::string required = R"({"type":"object","required":[)" + times(2000, "\"r\"") + "]}";
    (void)write(R"({"oneOf":[)" + times(3000, R"({"$ref":"#/$defs/a"})") + R"(],"$defs":{"a":)" + required + "}}");
    (void)write(R"({"prefixItems":[)" + times(3000, R"({"$ref":"#/allOf/19999"})") + R"(],"allOf":[)" +
                times(20000, "true") + "]}");
    (void)write(R"({"prefixItems":[)" + times(3000, R"({"not":{"$ref":"#/$defs/a"},"enum":[1]})") +
                R"(],"$defs":{"a":)" + required + "}}");
    (void)write(R"({"enum":[)" + times(30000, "\"a\"") + R"(],"not":{"enum":[)" + times(30000, "\"b\"") + "]}}");
    // A long name of a schema that is but a reference to itself, read for each of many others.
    const std::string name(60000, 'n'), itself = R"({"$ref":"#/$defs/)" + name + "\"}";
    (void)write(R"({"prefixItems":[)" + times(3000, R"({"type":"integer","not":{"$ref":"#b"}})") + R"(],"$defs":{")" +
                name + "\":" + itself + R"(,"b":{"$anchor":"b","anyOf":[)" + itself + "]}}}");
    // Pairs of names of types.
    (void)write(R"({"type":[)" + times(20000, "\"string\"") + R"(],"not":{"type":[)" + times(20000, "\"a\"") + "]}}");
    EXPECT_EQ(text_of(R"({"type":["string","null","string"],"not":{"type":"null"}})").find("null"), std::string::npos);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
}

}  // namespace
}  // namespace lorad::proto::schema_test
