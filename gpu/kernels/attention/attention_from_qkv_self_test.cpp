// At start-up: attention from the sums of a product against qkv_post and attention, rows of sequences of their own.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/ladder_tests.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/self_test.h"

namespace lorad::gpu {

using namespace self_test;

namespace {

// Both round queries, keys and weights to f16, but may turn and norm them in another order.
constexpr double kFromQkvTolerance = 2e-3;

struct FromQkvTest {
    // Rows at the end and the beginning of a block, and one whose context has both splits.
    static constexpr uint32_t kPositions[] = {0, 63, 64, 200}, kRows = std::size(kPositions);
    static constexpr uint32_t kKvHeads = 2, kBlocksPerRow = 4, kBlocks = kRows * kBlocksPerRow, kSumSplits = 3,
                              kSplits = 2;

    uint32_t head_dim = 0, n_heads = 0, width = 0;  // of the sums
    uint64_t kv_halves = 0;
    Buffer step, tables, sums, bias, gammas, rope, q, kv, partials, y;

    static Result<FromQkvTest> create(Device& device, uint32_t head_dim, uint32_t n_heads) {
        FromQkvTest test;
        test.head_dim = head_dim;
        test.n_heads = n_heads;
        test.width = (n_heads + 2 * kKvHeads) * head_dim;
        test.kv_halves = uint64_t{2} * kBlocks * kKvHeads * kBlockTokens * head_dim;
        const uint32_t n_turns = kPositions[kRows - 1] + 1;
        TRY(make(device, test.step, sizeof(StepHeader) + kRows * sizeof(StepRow), MemoryKind::kHostUpload));
        TRY(make(device, test.tables, kBlocks * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.sums, uint64_t{kSumSplits} * kRows * test.width * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.bias, uint64_t{test.width} * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.gammas, uint64_t{2} * head_dim * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.rope, uint64_t{n_turns} * head_dim * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.q, uint64_t{kRows} * n_heads * head_dim * 4, MemoryKind::kDeviceLocal));
        TRY(make(device, test.kv, test.kv_halves * 2, MemoryKind::kHostReadback));
        TRY(make(device, test.partials, AttentionPlanner::attention_partial_bytes(test.attention_shape(kSplits)),
                 MemoryKind::kHostReadback));
        TRY(make(device, test.y, uint64_t{round_up(kRows, kFragmentRowsMost)} * n_heads * head_dim * 4,
                 MemoryKind::kHostReadback));
        StepHeader header{};
        header.n_rows = kRows;
        std::memcpy(test.step.mapped().data(), &header, sizeof(header));
        std::vector<uint32_t> blocks(kBlocks);
        // 5 and kBlocks have no common factor
        for (uint32_t i = 0; i < kBlocks; ++i) blocks[i] = (i * 5 + 3) % kBlocks;
        std::memcpy(test.tables.mapped().data(), blocks.data(), kBlocks * 4);
        for (uint32_t i = 0; i < kRows; ++i) {
            StepRow row{};
            row.position = kPositions[i];
            row.set_blocks(i * kBlocksPerRow, &blocks[i * kBlocksPerRow], kBlocksPerRow);
            row.kv_slot =
                blocks[row.block_table + row.position / kBlockTokens] * kBlockTokens + row.position % kBlockTokens;
            std::memcpy(test.step.mapped().data() + sizeof(StepHeader) + i * sizeof(row), &row, sizeof(row));
        }
        std::mt19937 random(23);
        fill_random(test.sums.mapped(), ScalarType::kF32, random);
        fill_random(test.bias.mapped(), ScalarType::kF32, random);
        fill_random(test.gammas.mapped(), ScalarType::kF32, random);
        auto* turns = reinterpret_cast<float*>(test.rope.mapped().data());
        for (uint32_t i = 0; i < n_turns * head_dim / 2; ++i) {
            turns[2 * i] = std::cos(0.03f * static_cast<float>(i));
            turns[2 * i + 1] = std::sin(0.03f * static_cast<float>(i));
        }
        return test;
    }

    // Half of a head turned is another way through the kernel.
    QkvShape qkv_shape(bool normed) const {
        return {
            {kRows, kSumSplits}, n_heads, kKvHeads, head_dim, normed || head_dim % 32 != 0 ? head_dim : head_dim / 2};
    }
    AttentionShape attention_shape(uint32_t n_splits) const { return {kRows, n_heads, kKvHeads, head_dim, n_splits}; }

