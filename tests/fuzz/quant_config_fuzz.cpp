// Any quantization_config over any tensors: refused in one line, or matrices whose numbers can be decoded from first
// row to last. The first line is the config, the rest a safetensors file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/quant/matrix_source.h"
#include "model/quant/quantized_folder.h"
#include "proto/base/check.h"

using namespace lorad;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const size_t split = std::min(input.find('\n'), input.size());
    const std::string_view file = input.substr(std::min(split + 1, input.size()));
    const auto json = parse_json(input.substr(0, split), {.name = "config.json", .code = ErrorCode::kInvalidModel});
    if (!json.ok()) return 0;
    const auto config = model::read_quantization(json->root());
    if (!config.ok()) {
        CHECK(config.error().code == ErrorCode::kInvalidModel && !config.error().message.empty());
        return 0;
    }
    (void)config->summary();
    const auto tensors = model::parse_safetensors(std::as_bytes(std::span(file)), ErrorCode::kInvalidModel);
    if (!tensors.ok()) return 0;
    const auto joined = model::join_quantized(*tensors, *config);
    if (!joined.ok()) {
        CHECK(joined.error().code == ErrorCode::kInvalidModel && !joined.error().message.empty());
        return 0;
    }
    for (const model::Tensor& tensor : *joined) {
        if (!tensor.source) continue;
        CHECK(tensor.shape.size() == 2 && !tensor.source->format().empty());
        // No matrix has more numbers than its codes have half bytes: memory is bounded by the file.
        CHECK(tensor.n_elements() <= 2 * tensor.data.size() + 1);
        std::vector<float> numbers(tensor.shape[1]);
        for (uint64_t row = 0; row < tensor.shape[0]; ++row) tensor.source->decode(row, 1, numbers);
    }
    return 0;
}
