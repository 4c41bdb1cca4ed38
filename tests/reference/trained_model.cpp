#include "tests/reference/trained_model.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "model/train/philox.h"

namespace lorad::reference {
namespace {

using model::TrainedPair;

std::string module_name(uint32_t layer, const std::string& module) {
    return "model.layers." + std::to_string(layer) + "." + module;
}

void add(Vector& to, const Vector& what) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += what[i];
}

Vector slice(const Vector& of, size_t begin, size_t n) {
    return {of.begin() + static_cast<ptrdiff_t>(begin), of.begin() + static_cast<ptrdiff_t>(begin + n)};
}

// scale B A x
Vector low_rank(const TrainedPair& pair, const Vector& x, size_t n) {
    Vector out(n);
    add_expand(out, {pair.a.values, pair.b.values, pair.rank(), static_cast<double>(pair.scale)},
               multiply(pair.a.values, x));
    return out;
}

}  // namespace

const std::vector<float>& TrainedModel::weight(const std::string& name) const {
    const auto found = weights_.find(name);
    if (found == weights_.end()) throw std::runtime_error("no weight " + name);
    return found->second;
}

std::vector<Vector> TrainedModel::norms(const model::TrainableAdapter& adapter) const {
    std::vector<Vector> made;
    for (const model::TrainedLinear& one : adapter.linears) {
        Vector& norms = made.emplace_back();
        if (!one.pair.magnitude) continue;
        const std::string& name = one.pair.a.name;
        const size_t begin = name.find("model.layers.");
        const std::vector<float>& w = weight(name.substr(begin, name.find(".lora_A") - begin) + ".weight");
        const size_t k = one.pair.a.shape[1], rank = one.pair.rank();
        for (size_t n = 0; n < w.size() / k; ++n) {
            double squares = 0;
            for (size_t i = 0; i < k; ++i) {
                double value = w[n * k + i];
                for (size_t r = 0; r < rank; ++r)
                    value += double{one.pair.scale} * one.pair.b.values[n * rank + r] * one.pair.a.values[r * k + i];
                squares += value * value;
            }
            norms.push_back(std::sqrt(squares));
        }
    }
    return made;
}

Vector TrainedModel::left_of(const Pass& pass, const Vector& x, uint32_t position, size_t linear) const {
    const Dropout& dropout = pass.dropout;
    if (dropout.p == 0) return x;
    Vector left(x.size());
    for (size_t k = 0; k < x.size(); ++k) {
        const auto words =
            model::philox({static_cast<uint32_t>(k / 4), position, pass.example, static_cast<uint32_t>(linear)},
                          {static_cast<uint32_t>(dropout.seed ^ dropout.seed >> 32), dropout.step});
        left[k] = words[k % 4] >= dropout.p * 4294967296.0 ? x[k] / (1 - dropout.p) : 0.0;
    }
    return left;
}

// PEFT's: base(x) + scale B A x', and with magnitudes base(x) + (g - 1) W x' + g scale B A x'.
TrainedModel::Rows TrainedModel::linear(const Pass& pass, uint32_t layer, const std::string& module,
                                        const Rows& x) const {
    const std::string name = module_name(layer, module);
    const std::vector<float>& w = weight(name + ".weight");
    const auto bias = weights_.find(name + ".bias");
    const auto& linears = pass.adapter.linears;
    const auto found = std::ranges::find_if(
        linears, [&](const auto& one) { return one.pair.a.name.find(name + ".lora_A") != std::string::npos; });
    const auto index = static_cast<size_t>(found - linears.begin());
    const auto trained_bias = std::ranges::find_if(pass.adapter.biases, [&](const model::TrainedBias& one) {
        return one.bias.name.find(name + ".") != std::string::npos;
    });
    Rows rows;
    for (uint32_t t = 0; t < x.size(); ++t) {
        Vector& y = rows.emplace_back(multiply(w, x[t]));
        const Vector of_base = y;
        if (trained_bias != pass.adapter.biases.end()) {
            add(y, to_doubles(trained_bias->bias.values));
        } else if (bias != weights_.end()) {
            add(y, to_doubles(bias->second));
        }
        if (found == linears.end()) continue;
        if (found->pair.b_bias) {
            for (size_t n = 0; n < y.size(); ++n) y[n] += double{found->pair.scale} * found->pair.b_bias->values[n];
        }
        const Vector left = left_of(pass, x[t], t, index), low = low_rank(found->pair, left, y.size());
        if (!found->pair.magnitude) {
            add(y, low);
            continue;
        }
        const Vector of_left = multiply(w, left);
        for (size_t n = 0; n < y.size(); ++n) {
            const double gain = found->pair.magnitude->values[n] / pass.norms[index][n];
            y[n] += (gain - 1) * of_left[n] + gain * low[n];
        }
    }
    return rows;
}

std::array<TrainedModel::Rows, 3> TrainedModel::queries_keys_values(const Pass& pass, uint32_t layer,
                                                                    const Rows& x) const {
    if (!config_.fused_qkv)
        return {linear(pass, layer, "self_attn.q_proj", x), linear(pass, layer, "self_attn.k_proj", x),
                linear(pass, layer, "self_attn.v_proj", x)};
    std::array<Rows, 3> made;
    for (const Vector& row : linear(pass, layer, "self_attn.qkv_proj", x)) {
        made[0].push_back(slice(row, 0, config_.q_size()));
        made[1].push_back(slice(row, config_.q_size(), config_.kv_size()));
        made[2].push_back(slice(row, config_.q_size() + config_.kv_size(), config_.kv_size()));
    }
    return made;
}

