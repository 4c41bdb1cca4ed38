#include "adapters/plan/trainable.h"

#include <algorithm>
#include <array>
#include <map>

#include "adapters/files/tensor_names.h"
#include "proto/base/format.h"

namespace lorad::adapters {
namespace {

using model::Tensor;
using model::TrainedPart;

Error not_trained(std::string_view what, std::string_view found) {
    return make_error(ErrorCode::kAdapterUnsupported, format("{}: {} is served, but not trained on", what, found));
}

std::optional<TrainedPart> part_of(PlaceKind kind) {
    switch (kind) {
        case PlaceKind::kLinear: return std::nullopt;
        case PlaceKind::kEmbedding: return TrainedPart::kEmbedding;
        case PlaceKind::kHead: return TrainedPart::kHead;
        case PlaceKind::kInputNorm: return TrainedPart::kInputNorm;
        case PlaceKind::kPostAttentionNorm: return TrainedPart::kPostAttentionNorm;
        case PlaceKind::kQNorm: return TrainedPart::kQNorm;
        case PlaceKind::kKNorm: return TrainedPart::kKNorm;
        case PlaceKind::kFinalNorm: return TrainedPart::kFinalNorm;
        case PlaceKind::kPreFeedForwardNorm:
        case PlaceKind::kDeltaNorm:
        case PlaceKind::kMambaNorm:
        case PlaceKind::kPostFeedForwardNorm: return std::nullopt;  // only in models that are not trained on
    }
    return std::nullopt;
}

// The tensors of one place, by role.
using PlaceTensors = std::array<const Tensor*, kTensorRoles>;
const Tensor* of(const PlaceTensors& tensors, TensorRole role) { return tensors[static_cast<size_t>(role)]; }

std::string trained_tensor_name(const Place& place, TensorRole role, std::string_view prefix) {
    const std::string name = tensor_name(place, role), module = name_of(place);
    return std::string(name).replace(name.find(module), module.size(), name_of(place, prefix));
}

class TrainableReader {
  public:
    TrainableReader(const CheckedAdapter& adapter, const BaseModel& base) : adapter_(adapter), base_(base) {}

    Result<model::TrainableAdapter> read() {
        if (!adapter_.plan.invocation_tokens.empty())
            return not_trained("alora_invocation_tokens", "an activated LoRA");
        if (adapter_.peft.ensure_weight_tying)
            return not_trained("ensure_weight_tying", "an adapter that ties embedding and output layer");
        std::map<Place, PlaceTensors> places;
        for (const Tensor& tensor : adapter_.tensors.tensors) {
            const ParsedName name = parse_tensor_name(tensor.name, base_.config);
            if (!name.expected.empty()) return not_trained(tensor.name, name.found);
            if (name.is_elsewhere) return not_trained(tensor.name, "a part that reads pictures or sound");
            if (name.place.kind != PlaceKind::kHead) prefix_ = name.prefix;
            places[name.place][static_cast<size_t>(name.role)] = &tensor;
        }
        for (const auto& [place, tensors] : places) TRY(add(place, tensors));
        return std::move(made_);
    }

