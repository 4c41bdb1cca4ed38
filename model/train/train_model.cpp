#include "model/train/train_model.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/config/topology.h"
#include "model/weights/lora_table.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr auto kRefused = ErrorCode::kInvalidConfig;

// Of shapes alone there are no numbers.
Status check_tensor(const TrainedTensor& tensor, const std::vector<uint64_t>& shape, TrainNumbers numbers) {
    if (tensor.shape != shape) {
        return make_error(kRefused, format("{}: shape {}: expected {} of this model", tensor.name,
                                           shape_text(tensor.shape), shape_text(shape)));
    }
    if (numbers == TrainNumbers::kNone) return ok_status();
    uint64_t n = 1;
    for (const uint64_t size : shape) n *= size;
    if (tensor.values.size() != n)
        return make_error(kRefused, format("{}: {} numbers: expected {}", tensor.name, tensor.values.size(), n));
    if (!std::ranges::all_of(tensor.values, [](float value) { return std::isfinite(value); })) {
        return make_error(kRefused, format("{}: a number that is not finite", tensor.name));
    }
    return ok_status();
}

Status check_pair(const TrainedPair& pair, LinearShape shape, TrainNumbers numbers) {
    if (pair.a.shape.size() != 2 || pair.a.shape[0] == 0 || pair.a.shape[0] > kLoraRankMax) {
        return make_error(kRefused, format("{}: shape {}: expected a rank from 1 to {}", pair.a.name,
                                           shape_text(pair.a.shape), kLoraRankMax));
    }
    if (!std::isfinite(pair.scale)) return make_error(kRefused, format("{}: a scale that is not finite", pair.a.name));
    TRY(check_tensor(pair.a, {pair.rank(), shape.k}, numbers));
    TRY(check_tensor(pair.b, {shape.n, pair.rank()}, numbers));
    if (pair.magnitude) TRY(check_tensor(*pair.magnitude, {shape.n}, numbers));
    if (pair.b_bias) TRY(check_tensor(*pair.b_bias, {shape.n}, numbers));
    if (pair.b_bias && pair.magnitude)
        return make_error(kRefused, format("{}: a bias of lora_B beside DoRA is not trained", pair.b_bias->name));
    return ok_status();
}

struct GroupModules {
    LinearModule first, last;
};
constexpr std::array<GroupModules, kTrainGroups> kGroupModules = {{{LinearModule::kQ, LinearModule::kV},
                                                                   {LinearModule::kO, LinearModule::kO},
                                                                   {LinearModule::kGate, LinearModule::kUp},
                                                                   {LinearModule::kDown, LinearModule::kDown}}};

LinearModule next(LinearModule module) { return static_cast<LinearModule>(static_cast<uint8_t>(module) + 1); }

// Outputs of modules `first` to `last`, both included.
uint32_t n_outputs(const ModelConfig& config, LinearModule first, LinearModule last) {
    uint32_t n = 0;
    for (LinearModule module = first; module <= last; module = next(module)) n += config.shape(module).n;
    return n;
}

class ModelBuilder {
  public:
    ModelBuilder(const ModelConfig& config, const ModelWeights& weights, const TrainableAdapter& adapter,
                 TrainNumbers numbers)
        : config_(config), weights_(weights), adapter_(adapter), numbers_(numbers) {}

