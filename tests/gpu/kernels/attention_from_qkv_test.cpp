// attention_from_qkv against qkv_post and attention, which have references of their own.
#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::attention_from_qkv_test {
namespace {

struct FromQkvCase {
    uint32_t head_dim, group, n_kv_heads;
    std::vector<uint32_t> positions;  // one row each, each of a sequence of its own
    uint32_t bucket;
    uint32_t sum_splits = 1, n_splits = 1;
    uint32_t rotary_dim = 0;  // 0: head_dim
    bool with_bias = false, with_norm = false;
    uint32_t window = 0;
    float softcap = 0;
    uint32_t rope_begin = 0;
    Type act = Type::kF32;
};

class AttentionFromQkv : public KernelTest {
  protected:
    void SetUp() override {
        KernelTest::SetUp();
        kernels_ = must(KernelSet::create(device(), {.path = KernelPath::kAuto}));
        by_heads_ = must(KernelSet::create(device(), {.path = KernelPath::kAuto, .attention_heads = 1}));
    }

    void TearDown() override {
        KernelTest::TearDown();
        if (n_checked_ == 0 && !IsSkipped()) GTEST_SKIP() << "no case is for this device";
    }

    static QkvShape qkv_shape(const FromQkvCase& c) {
        return {{c.bucket, c.sum_splits},
                c.group * c.n_kv_heads,
                c.n_kv_heads,
                c.head_dim,
                c.rotary_dim != 0 ? c.rotary_dim : c.head_dim};
    }
    static AttentionShape attention_shape(const FromQkvCase& c) {
        return {c.bucket, c.group * c.n_kv_heads, c.n_kv_heads, c.head_dim, c.n_splits};
    }

