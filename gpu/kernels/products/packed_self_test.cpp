// At start-up: a small product of packed weights in each of the model's formats on matrices, against the portable one.
#include <bit>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/ladder_tests.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/packed_tiles.h"
#include "gpu/kernels/self_test.h"
#include "proto/base/format.h"

namespace lorad::gpu {

using namespace self_test;

namespace packed_test {

constexpr uint32_t kN = 176, kK = 640;  // the last workgroup has bands that there are not, the last split fewer steps
constexpr uint32_t kBufferRows = 64 + kSlackRows;

// Scales between 2^-4 and 2^-3, with a mantissa.
uint16_t small_half(std::mt19937& random) { return static_cast<uint16_t>(0x2c00u | (random() & 0x3ff)); }

void put(std::span<std::byte> to, size_t at, uint32_t value, size_t n_bytes) {
    std::memcpy(to.data() + at, &value, n_bytes);
}

// What the records have beside bits that may be any.
void put_scales(uint32_t format, std::span<std::byte> record, std::span<std::byte> second, std::mt19937& random) {
    switch (static_cast<WeightFormat>(format)) {
        case WeightFormat::kQ8_0:
        case WeightFormat::kQ4_0:
        case WeightFormat::kQ4_1:
        case WeightFormat::kQ5_0:
        case WeightFormat::kQ5_1:
        case WeightFormat::kIQ4_NL:
            for (size_t i = 0; i < record.size(); i += 2) put(record, i, small_half(random), 2);
            return;
        case WeightFormat::kQ4_K:
        case WeightFormat::kQ5_K:
            for (size_t i = 0; i < 4; i += 2) put(record, i, small_half(random), 2);
            return;
        case WeightFormat::kQ6_K: return put(second, 0, small_half(random), 2);
        case WeightFormat::kIQ4_XS: return put(record, 0, small_half(random), 2);
        case WeightFormat::kMXFP4:
            for (std::byte& e : record) e = static_cast<std::byte>(120 + random() % 8);
            return;
        case WeightFormat::kTable:
        case WeightFormat::kFP8:
            for (size_t i = 0; i < record.size(); i += 4)
                put(record, i, std::bit_cast<uint32_t>(0.25f) | (random() & 0x7fffff), 4);
            return;
        default:
            for (size_t i = 0; i < record.size(); i += 4) put(record, i, small_half(random) | (random() % 16) << 16, 4);
    }
}

void fill_part(uint32_t format, std::span<std::byte> part, std::mt19937& random) {
    fill_random(part.first(kPartAlign), ScalarType::kF32, random);  // the table among it
    const uint32_t first = record_bytes(format), second = second_record_bytes(format);
    for (size_t brick = kPartAlign; brick < part.size(); brick += brick_bytes(format)) {
        const std::span<std::byte> bytes = part.subspan(brick, brick_bytes(format));
        for (std::byte& byte : bytes) {
            byte = static_cast<std::byte>(random());
            if (format == kWeightsFP8 && (byte & std::byte{0x7f}) == std::byte{0x7f}) byte = std::byte{0};  // no NaN
        }
        for (uint32_t row = 0; row < kBrickRows; ++row) {
            const uint32_t records = record_offset(format);
            put_scales(format, bytes.subspan(records + row * first, first),
                       bytes.subspan(records + kBrickRows * first + row * second, second), random);
        }
    }
}

struct PackedProduct {
    Buffer count, w, x, y;

    static Result<PackedProduct> create(Device& device, WeightFormat format, ScalarType type) {
        PackedProduct test;
        TRY(make(device, test.count, 16, MemoryKind::kHostUpload));
        TRY(make(device, test.w, kPartAlign + bytes_of(format, kN, kK), MemoryKind::kHostUpload));
        TRY(make(device, test.x, uint64_t{kBufferRows} * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.y, uint64_t{4} * kBufferRows * padded(kN) * 4, MemoryKind::kHostReadback));
        std::mt19937 random(54);
        fill_part(number_of(format), test.w.mapped(), random);
        fill_random(test.x.mapped(), type, random);
        return test;
    }

    // The sum over splits, of `rows` rows.
    Result<std::vector<float>> run(Device& device, KernelSet& kernels, const MatmulPlan& plan) {
        std::memcpy(count.mapped().data(), &plan.rows, sizeof plan.rows);
        std::memset(y.mapped().data(), 0xff, y.size());
        MatmulParams params{};
        params.n_rows = count.address();
        params.w = w.address() + kPartAlign;
        params.x = x.address();
        params.y = y.address();
        params.n = kN;
        params.y_stride = padded(kN);
        params.k = params.w_stride = params.x_stride = kK;
        params.split_stride = kBufferRows * padded(kN);
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        kernels.products.record(recorder, plan, {.product = params});
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        const auto* values = reinterpret_cast<const float*>(y.mapped().data());
        std::vector<float> sums(size_t{plan.rows} * kN);
        for (size_t i = 0; i < sums.size(); ++i) {
            for (uint32_t split = 0; split < plan.n_splits; ++split)
                sums[i] += values[(size_t{split} * kBufferRows + i / kN) * padded(kN) + i % kN];
        }
        return sums;
    }
};

// Weights and, of integer codes, their scales and minima are rounded to the type: 2^-11 or 2^-8 each. A wrong element
// costs more.
double tolerance_of(ScalarType type) { return type == ScalarType::kF16 ? 2e-3 : 1.6e-2; }

}  // namespace packed_test

Status LadderTests::packed(ScalarType type) {
    using namespace packed_test;
    for (uint32_t format = kWeightsQ8_0; format < kWeightFormats; ++format) {
        if ((facts_.options.packed_formats >> format & 1u) == 0 || !is_for_matrices(static_cast<WeightFormat>(format)))
            continue;
        TRY_ASSIGN(PackedProduct test, PackedProduct::create(device_, static_cast<WeightFormat>(format), type));
        for (const PackedTile& tile : kPackedTiles) {
            MatmulPlan plan = *kernels_.products.plan_by(
                MatmulVariant::kPacked,
                {.n = kN, .k = kK, .type = type, .formats = 1u << format, .align = kBrickRows, .rows = tile.rows - 3});
            plan.n_splits = 2;
            plan.k_per_split = kK / 5 * 3;
            MatmulPlan portable = plan;
            portable.variant = MatmulVariant::kTiled;
            portable.row_tile = 16;
            portable.column_tile = 64;
            portable.n_splits = 1;
            portable.k_per_split = kK;
            TRY_ASSIGN(const std::vector<float> want, test.run(device_, kernels_, portable));
            Deviation deviation;
            deviation.add(test.run(device_, kernels_, plan), want);
            if (deviation.error <= tolerance_of(type)) continue;
            facts_.ladder.packed[static_cast<uint32_t>(type)] = false;
            tell_left_out_by_lanes(
                lorad::format("matmul_packed of {} by {} rows", name_of(static_cast<WeightFormat>(format)), tile.rows),
                device_, deviation);
            return ok_status();
        }
    }
    return ok_status();
}

}  // namespace lorad::gpu
