// The table of rungs, and what they ask of a device.
#include "gpu/kernels/rungs.h"

#include <algorithm>
#include <array>

#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/coopmat_tiles.h"
#include "gpu/kernels/self_test.h"
#include "proto/base/format.h"

namespace lorad::gpu {
namespace rung_table {
namespace {

constexpr Need device(DeviceNeed* need) { return {.kind = Need::Kind::kDevice, .device = need}; }
constexpr Need module(const char* name) { return {.kind = Need::Kind::kModule, .name = name}; }
constexpr Need program(const char* name) { return {.kind = Need::Kind::kProgram, .name = name}; }
constexpr Need on(RungId rung, const char* words = nullptr) {
    return {.kind = Need::Kind::kOn, .name = words, .rung = rung};
}
constexpr Need with(RungId rung) { return {.kind = Need::Kind::kWith, .rung = rung}; }

std::string told_or(const std::string& why, const char* usual) { return why.empty() ? usual : why; }

// Needs of several rungs, and those that are more than a bit of the capabilities.

void above_portable(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(on.path != KernelPath::kPortable && on.path != KernelPath::kPortableF32,
                 "a kernel path above portable, which was asked for");
    // It has matrices for tests: compiling their kernels takes it minutes.
    missing.want(!on.caps.is_cpu || on.path != KernelPath::kAuto,
                 "a GPU: software devices take it only when they are asked to");
}

// The smallest tile and its subgroups must fit; see kCoopmatTiles.
void smallest_tile(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(on.caps.subgroup_size >= 8, lorad::format("subgroups of 8 or more, not {}", on.caps.subgroup_size));
    missing.want(on.caps.shared_memory_bytes >= 32 * 1024,
                 lorad::format("32 KiB of shared memory, not {}", on.caps.shared_memory_bytes >> 10));
    missing.want(threads_max(on.caps) >= 4 * on.caps.subgroup_size,
                 lorad::format("workgroups of {} threads, not {}", 4 * on.caps.subgroup_size, threads_max(on.caps)));
}

void matrices_f16(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(on.caps.coopmat_f16,
                 told_or(on.caps.no_coopmat_f16, "cooperative matrices of f16, 16x16x16 with sums in f32"));
}

void matrices(const RungQuestion& on, ScalarType type, Missing& missing) {
    if (type == ScalarType::kBf16)
        missing.want(on.caps.bfloat16_coopmat,
                     told_or(on.caps.no_bfloat16_coopmat, "cooperative matrices of bf16, 16x16x16 with sums in f32"));
    else
        matrices_f16(on, type, missing);
}

void at_most_128_lanes(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(on.caps.subgroup_size <= 128, "subgroups of 128 or fewer");
}

// Matrices that are filled by lanes.
void filled_by_lanes(const RungQuestion& on, ScalarType type, Missing& missing) {
    missing.want(on.caps.subgroup_size == 32, lorad::format("subgroups of 32, not {}", on.caps.subgroup_size));
    missing.want(on.caps.float16, "shaderFloat16 with 16-bit storage");
    // by which pairs of bits become bf16
    if (type == ScalarType::kBf16) missing.want(on.caps.int16, "shaderInt16");
}

void tile_of_fragments(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(fits(kCoopmatTiles[kFragmentsTile], self_test::kTestProductN, self_test::kTestProductK, on.caps),
                 "shared memory and threads for the tile of blocks");
}

void warpgroups(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(on.path == KernelPath::kAuto || on.path == KernelPath::kWarpgroup,
                 "a kernel path of auto or warpgroup");
    missing.want(on.caps.warpgroup_matrices, "an H100, H200 or GH200 with VK_NVX_binary_import");
}

void matrices2(const RungQuestion& on, ScalarType type, Missing& missing) {
    missing.want(type == ScalarType::kBf16 ? on.caps.coopmat2_bfloat16 : on.caps.coopmat2,
                 "VK_NV_cooperative_matrix2 with workgroup scope and tensor addressing");
}

void asked_for_matrices2(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(on.path == KernelPath::kCoopmat2, "--kernel-path coopmat2: nowhere faster");
}

void subgroups_of_32(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(on.caps.subgroup_size_min <= 32 && on.caps.subgroup_size_max >= 32,
                 lorad::format("subgroups of 32, not {} to {}", on.caps.subgroup_size_min, on.caps.subgroup_size_max));
}

void votes(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(on.caps.subgroup_vote, "votes of subgroups");
}

void matrix_functions(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(on.path != KernelPath::kCoopmat, "a kernel path above coopmat, which was asked for");
    missing.want(on.caps.matrix_functions,
                 "VK_NV_cooperative_matrix2 with reductions, conversions and operations on elements");
}

void matrices_16x8(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(on.caps.coopmat_f16_16x8, "cooperative matrices of f16, 16x8x16");
}

void registers(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(!on.caps.small_workgroups, "a GPU: software devices have products of their own");
    missing.want(!has_few_registers(on.caps), "the registers of a lane where subgroups may have fewer than 64");
}

void short_sums(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(on.path != KernelPath::kPortableF32, "sums in f16 beside kernel path portable-f32");
    missing.want(on.caps.float16, "shaderFloat16 with 16-bit storage");
}

void delta_blocks(const RungQuestion& on, ScalarType, Missing& missing) {
    missing.want(!on.is_left_out("delta_step"), "blocks of kernel delta_step, which were left out");
}

constexpr const char* kKhr = "KHR cooperative matrices";

// In the order of the parts of a step, which is that of `lorad devices`; a rung stands behind those below it.
constexpr std::array kRows = {
    RungRow{.id = RungId::kMatrices,
            .has_types = true,
            .part = "products",
            .name = kKhr,
            .gain = "prompts about ten times and many rows several times as fast, half the bytes of activations",
            .needs = {device(above_portable), device(smallest_tile), device(matrices), module("matmul_coopmat")},
            .test = test_products},
    RungRow{.id = RungId::kShrink,
            .has_types = true,
            .part = "adapters' first product",
            .name = kKhr,
            .gain = "prompts with adapters",
            .needs = {on(RungId::kMatrices), device(at_most_128_lanes), module("lora_shrink")},
            .test = test_shrink},
    RungRow{.id = RungId::kGatedAct,
            .has_types = true,
            .part = "activation with adapters",
            .name = kKhr,
            .gain = "many rows with adapters",
            .needs = {on(RungId::kMatrices), module("gated_act")},
            .test = test_gated_act},
    RungRow{.id = RungId::kGated,
            .has_types = true,
            .part = "gate, up and activation in one",
            .name = kKhr,
            .gain = "a pass over the activations less",
            .needs = {on(RungId::kMatrices), module("matmul_coopmat_gated")},
            .test = test_products},
    RungRow{.id = RungId::kAdapters,
            .has_types = true,
            .part = "products with their adapters",
            .name = kKhr,
            .gain = "prompts of adapters in one product",
            .needs = {on(RungId::kMatrices), module("matmul_coopmat_lora")}},
    RungRow{.id = RungId::kGatedAdapters,
            .has_types = true,
            .part = "gate, up and activation with their adapters",
            .name = kKhr,
            .gain = "prompts of adapters in one product",
            .needs = {on(RungId::kGated), module("matmul_coopmat_gated_lora")}},
    RungRow{.id = RungId::kFragments,
            .has_types = true,
            .part = "activations in blocks",
            .name = kKhr,
            .gain = "many rows: loads without conflicts",
            .needs = {on(RungId::kMatrices), device(filled_by_lanes), with(RungId::kGatedAdapters),
                      with(RungId::kAdapters), device(tile_of_fragments), module("matmul_coopmat_fragments"),
                      module("matmul_coopmat_lora_fragments"), module("matmul_coopmat_gated_fragments"),
                      module("matmul_coopmat_gated_lora_fragments")},
            .test = test_products},
    RungRow{.id = RungId::kResidual,
            .has_types = true,
            .part = "products that end in the residual stream",
            .name = kKhr,
            .gain = "two dispatches a layer less",
            .needs = {on(RungId::kMatrices), device(filled_by_lanes), with(RungId::kGated), module("matmul_residual"),
                      module("matmul_coopmat_deferred"), module("matmul_coopmat_gated_deferred")},
            .test = test_residual},
    RungRow{.id = RungId::kPacked,
            .has_types = true,
            .part = "products of weights in few bits",
            .name = kKhr,
            .gain = "many rows without unpacking",
            .needs = {on(RungId::kMatrices), device(filled_by_lanes), module("matmul_packed")},
            .test = test_packed},
    RungRow{.id = RungId::kExperts,
            .has_types = true,
            .part = "experts' products",
            .name = kKhr,
            .gain = "prompts about ten times and many rows several times as fast, in models with experts",
            .needs = {on(RungId::kMatrices), module("expert_matrix")},
            .test = test_experts,
            .has_switch = false},
    RungRow{.id = RungId::kPackedExperts,
            .has_types = true,
            .part = "experts' products of weights in few bits",
            .name = kKhr,
            .gain = "the same where experts lie in few bits",
            .needs = {on(RungId::kExperts), module("expert_matrix_packed")},
            .test = test_packed_experts,
            .has_switch = false},
    RungRow{.id = RungId::kWarpgroups,
            .has_types = true,
            .part = "products",
            .name = "warpgroups",
            .gain = "prompts 1.6 times as fast on that chip",
            .needs = {device(above_portable), device(warpgroups), program("matmul_warpgroup"),
                      program("matmul_warpgroup_gated"), on(RungId::kMatrices)},
            .test = test_products},
    RungRow{.id = RungId::kStacked,
            .has_types = true,
            .part = "adapters as more columns",
            .name = "warpgroups",
            .gain = "prompts of adapters",
            .needs = {device(above_portable), device(warpgroups), program("matmul_warpgroup"),
                      program("matmul_warpgroup_gated"), on(RungId::kWarpgroups, "cooperative matrices"),
                      program("matmul_warpgroup_stacked"), program("matmul_warpgroup_gated_stacked")},
            .test = test_products},
    RungRow{.id = RungId::kDirect,
            .has_types = true,
            .part = "products of few rows",
            .name = "warpgroups",
            .gain = "8 to 64 rows",
            .needs = {device(above_portable), device(warpgroups), program("matmul_warpgroup"),
                      program("matmul_warpgroup_gated"), on(RungId::kWarpgroups, "cooperative matrices"),
                      program("matmul_warpgroup_direct")},
            .test = test_products},
    RungRow{.id = RungId::kArgmax,
            .has_types = true,
            .part = "output layer that keeps its logits",
            .name = "warpgroups",
            .gain = "greedy decodes",
            .needs = {device(above_portable), device(warpgroups), program("matmul_warpgroup"),
                      program("matmul_warpgroup_gated"), on(RungId::kWarpgroups, "cooperative matrices"),
                      program("matmul_warpgroup_argmax")},
            .test = test_products},
    RungRow{.id = RungId::kPackedRows,
            .has_types = true,
            .part = "products of few rows of weights in few bits",
            .name = "a program for H100 and H200",
            .gain = "up to 8 rows 1.2 times as fast",
            .needs = {on(RungId::kWarpgroups), on(RungId::kPacked), program("matmul_packed_rows")},
            .test = test_packed_rows},
    RungRow{.id = RungId::kPackedWarpgroups,
            .has_types = true,
            .part = "products of 9 to 128 rows of weights in few bits",
            .name = "warpgroups",
            .gain = "many sequences at once",
            .needs = {on(RungId::kWarpgroups), on(RungId::kPacked), program("matmul_packed_warpgroup")},
            .test = test_packed_warpgroups},
    // Only on request: with the same tiles it is slower than KHR matrices wherever it was measured (docs/REJECTED.md).
    RungRow{.id = RungId::kMatrices2,
            .has_types = true,
            .part = "products",
            .name = "NV cooperative matrices 2",
            .gain = "nothing that was measured",
            .needs = {on(RungId::kMatrices), device(matrices2), module("matmul_coopmat2"), device(asked_for_matrices2)},
            .test = test_products},
    RungRow{.id = RungId::kTileStaged,
            .has_types = false,
            .part = "attention of prompts",
            .name = kKhr,
            .gain = "long prompts several times as fast",
            .needs = {device(above_portable), device(smallest_tile), device(subgroups_of_32), device(matrices_f16),
                      module("attention_tile"), module("attention_tile_kv8")},
            .test = test_attention},
    RungRow{.id = RungId::kTileRegisters,
            .has_types = false,
            .part = "attention of prompts",
            .name = "KHR cooperative matrices whose elements lie as on NVIDIA's, which a test at the start tells",
            .gain = "scores stay in registers",
            .needs = {device(above_portable), device(smallest_tile), device(subgroups_of_32), device(matrices_f16),
                      device(votes), module("attention_registers")},
            .test = test_attention},
    RungRow{.id = RungId::kTileWorkgroup,
            .has_types = false,
            .part = "attention of prompts",
            .name = "NV cooperative matrices 2",
            .gain = "larger tiles",
            .needs = {device(above_portable), device(smallest_tile), device(subgroups_of_32), device(matrix_functions),
                      device(matrices2), module("attention_coopmat2")},
            .test = test_attention},
    RungRow{.id = RungId::kAttentionGroup,
            .has_types = false,
            .part = "attention of single rows",
            .name = "query heads together on NV cooperative matrices 2",
            .gain = "long contexts",
            .needs = {device(above_portable), device(smallest_tile), device(subgroups_of_32), device(matrix_functions),
                      device(matrices_16x8), module("attention_group"), module("attention_group_kv8")},
            .test = test_attention},
    RungRow{.id = RungId::kAttentionFromQkv,
            .has_types = false,
            .part = "attention of single rows",
            .name = "straight from the product's sums",
            .gain = "a dispatch a layer less",
            .needs = {on(RungId::kAttentionGroup), module("attention_from_qkv")},
            .test = test_attention_from_qkv},
    // Beside matrices nothing takes them. The test at the start would take software devices long to compile.
    RungRow{.id = RungId::kRegisters,
            .has_types = false,
            .part = "products without matrices",
            .name = "blocks in registers",
            .gain = "prompts and many rows",
            .needs = {device(registers), module("matmul_registers")},
            .test = test_registers,
            .is_beside_matrices = false},
    RungRow{.id = RungId::kShortSums,
            .has_types = false,
            .part = "products without matrices (f16 weights)",
            .name = "short sums in f16",
            .gain = "two products at once where the device has that",
            .needs = {on(RungId::kRegisters), device(short_sums), module("matmul_registers_f16")},
            .test = test_registers,
            .is_beside_matrices = false},
    // It needs nothing that a device may lack, and so is on the portable path, too.
    RungRow{.id = RungId::kDeltaBlocks,
            .has_types = false,
            .part = "recurrences of prompts",
            .name = "rows in blocks of 8",
            .gain = "prompts of delta nets and Mamba 2 several times as fast as row after row",
            .needs = {device(delta_blocks)},
            .test = test_recurrences,
            .small_name = "rows in blocks of 4"},
};

constexpr bool are_in_order() {
    for (uint32_t i = 0; i < kRows.size(); ++i)
        if (kRows[i].id != static_cast<RungId>(i)) return false;
    return kRows.size() == kRungs;
}
static_assert(are_in_order());

}  // namespace
}  // namespace rung_table

bool RungQuestion::is_left_out(std::string_view module) const {
    return std::ranges::find(left_out, module) != left_out.end();
}

void Missing::want(bool is_there, std::string what) {
    if (!is_there && std::ranges::find(all_, what) == all_.end()) all_.push_back(std::move(what));
}

std::string RungRow::part_of(ScalarType type) const {
    if (!has_types) return part;
    return lorad::format("{} ({} weights)", part, type == ScalarType::kBf16 ? "bf16" : "f16");
}

std::string RungRow::module_of(const Need& need, ScalarType type) const {
    if (!has_types) return need.name;
    return lorad::format("{}_{}", need.name, type == ScalarType::kBf16 ? "bf16" : "f16");
}

std::span<const RungRow> rung_rows() { return rung_table::kRows; }
const RungRow& row_of(RungId id) { return rung_table::kRows[static_cast<uint32_t>(id)]; }

}  // namespace lorad::gpu