    // Nothing where the device takes none of the kernels for it.
    void check(KernelSet& kernels, const FromQkvCase& c) {
        if (!kernels.attention.attends_from_qkv(qkv_shape(c), attention_shape(c))) return;
        ++n_checked_;
        SCOPED_TRACE(::testing::Message()
                     << "head dim " << c.head_dim << " group " << c.group << " kv heads " << c.n_kv_heads << " rows "
                     << c.positions.size() << "/" << c.bucket << " splits " << c.sum_splits << ", " << c.n_splits);
        const auto n_rows = static_cast<uint32_t>(c.positions.size());
        const uint32_t n_q_heads = c.group * c.n_kv_heads, q_width = n_q_heads * c.head_dim,
                       width = q_width + 2 * c.n_kv_heads * c.head_dim;
        const uint32_t sums_stride = padded(width), y_stride = padded(q_width);
        const QkvShape qkv = qkv_shape(c);
        const AttentionShape shape = attention_shape(c);

        std::vector<StepRow> rows(c.bucket);
        std::vector<uint32_t> tables;
        uint32_t n_blocks = 1;
        for (const uint32_t p : c.positions) n_blocks += p / kBlockTokens + 1;
        std::vector<uint32_t> order(n_blocks);
        for (uint32_t i = 0; i < n_blocks; i++) order[i] = i;
        std::shuffle(order.begin(), order.end(), random_);
        // Keys and values of the tokens before each row's own; all others are NaN.
        const size_t plane = size_t{kBlockTokens} * c.head_dim;
        std::vector<uint16_t> halves(n_blocks * 2 * c.n_kv_heads * plane, 0xffff);
        for (uint32_t t = 0; t < n_rows; t++) {
            const uint32_t p = c.positions[t];
            rows[t].position = p;
            rows[t].rope_begin = t % 2 == 0 ? c.rope_begin : 0;
            const auto table = static_cast<uint32_t>(tables.size());
            for (uint32_t b = 0; b <= p / kBlockTokens; b++) {
                tables.push_back(order.back());
                order.pop_back();
                for (uint32_t line = 0; line < 2 * c.n_kv_heads; line++) {
                    const size_t begin = (tables.back() * size_t{2} * c.n_kv_heads + line) * plane,
                                 n = std::min(p - b * kBlockTokens, kBlockTokens) * c.head_dim;
                    for (size_t i = 0; i < n; i++)
                        halves[begin + i] =
                            reference::to_f16(reference::random_values(1, Type::kF16, random_, 2.0f)[0]);
                }
            }
            rows[t].set_blocks(table, &tables[table], static_cast<uint32_t>(tables.size()) - table);
            rows[t].kv_slot = tables.back() * kBlockTokens + p % kBlockTokens;
        }
        const uint32_t n_turns = c.rope_begin + *std::max_element(c.positions.begin(), c.positions.end()) + 1;
        std::vector<float> turns;
        for (uint32_t i = 0; i < n_turns * qkv.rotary_dim / 2; i++) {
            turns.push_back(std::cos(0.37f * static_cast<float>(i)));
            turns.push_back(std::sin(0.37f * static_cast<float>(i)));
        }
        Buffer step = step_state(rows, n_rows), tables_buffer = input(tables), rope = input(turns);
        const uint32_t capacity = c.bucket + kSlackRows;
        Buffer sums = input(
            reference::encode(reference::random_values(size_t{c.sum_splits} * capacity * width, Type::kF32, random_),
                              width, sums_stride, Type::kF32));
        Buffer bias = input(reference::random_values(width, Type::kF32, random_));
        Buffer q_gamma = input(reference::random_values(c.head_dim, Type::kF32, random_)),
               k_gamma = input(reference::random_values(c.head_dim, Type::kF32, random_));
        Buffer kv_apart = input(halves), kv = input(halves), q = poisoned(uint64_t{c.bucket} * q_width * 4);
        Buffer y_apart = poisoned(uint64_t{c.bucket} * y_stride * 4), y = poisoned(uint64_t{c.bucket} * y_stride * 4);
        const uint64_t partial_bytes = AttentionPlanner::attention_partial_bytes(shape) + 16;
        Buffer partials_apart = poisoned(partial_bytes), partials = poisoned(partial_bytes);

        const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
        QkvPostParams post{};
        post.step = step.address();
        post.y = sums.address();
        post.bias = c.with_bias ? bias.address() : 0;
        post.rope = rope.address();
        post.q_gamma = c.with_norm ? q_gamma.address() : 0;
        post.k_gamma = c.with_norm ? k_gamma.address() : 0;
        post.q = q.address();
        post.kv = kv_apart.address();
        post.y_stride = sums_stride;
        post.split_stride = capacity * sums_stride;
        post.q_stride = q_width;
        post.eps = 1e-6f;
        const AttentionParams attention{step.address(),
                                        tables_buffer.address(),
                                        q.address(),
                                        kv_apart.address(),
                                        y_apart.address(),
                                        partials_apart.address(),
                                        0,
                                        0,
                                        q_width,
                                        y_stride,
                                        c.window,
                                        scale,
                                        c.softcap,
                                        0};
        execute([&](Recorder& recorder) {
            kernels.attention.qkv_post(recorder, post, qkv);
            recorder.barrier();
            kernels.attention.attention(recorder, attention, shape, scalar(c.act));
        });
        const AttentionFromQkvParams params{step.address(), tables_buffer.address(),
                                            post.y,         post.bias,
                                            post.rope,      post.q_gamma,
                                            post.k_gamma,   kv.address(),
                                            y.address(),    partials.address(),
                                            sums_stride,    post.split_stride,
                                            y_stride,       c.window,
                                            scale,          c.softcap,
                                            post.eps,       0};
        execute([&](Recorder& recorder) {
            kernels.attention.attention_from_qkv(recorder, params, qkv, shape, scalar(c.act));
        });

        const auto want = content(y_apart, size_t{c.bucket} * y_stride, c.act),
                   got = content(y, size_t{c.bucket} * y_stride, c.act);
        for (size_t i = 0; i < got.size(); i++) {
            if (i < size_t{n_rows} * y_stride) {
                ASSERT_NEAR(got[i], want[i], 4e-3 + 2 * unit_roundoff(c.act))
                    << "row " << i / y_stride << " element " << i % y_stride;
            } else {
                ASSERT_TRUE(is_poison(got[i])) << "row " << i / y_stride << " was written";
            }
        }
        if (kernels.attention.attends_in_fragments(shape, scalar(c.act))) {
            auto in_rows = content<std::byte>(y, size_t{c.bucket} * y_stride * 2);
            in_rows.resize(size_t{round_up(c.bucket, kFragmentRowsMost)} * y_stride * 2, std::byte{0xff});
            for (const uint32_t y_order : kFragmentOrders) {
                const Buffer kv_again = input(halves), blocks = poisoned(in_rows.size());
                AttentionFromQkvParams again = params;
                again.kv = kv_again.address();
                again.y = blocks.address();
                execute([&](Recorder& recorder) {
                    kernels.attention.attention_from_qkv(recorder, again, qkv, shape, scalar(c.act), y_order);
                });
                EXPECT_EQ(content<std::byte>(blocks, in_rows.size()), in_fragments(in_rows, y_stride, y_order))
                    << "order " << y_order;
            }
        }
        const auto want_kv = content(kv_apart, halves.size(), Type::kF16),
                   got_kv = content(kv, halves.size(), Type::kF16);
        for (size_t i = 0; i < got_kv.size(); i++) {
            ASSERT_EQ(is_poison(got_kv[i]), is_poison(want_kv[i])) << "cache element " << i;
            if (is_poison(want_kv[i])) continue;
            ASSERT_NEAR(got_kv[i], want_kv[i], 1e-3 * (1 + std::fabs(want_kv[i]))) << "cache element " << i;
        }
        if (c.act != Type::kF32) return;
        // A row that sees itself alone gives its own value: as later rows find it in the cache, not the f32 before.
        for (uint32_t t = 0; t < n_rows; t++) {
            if (c.positions[t] != 0 && c.window != 1) continue;
            for (uint32_t i = 0; i < q_width; i++) {
                const uint32_t kv_head = i / c.head_dim / c.group, block = rows[t].kv_slot / kBlockTokens;
                const size_t line = (block * size_t{2} + 1) * c.n_kv_heads + kv_head;
                ASSERT_EQ(got[size_t{t} * y_stride + i],
                          got_kv[line * plane + rows[t].kv_slot % kBlockTokens * c.head_dim + i % c.head_dim])
                    << "row " << t << " element " << i;
            }
        }
    }

