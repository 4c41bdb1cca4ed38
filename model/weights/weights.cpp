#include "model/weights/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "gpu/kernels/kernels.h"
#include "gpu/upload.h"
#include "model/quant/brick_packer.h"
#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/rounding.h"
#include "proto/json/json.h"

namespace lorad::model {

// One tensor of the files and the rows it fills of a device matrix or vector.
struct WeightLoader::Part {
    std::string name;
    uint32_t n = 0;
    uint32_t k = 0;  // 0: a vector of n
    Matrix* matrix = nullptr;
    Vector* vector = nullptr;
    float* number = nullptr;          // one that stays on the host; then neither of the above
    float times = 1.0f, plus = 0.0f;  // every number of a vector becomes times number + plus
    uint32_t begin = 0;               // first row of the matrix, first element of the vector
    uint32_t from = 0;                // first row of the tensor, where a part is some rows of it
    const Tensor* tensor = nullptr;

    // of the tensor where they are others than {n} or {n, k}, in the same order of numbers
    std::vector<uint64_t> dims = {};
    const Matrix* like = nullptr;  // a matrix that reads the same input, and so has the same type
    bool is_of_experts = false;    // whose products read all experts' matrices as one part

    std::vector<uint64_t> shape() const {
        return !dims.empty() ? dims : k == 0 ? std::vector<uint64_t>{n} : std::vector<uint64_t>{n, k};
    }
};

// Every tensor of the model, in the order of the forward pass. The parts of one matrix follow each other.
class WeightLoader::Inventory {
  public:
    // Reads `files` where a matrix may be stored in more than one way.
    Inventory(const TensorFiles& files, const ModelConfig& config, ModelWeights& weights)
        : files_(files), config_(config) {
        weights.layers.resize(config.n_layers);
        add_matrix("model.embed_tokens", {config.vocab_size, config.hidden_size}, weights.embedding);
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            add_layer(layer, weights.layers[layer]);
        }
        add_norm("model.norm.weight", config.hidden_size, weights.final_norm);
        if (const uint32_t ple = config.layer(0).per_layer_input; ple != 0) {
            add_matrix("model.embed_tokens_per_layer", {config.per_layer_vocab, ple * config.n_layers},
                       weights.ple_table);
            add_matrix("model.per_layer_model_projection", config.shape(0, LinearModule::kPleModel), weights.ple_model);
            add_norm("model.per_layer_projection_norm.weight", ple, weights.ple_model_norm);
        }
        if (!config.tied_embeddings) add_matrix("lm_head", {config.vocab_size, config.hidden_size}, weights.lm_head);
    }

    std::vector<Part>& parts() { return parts_; }

