#include "gpu/kernels/train/train_kernels.h"
#include "tests/gpu/kernels/train_fixture.h"
#include "tests/reference/gradient.h"

namespace lorad::gpu::testing::train_test {
namespace {

using reference::gradient;
using reference::to_doubles;

// Central differences are right to about 1e-9 of the values, so that only the kernels' own f32 counts: sums of a row,
// and exp, which has a few units of the last place.
constexpr double kRowTolerance = 1e-5;

struct ProductCase {
    uint32_t m, n, k;
    bool a_is_m_major, b_is_n_major, adds;
    Type a_type, b_type;
};

class TrainProductTest : public TrainKernelTest, public ::testing::WithParamInterface<ProductCase> {};

TEST_P(TrainProductTest, MatchesTheReference) {
    const ProductCase c = GetParam();
    const uint32_t a_columns = c.a_is_m_major ? c.m : c.k, b_columns = c.b_is_n_major ? c.n : c.k;
    const uint32_t a_stride = padded(a_columns), b_stride = padded(b_columns), c_stride = c.n + 3;
    const auto a = random(size_t{c.m} * c.k, 1.0f, c.a_type), b = random(size_t{c.n} * c.k, 1.0f, c.b_type),
               before = random(size_t{c.m} * c_stride);
    const Buffer a_at = rows(a, a_columns, a_stride, c.a_type), b_at = rows(b, b_columns, b_stride, c.b_type),
                 c_at = result(before);
    execute([&](Recorder& recorder) {
        kernels_.product(recorder, {.a = {a_at.address(), a_stride, scalar(c.a_type)},
                                    .b = {b_at.address(), b_stride, scalar(c.b_type)},
                                    .c = {c_at.address(), c_stride},
                                    .a_is_m_major = c.a_is_m_major,
                                    .b_is_n_major = c.b_is_n_major,
                                    .m = c.m,
                                    .n = c.n,
                                    .k = c.k,
                                    .alpha = 0.5f,
                                    .adds = c.adds});
    });
    const auto got = content<float>(c_at, before.size());
    std::vector<double> want(before.begin(), before.end());
    for (size_t i = 0; i < c.m; i++) {
        for (size_t j = 0; j < c.n; j++) {
            double sum = 0;
            for (size_t l = 0; l < c.k; l++)
                sum += double{c.a_is_m_major ? a[l * c.m + i] : a[i * c.k + l]} *
                       (c.b_is_n_major ? b[l * c.n + j] : b[j * c.k + l]);
            want[i * c_stride + j] = 0.5 * sum + (c.adds ? before[i * c_stride + j] : 0.0f);
        }
    }
    // What lies between the rows of c stays: there the wanted value is what was there.
    expect_near(want, got.data(), sum_tolerance(c.k), std::sqrt(c.k), "product");
}

INSTANTIATE_TEST_SUITE_P(Shapes, TrainProductTest,
                         ::testing::Values(ProductCase{20, 70, 96, false, false, false, Type::kF32, Type::kBf16},
                                           ProductCase{65, 130, 33, false, true, false, Type::kF32, Type::kF16},
                                           ProductCase{77, 8, 40, false, false, true, Type::kF32, Type::kF32},
                                           ProductCase{5, 129, 19, true, true, true, Type::kF32, Type::kF32},
                                           ProductCase{200, 6, 21, true, true, true, Type::kF32, Type::kF32},
                                           ProductCase{1, 1, 1, false, false, false, Type::kF32, Type::kF32},
                                           ProductCase{9, 48, 300, false, true, true, Type::kF32, Type::kBf16}));

TEST_F(TrainKernelTest, ProductsOfOneDispatchKeepToTheirOwnSizes) {
    const uint32_t stride = 64, c_stride = 40;
    const auto a = random(64 * stride), b = random(64 * stride);
    const std::vector<TrainProductItem> items = {{0, 4, 0, 7, 33, 20, 0},
                                                 {8 * stride, 16 * stride, 10 * c_stride, 11, 5, 12, 0}};
    const Buffer a_at = input(a), b_at = input(b), items_at = input(items),
                 c_at = result(std::vector<float>(30 * c_stride, 7.0f));
    execute([&](Recorder& recorder) {
        kernels_.product(recorder, {.a = {a_at.address(), stride},
                                    .b = {b_at.address(), stride},
                                    .c = {c_at.address(), c_stride},
                                    .m = 11,
                                    .n = 33,
                                    .k = 20,
                                    .items = items_at.address(),
                                    .n_items = 2});
    });
    std::vector<double> want(30 * c_stride, 7.0);
    for (const TrainProductItem& item : items) {
        for (uint32_t i = 0; i < item.m; i++) {
            for (uint32_t j = 0; j < item.n; j++) {
                double sum = 0;
                for (uint32_t l = 0; l < item.k; l++)
                    sum += double{a[item.a + i * stride + l]} * b[item.b + j * stride + l];
                want[item.c + i * c_stride + j] = sum;
            }
        }
    }
    expect_near(want, content<float>(c_at, want.size()).data(), sum_tolerance(20), 5.0, "items");
}

// Whichever way the device multiplies the weights' type.
TEST_F(TrainKernelTest, FewRowsHaveTheSameBitsWhoeverIsBesideThem) {
    const std::unique_ptr<TrainKernels> kernels =
        must(TrainKernels::create(device(), {.matrix_type = ScalarType::kBf16}));
    constexpr uint32_t kSide = 320, kAll = 300, kOwn = 64, kFirst = 130, kRoom = 384;
    const uint64_t row_bytes = kSide * sizeof(float);
    ASSERT_TRUE(kernels->reserve(device(), uint64_t{kRoom} * kSide * 2).ok());
    const auto a = random(size_t{kRoom} * kSide), b = random(size_t{kSide} * kSide, 1.0f, Type::kBf16);
    const Buffer a_at = input(a), b_at = rows(b, kSide, kSide, Type::kBf16);
    for (const bool is_transposed : {false, true}) {
        const Buffer all = result(std::vector<float>(size_t{kRoom} * kSide)),
                     own = result(std::vector<float>(128 * kSide));
        auto recorder = must(Recorder::begin(device()));
        for (const bool is_alone : {false, true}) {
            kernels->product(recorder, {.a = {a_at.address() + (is_alone ? kFirst * row_bytes : 0), kSide},
                                        .b = {b_at.address(), kSide, ScalarType::kBf16},
                                        .c = {is_alone ? own.address() : all.address(), kSide},
                                        .b_is_n_major = is_transposed,
                                        .m = is_alone ? kOwn : kAll,
                                        .n = kSide,
                                        .k = kSide,
                                        .is_padded = true,
                                        .has_few_rows = true});
            kernels->barrier(recorder);
        }
        ASSERT_TRUE(kernels->status().ok());
        run(must(std::move(recorder).end()));
        const auto of_all = content<float>(all, size_t{kAll} * kSide),
                   of_own = content<float>(own, size_t{kOwn} * kSide);
        double apart = 0, norm = 0;
        for (size_t i = 0; i < of_own.size(); i++) {
            ASSERT_EQ(of_own[i], of_all[kFirst * kSide + i]) << i;
            double want = 0;
            for (size_t l = 0; l < kSide; l++)
                want += double{a[kFirst * kSide + i / kSide * kSide + l]} *
                        b[is_transposed ? l * kSide + i % kSide : i % kSide * kSide + l];
            apart += (of_own[i] - want) * (of_own[i] - want);
            norm += want * want;
        }
        // a is rounded to 8 bits where matrices multiply: 2^-9 of each factor at most, at random.
        EXPECT_LT(std::sqrt(apart / norm), 2e-3);
    }
}

TEST_F(TrainKernelTest, NormsAndTheirGradientsMatchTheReference) {
    const uint32_t hidden = 70, stride = 128, n_rows = 3;
    const auto x = random(5 * hidden, 3.0f), gamma = random(hidden), dy = random(n_rows * hidden),
               dx_before = random(5 * stride);
    const std::vector<uint32_t> from = {4, 0, 2};
    const Buffer x_at = rows(x, hidden, stride), gamma_at = input(gamma), rows_at = input(from),
                 y_at = poisoned(n_rows * stride * 4);
    const Buffer dy_at = rows(dy, hidden, stride), dx_at = result(dx_before), terms_at = poisoned(n_rows * stride * 4);
    const TrainNormParams params{.x = x_at.address(),
                                 .gamma = gamma_at.address(),
                                 .y = y_at.address(),
                                 .dy = dy_at.address(),
                                 .dx = dx_at.address(),
                                 .terms = terms_at.address(),
                                 .rows = rows_at.address(),
                                 .hidden = hidden,
                                 .x_stride = stride,
                                 .y_stride = stride,
                                 .eps = 1e-5f};
    execute([&](Recorder& recorder) {
        kernels_.norm(recorder, TrainDirection::kForward, params, n_rows);
        kernels_.norm(recorder, TrainDirection::kBackward, params, n_rows);
    });
    std::vector<double> want_dx(dx_before.begin(), dx_before.end());
    const std::vector<float> ones(hidden, 1.0f);
    for (uint32_t t = 0; t < n_rows; t++) {
        const auto row = to_doubles({&x[size_t{from[t]} * hidden], hidden}),
                   row_dy = to_doubles({&dy[size_t{t} * hidden], hidden});
        const auto norm = [&](std::span<const double> at) { return reference::rms_norm(at, gamma, 1e-5); };
        expect_near(norm(row), &content<float>(y_at, n_rows * stride)[t * stride], kRowTolerance, 1.0, "normed");
        const Vector dx = gradient(norm, row, row_dy);
        for (uint32_t h = 0; h < hidden; h++) want_dx[from[t] * stride + h] += dx[h];
        Vector terms = reference::rms_norm(row, ones, 1e-5);
        for (uint32_t h = 0; h < hidden; h++) terms[h] *= row_dy[h];
        expect_near(terms, &content<float>(terms_at, n_rows * stride)[t * stride], kRowTolerance, 1.0,
                    "terms of gamma");
        for (uint32_t h = hidden; h < stride; h++)
            ASSERT_EQ(content<float>(y_at, n_rows * stride)[t * stride + h], 0.0f);
    }
    expect_near(want_dx, content<float>(dx_at, want_dx.size()).data(), kRowTolerance, 1.0, "gradient of x");
}

class TrainHeadsTest : public TrainKernelTest, public ::testing::WithParamInterface<bool> {};

TEST_P(TrainHeadsTest, NormAndRopeOfHeadsAndTheirGradientsMatchTheReference) {
    const bool has_norm = GetParam();
    const uint32_t head_dim = 12, rotary_dim = 8, n_q = 3, n_k = 1, n_rows = 2, y_stride = 64, turned_stride = 56,
                   n_heads = n_q + n_k;
    const auto y = random(n_rows * n_heads * head_dim), q_gamma = random(head_dim), k_gamma = random(head_dim),
               rope = random(5 * rotary_dim), dturned = random(n_rows * n_heads * head_dim);
    const std::vector<uint32_t> turns = {4, 1};
    const Buffer y_at = rows(y, n_heads * head_dim, y_stride), q_at = input(q_gamma), k_at = input(k_gamma),
                 rope_at = input(rope), turns_at = input(turns);
    const Buffer turned_at = poisoned(n_rows * turned_stride * 4),
                 dturned_at = rows(dturned, n_heads * head_dim, turned_stride), dy_at = poisoned(n_rows * y_stride * 4),
                 terms_at = poisoned(n_rows * turned_stride * 4);
    TrainHeadsParams params{.y = y_at.address(),
                            .turned = turned_at.address(),
                            .dy = dy_at.address(),
                            .terms = has_norm ? terms_at.address() : 0,
                            .rope = rope_at.address(),
                            .turns = turns_at.address(),
                            .q_gamma = has_norm ? q_at.address() : 0,
                            .k_gamma = has_norm ? k_at.address() : 0,
                            .n_q_heads = n_q,
                            .y_stride = y_stride,
                            .turned_stride = turned_stride,
                            .eps = 1e-6f};
    execute([&](Recorder& recorder) {
        kernels_.heads(recorder, TrainDirection::kForward, params, n_heads, head_dim, rotary_dim, n_rows);
        params.turned = dturned_at.address();
        kernels_.heads(recorder, TrainDirection::kBackward, params, n_heads, head_dim, rotary_dim, n_rows);
    });
    for (uint32_t t = 0; t < n_rows; t++) {
        for (uint32_t h = 0; h < n_heads; h++) {
            const size_t at = (size_t{t} * n_heads + h) * head_dim, column = size_t{h} * head_dim;
            const auto head = to_doubles({&y[at], head_dim}), d = to_doubles({&dturned[at], head_dim});
            const auto turn = [&](std::span<const double> from) {
                Vector value = has_norm ? reference::rms_norm(from, h < n_q ? q_gamma : k_gamma, 1e-6)
                                        : Vector(from.begin(), from.end());
                reference::rope(value, rotary_dim, {&rope[size_t{turns[t]} * rotary_dim], rotary_dim});
                return value;
            };
            expect_near(turn(head), &content<float>(turned_at, n_rows * turned_stride)[t * turned_stride + column],
                        kRowTolerance, 2.0, "turned");
            expect_near(gradient(turn, head, d), &content<float>(dy_at, n_rows * y_stride)[t * y_stride + column],
                        kRowTolerance, 10.0, "gradient of y");
            if (!has_norm) continue;
            const Vector normed = reference::rms_norm(head, std::vector<float>(head_dim, 1.0f), 1e-6);
            const auto rope_alone = [&](std::span<const double> from) {
                Vector value(from.begin(), from.end());
                reference::rope(value, rotary_dim, {&rope[size_t{turns[t]} * rotary_dim], rotary_dim});
                return value;
            };
            Vector terms = gradient(rope_alone, normed, d);
            for (uint32_t i = 0; i < head_dim; i++) terms[i] *= normed[i];
            expect_near(terms, &content<float>(terms_at, n_rows * turned_stride)[t * turned_stride + column],
                        kRowTolerance, 4.0, "terms of gamma");
        }
    }
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutNorm, TrainHeadsTest, ::testing::Bool());

class TrainSoftmaxTest : public TrainKernelTest, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(TrainSoftmaxTest, ProbabilitiesAndTheirGradientsMatchTheReference) {
    const uint32_t window = GetParam();
    // Queries 6 to 8 of one sequence, and the only three of another.
    const std::vector<TrainScores> runs = {{0, 3, 9, 64, 6}, {3 * 64, 3, 3, 64, 0}};
    const auto scores = random(6 * 64, 4.0f), dp = random(6 * 64);
    const Buffer runs_at = input(runs), scores_at = result(scores), dscores_at = result(dp);
    const TrainSoftmaxParams params{.items = runs_at.address(),
                                    .scores = scores_at.address(),
                                    .dscores = dscores_at.address(),
                                    .scale = 0.7f,
                                    .window = window};
    execute([&](Recorder& recorder) {
        kernels_.softmax(recorder, TrainDirection::kForward, params, 3, 2);
        recorder.barrier();
        kernels_.softmax(recorder, TrainDirection::kBackward, params, 3, 2);
    });
    const auto got = content<float>(scores_at, scores.size()), got_d = content<float>(dscores_at, dp.size());
    for (const TrainScores& run : runs) {
        for (uint32_t row = 0; row < run.n_queries; row++) {
            const size_t at = run.at + row * run.stride;
            const uint32_t query = run.first_query + row, end = query + 1,
                           begin = window != 0 && end > window ? end - window : 0;
            const auto softmax = [&](std::span<const double> s) {
                Vector p(run.n_keys);
                double sum = 0;
                for (uint32_t j = begin; j < end; j++) sum += p[j] = std::exp(0.7 * s[j]);
                for (double& value : p) value /= sum;
                return p;
            };
            const auto s = to_doubles({&scores[at], run.n_keys});
            expect_near(softmax(s), &got[at], kRowTolerance, 1.0, "probabilities");
            expect_near(gradient(softmax, s, to_doubles({&dp[at], run.n_keys})), &got_d[at], kRowTolerance, 1.0,
                        "gradient of scores");
            for (uint32_t j = run.n_keys; j < run.stride; j++)
                ASSERT_EQ(got[at + j], scores[at + j]) << "written beyond the keys";
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Windows, TrainSoftmaxTest, ::testing::Values(0u, 2u, 100u));

TEST_F(TrainKernelTest, TheActivationAndItsGradientsMatchTheReference) {
    const uint32_t ffn = 70, n_rows = 2, y_stride = 192, h_stride = 128;
    const auto y = random(n_rows * 2 * ffn, 3.0f), dh = random(n_rows * ffn);
    const Buffer y_at = rows(y, 2 * ffn, y_stride), h_at = poisoned(n_rows * h_stride * 4),
                 dh_at = rows(dh, ffn, h_stride), dy_at = poisoned(n_rows * y_stride * 4);
    TrainActParams params{.y = y_at.address(),
                          .h = h_at.address(),
                          .dy = dy_at.address(),
                          .ffn = ffn,
                          .y_stride = y_stride,
                          .h_stride = h_stride,
                          .rows = n_rows};
    execute([&](Recorder& recorder) {
        kernels_.act(recorder, TrainDirection::kForward, params, ScalarType::kF32);
        params.h = dh_at.address();
        kernels_.act(recorder, TrainDirection::kBackward, params, ScalarType::kF32);
    });
    for (uint32_t t = 0; t < n_rows; t++) {
        const auto act = [&](std::span<const double> row) {
            Vector h(ffn);
            for (uint32_t f = 0; f < ffn; f++) h[f] = reference::silu(row[f]) * row[ffn + f];
            return h;
        };
        const auto row = to_doubles({&y[size_t{t} * 2 * ffn], 2 * ffn});
        expect_near(act(row), &content<float>(h_at, n_rows * h_stride)[t * h_stride], kRowTolerance, 3.0, "activation");
        expect_near(gradient(act, row, to_doubles({&dh[size_t{t} * ffn], ffn})),
                    &content<float>(dy_at, n_rows * y_stride)[t * y_stride], kRowTolerance, 3.0,
                    "gradient of gate and up");
        for (uint32_t f = ffn; f < h_stride; f++)
            ASSERT_EQ(content<float>(h_at, n_rows * h_stride)[t * h_stride + f], 0.0f);
    }
}

class TrainIn16BitsTest : public TrainKernelTest, public ::testing::WithParamInterface<Type> {
  protected:
    // The error of rounding to the type, relative.
    double rounding() const { return GetParam() == Type::kBf16 ? 0x1p-8 : 0x1p-11; }
    std::vector<float> decoded(const Buffer& buffer, size_t n) const { return content(buffer, n, GetParam()); }
};

TEST_P(TrainIn16BitsTest, TheActivationKeepsWhatItComputesWithAndItsGradientsMatchTheReference) {
    const uint32_t ffn = 72, n_rows = 2, y_stride = 192, h_stride = 128;
    const auto sums = random(n_rows * 2 * ffn, 3.0f), dh = random(n_rows * ffn);
    const Buffer sums_at = rows(sums, 2 * ffn, y_stride), dh_at = rows(dh, ffn, h_stride);
    const Buffer y_at = poisoned(n_rows * y_stride * 2), h_at = poisoned(n_rows * h_stride * 2),
                 again_at = poisoned(n_rows * h_stride * 2), dy_at = poisoned(n_rows * y_stride * 2);
    TrainActParams params{.y = y_at.address(),
                          .h = h_at.address(),
                          .dy = dy_at.address(),
                          .sums = sums_at.address(),
                          .ffn = ffn,
                          .y_stride = y_stride,
                          .h_stride = h_stride,
                          .rows = n_rows};
    const ScalarType type = scalar(GetParam());
    execute([&](Recorder& recorder) {
        kernels_.act(recorder, TrainDirection::kForward, params, type);
        recorder.barrier();
        params.sums = 0;
        params.h = again_at.address();
        kernels_.act(recorder, TrainDirection::kForward, params, type);
        params.h = dh_at.address();
        kernels_.act(recorder, TrainDirection::kBackward, params, type);
    });
    EXPECT_EQ(content<uint16_t>(h_at, n_rows * h_stride), content<uint16_t>(again_at, n_rows * h_stride))
        << "computed again from what is kept";
    const auto y = decoded(y_at, n_rows * y_stride), h = decoded(h_at, n_rows * h_stride),
               dy = decoded(dy_at, n_rows * y_stride);
    for (uint32_t t = 0; t < n_rows; t++) {
        const auto act = [&](std::span<const double> row) {
            Vector made(ffn);
            for (uint32_t f = 0; f < ffn; f++) made[f] = reference::silu(row[f]) * row[ffn + f];
            return made;
        };
        const auto row = to_doubles({&y[size_t{t} * y_stride], 2 * ffn});
        expect_near(to_doubles({&sums[size_t{t} * 2 * ffn], 2 * ffn}), &y[t * y_stride], rounding(), 3.0,
                    "gate and up");
        expect_near(act(row), &h[t * h_stride], rounding(), 9.0, "activation");
        expect_near(gradient(act, row, to_doubles({&dh[size_t{t} * ffn], ffn})), &dy[t * y_stride], rounding(), 9.0,
                    "gradient of gate and up");
        for (uint32_t f = ffn; f < h_stride; f++) ASSERT_EQ(h[t * h_stride + f], 0.0f);
    }
}

TEST_P(TrainIn16BitsTest, NormsRoundTheirResults) {
    const uint32_t hidden = 70, stride = 128, n_rows = 3;
    const auto x = random(n_rows * hidden, 3.0f), gamma = random(hidden);
    const Buffer x_at = rows(x, hidden, stride), gamma_at = input(gamma), y_at = poisoned(n_rows * stride * 2);
    execute([&](Recorder& recorder) {
        kernels_.norm(recorder, TrainDirection::kForward,
                      {.x = x_at.address(),
                       .gamma = gamma_at.address(),
                       .y = y_at.address(),
                       .hidden = hidden,
                       .x_stride = stride,
                       .y_stride = stride,
                       .eps = 1e-5f},
                      n_rows, scalar(GetParam()));
    });
    const auto y = decoded(y_at, n_rows * stride);
    for (uint32_t t = 0; t < n_rows; t++) {
        expect_near(reference::rms_norm(to_doubles({&x[size_t{t} * hidden], hidden}), gamma, 1e-5), &y[t * stride],
                    rounding(), 2.0, "normed");
        for (uint32_t h = hidden; h < stride; h++) ASSERT_EQ(y[t * stride + h], 0.0f);
    }
}

TEST_P(TrainIn16BitsTest, FragmentsHaveWhatTheRowsHave) {
    const ScalarType to = scalar(GetParam());
    const uint32_t n_rows = 21, columns = 71, stride = 80, fragments_stride = 128, n_blocks_rows = 32;
    for (const Type from : {Type::kF32, GetParam()}) {
        const auto x = random(n_rows * columns, 3.0f, from);
        const Buffer x_at = rows(x, columns, stride, from), blocks_at = poisoned(n_blocks_rows * fragments_stride * 2);
        execute([&](Recorder& recorder) {
            kernels_.fragments(recorder,
                               {.x = x_at.address(),
                                .fragments = blocks_at.address(),
                                .k = columns,
                                .x_stride = stride,
                                .fragments_stride = fragments_stride,
                                .rows = n_rows},
                               scalar(from), to);
        });
        const auto got = decoded(blocks_at, n_blocks_rows * fragments_stride);
        for (uint32_t t = 0; t < n_rows; t++) {
            for (uint32_t c = 0; c < fragments_stride; c++) {
                const float want = c < columns ? x[t * columns + c] : 0.0f;
                ASSERT_NEAR(got[fragment_offset(t, c, fragments_stride, kFragmentsByRows) / 2], want,
                            rounding() * std::abs(want))
                    << "row " << t << ", column " << c;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Types, TrainIn16BitsTest, ::testing::Values(Type::kF16, Type::kBf16));

TEST_F(TrainKernelTest, CrossEntropyAndItsGradientMatchTheReference) {
    const uint32_t vocab = 333, stride = 384, n_rows = 6;
    const auto logits = random(n_rows * vocab, 8.0f);
    // Those with a ratio to the log-probability that a token was sampled with are importance sampling's.
    std::vector<TrainTarget> targets = {{0, 1.0f, 0, 0}, {332, 0.25f, 0, 0}, {0, 2.0f, 0, 0},
                                        {7, 1.5f, 0, 1}, {100, -0.5f, 0, 1}, {331, 0.0f, 0, 1}};
    targets[2].token =
        static_cast<uint32_t>(std::max_element(&logits[2 * vocab], &logits[3 * vocab - 1] + 1) - &logits[2 * vocab]);
    for (uint32_t t = 3; t < n_rows; t++) {  // ratios from 0.6 to 1.7
        double sum = 0;
        for (uint32_t n = 0; n < vocab; n++) sum += std::exp(double{logits[t * vocab + n]});
        targets[t].sampled = static_cast<float>(logits[t * vocab + targets[t].token] - std::log(sum) + 0.5 * (4.0 - t));
    }
    std::vector<float> wide(n_rows * stride, NAN);
    for (size_t i = 0; i < logits.size(); i++) wide[i / vocab * stride + i % vocab] = logits[i];
    const Buffer logits_at = result(wide), targets_at = input(targets),
                 losses_at = poisoned(n_rows * sizeof(TrainLoss));
    execute([&](Recorder& recorder) {
        kernels_.cross_entropy(recorder,
                               {.logits = logits_at.address(),
                                .targets = targets_at.address(),
                                .losses = losses_at.address(),
                                .vocab = vocab,
                                .stride = stride},
                               true, n_rows);
    });
    const auto losses = content<TrainLoss>(losses_at, n_rows);
    const auto got = content<float>(logits_at, n_rows * stride);
    for (uint32_t t = 0; t < n_rows; t++) {
        const auto loss = [&](std::span<const double> z) {
            double sum = 0;
            for (const double value : z) sum += std::exp(value);
            const double log_probability = z[targets[t].token] - std::log(sum);
            return targets[t].has_ratio != 0
                       ? Vector{-targets[t].weight * std::exp(log_probability - double{targets[t].sampled})}
                       : Vector{-targets[t].weight * log_probability};
        };
        const auto z = to_doubles({&logits[size_t{t} * vocab], vocab});
        expect_near(loss(z), &losses[t].loss, kRowTolerance, 10.0, "loss");
        EXPECT_EQ(losses[t].is_best, t == 2 ? 1u : 0u);
        double sum = 0;
        for (const double value : z) sum += std::exp(value);
        EXPECT_NEAR(losses[t].log_probability, z[targets[t].token] - std::log(sum), 1e-5);
        expect_near(gradient(loss, z, Vector{1.0}), &got[t * stride], kRowTolerance, 1.0, "gradient of logits");
        for (uint32_t n = vocab; n < stride; n++) ASSERT_EQ(got[t * stride + n], 0.0f);
    }
}

TEST_F(TrainKernelTest, EmbeddingsAndTheirGradientsGoByToken) {
    const uint32_t vocab = 10, hidden = 70, stride = 128;
    const auto table = random(vocab * hidden, 1.0f, Type::kBf16), dx = random(4 * hidden),
               before = random(vocab * stride);
    const std::vector<uint32_t> tokens = {7, 2, 7, 0};
    const std::vector<TrainTokenRows> token_rows = {{0, 0, 1}, {2, 1, 1}, {7, 2, 2}};
    const std::vector<uint32_t> rows_by_token = {3, 1, 0, 2};
    const Buffer table_at = rows(table, hidden, stride, Type::kBf16), tokens_at = input(tokens),
                 x_at = poisoned(4 * stride * 4);
    const Buffer dx_at = rows(dx, hidden, stride), token_rows_at = input(token_rows), rows_at = input(rows_by_token),
                 dtable_at = result(before);
    execute([&](Recorder& recorder) {
        kernels_.embed(recorder,
                       {.table = table_at.address(),
                        .tokens = tokens_at.address(),
                        .x = x_at.address(),
                        .hidden = hidden,
                        .table_stride = stride,
                        .x_stride = stride,
                        .pad = 0},
                       ScalarType::kBf16, false, 4);
        kernels_.embed_backward(recorder,
                                {.tokens = token_rows_at.address(),
                                 .rows = rows_at.address(),
                                 .dx = dx_at.address(),
                                 .dtable = dtable_at.address(),
                                 .hidden = hidden,
                                 .x_stride = stride,
                                 .table_stride = stride,
                                 .pad = 0},
                                false, 3);
    });
    const auto x = dense(x_at, 4, hidden, stride);
    std::vector<double> want(before.begin(), before.end());
    for (uint32_t t = 0; t < 4; t++) {
        for (uint32_t h = 0; h < hidden; h++) {
            ASSERT_EQ(x[t * hidden + h], table[tokens[t] * hidden + h]);
            want[tokens[t] * stride + h] += dx[t * hidden + h];
        }
    }
    expect_near(want, content<float>(dtable_at, want.size()).data(), sum_tolerance(3), 1.0, "gradient of the table");
}

TEST_F(TrainKernelTest, TransposedTablesGiveTheSame) {
    const uint32_t vocab = 10, rank = 3, stride = 64, x_stride = 8;
    const auto a = random(rank * vocab), dlow = random(2 * rank);
    const std::vector<uint32_t> tokens = {9, 4}, rows_by_token = {1, 0};
    const std::vector<TrainTokenRows> token_rows = {{4, 0, 1}, {9, 1, 1}};
    const Buffer a_at = rows(a, vocab, stride), tokens_at = input(tokens), low_at = poisoned(2 * x_stride * 4),
                 dlow_at = rows(dlow, rank, x_stride), token_rows_at = input(token_rows),
                 rows_at = input(rows_by_token);
    const Buffer da_at = result(std::vector<float>(rank * stride, 1.0f));
    execute([&](Recorder& recorder) {
        kernels_.embed(recorder,
                       {.table = a_at.address(),
                        .tokens = tokens_at.address(),
                        .x = low_at.address(),
                        .hidden = rank,
                        .table_stride = stride,
                        .x_stride = x_stride,
                        .pad = 0},
                       ScalarType::kF32, true, 2);
        kernels_.embed_backward(recorder,
                                {.tokens = token_rows_at.address(),
                                 .rows = rows_at.address(),
                                 .dx = dlow_at.address(),
                                 .dtable = da_at.address(),
                                 .hidden = rank,
                                 .x_stride = x_stride,
                                 .table_stride = stride,
                                 .pad = 0},
                                true, 2);
    });
    const auto low = dense(low_at, 2, rank, x_stride);
    std::vector<double> want(rank * stride, 1.0);
    for (uint32_t t = 0; t < 2; t++) {
        for (uint32_t r = 0; r < rank; r++) {
            EXPECT_EQ(low[t * rank + r], a[r * vocab + tokens[t]]);
            want[r * stride + tokens[t]] += dlow[t * rank + r];
        }
    }
    expect_near(want, content<float>(da_at, want.size()).data(), 1e-7, 2.0, "gradient of A");
}

TEST_F(TrainKernelTest, AdamwStepsAsPyTorchDoes) {
    const uint32_t n = 1000;
    const auto values = random(n), gradients = random(n, 5.0f), first = random(n), second = random(n);
    std::vector<float> squares = second;
    for (float& value : squares) value *= value;
    const Buffer values_at = result(values), gradients_at = input(gradients), first_at = result(first),
                 second_at = result(squares), sums_at = poisoned(4 * sizeof(float));
    const double rate = 0.01, decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-5, k = 3, factor = 0.25;
    const TrainGradNormParams norm{
        .gradients = gradients_at.address(), .sums = sums_at.address(), .n = n, .n_per_group = 300};
    ASSERT_EQ(TrainKernels::grad_norm_groups(norm), 4u);
    execute([&](Recorder& recorder) {
        kernels_.grad_norm(recorder, norm);
        kernels_.adamw(recorder, {.values = values_at.address(),
                                  .gradients = gradients_at.address(),
                                  .first = first_at.address(),
                                  .second = second_at.address(),
                                  .n = n,
                                  .factor = static_cast<float>(factor),
                                  .keep = static_cast<float>(1 - rate * decay),
                                  .one_minus_beta1 = static_cast<float>(1 - beta1),
                                  .beta2 = static_cast<float>(beta2),
                                  .one_minus_beta2 = static_cast<float>(1 - beta2),
                                  .step_size = static_cast<float>(rate / (1 - std::pow(beta1, k))),
                                  .root = static_cast<float>(std::sqrt(1 - std::pow(beta2, k))),
                                  .eps = static_cast<float>(eps),
                                  .pad = 0});
    });
    Vector want(n), want_first(n), want_second(n), sums(4);
    for (uint32_t i = 0; i < n; i++) {
        const double g = factor * gradients[i];
        sums[i / 300] += double{gradients[i]} * gradients[i];
        want_first[i] = beta1 * first[i] + (1 - beta1) * g;
        want_second[i] = beta2 * squares[i] + (1 - beta2) * g * g;
        want[i] =
            values[i] * (1 - rate * decay) - rate / (1 - std::pow(beta1, k)) * want_first[i] /
                                                 (std::sqrt(want_second[i]) / std::sqrt(1 - std::pow(beta2, k)) + eps);
    }
    expect_near(sums, content<float>(sums_at, 4).data(), sum_tolerance(300), 3000.0, "sums of squares");
    expect_near(want_first, content<float>(first_at, n).data(), 1e-6, 1.0, "first moments");
    expect_near(want_second, content<float>(second_at, n).data(), 1e-6, 1.0, "second moments");
    expect_near(want, content<float>(values_at, n).data(), 1e-6, 2.0, "values");
}

}  // namespace
}  // namespace lorad::gpu::testing::train_test
