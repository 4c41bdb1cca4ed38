#include <algorithm>
#include <bit>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

constexpr uint64_t kOwnBytesMax = 96 << 10;  // of A: up to here reading all of it costs a workgroup less than waiting for others

static_assert(kLoraVectorScratchBytes >= kMaxRank * sizeof(float) + 32 * sizeof(uint32_t));

}  // namespace

void KernelSet::lora_vector(Recorder& recorder, const LoraVectorParams& params, ScalarType weight_type, ScalarType act_type,
                            LowSharing sharing) {
    CHECK(params.k % 8 == 0 && params.rank >= 1 && params.rank <= kMaxRank);
    const bool is_cpu = device_.capabilities().is_cpu;
    const uint32_t size = threads(256, 32);
    const uint32_t chunks = ceil_div(params.rank, 8);
    const uint64_t a_bytes = uint64_t{params.rank} * params.k * bytes_of(weight_type);
    const bool shares = sharing == LowSharing::kAlways || (sharing == LowSharing::kAuto && a_bytes > kOwnBytesMax);
    // With the base's part: enough workgroups for all multiprocessors, each with as many bytes. Without it few are enough, so that
    // A is not read more often than it must be.
    const uint32_t units = std::max(device_.capabilities().n_compute_units_hint, 4u);
    const uint32_t most_rows = params.w == 0 ? std::max(2u, size / std::bit_floor(std::min(chunks, size / 2)))
                                             : std::max(2u, std::bit_floor(ceil_div(params.n, std::bit_floor(units))));
    const uint32_t group_rows = std::min(std::bit_floor(size), most_rows);
    const uint32_t n_parts = std::min(size / group_rows, std::bit_ceil(chunks));
    const uint32_t n_polls = shares ? (is_cpu ? 16u : 4096u) : 0;
    const Kernel* k = kernel("lora_vector", {size, static_cast<uint32_t>(weight_type), static_cast<uint32_t>(act_type), params.k,
                                             params.rank, group_rows, n_parts, params.w != 0, n_polls});
    if (k == nullptr) return;
    const uint64_t products = uint64_t{params.rank} * (uint64_t{params.n} + params.k) + (params.w != 0 ? uint64_t{params.n} * params.k : 0);
    const uint32_t n_groups = ceil_div(params.n, group_rows);
    recorder.dispatch(*k, params, shares ? std::bit_ceil(n_groups) : n_groups, 1, 1,
                      {params.w != 0 ? "base_lora_vector" : "lora_vector", products * bytes_of(weight_type), products * 2});
}

}  // namespace lorad::gpu