    // y_order: of results in f16, in fragments; not of both kernels apart.
    Result<std::vector<float>> run(Device& device, KernelSet& kernels, bool normed, uint32_t n_splits, bool apart,
                                   std::optional<uint32_t> y_order = std::nullopt) {
        for (Buffer* buffer : {&y, &partials}) std::memset(buffer->mapped().data(), 0xff, buffer->size());
        std::mt19937 random(24);
        fill_random(kv.mapped(), ScalarType::kF16, random);
        const uint64_t gamma = normed ? gammas.address() : 0;
        AttentionFromQkvParams params{};
        params.step = step.address();
        params.block_tables = tables.address();
        params.sums = sums.address();
        params.bias = bias.address();
        params.rope = rope.address();
        params.q_gamma = gamma;
        params.k_gamma = normed ? gamma + uint64_t{head_dim} * 4 : 0;
        params.kv = kv.address();
        params.y = y.address();
        params.partials = partials.address();
        params.sums_stride = width;
        params.split_stride = kRows * width;
        params.y_stride = n_heads * head_dim;
        params.scale = normed ? 0.1f : 0.01f;  // of f32 values of up to 2, three of them in each sum
        params.eps = 1e-6f;
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        if (apart) {
            QkvPostParams post{};
            post.step = params.step;
            post.y = params.sums;
            post.bias = params.bias;
            post.rope = params.rope;
            post.q_gamma = params.q_gamma;
            post.k_gamma = params.k_gamma;
            post.q = q.address();
            post.kv = params.kv;
            post.y_stride = params.sums_stride;
            post.split_stride = params.split_stride;
            post.q_stride = n_heads * head_dim;
            post.eps = params.eps;
            kernels.attention.qkv_post(recorder, post, qkv_shape(normed));
            recorder.barrier();
            AttentionParams attention{};
            attention.step = params.step;
            attention.block_tables = params.block_tables;
            attention.q = q.address();
            attention.kv = params.kv;
            attention.y = params.y;
            attention.partials = params.partials;
            attention.q_stride = post.q_stride;
            attention.y_stride = params.y_stride;
            attention.scale = params.scale;
            kernels.attention.attention(recorder, attention, attention_shape(n_splits), ScalarType::kF32);
        } else {
            kernels.attention.attention_from_qkv(recorder, params, qkv_shape(normed), attention_shape(n_splits),
                                                 y_order ? ScalarType::kF16 : ScalarType::kF32, y_order);
        }
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        const uint32_t stride = n_heads * head_dim;
        std::vector<float> values(size_t{kRows} * stride);
        if (!y_order) {
            std::memcpy(values.data(), y.mapped().data(), values.size() * sizeof(float));
            return values;
        }
        const auto* halves = reinterpret_cast<const uint16_t*>(y.mapped().data());
        for (uint32_t i = 0; i < values.size(); ++i)
            values[i] =
                decode16(halves[fragment_offset(i / stride, i % stride, stride, *y_order) / 2], ScalarType::kF16);
        return values;
    }

    // After run().
    std::vector<float> cache() const {
        std::vector<float> all(kv_halves);
        const auto* halves = reinterpret_cast<const uint16_t*>(kv.mapped().data());
        std::transform(halves, halves + kv_halves, all.begin(),
                       [](uint16_t half) { return decode16(half, ScalarType::kF16); });
        return all;
    }
};

}  // namespace

Status test_attention_from_qkv(LadderTests& tests, ScalarType type) {
    const uint32_t n_heads = FromQkvTest::kKvHeads * tests.options().tested_group();
    for (const uint32_t head_dim : tests.options().head_dims) {
        const QkvShape qkv{{}, n_heads, FromQkvTest::kKvHeads, head_dim, head_dim};
        const AttentionShape one{1, n_heads, FromQkvTest::kKvHeads, head_dim};
        // Heads that this kernel does not take are attention.comp's, which is portable.
        if (head_dim == 0 || !tests.kernels().attention.groups_heads(one) ||
            !tests.kernels().attention.attends_from_qkv(qkv, one))
            continue;
        TRY_ASSIGN(FromQkvTest test, FromQkvTest::create(tests.device(), head_dim, n_heads));
        Deviation deviation;
        for (const bool normed : {false, true}) {
            for (const uint32_t n_splits : {1u, FromQkvTest::kSplits}) {
                TRY_ASSIGN(const std::vector<float> want,
                           test.run(tests.device(), tests.kernels(), normed, n_splits, true));
                const std::vector<float> want_cache = test.cache();
                deviation.add(test.run(tests.device(), tests.kernels(), normed, n_splits, false), want);
                deviation.add(test.cache(), want_cache);
                // Products by programs alone read fragments of so few rows.
                if (n_splits > 1 || !tests.ladder().has(RungId::kWarpgroups)) continue;
                for (const uint32_t y_order : {kFragmentsByRows, kRowFragments, kBandFragments, kMatrixFragments})
                    deviation.add(test.run(tests.device(), tests.kernels(), normed, n_splits, false, y_order), want);
            }
        }
        if (deviation.error <= kFromQkvTolerance) continue;
        tests.leave_out(RungId::kAttentionFromQkv, type, "attention_from_qkv", deviation);
    }
    return ok_status();
}

}  // namespace lorad::gpu
