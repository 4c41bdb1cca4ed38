// Any bytes as a GGUF adapter: refused, or tensors within the file that are compared with a base and packed.
#include <cstddef>
#include <cstdint>

#include "model/gguf/gguf_file.h"
#include "tests/fuzz/adapter_input.h"

using namespace lorad;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const adapters::BaseModel base(fuzz::small_config());
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto bytes = std::as_bytes(std::span(text));
    const auto gguf = model::parse_gguf(bytes, model::kGgufAdapterCodes);
    if (!gguf.ok()) return 0;
    for (const auto& tensor : gguf->tensors) {
        CHECK(tensor.data.data() >= bytes.data() &&
              tensor.data.data() + tensor.data.size() <= bytes.data() + bytes.size());
    }
    std::vector<adapters::SourceFile> files;
    files.push_back(fuzz::file(adapters::kGgufFile, text));
    fuzz::check_and_report(std::move(files), base);
    return 0;
}
