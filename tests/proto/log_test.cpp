#include "proto/base/log.h"

#include <functional>

#include <gtest/gtest.h>

#include "proto/json.h"

namespace lorad {
namespace {

std::string logged(LogFormat format, const std::function<void()>& write) {
    set_log_format(format);
    testing::internal::CaptureStderr();
    write();
    std::string out = testing::internal::GetCapturedStderr();
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

}  // namespace
}  // namespace lorad
