#include "tests/support/test_device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#ifdef __SANITIZE_THREAD__
// lavapipe's compiler seems to hold more locks at once than the deadlock detector can count; races are still found.
extern "C" const char* __tsan_default_options() { return "detect_deadlocks=0"; }
#endif

namespace lorad::testing {
namespace {

gpu::Device* g_device = nullptr;

class SilentValidation : public ::testing::Environment {
  public:
    void TearDown() override {
        if (!g_device) return;
        EXPECT_EQ(g_device->validation_message_count(), 0u);
    }
};
[[maybe_unused]] const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new SilentValidation);

}  // namespace

gpu::Device& test_device() {
    if (!g_device) {
        auto device = gpu::Device::create({.validation = true});
        if (!device.ok()) {
            std::fprintf(stderr, "no device for tests: %s\n", device.error().message.c_str());
            std::abort();
        }
        g_device = std::move(device).value().release();
    }
    return *g_device;
}

}  // namespace lorad::testing
