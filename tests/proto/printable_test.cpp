#include "proto/base/printable.h"

#include <gtest/gtest.h>

#include "proto/error.h"
#include "proto/json/json.h"

namespace lorad::printable_test {
namespace {

std::string utf8(char32_t point) {
    std::string out;
    if (point < 0x80) return {static_cast<char>(point)};
    const int n_more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    out += static_cast<char>((0xff00 >> (n_more + 1)) | (point >> (6 * n_more)));
    for (int i = n_more - 1; i >= 0; --i) out += static_cast<char>(0x80 | ((point >> (6 * i)) & 0x3f));
    return out;
}

TEST(Printable, WhatATerminalObeysHidesOrTurnsIsNot) {
    for (char32_t point = 0; point < 0x20; ++point) EXPECT_FALSE(is_printable(utf8(point))) << uint32_t(point);
    for (char32_t point = 0x7f; point < 0xa0; ++point) EXPECT_FALSE(is_printable(utf8(point))) << uint32_t(point);
    constexpr char32_t kPoints[] = {0xad,   0x61c,  0x180e, 0x200b,  0x200e,  0x200f,  0x2028,  0x2029,
                                    0x202a, 0x202e, 0x2060, 0x2066,  0x2069,  0x3164,  0xfeff,  0xfdd0,
                                    0xfff9, 0xfffe, 0xffff, 0xe0001, 0xe0041, 0x1fffe, 0x10ffff};
    for (const char32_t point : kPoints) {
        EXPECT_FALSE(is_printable("a" + utf8(point) + "b")) << uint32_t(point);
    }
    for (const std::string_view bytes : {"\xff", "\xc0\xaf", "\xc2", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\xe2\x80"})
        EXPECT_FALSE(is_printable(bytes)) << bytes;
}

TEST(Printable, WhatLanguagesAreWrittenWithIs) {
    // Persian with a joiner's opposite, an emoji of two with a joiner, a heart with its variation, a Japanese name's
    // variation.
    constexpr char32_t kPoints[] = {0x20,   0x7e,   0xa0,   0xe9,    0x200c,  0x200d,  0x2010,  0x20ac,
                                    0x65e5, 0xfe0f, 0xfffd, 0x1f600, 0xe0100, 0xe01ef, 0x10fffd};
    for (const char32_t point : kPoints) {
        EXPECT_TRUE(is_printable(utf8(point))) << uint32_t(point);
        EXPECT_EQ(escape_unprintable(utf8(point)), utf8(point)) << uint32_t(point);
    }
    EXPECT_TRUE(is_printable(""));
}

TEST(Printable, EscapesMeanTheSameInJson) {
    EXPECT_EQ(escape_unprintable("a\n\r\t\x01\x7f\"\\"), R"(a\n\r\t\u0001\u007f"\)");
    EXPECT_EQ(escape_unprintable("\xff"
                                 "a\xc2"),
              "\xef\xbf\xbd"
              "a\xef\xbf\xbd");
    std::string all;
    for (char32_t point = 1; point < 0x110000; point += point < 0x3000 || point > 0xd7ff ? 1 : 97) {
        if (point >= 0xd800 && point < 0xe000) point = 0xe000;
        if (point >= 0x20000 && point < 0xe0000) point = 0xe0000;
        all += utf8(point);
    }
    const std::string text = escape_unprintable(json_quote(all));
    EXPECT_TRUE(is_printable(text));
    const Result<JsonDocument> document = parse_json(text);
    ASSERT_TRUE(document.ok()) << document.error().message;
    EXPECT_EQ(*document->root().as_string(), all);
}

// A message may quote what a client has sent, and be read on a terminal.
TEST(Printable, MessagesOfErrorsAreOneLine) {
    const Error error{ErrorCode::kModelNotFound,
                      "no model is called \"a\xc2\x9b"
                      "31m\xe2\x80\xae\n\"",
                      "model\xe2\x80\xa8"};
    EXPECT_EQ(proto::error_message(error), R"(no model is called "a\u009b31m\u202e\n")");
    const Result<JsonDocument> body = parse_json(proto::error_body(error));
    ASSERT_TRUE(body.ok());
    const auto said = body->root().find("error");
    ASSERT_TRUE(said);
    EXPECT_TRUE(is_printable(*said->string_or("message", "\n")));
    EXPECT_TRUE(is_printable(*said->string_or("param", "\n")));
}

}  // namespace
}  // namespace lorad::printable_test
