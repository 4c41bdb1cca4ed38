// Shared by the launchers of gpu/kernels, and by the tests and benchmarks of these; nobody else includes it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/command.h"
#include "gpu/device.h"
#include "gpu/kernels/kernel_options.h"
#include "gpu/kernels/products/coopmat_tiles.h"
#include "gpu/kernels/products/matmul.params.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "proto/base/result.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

// Workgroup size for one row of `items` independent items: enough threads for all, a power of two.
constexpr uint32_t threads_for(uint32_t items, uint32_t at_least, uint32_t at_most) {
    uint32_t wanted = std::bit_ceil(items);
    return wanted < at_least ? at_least : wanted > at_most ? at_most : wanted;
}

// The largest workgroup, also if its kernel requires subgroups of the device's size; 0: not known.
inline uint32_t threads_max(const DeviceCapabilities& caps) {
    if (caps.max_workgroup_subgroups == 0) return caps.max_workgroup_invocations;
    return static_cast<uint32_t>(std::min<uint64_t>(caps.max_workgroup_invocations,
                                                    uint64_t{caps.max_workgroup_subgroups} * caps.subgroup_size));
}

// Halves the number of a workgroup's threads until the device takes it.
inline uint32_t within_limit(const DeviceCapabilities& caps, uint32_t threads) {
    const uint32_t limit = threads_max(caps) != 0 ? threads_max(caps) : 128;
    while (threads > limit) threads /= 2;
    return threads;
}

inline uint32_t workgroup_size(const DeviceCapabilities& caps, uint32_t on_gpu, uint32_t small) {
    return caps.small_workgroups ? small : within_limit(caps, on_gpu);
}

// If no subgroup has fewer than 64 lanes (GCN, CDNA), a lane has a quarter of another device's registers when as many
// lanes are to run side by side: 64 with 4 subgroups on a SIMD, as a workgroup of 1024 threads leaves.
inline bool has_few_registers(const DeviceCapabilities& caps) { return caps.subgroup_size_min >= 64; }

// Software devices with kernels for subgroups of so many lanes.
constexpr uint32_t kSoftwareLanes = 8;
inline bool has_software_lanes(const DeviceCapabilities& caps) {
    return caps.small_workgroups && caps.subgroup_size == kSoftwareLanes;
}

// The number that the driver tells, or a guess.
inline uint32_t multiprocessors(const DeviceCapabilities& caps) {
    return caps.n_compute_units_hint != 0 ? caps.n_compute_units_hint : 64;
}

// Dispatches of steps with at most so many rows have no more workgroups than run side by side, where that can be: then
// the device gives the same ones to the same multiprocessors in each step (docs/PERFORMANCE.md, "The same rows for a
// group of multiprocessors"). In larger steps some have more anyway.
constexpr uint32_t kSteadyRows = 128;
constexpr uint32_t kThreadsAtOnce = 1024;  // that a multiprocessor is expected to run side by side

// A product's bytes and FLOPs, for the profiler: the weights are read once.
inline DispatchInfo product_info(const char* name, const MatmulParams& params, const MatmulPlan& plan) {
    return {name, bytes_of(plan.weights().format, params.n, params.k), uint64_t{params.n} * params.k * 2 * plan.rows};
}

// Puts the tile and its cut of k into a plan of kCoopmat.
void take(MatmulPlan& plan, const TileChoice& choice);
// The name of the module that a plan runs.
const char* variant_name(const MatmulPlan& plan);
std::string describe(const MatmulPlan& plan);
// Returns true if a module is not SPIR-V but a program made for its constants, which kernel_text() returns.
bool is_from_text(std::string_view module);
std::string kernel_text(std::string_view module, const std::vector<uint32_t>& constants);
const char* tile_attention_module(TileAttention kind, KvType kv_type);

}  // namespace lorad::gpu
