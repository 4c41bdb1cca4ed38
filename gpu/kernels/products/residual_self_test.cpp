// At start-up: a product that ends in the residual stream, and a product and a gated one behind the norm that it
// defers, against f64.
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/ladder_tests.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/deferred_norm.h"
#include "gpu/kernels/self_test.h"

namespace lorad::gpu {

using namespace self_test;

namespace {

// Products are exact in f32, sums of a few hundred of them, and a norm's factor, are not.
constexpr double kSumTolerance = 1e-5;
// Results are rounded to 8 bits (bf16) or more.
constexpr double kRoundedTolerance = 4e-3;

struct ResidualTest {
    // A k of which subgroups have different numbers of steps; columns may be 14 for a workgroup, as in 7B, or 8, as in
    // 1.5B: matrices are not full, and of the latter a lane has one row.
    static constexpr uint32_t kHidden = 448, kK = 1280, kOut = 256, kFfn = kOut / 2,
                              kBufferRows = kDeferredRows + kSlackRows;
    static constexpr float kEps = 1e-6f;

    ScalarType type = ScalarType::kF16;
    Buffer count, w, x, bias, stream, gamma, xn, norms, w_out, y;
    // as the host reads them fast
    std::vector<float> w_values, x_values, w_out_values, bias_values, gamma_values, old_stream;

    static Result<ResidualTest> create(Device& device, ScalarType type) {
        ResidualTest test;
        test.type = type;
        TRY(make(device, test.count, 16, MemoryKind::kHostUpload));
        TRY(make(device, test.w, uint64_t{kHidden} * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.x, uint64_t{kBufferRows} * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.bias, kHidden * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.gamma, kHidden * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.w_out, uint64_t{kOut} * kHidden * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.stream, uint64_t{kDeferredRows} * kHidden * 4, MemoryKind::kHostReadback));
        TRY(make(device, test.xn, uint64_t{kBufferRows} * kHidden * 2, MemoryKind::kHostReadback));
        TRY(make(device, test.norms, deferred_norm_bytes(kHidden), MemoryKind::kHostReadback));
        TRY(make(device, test.y, uint64_t{kProductSplits} * kBufferRows * kOut * 4, MemoryKind::kHostReadback));
        std::mt19937 random(25);
        test.w_values = random_values(type, kHidden * kK, random, &test.w);
        test.x_values = random_values(type, kBufferRows * kK, random, &test.x);
        test.w_out_values = random_values(type, kOut * kHidden, random, &test.w_out);
        test.bias_values = random_values(ScalarType::kF32, kHidden, random, &test.bias);
        test.gamma_values = random_values(ScalarType::kF32, kHidden, random, &test.gamma);
        test.old_stream = random_values(ScalarType::kF32, kDeferredRows * kHidden, random, nullptr);
        return test;
    }

    // What is not as it should be with this plan, of which all rows are there.
    std::optional<Deviation> run(Device& device, KernelSet& kernels, const MatmulPlan& plan) {
        const uint32_t rows = plan.rows;
        Deviation exact, rounded;
        exact.add(run_residual(device, kernels, plan), sums(rows));
        if (!(exact.error <= kSumTolerance)) return exact;
        rounded.add(xn_values(rows), scaled(rows));
        if (!(rounded.error <= kRoundedTolerance)) return rounded;
        const std::vector<float> want = products(rows);
        exact.add(run_behind(device, kernels, plan, false), want);
        if (!(exact.error <= kSumTolerance)) return exact;
        std::vector<float> act(size_t{rows} * kFfn);
        for (uint32_t i = 0; i < act.size(); ++i) {
            const float gate = want[size_t{i / kFfn} * kOut + i % kFfn],
                        up = want[size_t{i / kFfn} * kOut + kFfn + i % kFfn];
            act[i] = gate / (1.0f + std::exp(-gate)) * up;
        }
        rounded.add(run_behind(device, kernels, plan, true), act);
        if (!(rounded.error <= kRoundedTolerance)) return rounded;
        return std::nullopt;
    }

  private:
    static constexpr uint32_t kProductSplits = 4;
    // of the norm before, and what becomes of it
    static constexpr float kInverse = 3.0f, kScale = kInverse / kDeferredMargin;

    template <typename T>
    static const T* at(const Buffer& buffer) {
        return reinterpret_cast<const T*>(buffer.mapped().data());
    }
    float element(const Buffer& buffer, size_t i) const { return decode16(at<uint16_t>(buffer)[i], type); }

    // The buffer, if any, gets the same.
    static std::vector<float> random_values(ScalarType type, size_t n, std::mt19937& random, Buffer* buffer) {
        std::vector<std::byte> bytes(n * bytes_of(type));
        fill_random(bytes, type, random);
        if (buffer != nullptr) std::memcpy(buffer->mapped().data(), bytes.data(), bytes.size());
        std::vector<float> values(n);
        for (size_t i = 0; i < n; ++i) {
            if (type == ScalarType::kF32)
                std::memcpy(&values[i], &bytes[i * 4], 4);
            else
                values[i] = decode16(reinterpret_cast<const uint16_t*>(bytes.data())[i], type);
        }
        return values;
    }

