// The matrices of a loaded model and their sources.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "model/weights/weights.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

template <typename F>
void for_each_matrix(const ModelWeights& weights, F&& f) {
    f(weights.embedding);
    if (weights.lm_head.n != 0) f(weights.lm_head);
    for (const Matrix* matrix : {&weights.ple_table, &weights.ple_model}) {
        if (matrix->n != 0) f(*matrix);
    }
    for (const LayerWeights& layer : weights.layers) {
        for (const Matrix* matrix :
             {&layer.qkv, &layer.o, &layer.gate_up, &layer.down, &layer.router, &layer.shared_gate,
              &layer.expert_gate_up, &layer.expert_down, &layer.ple_gate, &layer.ple_projection}) {
            if (matrix->n != 0) f(*matrix);
        }
    }
}

}  // namespace

uint64_t Matrix::device_bytes() const {
    if (!is_packed()) return plain_bytes();
    const MatrixPart& last = parts.back();
    return last.offset + gpu::bytes_of(last.format, last.n, k);
}

const MatrixPart& Matrix::part_of(uint32_t row) const {
    const auto part = std::ranges::find_if(parts, [&](const MatrixPart& p) { return p.has_row(row); });
    CHECK(part != parts.end());
    return *part;
}

gpu::WeightKind Matrix::kind() const {
    CHECK(parts.size() <= 1);
    return is_packed() ? gpu::WeightKind(parts.front().format, type) : gpu::WeightKind(type);
}

gpu::DeviceAddress Matrix::address() const {
    CHECK(parts.size() <= 1);
    return is_packed() ? address_of(parts.front()) : buffer.address();
}

std::string describe_formats(const ModelWeights& weights) {
    std::map<std::string_view, uint64_t> bytes;
    for_each_matrix(weights, [&](const Matrix& matrix) {
        if (!matrix.is_packed()) bytes[gpu::name_of(gpu::format_of(matrix.type))] += matrix.plain_bytes();
        for (const MatrixPart& part : matrix.parts)
            bytes[gpu::name_of(part.format)] += gpu::bytes_of(part.format, part.n, matrix.k);
    });
    std::string text;
    for (const auto& [name, n] : bytes)
        text += format("{}{} {:.1f} MiB", text.empty() ? "" : ", ", name, static_cast<double>(n) / (1 << 20));
    return text;
}

uint32_t packed_formats_of(const ModelWeights& weights) {
    uint32_t formats = 0;
    for_each_matrix(weights, [&](const Matrix& matrix) {
        for (const MatrixPart& part : matrix.parts) formats |= 1u << gpu::number_of(part.format);
    });
    return formats;
}

}  // namespace lorad::model
