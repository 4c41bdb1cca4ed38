#include "proto/json/json.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lorad::json_test {
namespace {

using ::testing::HasSubstr;

std::string parse_message(std::string_view text, JsonParseOptions options = {}) {
    const auto document = parse_json(text, options);
    return document.ok() ? std::string() : document.error().message;
}

TEST(Json, ReadsEveryTypeWithItsExactValue) {
    const auto document = parse_json(
        R"({"a":null,"b":true,"c":-9223372036854775808,"d":18446744073709551615,"e":1.5e2,"f":"x\u00e9\ud83d\ude00","g":[1,[2]],"h":{}})");
    ASSERT_TRUE(document.ok()) << document.error().message;
    const JsonValue root = document->root();
    EXPECT_TRUE(root.is_object());
    EXPECT_EQ(root.size(), 8u);
    EXPECT_FALSE(root.find("a"));
    EXPECT_TRUE(root.has("a"));
    EXPECT_TRUE(*root.find("b")->as_bool());
    EXPECT_EQ(*root.find("c")->as_int(), std::numeric_limits<int64_t>::min());
    EXPECT_FALSE(root.find("c")->as_uint().ok());
    EXPECT_FALSE(root.find("d")->as_int().ok());
    EXPECT_EQ(*root.find("d")->as_uint(), std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(*root.find("e")->as_number(), 150.0);
    EXPECT_FALSE(root.find("e")->as_int().ok());
    EXPECT_EQ(*root.find("f")->as_string(), "x\xc3\xa9\xf0\x9f\x98\x80");
    EXPECT_EQ(root.find("g")->size(), 2u);
    EXPECT_EQ(*(*root.find("g")->as_array())[0].as_int(), 1);
    EXPECT_EQ(root.find("h")->as_object()->size(), 0u);
}

TEST(Json, ErrorsCarryPathExpectedAndFound) {
    const auto document = parse_json(R"({"rope_scaling":{"factor":"8"},"m":[{"c":1},{"c":[]}]})",
                                     {.name = "config.json", .code = ErrorCode::kInvalidModel});
    ASSERT_TRUE(document.ok());
    const auto factor = document->root().find("rope_scaling")->number_or("factor", 1);
    ASSERT_FALSE(factor.ok());
    EXPECT_EQ(factor.error().message, R"(config.json: rope_scaling.factor: expected number, found string "8")");
    EXPECT_EQ(factor.error().param, "rope_scaling.factor");
    EXPECT_EQ(factor.error().code, ErrorCode::kInvalidModel);
    const auto second = (*document->root().find("m")->as_array())[1].find("c")->as_string();
    EXPECT_EQ(second.error().message, "config.json: m[1].c: expected string, found array of 0");
    const auto missing = document->root().find("rope_scaling")->require("rope_type");
    EXPECT_EQ(missing.error().message, "config.json: rope_scaling.rope_type: required, but missing");
}

TEST(Json, IntegersOutOfRangeNameTheRange) {
    const auto document = parse_json(R"({"n":300,"f":8.0,"s":"four"})");
    const JsonValue root = document->root();
    EXPECT_EQ(root.int_or("n", 0, 1, 256).error().message, "n: expected integer from 1 to 256, found 300");
    EXPECT_EQ(root.int_or("f", 0).error().message, "f: expected integer, found number 8.0");
    EXPECT_EQ(root.int_or("s", 0).error().message, R"(s: expected integer, found string "four")");
    EXPECT_EQ(*root.int_or("absent", 7, 1, 9), 7);
}

TEST(Json, SyntaxErrorsNameLineColumnAndByte) {
    EXPECT_THAT(parse_message("{\"a\": 1,\n \"b\" 2}"), HasSubstr("line 2 column 6 (byte 14)"));
    EXPECT_THAT(parse_message("[1,]", {.name = "x.json"}), HasSubstr("x.json: [1]: not valid JSON at line 1 column 4"));
    for (const char* text : {"{", "[", "\"abc", "nul", "{\"a\":}", "[1 2]", "{\"a\":1}x", "[NaN]", "[1e999]", "[01]",
                             "[\"\\ud800\"]", "[\"\xc3\x28\"]", "[\"a\nb\"]", "", "  \n", "\xff"}) {
        EXPECT_FALSE(parse_message(text).empty()) << text;
    }
}

TEST(Json, MessagesAreValidUtf8WhateverTheInput) {
    const std::string message = parse_message("{\"a\": \"\xc3\x28\xff\"}");
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(message, replace_invalid_utf8(message));
}

TEST(Json, SizeDepthAndCountAreBounded) {
    EXPECT_THAT(parse_message("[[[]]]", {.max_depth = 2}), HasSubstr("nested deeper than 2"));
    EXPECT_EQ(parse_message("[[[]]]", {.max_depth = 3}), "");
    EXPECT_THAT(parse_message(std::string(200000, '[')), HasSubstr("nested deeper"));
    EXPECT_THAT(parse_message("[1,2,3]", {.max_bytes = 6}), HasSubstr("7 bytes of JSON, at most 6"));
    EXPECT_THAT(parse_message("[1,2,3]", {.max_values = 3}), HasSubstr("more than 3 values"));
    EXPECT_EQ(parse_message("[1,2,3]", {.max_values = 4}), "");
    // As many as there may be, counted beforehand: commas and brackets in strings are none, nor are empty containers'
    // insides.
    EXPECT_EQ(parse_message(R"([[], {}, [ ], { }, "a,[\",{", {"b,":[1,"\\"]}])", {.max_values = 10}), "");
    EXPECT_THAT(parse_message(R"([[], {}, [ ], { }, "a,[\",{", {"b,":[1,"\\"]}])", {.max_values = 9}),
                HasSubstr("more than 9 values"));
}

TEST(Json, MessagesStayShortWhateverTheKeys) {
    const std::string key(100000, 'k');
    const auto twice = parse_json("{\"" + key + "\":1,\"" + key + "\":2}");
    ASSERT_FALSE(twice.ok());
    EXPECT_LT(twice.error().message.size() + twice.error().param.size(), 300u);
    EXPECT_EQ(json_quote_short("a\"b"), "\"a\\\"b\"");
    std::string text(127, 'a');
    text += "\xc3\xa9";  // would be cut in its middle
    EXPECT_EQ(json_quote_short(text), "\"" + std::string(127, 'a') + "...\"");
}

TEST(Json, DuplicateKeysAreErrorsUnlessAllowed) {
    EXPECT_EQ(parse_message(R"({"x":{"r":8,"q":1,"r":4}})"), "x.r: the key occurs twice");
    const auto document = parse_json(R"({"r":8,"q":1,"r":4})", {.allow_duplicate_keys = true});
    ASSERT_TRUE(document.ok());
    EXPECT_EQ(*document->root().int_or("r", 0), 4);
}

TEST(Json, FindsMembersOfLargeObjects) {
    JsonWriter writer;
    writer.begin_object();
    for (int i = 0; i < 1000; ++i) writer.field("key" + std::to_string(i), i);
    writer.end_object();
    const auto document = parse_json(writer.take());
    ASSERT_TRUE(document.ok());
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(*document->root().int_or("key" + std::to_string(i), -1), i);
    EXPECT_FALSE(document->root().has("key1000"));
    EXPECT_EQ((*document->root().as_object())[17].key, "key17");
}

TEST(Json, DumpGivesBackWhatWasRead) {
    const std::string text = R"({"b":[1,-2,3.50,1e-7,true,null],"a":{"s":"\"\\\n\u0001é"}})";
    const auto document = parse_json(text);
    ASSERT_TRUE(document.ok());
    EXPECT_EQ(document->root().dump(), text);
    EXPECT_EQ(document->root().find("b")->dump(), "[1,-2,3.50,1e-7,true,null]");
}

