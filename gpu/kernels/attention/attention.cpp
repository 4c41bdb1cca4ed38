#include <algorithm>
#include <bit>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

// Query heads that one workgroup takes: a divisor of the group, small enough for the registers.
uint32_t heads_per_workgroup(uint32_t group) {
    for (uint32_t heads = std::min(group, 8u); heads > 1; --heads) {
        if (group % heads == 0) return heads;
    }
    return 1;
}

// A split costs a second dispatch, so each one should have a good stretch of tokens.
constexpr uint32_t kTokensPerSplit = 128;
constexpr uint32_t kAttendedDimMax = 512;    // of attention.comp,
constexpr uint32_t kMatrixHeadDimMax = 256;  // and of the kernels on matrices
constexpr uint32_t kMatrixSubgroup = 32;     // of the kernels on matrices
constexpr uint32_t kTileTokensPerSplit = 512;
constexpr uint32_t kTileSplitsMax = 16;
// Rows times splits of a step with tiles: 15 MB of partial results in a model of 28 heads of 128.
constexpr uint32_t kTilePartialRows = 1024;
// Shared memory for the last sums, in 16 bytes, beside 8 KiB of weights and 2 of slots. More would save barriers, but
// fewer workgroups would fit a multiprocessor.
constexpr uint32_t kPoolVectorsWanted = 384;

// attention_combine: parts of a context that a thread loads at once, and its threads.
constexpr uint32_t kCombineInFlight = 4, kCombineFewThreads = 128, kCombineManyThreads = 512;
// attention_group: a subgroup takes 16 tokens of a block; rows of one dispatch, as devices need not have more
// workgroups in y.
constexpr uint32_t kGroupSubgroups = kBlockTokens / 16, kGroupThreads = kGroupSubgroups * kMatrixSubgroup;
constexpr uint32_t kGroupedRowsMax = 65535;

// attention_registers: tiles of 128 rows read keys and values half as often, but are half as many (behind long
// contexts, where splits fill the device, they may pay from 256 rows on: docs/PERFORMANCE.md); and their largest head.
constexpr uint32_t kWideTileRows = 128, kWideTileStepRows = 768;
constexpr uint32_t kRegistersHeadDimMax = 128;

// Its constants for tiles of `rows`: 16-row matrices of a subgroup, and those of a query that are held in registers.
struct RegistersTile {
    static constexpr uint32_t kSubgroups = 4, kStepTokens = 32;

    uint32_t head_dim, rows, row_matrices, held = 0;

    RegistersTile(uint32_t head_dim_, uint32_t rows_, uint32_t shared_memory_bytes)
        : head_dim(head_dim_), rows(rows_), row_matrices(rows_ / (16 * kSubgroups)) {
        // Two matrices of rows and results of large heads leave no registers for queries, but shared memory may not
        // hold all of them.
        if (row_matrices == 1 || head_dim <= 64) held = matrices();
        while (held < matrices() && !fits(shared_memory_bytes)) ++held;
    }
    uint32_t matrices() const { return head_dim / 16; }
    // Counts shared memory as attention_registers.comp lays it out, in 16-byte words.
    bool fits(uint32_t shared_memory_bytes) const {
        const uint32_t again = held < matrices() ? rows * ((matrices() - held) * 2 + 1) : 0;
        const uint32_t words =
            again + std::max(2 * kStepTokens * (head_dim / 8 + 1), held > 0 ? rows * (held * 2 + 1) : 0);
        return words * 16 <= shared_memory_bytes;
    }
};

// Returns true if attention_lanes serves, on software devices.
bool attends_by_lanes(const DeviceCapabilities& caps, const KernelSetOptions& options, const AttentionParams& params,
                      const AttentionShape& shape) {
    return has_software_lanes(caps) && shape.head_dim % 32 == 0 && shape.head_dim <= kMatrixHeadDimMax &&
           !shape.sinks && shape.n_splits == 1 && params.single_rows == 0 && options.kv_type == KvType::kF16 &&
           options.attention_heads == 0;
}

