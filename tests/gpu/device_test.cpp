#include "gpu/device.h"

#include <gmock/gmock.h>

#include "gpu/device_choice.h"
#include "tests/gpu/gpu_fixture.h"

namespace lorad::gpu::testing::device_test {
namespace {

using ::testing::HasSubstr;

const DeviceCandidate kCpu{"llvmpipe", DeviceType::kCpu, 64u << 20, ""};
const DeviceCandidate kSmall{"small GPU", DeviceType::kDiscrete, 8u << 20, ""};
const DeviceCandidate kLarge{"large GPU", DeviceType::kDiscrete, 16u << 20, ""};
const DeviceCandidate kIntegrated{"integrated", DeviceType::kIntegrated, 32u << 20, ""};
const DeviceCandidate kBroken{"old GPU", DeviceType::kDiscrete, 99u << 20, "lacks maintenance4"};

TEST(DeviceChoice, PrefersDiscreteThenMoreMemoryAndNeverARejectedDevice) {
    EXPECT_EQ(must(choose_device({kCpu, kIntegrated, kSmall, kLarge, kBroken}, -1)), 3u);
    EXPECT_EQ(must(choose_device({kBroken, kCpu, kIntegrated}, -1)), 2u);
    EXPECT_EQ(must(choose_device({kBroken, kCpu}, -1)), 1u);
}

TEST(DeviceChoice, AnIndexOverridesTheOrder) {
    EXPECT_EQ(must(choose_device({kLarge, kCpu}, 1)), 1u);
    const auto absent = choose_device({kLarge, kCpu}, 2);
    ASSERT_FALSE(absent.ok());
    EXPECT_EQ(absent.error().code, ErrorCode::kNoDevice);
    EXPECT_THAT(absent.error().message, HasSubstr("no Vulkan device 2"));
    const auto rejected = choose_device({kBroken, kCpu}, 0);
    ASSERT_FALSE(rejected.ok());
    EXPECT_THAT(rejected.error().message, HasSubstr("lacks maintenance4"));
}

TEST(DeviceChoice, NoDeviceSaysWhyAndWhatToInstall) {
    const auto none = choose_device({}, -1);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code, ErrorCode::kNoDevice);
    EXPECT_THAT(none.error().message, HasSubstr("mesa-vulkan-drivers"));
    const auto unusable = choose_device({kBroken}, -1);
    ASSERT_FALSE(unusable.ok());
    EXPECT_THAT(unusable.error().message, HasSubstr("old GPU: lacks maintenance4"));
    EXPECT_THAT(unusable.error().message, HasSubstr("VK_DRIVER_FILES"));
}

TEST(DeviceChoice, EveryCandidateHasAReason) {
    const std::vector<DeviceCandidate> all = {kLarge, kCpu, kBroken};
    EXPECT_EQ(choice_reason(all, 0, true, -1), "discrete GPU, the best usable device");
    EXPECT_EQ(choice_reason(all, 1, false, -1), "usable CPU, but a better device is there");
    EXPECT_EQ(choice_reason(all, 2, false, -1), "lacks maintenance4");
    EXPECT_EQ(choice_reason(all, 1, true, 1), "CPU, asked for by its number");
}

TEST(Devices, AListHasOneChosenDeviceAndAReasonForEach) {
    const auto devices = must(list_devices({}));
    int n_chosen = 0;
    for (const DeviceReport& report : devices) {
        EXPECT_FALSE(report.capabilities.name.empty());
        EXPECT_FALSE(report.reason.empty());
        n_chosen += report.chosen;
        EXPECT_TRUE(report.usable || !report.chosen);
    }
    EXPECT_EQ(n_chosen, 1);
}

TEST(Devices, WithoutADriverTheErrorNamesThePackage) {
    const char* const before = std::getenv("VK_DRIVER_FILES");
    const std::string saved = before == nullptr ? "" : before;
    setenv("VK_DRIVER_FILES", "/nonexistent/driver.json", 1);
    const auto devices = list_devices({});
    const auto device = Device::create({});
    if (before == nullptr)
        unsetenv("VK_DRIVER_FILES");
    else
        setenv("VK_DRIVER_FILES", saved.c_str(), 1);
    ASSERT_FALSE(devices.ok());
    EXPECT_EQ(devices.error().code, ErrorCode::kNoDevice);
    EXPECT_THAT(devices.error().message, HasSubstr("mesa-vulkan-drivers"));
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.error().code, ErrorCode::kNoDevice);
}

TEST(Devices, AnIndexBeyondTheListIsRefused) {
    const auto device = Device::create({.device_index = 1000});
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.error().code, ErrorCode::kNoDevice);
    EXPECT_THAT(device.error().message, HasSubstr("1000"));
}

class DeviceTest : public GpuTest {};

TEST_F(DeviceTest, CapabilitiesAreConsistent) {
    const DeviceCapabilities& caps = device().capabilities();
    EXPECT_GT(caps.device_local_bytes, 0u);
    EXPECT_LE(caps.device_local_free_bytes, caps.device_local_bytes);
    EXPECT_GE(caps.max_allocation_bytes, 128u << 20);  // Vulkan promises 1 GiB; buffers may be less
    EXPECT_GE(caps.subgroup_size, caps.subgroup_size_min);
    EXPECT_LE(caps.subgroup_size, caps.subgroup_size_max);
    EXPECT_GE(caps.shared_memory_bytes, 16384u);
    EXPECT_GE(caps.max_push_constant_bytes, 128u);
    EXPECT_THAT(caps.api_version, HasSubstr("1."));
    EXPECT_TRUE(caps.coopmat2 || !caps.coopmat2_bfloat16);
}

TEST_F(DeviceTest, ValidationHearsAMissingBarrier) {
    auto own = must(Device::create({.validation = true}));
    {
        const Buffer buffer = must(own->create_buffer(4096, MemoryKind::kDeviceLocal, "test"));
        auto recorder = must(Recorder::begin(*own));
        recorder.fill(buffer, 0, 64, 1);
        recorder.fill(buffer, 32, 64, 2);
        must(std::move(recorder).end());
    }
    if (own->validation_active()) {
        EXPECT_GT(own->validation_message_count(), 0u);
    } else {
        EXPECT_EQ(own->validation_message_count(), 0u);
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::device_test
