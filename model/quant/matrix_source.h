// A matrix that lies otherwise in its file than on the device, in few bits or with its rows in another order: rows are
// decoded when somebody needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "gpu/kernels/formats/weight_format.h"
#include "proto/base/check.h"

namespace lorad::model {

// Immutable, used by any thread. Reads the mapping of the file that it came from, which outlives it. Everything that
// the file says of the matrix's sizes and indices is checked by whoever makes one, so that decoding cannot fail. Scales
// that are not finite give such numbers, which decode_rows() and pack_rows() refuse.
class MatrixSource {
  public:
    virtual ~MatrixSource() = default;
    // "Q4_K", "NF4": for messages and reports.
    virtual std::string_view format() const = 0;
    // It holds numbers in 16 or 32 bits, of which only the order is the file's own: it may still be quantized.
    virtual bool is_plain() const { return false; }
    // The numbers of `n_rows` rows from `row_begin`, row after row, as the format defines them in f32. out: n_rows x
    // columns.
    virtual void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const = 0;

    // The format in which the device can read the matrix without any number changing; none: it is decoded into the type
    // of the model's matrices.
    virtual std::optional<gpu::WeightFormat> device_format() const { return std::nullopt; }
    // Rows in that format, row after row. codes: n_rows x columns, as weight_format.h numbers them; records: of each
    // row one record for each brick that it is in, the second record behind the first where a brick has two; zeros on
    // entry.
    virtual void pack(uint64_t /*row_begin*/, uint64_t /*n_rows*/, std::span<uint8_t> /*codes*/,
                      std::span<std::byte> /*records*/) const {
        CHECK(false);
    }
    // WeightFormat::kTable: what the 16 codes stand for.
    virtual std::span<const float> table() const { return {}; }
};

}  // namespace lorad::model
