#include "tests/support/test_device.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "gpu/kept_kernels.h"

#ifdef __SANITIZE_THREAD__
// lavapipe's compiler seems to hold more locks at once than the deadlock detector can count; races are still found.
extern "C" const char* __tsan_default_options() { return "detect_deadlocks=0"; }
#endif

namespace lorad::testing {
namespace {

gpu::Device* g_device = nullptr;

// The test in which validation says something fails, and not only the process.
class SilentTests : public ::testing::EmptyTestEventListener {
  public:
    void OnTestEnd(const ::testing::TestInfo&) override {
        if (!g_device) return;
        const uint64_t n = g_device->validation_message_count();
        EXPECT_EQ(n, n_before_) << "validation has messages of this test";
        n_before_ = n;
    }

  private:
    uint64_t n_before_ = 0;
};

class SilentValidation : public ::testing::Environment {
  public:
    void SetUp() override { ::testing::UnitTest::GetInstance()->listeners().Append(new SilentTests); }
    void TearDown() override {
        if (!g_device) return;
        EXPECT_EQ(g_device->validation_message_count(), 0u);
    }
};
[[maybe_unused]] const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new SilentValidation);

}  // namespace

std::unique_ptr<gpu::Device> make_test_device() {
    const char* const subgroups = std::getenv("LORAD_TEST_SUBGROUPS");
    const bool is_lowered = std::getenv("LORAD_LOWER_TO") != nullptr;
    auto device = gpu::Device::create({.validation = true,
                                       .gpu_workgroups = subgroups != nullptr || is_lowered,
                                       .params_in_buffer = subgroups != nullptr});
    if (!device.ok()) {
        std::fprintf(stderr, "tests need a Vulkan device: %s\n", device.error().message.c_str());
        std::abort();
    }
    gpu::keep_kernels(**device);
    const gpu::DeviceCapabilities& caps = (*device)->capabilities();
    if (is_lowered && caps.name.find("(lowered)") == std::string::npos) {
        std::fprintf(
            stderr, "LORAD_LOWER_TO is set, and %s is not lowered: VK_INSTANCE_LAYERS must name VK_LAYER_LORAD_lower\n",
            caps.name.c_str());
        std::abort();
    }
    if (subgroups != nullptr && !caps.is_cpu) {
        std::fprintf(stderr, "these tests are for subgroups of %s, %s is no software device\n", subgroups,
                     caps.name.c_str());
        std::_Exit(0);  // skipped: tests/CMakeLists.txt
    }
    if (subgroups != nullptr && std::to_string(caps.subgroup_size) != subgroups) {
        std::fprintf(stderr, "these tests are for subgroups of %s, %s has %u\n", subgroups, caps.name.c_str(),
                     caps.subgroup_size);
        std::abort();
    }
    return std::move(device).value();
}

gpu::Device& test_device() {
    if (!g_device) g_device = make_test_device().release();
    return *g_device;
}

}  // namespace lorad::testing