// Of attention.comp.
struct HeadsConstants {
    uint32_t threads, act_type, head_dim, group, kv_heads, groups_per_kv, per_quad, split, pool_vectors, slots, ahead,
        listed, keys_f16, sinks;
};
struct HeadsFromSumsConstants {
    HeadsConstants heads;
    uint32_t sum_splits, has_bias, has_norm, rotary_dim;
};

// With few rows one head per workgroup fills the device better, although K and V come from the cache then. (Another
// pipeline, so not with batch_invariant: compilers may contract products and sums differently.)
bool has_few_workgroups(const DeviceCapabilities& caps, const KernelSetOptions& options, const AttentionShape& shape) {
    const uint32_t units = caps.small_workgroups ? 1 : multiprocessors(caps);
    return !options.batch_invariant && shape.rows * shape.n_kv_heads * shape.n_splits * 2 <= units;
}

// What of them goes by device and shape.
HeadsConstants heads_constants(const DeviceCapabilities& caps, const KernelSetOptions& options, uint32_t threads,
                               const AttentionShape& shape) {
    const uint32_t group = shape.n_q_heads / shape.n_kv_heads;
    const uint32_t heads = options.attention_heads != 0               ? options.attention_heads
                           : has_few_workgroups(caps, options, shape) ? 1
                                                                      : heads_per_workgroup(group);
    const uint32_t lanes = shape.head_dim / 4, size = std::max(threads, std::bit_ceil(lanes));
    const uint32_t one_head = size / lanes * lanes;
    return {.threads = size,
            .act_type = 0,
            .head_dim = shape.head_dim,
            .group = heads,
            .kv_heads = shape.n_kv_heads,
            .groups_per_kv = group / heads,
            .per_quad = shape.head_dim > 128 || has_few_registers(caps) ? 2u : 4u,
            .split = shape.n_splits > 1,
            .pool_vectors = std::max({heads * lanes, one_head, std::min(heads * one_head, kPoolVectorsWanted)}),
            .slots = ceil_div(size, std::max(caps.subgroup_size_min, 1u)),
            // Tokens whose keys, and whose values, a thread loads at once.
            .ahead = caps.small_workgroups     ? 2u
                     : heads == 1              ? 16u
                     : has_few_registers(caps) ? 4u
                                               : 8u,
            .listed = 0,
            .keys_f16 = shape.keys_f16,
            .sinks = shape.sinks};
}

// Of attention.comp with FROM_SUMS, as it lays it out.
uint32_t shared_bytes_from_sums(const HeadsConstants& c) {
    const uint32_t lanes = c.head_dim / 4, tile = c.threads / 4 * c.per_quad;
    return (c.pool_vectors + tile * ceil_div(c.group, 4u) + (c.group + 2) * lanes + 2 * lanes) * 16 +
           c.group * c.slots * 4;
}

// Of attention_group.comp, from products' sums; the same from q and a cache, whose keys may be f16 where the rest is
// int8.
struct FromQkvConstants {
    uint32_t threads, act_type, head_dim, group, kv_heads, split, listed, sum_splits, has_bias, has_norm, rotary_dim,
        y_in_fragments;
};
struct GroupConstants {
    FromQkvConstants both;
    uint32_t keys_f16;
};

// Of each kernel of tiles, and what one of them has beside.
struct TileConstants {
    uint32_t threads, act_type, head_dim, group, kv_heads, split;
};
struct StagedTileConstants {
    TileConstants tile;
    uint32_t keys_f16;
};
struct RegistersTileConstants {
    TileConstants tile;
    uint32_t subgroups, row_matrices, held, step_tokens, window, softcap;
};

}  // namespace

uint32_t AttentionPlanner::plan_attention_splits(uint32_t rows, uint32_t n_kv_heads, uint32_t max_context) const {
    const DeviceCapabilities& caps = capabilities();
    if (options().batch_invariant || caps.small_workgroups || rows == 0) return 1;
    uint32_t units = multiprocessors(caps);
    // Rounded down: a second round of workgroups costs more than the first one's idle places.
    uint32_t to_fill = units * 2 / (rows * n_kv_heads);
    return std::clamp(std::min(to_fill, max_context / kTokensPerSplit), 1u, kAttentionSplitsMax);
}

