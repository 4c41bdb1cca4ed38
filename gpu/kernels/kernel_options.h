// The options of a set of kernels: the path up the ladder, rules for recordings, and choices that benchmarks and tests
// compare.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/kernels/attention/kv_format.h"
#include "gpu/kernels/mixers/mixer_shapes.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

// no row tile is larger; behind every activation and matmul result buffer
inline constexpr uint32_t kSlackRows = 192;
inline constexpr uint32_t kAttentionSplitsMax = 128;
inline constexpr uint32_t kGroupedHeadsMax = 16;  // query heads of a KV head that attention on matrices takes together
inline constexpr uint32_t kWeightAlign = 64;      // of n_padded and k_stride, elements

constexpr uint32_t padded(uint32_t elements) { return round_up(elements, kWeightAlign); }

// kAuto takes the best that the device offers. The others never silently fall back. kPortableF32 is kPortable without
// products whose sums are partly in f16: what it computes is compared with references in f32.
enum class KernelPath { kAuto, kPortableF32, kPortable, kCoopmat, kCoopmat2, kWarpgroup };

// Runs the layers of a one-row step in one dispatch; kAuto: where that is known to pay.
enum class PersistentDecode : uint32_t { kAuto, kOff, kOn };

// How attention of tiles of rows is computed: on KHR matrices with scores through shared memory, on NV matrices 2 of a
// whole workgroup, or on KHR matrices whose elements are where NVIDIA's devices have them, with scores in registers.
enum class TileAttention : uint32_t { kAuto, kStaged, kWorkgroup, kRegisters };

// Lets gate_up compute the activation itself; kAuto: where that is faster.
enum class GatedProducts : uint32_t { kAuto, kNever, kAlways };

struct KernelSetOptions {
    KernelPath path = KernelPath::kAuto;
    bool batch_invariant = false;  // one matmul variant, one attention and one shrink variant for all row counts
    bool has_experts = false;      // the model: experts' products are tested at the start
    // of the caches that qkv_post writes and attention reads; kInt8Values: some layers' are that, the others' kInt8
    KvType kv_type = KvType::kF16;
    PersistentDecode decode = PersistentDecode::kAuto;
    uint32_t decode_workgroups = 0;  // of that dispatch, all at work at once; 0: one for each multiprocessor
    // modules whose kernels are not used, where there are others: the driver does not make them
    std::vector<std::string> left_out = {};
    // The following are choices that benchmarks and tests compare.
    // shrink, and gated_act with adapters, by cooperative matrices where that is possible and rows are many
    bool lora_on_matrices = true;
    GatedProducts gated = GatedProducts::kAuto;  // kAlways: wherever it is possible
    TileAttention tile_attention = TileAttention::kAuto;
    uint32_t attention_tile_rows = 0;  // of TileAttention::kRegisters: 64 or 128; 0: what is best for the step
    // query heads of a workgroup of attention, a divisor of the group, and none on matrices; 0: what is best for the
    // step
    uint32_t attention_heads = 0;
    // rows of gated_act side by side in a workgroup where rows are many: 1, 2, 4, 8 or 16
    uint32_t expand_rows = 8;
    // for tests: modules that are not made any more behind the tests at the start, as if the driver refused them
    std::vector<std::string> refused = {};
    // The tests at the start run the kernels of attention with these: the model's head sizes, and query heads of a KV
    // head.
    std::vector<uint32_t> head_dims = {64, 128};
    uint32_t head_group = 2;
    // The tests at the start run products of these packed weights: 1 << number_of(format) for each of the model's.
    uint32_t packed_formats = 0;
    // With which blocks of delta_step are tested at the start: each of the model's.
    std::vector<DeltaShape> delta_shapes = {};
    std::vector<MambaShape> mamba_shapes = {};
    bool spoil_delta_blocks = false;  // for tests: that test gives blocks another number than it gives single rows

    // The group that tests at the start take: one that attention on matrices can take.
    uint32_t tested_group() const { return std::clamp(head_group, 2u, kGroupedHeadsMax); }
};

}  // namespace lorad::gpu
