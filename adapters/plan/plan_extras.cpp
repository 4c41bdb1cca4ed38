#include <algorithm>
#include <numeric>

#include "adapters/plan/plan_checks.h"
#include "proto/base/format.h"

namespace lorad::adapters {

namespace {

using model::Tensor;

constexpr Place kEmbedding{PlaceKind::kEmbedding}, kHead{PlaceKind::kHead};

class ExtrasPlanner {
  public:
    ExtrasPlanner(PlanChecks& checks, ExtrasPlan& plan) : checks_(checks), config_(checks.base.config), plan_(plan) {}

    Status plan() {
        TRY(plan_embedding_lora());
        TRY(plan_head_lora());
        check_tied_lora();
        plan_tables();
        check_originals();
        if (checks_.peft.ensure_weight_tying && config_.tied_by_name) {
            checks_.misfit("ensure_weight_tying", "a base whose output layer is its embedding",
                           "tie_word_embeddings beside an lm_head.weight of other numbers", true);
        }
        plan_norms();
        plan_tokens();
        check_modules_to_save();
        return ok_status();
    }

  private:
    Status plan_embedding_lora() {
        if (!checks_.has_low_rank(kEmbedding)) return ok_status();
        TRY_ASSIGN(const uint32_t rank, checks_.peft.rank_of(checks_.peft_name(kEmbedding), checks_.budget));
        TRY_ASSIGN(const double scale, checks_.peft.scale_of(checks_.peft_name(kEmbedding), rank, checks_.budget));
        const Tensor* a = checks_.fitting(kEmbedding, TensorRole::kEmbeddingA, {rank, config_.vocab_size});
        const Tensor* b = checks_.fitting(kEmbedding, TensorRole::kEmbeddingB, {config_.hidden_size, rank});
        if (a == nullptr || b == nullptr) return ok_status();
        plan_.embed = {a, b, rank, static_cast<float>(scale)};
        refuse_dora(kEmbedding);
        return ok_status();
    }

    // PEFT trains one A and B for both and saves them twice; add_tied_lora() in check.cpp adds the second where a file
    // has one.
    void check_tied_lora() {
        if (!checks_.ties_lora || plan_.embed.a == nullptr || plan_.head.a == nullptr) return;
        if (is_transposed(*plan_.embed.a, *plan_.head.b) && is_transposed(*plan_.embed.b, *plan_.head.a)) return;
        checks_.misfit(plan_.head.a->name,
                       format("{} and {} the other way round, as ensure_weight_tying ties them", plan_.embed.a->name,
                              plan_.embed.b->name),
                       "other numbers");
    }

    Status plan_head_lora() {
        if (!checks_.has_low_rank(kHead)) {
            if (const Tensor* bias = checks_.find(kHead, TensorRole::kBBias)) {
                checks_.misfit(bias->name, "lora_A and lora_B beside it", "none");
            }
            return ok_status();
        }
        TRY_ASSIGN(const uint32_t rank, checks_.peft.rank_of(checks_.peft_name(kHead), checks_.budget));
        TRY_ASSIGN(const double scale, checks_.peft.scale_of(checks_.peft_name(kHead), rank, checks_.budget));
        const Tensor* a = checks_.fitting(kHead, TensorRole::kA, {rank, config_.hidden_size});
        const Tensor* b = checks_.fitting(kHead, TensorRole::kB, {config_.vocab_size, rank});
        const Tensor* bias = checks_.find(kHead, TensorRole::kBBias);
        if (bias != nullptr && !checks_.peft.lora_bias) {
            checks_.misfit(bias->name, "lora_bias = true in the config", "false");
        } else if (checks_.peft.lora_bias) {
            bias = checks_.fitting(kHead, TensorRole::kBBias, {config_.vocab_size});
            if (bias != nullptr) {
                plan_.head_bias = model::numbers_of(*bias);
                for (float& value : plan_.head_bias) value = static_cast<float>(scale * value);
            }
        }
        if (a == nullptr || b == nullptr) return ok_status();
        plan_.head = {a, b, rank, static_cast<float>(scale)};
        refuse_dora(kHead);
        return ok_status();
    }

    // A magnitude there would have been refused by its name; without one PEFT would use a fresh one.
    void refuse_dora(const Place& place) {
        if (!checks_.peft.use_dora) return;
        checks_.misfit(name_of(place), "DoRA on linear layers of the decoder",
                       "DoRA on the embedding or output layer, which is not supported", true);
    }

    bool is_saved(const Place& place) const {
        const std::string name = checks_.peft_name(place);
        return std::ranges::any_of(checks_.peft.modules_to_save,
                                   [&](const std::string& end) { return name.ends_with(end); });
    }

