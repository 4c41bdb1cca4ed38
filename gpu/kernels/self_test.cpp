#include "gpu/kernels/self_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/queue.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::gpu::self_test {
namespace {

// Norm of the difference over norm of the reference; NaN counts as infinite.
double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
        norm += double{want[i]} * want[i];
    }
    const double error = std::sqrt(difference / norm);
    return std::isfinite(error) ? error : INFINITY;
}

}  // namespace

void fill_random(std::span<std::byte> bytes, ScalarType type, std::mt19937& random) {
    constexpr uint32_t kMantissaBits[] = {23, 10, 7}, kExponents[] = {124, 12, 124};
    const uint32_t mantissa_bits = kMantissaBits[static_cast<uint32_t>(type)], n_bytes = bytes_of(type);
    const uint32_t sign = type == ScalarType::kF32 ? 31 : 15;
    for (size_t i = 0; i + n_bytes <= bytes.size(); i += n_bytes) {
        const auto bits = static_cast<uint32_t>(random());
        const uint32_t exponent = kExponents[static_cast<uint32_t>(type)] + (bits >> 24) % 4;
        const uint32_t value =
            (bits >> 31 << sign) | (exponent << mantissa_bits) | (bits & ((1u << mantissa_bits) - 1));
        std::memcpy(bytes.data() + i, &value, n_bytes);
    }
}

void to_fragments(std::span<const std::byte> rows, std::span<std::byte> fragments, uint32_t stride, uint32_t order) {
    CHECK(may_have_order(stride, order));
    for (uint32_t t = 0; t < rows.size() / 2 / stride; ++t) {
        for (uint32_t k = 0; k < stride; k += 2)
            std::memcpy(&fragments[fragment_offset(t, k, stride, order)], &rows[(size_t{t} * stride + k) * 2], 4);
    }
}

Status make(Device& device, Buffer& buffer, uint64_t n_bytes, MemoryKind kind) {
    TRY_ASSIGN(buffer, device.create_buffer(n_bytes, kind, "self-test of a kernel"));
    return ok_status();
}

Status submit_and_wait(Device& device, Recorder recorder) {
    recorder.barrier();
    TRY_ASSIGN(const CommandBuffer recording, std::move(recorder).end());
    const CommandBuffer* const list[] = {&recording};
    TRY_ASSIGN(const uint64_t done, device.compute_queue().submit(list));
    return device.compute_queue().wait(done);
}

void Deviation::add(const Result<std::vector<float>>& got, const std::vector<float>& want) {
    error = std::max(error, got.ok() ? relative_error(got.value(), want) : INFINITY);
    if (!got.ok()) failure = got.error().message;
}

std::string Deviation::text() const {
    return failure.empty() ? lorad::format("relative error {:.1e}", error) : failure;
}

Status compare_ways(Device& device, const Buffer (&c)[2], const ResultRows& shape,
                    const std::function<Status(Recorder&, bool way)>& record, Deviation& deviation) {
    std::vector<float> values[2];
    for (const bool way : {false, true}) {
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        const Status recorded = record(recorder, way);
        const Status ran = recorded.ok() ? submit_and_wait(device, std::move(recorder)) : recorded;
        if (!ran.ok() && ran.error().code == ErrorCode::kDeviceLost) return ran.error();
        if (!ran.ok()) deviation.failure = ran.error().message;
        const auto* from = reinterpret_cast<const float*>(c[way].mapped().data());
        for (uint32_t row = 0; row < shape.rows; ++row, from += shape.stride)
            values[way].insert(values[way].end(), from, from + shape.columns);
    }
    deviation.add(values[true], values[false]);
    return ok_status();
}

void tell_left_out(std::string_view kernel, const Device& device, const Deviation& deviation) {
    log_warn("kernels: {} on {} fails its self-test ({}); it is not used", kernel, device.capabilities().name,
             deviation.text());
}

bool tell_left_out_by_lanes(std::string_view kernel, const Device& device, const Deviation& deviation) {
    if (device.capabilities().multiprocessor_ids || !deviation.failure.empty()) {
        tell_left_out(kernel, device, deviation);
        return true;
    }
    log_debug("kernels: {} does not suit {} ({})", kernel, device.capabilities().name, deviation.text());
    return false;
}

}  // namespace lorad::gpu::self_test
