#include "tests/support/host_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/config/rope.h"
#include "model/files/safetensors.h"
#include "proto/base/format.h"
#include "proto/base/rounding.h"

namespace lorad::testing {
namespace {

using model::DType;
using model::LinearModule;
using reference::Vector;

constexpr uint32_t kPositions = 256;

std::vector<float> read_vector(gpu::DeviceAddress address, size_t n) {
    std::vector<float> values(address == 0 ? 0 : n);
    if (address != 0) std::memcpy(values.data(), reinterpret_cast<const void*>(address), n * sizeof(float));
    return values;
}

// Rows that are `stride` elements apart; what lies between must be zero.
HostMatrix read_matrix(gpu::DeviceAddress address, size_t n, size_t k, size_t stride, uint32_t type) {
    HostMatrix matrix;
    if (address == 0) return matrix;
    matrix.n = n;
    matrix.k = k;
    const auto dtype = static_cast<DType>(type);
    const auto* bytes = reinterpret_cast<const std::byte*>(address);
    for (size_t row = 0; row < n; ++row) {
        for (size_t column = 0; column < stride; ++column) {
            const float value = model::widen(dtype, bytes + (row * stride + column) * model::bytes_of(dtype));
            if (column < k) {
                matrix.values.push_back(value);
            } else {
                CHECK(value == 0.0f);
            }
        }
    }
    return matrix;
}

HostMatrix transposed(const HostMatrix& from) {
    HostMatrix to;
    to.n = from.k;
    to.k = from.n;
    for (size_t row = 0; row < to.n; ++row) {
        for (size_t column = 0; column < to.k; ++column) to.values.push_back(from.values[column * from.k + row]);
    }
    return to;
}

HostMatrix rows_of(const model::TensorFiles& files, const std::string& name, size_t begin, size_t n) {
    const model::Tensor* tensor = files.find(name);
    CHECK(tensor != nullptr);
    HostMatrix matrix;
    matrix.n = n;
    matrix.k = tensor->shape.size() == 2 ? tensor->shape[1] : 1;
    for (size_t i = begin * matrix.k; i < (begin + n) * matrix.k; ++i) matrix.values.push_back(number_at(*tensor, i));
    return matrix;
}

std::vector<float> vector_of(const model::TensorFiles& files, const std::string& name) {
    const model::Tensor* tensor = files.find(name);
    return tensor == nullptr ? std::vector<float>() : rows_of(files, name, 0, tensor->shape[0]).values;
}

void add_scaled(Vector& to, const Vector& values, double scale) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += scale * values[i];
}

// scale * B (A x), of all rows of B
Vector low_rank(const HostPair& pair, const Vector& x) {
    Vector low = reference::multiply(pair.a.values, x);
    Vector out = reference::multiply(pair.b.values, low);
    for (double& value : out) value *= pair.scale;
    return out;
}

const std::vector<float>& chosen(const std::vector<float>& replaced, const std::vector<float>& base) {
    return replaced.empty() ? base : replaced;
}

}  // namespace