    // The table of a place: one that modules_to_save put beside the base's, or one that PEFT loads into the base's own
    // weights.
    // nullptr: the base's, also where a table was saved along that is the base's.
    const Tensor* table(const Place& place, bool& replaces_base) {
        const Tensor* weight = checks_.find(place, TensorRole::kWeight);
        const Tensor* base_weight = checks_.find(place, TensorRole::kBaseWeight);
        if (weight != nullptr && base_weight != nullptr) {
            checks_.misfit(weight->name, "one table", format("also {}", base_weight->name));
            return nullptr;
        }
        if (weight == nullptr && base_weight == nullptr) return nullptr;
        replaces_base = base_weight != nullptr || !is_saved(place);
        const Tensor* tensor = checks_.fitting(place, weight != nullptr ? TensorRole::kWeight : TensorRole::kBaseWeight,
                                               {config_.vocab_size, config_.hidden_size});
        const TableOrigin origin = base_weight != nullptr ? TableOrigin::kFrozen : TableOrigin::kMayBeTrained;
        if (tensor == nullptr || is_bases(place, *tensor, origin)) return nullptr;
        if (weight != nullptr && checks_.has_low_rank(place)) {
            // Beside LoRA on it PEFT saves the base's table as base_layer.weight.
            checks_.misfit(weight->name, "either LoRA or a fully trained module", "both");
            return nullptr;
        }
        return tensor;
    }

    // Returns true if the saved table is the base's own, which costs nothing; warns of the cost of another one.
    bool is_bases(const Place& place, const Tensor& saved, TableOrigin origin) {
        using Kind = TableComparison::Kind;
        const bool tied_head = place.kind == PlaceKind::kHead && config_.tied_embeddings;
        const std::string name = name_of(tied_head ? kEmbedding : place);
        const TableComparison comparison = checks_.base.compare_table(name + ".weight", saved, origin);
        // A copy that modules_to_save keeps is PEFT's to use, however near.
        if (comparison.kind == Kind::kRounded && is_saved(place)) return false;
        if (comparison.kind == Kind::kRounded) {
            checks_.warnings.push_back(
                format("{} is the base's {} but for rounding (differences up to {:.3g}); the base's own is used",
                       one_line(saved.name), name, comparison.largest));
        }
        if (comparison.kind != Kind::kOther) return true;
        if (comparison.n_different > 0 && !is_saved(place)) {
            checks_.warnings.push_back(format(
                "{} is not the base's {}: {} of {} numbers differ, by up to {:.3g}. It takes {} bytes more on the "
                "device, and the adapter "
                "can neither be mixed nor scaled. If it was not trained, leave it out (save_embedding_layers=False)",
                one_line(saved.name), name, comparison.n_different, saved.n_elements(), comparison.largest,
                saved.data.size()));
        }
        return false;
    }

    void plan_tables() {
        bool embed_is_bases = false, head_is_bases = false;
        plan_.embed_table = table(kEmbedding, embed_is_bases);
        plan_.head_table = table(kHead, head_is_bases);
        if (!config_.tied_embeddings) return;
        // In a tied base the embedding and the output layer are one table: replacing one replaces the other.
        const Tensor* embed = plan_.embed_table;
        const Tensor* head = plan_.head_table;
        const bool from_embed = embed != nullptr && (embed_is_bases || checks_.peft.ensure_weight_tying);
        const bool from_head = head != nullptr && head_is_bases;
        if (embed != nullptr && head != nullptr && (from_embed || from_head) && !is_same(*embed, *head)) {
            checks_.misfit(head->name, format("the same as {}, as the base ties them", embed->name), "other numbers");
        } else if (from_embed && head == nullptr) {
            plan_.head_table = embed;
        } else if (from_head && embed == nullptr) {
            plan_.embed_table = head;
        }
    }

    // The originals of modules_to_save are not read. But if only one of a tied base's two tables was saved, the other
    // is the original.
    void check_originals() {
        for (const auto& [place, found] : checks_.found) {
            const Tensor* original = found[static_cast<size_t>(TensorRole::kOriginal)];
            if (original == nullptr) continue;
            if (checks_.find(place, TensorRole::kWeight) == nullptr) {
                checks_.misfit(original->name, "the copy of modules_to_save beside it", "none");
            } else if (is_norm(place.kind)) {
                checks_.fitting(place, TensorRole::kOriginal, {norm_size(place)});
            } else if (checks_.fitting(place, TensorRole::kOriginal, {config_.vocab_size, config_.hidden_size}) !=
                           nullptr &&
                       config_.tied_embeddings &&
                       checks_.base.compare_table(name_of(kEmbedding) + ".weight", *original, TableOrigin::kFrozen)
                               .kind == TableComparison::Kind::kOther) {
                checks_.misfit(original->name,
                               format("the base's own {}.weight, as the base ties it", name_of(kEmbedding)), "others");
            }
        }
    }

