// The sums of a product with borders between modules anywhere, for readers that want them finished.
#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::sum_parts_test {
namespace {

struct SumCase {
    std::vector<uint32_t> modules;  // their columns
    uint32_t n_rows, n_splits, whole_rows;
    bool has_bias;
    LoraLevel level;
};
class SumParts : public KernelTest, public ::testing::WithParamInterface<SumCase> {};

TEST_P(SumParts, AddsSplitsBiasAndEachModulesAdapters) {
    const SumCase& c = GetParam();
    constexpr uint32_t kFirst = 1, kSlots = 4, kTable = kFirst + kSumModulesMax;
    const auto n_modules = static_cast<uint32_t>(c.modules.size()), bucket = c.n_rows + 1;
    uint32_t n = 0;
    SumPartsParams params{};
    for (uint32_t m = 0; m < n_modules; m++) params.module_end[m] = n += c.modules[m];
    const uint32_t y_stride = padded(n), to_stride = n + 1;
    auto y = reference::random_values(size_t{c.n_splits} * bucket * y_stride, Type::kF32, random_);
    poison_other_splits(y, c.n_splits, c.whole_rows, bucket, y_stride);
    const auto bias = reference::random_values(n, Type::kF32, random_);
    std::vector<std::vector<TestModule>> adapters(kSlots);  // slot 2 has nothing, slot 1 not each module
    std::vector<LoraModule> table(size_t{kSlots} * kTable);
    std::vector<std::vector<float>> gains(n_modules), biases(n_modules);
    std::vector<Buffer> kept;
    for (uint32_t slot = 0; slot < kSlots; slot++) {
        for (uint32_t m = 0; m < n_modules; m++) {
            const size_t rank = slot == 2 || (slot == 1 && m % 2 == 1) ? 0 : 3 + 6 * m + slot;
            adapters[slot].push_back(
                TestModule::make(c.modules[m], 8, rank, reference::kTypes[slot % 3], 0.5 + slot, random_));
            LoraModule entry = adapters[slot][m].entry();
            if (c.level == LoraLevel::kFull && slot == 3) {
                gains[m] = reference::random_values(c.modules[m], Type::kF32, random_);
                biases[m] = reference::random_values(c.modules[m], Type::kF32, random_);
                kept.push_back(input(gains[m]));
                entry.gain = kept.back().address();
                kept.push_back(input(biases[m]));
                entry.bias = kept.back().address();
            }
            table[size_t{slot} * kTable + kFirst + m] = entry;
        }
    }
    struct Use {
        uint32_t slot;
        float scale;
    };
    std::vector<std::vector<Use>> row_uses(c.n_rows);
    std::vector<StepUse> step_uses;
    std::vector<StepRow> rows(bucket);
    uint32_t n_low = bucket;
    for (uint32_t t = 0; t < c.n_rows; t++) {
        const bool is_full = c.level == LoraLevel::kFull;
        if (t % 5 != 0) row_uses[t].push_back({t % 5 - 1, is_full ? 0.75f : 1.0f});
        if (t % 5 == 3 && is_full) row_uses[t].push_back({3, -0.5f});
        rows[t].adapter_slot = row_uses[t].empty() ? kNoSlot : row_uses[t][0].slot;
        rows[t].use_begin = static_cast<uint32_t>(step_uses.size());
        rows[t].n_uses = static_cast<uint32_t>(row_uses[t].size());
        for (const Use& use : row_uses[t]) step_uses.push_back({use.slot, use.scale, n_low++ - t, 0});
    }
    const auto low = reference::random_values(size_t{n_low} * n_modules * kMaxRank, Type::kF32, random_);
    const Buffer step = step_state(rows, c.n_rows), y_buffer = input(y), bias_buffer = input(bias),
                 low_buffer = input(low), table_buffer = input(table), uses = input(step_uses);
    const Buffer to = poisoned(uint64_t{bucket} * to_stride * 4);
    params.step = step.address();
    params.y = y_buffer.address();
    params.bias = c.has_bias ? bias_buffer.address() : 0;
    params.low = low_buffer.address();
    params.lora_layer = table_buffer.address();
    params.uses = uses.address();
    params.to = to.address();
    params.lora_slot_stride = kTable;
    params.first_module = kFirst;
    params.n_modules = n_modules;
    params.y_stride = y_stride;
    params.split_stride = bucket * y_stride;
    params.to_stride = to_stride;
    execute([&](Recorder& recorder) {
        kernels_->rows.sum_parts(recorder, params,
                                 {.rows = bucket, .n_splits = c.n_splits, .lora = c.level, .whole_rows = c.whole_rows});
    });
    const auto got = content<float>(to, size_t{bucket} * to_stride);
    uint32_t use_idx = bucket;
    for (uint32_t t = 0; t < bucket; t++) {
        EXPECT_TRUE(is_poison(got[size_t{t} * to_stride + n])) << "what lies behind a row was written";
        if (t >= c.n_rows) {
            EXPECT_TRUE(is_poison(got[size_t{t} * to_stride])) << "a row beyond the last was written";
            continue;
        }
        uint32_t begin = 0;
        for (uint32_t m = 0; m < n_modules; m++) {
            Vector base(c.modules[m]);
            for (uint32_t i = 0; i < c.modules[m]; i++) {
                for (uint32_t s = 0; s < (t < c.whole_rows ? 1 : c.n_splits); s++)
                    base[i] += y[(size_t{s} * bucket + t) * y_stride + begin + i];
            }
            Vector want = base;
            for (uint32_t i = 0; i < c.modules[m] && c.has_bias; i++) want[i] += bias[begin + i];
            for (size_t u = 0; u < row_uses[t].size(); u++) {
                const auto [slot, scale] = row_uses[t][u];
                const size_t low_row = c.level == LoraLevel::kFull ? use_idx + u : t;
                Vector delta(c.modules[m]);
                add_expand(delta, adapters[slot][m].pair,
                           reference::to_doubles({&low[(low_row * n_modules + m) * kMaxRank], kMaxRank}));
                const bool has_gain = !gains[m].empty() && slot == 3;
                for (uint32_t i = 0; i < c.modules[m]; i++) {
                    if (has_gain)
                        want[i] += scale * ((gains[m][i] - 1.0) * base[i] + gains[m][i] * delta[i] + biases[m][i]);
                    else
                        want[i] += scale * delta[i];
                }
            }
            expect_near(want, &got[size_t{t} * to_stride + begin], sum_tolerance(40), 40.0,
                        "row " + std::to_string(t) + ", module " + std::to_string(m));
            begin += c.modules[m];
        }
        use_idx += static_cast<uint32_t>(row_uses[t].size());
    }
}

INSTANTIATE_TEST_SUITE_P(Groups, SumParts,
                         ::testing::Values(SumCase{{96, 33, 3, 3}, 7, 3, 0, true, LoraLevel::kPlain},
                                           SumCase{{50, 7, 1}, 9, 1, 0, false, LoraLevel::kFull},
                                           SumCase{{130}, 1, 2, 0, true, LoraLevel::kNone},
                                           SumCase{{8, 8}, 6, 2, 3, true, LoraLevel::kFull}));

}  // namespace
}  // namespace lorad::gpu::testing::sum_parts_test
