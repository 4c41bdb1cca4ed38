#include <algorithm>
#include <bit>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

// of A: up to here reading all of it costs a workgroup less than waiting for others
constexpr uint64_t kOwnBytesMax = 96 << 10;
constexpr uint32_t kSharedSumsMax = 3072;  // 12 KiB of shared memory

// Slices of k once a shared A has so many rows. On an H100 four beat eight at rank 64, and lose at rank 32.
constexpr uint32_t kFewSlices = 4, kFewSlicesRankMin = 64;

static_assert(kLoraVectorWords >= kMaxRank);  // a word for each element of A x

// A workgroup's way through its rows of A and W. A unit is a row's one chunk for each lane.
struct SumsPlan {
    uint32_t slices = 1, rows_at_once = 1, steps_at_once = 1;
};

struct SumsShape {
    uint32_t n_rows = 0, row_units = 0, n_subgroups = 0, most_slices = 0;
};

// The fewest slices of k that give the busiest subgroup the fewest units: each slice of a row is a sum over a subgroup.
// Or those wished for.
SumsPlan plan_sums(const SumsShape& shape, uint32_t units_at_once, uint32_t wished_slices) {
    const auto [n_rows, row_units, n_subgroups, most_slices] = shape;
    SumsPlan plan;
    const auto team_rows = [n = n_rows, subgroups = n_subgroups](uint32_t slices) {
        return ceil_div(n, subgroups / slices);
    };
    const auto busiest = [&team_rows, units = row_units](uint32_t slices) {
        return team_rows(slices) * ceil_div(units, slices);
    };
    for (uint32_t slices = 2; slices <= std::min(n_subgroups, most_slices); slices *= 2) {
        if (wished_slices == 0 ? busiest(slices) < busiest(plan.slices) : slices <= wished_slices) plan.slices = slices;
    }
    const uint32_t rows = team_rows(plan.slices);
    plan.rows_at_once = ceil_div(rows, ceil_div(rows, units_at_once));
    plan.steps_at_once =
        std::bit_floor(std::clamp(units_at_once / plan.rows_at_once, 1u, ceil_div(row_units, plan.slices)));
    return plan;
}

// Measured on an H200 and an H100 (lorad-bench ops --threads): with a base up to two units for each subgroup; without
// one 512 threads serve all sizes.
uint32_t threads_for_units(uint32_t n_units, uint32_t lanes, bool with_base) {
    if (!with_base) return 512;
    uint32_t size = 256;
    while (size < 1024 && n_units > size / lanes * 2) size *= 2;
    return size;
}

// As many units as 64 registers hold, or 16 registers where more than 512 threads share a multiprocessor's: all loads
// are in flight at once. Small workgroups have few, as software compiles long programs slowly.
uint32_t units_at_once(const DeviceCapabilities& caps, uint32_t threads, ScalarType type) {
    if (caps.small_workgroups) return 4;
    return (threads > 512 ? 8 : 32) / bytes_of(type);
}

struct LoraVectorPlan {
    uint32_t threads = 0, group_rows = 0;  // of a workgroup; of the result, for each of them
    uint32_t n_parts = 0;                  // threads that share one row of B
    uint32_t n_groups = 0;                 // workgroups; a power of two where they share
    bool shares = false;                   // A x
    SumsPlan sums;
};

