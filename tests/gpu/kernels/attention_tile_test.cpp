#include <algorithm>

#include "tests/gpu/kernels/kernel_fixture.h"
#include "tests/gpu/kernels/kv8_planes.h"

namespace lorad::gpu::testing::attention_tile_test {
namespace {

struct RowRun {
    uint32_t first_position, n_rows;
};

struct TileCase {
    uint32_t head_dim, group, n_kv_heads;
    std::vector<RowRun> runs;  // each of a sequence of its own; of one row: not in a tile
    uint32_t window = 0;
    float softcap = 0;
    Type act = Type::kF16;
    KvType kv_type = KvType::kF16;
    uint32_t n_splits = 1;
};

struct Kind {
    TileAttention how;
    const char* name;
    uint32_t tile_rows = 0;  // KernelSetOptions::attention_tile_rows
};

// Runs of rows by attention_tiles, single rows by attention with a list, in one paged cache whose unused tokens are
// NaN.
class AttentionTiles : public KernelTest, public ::testing::WithParamInterface<Kind> {
  protected:
    void SetUp() override {
        KernelTest::SetUp();
        choose(KvType::kF16);
        if (kernels_->attention.tile_attention(64) != GetParam().how)
            GTEST_SKIP() << "not there: " << device().capabilities().name;
    }

    void choose(KvType kv_type) {
        kernels_ = must(KernelSet::create(device(), {.path = KernelPath::kAuto,
                                                     .kv_type = kv_type,
                                                     .tile_attention = GetParam().how,
                                                     .attention_tile_rows = GetParam().tile_rows}));
    }

