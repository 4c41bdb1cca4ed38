#include "model/quant/linear_tensors.h"

#include <cstring>

#include "model/quant/matrix_source.h"
#include "proto/base/format.h"

namespace lorad::model {

const Tensor* LinearTensors::find(std::string_view part) const {
    const auto at = parts_.find(part);
    return at == parts_.end() ? nullptr : at->second.tensor;
}

const Tensor* LinearTensors::take(std::string_view part) {
    const auto at = parts_.find(part);
    if (at == parts_.end()) return nullptr;
    at->second.is_taken = true;
    return at->second.tensor;
}

Result<const Tensor*> LinearTensors::require(std::string_view part, std::string_view who) {
    if (const Tensor* tensor = take(part)) return tensor;
    return make_error(ErrorCode::kInvalidModel, format("tensor {}.{} is missing: {} needs it", name_, part, who));
}

Status LinearTensors::check_all_taken(std::string_view who) const {
    for (const auto& [name, part] : parts_) {
        if (!part.is_taken) {
            return make_error(ErrorCode::kInvalidModel, format("tensor {} {} is no part of {}", part.tensor->name,
                                                               shape_text(part.tensor->shape), who));
        }
    }
    return ok_status();
}

Error wrong_tensor(const Tensor& tensor, std::string_view expected) {
    return make_error(ErrorCode::kInvalidModel, format("tensor {}: expected {}, found {} {}", tensor.name, expected,
                                                       name_of(tensor.dtype), shape_text(tensor.shape)));
}

Status check_tensor(const Tensor& tensor, DType dtype, std::vector<uint64_t> shape) {
    if (tensor.dtype == dtype && tensor.shape == shape) return ok_status();
    return wrong_tensor(tensor, format("{} {}", name_of(dtype), shape_text(shape)));
}

Status check_floats(const Tensor& tensor, std::vector<uint64_t> shape) {
    if (is_weight_type(tensor.dtype) && tensor.shape == shape) return ok_status();
    return wrong_tensor(tensor, format("F32, F16 or BF16 {}", shape_text(shape)));
}

Status check_one_float(const Tensor& tensor) {
    if (is_weight_type(tensor.dtype) && tensor.n_elements() == 1) return ok_status();
    return wrong_tensor(tensor, "one F32, F16 or BF16");
}

Result<std::vector<uint32_t>> input_groups(const Tensor& tensor, uint64_t k, uint64_t n_groups) {
    TRY(check_tensor(tensor, DType::kI32, {k}));
    std::vector<uint32_t> group_of(k);
    for (uint64_t i = 0; i < k; ++i) {
        group_of[i] = word_at(tensor.data, i);
        if (group_of[i] >= n_groups) {
            return make_error(ErrorCode::kInvalidModel,
                              format("tensor {}: expected groups 0 to {}, found {} at {}", tensor.name, n_groups - 1,
                                     static_cast<int32_t>(group_of[i]), i));
        }
    }
    return group_of;
}

uint32_t word_at(std::span<const std::byte> words, uint64_t i) {
    uint32_t word = 0;
    std::memcpy(&word, words.data() + i * sizeof word, sizeof word);
    return word;
}

Tensor packed_matrix(const LinearTensors& linear, uint64_t n, uint64_t k, std::span<const std::byte> codes,
                     std::shared_ptr<const MatrixSource> source) {
    return {.name = linear.name() + ".weight",
            .dtype = DType::kPacked,
            .shape = {n, k},
            .data = codes,
            .source = std::move(source)};
}

}  // namespace lorad::model