    uint64_t norm_size(const Place& place) const {
        if (place.kind == PlaceKind::kDeltaNorm) return config_.layer(place.layer).delta.value_head_dim;
        if (place.kind == PlaceKind::kMambaNorm) return config_.layer(place.layer).mamba.inner_size();
        if (place.kind != PlaceKind::kQNorm && place.kind != PlaceKind::kKNorm) return config_.hidden_size;
        const model::AttentionFacts facts = config_.layer(place.layer).attention;
        if (facts.qk_norm != model::QkNorm::kFullWidth) return facts.head_dim;
        return place.kind == PlaceKind::kQNorm ? facts.q_size() : facts.kv_size();
    }

    void plan_norms() {
        const auto norm = [&](const Place& place) {
            return checks_.find(place, TensorRole::kWeight)
                       ? checks_.fitting(place, TensorRole::kWeight, {norm_size(place)})
                       : nullptr;
        };
        plan_.one_plus_norms = config_.one_plus_norms;
        std::vector<ExtrasPlan::LayerNorms> norms(config_.n_layers);
        bool has_any = false;
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            ExtrasPlan::LayerNorms& of = norms[layer];
            // Without a norm behind the mixer, that name means the norm in front of the feed-forward.
            const bool has_after = plan_.has_norms_after = config_.layer(layer).mixer_norm.after;
            of.input = norm({PlaceKind::kInputNorm, layer});
            (has_after ? of.mixer_after : of.ffn) = norm({PlaceKind::kPostAttentionNorm, layer});
            if (has_after) of.ffn = norm({PlaceKind::kPreFeedForwardNorm, layer});
            of.ffn_after = norm({PlaceKind::kPostFeedForwardNorm, layer});
            of.q = norm({PlaceKind::kQNorm, layer});
            of.k = norm({PlaceKind::kKNorm, layer});
            const bool is_mamba = config_.layer(layer).mixer == model::Mixer::kMamba;
            of.mixer = norm({is_mamba ? PlaceKind::kMambaNorm : PlaceKind::kDeltaNorm, layer});
            has_any |= of.input || of.mixer_after || of.ffn || of.ffn_after || of.q || of.k || of.mixer;
        }
        if (has_any) plan_.norms = std::move(norms);
        plan_.final_norm = norm({PlaceKind::kFinalNorm});
    }

    // Rows of the embedding by token. PEFT calls them a delta, but they stand in for the base's rows.
    void plan_tokens() {
        const TokenIndices* of_embedding = nullptr;
        const TokenIndices* of_head = nullptr;
        for (const TokenIndices& entry : checks_.peft.token_indices) {
            const auto names = [&](const Place& place) {
                const std::string name = name_of(place);
                return name == entry.module || name.ends_with("." + entry.module);
            };
            if (names(kEmbedding)) {
                of_embedding = &entry;
            } else if (names(kHead)) {
                of_head = &entry;
            } else {
                checks_.misfit(format("trainable_token_indices: {}", entry.module), "embed_tokens or lm_head",
                               "another module");
            }
        }
        const bool head_follows =
            of_head && of_embedding && config_.tied_embeddings && of_head->tokens == of_embedding->tokens;
        if (of_head != nullptr && !head_follows) {
            checks_.misfit("trainable_token_indices: lm_head",
                           "tokens of the embedding, or the same of a tied output layer",
                           "tokens of the output layer alone, which is not supported", true);
        }
        // A tied output layer's rows may be saved along without being named.
        const bool head_is_tied = of_head == nullptr && of_embedding != nullptr && config_.tied_embeddings;
        for (const Place& place : {kEmbedding, kHead}) {
            const Tensor* rows = checks_.find(place, TensorRole::kTokenRows);
            const bool is_known =
                place.kind == PlaceKind::kEmbedding ? of_embedding != nullptr : of_head != nullptr || head_is_tied;
            if (rows != nullptr && !is_known)
                checks_.misfit(rows->name, "trainable_token_indices in the config", "none");
        }
        if (of_embedding == nullptr) return;
        plan_token_rows(*of_embedding);
        const Tensor* head_rows = checks_.find(kHead, TensorRole::kTokenRows);
        if ((head_follows || head_is_tied) && head_rows && plan_.token_rows &&
            !is_same(*head_rows, *plan_.token_rows)) {
            checks_.misfit(head_rows->name, format("the same as {}, as the base ties them", plan_.token_rows->name),
                           "other numbers");
        }
    }

