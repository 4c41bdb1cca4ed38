#include "proto/base/log.h"

#include <functional>

#include <gtest/gtest.h>

#include "proto/base/printable.h"
#include "proto/json/json.h"

namespace lorad::log_test {
namespace {

std::string logged(LogFormat log_format, const std::function<void()>& write) {
    set_log_format(log_format);
    ::testing::internal::CaptureStderr();
    write();
    std::string out = ::testing::internal::GetCapturedStderr();
    set_log_format(LogFormat::kText);
    return out;
}

TEST(Log, AJsonLineIsOneObjectWhateverItsTextsAre) {
    const std::string nasty = "a\"b\\c\nd\x01{} %v 100%";
    std::string line = logged(LogFormat::kJson, [&] {
        log_event(LogLevel::kInfo, "request finished",
                  {{"id", nasty}, {"tokens", uint64_t(7)}, {"seconds", 0.25}, {"adapter", ""}});
    });
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    Result<JsonDocument> document = parse_json(line);
    ASSERT_TRUE(document.ok()) << line;
    JsonValue root = document->root();
    EXPECT_EQ(*root.string_or("message", ""), "request finished");
    EXPECT_EQ(*root.string_or("level", ""), "info");
    EXPECT_EQ(*root.string_or("id", ""), nasty);
    EXPECT_NE(line.find("\"tokens\":7,\"seconds\":0.250000"), std::string::npos) << line;
    EXPECT_FALSE(root.find("adapter"));
    EXPECT_TRUE(root.find("time"));
}

TEST(Log, PlainLinesAreObjectsAsWell) {
    std::string line = logged(LogFormat::kJson, [] { log_warn("{} of \"{}\"", 3, "x\ny"); });
    Result<JsonDocument> document = parse_json(line);
    ASSERT_TRUE(document.ok()) << line;
    EXPECT_EQ(*document->root().string_or("message", ""), "3 of \"x\ny\"");
}

TEST(Log, AsTextAnEventIsOneLineOfPairs) {
    std::string line = logged(LogFormat::kText, [] {
        log_event(LogLevel::kInfo, "request finished", {{"id", "a\nb"}, {"tokens", uint64_t(7)}});
    });
    EXPECT_TRUE(line.ends_with(" request finished id=\"a\\nb\" tokens=7\n")) << line;
}

// Whoever called: what a terminal obeys, and what some reader takes for a line's end, is escaped in both formats, and
// as JSON it means the same.
TEST(Log, ALineIsOneLineAndPrintableWhateverIsInIt) {
    const std::string nasty =
        "a\nb\r\x1b[31m\x7f\xc2\x85\xc2\x9b\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xae\xef\xbb\xbf\xf3\xa0\x80\xa1 "
        "caf\xc3\xa9";
    const std::string shown = R"(a\nb\r\u001b[31m\u007f\u0085\u009b\u2028\u2029\u202e\ufeff\udb40\udc21 caf)"
                              "\xc3\xa9";
    for (const LogFormat log_format : {LogFormat::kText, LogFormat::kJson}) {
        const std::string as_event =
            logged(log_format, [&] { log_event(LogLevel::kInfo, "removed", {{"name", nasty}}); });
        const std::string as_line = logged(log_format, [&] { log_warn("removed {}, \xff", nasty); });
        for (const std::string& line : {as_event, as_line}) {
            ASSERT_TRUE(line.ends_with('\n'));
            EXPECT_TRUE(is_printable(std::string_view(line).substr(0, line.size() - 1))) << line;
            EXPECT_NE(line.find(shown), std::string::npos) << line;
        }
        if (log_format == LogFormat::kText) continue;
        Result<JsonDocument> document = parse_json(as_event);
        ASSERT_TRUE(document.ok()) << as_event;
        EXPECT_EQ(*document->root().string_or("name", ""), nasty);
        document = parse_json(as_line);
        ASSERT_TRUE(document.ok()) << as_line;
        EXPECT_EQ(*document->root().string_or("message", ""), "removed " + nasty + ", \xef\xbf\xbd");
    }
}

}  // namespace
}  // namespace lorad::log_test
