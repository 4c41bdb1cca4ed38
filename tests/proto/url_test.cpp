#include "proto/url.h"

#include <gtest/gtest.h>

namespace lorad::proto::url_test {
namespace {

TEST(Url, PartsAreSplitBeforeTheyAreDecoded) {
    auto target = parse_target("/v1/adapters/org%2Fsql%20%C3%BC/activate?mode=now&a=b%3Dc+d&flag#x");
    ASSERT_TRUE(target.ok());
    EXPECT_EQ(target->segments, (std::vector<std::string>{"v1", "adapters", "org/sql \xc3\xbc", "activate"}));
    using Pair = std::pair<std::string, std::string>;
    EXPECT_EQ(target->query, (std::vector<Pair>{{"mode", "now"}, {"a", "b=c d"}, {"flag", ""}}));
    EXPECT_EQ(parse_target("/a+b")->segments, std::vector<std::string>{"a+b"});
    EXPECT_EQ(parse_target("/a//b/")->segments, (std::vector<std::string>{"a", "", "b", ""}));
    EXPECT_TRUE(parse_target("/a?")->query.empty());
}

TEST(Url, WhatIsMalformedIsRefused) {
    for (const char* bad : {"", "a", "*", "http://x/", "/%", "/%4", "/%zz", "/a?b=%", "/a?%g0=1"})
        EXPECT_FALSE(parse_target(bad).ok()) << bad;
    std::string many = "/a?";
    for (int i = 0; i < 64; ++i) many += "k=v&";
    EXPECT_TRUE(parse_target(many).ok());
    EXPECT_FALSE(parse_target(many + "k=v").ok());
}

TEST(Url, EncodingAndDecodingAreInverse) {
    std::string all;
    for (int c = 0; c < 256; ++c) all += char(c);
    EXPECT_EQ(percent_decode(percent_encode(all)), all);
    EXPECT_EQ(percent_encode("a/b c"), "a%2Fb%20c");
    EXPECT_EQ(percent_encode(all).find('/'), std::string::npos);
}

}  // namespace
}  // namespace lorad::proto::url_test
