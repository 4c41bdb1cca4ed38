// How a kernel's workgroups depend on one another, as its SPIR-V tells.
#pragma once

#include <cstdint>
#include <span>

namespace lorad::gpu {

struct WorkgroupUse {
    bool has_atomics = false;  // without, none can wait for another, nor be the last one to come
    bool counts = false;       // it reads how many there are in the dispatch
};

WorkgroupUse workgroup_use(std::span<const uint32_t> spirv);

}  // namespace lorad::gpu