TEST(JsonWriter, WritesNestedValues) {
    JsonWriter writer;
    writer.begin_object().field("id", "a\"b").field("n", 7).field("t", true).key("list").begin_array();
    writer.value(1.5).value(0.1f).value(uint64_t(18446744073709551615u)).null().begin_object().end_object();
    writer.raw("[1]").end_array().end_object();
    EXPECT_EQ(writer.take(), R"({"id":"a\"b","n":7,"t":true,"list":[1.5,0.1,18446744073709551615,null,{},[1]]})");
    EXPECT_EQ(writer.begin_array().end_array().take(), "[]");
}

TEST(JsonWriter, ReplacesInvalidUtf8AndNonFiniteNumbers) {
    EXPECT_EQ(json_quote("a\xff\xc3\xa9\xed\xa0\x80"), "\"a\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    EXPECT_EQ(json_quote(std::string_view("\0\x7f", 2)), R"("\u0000\u007f")");
    JsonWriter writer;
    writer.begin_array().value(double(INFINITY)).value(float(NAN)).end_array();
    EXPECT_EQ(writer.take(), "[null,null]");
}

TEST(JsonWriter, NumbersReadBackExactly) {
    for (double number : {0.1, 1.0 / 3, 1e300, -5e-324, 123456789.0}) {
        JsonWriter writer;
        const auto document = parse_json(writer.value(number).take());
        ASSERT_TRUE(document.ok());
        EXPECT_EQ(*document->root().as_number(), number);
    }
}

}  // namespace
}  // namespace lorad::json_test