uint32_t AttentionPlanner::plan_tile_splits(uint32_t n_tiles, uint32_t n_q_heads, uint32_t max_context) const {
    const DeviceCapabilities& caps = capabilities();
    if (options().batch_invariant || caps.small_workgroups || n_tiles == 0) return 1;
    const uint32_t units = multiprocessors(caps);
    const uint32_t to_fill = units * 2 / (n_tiles * n_q_heads);
    return std::max(std::min({to_fill, kTileSplitsMax, max_context / kTileTokensPerSplit}), 1u);
}

uint32_t AttentionPlanner::attention_splits_max(uint32_t row_bucket, uint32_t n_kv_heads, uint32_t max_context) const {
    if (options().batch_invariant || capabilities().small_workgroups || row_bucket == 0) return 1;
    return std::max(plan_attention_splits(row_bucket, n_kv_heads, max_context),
                    std::min(kTilePartialRows / row_bucket, kTileSplitsMax));
}

uint64_t AttentionPlanner::attention_partial_bytes(const AttentionShape& shape) {
    if (shape.n_splits <= 1) return 0;
    return uint64_t{shape.rows} * shape.n_q_heads * shape.n_splits * (shape.head_dim + 4) * sizeof(float);
}

void AttentionKernels::attention(Recorder& recorder, const AttentionParams& params, const AttentionShape& shape,
                                 ScalarType act_type, uint32_t fragment_order) {
    CHECK(params.y_fragments == 0 || attends_in_fragments(shape, act_type));
    CHECK(shape.head_dim % 8 == 0 && shape.head_dim <= kAttendedDimMax && shape.sinks == (params.sinks != 0) &&
          shape.n_q_heads % shape.n_kv_heads == 0);
    const bool split = shape.n_splits > 1;
    if (groups_heads(shape)) {
        const Kernel* k =
            kernel(has_int8(options().kv_type) ? "attention_group_kv8" : "attention_group",
                   GroupConstants{.both = {.threads = kGroupThreads,
                                           .act_type = static_cast<uint32_t>(act_type),
                                           .head_dim = shape.head_dim,
                                           .group = shape.n_q_heads / shape.n_kv_heads,
                                           .kv_heads = shape.n_kv_heads,
                                           .split = split,
                                           .listed = params.single_rows != 0,
                                           .sum_splits = 0,
                                           .has_bias = 0,
                                           .has_norm = 0,
                                           .rotary_dim = 0,
                                           .y_in_fragments = params.y_fragments != 0 ? 1 + fragment_order : 0},
                                  .keys_f16 = shape.keys_f16},
                   kMatrixSubgroup);
        if (k == nullptr) return;
        recorder.dispatch(*k, params, shape.n_kv_heads, shape.rows, shape.n_splits,
                          {"attention_group", 0, 0, shape.flops_most()});
    } else {
        attention_by_heads(recorder, params, shape, act_type);
    }
    if (!split || !shape.joined) return;
    recorder.barrier();
    attention_combine(recorder, params, shape, act_type);
}