    void plan_token_rows(const TokenIndices& entry) {
        std::vector<uint32_t> order(entry.tokens.size());
        std::iota(order.begin(), order.end(), 0u);
        std::ranges::sort(order, {}, [&](uint32_t i) { return entry.tokens[i]; });
        for (size_t i = 0; i < order.size(); ++i) {
            const int64_t token = entry.tokens[order[i]];
            if (token < 0 || token >= int64_t{config_.vocab_size}) {
                return checks_.misfit("trainable_token_indices", format("tokens 0 to {}", config_.vocab_size - 1),
                                      std::to_string(token));
            }
            if (i > 0 && entry.tokens[order[i - 1]] == token) {
                return checks_.misfit("trainable_token_indices", "each token once", format("{} twice", token));
            }
        }
        const Tensor* rows =
            checks_.fitting(kEmbedding, TensorRole::kTokenRows, {entry.tokens.size(), config_.hidden_size});
        if (rows == nullptr) return;
        if (is_saved(kEmbedding) || checks_.has_low_rank(kEmbedding)) {
            return checks_.misfit(rows->name, "either token rows or another change of the embedding", "both");
        }
        plan_.token_rows = rows;
        plan_.token_order = std::move(order);
        for (const uint32_t i : plan_.token_order) plan_.token_ids.push_back(static_cast<uint32_t>(entry.tokens[i]));
        if (config_.tied_by_name) {
            // PEFT goes by the config and puts the embedding's rows into an output layer that is another matrix.
            return checks_.misfit(rows->name,
                                  "a base whose output layer is its embedding, or whose config does not say so",
                                  "tie_word_embeddings beside an lm_head.weight of other numbers", true);
        }
        plan_.tokens_in_head = config_.tied_embeddings;
        if (plan_.tokens_in_head && (is_saved(kHead) || checks_.has_low_rank(kHead))) {
            checks_.misfit(rows->name, "either token rows or another change of the output layer, as the base ties them",
                           "both");
        }
    }

    // Every module of the base whose name ends so must be in the file, and there must be one.
    void check_modules_to_save() {
        std::vector<Place> places{kEmbedding, kHead, {PlaceKind::kFinalNorm}};
        std::vector<std::string> containers{"model", "model.layers"};
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            for (const PlaceKind kind :
                 {PlaceKind::kInputNorm, PlaceKind::kPostAttentionNorm, PlaceKind::kPreFeedForwardNorm,
                  PlaceKind::kPostFeedForwardNorm, PlaceKind::kQNorm, PlaceKind::kKNorm, PlaceKind::kDeltaNorm,
                  PlaceKind::kMambaNorm}) {
                if (has_norm(config_.layer(layer), kind)) places.push_back({kind, layer});
            }
            const std::string prefix = format("model.layers.{}", layer);
            for (const char* part : {"", ".self_attn", ".linear_attn", ".mamba", ".mlp", ".mlp.act_fn"})
                containers.push_back(prefix + part);
            for (uint32_t linear = 0; linear < kFileModules.size(); ++linear) {
                if (shape_of(config_, layer, kFileModules[linear]).n == 0) continue;
                const bool is_gate_up =
                    kFileModules[linear].name.starts_with("mlp.gate") || kFileModules[linear].name == "mlp.up_proj";
                const bool is_whole = kFileModules[linear].first == model::LinearModule::kO ||
                                      kFileModules[linear].first >= model::LinearModule::kDown;
                const bool base_is_fused = is_gate_up ? config_.fused_gate_up : config_.fused_qkv;
                if (is_whole || kFileModules[linear].fused == base_is_fused)
                    places.push_back({PlaceKind::kLinear, layer, linear});
            }
        }
        for (const std::string& end : checks_.peft.modules_to_save) check_saved(end, places, containers);
    }

    void check_saved(const std::string& end, const std::vector<Place>& places,
                     const std::vector<std::string>& containers) {
        bool is_known = false;
        for (const Place& place : places) {
            if (!checks_.peft_name(place).ends_with(end)) continue;
            is_known = true;
            if (place.kind == PlaceKind::kLinear) {
                checks_.misfit(format("modules_to_save: {}", name_of(place)),
                               "the embedding, the output layer or norms",
                               "a fully trained linear layer, which is not supported", true);
            } else if (checks_.find(place, TensorRole::kWeight) == nullptr) {
                checks_.misfit(tensor_name(place, TensorRole::kWeight), "a tensor, as modules_to_save names the module",
                               "none");
            }
        }
        if (is_known) return;
        const bool is_container =
            std::ranges::any_of(containers, [&](const std::string& name) { return name.ends_with(end); });
        checks_.misfit(
            format("modules_to_save: {}", end), "the embedding, the output layer or norms",
            is_container ? "a part with linear layers, which is not supported" : "a module that the base does not have",
            is_container);
    }

    PlanChecks& checks_;
    const model::ModelConfig& config_;
    ExtrasPlan& plan_;
};

}  // namespace

Status plan_extras(PlanChecks& checks, ExtrasPlan& plan) { return ExtrasPlanner(checks, plan).plan(); }

}  // namespace lorad::adapters
