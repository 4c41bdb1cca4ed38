#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::sampling_test {
namespace {

TEST_F(KernelTest, EmbedReadsTokensAndFedBackIds) {
    for (Type type : reference::kTypes) {
        constexpr uint32_t kVocab = 50, kHidden = 112, kStride = 128, kBucket = 8;
        auto table = reference::random_values(kVocab * kHidden, type, random_);
        const std::vector<int32_t> tokens = {0, 49, 7, -1, -3, 50};  // the last one is outside the vocabulary
        // ids 0 and 2 of the step before; the latter failed
        const std::vector<int32_t> fed_back = {11, 12, -1};
        const std::vector<uint32_t> want_rows = {0, 49, 7, 11, 0, 0};
        std::vector<StepRow> rows(kBucket);
        for (size_t t = 0; t < tokens.size(); t++) rows[t].token = tokens[t];
        Buffer step = step_state(rows, static_cast<uint32_t>(tokens.size()));
        Buffer table_buffer = input(reference::encode(table, kHidden, kStride, type));
        Buffer sampled = input(fed_back);
        Buffer x = poisoned(kBucket * kHidden * 4);
        EmbedParams params{step.address(),
                           table_buffer.address(),
                           sampled.address(),
                           x.address(),
                           kHidden,
                           kStride,
                           kHidden,
                           kVocab,
                           2.0f,
                           0};
        execute([&](Recorder& recorder) { kernels_->rows.embed(recorder, params, scalar(type), kBucket); });
        auto got = content<float>(x, kBucket * kHidden);
        for (uint32_t t = 0; t < kBucket; t++) {
            for (uint32_t i = 0; i < kHidden; i++) {
                float value = got[t * kHidden + i];
                if (t >= tokens.size()) {
                    ASSERT_TRUE(is_poison(value)) << "row " << t;
                } else {
                    ASSERT_EQ(value, 2.0f * table[want_rows[t] * kHidden + i]) << "row " << t << " element " << i;
                }
            }
        }
    }
}

class SampleArgmax : public KernelTest {
  protected:
    struct Outcome {
        std::vector<int32_t> sampled;
        std::vector<SampleResult> results;
        std::vector<float> copied;
    };

