#include "gpu/kernels/kernel_ladder.h"

#include <algorithm>
#include <array>

#include "gpu/kernels/products/coopmat_tiles.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/self_test.h"
#include "proto/base/format.h"

namespace lorad::gpu {

using namespace self_test;

const char* path_name(KernelPath path) {
    switch (path) {
        case KernelPath::kAuto: return "auto";
        case KernelPath::kPortable: return "portable";
        case KernelPath::kCoopmat: return "coopmat";
        case KernelPath::kCoopmat2: return "coopmat2";
        case KernelPath::kWarpgroup: return "warpgroup";
    }
    return "?";
}

KernelPath KernelLadder::path() const {
    if (has_warpgroup()) return KernelPath::kWarpgroup;
    if (coopmat2[1] || coopmat2[2]) return KernelPath::kCoopmat2;
    return coopmat[1] || coopmat[2] ? KernelPath::kCoopmat : KernelPath::kPortable;
}

KernelLadder ladder_of(const DeviceCapabilities& capabilities, KernelPath path, std::span<const std::string> left_out) {
    KernelLadder ladder;
    const auto is_there = [&](const char* module) { return has_kernel_module(module) && std::ranges::find(left_out, module) == left_out.end(); };
    // A software device has matrices for tests: compiling their kernels takes it minutes.
    if (path == KernelPath::kPortable || (capabilities.is_cpu && path == KernelPath::kAuto)) return ladder;
    // The smallest tile and its subgroups must fit; see kCoopmatTiles.
    const bool smallest_fits = capabilities.subgroup_size >= 8 && capabilities.shared_memory_bytes >= 32 * 1024 &&
                      threads_max(capabilities) >= 4 * capabilities.subgroup_size;
    ladder.coopmat[1] = smallest_fits && capabilities.coopmat_f16 && is_there("matmul_coopmat_f16");
    ladder.coopmat[2] = smallest_fits && capabilities.bfloat16_coopmat && is_there("matmul_coopmat_bf16");
    ladder.shrink[1] = ladder.coopmat[1] && capabilities.subgroup_size <= 128 && is_there("lora_shrink_f16");
    ladder.shrink[2] = ladder.coopmat[2] && capabilities.subgroup_size <= 128 && is_there("lora_shrink_bf16");
    ladder.gated_act[1] = ladder.coopmat[1] && is_there("gated_act_f16");
    ladder.gated_act[2] = ladder.coopmat[2] && is_there("gated_act_bf16");
    ladder.gated[1] = ladder.coopmat[1] && is_there("matmul_coopmat_gated_f16");
    ladder.gated[2] = ladder.coopmat[2] && is_there("matmul_coopmat_gated_bf16");
    ladder.adapters[1] = ladder.coopmat[1] && is_there("matmul_coopmat_lora_f16");
    ladder.adapters[2] = ladder.coopmat[2] && is_there("matmul_coopmat_lora_bf16");
    ladder.gated_adapters[1] = ladder.gated[1] && is_there("matmul_coopmat_gated_lora_f16");
    ladder.gated_adapters[2] = ladder.gated[2] && is_there("matmul_coopmat_gated_lora_bf16");
    const bool blocks_fit = capabilities.subgroup_size == 32 && fits(kCoopmatTiles[kBlocksTile], kTestProductN, kTestProductK, capabilities);
    const auto offer_blocks = [&](ScalarType type, const char* suffix) {
        bool all = blocks_fit && ladder.has_gated_adapters(type) && ladder.has_adapters(type) && capabilities.float16;
        // By int16 pairs of bits become bf16.
        if (type == ScalarType::kBf16) all = all && capabilities.int16;
        for (const char* kind : {"", "lora_", "gated_", "gated_lora_"}) all = all && is_there(lorad::format("matmul_coopmat_{}blocks_{}", kind, suffix).c_str());
        ladder.blocks[static_cast<uint32_t>(type)] = all;
    };
    const auto offer_residual = [&](ScalarType type, const char* suffix) {
        bool all = capabilities.subgroup_size == 32 && ladder.has_gated(type) && capabilities.float16 && (type != ScalarType::kBf16 || capabilities.int16);
        for (const char* kind : {"residual", "coopmat_deferred", "coopmat_gated_deferred"}) all = all && is_there(lorad::format("matmul_{}_{}", kind, suffix).c_str());
        ladder.residual[static_cast<uint32_t>(type)] = all;
    };
    const auto offer_packed = [&](ScalarType type, const char* module) {
        ladder.packed[static_cast<uint32_t>(type)] = capabilities.subgroup_size == 32 && ladder.has(type) && capabilities.float16 && is_there(module) &&
                                                     (type != ScalarType::kBf16 || capabilities.int16);
    };
    offer_packed(ScalarType::kF16, "matmul_packed_f16");
    offer_packed(ScalarType::kBf16, "matmul_packed_bf16");
    offer_residual(ScalarType::kF16, "f16");
    offer_residual(ScalarType::kBf16, "bf16");
    offer_blocks(ScalarType::kF16, "f16");
    offer_blocks(ScalarType::kBf16, "bf16");
    const auto offer_warpgroup = [&](ScalarType type, const char* suffix) {
        const auto is_left_out = [&](const char* kind) { return std::ranges::find(left_out, lorad::format("matmul_warpgroup{}_{}", kind, suffix)) != left_out.end(); };
        const bool wanted = path == KernelPath::kAuto || path == KernelPath::kWarpgroup;
        ladder.warpgroup[static_cast<uint32_t>(type)] = wanted && capabilities.warpgroup_matrices && !is_left_out("") && !is_left_out("_gated");
        ladder.joined[static_cast<uint32_t>(type)] = ladder.has_warpgroup(type) && !is_left_out("_joined") && !is_left_out("_gated_joined");
        ladder.direct[static_cast<uint32_t>(type)] = ladder.has_warpgroup(type) && !is_left_out("_direct");
        ladder.argmax[static_cast<uint32_t>(type)] = ladder.has_warpgroup(type) && !is_left_out("_argmax");
    };
    offer_warpgroup(ScalarType::kF16, "f16");
    offer_warpgroup(ScalarType::kBf16, "bf16");
    const bool subgroups_of_32 = smallest_fits && capabilities.subgroup_size_min <= 32 && capabilities.subgroup_size_max >= 32;
    const bool functions = capabilities.matrix_functions && path != KernelPath::kCoopmat;
    const auto offer = [&](TileAttention kind, bool can) { ladder.attention_tile[static_cast<uint32_t>(kind)] = subgroups_of_32 && can; };
    offer(TileAttention::kStaged, capabilities.coopmat_f16 && is_there("attention_tile") && is_there("attention_tile_kv8"));
    ladder.attention_group = subgroups_of_32 && functions && capabilities.coopmat_f16_16x8 && is_there("attention_group") && is_there("attention_group_kv8");
    ladder.attention_from_qkv = ladder.attention_group && is_there("attention_from_qkv");
    offer(TileAttention::kWorkgroup, functions && capabilities.coopmat2 && is_there("attention_coopmat2"));
    offer(TileAttention::kRegisters, capabilities.coopmat_f16 && capabilities.subgroup_vote && is_there("attention_registers"));
    // Only on request: with the same tiles it is slower than KHR matrices wherever it was measured (docs/REJECTED.md).
    if (path != KernelPath::kCoopmat2) return ladder;
    ladder.coopmat2[1] = ladder.coopmat[1] && capabilities.coopmat2 && is_there("matmul_coopmat2_f16");
    ladder.coopmat2[2] = ladder.coopmat[2] && capabilities.coopmat2_bfloat16 && is_there("matmul_coopmat2_bf16");
    return ladder;
}

}  // namespace lorad::gpu