void AttentionKernels::attention_by_heads(Recorder& recorder, const AttentionParams& params,
                                          const AttentionShape& shape, ScalarType act_type) {
    const uint32_t group = shape.n_q_heads / shape.n_kv_heads;
    const DeviceCapabilities& caps = capabilities();
    if (attends_by_lanes(caps, options(), params, shape)) {
        const uint32_t taken = heads_per_workgroup(group);
        struct Constants {
            uint32_t threads, act_type, head_dim, group, kv_heads, groups_per_kv;
        };
        const Kernel* k = kernel("attention_lanes",
                                 Constants{.threads = kSoftwareLanes,
                                           .act_type = static_cast<uint32_t>(act_type),
                                           .head_dim = shape.head_dim,
                                           .group = taken,
                                           .kv_heads = shape.n_kv_heads,
                                           .groups_per_kv = group / taken},
                                 kSoftwareLanes);
        if (k == nullptr) return;
        recorder.dispatch(*k, params, shape.rows, shape.n_q_heads / taken, 1,
                          {"attention_lanes", 0, 0, shape.flops_most()});
        return;
    }
    HeadsConstants constants = heads_constants(caps, options(), threads(256, 32), shape);
    constants.act_type = static_cast<uint32_t>(act_type);
    constants.listed = params.single_rows != 0;
    const Kernel* k = kernel(has_int8(options().kv_type)         ? "attention_kv8"
                             : options().kv_type == KvType::kF32 ? "attention_kv32"
                                                                 : "attention",
                             constants);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, shape.rows, shape.n_q_heads / constants.group, shape.n_splits,
                      {"attention", 0, 0, shape.flops_most()});
}

bool AttentionPlanner::attends_in_fragments(const AttentionShape& shape, ScalarType act_type) const {
    return groups_heads(shape) && shape.n_splits == 1 && act_type != ScalarType::kF32;
}

bool AttentionPlanner::groups_heads(const AttentionShape& shape) const {
    const uint32_t group = shape.n_q_heads / shape.n_kv_heads;
    // Each subgroup's keys and values, queries, the subgroups' maxima and sums, and the row's own key and value: see
    // attention_group.comp.
    const uint32_t heads = round_up(group, 8), kv_stride = shape.head_dim / 8 + 1;
    const uint32_t words =
        2 * kBlockTokens * kv_stride + heads * kv_stride + 2 * kGroupSubgroups * heads * 4 + 2 * (shape.head_dim / 8);
    return ladder().has(RungId::kAttentionGroup) && !options().batch_invariant && options().attention_heads == 0 &&
           group >= 2 && group <= kGroupedHeadsMax && shape.rows <= kGroupedRowsMax && shape.head_dim % 16 == 0 &&
           shape.head_dim <= kMatrixHeadDimMax && !shape.sinks && options().kv_type != KvType::kF32 &&
           words * 16 <= capabilities().shared_memory_bytes;
}

bool AttentionPlanner::attends_from_qkv(const QkvShape& qkv, const AttentionShape& shape) const {
    if (options().kv_type != KvType::kF16 || qkv.base.lora != LoraLevel::kNone || qkv.rotary_dim == 0 ||
        qkv.pair_stride != 0 || qkv.v_norm || qkv.k_is_v || qkv.position_beta != 0.0f)
        return false;
    if (!groups_heads(shape)) return heads_attend_from_sums(shape);
    const uint32_t words = shape.head_dim / 8;  // a head's, whose threads talk to each other as part of a subgroup
    return ladder().has(RungId::kAttentionFromQkv) && std::has_single_bit(words) && words <= kMatrixSubgroup &&
           qkv.rotary_dim % 16 == 0;
}

// With attention.comp: of many rows attention behind qkv_post is faster (64 rows of 7B in 6.2 ms, not 6.8). Software
// devices with subgroups of attention_lanes have that, unless a test chooses the heads of a workgroup.
bool AttentionPlanner::heads_attend_from_sums(const AttentionShape& shape) const {
    const DeviceCapabilities& caps = capabilities();
    return !options().batch_invariant && !shape.sinks &&
           (caps.small_workgroups || has_few_workgroups(caps, options(), shape)) &&
           (!has_software_lanes(caps) || options().attention_heads != 0) && shape.head_dim % 8 == 0 &&
           shape.head_dim <= kAttendedDimMax &&
           shared_bytes_from_sums(heads_constants(caps, options(), threads(256, 32), shape)) <=
               caps.shared_memory_bytes;
}