    // logits [rows][vocab]
    Outcome sample(const std::vector<float>& logits, uint32_t vocab, uint32_t bucket,
                   const std::vector<LogitRow>& logit_rows) {
        uint32_t stride = padded(vocab);
        uint32_t n = static_cast<uint32_t>(logit_rows.size());
        auto bytes = reference::encode(logits, vocab, stride, Type::kF32);
        for (uint32_t t = 0; t < n; t++) {  // the padding may hold anything
            std::memset(&bytes[(size_t{t} * stride + vocab) * 4], 0x7f, (stride - vocab) * 4);
        }
        Buffer count = input(std::vector<uint32_t>{n});
        Buffer logits_buffer = input(bytes), rows_buffer = input(logit_rows);
        Buffer sampled = poisoned(bucket * 4), results = poisoned(bucket * sizeof(SampleResult));
        Buffer copied = poisoned(uint64_t{bucket} * vocab * 4);
        Buffer partials = poisoned(SamplingKernels::sample_partial_bytes(bucket));
        SampleArgmaxParams params{};
        params.n_logit_rows = count.address();
        params.logits = logits_buffer.address();
        params.logit_rows = rows_buffer.address();
        params.sampled = sampled.address();
        params.results = results.address();
        params.host_logits = copied.address();
        params.partials = partials.address();
        params.vocab = vocab;
        params.logits_stride = stride;
        execute([&](Recorder& recorder) { kernels_->sampling.sample_argmax(recorder, params, bucket); });
        return {content<int32_t>(sampled, bucket), content<SampleResult>(results, bucket),
                content<float>(copied, bucket * vocab)};
    }
};

TEST_F(SampleArgmax, FindsTheMaximumAndTheLogSumExp) {
    for (uint32_t vocab : {5u, 64u, 1000u, 4096u, 33003u}) {
        constexpr uint32_t kRows = 3, kBucket = 4;
        auto logits = reference::random_values(kRows * vocab, Type::kF32, random_, 20.0f);
        auto outcome = sample(logits, vocab, kBucket, {{0, kNoReadback}, {1, 2}, {2, 0}});
        for (uint32_t t = 0; t < kRows; t++) {
            const float* row = &logits[t * vocab];
            uint32_t best = static_cast<uint32_t>(std::max_element(row, row + vocab) - row);
            double sum = 0;
            for (uint32_t i = 0; i < vocab; i++) sum += std::exp(static_cast<double>(row[i]) - row[best]);
            EXPECT_EQ(outcome.sampled[t], static_cast<int32_t>(best));
            EXPECT_EQ(outcome.results[t].token, static_cast<int32_t>(best));
            EXPECT_EQ(outcome.results[t].max_logit, row[best]);
            EXPECT_NEAR(outcome.results[t].log_sum_exp, row[best] + std::log(sum), 1e-5);
        }
        EXPECT_EQ(outcome.sampled[3], -1) << "poison is -1 as an integer: the row beyond the count is untouched";
        EXPECT_TRUE(is_poison(outcome.results[3].max_logit));
        EXPECT_EQ(0, std::memcmp(&outcome.copied[2 * vocab], &logits[vocab], vocab * 4));
        EXPECT_EQ(0, std::memcmp(&outcome.copied[0], &logits[2 * vocab], vocab * 4));
        EXPECT_TRUE(is_poison(outcome.copied[vocab])) << "host row 1 was not asked for";
    }
}

TEST_F(SampleArgmax, WorkgroupsTakePartsOfManyRowsInTurns) {
    constexpr uint32_t kVocab = 33003, kRows = 128;  // 17 or more parts of each row, far more than run side by side
    const auto logits = reference::random_values(size_t{kRows} * kVocab, Type::kF32, random_, 20.0f);
    const auto outcome = sample(logits, kVocab, kRows, std::vector<LogitRow>(kRows, {0, kNoReadback}));
    for (uint32_t t = 0; t < kRows; t++) {
        const float* row = &logits[size_t{t} * kVocab];
        const auto best = static_cast<uint32_t>(std::max_element(row, row + kVocab) - row);
        double sum = 0;
        for (uint32_t i = 0; i < kVocab; i++) sum += std::exp(static_cast<double>(row[i]) - row[best]);
        EXPECT_EQ(outcome.sampled[t], static_cast<int32_t>(best)) << "row " << t;
        EXPECT_NEAR(outcome.results[t].log_sum_exp, row[best] + std::log(sum), 1e-5) << "row " << t;
    }
}

TEST_F(SampleArgmax, TiesGoToTheLowestIndex) {
    constexpr uint32_t kVocab = 3000;
    std::vector<float> logits(kVocab, -1.0f);
    for (uint32_t i : {2999u, 777u, 1400u}) logits[i] = 4.5f;
    EXPECT_EQ(sample(logits, kVocab, 1, {{0, kNoReadback}}).sampled[0], 777);
    EXPECT_EQ(sample(std::vector<float>(kVocab, 0.0f), kVocab, 1, {{0, kNoReadback}}).sampled[0], 0);
}

TEST_F(SampleArgmax, AnyInfiniteOrNanLogitFailsItsRowOnly) {
    constexpr uint32_t kVocab = 1500;
    for (float bad : {NAN, INFINITY, -INFINITY}) {
        std::vector<float> logits(2 * kVocab, 0.5f);
        logits[kVocab + 3] = 2.0f;
        logits[1203] = bad;
        auto outcome = sample(logits, kVocab, 2, {{0, kNoReadback}, {1, kNoReadback}});
        EXPECT_EQ(outcome.sampled[0], -1);
        EXPECT_EQ(outcome.sampled[1], 3);
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::sampling_test
