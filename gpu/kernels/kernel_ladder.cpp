#include "gpu/kernels/kernel_ladder.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/queue.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::gpu {
namespace {

constexpr std::array kShortTypes = {ScalarType::kF16, ScalarType::kBf16};

const char* path_name(KernelPath path) {
    switch (path) {
        case KernelPath::kAuto: return "auto";
        case KernelPath::kPortable: return "portable";
        case KernelPath::kCoopmat: return "coopmat";
        case KernelPath::kCoopmat2: return "coopmat2";
    }
    return "?";
}

// One small product, run by several plans over the same random data.
struct TestProduct {
    static constexpr uint32_t kN = 512, kK = 512, kRows = 20;
    static constexpr uint32_t kBufferRows = round_up(kRows, kSlackRows) + kSlackRows;

    Buffer count, w, x, y;

    static Result<TestProduct> create(Device& device, ScalarType type) {
        TestProduct test;
        TRY_ASSIGN(test.count, device.create_buffer(16, MemoryKind::kHostUpload, "self-test count"));
        TRY_ASSIGN(test.w, device.create_buffer(kN * kK * 2, MemoryKind::kHostUpload, "self-test weights"));
        TRY_ASSIGN(test.x, device.create_buffer(kBufferRows * kK * 2, MemoryKind::kHostUpload, "self-test activations"));
        TRY_ASSIGN(test.y, device.create_buffer(uint64_t{4} * kBufferRows * kN * 4, MemoryKind::kHostReadback,
                                                "self-test result"));
        std::mt19937 random(20);
        const auto fill = [&](const Buffer& buffer) {
            const std::span<std::byte> bytes = buffer.mapped();
            // Any exponent of one eighth to just below four, any sign and mantissa.
            for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
                const auto bits = static_cast<uint32_t>(random());
                const uint32_t exponent = type == ScalarType::kF16 ? 12 + (bits >> 16) % 4 : 124 + (bits >> 16) % 4;
                const uint32_t mantissa_bits = type == ScalarType::kF16 ? 10 : 7;
                const auto value = static_cast<uint16_t>((bits & 0x8000u) | (exponent << mantissa_bits) |
                                                         (bits & ((1u << mantissa_bits) - 1)));
                std::memcpy(bytes.data() + i, &value, 2);
            }
        };
        fill(test.w);
        fill(test.x);
        std::memcpy(test.count.mapped().data(), &kRows, 4);
        return test;
    }

    // The sum over splits, rows kRows.
    Result<std::vector<float>> run(Device& device, KernelSet& kernels, const MatmulPlan& plan) {
        const uint32_t split_stride = kBufferRows * kN;
        std::memset(y.mapped().data(), 0xff, y.size());
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        MatmulParams params{};
        params.n_rows = count.address();
        params.w = w.address();
        params.x = x.address();
        params.y = y.address();
        params.n = kN;
        params.k = params.w_stride = params.x_stride = kK;
        params.y_stride = kN;
        params.split_stride = split_stride;
        kernels.matmul(recorder, params, plan);
        TRY(kernels.status());
        recorder.barrier();
        TRY_ASSIGN(const CommandBuffer recording, std::move(recorder).end());
        const CommandBuffer* const list[] = {&recording};
        TRY_ASSIGN(const uint64_t done, device.compute_queue().submit(list));
        TRY(device.compute_queue().wait(done));
        std::vector<float> sum(size_t{kRows} * kN);
        const auto* values = reinterpret_cast<const float*>(y.mapped().data());
        for (uint32_t split = 0; split < plan.n_splits; split++) {
            for (size_t i = 0; i < sum.size(); i++) sum[i] += values[size_t{split} * split_stride + i];
        }
        return sum;
    }
};

// Norm of the difference over norm of the reference; NaN counts as infinite.
double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); i++) {
        difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
        norm += double{want[i]} * want[i];
    }
    const double error = std::sqrt(difference / norm);
    return std::isfinite(error) ? error : INFINITY;
}

