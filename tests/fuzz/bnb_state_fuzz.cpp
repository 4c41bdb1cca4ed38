// Any bytes as the quant_state of a bitsandbytes matrix, which is JSON in a tensor, beside codes and scales that fit
// some of them.
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "model/quant/matrix_source.h"
#include "model/quant/quantized_folder.h"
#include "proto/base/check.h"

using namespace lorad;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // 192 weights: 3 blocks of 64, in rows of any length. The first byte tells whether absmax is quantized again.
    static const std::vector<uint8_t> codes(96, 0x5a), absmax8 = {1, 2, 255};
    static const std::vector<float> absmax = {1, 2, 3}, map = [] {
        std::vector<float> values(256);
        std::iota(values.begin(), values.end(), -8.0f);
        return values;
    }();
    if (size == 0) return 0;
    const bool is_nested = data[0] % 2 != 0;
    const auto bytes = [](const auto& values, size_t n) { return std::as_bytes(std::span(values).first(n)); };
    using enum model::DType;
    std::vector<model::Tensor> tensors = {
        {.name = "x.weight", .dtype = kU8, .shape = {96, 1}, .data = bytes(codes, 96)},
        {.name = "x.weight.absmax",
         .dtype = is_nested ? kU8 : kF32,
         .shape = {3},
         .data = is_nested ? bytes(absmax8, 3) : bytes(absmax, 3)},
        {.name = "x.weight.quant_map", .dtype = kF32, .shape = {16}, .data = bytes(map, 16)},
        {.name = "x.weight.quant_state.bitsandbytes__nf4",
         .dtype = kU8,
         .shape = {size - 1},
         .data = std::as_bytes(std::span(data + 1, size - 1))},
    };
    if (is_nested) {
        tensors.push_back({.name = "x.weight.nested_absmax", .dtype = kF32, .shape = {1}, .data = bytes(absmax, 1)});
        tensors.push_back(
            {.name = "x.weight.nested_quant_map", .dtype = kF32, .shape = {256}, .data = bytes(map, 256)});
    }
    const auto joined = model::join_quantized(tensors, {.method = model::QuantMethod::kBitsAndBytes});
    if (!joined.ok()) {
        CHECK(joined.error().code == ErrorCode::kInvalidModel && !joined.error().message.empty());
        return 0;
    }
    CHECK(joined->size() == 1 && joined->front().n_elements() >= 191 && joined->front().n_elements() <= 192);
    std::vector<float> numbers(joined->front().shape[1]);
    for (uint64_t row = 0; row < joined->front().shape[0]; ++row) joined->front().source->decode(row, 1, numbers);
    return 0;
}