  private:
    void add_layer(uint32_t index, LayerWeights& layer) {
        const LayerFacts facts = config_.layer(index);
        const std::string prefix = format("model.layers.{}.", index), mlp = prefix + "mlp.";
        const bool has_after = facts.mixer_norm.after;
        if (facts.mixer_norm.before) add_norm(prefix + "input_layernorm.weight", config_.hidden_size, layer.input_norm);
        switch (facts.mixer) {
            case Mixer::kAttention: add_attention(index, facts.attention, prefix + "self_attn.", layer); break;
            case Mixer::kDeltaNet: add_delta(index, facts.delta, prefix + "linear_attn.", layer); break;
            case Mixer::kShortConv: add_conv(index, facts.conv, prefix + "conv.", layer); break;
            case Mixer::kMamba: add_mamba(index, facts.mamba, prefix + "mamba.", layer); break;
        }
        if (has_after)
            add_norm(prefix + "post_attention_layernorm.weight", config_.hidden_size, layer.mixer_after_norm);
        // If the former is another norm, this one has another name.
        if (facts.ffn_norm.before)
            add_norm(prefix + (has_after ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight"),
                     config_.hidden_size, layer.ffn_norm);
        const auto shape = [&](LinearModule module) { return config_.shape(index, module); };
        if (facts.ffn.kind != FeedForward::kDense) add_experts(index, facts.ffn.experts, mlp, layer);
        if (facts.ffn.kind == FeedForward::kDenseAndExperts) add_norm_pairs(prefix, facts.ffn.experts, layer);
        if (facts.ffn.kind != FeedForward::kExperts) add_dense(index, facts.ffn, mlp, layer);
        if (facts.ffn_norm.after)
            add_norm(prefix + "post_feedforward_layernorm.weight", config_.hidden_size, layer.ffn_after_norm);
        if (facts.per_layer_input != 0) {
            add_linear(prefix, LinearModule::kPleGate, shape(LinearModule::kPleGate), false, layer.ple_gate, no_bias_);
            add_linear(prefix, LinearModule::kPleProjection, shape(LinearModule::kPleProjection), false,
                       layer.ple_projection, no_bias_);
            add_norm(prefix + "post_per_layer_input_norm.weight", config_.hidden_size, layer.ple_norm);
        }
        if (facts.stream_scale)
            parts_.push_back({.name = prefix + "layer_scalar", .n = 1, .number = &layer.stream_scale});
    }

    void add_dense(uint32_t index, const FfnFacts& facts, const std::string& prefix, LayerWeights& layer) {
        const auto add = [&](LinearModule module, Matrix& to, Vector& bias) {
            add_linear(prefix, module, config_.shape(index, module), facts.bias, to, bias);
        };
        if (config_.fused_gate_up) {
            add_matrix(prefix + "gate_up_proj", {2 * facts.size, config_.hidden_size}, layer.gate_up);
        } else {
            add(LinearModule::kGate, layer.gate_up, layer.gate_up_bias);
            add(LinearModule::kUp, layer.gate_up, layer.gate_up_bias);
        }
        add(LinearModule::kDown, layer.down, layer.down_bias);
    }

    // Router and experts read the residual stream by norms of their own, and the results of both halves are normed
    // before they are added.
    void add_norm_pairs(const std::string& prefix, const ExpertFacts& facts, LayerWeights& layer) {
        add_vector(prefix + "router.scale", config_.hidden_size, layer.router_norm);
        parts_.back().times = 1.0f / std::sqrt(static_cast<float>(config_.hidden_size));
        add_vector(prefix + "router.per_expert_scale", facts.n, layer.expert_scale);
        add_norm(prefix + "pre_feedforward_layernorm_2.weight", config_.hidden_size, layer.expert_norm);
        add_norm(prefix + "post_feedforward_layernorm_1.weight", config_.hidden_size, layer.dense_after_norm);
        add_norm(prefix + "post_feedforward_layernorm_2.weight", config_.hidden_size, layer.expert_after_norm);
    }

    void add_attention(uint32_t index, const AttentionFacts& facts, const std::string& prefix, LayerWeights& layer) {
        const auto shape = [&](LinearModule module) { return config_.shape(index, module); };
        if (config_.fused_qkv) {
            add_matrix(prefix + "qkv_proj", {facts.q_size() + 2 * facts.kv_size(), config_.hidden_size}, layer.qkv);
        } else {
            for (const auto module : {LinearModule::kQ, LinearModule::kK, LinearModule::kV}) {
                if (shape(module).n != 0)
                    add_linear(prefix, module, shape(module), facts.qkv_bias, layer.qkv, layer.qkv_bias);
            }
        }
        if (facts.qk_norm != QkNorm::kNone) {
            const bool is_wide = facts.qk_norm == QkNorm::kFullWidth;
            add_norm(prefix + "q_norm.weight", is_wide ? facts.q_size() : facts.head_dim, layer.q_norm);
            if (!facts.kv_from)
                add_norm(prefix + "k_norm.weight", is_wide ? facts.kv_size() : facts.head_dim, layer.k_norm);
        }
        if (facts.sinks) add_vector(prefix + "sinks", facts.n_heads, layer.sinks);
        add_linear(prefix, LinearModule::kO, shape(LinearModule::kO), facts.o_bias, layer.o, layer.o_bias);
    }

    void add_delta(uint32_t index, const DeltaFacts& facts, const std::string& prefix, LayerWeights& layer) {
        for (const auto module :
             {LinearModule::kDeltaQkv, LinearModule::kDeltaZ, LinearModule::kDeltaB, LinearModule::kDeltaA}) {
            const LinearShape shape = config_.shape(index, module);
            if (!config_.fused_delta) {
                add_linear(prefix, module, shape, false, layer.qkv, no_bias_);
                continue;
            }
            const FusedDelta fused = fused_delta_rows(facts, module);
            for (const RowRange& rows : fused.rows) {
                add_matrix(prefix + std::string(fused.name), {rows.n, shape.k}, layer.qkv);
                parts_.back().from = rows.begin;
                parts_.back().dims = {fused.n, shape.k};
            }
        }
        add_vector(prefix + "conv1d.weight", facts.conv_size() * facts.taps, layer.conv);
        parts_.back().dims = {facts.conv_size(), 1, facts.taps};
        add_vector(prefix + "A_log", facts.n_value_heads, layer.a_log);
        add_vector(prefix + "dt_bias", facts.n_value_heads, layer.dt_bias);
        // as it is, whatever the other norms hold
        add_vector(prefix + "norm.weight", facts.value_head_dim, layer.delta_norm);
        add_linear(prefix, LinearModule::kDeltaOut, config_.shape(index, LinearModule::kDeltaOut), false, layer.o,
                   no_bias_);
    }

    void add_conv(uint32_t index, const ConvFacts& facts, const std::string& prefix, LayerWeights& layer) {
        add_linear(prefix, LinearModule::kConvIn, config_.shape(index, LinearModule::kConvIn), facts.bias, layer.qkv,
                   layer.qkv_bias);
        add_vector(prefix + "conv.weight", config_.hidden_size * facts.taps, layer.conv);
        parts_.back().dims = {config_.hidden_size, 1, facts.taps};
        if (facts.bias) add_vector(prefix + "conv.bias", config_.hidden_size, layer.conv_bias);
        add_linear(prefix, LinearModule::kConvOut, config_.shape(index, LinearModule::kConvOut), facts.bias, layer.o,
                   layer.o_bias);
    }

    void add_mamba(uint32_t index, const MambaFacts& facts, const std::string& prefix, LayerWeights& layer) {
        add_linear(prefix, LinearModule::kConvIn, config_.shape(index, LinearModule::kConvIn), facts.proj_bias,
                   layer.qkv, layer.qkv_bias);
        add_vector(prefix + "conv1d.weight", facts.conv_size() * facts.taps, layer.conv);
        parts_.back().dims = {facts.conv_size(), 1, facts.taps};
        if (facts.conv_bias) add_vector(prefix + "conv1d.bias", facts.conv_size(), layer.conv_bias);
        add_vector(prefix + "A_log", facts.n_heads, layer.a_log);
        add_vector(prefix + "dt_bias", facts.n_heads, layer.dt_bias);
        add_vector(prefix + "D", facts.n_heads, layer.skip);
        add_vector(prefix + "norm.weight", facts.inner_size(), layer.delta_norm);
        add_linear(prefix, LinearModule::kConvOut, config_.shape(index, LinearModule::kConvOut), facts.proj_bias,
                   layer.o, layer.o_bias);
    }

    // Files hold each expert by itself, or all of a layer in one tensor: map_expert_tensors() makes the latter of
    // either.
    void add_experts(uint32_t index, const ExpertFacts& facts, const std::string& prefix, LayerWeights& layer) {
        const auto shape = [&](LinearModule module) { return config_.shape(index, module); };
        const auto add_like = [&](LinearModule module, bool has_bias, Matrix& to, Vector& bias) {
            add_linear(prefix, module, shape(module), has_bias, to, bias);
            parts_[parts_.size() - (has_bias ? 2 : 1)].like = &layer.expert_gate_up;
        };
        const auto add_stacked = [&](std::string_view name, LinearModule module, Matrix& to, Vector& bias) {
            const LinearShape one = shape(module);
            add_matrix(prefix + std::string(name), {facts.n * one.n, one.k}, to);
            if (!facts.bias) return;
            add_vector(prefix + std::string(name) + ".bias", facts.n * one.n, bias);
            parts_.back().dims = {facts.n, one.n};
        };
        if (files_.find(prefix + "experts.0.gate_proj.weight") != nullptr) {
            for (uint32_t expert = 0; expert < facts.n; ++expert) {
                const std::string one = format("{}experts.{}.", prefix, expert);
                for (const char* name : {"gate_proj", "up_proj"})
                    add_matrix(one + name, {facts.size, config_.hidden_size}, layer.expert_gate_up);
            }
            for (uint32_t expert = 0; expert < facts.n; ++expert)
                add_matrix(format("{}experts.{}.down_proj", prefix, expert), {config_.hidden_size, facts.size},
                           layer.expert_down);
        } else {
            add_stacked("experts.gate_up_proj", LinearModule::kExpertGateUp, layer.expert_gate_up,
                        layer.expert_gate_up_bias);
            add_stacked("experts.down_proj", LinearModule::kExpertDown, layer.expert_down, layer.expert_down_bias);
        }
        for (Part& part : parts_)
            part.is_of_experts |= part.matrix == &layer.expert_gate_up || part.matrix == &layer.expert_down;
        add_like(LinearModule::kRouter, facts.bias, layer.router, layer.router_bias);
        if (facts.router == Router::kSigmoidBias) add_vector(prefix + "expert_bias", facts.n, layer.choice_bias);
        if (facts.shared_size == 0) return;
        const std::string shared = prefix + "shared_expert.";
        if (config_.fused_gate_up) {
            add_matrix(shared + "gate_up_proj", {2 * facts.shared_size, config_.hidden_size}, layer.gate_up);
            parts_.back().like = &layer.expert_gate_up;
        } else {
            for (const auto module : {LinearModule::kGate, LinearModule::kUp}) {
                add_linear(shared, module, shape(module), false, layer.gate_up, no_bias_);
                parts_.back().like = &layer.expert_gate_up;
            }
        }
        add_linear(shared, LinearModule::kDown, shape(LinearModule::kDown), false, layer.down, no_bias_);
        if (facts.shared_gate) add_like(LinearModule::kSharedGate, false, layer.shared_gate, no_bias_);
    }

    void add_linear(const std::string& prefix, LinearModule module, LinearShape shape, bool has_bias, Matrix& to,
                    Vector& bias) {
        const std::string name = prefix + std::string(name_of(module));
        add_matrix(name, shape, to);
        if (has_bias) add_vector(name + ".bias", shape.n, bias);
    }

    // Adds one to weights that the files store less one.
    void add_norm(std::string name, uint32_t n, Vector& to) {
        add_vector(std::move(name), n, to);
        parts_.back().plus = config_.one_plus_norms && !config_.norms_hold_one ? 1.0f : 0.0f;
    }
    void add_matrix(std::string name, LinearShape shape, Matrix& to) {
        parts_.push_back(
            {.name = std::move(name) + ".weight", .n = shape.n, .k = shape.k, .matrix = &to, .begin = to.n});
        to.n += shape.n;
        to.k = shape.k;
        to.n_padded = gpu::padded(to.n);
        to.k_stride = gpu::padded(to.k);
    }
    void add_vector(std::string name, uint32_t n, Vector& to) {
        parts_.push_back({.name = std::move(name), .n = n, .vector = &to, .begin = to.n});
        to.n += n;
    }

    const TensorFiles& files_;
    const ModelConfig& config_;
    std::vector<Part> parts_;
    Vector no_bias_;
};

namespace {

// Tensors that some folders carry and no forward pass reads.
bool is_ignored(const ModelConfig& config, std::string_view name) {
    return name.ends_with("rotary_emb.inv_freq") || (config.tied_embeddings && name == "lm_head.weight");
}

// Some quantizers write a bias of zeros for each layer, also of models that have none.
bool is_empty_bias(const TensorFiles& files, const Tensor& tensor) {
    constexpr std::string_view kBias = "bias";
    if (!tensor.name.ends_with(".bias") || !is_weight_type(tensor.dtype)) return false;
    const Tensor* weight = files.find(tensor.name.substr(0, tensor.name.size() - kBias.size()) + "weight");
    if (!weight || !weight->source) return false;
    for (uint64_t i = 0; i < tensor.n_elements(); ++i) {
        if (number_at(tensor, i) != 0.0f) return false;
    }
    return true;
}

std::optional<gpu::ScalarType> common_type(const TensorFiles& files, const ModelConfig& config,
                                           std::optional<gpu::ScalarType> wished) {
    if (wished) return wished;
    if (std::ranges::none_of(files.tensors(), [](const Tensor& tensor) { return tensor.source != nullptr; }))
        return std::nullopt;
    return static_cast<gpu::ScalarType>(
        weight_type_of(config.dtype.value_or(config.wide_activations ? DType::kBF16 : DType::kF16)));
}

bool is_stored_as(const Tensor& tensor, gpu::ScalarType type) {
    return !tensor.source && static_cast<gpu::ScalarType>(weight_type_of(tensor.dtype)) == type;
}

uint64_t bytes_on_device(const Matrix& matrix) { return matrix.device_bytes(); }
uint64_t bytes_on_device(const Vector& vector) { return uint64_t{gpu::padded(vector.n)} * sizeof(float); }

bool are_alike(std::span<const float> a, std::span<const float> b) {
    // no table of NaN passes pack_rows()
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

// Decides which matrices stay packed, and where the parts of each lie. Says which experts do not, though their files
// have them in few bits.
void WeightLoader::place_packed(std::vector<Part>& parts, const Matrix& always_plain) {
    constexpr uint32_t kColumnsAtOnce = 4;  // that a product writes of a joined result
    // Biases may lie between the parts of a matrix.
    std::map<Matrix*, std::vector<const Part*>> parts_of;
    for (const Part& part : parts) {
        if (part.matrix && part.matrix != &always_plain) parts_of[part.matrix].push_back(&part);
    }
    std::map<std::string, uint32_t> decoded;  // matrices of experts, by what they become and why
    const auto tell_decoded = [&](const Matrix& matrix, std::string_view why) {
        ++decoded[format("{}: {}", gpu::name_of(gpu::format_of(matrix.type)), why)];
    };
    for (const auto& [place, own] : parts_of) {
        Matrix& matrix = *place;
        const auto is_in_few_bits = [](const Part* part) {
            return part->tensor->source && !part->tensor->source->is_plain();
        };
        const bool are_experts = own.front()->is_of_experts && std::ranges::any_of(own, is_in_few_bits);
        const bool can = std::ranges::all_of(own, [&](const Part* part) {
            return part->from == 0 && part->dims.empty() && part->tensor->source &&
                   part->tensor->source->device_format() && (own.size() == 1 || part->n % kColumnsAtOnce == 0);
        });
        if (!can) {
            if (!are_experts) continue;
            const auto odd = std::ranges::find_if(
                own, [&](const Part* part) { return is_in_few_bits(part) && !part->tensor->source->device_format(); });
            tell_decoded(matrix, odd == own.end() ? "some of them are plain, or have rows that are no multiple of 4"
                                                  : format("{} as the file has it has no format on the device",
                                                           (*odd)->tensor->source->format()));
            continue;
        }
        const MatrixSource* before = nullptr;
        for (const Part* part : own) {
            const MatrixSource& source = *part->tensor->source;
            const gpu::WeightFormat format = *source.device_format();
            MatrixPart* last = matrix.parts.empty() ? nullptr : &matrix.parts.back();
            if (last != nullptr && last->format == format && last->n % gpu::kBrickRows == 0 &&
                are_alike(before->table(), source.table())) {
                last->n += part->n;
            } else {
                const uint64_t offset = last != nullptr
                                            ? round_up(last->offset + gpu::bytes_of(last->format, last->n, matrix.k),
                                                       uint64_t{gpu::kPartAlign})
                                            : 0;
                matrix.parts.push_back(
                    {.format = format, .row_begin = part->begin, .n = part->n, .offset = offset + gpu::kPartAlign});
            }
            before = &source;
        }
        if (are_experts && matrix.parts.size() > 1) {
            matrix.parts.clear();
            tell_decoded(matrix, "single experts are of several formats, or of rows that are no multiple of 16");
        }
    }
    for (const auto& [what, n] : decoded) log_info("weights: the experts of {} products become {}", n, what);
}

// Finds each part's tensor and the type of each matrix.
Status WeightLoader::bind(const TensorFiles& files, const ModelConfig& config, std::optional<gpu::ScalarType> all_as,
                          std::vector<Part>& parts) {
    constexpr auto kCode = ErrorCode::kInvalidModel;
    std::set<std::string_view> known;
    for (Part& part : parts) {
        known.insert(part.name);
        part.tensor = files.find(part.name);
        if (!part.tensor) {
            return make_error(kCode, format("tensor {} is missing: {} needs it with shape {}", part.name,
                                            config.architecture, shape_text(part.shape())));
        }
        if (part.tensor->shape != part.shape()) {
            return make_error(kCode, format("tensor {}: expected shape {} (from config.json), found {}", part.name,
                                            shape_text(part.shape()), shape_text(part.tensor->shape)));
        }
        const bool is_readable = is_weight_type(part.tensor->dtype) || (part.matrix && part.tensor->source);
        if (!is_readable) {
            const std::string_view found =
                part.tensor->source ? part.tensor->source->format() : name_of(part.tensor->dtype);
            return make_error(kCode, format("tensor {}: expected F32, F16 or BF16, found {}", part.name, found));
        }
        if (part.number) *part.number = number_at(*part.tensor, 0);
        if (!part.matrix) continue;
        if (all_as) {
            part.matrix->type = *all_as;
            continue;
        }
        const auto type = static_cast<gpu::ScalarType>(weight_type_of(part.tensor->dtype));
        // Joined matrices of several types (q, k, v; gate, up) become what the model was made in.
        const bool is_mixed = part.begin != 0 && type != part.matrix->type;
        part.matrix->type =
            is_mixed ? static_cast<gpu::ScalarType>(weight_type_of(config.dtype.value_or(DType::kF16))) : type;
    }
    for (Part& part : parts) {
        if (part.like) part.matrix->type = part.like->type;
    }
    for (const Tensor& tensor : files.tensors()) {
        if (!known.contains(tensor.name) && !is_ignored(config, tensor.name) && !is_empty_bias(files, tensor)) {
            return make_error(kCode, format("tensor {} {} is not part of a {} with this config.json",
                                            json_quote(tensor.name), shape_text(tensor.shape), config.architecture));
        }
    }
    return ok_status();
}

Status WeightLoader::upload_vector(gpu::Device& device, const Part& part) {
    const Vector& to = *part.vector;
    // The last part brings the padding with it.
    const uint32_t end = part.begin + part.n;
    std::vector<float> values(end == to.n ? gpu::padded(to.n) - part.begin : part.n, 0.0f);
    for (uint32_t i = 0; i < part.n; ++i) values[i] = part.times * number_at(*part.tensor, i) + part.plus;
    return device.uploader().upload(to.buffer, part.begin * sizeof(float), std::as_bytes(std::span(values)));
}

Status WeightLoader::upload_packed(gpu::Device& device, const Part& part,
                                   const std::function<void(uint64_t)>& on_bytes) {
    constexpr uint64_t kPieceBytes = uint64_t{32} << 20;
    const Matrix& to = *part.matrix;
    const MatrixPart& place = to.part_of(part.begin);
    const std::span<const float> table = part.tensor->source->table();
    if (!table.empty())
        TRY(device.uploader().upload(to.buffer, place.offset - gpu::kPartTableBytes, std::as_bytes(table)));
    const uint64_t band_bytes = gpu::bytes_of(place.format, gpu::kBrickRows, to.k);
    const uint64_t piece_rows = std::max<uint64_t>(1, kPieceBytes / band_bytes) * gpu::kBrickRows;
    std::vector<std::byte> bricks;
    for (uint64_t row = 0; row < part.n; row += piece_rows) {
        const uint64_t n_rows = std::min(piece_rows, part.n - row);
        bricks.resize(gpu::bytes_of(place.format, n_rows, to.k));
        TRY(pack_rows(*part.tensor, row, n_rows, to.type, bricks));
        TRY(device.uploader().upload(
            to.buffer, place.offset + (part.begin - place.row_begin + row) / gpu::kBrickRows * band_bytes, bricks));
        on_bytes(bricks.size());
    }
    return ok_status();
}

// Rows go in one piece where the file's rows are as long as the device's; only padding is filled, never data twice.
Status WeightLoader::upload_matrix(gpu::Device& device, const Part& part,
                                   const std::function<void(uint64_t)>& on_bytes) {
    const Matrix& to = *part.matrix;
    if (to.is_packed()) return upload_packed(device, part, on_bytes);
    gpu::Uploader& uploader = device.uploader();
    const bool has_gaps = to.k != to.k_stride;
    if (part.begin == 0) {
        const uint64_t fill_begin = has_gaps ? 0 : to.row_bytes() * to.n;
        if (fill_begin < bytes_on_device(to))
            TRY(uploader.fill_zero(to.buffer, fill_begin, bytes_on_device(to) - fill_begin));
    }
    // Goes by pieces, so that progress is seen while a large matrix is loaded, and decoded numbers take little memory.
    const bool is_as_stored = is_stored_as(*part.tensor, to.type);
    const uint64_t piece_bytes = uint64_t{is_as_stored ? 256u : 32u} << 20;
    const uint64_t row_bytes = uint64_t{to.k} * gpu::bytes_of(to.type);
    const uint64_t piece_rows = std::max<uint64_t>(1, piece_bytes / row_bytes);
    std::vector<std::byte> decoded;
    for (uint64_t row = 0; row < part.n; row += piece_rows) {
        const uint64_t n_rows = std::min(piece_rows, part.n - row);
        std::span<const std::byte> bytes;
        if (is_as_stored) {
            bytes = part.tensor->data.subspan((part.from + row) * row_bytes, n_rows * row_bytes);
        } else {
            decoded.resize(n_rows * row_bytes);
            TRY(decode_rows(*part.tensor, part.from + row, n_rows, to.type, decoded));
            bytes = decoded;
        }
        const uint64_t to_offset = (part.begin + row) * to.row_bytes();
        if (has_gaps) {
            TRY(uploader.upload_rows(to.buffer, to_offset, to.row_bytes(), bytes, row_bytes, n_rows));
        } else {
            TRY(uploader.upload(to.buffer, to_offset, bytes));
        }
        on_bytes(bytes.size());
    }
    return ok_status();
}

WeightLoader::WeightLoader(std::vector<Part> parts) : parts_(std::move(parts)) {}
WeightLoader::~WeightLoader() = default;

Result<std::unique_ptr<WeightLoader>> WeightLoader::create(const TensorFiles& files, const ModelConfig& config,
                                                           ModelWeights& weights, const WeightOptions& options) {
    for (const std::string& note : files.left_out()) log_info("weights: {}", note);
    Inventory inventory(files, config, weights);
    TRY(bind(files, config, common_type(files, config, options.type), inventory.parts()));
    if (options.keeps_packed) place_packed(inventory.parts(), weights.ple_table);
    return std::unique_ptr<WeightLoader>(new WeightLoader(std::move(inventory.parts())));
}

Result<TensorFiles> WeightLoader::imagine(const ModelConfig& config) {
    if (config.quantization) {
        return make_error(
            ErrorCode::kInvalidModel,
            "the config says that the weights are quantized: their files are needed to say what they take");
    }
    const TensorFiles none = TensorFiles::of({}, {});
    ModelWeights weights;
    Inventory inventory(none, config, weights);
    const DType dtype = config.dtype.value_or(DType::kF16);
    uint64_t zero_bytes = 0;
    for (const Part& part : inventory.parts()) {
        if (!part.matrix) zero_bytes = std::max(zero_bytes, uint64_t{part.n} * bytes_of(dtype));
    }
    const auto zeros = std::make_shared<const std::vector<std::byte>>(zero_bytes);
    std::vector<Tensor> tensors;
    std::set<std::string_view> known;
    for (const Part& part : inventory.parts()) {
        if (!known.insert(part.name).second) continue;  // several parts of one tensor
        const std::span<const std::byte> data =
            part.matrix ? std::span<const std::byte>() : std::span(*zeros).first(uint64_t{part.n} * bytes_of(dtype));
        tensors.push_back({.name = part.name, .dtype = dtype, .shape = part.shape(), .data = data});
    }
    return TensorFiles::of(std::move(tensors), {zeros});
}

uint64_t WeightLoader::device_bytes() const {
    uint64_t sum = 0;
    for (const Part& part : parts_) {
        if (part.begin == 0 && !part.number)
            sum += part.matrix ? bytes_on_device(*part.matrix) : bytes_on_device(*part.vector);
    }
    return sum;
}

Status WeightLoader::allocate(gpu::Device& device) {
    if (device_bytes() > device.free_bytes_estimate()) {
        return make_error(ErrorCode::kOutOfMemory,
                          format("the weights need {} bytes of device memory, {} are free on {}", device_bytes(),
                                 device.free_bytes_estimate(), device.capabilities().name));
    }
    for (const Part& part : parts_) {
        if (part.begin != 0 || part.number) continue;
        gpu::Buffer& buffer = part.matrix ? part.matrix->buffer : part.vector->buffer;
        const uint64_t n_bytes = part.matrix ? bytes_on_device(*part.matrix) : bytes_on_device(*part.vector);
        TRY_ASSIGN(buffer, device.create_buffer(n_bytes, gpu::MemoryKind::kDeviceLocal, part.name.c_str()));
    }
    return ok_status();
}

Status WeightLoader::upload(gpu::Device& device, const LoadProgress& progress) {
    uint64_t n_bytes = 0, n_bytes_done = 0, n_bytes_told = 0;
    const auto bytes_of_part = [](const Part& part) {
        if (part.matrix && part.matrix->is_packed())
            return gpu::bytes_of(part.matrix->part_of(part.begin).format, part.n, part.k);
        return part.matrix ? uint64_t{part.n} * part.k * gpu::bytes_of(part.matrix->type)
                           : uint64_t{part.tensor->data.size()};
    };
    for (const Part& part : parts_) n_bytes += bytes_of_part(part);
    const auto on_bytes = [&](uint64_t n) {
        n_bytes_done += n;
        if (!progress || (n_bytes_done - n_bytes_told < n_bytes / 100 && n_bytes_done < n_bytes)) return;
        n_bytes_told = n_bytes_done;
        progress(n_bytes_done, n_bytes);
    };
    for (const Part& part : parts_) {
        if (part.matrix) {
            TRY(upload_matrix(device, part, on_bytes));
        } else {
            if (part.vector) TRY(upload_vector(device, part));
            on_bytes(bytes_of_part(part));
        }
    }
    return device.uploader().finish();
}

}  // namespace lorad::model
