// Memory by which the workgroups of one dispatch of a program in text wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lorad::gpu {

// Between dispatches of one program.
struct GridBarrierSync {
    uint32_t begun;         // arrivals before this dispatch
    uint32_t has_given_up;  // a dispatch before this one did, so nobody waits any more
    uint32_t pad[30];
    uint32_t arrivals;  // of workgroups at grid barriers, modulo 2^32
    uint32_t pad2[31];
};
static_assert(sizeof(GridBarrierSync) == 256 && offsetof(GridBarrierSync, begun) == 0);

// Questions whether all have arrived; each is a trip to the device's L2 cache, so a second or two in all.
constexpr uint32_t kGridBarrierPollsMax = 1u << 21;

}  // namespace lorad::gpu
