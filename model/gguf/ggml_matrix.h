// A matrix whose rows lie in tensors of GGUF files, one or two, in another order than ours. Immutable.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/gguf/gguf_file.h"
#include "model/quant/matrix_source.h"

namespace lorad::model {

class GgmlMatrix final : public MatrixSource {
  public:
    struct Place {
        uint32_t tensor = 0;
        uint64_t row = 0;
    };
    // place: our row -> its tensor and row there. All tensors have the same columns. columns: our column -> the file's;
    // empty: the same.
    GgmlMatrix(std::vector<const GgufTensor*> tensors, std::function<Place(uint64_t)> place,
               std::vector<uint32_t> columns = {});

    std::string_view format() const override { return format_; }  // "Q4_K", "Q4_K and Q6_K"
    bool is_plain() const override;
    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override;
    // nullopt if the tensors are of several types, or if columns move, which would break up blocks.
    std::optional<gpu::WeightFormat> device_format() const override;
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
              std::span<std::byte> records) const override;

  private:
    struct Piece {
        GgmlType type;
        std::span<const std::byte> data;
        uint64_t row_bytes;
    };
    std::span<const std::byte> row_of(const Place& place) const;

    std::vector<Piece> pieces_;
    std::string format_;
    std::function<Place(uint64_t)> place_;
    std::vector<uint32_t> columns_;
    uint64_t n_columns_;
};

}  // namespace lorad::model
