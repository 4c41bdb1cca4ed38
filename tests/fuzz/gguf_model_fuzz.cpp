// Any bytes as a base model in GGUF: refused, or a config, tensors whose rows can be decoded, and a tokenizer that
// reads a text.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_tensors.h"
#include "model/gguf/gguf_tokenizer.h"
#include "model/quant/matrix_source.h"
#include "proto/base/check.h"
#include "proto/base/log.h"

using namespace lorad;

namespace {

void decode_ends(const model::Tensor& tensor) {
    if (!tensor.source) return;
    std::vector<float> row(tensor.shape[1]);
    for (const uint64_t at : {uint64_t{0}, tensor.shape[0] / 2, tensor.shape[0] - 1}) tensor.source->decode(at, 1, row);
}

void read_model(const model::GgufFile& gguf) {
    const auto architecture = model::check_is_gguf_model(gguf);
    if (!architecture.ok()) return;
    const auto config = model::config_from_gguf(gguf, **architecture);
    if (!config.ok()) return;
    CHECK(config->head_dim > 0 && config->n_heads % config->n_kv_heads == 0 &&
          config->sliding_windows.size() == config->n_layers);
    const auto tensors = model::tensors_from_gguf(gguf, **architecture, *config);
    if (!tensors.ok()) return;
    for (const model::Tensor& tensor : tensors->tensors) decode_ends(tensor);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    set_log_level(LogLevel::kError);
    const auto bytes = std::as_bytes(std::span(data, size));
    const auto gguf = model::parse_gguf(bytes, model::kGgufModelCodes);
    if (!gguf.ok()) return 0;
    read_model(*gguf);
    (void)model::chat_from_gguf(*gguf, 1 << 16).ok();
    const auto json = model::tokenizer_from_gguf(*gguf, 1 << 16);
    if (!json.ok() || json->empty()) return 0;
    const auto tokenizer = model::Tokenizer::from_json(*json, "model.gguf");
    if (!tokenizer.ok()) return 0;
    const auto ids = (*tokenizer)->encode("Hello, 12 \xc3\xa9", true);
    if (ids.ok()) (void)(*tokenizer)->decode(*ids, false).ok();
    return 0;
}
