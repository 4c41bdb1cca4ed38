// Names that somebody may have meant.
#include "proto/base/nearest.h"

#include <gtest/gtest.h>

namespace lorad::nearest_test {
namespace {

using Names = std::vector<std::string>;

Names nearest(std::string_view name, const Names& names) { return nearest_names(name, names, 3); }

TEST(NearestNames, AreThoseThatDifferInFewLetters) {
    const Names names = {"base", "pirate", "pirates", "shout", "sql-v2"};
    EXPECT_EQ(nearest("pirat", names), (Names{"pirate", "pirates"}));
    EXPECT_EQ(nearest("PIRATE", names), (Names{"pirate", "pirates"})) << "whatever the case";
    EXPECT_EQ(nearest("spout", names), Names{"shout"});
    EXPECT_EQ(nearest("sql_v2", names), Names{"sql-v2"});
    EXPECT_EQ(nearest("quite-another", names), Names{});
    EXPECT_EQ(nearest("", names), Names{});
    EXPECT_EQ(nearest("x", {}), Names{});
}

TEST(NearestNames, AreAlsoThoseThatHoldTheNameOrAreHeld) {
    const Names names = {"org/sql-long-name", "sql", "other"};
    EXPECT_EQ(nearest("models/org/sql-long-name", names), (Names{"org/sql-long-name", "sql"}));
    EXPECT_EQ(nearest("ql", {"sqlite"}), Names{}) << "two letters say nothing";
}

TEST(NearestNames, CountSwappedLettersOnceAndLongBeginnings) {
    EXPECT_EQ(nearest("prot", {"port", "host", "lora"}), Names{"port"});
    EXPECT_EQ(nearest("max-num-sequences", {"max-num-seqs", "max-queue", "max-loras"}), Names{"max-num-seqs"});
    EXPECT_EQ(nearest("customers-eu", {"customers", "other"}), Names{"customers"}) << "which it holds";
    EXPECT_EQ(nearest("abcdef-ghijkl", {"abcdef-mnopqr"}), Names{}) << "half is not enough";
}

TEST(NearestNames, AreBoundedInWorkAndNumber) {
    Names many(100000, std::string(5000, 'a'));
    many.front() = "needle";
    EXPECT_EQ(nearest("needles", many), Names{"needle"});
    EXPECT_EQ(nearest(std::string(1 << 20, 'a'), many).size(), 3u);
}

}  // namespace
}  // namespace lorad::nearest_test