HostAdapter::HostAdapter(const model::AdapterView& view, const model::ModelConfig& config) {
    for (size_t i = 0; i < view.modules.size(); ++i) {
        const model::LoraModuleView& from = view.modules[i];
        const model::LinearShape shape = config.shape(static_cast<LinearModule>(i % model::kLinearModules));
        Module module;
        if (from.rank != 0) {
            module.pair = {read_matrix(from.a, from.rank, shape.k, round_up(shape.k, 64), from.weight_type),
                           read_matrix(from.b, shape.n, from.rank, round_up(from.rank, 8), from.weight_type),
                           from.scale};
        }
        module.gain = read_vector(from.gain, shape.n);
        module.bias = read_vector(from.bias, shape.n);
        modules.push_back(std::move(module));
    }
    if (!view.has_extras) return;
    const model::AdapterExtrasView& extras = view.extras;
    const uint32_t vocab = config.vocab_size, hidden = config.hidden_size, stride = round_up(hidden, 64);
    embed_table = read_matrix(extras.embed_table, vocab, hidden, stride, extras.embed_type);
    head_table = read_matrix(extras.head_table, vocab, hidden, stride, extras.head_type);
    const uint32_t embed_stride = round_up(extras.embed_rank, 8), head_stride = round_up(extras.head_rank, 8);
    embed = {transposed(read_matrix(extras.embed_a, vocab, extras.embed_rank, embed_stride, extras.embed_lora_type)),
             read_matrix(extras.embed_b, hidden, extras.embed_rank, embed_stride, extras.embed_lora_type),
             extras.embed_scale};
    head = {read_matrix(extras.head_a, extras.head_rank, hidden, stride, extras.head_lora_type),
            read_matrix(extras.head_b, vocab, extras.head_rank, head_stride, extras.head_lora_type), extras.head_scale};
    token_ids.resize(extras.n_tokens);
    if (extras.n_tokens != 0) {
        std::memcpy(token_ids.data(), reinterpret_cast<const void*>(extras.token_ids),
                    extras.n_tokens * sizeof(uint32_t));
        CHECK(std::ranges::is_sorted(token_ids));
    }
    token_rows = read_matrix(extras.token_rows, extras.n_tokens, hidden, stride, 0);
    tokens_in_head = extras.tokens_in_head;
    head_bias = read_vector(extras.head_bias, vocab);
    final_norm = read_vector(extras.final_norm, hidden);
    for (const auto& from : extras.norms) {
        norms.push_back({read_vector(from.input, hidden), read_vector(from.ffn, hidden),
                         read_vector(from.q, config.head_dim), read_vector(from.k, config.head_dim)});
    }
}

HostModel::HostModel(const std::filesystem::path& folder) {
    auto config = model::load_model_config(folder);
    CHECK(config.ok());
    config_ = std::move(config).value();
    auto opened = model::TensorFiles::map_folder(folder);
    CHECK(opened.ok());
    const model::TensorFiles& files = *opened;
    embedding_ = rows_of(files, "model.embed_tokens.weight", 0, config_.vocab_size);
    if (!config_.tied_embeddings) lm_head_ = rows_of(files, "lm_head.weight", 0, config_.vocab_size);
    final_norm_ = vector_of(files, "model.norm.weight");
    for (uint32_t index = 0; index < config_.n_layers; ++index) {
        const std::string prefix = format("model.layers.{}.", index);
        Layer layer;
        size_t qkv_row = 0, gate_up_row = 0;
        for (uint32_t m = 0; m < model::kLinearModules; ++m) {
            const auto module = static_cast<LinearModule>(m);
            const size_t n = config_.shape(module).n;
            const std::string part = prefix + (m <= 3 ? "self_attn." : "mlp.");
            const bool in_qkv = m <= 2 && config_.fused_qkv, in_gate_up = (m == 4 || m == 5) && config_.fused_gate_up;
            if (in_qkv || in_gate_up) {
                size_t& row = in_qkv ? qkv_row : gate_up_row;
                layer.linear[m] = rows_of(files, part + (in_qkv ? "qkv_proj.weight" : "gate_up_proj.weight"), row, n);
                row += n;
                continue;
            }
            const std::string name = part + std::string(model::name_of(module));
            layer.linear[m] = rows_of(files, name + ".weight", 0, n);
            layer.bias[m] = vector_of(files, name + ".bias");
        }
        layer.input_norm = vector_of(files, prefix + "input_layernorm.weight");
        layer.post_attention_norm = vector_of(files, prefix + "post_attention_layernorm.weight");
        layer.q_norm = vector_of(files, prefix + "self_attn.q_norm.weight");
        layer.k_norm = vector_of(files, prefix + "self_attn.k_norm.weight");
        layers_.push_back(std::move(layer));
    }
}

