// Devices that need not be there, for tests of plans: an H200 and what is left of it with fewer of its features.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/products/product_impls.h"
#include "proto/base/format.h"

namespace lorad::testing {

inline gpu::DeviceCapabilities h200() {
    gpu::DeviceCapabilities caps;
    caps.name = "NVIDIA H200";
    caps.subgroup_size = caps.subgroup_size_min = caps.subgroup_size_max = 32;
    caps.shared_memory_bytes = 48 * 1024;
    caps.max_workgroup_invocations = 1024;
    caps.max_workgroup_subgroups = 32;
    caps.n_compute_units_hint = 132;
    caps.subgroup_vote = caps.subgroup_ballot = caps.multiprocessor_ids = caps.int64_atomics = caps.float16 =
        caps.int16 = true;
    caps.bfloat16_coopmat = caps.coopmat_f16 = caps.coopmat_f16_16x8 = caps.coopmat2 = caps.coopmat2_bfloat16 = true;
    caps.warpgroup_matrices = caps.matrix_functions = true;
    return caps;
}

inline gpu::DeviceCapabilities without_matrices() {
    gpu::DeviceCapabilities caps = h200();
    caps.name = "a device without matrices";
    caps.bfloat16_coopmat = caps.coopmat_f16 = caps.coopmat_f16_16x8 = caps.coopmat2 = caps.coopmat2_bfloat16 = false;
    caps.warpgroup_matrices = caps.matrix_functions = false;
    return caps;
}

// Subgroups of 8 in workgroups of one, as lavapipe has them.
inline gpu::DeviceCapabilities software() {
    gpu::DeviceCapabilities caps = without_matrices();
    caps.name = "a software device";
    caps.subgroup_size = caps.subgroup_size_min = caps.subgroup_size_max = 8;
    caps.n_compute_units_hint = 0;
    caps.is_cpu = caps.small_workgroups = true;
    return caps;
}

struct PlannedDevice {
    PlannedDevice(std::string name_, gpu::DeviceCapabilities capabilities, gpu::KernelPath path,
                  bool batch_invariant = false)
        : name(std::move(name_)), caps(std::move(capabilities)) {
        facts.options.path = path;
        facts.options.batch_invariant = batch_invariant;
        facts.ladder = gpu::ladder_of(caps, path);
    }

    std::string name;
    gpu::DeviceCapabilities caps;
    gpu::KernelFacts facts{caps, {}, {}};
};

// Each kind of device that plans differ for, all of whose rungs are taken to work but for those that are named.
inline std::deque<PlannedDevice> planned_devices() {
    std::deque<PlannedDevice> all;
    all.emplace_back("portable", without_matrices(), gpu::KernelPath::kAuto);
    all.emplace_back("software", software(), gpu::KernelPath::kAuto);
    all.emplace_back("coopmat", h200(), gpu::KernelPath::kCoopmat);
    all.emplace_back("coopmat2", h200(), gpu::KernelPath::kCoopmat2);
    all.emplace_back("warpgroup", h200(), gpu::KernelPath::kAuto);
    all.emplace_back("batch invariant", h200(), gpu::KernelPath::kAuto, true);
    all.emplace_back("coopmat without gated, fragments and packed", h200(), gpu::KernelPath::kCoopmat);
    for (const gpu::RungId rung :
         {gpu::RungId::kGated, gpu::RungId::kGatedAdapters, gpu::RungId::kFragments, gpu::RungId::kPacked})
        all.back().facts.ladder.drop(rung);
    all.emplace_back("warpgroup without direct, stacked and argmax", h200(), gpu::KernelPath::kAuto);
    for (const gpu::RungId rung : {gpu::RungId::kDirect, gpu::RungId::kStacked, gpu::RungId::kArgmax})
        all.back().facts.ladder.drop(rung);
    return all;
}

// As digests have it; of a way that came later its own name.
inline const char* name_of(gpu::MatmulVariant variant) {
    switch (variant) {
        case gpu::MatmulVariant::kMatvec: return "matvec";
        case gpu::MatmulVariant::kLanes: return "lanes";
        case gpu::MatmulVariant::kTiled: return "tiled";
        case gpu::MatmulVariant::kGemv: return "gemv";
        case gpu::MatmulVariant::kCoopmat: return "coopmat";
        case gpu::MatmulVariant::kCoopmat2: return "coopmat2";
        case gpu::MatmulVariant::kWarpgroup: return "warpgroup";
        case gpu::MatmulVariant::kPacked: return "packed";
        case gpu::MatmulVariant::kWarpgroupDirect: return "direct";
        case gpu::MatmulVariant::kUnrolled: return "lanes";
        case gpu::MatmulVariant::kGatedLora: return "warpgroup";
        case gpu::MatmulVariant::kResidual: return "residual";
        case gpu::MatmulVariant::kRegisters: return "registers";
        default: return gpu::impl_of(variant).name;
    }
}

// All that a plan says, for digests.
inline std::string text_of(const gpu::MatmulPlan& plan) {
    if (plan.rows == 0) return "none";
    if (plan.ends_in_stream())
        return lorad::format("residual {} {} {} {}", plan.column_tile, plan.subgroups, plan.k_step, plan.rows);
    std::string text = lorad::format("{} {}x{} tile {} rows {}", name_of(plan.variant), plan.row_tile, plan.column_tile,
                                     plan.tile, plan.rows);
    text += lorad::format(" k {} by {} whole {}", plan.n_splits, plan.k_per_split, plan.whole_rows);
    text += lorad::format(" types {} {}", static_cast<int>(plan.weight_type), static_cast<int>(plan.act_type));
    if (plan.x_in_fragments) text += lorad::format(" blocks {}", plan.x_order);
    if (gpu::is_packed(plan.packed)) text += lorad::format(" format {}", static_cast<int>(plan.packed));
    if (plan.unpacks) text += " unpacks";
    if (plan.short_sum != 0) text += lorad::format(" short {}", plan.short_sum);
    return text;
}
inline std::string text_of(const std::optional<gpu::MatmulPlan>& plan) { return plan ? text_of(*plan) : "none"; }

// FNV-1a, of texts that are too long to stand in a test.
inline std::string digest_of(std::string_view text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return lorad::format("{:016x}", hash);
}

// By group, as tests have them.
using Digests = std::map<std::string, std::string>;

// Those that are no longer what they were, as the test's source is to have them if that is meant.
inline std::string changes(const Digests& want, const Digests& got) {
    std::string text = "groups whose plans have changed:\n";
    for (const auto& [group, digest] : got) {
        const auto found = want.find(group);
        if (found == want.end() || found->second != digest)
            text += lorad::format("        {{\"{}\", \"{}\"}},\n", group, digest);
    }
    return text;
}

}  // namespace lorad::testing
