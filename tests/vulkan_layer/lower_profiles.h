// The devices that the lowering layer makes: feature sets of GPUs that are not at hand, as far as a software device can
// stand for them.
#pragma once

#include <cstdint>
#include <string_view>

#include <vulkan/vulkan.h>

namespace lorad::testing::lower {

struct Profile {
    const char* name = "";
    const char* device_name = "";
    uint32_t shared_memory_bytes = 32 << 10;
    uint32_t push_constant_bytes = 256;
    uint32_t invocations = 1024;
    uint32_t storage_buffer_range = 0xffffffff;
    uint64_t allocation_bytes = uint64_t{4} << 30;
    VkSubgroupFeatureFlags subgroup_operations = ~VkSubgroupFeatureFlags{0};
    bool float64 = false, int64_atomics = false;
    bool float16 = true, storage16 = true, int16 = true, int8 = true, storage8 = true, dot_products = true,
         extended_subgroup_types = true;
    bool matrices = false;
    bool only_demanded = false;  // no extension but the memory budget, and no optional feature
};

constexpr VkSubgroupFeatureFlags kDemandedOperations =
    VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;

// No profile for lavapipe has cooperative matrices: there they are far too slow for a model's steps (tests/matrices.sh
// has kernels on them alone). Subgroup sizes come from LP_NATIVE_VECTOR_WIDTH, at most 512 bits: 4, 8 and 16 are
// tested, the 32 and 64 of real devices are not. It stays a software device, whose waits have time: tests ask for a
// GPU's workgroups (make_test_device()).
constexpr Profile kProfiles[] = {
    {.name = "apple", .device_name = "Apple-like", .push_constant_bytes = 256, .storage_buffer_range = 0x7fffffff},
    {.name = "rdna2", .device_name = "RDNA2-like", .float64 = true, .int64_atomics = true},
    {.name = "arc", .device_name = "Arc-like", .int64_atomics = true},
    {.name = "adreno",
     .device_name = "Adreno-like",
     .push_constant_bytes = 128,
     .storage_buffer_range = 128 << 20,
     .allocation_bytes = uint64_t{2} << 30,
     .storage8 = false},
    // To compile alone, for a Radeon without hardware: what it takes where there are 32 KiB.
    {.name = "shared32",
     .device_name = "32 KiB of shared memory",
     .float64 = true,
     .int64_atomics = true,
     .matrices = true},
    {.name = "minimum",
     .device_name = "what lorad demands",
     .shared_memory_bytes = 16 << 10,
     .push_constant_bytes = 128,
     .invocations = 128,
     .storage_buffer_range = 128 << 20,
     .allocation_bytes = uint64_t{1} << 30,
     .subgroup_operations = kDemandedOperations,
     .float16 = false,
     .storage16 = false,
     .int16 = false,
     .int8 = false,
     .storage8 = false,
     .dot_products = false,
     .extended_subgroup_types = false,
     .only_demanded = true},
};

constexpr const Profile* find_profile(std::string_view name) {
    for (const Profile& profile : kProfiles) {
        if (name == profile.name) return &profile;
    }
    return nullptr;
}

}  // namespace lorad::testing::lower
