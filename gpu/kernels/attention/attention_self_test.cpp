// At start-up: attention by tiles and by groups of heads against attention row by row and head by head. What is wrong
// is left out.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/ladder_tests.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/self_test.h"

namespace lorad::gpu {

using namespace self_test;

namespace {

// Weights are rounded to f16, and what an 8-bit cache holds.
constexpr double kAttentionTolerance = 2e-3;

// One run of rows of a sequence that is longer: some blocks are seen by all rows of a tile, some by a few.
struct AttentionTest {
    static constexpr uint32_t kRows = 140, kFirstPosition = 100, kBlocks = 4, kTokens = kBlocks * kBlockTokens;
    static_assert(kFirstPosition + kRows <= kTokens);
    // Of q . k: so that many tokens count; and so that few do, and maxima grow along the context.
    static constexpr float kFlat = 0.02f, kSteep = 1.0f;
    static constexpr uint32_t kSplits = 2, kManyRows = 2048;

    uint32_t head_dim = 0, n_heads = 0, stride = 0;  // heads: of one KV head
    KvType kv_type = KvType::kF16;
    std::vector<float> scales;             // of scores
    std::vector<std::vector<float>> want;  // for each of them
    Buffer step, tables, tiles, q, kv, partials, y;

    static Result<AttentionTest> create(Device& device, KvType kv_type, uint32_t head_dim, uint32_t n_heads) {
        AttentionTest test;
        test.head_dim = head_dim;
        test.kv_type = kv_type;
        test.n_heads = n_heads;
        test.stride = n_heads * head_dim;
        test.scales = {kFlat};
        // What rounding the values of an 8-bit cache to f16 does to steep scores is no fault.
        if (kv_type == KvType::kF16) test.scales.push_back(kSteep);
        TRY(make(device, test.step, sizeof(StepHeader) + kRows * sizeof(StepRow), MemoryKind::kHostUpload));
        TRY(make(device, test.tables, kBlocks * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.tiles, (kRows / kAttentionTileRows + 1) * sizeof(AttentionTile),
                 MemoryKind::kHostUpload));
        TRY(make(device, test.q, uint64_t{kRows + kSlackRows} * test.stride * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.partials,
                 AttentionPlanner::attention_partial_bytes({kRows, n_heads, 1, head_dim, kSplits}),
                 MemoryKind::kDeviceLocal));
        TRY(make(device, test.kv, uint64_t{kTokens} * kv_token_bytes(kv_type, head_dim), MemoryKind::kHostUpload));
        TRY(make(device, test.y, uint64_t{kRows} * test.stride * 4, MemoryKind::kHostReadback));
        constexpr uint32_t kTable[kBlocks] = {1, 3, 0, 2};
        for (uint32_t i = 0; i < kRows; ++i) {
            StepRow row{};
            row.position = kFirstPosition + i;
            row.set_blocks(0, kTable, kBlocks);
            std::memcpy(test.step.mapped().data() + sizeof(StepHeader) + i * sizeof(row), &row, sizeof(row));
        }
        std::memcpy(test.tables.mapped().data(), kTable, sizeof(kTable));
        std::mt19937 random(22);
        fill_random(test.q.mapped(), ScalarType::kF32, random);
        test.cut_queries();
        fill_random(test.kv.mapped(), ScalarType::kF16, random);
        if (has_int8(kv_type)) test.set_scales(random);
        return test;
    }

    // Kernels round queries to f16: to what f16 holds already, so that scores differ by the order of sums alone.
    void cut_queries() {
        constexpr uint32_t kBitsBeyondF16 = (1u << 13) - 1;
        for (size_t at = 0; at < q.size(); at += 4) {
            uint32_t word = 0;
            std::memcpy(&word, q.mapped().data() + at, 4);
            word &= ~kBitsBeyondF16;
            std::memcpy(q.mapped().data() + at, &word, 4);
        }
    }

    // Any bytes are values of an 8-bit cache; the scales behind them have to be numbers, here of 1 to 2.
    void set_scales(std::mt19937& random) {
        const uint32_t key_bytes = kBlockTokens * kv_key_bytes(kv_type, head_dim),
                       value_bytes = kBlockTokens * kv_value_bytes(kv_type, head_dim);
        for (uint32_t block = 0; block < kv.size(); block += key_bytes + value_bytes) {
            if (kv_type == KvType::kInt8) set_plane_scales(block, key_bytes, random);
            set_plane_scales(block + key_bytes, value_bytes, random);
        }
    }
    void set_plane_scales(uint32_t begin, uint32_t n_bytes, std::mt19937& random) {
        for (uint32_t at = begin + kBlockTokens * head_dim; at < begin + n_bytes; at += 2) {
            const auto half = static_cast<uint16_t>(0x3c00u | (random() & 0x3ffu));
            std::memcpy(kv.mapped().data() + at, &half, sizeof(half));
        }
    }