// Products are exact in f32 and only the order of 512 sums differs; a wrong element costs more than this.
constexpr double kSelfTestTolerance = 1e-5;

}  // namespace

KernelPath KernelLadder::path() const {
    if (coopmat2[1] || coopmat2[2]) return KernelPath::kCoopmat2;
    return coopmat[1] || coopmat[2] ? KernelPath::kCoopmat : KernelPath::kPortable;
}

KernelLadder ladder_of(const DeviceCapabilities& capabilities, KernelPath path) {
    KernelLadder ladder;
    if (path == KernelPath::kPortable || capabilities.is_cpu) return ladder;
    // The smallest tile and its subgroups must fit; see kCoopmatTiles.
    const bool fits = capabilities.subgroup_size >= 8 && capabilities.shared_memory_bytes >= 32 * 1024 &&
                      capabilities.max_workgroup_invocations >= 4 * capabilities.subgroup_size;
    ladder.coopmat[1] = fits && capabilities.coopmat_f16 && has_kernel_module("matmul_coopmat_f16");
    ladder.coopmat[2] = fits && capabilities.bfloat16_coopmat && has_kernel_module("matmul_coopmat_bf16");
    // Only on request: with the same tiles it is slower than KHR matrices wherever it was measured (docs/REJECTED.md).
    if (path != KernelPath::kCoopmat2) return ladder;
    ladder.coopmat2[1] = ladder.coopmat[1] && capabilities.coopmat2 && has_kernel_module("matmul_coopmat2_f16");
    ladder.coopmat2[2] = ladder.coopmat[2] && capabilities.coopmat2_bfloat16 && has_kernel_module("matmul_coopmat2_bf16");
    return ladder;
}

Status KernelSet::climb_ladder() {
    const KernelPath wanted = options_.path;
    ladder_ = ladder_of(device_.capabilities(), wanted);
    for (const ScalarType type : kShortTypes) {
        if (!ladder_.has(type)) continue;
        const auto type_idx = static_cast<uint32_t>(type);
        TRY_ASSIGN(TestProduct test, TestProduct::create(device_, type));
        const auto error_of = [&](const MatmulPlan& plan, const std::vector<float>& want) -> Result<double> {
            TRY_ASSIGN(const std::vector<float> got, test.run(device_, *this, plan));
            return relative_error(got, want);
        };
        MatmulPlan portable;
        portable.variant = MatmulVariant::kTiled;
        portable.k_per_split = TestProduct::kK;
        portable.row_tile = 32;
        portable.column_tile = 64;
        portable.rows = TestProduct::kRows;
        portable.weight_type = portable.act_type = type;
        TRY_ASSIGN(const std::vector<float> want, test.run(device_, *this, portable));
        for (const MatmulVariant variant : {MatmulVariant::kGemv, MatmulVariant::kCoopmat, MatmulVariant::kCoopmat2}) {
            if (variant == MatmulVariant::kCoopmat2 && !ladder_.has2(type)) continue;
            const MatmulPlan plan = plan_fast(variant, TestProduct::kN, TestProduct::kK, type, TestProduct::kRows, 4);
            Result<double> error = error_of(plan, want);
            if (error.ok() && error.value() <= kSelfTestTolerance) continue;
            forget_error();
            log_warn("kernels: {} on {} fails its self-test ({}); it is not used", variant_name(plan), device_.capabilities().name,
                     error.ok() ? lorad::format("relative error {:.1e}", error.value()) : error.error().message);
            ladder_.coopmat2[type_idx] = false;
            if (variant != MatmulVariant::kCoopmat2) ladder_.coopmat[type_idx] = false;
            if (variant != MatmulVariant::kCoopmat2) break;
        }
    }
    options_.path = ladder_.path();
    if (wanted != KernelPath::kAuto && options_.path != wanted) {
        return make_error(ErrorCode::kInvalidConfig,
                          lorad::format("kernel path {}: not available on {}; the best that works there is {}", path_name(wanted),
                                        device_.capabilities().name, path_name(options_.path)));
    }
    return ok_status();
}

}  // namespace lorad::gpu