    Result<std::vector<float>> run_residual(Device& device, KernelSet& kernels, const MatmulPlan& plan) {
        std::memcpy(count.mapped().data(), &plan.rows, 4);
        std::memcpy(stream.mapped().data(), old_stream.data(), old_stream.size() * 4);
        std::memset(xn.mapped().data(), 0, xn.size());
        std::memset(norms.mapped().data(), 0xff, norms.size());
        for (uint32_t t = 0; t < kDeferredRows; ++t)
            std::memcpy(norms.mapped().data() + kDeferredInverse + t * 4, &kInverse, 4);
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        MatmulParams product{};
        product.n_rows = count.address();
        product.w = w.address();
        product.x = x.address();
        product.n = kHidden;
        product.k = product.w_stride = product.x_stride = kK;
        kernels.products.record(recorder, plan,
                                {.product = product,
                                 .residual = {.bias = bias.address(),
                                              .stream = stream.address(),
                                              .gamma = gamma.address(),
                                              .xn = xn.address(),
                                              .norms = norms.address(),
                                              .stream_stride = kHidden,
                                              .xn_stride = kHidden}});
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        return std::vector<float>(at<float>(stream), at<float>(stream) + size_t{plan.rows} * kHidden);
    }

    std::vector<float> sums(uint32_t rows) const {
        std::vector<float> want(size_t{rows} * kHidden);
        for (uint32_t i = 0; i < want.size(); ++i) {
            const uint32_t t = i / kHidden, n = i % kHidden;
            double sum = double{old_stream[i]} + bias_values[n];
            for (uint32_t k = 0; k < kK; ++k)
                sum += double{w_values[size_t{n} * kK + k]} * x_values[size_t{t} * kK + k];
            want[i] = static_cast<float>(sum);
        }
        return want;
    }

    std::vector<float> xn_values(uint32_t rows) const {
        std::vector<float> values(size_t{rows} * kHidden);
        for (size_t i = 0; i < values.size(); ++i) values[i] = element(xn, i);
        return values;
    }
    std::vector<float> scaled(uint32_t rows) const {
        std::vector<float> values(size_t{rows} * kHidden);
        for (size_t i = 0; i < values.size(); ++i)
            values[i] = at<float>(stream)[i] * gamma_values[i % kHidden] * kScale;
        return values;
    }

    // Of the norm of the stream, from xn as it was rounded.
    std::vector<float> products(uint32_t rows) const {
        const std::vector<float> normed = xn_values(rows);
        std::vector<float> want(size_t{rows} * kOut);
        for (uint32_t t = 0; t < rows; ++t) {
            double squares = 0;
            for (uint32_t n = 0; n < kHidden; ++n) squares += std::pow(at<float>(stream)[size_t{t} * kHidden + n], 2.0);
            const double factor = 1.0 / std::sqrt(squares / kHidden + kEps) / kScale;
            for (uint32_t n = 0; n < kOut; ++n) {
                double sum = 0;
                for (uint32_t k = 0; k < kHidden; ++k)
                    sum += double{normed[size_t{t} * kHidden + k]} * w_out_values[size_t{n} * kHidden + k];
                want[size_t{t} * kOut + n] = static_cast<float>(sum * factor);
            }
        }
        return want;
    }

    Result<std::vector<float>> run_behind(Device& device, KernelSet& kernels, const MatmulPlan& residual, bool gated) {
        std::memset(y.mapped().data(), 0xff, y.size());
        const uint32_t rows = residual.rows;
        const std::optional<MatmulPlan> found =
            kernels.products.plan({.n = gated ? 2 * kFfn : kOut,
                                   .k = kHidden,
                                   .type = type,
                                   .rows = rows,
                                   .max_splits = gated ? 1 : kProductSplits,
                                   .norm_is_deferred = true,
                                   .result = gated ? ProductResult::kGated : ProductResult::kSums});
        if (!found) return make_error(ErrorCode::kInternal, "no product can follow it");
        const MatmulPlan& plan = *found;
        MatmulParams product{};
        product.n_rows = count.address();
        product.w = w_out.address();
        product.x = xn.address();
        product.y = y.address();
        product.n = product.y_stride = gated ? kFfn : kOut;
        product.k = product.w_stride = product.x_stride = kHidden;
        product.split_stride = kBufferRows * kOut;
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        kernels.products.record(
            recorder, plan,
            {.product = product,
             .norm = {
                 .norms = norms.address(), .hidden = kHidden, .eps = kEps, .n_tiles = residual.column_tiles(kHidden)}});
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        std::vector<float> all(size_t{rows} * product.n);
        for (uint32_t i = 0; i < all.size(); ++i) {
            if (gated) {
                all[i] = element(y, i);
                continue;
            }
            for (uint32_t split = 0; split < plan.n_splits; ++split)
                all[i] += at<float>(y)[size_t{split} * product.split_stride + i];
        }
        return all;
    }
};

}  // namespace

Status test_residual(LadderTests& tests, ScalarType type) {
    if (!tests.ladder().has(RungId::kGated, type)) {
        tests.ladder().drop(RungId::kResidual, type);
        return ok_status();
    }
    TRY_ASSIGN(ResidualTest test, ResidualTest::create(tests.device(), type));
    const GatedProducts wanted = std::exchange(tests.options().gated, GatedProducts::kAlways);
    for (const auto& [rows, columns] : {std::pair{5u, 14u}, {13u, 8u}}) {
        std::optional<MatmulPlan> plan = tests.kernels().products.plan({.n = ResidualTest::kHidden,
                                                                        .k = ResidualTest::kK,
                                                                        .type = type,
                                                                        .rows = rows,
                                                                        .result = ProductResult::kResidual});
        if (!plan) {
            tests.ladder().drop(RungId::kResidual, type);
            break;
        }
        plan->column_tile = columns;
        const std::optional<Deviation> deviation = test.run(tests.device(), tests.kernels(), *plan);
        if (!deviation) continue;
        tests.leave_out_by_lanes(RungId::kResidual, type, "matmul_residual", *deviation);
        break;
    }
    tests.options().gated = wanted;
    return ok_status();
}

}  // namespace lorad::gpu
