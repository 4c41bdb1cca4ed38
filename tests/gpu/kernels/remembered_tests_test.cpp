// The tests at the start are not repeated by a second start of the same build on the same device.
#include <gmock/gmock.h>

#include "gpu/kernels/kernels.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/support/temp_dir.h"

namespace lorad::gpu::testing::remembered_tests_test {
namespace {

using ::testing::HasSubstr;

const KernelSetOptions kWithRecurrences{
    .path = KernelPath::kPortable,
    .delta_shapes = {{.key_heads = 1, .value_heads = 2, .key_size = 16, .value_size = 16, .taps = 4}}};

class RememberedTests : public ::testing::Test {
  protected:
    struct Start {
        uint64_t n_submissions = 0;
        KernelLadder ladder;
        std::string told;
    };
    Start start(const KernelSetOptions& options, bool repeats = false) const {
        auto device = must(Device::create({.pipeline_cache = file_, .repeats_tests = repeats}));
        ::testing::internal::CaptureStderr();
        Result<std::unique_ptr<KernelSet>> kernels = KernelSet::create(*device, options);
        Start done{.told = ::testing::internal::GetCapturedStderr()};
        EXPECT_TRUE(kernels.ok());
        done.ladder = (*kernels)->ladder();
        done.n_submissions = device->n_submissions();
        device->save_caches();
        return done;
    }

    lorad::testing::TempDir folder_;
    const std::filesystem::path file_ = folder_.path() / "pipelines.bin";
};

TEST_F(RememberedTests, ASecondStartRunsNone) {
    const Start first = start(kWithRecurrences), second = start(kWithRecurrences);
    EXPECT_GT(first.n_submissions, 0u);
    EXPECT_TRUE(first.ladder.has(RungId::kDeltaBlocks));
    EXPECT_EQ(second.n_submissions, 0u);
    EXPECT_EQ(second.ladder, first.ladder);
    EXPECT_EQ(second.told, "");
}

TEST_F(RememberedTests, OnRequestTheyAreRepeated) {
    const Start first = start(kWithRecurrences), second = start(kWithRecurrences, true);
    EXPECT_EQ(second.n_submissions, first.n_submissions);
    EXPECT_EQ(start(kWithRecurrences).n_submissions, 0u) << "and what they show is remembered";
}

TEST_F(RememberedTests, WhatFailedStaysLeftOutWithAWarning) {
    KernelSetOptions spoiled = kWithRecurrences;
    spoiled.spoil_delta_blocks = true;
    const Start first = start(spoiled), second = start(spoiled);
    EXPECT_GT(first.n_submissions, 0u);
    EXPECT_THAT(first.told, HasSubstr("delta_step in blocks of rows"));
    EXPECT_THAT(first.told, HasSubstr("fails its self-test"));
    EXPECT_EQ(second.n_submissions, 0u);
    EXPECT_FALSE(second.ladder.has(RungId::kDeltaBlocks));
    EXPECT_EQ(second.ladder, first.ladder);
    EXPECT_THAT(second.told, HasSubstr("delta_step in blocks of rows (relative error "));
    EXPECT_THAT(second.told, HasSubstr("failed its self-test at an earlier start"));
}

TEST_F(RememberedTests, OtherShapesAreTested) {
    start(kWithRecurrences);
    KernelSetOptions other = kWithRecurrences;
    other.delta_shapes[0].value_size = 32;
    EXPECT_GT(start(other).n_submissions, 0u);
    other.has_experts = true;
    EXPECT_GT(start(other).n_submissions, 0u);
    EXPECT_EQ(start(other).n_submissions, 0u);
    EXPECT_EQ(start(kWithRecurrences).n_submissions, 0u) << "the first ones are known as well";
}

TEST_F(RememberedTests, WithoutAFileNothingIsRemembered) {
    for (int i = 0; i < 2; ++i) {
        auto device = must(Device::create({}));
        must(KernelSet::create(*device, kWithRecurrences));
        EXPECT_GT(device->n_submissions(), 0u);
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::remembered_tests_test
