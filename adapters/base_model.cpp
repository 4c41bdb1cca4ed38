#include "adapters/base_model.h"

#include <algorithm>
#include <cstring>

#include "adapters/files.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::adapters {

namespace {

constexpr size_t kSampleBytes = 256;
constexpr size_t kSamples = 4;  // of a tensor, evenly over it

std::vector<float> as_floats(const model::Tensor& tensor) {
    std::vector<float> values(tensor.n_elements());
    const uint32_t n_bytes = model::bytes_of(tensor.dtype);
    for (size_t i = 0; i < values.size(); ++i) values[i] = model::widen(tensor.dtype, tensor.data.data() + i * n_bytes);
    return values;
}

// Also of different types: adapters are often saved in f32.
bool has_same_numbers(const model::Tensor& a, const model::Tensor& b) {
    if (a.dtype == b.dtype) return std::ranges::equal(a.data, b.data);
    if (!model::is_weight_type(a.dtype) || !model::is_weight_type(b.dtype)) return false;
    const uint32_t a_bytes = model::bytes_of(a.dtype), b_bytes = model::bytes_of(b.dtype);
    for (size_t i = 0; i < a.n_elements(); ++i) {
        if (model::widen(a.dtype, a.data.data() + i * a_bytes) != model::widen(b.dtype, b.data.data() + i * b_bytes)) return false;
    }
    return true;
}

// A config that ties the output layer to the embedding, beside files with an output layer of other numbers: these count, as in transformers since version 5.
void untie_own_head(const model::TensorFiles& files, model::ModelConfig& config) {
    const model::Tensor* head = files.find("lm_head.weight");
    const model::Tensor* embedding = files.find("model.embed_tokens.weight");
    if (!config.tied_embeddings || head == nullptr || embedding == nullptr) return;
    if (head->shape == embedding->shape && has_same_numbers(*head, *embedding)) return;
    log_warn("config.json says tie_word_embeddings, but lm_head.weight is not the embedding: the output layer is lm_head.weight");
    config.tied_embeddings = false;
    config.tied_by_name = true;
}

}  // namespace

std::string base_fingerprint(const model::ModelConfig& config, const model::TensorFiles& files) {
    Sha256 digest;
    digest.add(format("lorad base 1\n{} vocab {} hidden {} ffn {} layers {} heads {} {} dim {} eps {} theta {} rotary {}\n",
                      config.architecture, config.vocab_size, config.hidden_size, config.intermediate_size, config.n_layers,
                      config.n_heads, config.n_kv_heads, config.head_dim, config.rms_norm_eps, config.rope.theta,
                      config.rope.rotary_dim));
    for (const model::Tensor& tensor : files.tensors()) {  // by name
        digest.add(format("{} {} {}\n", tensor.name, model::name_of(tensor.dtype), model::shape_text(tensor.shape)));
        const size_t size = tensor.data.size();
        if (size <= kSamples * kSampleBytes) {
            digest.add(tensor.data);
            continue;
        }
        for (size_t i = 0; i < kSamples; ++i) {
            digest.add(tensor.data.subspan((size - kSampleBytes) / (kSamples - 1) * i, kSampleBytes));
        }
    }
    return digest.hex();
}

Result<BaseModel> BaseModel::load(const std::filesystem::path& folder) {
    TRY_ASSIGN(model::ModelConfig config, model::load_model_config(folder));
    TRY_ASSIGN(const model::TensorFiles files, model::TensorFiles::map_folder(folder));
    untie_own_head(files, config);
    BaseModel base(std::move(config));
    base.folder = folder;
    base.fingerprint = base_fingerprint(base.config, files);
    for (const model::Tensor& tensor : files.tensors()) {
        if (tensor.name.ends_with(".bias") && tensor.shape.size() == 1 && model::is_weight_type(tensor.dtype)) {
            base.biases.emplace(tensor.name, as_floats(tensor));
        }
    }
    return base;
}

bool BaseModel::has_same_tensor(std::string_view name, const model::Tensor& tensor) const {
    if (folder.empty()) return false;
    const auto files = model::TensorFiles::map_folder(folder);
    if (!files.ok()) return false;
    const model::Tensor* ours = files->find(name);
    return ours != nullptr && ours->shape == tensor.shape && has_same_numbers(*ours, tensor) &&
           base_fingerprint(config, *files) == fingerprint;
}

}  // namespace lorad::adapters
