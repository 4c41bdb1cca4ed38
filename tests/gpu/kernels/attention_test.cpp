#include "tests/gpu/kernels/kernel_fixture.h"
#include "tests/gpu/kernels/kv8_planes.h"

namespace lorad::gpu::testing::attention_test {
namespace {

struct AttentionCase {
    uint32_t head_dim, group, n_kv_heads;
    std::vector<uint32_t> positions;  // one row each, each of a sequence of its own
    uint32_t bucket;
    uint32_t window = 0;
    float softcap = 0;
    uint32_t n_splits = 1;
    Type act = Type::kF32;
    KvType kv_type = KvType::kF16;
    KernelPath path = KernelPath::kPortable;  // kAuto: by groups of heads where the device can
    bool sinks = false;
};

// A paged cache whose unused tokens and blocks are NaN, with blocks handed out in a scrambled order.
struct Cache {
    std::vector<StepRow> rows;
    std::vector<uint32_t> tables;
    std::vector<std::vector<float>> keys, values;  // by row: [kv_head][token][head_dim]
    Buffer buffer;
};

class Attention : public KernelTest {
  protected:
    bool is_auto_ = false;

    Cache fill(const AttentionCase& c) {
        Cache cache;
        cache.rows.resize(c.bucket);
        uint32_t n_blocks = 1;
        for (uint32_t p : c.positions) n_blocks += p / kBlockTokens + 1;
        std::vector<uint32_t> order(n_blocks);
        for (uint32_t i = 0; i < n_blocks; i++) order[i] = i;
        std::shuffle(order.begin(), order.end(), random_);
        size_t plane = size_t{kBlockTokens} * c.head_dim;
        std::vector<uint16_t> halves(n_blocks * 2 * c.n_kv_heads * plane, 0xffff);
        Kv8Planes eights(n_blocks * 2 * c.n_kv_heads, c.head_dim);
        for (uint32_t t = 0; t < c.positions.size(); t++) {
            uint32_t n_tokens = c.positions[t] + 1;
            size_t n = size_t{c.n_kv_heads} * n_tokens * c.head_dim;
            cache.keys.push_back(reference::random_values(n, Type::kF16, random_, 2.0f));
            cache.values.push_back(reference::random_values(n, Type::kF16, random_, 2.0f));
            cache.rows[t].position = c.positions[t];
            const auto table = static_cast<uint32_t>(cache.tables.size());
            for (uint32_t b = 0; b * kBlockTokens < n_tokens; b++) {
                cache.tables.push_back(order.back());
                order.pop_back();
            }
            cache.rows[t].set_blocks(table, &cache.tables[table], static_cast<uint32_t>(cache.tables.size()) - table);
            for (uint32_t line = 0; has_int8(c.kv_type) && line < c.n_kv_heads * n_tokens; line++) {
                uint32_t head = line / n_tokens, token = line % n_tokens;
                size_t key_plane =
                    size_t{cache.tables[cache.rows[t].block_table + token / kBlockTokens]} * 2 * c.n_kv_heads + head;
                if (c.kv_type == KvType::kInt8)
                    eights.store(key_plane, token % kBlockTokens,
                                 std::span(cache.keys[t]).subspan(line * c.head_dim, c.head_dim));
                eights.store(key_plane + c.n_kv_heads, token % kBlockTokens,
                             std::span(cache.values[t]).subspan(line * c.head_dim, c.head_dim));
            }
            for (size_t i = 0; i < n; i++) {
                size_t head = i / c.head_dim / n_tokens, token = i / c.head_dim % n_tokens, d = i % c.head_dim;
                size_t block = cache.tables[cache.rows[t].block_table + token / kBlockTokens];
                size_t at = (block * 2 * c.n_kv_heads + head) * plane + token % kBlockTokens * c.head_dim + d;
                halves[at] = reference::to_f16(cache.keys[t][i]);
                halves[at + c.n_kv_heads * plane] = reference::to_f16(cache.values[t][i]);
            }
        }
        std::vector<float> floats;
        for (const uint16_t half : halves) floats.push_back(reference::from_f16(half));
        cache.buffer = c.kv_type == KvType::kF32    ? input(floats)
                       : c.kv_type == KvType::kF16  ? input(halves)
                       : c.kv_type == KvType::kInt8 ? input(eights.bytes)
                                                    : input(mixed_planes(halves, eights, c.n_kv_heads));
        return cache;
    }