void AttentionKernels::attention_from_qkv(Recorder& recorder, const AttentionFromQkvParams& params, const QkvShape& qkv,
                                          const AttentionShape& shape, ScalarType act_type,
                                          std::optional<uint32_t> y_order) {
    CHECK(attends_from_qkv(qkv, shape) && (groups_heads(shape) || !y_order) && qkv.base.whole_rows == 0 &&
          (params.q_gamma != 0) == (params.k_gamma != 0));
    const bool split = shape.n_splits > 1;
    CHECK(!y_order || (!split && act_type != ScalarType::kF32));
    if (groups_heads(shape))
        group_attention_from_qkv(recorder, params, qkv, shape, act_type, y_order);
    else
        heads_attention_from_sums(recorder, params, qkv, shape, act_type);
    if (!split || !shape.joined) return;
    recorder.barrier();
    AttentionParams joined{};
    joined.step = params.step;
    joined.y = params.y;
    joined.partials = params.partials;
    joined.y_stride = params.y_stride;
    attention_combine(recorder, joined, shape, act_type);
}

void AttentionKernels::group_attention_from_qkv(Recorder& recorder, const AttentionFromQkvParams& params,
                                                const QkvShape& qkv, const AttentionShape& shape, ScalarType act_type,
                                                std::optional<uint32_t> y_order) {
    const Kernel* k = kernel("attention_from_qkv",
                             FromQkvConstants{.threads = kGroupThreads,
                                              .act_type = static_cast<uint32_t>(act_type),
                                              .head_dim = shape.head_dim,
                                              .group = shape.n_q_heads / shape.n_kv_heads,
                                              .kv_heads = shape.n_kv_heads,
                                              .split = shape.n_splits > 1,
                                              .listed = 0,
                                              .sum_splits = qkv.base.n_splits,
                                              .has_bias = params.bias != 0,
                                              .has_norm = params.q_gamma != 0,
                                              .rotary_dim = qkv.rotary_dim,
                                              .y_in_fragments = y_order ? 1 + *y_order : 0},
                             kMatrixSubgroup);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, shape.n_kv_heads, shape.rows, shape.n_splits,
                      {"attention_from_qkv", 0, 0, shape.flops_most()});
}

void AttentionKernels::heads_attention_from_sums(Recorder& recorder, const AttentionFromQkvParams& params,
                                                 const QkvShape& qkv, const AttentionShape& shape,
                                                 ScalarType act_type) {
    HeadsFromSumsConstants constants{
        .heads = heads_constants(capabilities(), options(), threads(256, 32), shape),
        .sum_splits = qkv.base.n_splits,
        .has_bias = params.bias != 0,
        .has_norm = params.q_gamma != 0,
        .rotary_dim = qkv.rotary_dim,
    };
    constants.heads.act_type = static_cast<uint32_t>(act_type);
    const Kernel* k = kernel("attention_from_sums", constants);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, shape.rows, shape.n_q_heads / constants.heads.group, shape.n_splits,
                      {"attention_from_sums", 0, 0, shape.flops_most()});
}

void AttentionKernels::attention_combine(Recorder& recorder, AttentionParams params, const AttentionShape& shape,
                                         ScalarType act_type) {
    CHECK(shape.n_splits <= kAttentionSplitsMax);
    const uint32_t lanes = std::bit_ceil(shape.head_dim / 4);
    const bool few = lanes * ceil_div(shape.n_splits, kCombineInFlight) <= kCombineFewThreads;
    const uint32_t size = std::max(threads(few ? kCombineFewThreads : kCombineManyThreads, 32), lanes);
    struct Constants {
        uint32_t threads, act_type, head_dim, in_flight;
    };
    const Kernel* k = kernel("attention_combine", Constants{.threads = size,
                                                            .act_type = static_cast<uint32_t>(act_type),
                                                            .head_dim = shape.head_dim,
                                                            .in_flight = kCombineInFlight});
    if (k == nullptr) return;
    params.n_splits = shape.n_splits;
    recorder.dispatch(*k, params, shape.rows, shape.n_q_heads, 1,
                      {"attention_combine", attention_partial_bytes(shape), 0});
}

