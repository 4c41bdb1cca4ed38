// The tensors of a file that together are the weight matrix of one linear layer.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/files/safetensors.h"
#include "proto/base/result.h"
#include "proto/base/rounding.h"

namespace lorad::model {

// Tensors NAME.PART, found by their part; those that nobody took are left over. The tensors outlive this.
class LinearTensors {
  public:
    explicit LinearTensors(std::string name) : name_(std::move(name)) {}

    const std::string& name() const { return name_; }  // "model.layers.0.mlp.up_proj"
    void add(std::string_view part, const Tensor& tensor) { parts_.emplace(part, Part{&tensor}); }

    // Finds such a part without taking it; nullptr: there is none.
    const Tensor* find(std::string_view part) const;
    // The part, or nullptr; from here on it belongs to the matrix.
    const Tensor* take(std::string_view part);
    // The same for a part that there must be: kInvalidModel says that it is missing, and what needs it.
    Result<const Tensor*> require(std::string_view part, std::string_view who);
    // kInvalidModel names a part that nobody took.
    Status check_all_taken(std::string_view who) const;

  private:
    struct Part {
        const Tensor* tensor;
        bool is_taken = false;
    };
    std::string name_;
    std::map<std::string_view, Part> parts_;
};

// kInvalidModel: "tensor NAME: expected I32 [16, 128], found I32 [16, 127]". A `shape` of other texts: "expected I32 of
// two dimensions".
Error wrong_tensor(const Tensor& tensor, std::string_view expected);
Status check_tensor(const Tensor& tensor, DType dtype, std::vector<uint64_t> shape);
// A tensor of one of the float types that lorad reads, and one number of such a type.
Status check_floats(const Tensor& tensor, std::vector<uint64_t> shape);
Status check_one_float(const Tensor& tensor);
// The group of each of k inputs (I32 [k], checked against n_groups).
Result<std::vector<uint32_t>> input_groups(const Tensor& tensor, uint64_t k, uint64_t n_groups);

// Word `i` of a tensor of 32-bit words.
uint32_t word_at(std::span<const std::byte> words, uint64_t i);
inline constexpr uint32_t kWordBits = 32;
// Words that n codes of so many bits fill.
inline uint64_t words_of(uint64_t n_codes, uint32_t bits) { return ceil_div(n_codes * bits, kWordBits); }

// The matrix NAME.weight of a source and its codes.
Tensor packed_matrix(const LinearTensors& linear, uint64_t n, uint64_t k, std::span<const std::byte> codes,
                     std::shared_ptr<const MatrixSource> source);

}  // namespace lorad::model
