// The numbers of a file's matrix in the type that they have on the device.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "gpu/kernels/scalar_type.h"
#include "model/files/safetensors.h"
#include "proto/base/result.h"

namespace lorad::model {

// Rounds to the nearest number of the type, of two equally near ones to the even one (IEEE 754). False where a finite
// number is beyond the type.
// out: from.size() numbers.
bool narrow(std::span<const float> from, gpu::ScalarType type, std::byte* out);

// Looks at a packed matrix's numbers, on any thread, for such as no matrix may have.
class NumberCheck {
  public:
    explicit NumberCheck(gpu::ScalarType type) : type_(type) {}
    void look_at(std::span<const float> numbers);
    void found_beyond() { all_fit_ = false; }
    // kInvalidModel names the tensor where a number is not finite or, rounded to the type, would not be. format: of the
    // tensor's source.
    Status verdict(const Tensor& tensor, std::string_view format) const;

  private:
    gpu::ScalarType type_;
    std::atomic<bool> all_fit_{true}, all_finite_{true};
};

// Calls work(0 .. n - 1) on several threads, this one among them, and returns when all is done.
void for_pieces(uint64_t n, const std::function<void(uint64_t piece)>& work);

// Rows of a matrix [n][k] in `type`, without gaps, whatever the file's type is. Works on several threads. out: n_rows *
// k numbers.
// kInvalidModel names the tensor where a number is beyond the type, or a packed one is not finite.
Status decode_rows(const Tensor& tensor, uint64_t row_begin, uint64_t n_rows, gpu::ScalarType type,
                   std::span<std::byte> out);

}  // namespace lorad::model
