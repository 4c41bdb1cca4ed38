// Any bytes are either refused or give tensors within them.

#include <cstdint>
#include <span>

#include "model/files/safetensors.h"
#include "proto/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
    const auto tensors = lorad::model::parse_safetensors(file, lorad::ErrorCode::kAdapterInvalid);
    if (!tensors.ok()) return 0;
    for (const auto& tensor : *tensors) {
        CHECK(tensor.data.empty() || (tensor.data.data() >= file.data() &&
                                      tensor.data.data() + tensor.data.size() <= file.data() + file.size()));
        CHECK(tensor.n_elements() * lorad::model::bytes_of(tensor.dtype) == tensor.data.size());
    }
    return 0;
}
