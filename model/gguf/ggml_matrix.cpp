#include "model/gguf/ggml_matrix.h"

#include <algorithm>
#include <utility>

#include "model/quant/ggml_blocks.h"
#include "model/quant/ggml_pack.h"

namespace lorad::model {

GgmlMatrix::GgmlMatrix(std::vector<const GgufTensor*> tensors, std::function<Place(uint64_t)> place,
                       std::vector<uint32_t> columns)
    : place_(std::move(place)), columns_(std::move(columns)), n_columns_(tensors.front()->shape.back()) {
    for (const GgufTensor* tensor : tensors) {
        uint64_t n_rows = 1;
        for (size_t i = 0; i + 1 < tensor->shape.size(); ++i) n_rows *= tensor->shape[i];
        pieces_.push_back({tensor->type, tensor->data, tensor->data.size() / n_rows});
        if (pieces_.size() > 1 && tensor->type == pieces_.front().type) continue;
        if (pieces_.size() > 1) format_ += " and ";
        format_ += name_of(tensor->type);
    }
}

std::span<const std::byte> GgmlMatrix::row_of(const Place& place) const {
    const Piece& piece = pieces_[place.tensor];
    return piece.data.subspan(place.row * piece.row_bytes, piece.row_bytes);
}

bool GgmlMatrix::is_plain() const {
    return std::ranges::all_of(pieces_, [](const Piece& piece) {
        return piece.type == GgmlType::kF32 || piece.type == GgmlType::kF16 || piece.type == GgmlType::kBF16;
    });
}

void GgmlMatrix::decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const {
    std::vector<float> line(columns_.empty() ? 0 : n_columns_);
    for (uint64_t i = 0; i < n_rows; ++i) {
        const Place place = place_(row_begin + i);
        const std::span<float> to = out.subspan(i * n_columns_, n_columns_);
        decode_ggml(pieces_[place.tensor].type, row_of(place), line.empty() ? to : std::span(line));
        for (uint64_t column = 0; column < line.size(); ++column) to[column] = line[columns_[column]];
    }
}

std::optional<gpu::WeightFormat> GgmlMatrix::device_format() const {
    const GgmlType type = pieces_.front().type;
    const bool is_one = std::ranges::all_of(pieces_, [&](const Piece& piece) { return piece.type == type; });
    return is_one && columns_.empty() ? device_format_of(type) : std::nullopt;
}

void GgmlMatrix::pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
                      std::span<std::byte> records) const {
    const uint64_t record_bytes = records.size() / n_rows;
    for (uint64_t i = 0; i < n_rows; ++i) {
        const Place place = place_(row_begin + i);
        pack_ggml_row(pieces_[place.tensor].type, row_of(place), codes.subspan(i * n_columns_, n_columns_),
                      records.subspan(i * record_bytes, record_bytes));
    }
}

}  // namespace lorad::model