    Result<TrainModel> build() {
        if (adapter_.n_parameters() == 0) return make_error(kRefused, "the adapter has no tensor to train");
        if (adapter_.n_parameters() > uint64_t{1} << 31) {
            return make_error(kRefused,
                              format("{} numbers to train: at most {}", adapter_.n_parameters(), uint64_t{1} << 31));
        }
        TRY(check_trains(config_));
        made_.layers.resize(config_.n_layers);
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            const LayerWeights& w = weights_.layers[layer];
            auto& groups = made_.layers[layer].groups;
            groups[kTrainQkv] = {&w.qkv, &w.qkv_bias, {}};
            groups[kTrainO] = {&w.o, &w.o_bias, {}};
            groups[kTrainGateUp] = {&w.gate_up, &w.gate_up_bias, {}};
            groups[kTrainDown] = {&w.down, &w.down_bias, {}};
        }
        for (uint32_t i = 0; i < adapter_.linears.size(); ++i) TRY(add_linear(i));
        for (TrainLayer& layer : made_.layers) {
            for (TrainGroup& group : layer.groups) TRY(fill_gaps(group));
        }
        for (uint32_t i = 0; i < adapter_.wholes.size(); ++i) TRY(add_whole(i));
        TRY(add_outer_pairs());
        for (uint32_t i = 0; i < adapter_.biases.size(); ++i) TRY(add_bias(i));
        made_.first_trained_layer = config_.n_layers;
        for (uint32_t layer = config_.n_layers; layer-- > 0;) {
            if (made_.layers[layer].is_trained() || made_.trains_embedding()) made_.first_trained_layer = layer;
        }
        return std::move(made_);
    }

  private:
    Status add_linear(uint32_t index) {
        const TrainedLinear& linear = adapter_.linears[index];
        if (linear.layer >= config_.n_layers) {
            return make_error(
                kRefused, format("{}: layer {}: the model has {}", linear.pair.a.name, linear.layer, config_.n_layers));
        }
        const std::optional<Outputs> at = outputs_of(linear.first, linear.last);
        if (!at)
            return make_error(kRefused,
                              format("{}: modules that are not neighbours of one matrix", linear.pair.a.name));
        TRY(check_pair(linear.pair, {at->n, config_.shape(linear.first).k}, numbers_));
        made_.layers[linear.layer].groups[at->group].parts.push_back(
            {at->begin, at->n, index, linear.pair.magnitude.has_value(), linear.pair.b_bias.has_value()});
        return ok_status();
    }

    // Outputs of neighbouring modules in their group's.
    struct Outputs {
        uint32_t group, begin, n;
    };
    std::optional<Outputs> outputs_of(LinearModule first, LinearModule last) const {
        for (uint32_t g = 0; g < kTrainGroups; ++g) {
            const GroupModules& modules = kGroupModules[g];
            if (first < modules.first || last > modules.last || last < first) continue;
            const uint32_t begin =
                first == modules.first
                    ? 0
                    : n_outputs(config_, modules.first, static_cast<LinearModule>(static_cast<uint8_t>(first) - 1));
            return Outputs{g, begin, n_outputs(config_, first, last)};
        }
        return std::nullopt;
    }

    Status add_bias(uint32_t index) {
        const TrainedBias& bias = adapter_.biases[index];
        const std::optional<Outputs> at = outputs_of(bias.first, bias.last);
        if (bias.layer >= config_.n_layers || !at)
            return make_error(kRefused, format("{}: the model has no such modules", bias.bias.name));
        TRY(check_tensor(bias.bias, {at->n}, numbers_));
        auto& biases = made_.layers[bias.layer].groups[at->group].biases;
        for (const TrainBiasPart& other : biases) {
            if (other.begin < at->begin + at->n && at->begin < other.begin + other.n)
                return make_error(kRefused, format("{}: given twice", bias.bias.name));
        }
        biases.push_back({at->begin, at->n, index});
        return ok_status();
    }

    Status fill_gaps(TrainGroup& group) const {
        std::ranges::sort(group.parts, {}, &TrainPart::begin);
        std::vector<TrainPart> whole;
        uint32_t end = 0;
        for (const TrainPart& part : group.parts) {
            if (part.begin < end)
                return make_error(kRefused, format("{}: a module that another pair adapts",
                                                   adapter_.linears[*part.linear].pair.a.name));
            if (part.begin > end) whole.push_back({.begin = end, .n = part.begin - end});
            whole.push_back(part);
            end = part.begin + part.n;
        }
        if (end < group.w->n) whole.push_back({.begin = end, .n = group.w->n - end});
        group.parts = std::move(whole);
        return ok_status();
    }

    Status add_whole(uint32_t index) {
        const TrainedWhole& whole = adapter_.wholes[index];
        const bool is_of_layer = whole.part >= TrainedPart::kInputNorm && whole.part <= TrainedPart::kKNorm;
        if (is_of_layer && whole.layer >= config_.n_layers) {
            return make_error(
                kRefused, format("{}: layer {}: the model has {}", whole.weight.name, whole.layer, config_.n_layers));
        }
        TrainLayer* layer = is_of_layer ? &made_.layers[whole.layer] : nullptr;
        std::vector<uint64_t> shape = {config_.hidden_size};
        std::optional<uint32_t>* place = nullptr;
        switch (whole.part) {
            case TrainedPart::kEmbedding: place = &made_.embedding; break;
            case TrainedPart::kHead: place = &made_.head; break;
            case TrainedPart::kInputNorm: place = &layer->input_norm; break;
            case TrainedPart::kPostAttentionNorm: place = &layer->post_attention_norm; break;
            case TrainedPart::kQNorm: place = &layer->q_norm; break;
            case TrainedPart::kKNorm: place = &layer->k_norm; break;
            case TrainedPart::kFinalNorm: place = &made_.final_norm; break;
        }
        if (whole.part == TrainedPart::kEmbedding || whole.part == TrainedPart::kHead)
            shape = {config_.vocab_size, config_.hidden_size};
        if (whole.part == TrainedPart::kQNorm || whole.part == TrainedPart::kKNorm) {
            if (!config_.qk_norm)
                return make_error(kRefused, format("{}: the model has no such norm", whole.weight.name));
            shape = {config_.head_dim};
        }
        if (place->has_value()) return make_error(kRefused, format("{}: given twice", whole.weight.name));
        TRY(check_tensor(whole.weight, shape, numbers_));
        *place = index;
        return ok_status();
    }

    Status add_outer_pairs() {
        if (adapter_.embedding) {
            TRY(check_pair(*adapter_.embedding, {config_.hidden_size, config_.vocab_size}, numbers_));
            if (made_.embedding)
                return make_error(
                    kRefused, format("{}: the embedding is trained as a whole as well", adapter_.embedding->a.name));
            if (adapter_.embedding->magnitude)
                return make_error(
                    kRefused, format("{}: DoRA of the embedding is not trained", adapter_.embedding->magnitude->name));
        }
        for (const auto* pair : {&adapter_.embedding, &adapter_.head}) {
            if (*pair && (*pair)->b_bias)
                return make_error(kRefused,
                                  format("{}: a bias of lora_B on the embedding or the output layer is not trained",
                                         (*pair)->b_bias->name));
        }
        if (adapter_.head) {
            TRY(check_pair(*adapter_.head, {config_.vocab_size, config_.hidden_size}, numbers_));
            if (made_.head)
                return make_error(kRefused,
                                  format("{}: the output layer is trained as a whole as well", adapter_.head->a.name));
            if (adapter_.head->magnitude)
                return make_error(
                    kRefused, format("{}: DoRA of the output layer is not trained", adapter_.head->magnitude->name));
        }
        made_.has_embedding_pair = adapter_.embedding.has_value();
        made_.has_head_pair = adapter_.head.has_value();
        return ok_status();
    }

    const ModelConfig& config_;
    const ModelWeights& weights_;
    const TrainableAdapter& adapter_;
    const TrainNumbers numbers_;
    TrainModel made_;
};

}  // namespace

