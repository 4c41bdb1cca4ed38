#include "adapters/files/foreign.h"

#include <cstring>

namespace lorad::adapters {

Result<std::span<std::byte>> add_owned(AdapterTensors& tensors, std::string name, model::DType dtype,
                                       std::vector<uint64_t> shape) {
    uint64_t n_bytes = model::bytes_of(dtype);
    for (const uint64_t size : shape) n_bytes *= size;  // for tensors that are stored in another order or narrower
    TRY_ASSIGN(FileBytes bytes, FileBytes::allocate(n_bytes, name));
    const std::span<std::byte> span(bytes.bytes.get(), bytes.size);
    tensors.owned.push_back(std::move(bytes));
    tensors.tensors.push_back({std::move(name), dtype, std::move(shape), span});
    return span;
}

Status add_transposed(AdapterTensors& tensors, std::string name, const model::Tensor& matrix) {
    const uint64_t rows = matrix.shape[0], columns = matrix.shape[1];
    const size_t n_bytes = model::bytes_of(matrix.dtype);
    TRY_ASSIGN(const std::span<std::byte> to, add_owned(tensors, std::move(name), matrix.dtype, {columns, rows}));
    for (uint64_t row = 0; row < rows; ++row) {
        for (uint64_t column = 0; column < columns; ++column) {
            std::memcpy(to.data() + (column * rows + row) * n_bytes,
                        matrix.data.data() + (row * columns + column) * n_bytes, n_bytes);
        }
    }
    return ok_status();
}

}  // namespace lorad::adapters