void HostModel::finish_gains(const model::AdapterView& view) const {
    const HostAdapter adapter(view, config_);
    for (size_t i = 0; i < adapter.modules.size(); ++i) {
        const HostAdapter::Module& module = adapter.modules[i];
        if (module.gain.empty()) continue;
        const HostMatrix& w = layers_[i / model::kLinearModules].linear[i % model::kLinearModules];
        for (size_t n = 0; n < w.n; ++n) {
            Vector row = reference::to_doubles(w.row(n));
            for (size_t r = 0; r < module.pair.b.k; ++r) {
                const double factor = module.pair.scale * module.pair.b.row(n)[r];
                for (size_t k = 0; k < row.size(); ++k) row[k] += factor * module.pair.a.row(r)[k];
            }
            double squares = 0;
            for (const double value : row) squares += value * value;
            const auto gain = static_cast<float>(module.gain[n] / std::sqrt(squares));
            std::memcpy(reinterpret_cast<float*>(view.modules[i].gain) + n, &gain, sizeof(gain));
        }
    }
}

Vector HostModel::apply(uint32_t layer, LinearModule module, const Vector& x, std::span<const HostUse> uses) const {
    const auto m = static_cast<size_t>(module);
    const Vector base = reference::multiply(layers_[layer].linear[m].values, x);
    Vector out = base;
    if (!layers_[layer].bias[m].empty()) add_scaled(out, reference::to_doubles(layers_[layer].bias[m]), 1);
    for (const HostUse& use : uses) {
        const HostAdapter::Module& part = use.adapter->modules[layer * model::kLinearModules + m];
        const Vector delta = part.pair.b.n != 0 ? low_rank(part.pair, x) : Vector(base.size());
        for (size_t n = 0; n < base.size(); ++n) {
            const double gain = part.gain.empty() ? 1.0 : part.gain[n];
            const double bias = part.bias.empty() ? 0.0 : part.bias[n];
            out[n] += use.scale * ((gain - 1) * base[n] + gain * delta[n] + bias);
        }
    }
    return out;
}

Vector HostModel::embed(int32_t token, std::span<const HostUse> uses) const {
    const auto t = static_cast<size_t>(token);
    Vector x = reference::to_doubles(embedding_.row(t));
    for (const HostUse& use : uses) {
        const HostAdapter& adapter = *use.adapter;
        if (adapter.embed_table.n != 0) x = reference::to_doubles(adapter.embed_table.row(t));
        const auto row = std::ranges::find(adapter.token_ids, static_cast<uint32_t>(token));
        if (row != adapter.token_ids.end()) {
            x = reference::to_doubles(adapter.token_rows.row(static_cast<size_t>(row - adapter.token_ids.begin())));
        }
    }
    for (const HostUse& use : uses) {
        const HostPair& pair = use.adapter->embed;
        if (pair.b.n == 0) continue;
        Vector low;
        for (size_t r = 0; r < pair.a.n; ++r) low.push_back(pair.a.row(r)[t]);
        add_scaled(x, reference::multiply(pair.b.values, low), use.scale * pair.scale);
    }
    return x;
}

Vector HostModel::logits(const Vector& x, std::span<const HostUse> uses) const {
    const HostMatrix* table = config_.tied_embeddings ? &embedding_ : &lm_head_;
    for (const HostUse& use : uses) {
        if (use.adapter->head_table.n != 0) table = &use.adapter->head_table;
    }
    Vector out = reference::multiply(table->values, x);
    for (const HostUse& use : uses) {
        const HostAdapter& adapter = *use.adapter;
        if (adapter.tokens_in_head) {
            for (size_t i = 0; i < adapter.token_ids.size(); ++i) {
                out[adapter.token_ids[i]] = reference::multiply(adapter.token_rows.row(i), x)[0];
            }
        }
    }
    for (const HostUse& use : uses) {
        if (use.adapter->head.b.n != 0) add_scaled(out, low_rank(use.adapter->head, x), use.scale);
        if (!use.adapter->head_bias.empty()) add_scaled(out, reference::to_doubles(use.adapter->head_bias), use.scale);
    }
    return out;
}

