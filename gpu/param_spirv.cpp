#include "gpu/param_spirv.h"

#include <cstddef>
#include <iterator>

#include "proto/base/check.h"

namespace lorad::gpu {

std::vector<uint32_t> with_params_in_buffer(std::span<const uint32_t> spirv) {
    constexpr uint32_t kHeaderWords = 5, kOpTypePointer = 32, kOpVariable = 59, kOpDecorate = 71,
                       kOpMemberDecorate = 72;
    constexpr uint32_t kUniform = 2, kPushConstant = 9, kBinding = 33, kDescriptorSet = 34;
    std::vector<uint32_t> words(spirv.begin(), spirv.end());
    uint32_t variable = 0;
    size_t first_decoration = 0;
    for (size_t i = kHeaderWords; i < words.size();) {
        const uint32_t op = words[i] & 0xffff, n = words[i] >> 16;
        CHECK(n > 0 && i + n <= words.size());
        if (first_decoration == 0 && (op == kOpDecorate || op == kOpMemberDecorate)) first_decoration = i;
        if (op == kOpTypePointer && words[i + 2] == kPushConstant) words[i + 2] = kUniform;
        if (op == kOpVariable && words[i + 3] == kPushConstant) {
            CHECK(variable == 0);
            words[i + 3] = kUniform;
            variable = words[i + 2];
        }
        i += n;
    }
    if (variable == 0) return words;
    CHECK(first_decoration != 0);  // a block's members have offsets
    const uint32_t place[] = {4u << 16 | kOpDecorate, variable, kDescriptorSet, 0,
                              4u << 16 | kOpDecorate, variable, kBinding,       0};
    words.insert(words.begin() + static_cast<std::ptrdiff_t>(first_decoration), std::begin(place), std::end(place));
    return words;
}

}  // namespace lorad::gpu