    // y in blocks beside y in rows: the same words.
    void check_blocks(const AttentionCase& c, AttentionParams params, const AttentionShape& shape) {
        for (const uint32_t order : kFragmentOrders) {
            const size_t n = size_t{round_up(c.bucket, kFragmentRowsMost)} * params.y_stride;
            const Buffer blocks = poisoned(n * 2), rows = poisoned(n * 2);
            params.y = rows.address();
            params.y_fragments = blocks.address();
            execute([&](Recorder& recorder) {
                kernels_->attention.attention(recorder, params, shape, scalar(c.act), order);
            });
            const auto in_rows = content<uint16_t>(rows, n), in_fragments = content<uint16_t>(blocks, n);
            for (uint32_t t = 0; t < c.positions.size(); t++) {
                for (uint32_t i = 0; i < params.y_stride; i++) {
                    ASSERT_EQ(in_fragments[fragment_offset(t, i, params.y_stride, order) / 2],
                              in_rows[size_t{t} * params.y_stride + i])
                        << "order " << order << ", row " << t << ", element " << i;
                }
            }
        }
    }

    void check(const AttentionCase& c) {
        SCOPED_TRACE(::testing::Message()
                     << "head dim " << c.head_dim << " group " << c.group << " kv heads " << c.n_kv_heads << " rows "
                     << c.positions.size() << " splits " << c.n_splits);
        if (kernels_->options().kv_type != c.kv_type || (c.path == KernelPath::kAuto) != is_auto_) {
            kernels_ = must(KernelSet::create(device(), {.path = c.path, .kv_type = c.kv_type}));
            is_auto_ = c.path == KernelPath::kAuto;
        }
        Cache cache = fill(c);
        uint32_t n_q_heads = c.group * c.n_kv_heads;
        uint32_t width = n_q_heads * c.head_dim;
        uint32_t stride = padded(width);
        auto q = reference::random_values(c.positions.size() * width, Type::kF32, random_);
        Buffer step = step_state(cache.rows, static_cast<uint32_t>(c.positions.size()));
        Buffer tables = input(cache.tables);
        Buffer q_buffer = input(reference::encode(q, width, width, Type::kF32));
        Buffer y = poisoned(uint64_t{c.bucket} * stride * 4);
        AttentionShape shape{
            c.bucket, n_q_heads, c.n_kv_heads, c.head_dim, c.n_splits, true, c.kv_type == KvType::kInt8Values, c.sinks};
        const std::vector<float> sinks = reference::random_values(n_q_heads, Type::kF32, random_, 3.0f);
        const Buffer sinks_buffer = input(sinks);
        Buffer partials = poisoned(AttentionPlanner::attention_partial_bytes(shape) + 16);
        const bool grouped = kernels_->attention.groups_heads(shape);
        float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)) * 2;
        AttentionParams params{step.address(),
                               tables.address(),
                               q_buffer.address(),
                               cache.buffer.address(),
                               y.address(),
                               partials.address(),
                               0,
                               0,
                               width,
                               stride,
                               c.window,
                               scale,
                               c.softcap,
                               0,
                               0,
                               c.sinks ? sinks_buffer.address() : 0};
        execute([&](Recorder& recorder) { kernels_->attention.attention(recorder, params, shape, scalar(c.act)); });