Vector HostModel::last_logits(std::span<const int32_t> ids, std::span<const HostUse> all_uses, size_t first_row) const {
    const std::vector<float> turns = model::rope_table(config_.rope, kPositions);
    const size_t half = config_.rope.rotary_dim / 2, dim = config_.head_dim;
    const auto uses_of = [&](size_t row) { return row < first_row ? std::span<const HostUse>() : all_uses; };
    std::vector<Vector> xs;
    for (size_t row = 0; row < ids.size(); ++row) xs.push_back(embed(ids[row], uses_of(row)));
    for (uint32_t index = 0; index < config_.n_layers; ++index) {
        const Layer& layer = layers_[index];
        std::vector<std::vector<float>> keys(config_.n_kv_heads), values(config_.n_kv_heads);
        for (size_t row = 0; row < ids.size(); ++row) {
            const std::span<const HostUse> uses = uses_of(row);
            const bool has_norms = !uses.empty() && !uses[0].adapter->norms.empty();
            const HostAdapter::Norms norms = has_norms ? uses[0].adapter->norms[index] : HostAdapter::Norms();
            const auto turned = [&](std::span<double> head, const std::vector<float>& norm) {
                if (!norm.empty()) {
                    const Vector normed = reference::rms_norm(head, norm, config_.rms_norm_eps);
                    std::ranges::copy(normed, head.begin());
                }
                reference::rope(head, config_.rope.rotary_dim, std::span(turns).subspan(row * half * 2, half * 2));
            };
            Vector& x = xs[row];
            const Vector h = reference::rms_norm(x, chosen(norms.input, layer.input_norm), config_.rms_norm_eps);
            Vector q = apply(index, LinearModule::kQ, h, uses), k = apply(index, LinearModule::kK, h, uses);
            const Vector v = apply(index, LinearModule::kV, h, uses);
            Vector mixed;
            for (uint32_t head = 0; head < config_.n_kv_heads; ++head) {
                turned(std::span(k).subspan(head * dim, dim), chosen(norms.k, layer.k_norm));
                keys[head].insert(keys[head].end(), k.begin() + head * dim, k.begin() + (head + 1) * dim);
                values[head].insert(values[head].end(), v.begin() + head * dim, v.begin() + (head + 1) * dim);
            }
            for (uint32_t head = 0; head < config_.n_heads; ++head) {
                turned(std::span(q).subspan(head * dim, dim), chosen(norms.q, layer.q_norm));
                const std::vector<float> query(q.begin() + head * dim, q.begin() + (head + 1) * dim);
                const uint32_t kv = head / (config_.n_heads / config_.n_kv_heads);
                const Vector out = reference::attention(
                    query, keys[kv], values[kv],
                    {.scale = 1 / std::sqrt(double(dim)), .window = config_.sliding_windows[index]});
                mixed.insert(mixed.end(), out.begin(), out.end());
            }
            add_scaled(x, apply(index, LinearModule::kO, mixed, uses), 1);
            const Vector h2 =
                reference::rms_norm(x, chosen(norms.post_attention, layer.post_attention_norm), config_.rms_norm_eps);
            Vector gate = apply(index, LinearModule::kGate, h2, uses);
            const Vector up_part = apply(index, LinearModule::kUp, h2, uses);
            for (size_t i = 0; i < gate.size(); ++i) gate[i] = reference::silu(gate[i]) * up_part[i];
            add_scaled(x, apply(index, LinearModule::kDown, gate, uses), 1);
        }
    }
    const std::span<const HostUse> uses = uses_of(ids.size() - 1);
    const bool has_norm = !uses.empty() && !uses[0].adapter->final_norm.empty();
    return logits(
        reference::rms_norm(xs.back(), has_norm ? uses[0].adapter->final_norm : final_norm_, config_.rms_norm_eps),
        uses);
}

}  // namespace lorad::testing
