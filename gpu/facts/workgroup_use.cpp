#include "gpu/facts/workgroup_use.h"

#include <cstddef>

#include "proto/base/check.h"

namespace lorad::gpu {

// Numbers of the SPIR-V specification: 3.42.18 "Atomic Instructions", and of the extensions with atomics of floats.
WorkgroupUse workgroup_use(std::span<const uint32_t> spirv) {
    constexpr uint32_t kHeaderWords = 5, kOpDecorate = 71, kBuiltIn = 11, kNumWorkgroups = 24;
    constexpr uint32_t kAtomicFirst = 227, kAtomicLast = 242, kAtomicFlagFirst = 318, kAtomicFlagLast = 319,
                       kAtomicFMin = 5614, kAtomicFMax = 5615, kAtomicFAdd = 6035;
    WorkgroupUse use;
    for (size_t i = kHeaderWords; i < spirv.size(); i += spirv[i] >> 16) {
        const uint32_t op = spirv[i] & 0xffff, n = spirv[i] >> 16;
        CHECK(n > 0 && i + n <= spirv.size());
        use.has_atomics = use.has_atomics || (op >= kAtomicFirst && op <= kAtomicLast) ||
                          (op >= kAtomicFlagFirst && op <= kAtomicFlagLast) || op == kAtomicFMin || op == kAtomicFMax ||
                          op == kAtomicFAdd;
        use.counts =
            use.counts || (op == kOpDecorate && n == 4 && spirv[i + 2] == kBuiltIn && spirv[i + 3] == kNumWorkgroups);
    }
    return use;
}

}  // namespace lorad::gpu