LoraVectorPlan plan_lora_vector(const DeviceCapabilities& caps, const LoraVectorParams& params, ScalarType type,
                                const LoraVectorOptions& options) {
    constexpr uint32_t kThreadsOnCpu = 32;
    LoraVectorPlan plan;
    const bool with_base = params.w != 0;
    const uint32_t lanes = std::bit_floor(std::max(caps.subgroup_size, 1u)), row_units = ceil_div(params.k / 8, lanes);
    const uint32_t chunks = ceil_div(params.rank, 8);
    const bool a_is_large = uint64_t{params.rank} * params.k * bytes_of(type) > kOwnBytesMax && caps.int64_atomics;
    // With the base's part there are enough workgroups for all multiprocessors, each with as many bytes. Without it few
    // are enough, so that A is not read more often than it must be.
    const uint32_t multiprocessors = std::max(caps.n_compute_units_hint, 4u);
    plan.group_rows = with_base ? std::max(2u, std::bit_floor(ceil_div(params.n, std::bit_floor(multiprocessors))))
                                : std::max(2u, workgroup_size(caps, 256, kThreadsOnCpu) / std::bit_ceil(chunks));
    // Where they share A x: as many workgroups as A has rows, if there are as many pairs of elements, and no more than
    // may share.
    if (a_is_large && !with_base)
        plan.group_rows = std::min(plan.group_rows, std::max(2u, std::bit_floor(params.n / params.rank)));
    while (a_is_large && ceil_div(params.n, plan.group_rows) > kLoraVectorGroupsMax) plan.group_rows *= 2;
    if (options.group_rows != 0) plan.group_rows = std::max(2u, std::bit_floor(options.group_rows));
    // Not whether A x is shared but whether it would be decides how sums are cut, so that the bits do not depend on who
    // computes them.
    const uint32_t rows_of_a = a_is_large ? ceil_div(params.rank, ceil_div(params.n, plan.group_rows)) : params.rank;
    const uint32_t n_rows = rows_of_a + (with_base ? plan.group_rows : 0);
    plan.threads = workgroup_size(caps, threads_for_units(n_rows * row_units, lanes, with_base), kThreadsOnCpu);
    // Less than a subgroup would leave parts of k out.
    if (options.threads != 0) plan.threads = std::max({within_limit(caps, std::bit_floor(options.threads)), lanes, 2u});
    plan.group_rows = std::min(plan.group_rows, plan.threads);
    plan.n_parts = std::min(plan.threads / plan.group_rows, std::bit_ceil(chunks));
    plan.n_groups = ceil_div(params.n, plan.group_rows);
    const bool may_share = caps.int64_atomics && plan.n_groups <= kLoraVectorGroupsMax;
    plan.shares =
        may_share && (options.sharing == LowSharing::kAlways || (options.sharing == LowSharing::kAuto && a_is_large));
    if (plan.shares) plan.n_groups = std::bit_ceil(plan.n_groups);
    uint32_t most_slices = kSharedSumsMax / (params.rank + plan.group_rows);
    if (a_is_large && params.rank >= kFewSlicesRankMin && options.slices == 0)
        most_slices = std::min(most_slices, kFewSlices);
    const uint32_t at_once = options.at_once != 0 ? options.at_once : units_at_once(caps, plan.threads, type);
    // Rows of a base are as many as subgroups: slices would only cost sums.
    const uint32_t slices = options.slices != 0 ? options.slices : with_base ? 1 : 0;
    plan.sums = plan_sums({n_rows, row_units, std::max(plan.threads / lanes, 1u), most_slices}, at_once, slices);
    return plan;
}

}  // namespace

void LoraKernels::lora_vector(Recorder& recorder, const LoraVectorParams& params, ScalarType weight_type,
                              ScalarType act_type, const LoraVectorOptions& options) {
    CHECK(params.k % 8 == 0 && params.rank >= 1 && params.rank <= kMaxRank);
    const DeviceCapabilities& caps = capabilities();
    const bool with_base = params.w != 0;
    const LoraVectorPlan plan = plan_lora_vector(caps, params, weight_type, options);
    const uint32_t n_polls = caps.is_cpu ? 16 : 4096;
    struct Constants {
        uint32_t threads, weight_type, act_type, k, rank, group_rows, parts, with_base, slices, rows_at_once,
            steps_at_once, polls;
    };
    const Kernel* k = kernel(plan.shares ? "lora_vector_shared" : "lora_vector",
                             Constants{.threads = plan.threads,
                                       .weight_type = static_cast<uint32_t>(weight_type),
                                       .act_type = static_cast<uint32_t>(act_type),
                                       .k = params.k,
                                       .rank = params.rank,
                                       .group_rows = plan.group_rows,
                                       .parts = plan.n_parts,
                                       .with_base = with_base,
                                       .slices = plan.sums.slices,
                                       .rows_at_once = plan.sums.rows_at_once,
                                       .steps_at_once = plan.sums.steps_at_once,
                                       .polls = n_polls});
    if (k == nullptr) return;
    const uint64_t products =
        uint64_t{params.rank} * (uint64_t{params.n} + params.k) + (with_base ? uint64_t{params.n} * params.k : 0);
    recorder.dispatch(*k, params, plan.n_groups, 1, 1,
                      {with_base ? "base_lora_vector" : "lora_vector", products * bytes_of(weight_type), products * 2});
}

}  // namespace lorad::gpu
