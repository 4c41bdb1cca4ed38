// Kernels of one row or of rows by themselves: LoRA with or without its base in one dispatch, normalisations, the read
// stream.
#include <algorithm>

#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::vector_test {
namespace {

std::vector<double> product(const std::vector<float>& matrix, const std::vector<double>& x, size_t n) {
    std::vector<double> y(n, 0.0);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < x.size(); j++) y[i] += double{matrix[i * x.size() + j]} * x[j];
    }
    return y;
}

struct LoraCase {
    uint32_t n, k, rank;
    Type weights, act;
    bool with_base;
    LowSharing sharing;
    uint32_t threads = 0, group_rows = 0, slices = 0, at_once = 0;
};

class LoraVector : public KernelTest, public ::testing::WithParamInterface<LoraCase> {};

TEST_P(LoraVector, MatchesTheReferenceInEveryReplay) {
    const LoraCase c = GetParam();
    const auto x = reference::random_values(c.k, c.act, random_);
    const auto w = reference::random_values(size_t{c.n} * c.k, c.weights, random_);
    const auto a = reference::random_values(size_t{c.rank} * c.k, c.weights, random_);
    const auto b = reference::random_values(size_t{c.n} * c.rank, c.weights, random_);
    const float scale = 0.25f;
    const Buffer x_buffer = input(reference::encode(x, c.k, c.k, c.act));
    const Buffer w_buffer = input(reference::encode(w, c.k, c.k, c.weights));
    const Buffer a_buffer = input(reference::encode(a, c.k, c.k, c.weights));
    const Buffer b_buffer = input(reference::encode(b, c.rank, round_up(c.rank, 8), c.weights));
    const Buffer low = input(std::vector<uint32_t>(kLoraVectorScratchBytes / 4, 0));
    const uint32_t room = round_up(c.n, 2) + 2;
    const uint64_t y_bytes = uint64_t{room} * bytes_of(scalar(c.act));
    const Buffer y = poisoned(y_bytes);

    const LoraVectorParams params{x_buffer.address(),
                                  c.with_base ? w_buffer.address() : 0,
                                  a_buffer.address(),
                                  b_buffer.address(),
                                  y.address(),
                                  low.address(),
                                  c.n,
                                  c.k,
                                  c.rank,
                                  scale};
    auto recorder = must(Recorder::begin(device()));
    kernels_->lora.lora_vector(recorder, params, scalar(c.weights), scalar(c.act),
                               {c.sharing, c.threads, c.group_rows, c.slices, c.at_once});
    const Status recorded = kernels_->status();
    ASSERT_TRUE(recorded.ok()) << recorded.error().message;
    const CommandBuffer recording = must(std::move(recorder).end());

    const std::vector<double> x_wide(x.begin(), x.end());
    const auto low_want = product(a, x_wide, c.rank);
    auto want = product(b, low_want, c.n);
    const auto base = product(w, x_wide, c.n);
    for (size_t i = 0; i < want.size(); i++) want[i] = scale * want[i] + (c.with_base ? base[i] : 0.0);
    // Values are below 1, so a sum of k products is of the order of sqrt(k) / 3, and one of rank such sums that times
    // sqrt(rank) / 3.
    const double magnitude = std::sqrt(c.k) * (1 + scale * std::sqrt(c.rank));
    const double tolerance = sum_tolerance(c.k) + unit_roundoff(c.act);

    std::vector<std::byte> first;
    for (int replay = 0; replay < 3; replay++) {
        std::memset(y.mapped().data(), 0xff, y_bytes);
        run(recording);
        const auto got = content(y, room, c.act);
        expect_near(want, got.data(), tolerance, magnitude, "replay " + std::to_string(replay));
        for (uint32_t i = round_up(c.n, 2); i < room; i++)
            EXPECT_TRUE(is_poison(got[i])) << "element " << i << " was written";
        const auto bytes = content<std::byte>(y, y_bytes);
        if (replay > 0) {
            EXPECT_EQ(bytes, first) << "other bits in replay " << replay;
        }
        first = bytes;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LoraVector,
    ::testing::Values(LoraCase{512, 512, 8, Type::kF32, Type::kF32, true, LowSharing::kAuto},
                      LoraCase{512, 512, 8, Type::kF16, Type::kF16, true, LowSharing::kAlways},
                      LoraCase{2048, 2048, 8, Type::kF16, Type::kF16, false, LowSharing::kAuto},
                      LoraCase{2048, 2048, 64, Type::kF32, Type::kF32, false, LowSharing::kAuto},
                      LoraCase{1024, 1024, 64, Type::kF16, Type::kF16, false, LowSharing::kNever},
                      LoraCase{97, 200, 3, Type::kBf16, Type::kF32, true, LowSharing::kAlways},
                      LoraCase{97, 200, 3, Type::kBf16, Type::kF16, true, LowSharing::kNever},
                      LoraCase{250, 72, 17, Type::kF32, Type::kF16, false, LowSharing::kAlways},
                      LoraCase{1, 8, 1, Type::kF32, Type::kF32, true, LowSharing::kAlways},
                      LoraCase{320, 256, 512, Type::kF16, Type::kF32, true, LowSharing::kAlways},
                      LoraCase{320, 256, 512, Type::kF16, Type::kF32, false, LowSharing::kNever},
                      // As many subgroups as on a GPU, so that k is cut: evenly, with a rest, into more slices than it
                      // has chunks for.
                      LoraCase{256, 512, 8, Type::kF32, Type::kF32, true, LowSharing::kNever, 256},
                      LoraCase{256, 512, 8, Type::kF16, Type::kF16, true, LowSharing::kAlways, 128, 2},
                      LoraCase{97, 1000, 3, Type::kF32, Type::kF32, true, LowSharing::kNever, 256, 16},
                      LoraCase{97, 1000, 3, Type::kF16, Type::kF16, true, LowSharing::kAlways, 256, 16},
                      LoraCase{33, 8, 1, Type::kBf16, Type::kF32, true, LowSharing::kAlways, 64, 8, 8},
                      LoraCase{97, 1000, 3, Type::kF32, Type::kF32, true, LowSharing::kAlways, 256, 16, 32},
                      LoraCase{130, 1352, 19, Type::kF32, Type::kF16, false, LowSharing::kAlways, 256, 4},
                      LoraCase{130, 1352, 19, Type::kF16, Type::kF32, false, LowSharing::kNever, 128, 64},
                      LoraCase{512, 2048, 64, Type::kF16, Type::kF16, false, LowSharing::kAuto, 256, 32},
                      LoraCase{130, 1352, 8, Type::kF32, Type::kF32, true, LowSharing::kNever, 64, 16, 2, 16},
                      LoraCase{512, 2048, 8, Type::kF16, Type::kF16, true, LowSharing::kAlways, 128, 8, 1, 16},
                      LoraCase{130, 1352, 11, Type::kF32, Type::kF32, false, LowSharing::kAlways, 64, 8, 4, 1},
                      LoraCase{40, 4096, 512, Type::kF16, Type::kF32, false, LowSharing::kAlways, 512, 2},
                      // Fewer threads than a subgroup are not to be had.
                      LoraCase{7, 64, 3, Type::kF32, Type::kF32, false, LowSharing::kNever, 1},
                      LoraCase{7, 64, 3, Type::kF32, Type::kF32, true, LowSharing::kNever, 4}));

class LoraVectorBits : public KernelTest, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(LoraVectorBits, BitsDoNotDependOnWhoComputesTheLowRankPart) {
    const uint32_t threads = GetParam();
    constexpr uint32_t kN = 512, kK = 1024, kRank = 24;
    const Buffer x = input(reference::encode(reference::random_values(kK, Type::kF32, random_), kK, kK, Type::kF32));
    const Buffer w =
        input(reference::encode(reference::random_values(kN * kK, Type::kF16, random_), kK, kK, Type::kF16));
    const Buffer a =
        input(reference::encode(reference::random_values(kRank * kK, Type::kF16, random_), kK, kK, Type::kF16));
    const Buffer b =
        input(reference::encode(reference::random_values(kN * kRank, Type::kF16, random_), kRank, kRank, Type::kF16));
    const Buffer low = input(std::vector<uint32_t>(kLoraVectorScratchBytes / 4, 0));
    std::vector<std::vector<float>> results;
    // The same scratch for grids of several sizes, and for counts that are about to wrap.
    auto* counts = reinterpret_cast<uint32_t*>(low.mapped().data());
    for (const bool wraps : {false, true}) {
        if (wraps) {
            std::fill_n(counts, kLoraVectorCountBytes / 4, 0u - 1u);
        }
        for (const LowSharing sharing : {LowSharing::kNever, LowSharing::kAlways, LowSharing::kAlways}) {
            for (const uint32_t n : {kN, kN / 4, kN}) {
                const Buffer y = poisoned(kN * 4);
                const LoraVectorParams params{x.address(),   w.address(), a.address(), b.address(), y.address(),
                                              low.address(), n,           kK,          kRank,       2.0f};
                execute([&](Recorder& recorder) {
                    kernels_->lora.lora_vector(recorder, params, ScalarType::kF16, ScalarType::kF32,
                                               {sharing, threads});
                });
                if (n == kN) results.push_back(content<float>(y, kN));
            }
        }
    }
    for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

INSTANTIATE_TEST_SUITE_P(Threads, LoraVectorBits, ::testing::Values(0u, 64u, 256u));

// Without a base's part k is cut, and workgroups tell each other sums of several slices.
TEST_F(KernelTest, LoraVectorsBitsDoNotDependOnWhoAddsUpTheSlices) {
    constexpr uint32_t kN = 320, kK = 2048, kRank = 20, kRank8 = 24;
    const Buffer x = input(reference::encode(reference::random_values(kK, Type::kF32, random_), kK, kK, Type::kF32));
    const Buffer a =
        input(reference::encode(reference::random_values(kRank * kK, Type::kF32, random_), kK, kK, Type::kF32));
    const Buffer b =
        input(reference::encode(reference::random_values(kN * kRank, Type::kF32, random_), kRank, kRank8, Type::kF32));
    const Buffer low = input(std::vector<uint32_t>(kLoraVectorScratchBytes / 4, 0));
    for (const uint32_t slices : {1u, 4u, 8u}) {
        std::vector<std::vector<float>> results;
        for (const LowSharing sharing : {LowSharing::kNever, LowSharing::kAlways, LowSharing::kAlways}) {
            const Buffer y = poisoned(kN * 4);
            const LoraVectorParams params{x.address(),   0,  a.address(), b.address(), y.address(),
                                          low.address(), kN, kK,          kRank,       2.0f};
            execute([&](Recorder& recorder) {
                kernels_->lora.lora_vector(recorder, params, ScalarType::kF32, ScalarType::kF32,
                                           {.sharing = sharing, .threads = 256, .group_rows = 32, .slices = slices});
            });
            results.push_back(content<float>(y, kN));
        }
        for (const auto& result : results) EXPECT_EQ(result, results[0]) << slices << " slices";
    }
}

// As many workgroups as have counts, and more.
class LoraVectorGroups : public KernelTest, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(LoraVectorGroups, KeepToTheirScratch) {
    const uint32_t n = 2 * GetParam();
    constexpr uint32_t kK = 8, kScratchWords = kLoraVectorScratchBytes / 4, kWordsBehind = 2 * kLoraVectorGroupsMax;
    const auto x = reference::random_values(kK, Type::kF32, random_),
               a = reference::random_values(kK, Type::kF32, random_);
    const auto b = reference::random_values(n, Type::kF32, random_);
    const Buffer x_buffer = input(reference::encode(x, kK, kK, Type::kF32)),
                 a_buffer = input(reference::encode(a, kK, kK, Type::kF32));
    const Buffer b_buffer = input(reference::encode(b, 1, 8, Type::kF32));
    const Buffer low = input(std::vector<uint32_t>(kScratchWords + kWordsBehind, 0));
    const Buffer y = poisoned(n * 4);
    const LoraVectorParams params{
        x_buffer.address(), 0, a_buffer.address(), b_buffer.address(), y.address(), low.address(), n, kK, 1, 1.0f};
    for (int dispatch = 0; dispatch < 2; dispatch++) {
        execute([&](Recorder& recorder) {
            kernels_->lora.lora_vector(recorder, params, ScalarType::kF32, ScalarType::kF32,
                                       {.sharing = LowSharing::kAlways, .threads = 8, .group_rows = 2});
        });
    }
    const double sum = product(a, {x.begin(), x.end()}, 1)[0];
    const auto got = content<float>(y, n);
    for (uint32_t i = 0; i < n; i++) ASSERT_NEAR(got[i], b[i] * sum, 1e-5) << "element " << i;
    const auto scratch = content<uint32_t>(low, kScratchWords + kWordsBehind);
    EXPECT_EQ(std::count(scratch.begin() + kScratchWords, scratch.end(), 0u), kWordsBehind)
        << "words behind the scratch were written";
}

INSTANTIATE_TEST_SUITE_P(Groups, LoraVectorGroups,
                         ::testing::Values(kLoraVectorGroupsMax - 1, kLoraVectorGroupsMax, kLoraVectorGroupsMax + 1));

struct NormalizeCase {
    RowOperation operation;
    uint32_t n_columns, rows;
    Type type;
    float bound;
    uint32_t row_threads = 0;
};

class RowNormalize : public KernelTest, public ::testing::WithParamInterface<NormalizeCase> {};

std::vector<double> normalized(const NormalizeCase& c, const float* x, const std::vector<float>& gamma,
                               const std::vector<float>& beta, double value) {
    const size_t n = c.n_columns;
    std::vector<double> y(x, x + n);
    if (c.operation == RowOperation::kSoftmax) {
        double sum = 0, top = -INFINITY;
        for (const double v : y) top = std::max(top, value * v);
        for (double& v : y) {
            v = std::exp(value * v - top);
            sum += v;
        }
        for (double& v : y) v /= sum;
        return y;
    }
    double mean = 0, squares = 0;
    if (c.operation == RowOperation::kLayerNorm) {
        for (const double v : y) mean += v / static_cast<double>(n);
    }
    for (double& v : y) {
        v -= mean;
        squares += v * v;
    }
    for (size_t i = 0; i < n; i++) {
        y[i] = y[i] / std::sqrt(squares / static_cast<double>(n) + value) * gamma[i];
        if (c.operation == RowOperation::kLayerNorm) y[i] += beta[i];
    }
    return y;
}

// All columns of a subgroup but the first are masked, and the others are low.
TEST_F(KernelTest, SoftmaxOfAMaskedRowIsThatOfItsRest) {
    constexpr uint32_t kColumns = 1024, kLeft = 16;
    std::vector<float> x(kColumns, -INFINITY);
    std::fill_n(x.begin(), kLeft, -100.0f);
    const Buffer from = input(x);
    for (const uint32_t threads : {8u, 32u, 128u}) {
        const Buffer to = poisoned(kColumns * 4);
        execute([&](Recorder& recorder) {
            kernels_->rows.row_normalize(recorder, RowOperation::kSoftmax,
                                         {from.address(), to.address(), 0, 0, kColumns, kColumns, kColumns, 1.0f},
                                         ScalarType::kF32, 1, threads);
        });
        const auto got = content<float>(to, kColumns);
        for (uint32_t i = 0; i < kColumns; i++)
            ASSERT_FLOAT_EQ(got[i], i < kLeft ? 1.0f / kLeft : 0.0f) << "column " << i << ", " << threads << " threads";
    }
}

TEST_P(RowNormalize, MatchesTheReferenceAndKeepsToItsRows) {
    const NormalizeCase c = GetParam();
    const uint32_t stride = round_up(c.n_columns, 8) + 8, written = round_up(c.n_columns, 4);
    auto x = reference::random_values(size_t{c.rows} * c.n_columns, c.type, random_, c.bound);
    // Far from zero, where a variance by squares of sums would cancel.
    if (c.operation == RowOperation::kLayerNorm) {
        for (float& v : x) v = reference::rounded(v + 64.0f, c.type);
    }
    const auto gamma = reference::random_values(stride, Type::kF32, random_),
               beta = reference::random_values(stride, Type::kF32, random_);
    const float value = c.operation == RowOperation::kSoftmax ? 0.5f : 1e-5f;
    const Buffer x_buffer = input(reference::encode(x, c.n_columns, stride, c.type));
    const Buffer gamma_buffer = input(gamma), beta_buffer = input(beta);
    const Buffer y = poisoned(uint64_t{c.rows + 1} * stride * 4);
    const RowNormalizeParams params{x_buffer.address(),
                                    y.address(),
                                    gamma_buffer.address(),
                                    beta_buffer.address(),
                                    c.n_columns,
                                    stride,
                                    stride,
                                    value};
    execute([&](Recorder& recorder) {
        kernels_->rows.row_normalize(recorder, c.operation, params, scalar(c.type), c.rows, c.row_threads);
    });

    const auto got = content(y, size_t{c.rows + 1} * stride, c.type);
    // f32 arithmetic over one row; layer norm takes a mean of 64 from values whose own error is 64 times the roundoff
    // of f32.
    const double tolerance = unit_roundoff(c.type) + 4e-5;
    for (uint32_t t = 0; t < c.rows; t++) {
        const float* row = &got[size_t{t} * stride];
        const auto want = normalized(c, &x[size_t{t} * c.n_columns], gamma, beta, value);
        const double largest = std::ranges::max(want, {}, [](double v) { return std::fabs(v); });
        expect_near(want, row, tolerance, std::fabs(largest), "row " + std::to_string(t));
        for (uint32_t i = c.n_columns; i < written; i++) EXPECT_EQ(row[i], 0.0f) << "padding of row " << t;
        for (uint32_t i = written; i < stride; i++) EXPECT_TRUE(is_poison(row[i])) << "behind row " << t;
    }
    for (uint32_t i = 0; i < stride; i++)
        EXPECT_TRUE(is_poison(got[size_t{c.rows} * stride + i])) << "the row after the last";
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RowNormalize,
    ::testing::Values(NormalizeCase{RowOperation::kSoftmax, 1024, 64, Type::kF32, 4.0f},
                      NormalizeCase{RowOperation::kSoftmax, 1024, 3, Type::kF16, 4.0f},
                      NormalizeCase{RowOperation::kSoftmax, 5, 2, Type::kF32, 200.0f},
                      NormalizeCase{RowOperation::kSoftmax, 4099, 2, Type::kBf16, 60.0f},
                      NormalizeCase{RowOperation::kLayerNorm, 1024, 64, Type::kF32, 2.0f},
                      NormalizeCase{RowOperation::kLayerNorm, 1024, 3, Type::kF16, 2.0f},
                      NormalizeCase{RowOperation::kLayerNorm, 39, 4, Type::kF32, 2.0f},
                      NormalizeCase{RowOperation::kRmsNorm, 1024, 64, Type::kF32, 2.0f},
                      NormalizeCase{RowOperation::kRmsNorm, 1024, 3, Type::kF16, 2.0f},
                      NormalizeCase{RowOperation::kRmsNorm, 70, 5, Type::kBf16, 2.0f},
                      // One subgroup, of 8 threads or what the device has, and many; rows that end within a thread's
                      // first or second four columns, or subgroups before the last.
                      NormalizeCase{RowOperation::kSoftmax, 1024, 4, Type::kF16, 4.0f, 8},
                      NormalizeCase{RowOperation::kSoftmax, 1024, 4, Type::kF32, 4.0f, 128},
                      NormalizeCase{RowOperation::kSoftmax, 523, 3, Type::kF16, 8.0f, 256},
                      NormalizeCase{RowOperation::kSoftmax, 518, 3, Type::kBf16, 8.0f, 16},
                      NormalizeCase{RowOperation::kLayerNorm, 1024, 4, Type::kF32, 2.0f, 256},
                      NormalizeCase{RowOperation::kLayerNorm, 1024, 4, Type::kF16, 2.0f, 8},
                      NormalizeCase{RowOperation::kLayerNorm, 523, 3, Type::kF32, 2.0f, 256},
                      NormalizeCase{RowOperation::kLayerNorm, 3001, 2, Type::kBf16, 2.0f},
                      NormalizeCase{RowOperation::kLayerNorm, 61, 3, Type::kF16, 2.0f, 64},
                      NormalizeCase{RowOperation::kRmsNorm, 1024, 4, Type::kF16, 2.0f, 64},
                      NormalizeCase{RowOperation::kRmsNorm, 519, 3, Type::kF16, 2.0f, 128},
                      NormalizeCase{RowOperation::kRmsNorm, 9, 3, Type::kF32, 2.0f, 8}));

class ReadStream : public KernelTest {};

TEST_F(ReadStream, ReadsEveryWordOfAnyLength) {
    constexpr uint32_t kMarker = 0xabcdef01;
    for (const uint32_t n_words : {1u, 31u, 32u, 255u, 256u, 1000u, 4096u, 40001u}) {
        std::vector<uint32_t> words(size_t{n_words + 1} * 4, 7);
        std::fill(words.end() - 4, words.end(), kMarker);  // behind the end
        const Buffer from = input(words);
        auto* mapped = reinterpret_cast<uint32_t*>(from.mapped().data());
        const auto found = [&] {
            const Buffer to = input(std::vector<uint32_t>{0});
            const ReadStreamParams params{from.address(), to.address(), n_words, kMarker};
            execute([&](Recorder& recorder) { kernels_->rows.read_stream(recorder, params, 8); });
            return content<uint32_t>(to, 1)[0];
        };
        EXPECT_EQ(found(), 0u) << n_words << " words, read beyond the end";
        for (const uint32_t at : {0u, n_words / 3, n_words / 2, n_words - 1}) {
            std::fill_n(mapped + size_t{at} * 4, 4, kMarker);
            EXPECT_EQ(found(), 1u) << "word " << at << " of " << n_words << " was not read";
            std::fill_n(mapped + size_t{at} * 4, 4, 7);
        }
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::vector_test
