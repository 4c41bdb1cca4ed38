// Kernels whose parameters lie in a uniform buffer, made from those that have them as push constants
// (gpu/param_memory.h says why).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lorad::gpu {

// The module with its push constants as the uniform buffer of set 0, binding 0: another storage class of their variable
// and of pointers to it and into it, and two decorations (SPIR-V 1.6, 2.3 "Physical Layout", 3.7 "Storage Class", 3.20
// "Decoration"). Their members keep their offsets, for which the device needs scalarBlockLayout. A module without push
// constants comes back as it is.
std::vector<uint32_t> with_params_in_buffer(std::span<const uint32_t> spirv);

}  // namespace lorad::gpu