        if (kernels_->attention.attends_in_fragments(shape, scalar(c.act))) check_blocks(c, params, shape);
        auto got = content(y, size_t{c.bucket} * stride, c.act);
        for (uint32_t t = 0; t < c.bucket; t++) {
            const float* row = &got[size_t{t} * stride];
            if (t >= c.positions.size()) {
                for (uint32_t i = 0; i < stride; i++) ASSERT_TRUE(is_poison(row[i])) << "row " << t << " was written";
                continue;
            }
            size_t n = (c.positions[t] + 1) * c.head_dim;
            for (uint32_t h = 0; h < n_q_heads; h++) {
                std::vector<float> query(&q[t * width + h * c.head_dim], &q[t * width + h * c.head_dim] + c.head_dim);
                if (grouped) {
                    for (float& value : query) value = reference::from_f16(reference::to_f16(value));
                }
                auto want = reference::attention(query, {&cache.keys[t][h / c.group * n], n},
                                                 {&cache.values[t][h / c.group * n], n},
                                                 {scale, c.window, c.softcap, c.sinks ? &sinks[h] : nullptr});
                // Weights are rounded to f16, and what comes from eight bits as well: see attention_tile_test.cpp.
                double rounding = grouped ? unit_roundoff(Type::kF16) : 0;
                if (grouped && has_int8(c.kv_type)) rounding *= 6;
                expect_near(want, row + h * c.head_dim, unit_roundoff(c.act) + rounding + 4e-6, 2.0,
                            "row " + std::to_string(t) + " head " + std::to_string(h));
            }
            for (uint32_t i = width; i < stride; i++) ASSERT_EQ(row[i], 0.0f) << "padding of row " << t;
        }
    }
};

// A software device compiles a program for each shape: here the smallest and largest, and those that nothing divides.
class SlowAttention : public Attention {};

TEST_F(Attention, MatchesTheReferenceForHeadShapes) {
    for (uint32_t head_dim : {16u, 24u, 80u, 128u, 504u}) check({head_dim, 2, 2, {0, 1, 63, 64, 70, 200}, 8});
    for (uint32_t group : {1u, 5u, 8u, 9u, 16u}) check({16, group, 2, {5, 130}, 2});
    check({16, 1, 3, {7}, 1, 0, 0, 1, Type::kF16});
    check({48, 2, 1, {90, 3}, 2, 0, 0, 1, Type::kBf16});
}

TEST_F(SlowAttention, MatchesTheReferenceForEveryHeadShape) {
    for (uint32_t head_dim : {16u, 24u, 32u, 48u, 80u, 96u, 128u, 256u, 504u, 512u}) {
        check({head_dim, 2, 2, {0, 1, 63, 64, 70, 200}, 8});
    }
    for (uint32_t group : {1u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 16u}) check({16, group, 2, {5, 130}, 2});
}

TEST_F(Attention, SeesOnlyItsWindow) {
    for (uint32_t window : {1u, 7u, 64u, 100u}) check({32, 2, 2, {0, 6, 63, 64, 99, 100, 101, 300}, 8, window});
}

TEST_F(Attention, CapsScores) { check({32, 2, 2, {3, 150}, 2, 0, 1.5f}); }

TEST_F(Attention, ReadsACacheOfF32) {
    AttentionCase c{64, 2, 2, {0, 1, 63, 64, 70, 200}, 8};
    c.kv_type = KvType::kF32;
    for (uint32_t head_dim : {16u, 24u, 128u, 512u}) {
        c.head_dim = head_dim;
        check(c);
    }
    c = {64, 4, 2, {300, 90}, 2, 100, 1.5f, 3, Type::kF32, KvType::kF32};
    check(c);
}

TEST_F(Attention, SinksTakeTheirShareOnceHoweverTheContextIsSplit) {
    AttentionCase c{32, 4, 2, {0, 17, 64, 700, 511}, 6};
    c.sinks = true;
    for (const uint32_t n_splits : {1u, 2u, 8u, 64u}) {
        c.n_splits = n_splits;
        check(c);
    }
    c = {64, 3, 1, {0, 300}, 2, 130, 0, 3, Type::kF16};
    c.sinks = true;
    check(c);
}

