// Memory that is kept for the moment when there is none: an allocation of C++ that fails is tried again with the
// reserve given up. Work that is under way ends in order with it, destructors above all, and new work is refused until
// the reserve is whole again. The text crate has a reserve of its own, since an allocation of Rust cannot fail without
// ending the process (model/text/src/reserve.rs); whether work is refused is decided here for both.
#pragma once

#include <cstddef>

namespace lorad::server {

inline constexpr size_t kMemoryReserveBytes = size_t{4} << 20;

// Takes the reserve and installs the handler. Once, before other threads come.
void install_memory_reserve();

// True if both reserves are there; where ours was given up, it is taken again if there is memory. False: refuse
// (kOutOfMemory). Any thread.
bool memory_reserve_is_whole();

}  // namespace lorad::server
