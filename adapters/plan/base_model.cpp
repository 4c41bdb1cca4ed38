#include "adapters/plan/base_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "adapters/files/files.h"
#include "model/files/model_files.h"
#include "model/quant/matrix_source.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::adapters {

namespace {

constexpr size_t kSampleBytes = 256;
constexpr size_t kSamples = 4;  // per tensor, evenly spread

// The binary digits that the numbers of a table need, whatever type they are stored in: what was rounded to bf16 and
// widened again needs 8.
int n_digits(const model::Tensor& tensor) {
    constexpr int kF32Digits = 24;
    const int of_type = tensor.dtype == model::DType::kBF16 ? 8 : tensor.dtype == model::DType::kF16 ? 11 : kF32Digits;
    int most = 1;
    for (size_t i = 0, n = tensor.n_elements(); i < n && most < of_type; ++i) {
        const uint32_t fraction = std::bit_cast<uint32_t>(number_at(tensor, i)) & 0x7fffff;
        if (fraction != 0) most = std::max(most, kF32Digits - std::countr_zero(fraction));
    }
    return most;
}

// The largest change of a number when it is rounded, or cut off, to `digits` binary digits. Small numbers in f16, which
// people train in too, have fewer.
float step_of(float value, int digits) {
    constexpr int kF16Digits = 11, kF16SmallestStep = -24;
    int exponent = 0;
    (void)std::frexp(value, &exponent);  // below 2^exponent
    const bool is_small = exponent - kF16Digits <= kF16SmallestStep;
    return std::ldexp(1.0f, is_small ? std::max(exponent - digits, kF16SmallestStep) : exponent - digits);
}

std::string_view type_name(const model::Tensor& tensor) {
    return tensor.source ? tensor.source->format() : model::name_of(tensor.dtype);
}

WeightFormats formats_of(const model::TensorFiles& files) {
    WeightFormats formats{.file_bytes = files.total_bytes()};
    for (const model::Tensor& tensor : files.tensors()) {
        if (tensor.shape.size() == 2) ++formats.n_matrices[std::string(type_name(tensor))];
        formats.is_quantized = formats.is_quantized || tensor.source != nullptr;
    }
    return formats;
}

// A config that ties the output layer to the embedding, beside files with an output layer of other numbers: these
// count, as in transformers since version 5.
void untie_own_head(const model::TensorFiles& files, model::ModelConfig& config) {
    const model::Tensor* head = files.find("lm_head.weight");
    const model::Tensor* embedding = files.find("model.embed_tokens.weight");
    if (!config.tied_embeddings || head == nullptr || embedding == nullptr) return;
    if (head->shape == embedding->shape && compare_tables(*embedding, *head).kind == TableComparison::Kind::kSame)
        return;
    log_warn("config.json says tie_word_embeddings, but lm_head.weight is not the embedding: the output layer is "
             "lm_head.weight");
    config.tied_embeddings = false;
    config.tied_by_name = true;
}

}  // namespace

std::string WeightFormats::text() const {
    std::string out;
    for (const auto& [name, n] : n_matrices) {
        const std::string_view what = !out.empty() ? "" : n == 1 ? " matrix" : " matrices";
        out += format("{}{}{} in {}", out.empty() ? "" : ", ", n, what, name);
    }
    return out + format("; {} bytes", file_bytes);
}

std::string base_fingerprint(const model::ModelConfig& config, const model::TensorFiles& files) {
    Sha256 digest;
    digest.add(
        format("lorad base 1\n{} vocab {} hidden {} ffn {} layers {} heads {} {} dim {} eps {} theta {} rotary {}\n",
               config.architecture, config.vocab_size, config.hidden_size, config.intermediate_size, config.n_layers,
               config.n_heads, config.n_kv_heads, config.head_dim, config.rms_norm_eps, config.rope.theta,
               config.rope.rotary_dim));
    for (const double factor : config.rope.frequency_factors) digest.add(format("rope / {}\n", factor));
    for (const model::LayerFacts& layer : config.layers) {  // for models whose layers have more facts
        const model::AttentionFacts& attention = layer.attention;
        digest.add(format("layer {} heads {} {} dim {} window {} rope {} scale {} cap {} ffn {} residual {}\n",
                          static_cast<int>(layer.mixer), attention.n_heads, attention.n_kv_heads, attention.head_dim,
                          attention.window, attention.rope, attention.scale, attention.softcap, layer.ffn.size,
                          layer.residual_multiplier));
    }
    if (!config.layers.empty())
        digest.add(format("scales {} {} cap {}\n", config.embed_scale, config.logit_scale, config.final_softcap));
    for (const model::Tensor& tensor : files.tensors()) {  // by name
        digest.add(format("{} {} {}\n", tensor.name, type_name(tensor), model::shape_text(tensor.shape)));
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
    TRY_ASSIGN(const auto model_files, model::ModelFiles::open(folder));
    TRY_ASSIGN(model::ModelConfig config, model_files->config());
    TRY_ASSIGN(const model::TensorFiles files, model_files->tensors());
    untie_own_head(files, config);
    BaseModel base(std::move(config));
    base.folder = folder;
    base.fingerprint = base_fingerprint(base.config, files);
    base.formats = formats_of(files);
    for (const model::Tensor& tensor : files.tensors()) {
        if (tensor.name.ends_with(".bias") && tensor.shape.size() == 1 && model::is_weight_type(tensor.dtype)) {
            base.biases.emplace(tensor.name, model::numbers_of(tensor));
        }
    }
    return base;
}

TableComparison compare_tables(const model::Tensor& base, const model::Tensor& saved, TableOrigin origin) {
    using Kind = TableComparison::Kind;
    if (base.dtype == saved.dtype && std::ranges::equal(base.data, saved.data)) return {.kind = Kind::kSame};
    if (!model::is_weight_type(base.dtype) || !model::is_weight_type(saved.dtype)) return {};
    // A type that holds all of the base's digits rounds nothing, so that a difference was trained: only small numbers
    // of f16 have less of them.
    constexpr int kNoRounding = 64;
    const int of_base = n_digits(base), of_saved = n_digits(saved);
    const bool is_rounded = of_saved < of_base || origin == TableOrigin::kFrozen;
    const int rounded_to = is_rounded ? std::min(of_base, of_saved) : kNoRounding;
    TableComparison comparison{.kind = Kind::kSame};
    for (size_t i = 0, n = base.n_elements(); i < n; ++i) {
        const float ours = number_at(base, i), theirs = number_at(saved, i);
        if (ours == theirs) continue;
        const float difference = std::abs(ours - theirs);
        ++comparison.n_different;
        comparison.largest = std::max(comparison.largest, difference);
        const float step = step_of(ours, rounded_to);
        const bool is_near = difference < step || (difference == step && origin == TableOrigin::kFrozen);
        if (!is_near) comparison.kind = Kind::kOther;
        if (comparison.kind == Kind::kSame) comparison.kind = Kind::kRounded;
    }
    return comparison;
}

TableComparison BaseModel::compare_table(std::string_view name, const model::Tensor& tensor, TableOrigin origin) const {
    if (folder.empty()) return {};
    const auto model_files = model::ModelFiles::open(folder);
    if (!model_files.ok()) return {};
    const auto files = (*model_files)->tensors();
    if (!files.ok()) return {};
    const model::Tensor* ours = files->find(name);
    if (ours == nullptr || ours->shape != tensor.shape || base_fingerprint(config, *files) != fingerprint) return {};
    return compare_tables(*ours, tensor, origin);
}

}  // namespace lorad::adapters