TileAttention AttentionPlanner::tile_attention(uint32_t head_dim) const {
    if (options().batch_invariant || head_dim % 16 != 0 || head_dim > kMatrixHeadDimMax ||
        options().kv_type == KvType::kF32)
        return TileAttention::kAuto;
    const auto works = [&](TileAttention kind) {
        if (options().tile_attention != TileAttention::kAuto && options().tile_attention != kind) return false;
        if (!ladder().has(tile_rung(kind))) return false;
        if (kind == TileAttention::kWorkgroup) return head_dim % kBlockTokens == 0 && options().kv_type == KvType::kF16;
        if (kind == TileAttention::kRegisters) {
            const uint32_t shared_bytes = capabilities().shared_memory_bytes;
            const auto fits = [&](uint32_t rows) {
                return RegistersTile(head_dim, rows, shared_bytes).fits(shared_bytes);
            };
            return head_dim <= kRegistersHeadDimMax && options().kv_type == KvType::kF16 && fits(kAttentionTileRows) &&
                   fits(kWideTileRows);
        }
        // K or V of a block, and a tile's scores, in 16-byte words; rows are padded: see attention_tile.comp.
        const uint32_t shared_words =
            kBlockTokens * (head_dim / 8 + 1) + kAttentionTileRows * std::max(kBlockTokens / 4 + 2, head_dim / 8 + 1);
        return shared_words * 16 <= capabilities().shared_memory_bytes;
    };
    for (const TileAttention kind : {TileAttention::kRegisters, TileAttention::kWorkgroup, TileAttention::kStaged}) {
        if (works(kind)) return kind;
    }
    return TileAttention::kAuto;
}

const char* tile_attention_module(TileAttention kind, KvType kv_type) {
    if (kind == TileAttention::kRegisters) return "attention_registers";
    if (kind == TileAttention::kWorkgroup) return "attention_coopmat2";
    return has_int8(kv_type) ? "attention_tile_kv8" : "attention_tile";
}

uint32_t AttentionPlanner::attention_tile_rows(uint32_t head_dim, uint32_t rows) const {
    if (tile_attention(head_dim) != TileAttention::kRegisters) return kAttentionTileRows;
    if (options().attention_tile_rows != 0) return options().attention_tile_rows;
    return rows < kWideTileStepRows ? kAttentionTileRows : kWideTileRows;
}

void AttentionKernels::attention_tiles(Recorder& recorder, const AttentionParams& params, const AttentionShape& shape,
                                       ScalarType act_type, const Buffer& step_state, uint64_t grid_offset) {
    const TileAttention kind = tile_attention(shape.head_dim);
    CHECK(kind != TileAttention::kAuto);
    const char* module = tile_attention_module(kind, options().kv_type);
    TileConstants constants{.threads = kAttentionTileRows / 16 * kMatrixSubgroup,
                            .act_type = static_cast<uint32_t>(act_type),
                            .head_dim = shape.head_dim,
                            .group = shape.n_q_heads / shape.n_kv_heads,
                            .kv_heads = shape.n_kv_heads,
                            .split = shape.n_splits > 1};
    const Kernel* k = nullptr;
    if (kind == TileAttention::kRegisters) {
        const RegistersTile tile(shape.head_dim, attention_tile_rows(shape.head_dim, shape.rows),
                                 capabilities().shared_memory_bytes);
        constants.threads = tile.kSubgroups * kMatrixSubgroup;
        k = kernel(module,
                   RegistersTileConstants{.tile = constants,
                                          .subgroups = tile.kSubgroups,
                                          .row_matrices = tile.row_matrices,
                                          .held = tile.held,
                                          .step_tokens = tile.kStepTokens,
                                          .window = params.window != 0,
                                          .softcap = params.softcap != 0},
                   kMatrixSubgroup);
    } else if (kind == TileAttention::kStaged) {
        k = kernel(module, StagedTileConstants{.tile = constants, .keys_f16 = shape.keys_f16}, kMatrixSubgroup);
    } else {
        k = kernel(module, constants, kMatrixSubgroup);
    }
    if (k == nullptr) return;
    recorder.dispatch_indirect(*k, params, step_state, grid_offset, {module, 0, 0, shape.flops_most()});
}

}  // namespace lorad::gpu