void TrainedModel::turn_heads(Rows& rows, const std::string& norm) const {
    const size_t dim = config_.head_dim;
    for (size_t position = 0; position < rows.size(); ++position) {
        for (size_t begin = 0; begin < rows[position].size(); begin += dim) {
            Vector head = slice(rows[position], begin, dim);
            if (config_.qk_norm) head = rms_norm(head, weight(norm), config_.rms_norm_eps);
            for (size_t i = 0; i < dim / 2; ++i) {
                const double angle = static_cast<double>(position) *
                                     std::pow(double{config_.rope.theta}, -2.0 * static_cast<double>(i) / double(dim));
                const double a = head[i], b = head[i + dim / 2], c = std::cos(angle), s = std::sin(angle);
                rows[position][begin + i] = a * c - b * s;
                rows[position][begin + i + dim / 2] = b * c + a * s;
            }
        }
    }
}

TrainedModel::Rows TrainedModel::attend(const std::array<Rows, 3>& qkv) const {
    const size_t dim = config_.head_dim, group = config_.n_heads / config_.n_kv_heads;
    Rows out;
    for (size_t t = 0; t < qkv[0].size(); ++t) {
        Vector& row = out.emplace_back(qkv[0][t].size());
        for (size_t head = 0; head < config_.n_heads; ++head) {
            const size_t q = head * dim, kv = head / group * dim;
            Vector scores(t + 1);
            for (size_t i = 0; i <= t; ++i) {
                for (size_t d = 0; d < dim; ++d) scores[i] += qkv[0][t][q + d] * qkv[1][i][kv + d];
                scores[i] /= std::sqrt(static_cast<double>(dim));
            }
            const double top = *std::ranges::max_element(scores);
            double total = 0;
            for (double& score : scores) total += score = std::exp(score - top);
            for (size_t i = 0; i <= t; ++i) {
                for (size_t d = 0; d < dim; ++d) row[q + d] += scores[i] / total * qkv[2][i][kv + d];
            }
        }
    }
    return out;
}

TrainedModel::Rows TrainedModel::norm(const Rows& x, const std::string& name) const {
    Rows rows;
    for (const Vector& row : x) rows.push_back(rms_norm(row, weight(name), config_.rms_norm_eps));
    return rows;
}

TrainedModel::Rows TrainedModel::feed_forward(const Pass& pass, uint32_t layer, const Rows& x) const {
    const size_t ffn = config_.intermediate_size;
    Rows gate, up, act;
    if (config_.fused_gate_up) {
        for (const Vector& row : linear(pass, layer, "mlp.gate_up_proj", x)) {
            gate.push_back(slice(row, 0, ffn));
            up.push_back(slice(row, ffn, ffn));
        }
    } else {
        gate = linear(pass, layer, "mlp.gate_proj", x);
        up = linear(pass, layer, "mlp.up_proj", x);
    }
    for (size_t t = 0; t < x.size(); ++t) {
        Vector& row = act.emplace_back(ffn);
        for (size_t i = 0; i < ffn; ++i) row[i] = silu(gate[t][i]) * up[t][i];
    }
    return linear(pass, layer, "mlp.down_proj", act);
}

TrainedModel::Rows TrainedModel::logits(const Pass& pass, const model::TrainExample& example) const {
    const std::vector<float>& table = weight("model.embed_tokens.weight");
    const size_t hidden = config_.hidden_size;
    Rows x;
    for (const TokenId token : example.tokens)
        x.push_back(to_doubles(std::span(table).subspan(static_cast<size_t>(token) * hidden, hidden)));
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
        auto qkv = queries_keys_values(pass, layer, norm(x, module_name(layer, "input_layernorm.weight")));
        turn_heads(qkv[0], module_name(layer, "self_attn.q_norm.weight"));
        turn_heads(qkv[1], module_name(layer, "self_attn.k_norm.weight"));
        const Rows o = linear(pass, layer, "self_attn.o_proj", attend(qkv));
        for (size_t t = 0; t < x.size(); ++t) add(x[t], o[t]);
        const Rows down = feed_forward(pass, layer, norm(x, module_name(layer, "post_attention_layernorm.weight")));
        for (size_t t = 0; t < x.size(); ++t) add(x[t], down[t]);
    }
    Rows out;
    const std::optional<TrainedPair>& head = pass.adapter.head;
    for (const Vector& row : norm(x, "model.norm.weight")) {
        const auto t = static_cast<uint32_t>(out.size());
        Vector& y = out.emplace_back(multiply(config_.tied_embeddings ? table : weight("lm_head.weight"), row));
        if (head) add(y, low_rank(*head, left_of(pass, row, t, pass.adapter.linears.size()), y.size()));
    }
    return out;
}

double TrainedModel::loss(const model::TrainableAdapter& adapter, const std::vector<Vector>& norms,
                          const std::vector<model::TrainExample>& examples, const Dropout& dropout) const {
    double sum = 0;
    size_t n = 0;
    for (uint32_t i = 0; i < examples.size(); ++i) {
        const Rows rows = logits({adapter, norms, dropout, i}, examples[i]);
        for (size_t t = 1; t < examples[i].tokens.size(); ++t) {
            if (examples[i].weights[t] == 0) continue;
            const Vector& row = rows[t - 1];
            const double top = *std::ranges::max_element(row);
            double total = 0;
            for (const double value : row) total += std::exp(value - top);
            sum += double{examples[i].weights[t]} *
                   (top + std::log(total) - row[static_cast<size_t>(examples[i].tokens[t])]);
            ++n;
        }
    }
    return sum / static_cast<double>(n);
}

}  // namespace lorad::reference
