// A matrix that lies otherwise in its file than on the device, in few bits or with its rows in another order: rows are decoded when somebody needs them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lorad::model {

// Immutable, used by any thread. Reads the mapping of the file that it came from, which outlives it. Everything that the file says of the
// matrix's sizes and indices is checked by whoever makes one, so that decoding cannot fail. Scales that are not finite give such numbers, which
// decode_rows() refuses.
class MatrixSource {
  public:
    virtual ~MatrixSource() = default;
    // "Q4_K", "NF4": for messages and reports.
    virtual std::string_view format() const = 0;
    // The numbers of `n_rows` rows from `row_begin`, row after row, as the format defines them in f32. out: n_rows x columns.
    virtual void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const = 0;
};

}  // namespace lorad::model
