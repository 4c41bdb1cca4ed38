#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lorad::gpu {

// The SPIR-V module that an add_kernel line of gpu/kernels/CMakeLists.txt compiled under `name`. Empty if there is no
// such line, or if the shader compiler of this build could not compile that variant. Any thread; the words live
// forever.
std::span<const uint32_t> kernel_spirv(std::string_view name);

// The names of all modules in this build, sorted.
std::vector<std::string_view> kernel_names();

}  // namespace lorad::gpu