TEST_F(Attention, ReadsAnEightBitCacheAsWhatItHolds) {
    for (const KvType kv_type : {KvType::kInt8, KvType::kInt8Values}) {
        AttentionCase c{64, 2, 2, {0, 1, 63, 64, 70, 200}, 8};
        c.kv_type = kv_type;
        for (uint32_t head_dim : {24u, 80u, 256u}) {
            c.head_dim = head_dim;
            check(c);
        }
        c = {128, 7, 1, {5, 700}, 3, 0, 0, 3, Type::kF16, kv_type};
        check(c);
        c = {64, 4, 2, {300, 90}, 2, 100, 1.5f, 1, Type::kF32, kv_type};
        check(c);
    }
}

TEST_F(SlowAttention, ReadsAnEightBitCacheOfEveryHeadShape) {
    for (const KvType kv_type : {KvType::kInt8, KvType::kInt8Values}) {
        AttentionCase c{64, 2, 2, {0, 1, 63, 64, 70, 200}, 8};
        c.kv_type = kv_type;
        for (uint32_t head_dim : {16u, 24u, 32u, 48u, 64u, 80u, 96u, 128u, 256u}) {
            c.head_dim = head_dim;
            check(c);
        }
    }
}

TEST_F(Attention, SplitsOfAContextJoinToTheSameResult) {
    for (uint32_t n_splits : {2u, 3u, 8u, 64u, kAttentionSplitsMax}) {
        check({32, 4, 2, {0, 17, 64, 700, 511}, 6, 0, 0, n_splits});
        check({96, 3, 1, {0, 300}, 2, 130, 0, n_splits, Type::kF16});
    }
}

TEST_F(Attention, ByGroupsOfHeadsIsTheSame) {
    AttentionCase c{128, 7, 2, {0, 1, 63, 64, 70, 200}, 8};
    c.path = KernelPath::kAuto;
    check(c);
    if (!kernels_->attention.groups_heads({8, 14, 2, 128}))
        GTEST_SKIP() << "no functions of matrices: " << device().capabilities().name;
    for (const KvType kv_type : {KvType::kF16, KvType::kInt8, KvType::kInt8Values}) {
        c.kv_type = kv_type;
        for (uint32_t head_dim : {16u, 32u, 48u, 64u, 80u, 96u, 128u}) {
            c.head_dim = head_dim;
            for (uint32_t n_splits : {1u, 2u, 5u}) {
                c.n_splits = n_splits;
                check(c);
            }
        }
        for (uint32_t group : {2u, 4u, 5u, 8u, 9u, 12u, 16u}) {
            AttentionCase other{64, group, 1, {5, 700}, 2, 0, 0, 3, Type::kF16, kv_type, KernelPath::kAuto};
            check(other);
            other = {64, group, 2, {300, 90}, 2, 100, 1.5f, 1, Type::kBf16, kv_type, KernelPath::kAuto};
            check(other);
        }
        for (uint32_t group : {9u, 16u}) {  // two matrices of heads
            for (uint32_t n_splits : {1u, 3u})
                check({128, group, 2, {0, 63, 64, 500}, 4, 0, 0, n_splits, Type::kF32, kv_type, KernelPath::kAuto});
        }
        check({128, 7, 2, {130}, 1, 0, 0, 1, Type::kF32, kv_type, KernelPath::kAuto});
        check({128, 7, 1, {5000, 4000}, 2, 1000, 0, 64, Type::kF32, kv_type, KernelPath::kAuto});
    }
}

TEST_F(Attention, OneSplitIsTheBatchInvariantPlan) {
    auto invariant = must(KernelSet::create(device(), {.path = KernelPath::kPortable, .batch_invariant = true}));
    EXPECT_EQ(invariant->attention.plan_attention_splits(1, 4, 32768), 1u);
}

}  // namespace
}  // namespace lorad::gpu::testing::attention_test