bool TrainGroup::has_magnitudes() const { return std::ranges::any_of(parts, &TrainPart::has_magnitude); }

bool TrainGroup::is_trained() const {
    return std::ranges::any_of(parts, [](const TrainPart& part) { return part.linear.has_value(); });
}

bool TrainGroup::trains_bias() const { return !biases.empty() || std::ranges::any_of(parts, &TrainPart::has_b_bias); }

bool TrainLayer::is_trained() const {
    return input_norm || post_attention_norm || q_norm || k_norm ||
           std::ranges::any_of(groups,
                               [](const TrainGroup& group) { return group.is_trained() || group.trains_bias(); });
}

bool TrainModel::trains_norms() const {
    return final_norm || std::ranges::any_of(layers, [](const TrainLayer& layer) {
               return layer.input_norm || layer.post_attention_norm || layer.q_norm || layer.k_norm;
           });
}

Status check_trains(const ModelConfig& config) {
    const ModelTopology topology = topology_of(config);
    if (topology.features == 0) return ok_status();
    return make_error(kRefused, format("{}: models with {} are served, but not trained on", config.architecture,
                                       features_beyond(topology, 0)));
}

Result<TrainModel> TrainModel::create(const ModelConfig& config, const ModelWeights& weights,
                                      const TrainableAdapter& adapter, TrainNumbers numbers) {
    return ModelBuilder(config, weights, adapter, numbers).build();
}

}  // namespace lorad::model