    // By attention_from_sums, one head to a workgroup. Software devices take none of kernels_: they have others.
    std::unique_ptr<KernelSet> by_heads_;
    uint32_t n_checked_ = 0;
};

TEST_F(AttentionFromQkv, ByHeads) {
    check(*by_heads_, {64, 3, 2, {0, 1, 63, 64, 200}, 6, 3, 1, 0, true});
    check(*by_heads_, {128, 2, 2, {0, 90}, 2, 1, 1, 32, true, true, 0, 0, 100, Type::kBf16});
    check(*by_heads_, {24, 2, 1, {0, 64, 200}, 3, 2, 2, 0, false, true, 1});
    check(*by_heads_, {64, 2, 2, {3, 150}, 2, 1, 2, 0, false, false, 40, 1.5f});
}

TEST_F(AttentionFromQkv, EqualsBothKernels) {
    for (const uint32_t head_dim : {64u, 128u}) {
        check(*kernels_, {head_dim, 2, 2, {0, 1, 63, 64, 70, 200}, 8});
        check(*kernels_, {head_dim, 7, 4, {130, 5, 700}, 3, 7, 1, 0, true});
        check(*kernels_, {head_dim, 4, 2, {127, 128, 1000}, 4, 2, 1, 0, true, true});
    }
    for (const uint32_t head_dim : {16u, 32u}) check(*kernels_, {head_dim, 3, 2, {5, 64, 200}, 4, 2, 2, 0, true, true});
    for (const uint32_t group : {3u, 5u, 8u, 9u, 12u, 16u}) check(*kernels_, {128, group, 2, {5, 130}, 2, 3});
    check(*kernels_, {64, 7, 2, {300}, 1, 4, 1, 0, false, true, 0, 0, 0, Type::kF16});
    check(*kernels_, {128, 7, 4, {300, 301}, 2, 1, 1, 0, true, false, 0, 0, 0, Type::kBf16});
}

TEST_F(AttentionFromQkv, WithTheContextInParts) {
    for (const uint32_t n_splits : {2u, 3u, 16u})
        check(*kernels_, {128, 7, 4, {0, 63, 64, 700, 2047}, 6, 3, n_splits, 0, true});
    check(*kernels_, {64, 7, 2, {4000}, 1, 1, 64, 0, true, true});
}

TEST_F(AttentionFromQkv, TurnsOnlyTheRotaryPartAndFromTheRowsTable) {
    check(*kernels_, {128, 4, 2, {10, 90}, 2, 1, 1, 64});
    check(*kernels_, {64, 2, 2, {10, 90}, 2, 2, 1, 32, true, true});
    check(*kernels_, {128, 3, 8, {10, 90, 91}, 3, 1, 1, 96, false, false, 0, 0, 100});
}

TEST_F(AttentionFromQkv, SeesOnlyItsWindowAndCapsScores) {
    for (const uint32_t window : {1u, 7u, 64u, 100u})
        check(*kernels_, {128, 4, 2, {0, 63, 64, 100, 300}, 5, 1, 1, 0, true, false, window});
    for (const uint32_t window : {40u, 200u, 1000u})
        check(*kernels_, {128, 4, 2, {10, 700, 2000}, 3, 2, 8, 0, true, false, window});
    check(*kernels_, {64, 2, 2, {3, 150}, 2, 1, 2, 0, false, false, 0, 1.5f});
}

TEST_F(AttentionFromQkv, ManyRows) {
    std::vector<uint32_t> positions;
    for (uint32_t t = 0; t < 130; t++) positions.push_back(t * 3);
    check(*kernels_, {64, 7, 2, positions, 192, 2, 1, 0, true});
}

}  // namespace
}  // namespace lorad::gpu::testing::attention_from_qkv_test