  private:
    Status add(const Place& place, const PlaceTensors& tensors) {
        for (const TensorRole role : {TensorRole::kBBias, TensorRole::kBias}) {
            const Tensor* tensor = of(tensors, role);
            if (tensor != nullptr && place.kind != PlaceKind::kLinear)
                return not_trained(tensor->name, "a bias beside the layers' linear modules");
        }
        if (const Tensor* tensor = of(tensors, TensorRole::kTokenRows))
            return not_trained(tensor->name, "an embedding of single tokens");
        const bool is_embedding = place.kind == PlaceKind::kEmbedding;
        const Tensor* a = of(tensors, is_embedding ? TensorRole::kEmbeddingA : TensorRole::kA);
        const Tensor* b = of(tensors, is_embedding ? TensorRole::kEmbeddingB : TensorRole::kB);
        if (a != nullptr && b != nullptr) TRY(add_pair(place, *a, *b, tensors));
        if (const Tensor* bias = of(tensors, TensorRole::kBias)) add_bias(place, *bias, a != nullptr);
        const Tensor* weight = of(tensors, TensorRole::kWeight);
        if (weight == nullptr) return replaced_base(place, of(tensors, TensorRole::kBaseWeight));
        const std::string name = name_of(place, prefix_);
        const bool is_saved =
            is_norm(place.kind) || std::ranges::any_of(adapter_.peft.modules_to_save,
                                                       [&](const std::string& end) { return name.ends_with(end); });
        if (!is_saved) return replaced_base(place, weight);
        const std::optional<TrainedPart> part = part_of(place.kind);
        if (!part) return not_trained(weight->name, "a norm of what a part gives");
        made_.wholes.push_back(
            {.part = *part, .layer = place.layer, .weight = tensor_of(place, TensorRole::kWeight, *weight)});
        return ok_status();
    }

    // A table that was only saved along is the base's and left out; one that is another is part of what the adapter was
    // trained on.
    Status replaced_base(const Place& place, const Tensor* table) const {
        if (table == nullptr) return ok_status();
        const Tensor* used =
            place.kind == PlaceKind::kHead ? adapter_.plan.extras.head_table : adapter_.plan.extras.embed_table;
        if (used == nullptr) return ok_status();
        return not_trained(table->name, "a table in place of the base's that modules_to_save does not name");
    }

    void add_bias(const Place& place, const Tensor& bias, bool has_pair) {
        const FileModule& linear = kFileModules[place.linear];
        model::TrainedTensor tensor = tensor_of(place, TensorRole::kBias, bias);
        if (has_pair) tensor.name.insert(tensor.name.rfind('.'), ".base_layer");
        made_.biases.push_back(
            {.layer = place.layer, .first = linear.first, .last = linear.last, .bias = std::move(tensor)});
    }

    Status add_pair(const Place& place, const Tensor& a, const Tensor& b, const PlaceTensors& tensors) {
        const std::string module = name_of(place, prefix_);
        TRY_ASSIGN(const uint32_t rank, adapter_.peft.rank_of(module, budget_));
        TRY_ASSIGN(const double scale, adapter_.peft.scale_of(module, rank, budget_));
        const bool is_embedding = place.kind == PlaceKind::kEmbedding;
        model::TrainedPair pair{.scale = static_cast<float>(scale),
                                .a = tensor_of(place, is_embedding ? TensorRole::kEmbeddingA : TensorRole::kA, a),
                                .b = tensor_of(place, is_embedding ? TensorRole::kEmbeddingB : TensorRole::kB, b)};
        if (const Tensor* magnitude = of(tensors, TensorRole::kMagnitude))
            pair.magnitude = tensor_of(place, TensorRole::kMagnitude, *magnitude);
        if (const Tensor* b_bias = of(tensors, TensorRole::kBBias))
            pair.b_bias = tensor_of(place, TensorRole::kBBias, *b_bias);
        if (place.kind == PlaceKind::kLinear) {
            const FileModule& linear = kFileModules[place.linear];
            made_.linears.push_back(
                {.layer = place.layer, .first = linear.first, .last = linear.last, .pair = std::move(pair)});
        } else {
            (is_embedding ? made_.embedding : made_.head) = std::move(pair);
        }
        return ok_status();
    }

    model::TrainedTensor tensor_of(const Place& place, TensorRole role, const Tensor& tensor) const {
        return {.name = trained_tensor_name(place, role, prefix_),
                .shape = tensor.shape,
                .values = model::numbers_of(tensor)};
    }

    const CheckedAdapter& adapter_;
    const BaseModel& base_;
    RegexBudget budget_;
    std::string_view prefix_ = "model.";
    model::TrainableAdapter made_;
};

}  // namespace

Result<model::TrainableAdapter> to_trainable(const CheckedAdapter& adapter, const BaseModel& base) {
    return TrainableReader(adapter, base).read();
}

}  // namespace lorad::adapters
