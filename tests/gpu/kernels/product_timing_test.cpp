// The forms of products are measured at the first start and remembered. The device has workgroups as GPUs have them.
#include "gpu/kernels/tuning/product_timing.h"

#include <fstream>

#include <gmock/gmock.h>

#include "gpu/facts/start_record.h"
#include "gpu/kernels/kernels.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/support/temp_dir.h"

namespace lorad::gpu::testing::product_timing_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Of few rows, for which the table has its first tile.
Product product_of(uint32_t n) { return {.n = n, .k = 192, .type = ScalarType::kF16, .rows = 8, .max_splits = 4}; }

class ProductTimings : public ::testing::Test {
  protected:
    struct Start {
        std::string measured, told;
        uint64_t n_submissions = 0;
        std::optional<MatmulPlan> plan;
    };
    Start start(Tuning when, bool batch_invariant = false,
                std::chrono::milliseconds time_max = std::chrono::minutes(20)) const {
        auto device = must(Device::create({.validation = true, .pipeline_cache = file_, .gpu_workgroups = true}));
        auto kernels =
            must(KernelSet::create(*device, {.path = KernelPath::kPortable, .batch_invariant = batch_invariant}));
        const uint64_t before = device->n_submissions();
        ::testing::internal::CaptureStderr();
        must(kernels->tune(
            *device,
            {.when = when, .products = {product_of(320), product_of(200)}, .time_max = time_max, .tiles_max = 1}));
        Start done{.measured = kernels->measured().text(), .told = ::testing::internal::GetCapturedStderr()};
        done.n_submissions = device->n_submissions() - before;
        done.plan = kernels->products.plan(product_of(320));
        EXPECT_TRUE(kernels->status().ok());
        EXPECT_EQ(device->validation_message_count(), 0u);
        device->save_caches();
        return done;
    }
    // The key under which a start has put what it measured.
    void spoil(const std::string& value) const {
        auto device = must(Device::create({.pipeline_cache = file_, .gpu_workgroups = true}));
        ASSERT_EQ(device->start_record().find_all(kMeasuredKey).size(), 1u);
        std::ifstream in(file_.string() + ".start");
        for (std::string line; std::getline(in, line);) {
            if (line.starts_with(kMeasuredKey)) device->start_record().put(line.substr(0, line.find(' ')), value);
        }
        device->save_caches();
    }
    bool has_choice() const {
        auto device = must(Device::create({.gpu_workgroups = true}));
        return must(KernelSet::create(*device, {.path = KernelPath::kPortable}))->ladder().has(RungId::kRegisters);
    }

    lorad::testing::TempDir folder_;
    const std::filesystem::path file_ = folder_.path() / "pipelines.bin";
};

TEST_F(ProductTimings, AreTakenOnceAndRemembered) {
    if (!has_choice()) GTEST_SKIP() << "no blocks in registers";
    const Start first = start(Tuning::kAlways);
    EXPECT_GT(first.n_submissions, 0u);
    EXPECT_THAT(first.told, HasSubstr("products: 2 measured in "));
    const std::optional<MeasuredProducts> measured = MeasuredProducts::parse(first.measured);
    ASSERT_TRUE(measured);
    ASSERT_EQ(measured->all().size(), 2u);
    for (const MeasuredProduct& product : measured->all()) {
        EXPECT_GE(product.forms.size(), 2u);
        for (const MeasuredForm& form : product.forms) EXPECT_GT(form.us, 0) << describe(form.form);
    }
    const Start second = start(Tuning::kRemembered);
    EXPECT_EQ(second.n_submissions, 0u);
    EXPECT_EQ(second.measured, first.measured);
    EXPECT_EQ(second.plan, first.plan);
    EXPECT_EQ(second.told, "");

    const Start none = start(Tuning::kOff), invariant = start(Tuning::kRemembered, true);
    EXPECT_EQ(none.measured, "none");
    EXPECT_EQ(invariant.measured, "none");
    EXPECT_EQ(none.n_submissions + invariant.n_submissions, 0u);
    EXPECT_FALSE(none.plan->is_measured);

    // What this device cannot have, and what is no measurement at all.
    for (const char* bad : {"320x192 f16 8/4: 0/16/0=5 77/0/0=1", "0110"}) {
        spoil(bad);
        const Start spoiled = start(Tuning::kRemembered);
        EXPECT_THAT(spoiled.told, HasSubstr("measured products is not for this device: ignored")) << bad;
        EXPECT_FALSE(spoiled.plan->is_measured && spoiled.measured.find("77/") != std::string::npos);
        start(Tuning::kAlways);
    }
    EXPECT_THAT(start(Tuning::kAlways).told, Not(HasSubstr("ignored")));
}

TEST_F(ProductTimings, WithoutTimeAllGoesByTheTable) {
    const Start hurried = start(Tuning::kAlways, false, std::chrono::milliseconds(0));
    EXPECT_EQ(hurried.measured, "none");
    EXPECT_FALSE(hurried.plan->is_measured);
}

TEST_F(ProductTimings, ASoftwareDeviceMeasuresOnlyOnRequest) {
    auto device = must(Device::create({.gpu_workgroups = true}));
    if (!device->capabilities().is_cpu) GTEST_SKIP() << "a GPU measures";
    const Start first = start(Tuning::kRemembered);
    EXPECT_EQ(first.n_submissions, 0u);
    EXPECT_EQ(first.measured, "none");
}

}  // namespace
}  // namespace lorad::gpu::testing::product_timing_test