    void check(const TileCase& c) {
        SCOPED_TRACE(::testing::Message() << "head dim " << c.head_dim << " group " << c.group << " kv heads "
                                          << c.n_kv_heads << " window " << c.window << " splits " << c.n_splits);
        if (kernels_->options().kv_type != c.kv_type) choose(c.kv_type);
        if (!kernels_->attention.attends_by_tile(c.head_dim)) return;
        const uint32_t n_q_heads = c.group * c.n_kv_heads, width = n_q_heads * c.head_dim, stride = padded(width) + 64;
        const size_t plane = size_t{kBlockTokens} * c.head_dim;
        const uint32_t tile_rows = kernels_->attention.attention_tile_rows(c.head_dim, 0);
        uint32_t n_blocks = 1;
        for (const RowRun& run : c.runs) n_blocks += (run.first_position + run.n_rows - 1) / kBlockTokens + 1;
        std::vector<uint32_t> order(n_blocks);
        for (uint32_t i = 0; i < n_blocks; i++) order[i] = i;
        std::shuffle(order.begin(), order.end(), random_);
        std::vector<uint16_t> halves(n_blocks * 2 * c.n_kv_heads * plane, 0xffff);
        Kv8Planes eights(size_t{n_blocks} * 2 * c.n_kv_heads, c.head_dim);
        std::vector<StepRow> rows;
        std::vector<uint32_t> tables, single_rows, run_of;
        std::vector<AttentionTile> tiles;
        std::vector<std::vector<float>> keys, values;  // [run][kv_head][token][head_dim]
        for (const RowRun& run : c.runs) {
            const uint32_t n_tokens = run.first_position + run.n_rows;
            const size_t n = size_t{c.n_kv_heads} * n_tokens * c.head_dim;
            keys.push_back(reference::random_values(n, Type::kF16, random_, 2.0f));
            values.push_back(reference::random_values(n, Type::kF16, random_, 2.0f));
            const auto table = static_cast<uint32_t>(tables.size());
            for (uint32_t b = 0; b * kBlockTokens < n_tokens; b++) {
                tables.push_back(order.back());
                order.pop_back();
            }
            for (uint32_t line = 0; has_int8(c.kv_type) && line < c.n_kv_heads * n_tokens; line++) {
                const uint32_t head = line / n_tokens, token = line % n_tokens;
                const size_t key_plane = size_t{tables[table + token / kBlockTokens]} * 2 * c.n_kv_heads + head;
                if (c.kv_type == KvType::kInt8)
                    eights.store(key_plane, token % kBlockTokens,
                                 std::span(keys.back()).subspan(line * c.head_dim, c.head_dim));
                eights.store(key_plane + c.n_kv_heads, token % kBlockTokens,
                             std::span(values.back()).subspan(line * c.head_dim, c.head_dim));
            }
            for (size_t i = 0; i < n; i++) {
                const size_t head = i / c.head_dim / n_tokens, token = i / c.head_dim % n_tokens;
                const size_t block = tables[table + token / kBlockTokens];
                const size_t at =
                    (block * 2 * c.n_kv_heads + head) * plane + token % kBlockTokens * c.head_dim + i % c.head_dim;
                halves[at] = reference::to_f16(keys.back()[i]);
                halves[at + c.n_kv_heads * plane] = reference::to_f16(values.back()[i]);
            }
            for (uint32_t i = 0; i < run.n_rows; i++) {
                const auto t = static_cast<uint32_t>(rows.size());
                if (run.n_rows == 1)
                    single_rows.push_back(t);
                else if (i % tile_rows == 0)
                    tiles.push_back({t, std::min(run.n_rows - i, tile_rows)});
                StepRow row{};
                row.position = run.first_position + i;
                row.set_blocks(table, &tables[table], static_cast<uint32_t>(tables.size()) - table);
                rows.push_back(row);
                run_of.push_back(static_cast<uint32_t>(keys.size()) - 1);
            }
        }
        const auto n_rows = static_cast<uint32_t>(rows.size()), n_singles = static_cast<uint32_t>(single_rows.size());
        StepHeader header{};
        header.n_rows = n_rows;
        header.n_single_rows = n_singles;
        header.tile_grid[0] = n_q_heads;
        header.tile_grid[1] = static_cast<uint32_t>(tiles.size());
        header.tile_grid[2] = c.n_splits;
        std::vector<std::byte> bytes(sizeof(header) + rows.size() * sizeof(StepRow));
        std::memcpy(bytes.data(), &header, sizeof(header));
        std::memcpy(bytes.data() + sizeof(header), rows.data(), rows.size() * sizeof(StepRow));
        single_rows.resize(n_singles + 3, 0xffffffffu);  // capacity beyond the count
        auto q = reference::random_values(size_t{n_rows} * width, Type::kF32, random_);
        q.resize(size_t{n_rows + kSlackRows} * width, NAN);
        Buffer step = input(bytes), table_buffer = input(tables), tile_buffer = input(tiles),
               single_buffer = input(single_rows);
        Buffer q_buffer = input(reference::encode(q, width, width, Type::kF32));
        Buffer kv = c.kv_type == KvType::kF16    ? input(halves)
                    : c.kv_type == KvType::kInt8 ? input(eights.bytes)
                                                 : input(mixed_planes(halves, eights, c.n_kv_heads));
        Buffer y = poisoned(uint64_t{n_rows + 1} * stride * 4);
        const AttentionShape shape{
            n_rows, n_q_heads, c.n_kv_heads, c.head_dim, c.n_splits, true, c.kv_type == KvType::kInt8Values};
        Buffer partials = poisoned(AttentionPlanner::attention_partial_bytes(shape) + 16);
        const float scale = 2.0f / std::sqrt(static_cast<float>(c.head_dim));
        const AttentionParams params{step.address(),
                                     table_buffer.address(),
                                     q_buffer.address(),
                                     kv.address(),
                                     y.address(),
                                     partials.address(),
                                     tile_buffer.address(),
                                     single_buffer.address(),
                                     width,
                                     stride,
                                     c.window,
                                     scale,
                                     c.softcap,
                                     0};
        execute([&](Recorder& recorder) {
            kernels_->attention.attention_tiles(recorder, params, shape, scalar(c.act), step,
                                                offsetof(StepHeader, tile_grid));
            AttentionShape listed = shape;
            listed.rows = n_singles + 3;
            listed.joined = false;
            kernels_->attention.attention(recorder, params, listed, scalar(c.act));
            if (c.n_splits == 1) return;
            recorder.barrier();
            kernels_->attention.attention_combine(recorder, params, shape, scalar(c.act));
        });
        const auto got = content(y, size_t{n_rows + 1} * stride, c.act);
        for (uint32_t t = 0; t < n_rows; t++) {
            const bool in_tile = c.runs[run_of[t]].n_rows > 1;
            std::vector<float> query(&q[size_t{t} * width], &q[size_t{t} * width] + width);
            if (in_tile) {
                for (float& value : query) value = reference::from_f16(reference::to_f16(value));
            }
            const uint32_t n_tokens = c.runs[run_of[t]].first_position + c.runs[run_of[t]].n_rows;
            const size_t seen = size_t{rows[t].position + 1} * c.head_dim;
            for (uint32_t h = 0; h < n_q_heads; h++) {
                const size_t from = size_t{h / c.group} * n_tokens * c.head_dim;
                const auto want =
                    reference::attention({&query[h * c.head_dim], c.head_dim}, {&keys[run_of[t]][from], seen},
                                         {&values[run_of[t]][from], seen}, {scale, c.window, c.softcap});
                // Weights are rounded to f16; values are up to 2. What comes from eight bits is rounded to f16 as well:
                // keys, and with them scores by up to about 2^-11 of their size of about 4, and values.
                double rounding = in_tile ? unit_roundoff(Type::kF16) : 0;
                if (in_tile && has_int8(c.kv_type)) rounding *= 6;
                expect_near(want, &got[size_t{t} * stride + h * c.head_dim], unit_roundoff(c.act) + rounding + 4e-6,
                            2.0, "row " + std::to_string(t) + " head " + std::to_string(h));
            }
            for (uint32_t i = width; i < stride; i++)
                ASSERT_EQ(got[size_t{t} * stride + i], 0.0f) << "padding of row " << t;
        }
        for (uint32_t i = 0; i < stride; i++)
            ASSERT_TRUE(is_poison(got[size_t{n_rows} * stride + i])) << "behind the last row";
    }
};

TEST_P(AttentionTiles, MatchTheReferenceForEveryHeadShape) {
    for (uint32_t head_dim : {16u, 32u, 48u, 64u, 80u, 96u, 112u, 128u, 192u, 256u}) {
        check({head_dim, 2, 2, {{0, 5}, {7, 1}, {60, 70}, {200, 1}, {0, 64}, {130, 2}}});
    }
    for (uint32_t group : {1u, 3u, 7u}) check({128, group, 2, {{33, 100}, {0, 1}}});
    check({64, 2, 1, {{100, 65}}, 0, 0, Type::kBf16});
    check({64, 2, 1, {{64, 64}}, 0, 0, Type::kF32});
}

TEST_P(AttentionTiles, ReadAnEightBitCache) {
    for (const KvType kv_type : {KvType::kInt8, KvType::kInt8Values}) {
        for (uint32_t head_dim : {16u, 32u, 48u, 64u, 80u, 128u}) {
            check({head_dim, 2, 2, {{0, 5}, {7, 1}, {60, 70}, {200, 1}, {0, 64}, {130, 2}}, 0, 0, Type::kF16, kv_type});
        }
        check({128, 7, 1, {{900, 90}}, 100, 0, Type::kF16, kv_type});
    }
}

TEST_P(AttentionTiles, SeeOnlyTheirWindow) {
    for (uint32_t window : {1u, 7u, 64u, 100u}) check({32, 2, 2, {{0, 150}, {300, 70}, {99, 1}}, window});
}

TEST_P(AttentionTiles, CapScores) { check({32, 2, 2, {{3, 150}}, 0, 1.5f}); }

TEST_P(AttentionTiles, ReadALongContext) { check({128, 7, 1, {{3000, 90}}}); }

TEST_P(AttentionTiles, SplitsOfAContextJoinToTheSameResult) {
    for (uint32_t n_splits : {2u, 3u, 16u}) {
        check({64,
               2,
               2,
               {{0, 5}, {7, 1}, {700, 70}, {500, 1}, {0, 64}, {130, 200}},
               0,
               0,
               Type::kF16,
               KvType::kF16,
               n_splits});
        check({128, 7, 1, {{2000, 128}, {900, 1}}, 300, 0, Type::kBf16, KvType::kF16, n_splits});
        check({128, 2, 1, {{1000, 64}}, 0, 0, Type::kF32, KvType::kInt8, n_splits});
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds, AttentionTiles,
                         ::testing::Values(Kind{TileAttention::kStaged, "Staged"},
                                           Kind{TileAttention::kWorkgroup, "Workgroup"},
                                           Kind{TileAttention::kRegisters, "Registers64", 64},
                                           Kind{TileAttention::kRegisters, "Registers128", 128}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace lorad::gpu::testing::attention_tile_test
