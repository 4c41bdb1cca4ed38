// Cases that do what a test should not. They are no part of the suite: tests/suite/suite_test.py looks at what
// tests/suite.py says about them.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

namespace {

TEST(Sound, Passes) { EXPECT_EQ(2 + 2, 4); }
TEST(Sound, SaysSomethingAndPasses) {
    std::fputs("words without an end of line", stderr);
    EXPECT_EQ(2 + 2, 4);
}
TEST(Sound, IsSkipped) { GTEST_SKIP() << "there is no such device"; }
TEST(Sound, PassesBehindIt) { EXPECT_EQ(2 + 2, 4); }

TEST(Broken, Passes) { EXPECT_EQ(2 + 2, 4); }
TEST(Broken, Fails) { EXPECT_EQ(2 + 2, 5) << "so much for sums"; }
TEST(Broken, EndsTheProcessByASignal) { EXPECT_NE(std::raise(SIGABRT), 0); }
TEST(Broken, PassesBehindIt) { EXPECT_EQ(2 + 2, 4); }
TEST(Broken, EndsTheProcessAsIfAllWereWell) {
    EXPECT_EQ(2 + 2, 4);
    std::_Exit(0);
}
TEST(Broken, HangsUntilItsLimit) {
    std::this_thread::sleep_for(std::chrono::hours(1));
    EXPECT_EQ(2 + 2, 4);
}
TEST(Broken, FailsBehindAll) { EXPECT_TRUE(false) << "the last one"; }

class FailsAtTheEnd : public ::testing::Environment {
  public:
    void TearDown() override { EXPECT_EQ(std::getenv("SUBJECTS_FAIL_AT_THE_END"), nullptr) << "nobody's messages"; }
};
[[maybe_unused]] const auto* const kFailsAtTheEnd = ::testing::AddGlobalTestEnvironment(new FailsAtTheEnd);

}  // namespace