    // By tiles as in a step of up to `rows`.
    Result<std::vector<float>> run(Device& device, KernelSet& kernels, float scale, bool by_tile, uint32_t n_splits,
                                   uint32_t rows) {
        std::memset(y.mapped().data(), 0xff, y.size());
        std::vector<AttentionTile> list;
        const uint32_t tile_rows = kernels.attention.attention_tile_rows(head_dim, rows);
        for (uint32_t begin = 0; begin < kRows; begin += tile_rows)
            list.push_back({begin, std::min(kRows - begin, tile_rows)});
        std::memcpy(tiles.mapped().data(), list.data(), list.size() * sizeof(AttentionTile));
        StepHeader header{};
        header.n_rows = kRows;
        header.tile_grid[0] = n_heads;
        header.tile_grid[1] = static_cast<uint32_t>(list.size());
        header.tile_grid[2] = n_splits;
        std::memcpy(step.mapped().data(), &header, sizeof(header));
        AttentionParams params{};
        params.step = step.address();
        params.block_tables = tables.address();
        params.q = q.address();
        params.kv = kv.address();
        params.y = y.address();
        params.tiles = tiles.address();
        params.q_stride = params.y_stride = stride;
        params.scale = scale;
        params.partials = partials.address();
        const AttentionShape shape{.rows = kRows,
                                   .n_q_heads = n_heads,
                                   .n_kv_heads = 1,
                                   .head_dim = head_dim,
                                   .n_splits = n_splits,
                                   .keys_f16 = kv_type == KvType::kInt8Values};
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        if (by_tile) {
            AttentionShape as_of = shape;
            as_of.rows = rows;
            kernels.attention.attention_tiles(recorder, params, as_of, ScalarType::kF32, step,
                                              offsetof(StepHeader, tile_grid));
            recorder.barrier();
            if (n_splits > 1) kernels.attention.attention_combine(recorder, params, shape, ScalarType::kF32);
        } else {
            kernels.attention.attention(recorder, params, shape, ScalarType::kF32);
        }
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        const auto* values = reinterpret_cast<const float*>(y.mapped().data());
        return std::vector<float>(values, values + size_t{kRows} * stride);
    }

    // What all is compared with: row by row and, as long as the ladder has no groups, head by head.
    Status refer_to_rows(Device& device, KernelSet& kernels) {
        for (const float scale : scales) {
            TRY_ASSIGN(std::vector<float> result, run(device, kernels, scale, false, 1, kRows));
            want.push_back(std::move(result));
        }
        return ok_status();
    }

    // As a step of few rows would be computed, and one of many, without and with splits.
    Deviation deviation(Device& device, KernelSet& kernels, bool by_tile) {
        Deviation sum;
        for (size_t i = 0; i < scales.size(); ++i) {
            const float scale = scales[i];
            sum.add(run(device, kernels, scale, by_tile, 1, kRows), want[i]);
            if (by_tile) sum.add(run(device, kernels, scale, by_tile, 1, kManyRows), want[i]);
            sum.add(run(device, kernels, scale, by_tile, kSplits, kManyRows), want[i]);
        }
        return sum;
    }
};

}  // namespace

// A kernel that is wrong with one size of heads is not used for any.
Status test_attention(LadderTests& tests, ScalarType type) {
    Device& device = tests.device();
    KernelSet& kernels = tests.kernels();
    KernelLadder& ladder = tests.ladder();
    if (!ladder.has(ScalarType::kF16)) {
        for (const RungId rung :
             {RungId::kAttentionGroup, RungId::kTileStaged, RungId::kTileRegisters, RungId::kTileWorkgroup})
            ladder.drop(rung);
    }
    const bool is_offered = ladder.has(RungId::kAttentionGroup);
    ladder.drop(RungId::kAttentionGroup);
    std::vector<AttentionTest> sizes;
    for (const uint32_t head_dim : tests.options().head_dims) {
        if (head_dim % 8 != 0 || !(is_offered || kernels.attention.attends_by_tile(head_dim))) continue;
        for (const KvType kv_type : {KvType::kF16, KvType::kInt8, KvType::kInt8Values}) {
            const KvType of_model = tests.options().kv_type;
            if (has_int8(kv_type) != has_int8(of_model) || kv_type > of_model) continue;
            TRY_ASSIGN(AttentionTest test,
                       AttentionTest::create(device, kv_type, head_dim, tests.options().tested_group()));
            TRY(test.refer_to_rows(device, kernels));
            sizes.push_back(std::move(test));
        }
    }

    if (is_offered) ladder.add(RungId::kAttentionGroup);
    for (size_t i = 0; i < sizes.size() && ladder.has(RungId::kAttentionGroup); ++i) {
        const Deviation deviation = sizes[i].deviation(device, kernels, false);
        if (deviation.error <= kAttentionTolerance) continue;
        tests.leave_out(RungId::kAttentionGroup, type, "attention_group", deviation);
    }

    // The best kind of tiles first; once one is left out, the next best is tried with all sizes.
    for (size_t i = 0; i < sizes.size();) {
        const TileAttention kind = kernels.attention.tile_attention(sizes[i].head_dim);
        const Deviation deviation =
            kind == TileAttention::kAuto ? Deviation{} : sizes[i].deviation(device, kernels, true);
        if (deviation.error <= kAttentionTolerance) {
            ++i;
            continue;
        }
        i = 0;
        const char* module = tile_attention_module(kind, tests.options().kv_type);
        // Where matrices have their elements is every driver's own affair; NVIDIA's alone are known.
        if (kind == TileAttention::kRegisters && !device.capabilities().matrix_functions)
            tests.leave_out_quietly(tile_rung(kind), type, module, deviation);
        else
            tests.leave_out(tile_rung(kind), type, module, deviation);
    }
    return ok_status();
}

}  // namespace lorad::gpu
