// Which rungs above the portable kernels a device climbs: cooperative matrices for products with 16-bit weights.
// Chosen by capability, then shown by a small product at start-up that equals the portable kernel's.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/kernel_options.h"
#include "gpu/kernels/scalar_type.h"

namespace lorad::gpu {

// Indexed by ScalarType of the weights; f32 is always portable.
struct KernelLadder {
    std::array<bool, 3> coopmat{};    // 16-bit activations; KHR cooperative matrices and the matvec that goes with them
    std::array<bool, 3> coopmat2{};   // in addition NV cooperative matrices 2 for many rows
    std::array<bool, 3> shrink{};     // lora_shrink on KHR cooperative matrices
    std::array<bool, 3> gated_act{};  // gated_act with adapters on them

    std::array<bool, 3> gated{};                       // products that end in the activation; only with coopmat
    std::array<bool, 3> adapters{}, gated_adapters{};  // of either kind with the adapters of the rows in their sums
    std::array<bool, 3> fragments{};                   // all four with many rows of x in fragments

    std::array<bool, 3> warpgroup{};  // products of many rows by warpgroups; only with coopmat
    std::array<bool, 3> stacked{};    // the same with the adapters of the rows as more k; only with warpgroup
    std::array<bool, 3> direct{};     // the same with w straight in registers, of few rows; only with warpgroup
    // the same of the output layer, whose rows' greatest logits they say; only with warpgroup
    std::array<bool, 3> argmax{};

    std::array<bool, 3> residual{};  // products that end in the residual stream, and those behind them; with both kinds

    std::array<bool, 3> packed{};  // products that read packed weights; only with coopmat

    // Products without matrices: blocks of y in registers, and short sums in f16 (matmul_registers.comp). Only where
    // f16 has no matrices; the second only with the first.
    bool registers = false, short_sums = false;

    std::array<bool, 4> attention_tile{};  // attention of neighbouring rows, by TileAttention
    // attention of single rows, the query heads of a KV head together, with functions of NV matrices 2
    bool attention_group = false;
    bool attention_from_qkv = false;  // the same from the sums of the product before; only with attention_group

    bool delta_blocks = false;  // recurrences take rows of prompts in blocks; on every path

    bool has(ScalarType type) const { return coopmat[static_cast<uint32_t>(type)]; }
    bool has2(ScalarType type) const { return coopmat2[static_cast<uint32_t>(type)]; }
    bool has_shrink(ScalarType type) const { return shrink[static_cast<uint32_t>(type)]; }
    bool has_gated_act(ScalarType type) const { return has(type) && gated_act[static_cast<uint32_t>(type)]; }
    bool has_adapters(ScalarType type) const { return has(type) && adapters[static_cast<uint32_t>(type)]; }
    bool has_gated_adapters(ScalarType type) const {
        return has_gated(type) && gated_adapters[static_cast<uint32_t>(type)];
    }
    bool has_fragments(ScalarType type) const { return has(type) && fragments[static_cast<uint32_t>(type)]; }
    bool has_gated(ScalarType type) const { return has(type) && gated[static_cast<uint32_t>(type)]; }
    bool has_warpgroup(ScalarType type) const { return has(type) && warpgroup[static_cast<uint32_t>(type)]; }
    bool has_stacked(ScalarType type) const { return has_warpgroup(type) && stacked[static_cast<uint32_t>(type)]; }
    bool has_direct(ScalarType type) const { return has_warpgroup(type) && direct[static_cast<uint32_t>(type)]; }
    bool has_argmax(ScalarType type) const { return has_warpgroup(type) && argmax[static_cast<uint32_t>(type)]; }
    // of any type
    bool has_warpgroup() const { return has_warpgroup(ScalarType::kF16) || has_warpgroup(ScalarType::kBf16); }
    bool has_packed(ScalarType type) const { return has(type) && packed[static_cast<uint32_t>(type)]; }
    bool has_residual(ScalarType type) const { return has(type) && residual[static_cast<uint32_t>(type)]; }
    KernelPath path() const;  // the highest rung of any type
    bool operator==(const KernelLadder&) const = default;
};

// A way of computing a part of a step that is faster than the portable one, and what keeps a device from it.
struct Rung {
    std::string part;  // "products (f16 weights)"
    std::string name;  // "KHR cooperative matrices"
    std::string gain;  // what it is for, for people
    // features, modules, wishes; empty: the device has it, and a test at the start shows whether it works
    std::vector<std::string> missing;
};

// "warpgroup"
const char* path_name(KernelPath path);

// By capability and by what the shader compiler could build, no higher than `path`; kAuto takes
// warpgroups, else kCoopmat, for products, not kCoopmat2, which is slower; but for attention what that has, which
// kCoopmat leaves out. No rung needs a module of left_out.
// Runs nothing.
KernelLadder ladder_of(const DeviceCapabilities& capabilities, KernelPath path,
                       std::span<const std::string> left_out = {});
// All rungs, in the order of the parts of a step.
std::vector<Rung> rungs_of(const DeviceCapabilities& capabilities, KernelPath path,
                           std::span<const std::string> left_out = {});

}  // namespace lorad::gpu
