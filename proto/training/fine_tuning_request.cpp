#include "proto/training/fine_tuning_request.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::proto {
namespace {

constexpr std::array<std::string_view, 14> kFormFields = {"lora_r",
                                                          "r",
                                                          "lora_alpha",
                                                          "lora_trainable_modules",
                                                          "target_modules",
                                                          "exclude_modules",
                                                          "modules_to_save",
                                                          "rank_pattern",
                                                          "alpha_pattern",
                                                          "layers_to_transform",
                                                          "use_rslora",
                                                          "use_dora",
                                                          "bias",
                                                          "lora_bias"};

constexpr std::array<std::string_view, 5> kSchedulers = {"constant", "linear", "cosine", "hf-linear", "hf-cosine"};
constexpr std::array<std::string_view, 4> kTrainOnNames = {"assistant", "last", "expand", "all"};

bool is_auto(const JsonValue& value) { return value.is_string() && *value.as_string() == "auto"; }

// A number in the range; nothing where it is absent or "auto".
Result<std::optional<double>> number_in(const JsonValue& object, std::string_view name, double min, double max) {
    const std::optional<JsonValue> value = object.find(name);
    if (!value || is_auto(*value)) return std::optional<double>();
    TRY_ASSIGN(const double number, value->as_number());
    if (!(number >= min && number <= max))
        return value->error(format("expected a number from {} to {}, found {}", min, max, value->describe()));
    return std::optional(number);
}

Result<std::optional<uint32_t>> whole_in(const JsonValue& object, std::string_view name, uint32_t min, uint32_t max) {
    const std::optional<JsonValue> value = object.find(name);
    if (!value || is_auto(*value)) return std::optional<uint32_t>();
    TRY_ASSIGN(const int64_t number, value->as_int(min, max));
    return std::optional(static_cast<uint32_t>(number));
}

template <typename T>
void set_if(const std::optional<T>& found, T& to) {
    if (found) to = *found;
}

Status read_number(const JsonValue& root, std::string_view name, double min, double max, double& to) {
    TRY_ASSIGN(const std::optional<double> found, number_in(root, name, min, max));
    set_if(found, to);
    return ok_status();
}

Result<std::string> one_of(const JsonValue& root, std::string_view name, std::span<const std::string_view> names,
                           std::string_view fallback) {
    TRY_ASSIGN(const std::string_view text, root.string_or(name, fallback));
    if (std::ranges::find(names, text) != names.end()) return std::string(text);
    return root.find(name)->error(format("expected {}, found {}", fmt::join(names, ", "), root.find(name)->describe()));
}

// A list of names, or one text with commas.
Result<std::vector<std::string>> names_of(const JsonValue& value) {
    constexpr size_t kNamesMax = 1024, kNameBytesMax = 512;
    std::vector<std::string> names;
    if (value.is_string()) {
        TRY_ASSIGN(std::string_view text, value.as_string());
        while (!text.empty()) {
            std::string_view name = text.substr(0, text.find(','));
            text.remove_prefix(std::min(name.size() + 1, text.size()));
            while (name.starts_with(' ')) name.remove_prefix(1);
            while (name.ends_with(' ')) name.remove_suffix(1);
            if (!name.empty()) names.emplace_back(name);
        }
    } else {
        TRY_ASSIGN(const std::vector<JsonValue> list, value.as_array());
        for (const JsonValue& one : list) {
            TRY_ASSIGN(const std::string_view name, one.as_string());
            names.emplace_back(name);
        }
    }
    if (names.size() > kNamesMax) return value.error(format("expected at most {} names", kNamesMax));
    for (const std::string& name : names) {
        if (name.empty() || name.size() > kNameBytesMax)
            return value.error(format("expected names of 1 to {} bytes", kNameBytesMax));
    }
    return names;
}

Status read_modules(const JsonValue& root, TrainingRecipe& recipe) {
    const std::optional<JsonValue> ours = root.find("lora_trainable_modules"), pefts = root.find("target_modules");
    if (ours && pefts) return pefts->error("lora_trainable_modules says the same; give one of them");
    if (const std::optional<JsonValue> value = ours ? ours : pefts) {
        TRY_ASSIGN(recipe.lora_trainable_modules, names_of(*value));
        if (recipe.lora_trainable_modules.empty())
            return value->error("expected all-linear or names of modules, found none");
    }
    if (const std::optional<JsonValue> value = root.find("exclude_modules")) {
        TRY_ASSIGN(recipe.exclude_modules, names_of(*value));
    }
    if (const std::optional<JsonValue> value = root.find("modules_to_save")) {
        TRY_ASSIGN(recipe.modules_to_save, names_of(*value));
    }
    if (const std::optional<JsonValue> value = root.find("layers_to_transform")) {
        std::vector<JsonValue> layers{*value};
        if (value->is_array()) {
            TRY_ASSIGN(layers, value->as_array());
        }
        recipe.layers_to_transform.clear();
        for (const JsonValue& layer : layers) {
            TRY_ASSIGN(const uint64_t number, layer.as_uint(100'000));
            recipe.layers_to_transform.push_back(static_cast<uint32_t>(number));
        }
    }
    return ok_status();
}

Status read_patterns(const JsonValue& root, TrainingRecipe& recipe) {
    if (const std::optional<JsonValue> value = root.find("rank_pattern")) {
        TRY_ASSIGN(const std::vector<JsonMember> members, value->as_object());
        recipe.rank_pattern.clear();
        for (const JsonMember& member : members) {
            TRY_ASSIGN(const int64_t rank, member.value.as_int(1, kLoraRankMax));
            recipe.rank_pattern.emplace_back(member.key, static_cast<uint32_t>(rank));
        }
    }
    if (const std::optional<JsonValue> value = root.find("alpha_pattern")) {
        TRY_ASSIGN(const std::vector<JsonMember> members, value->as_object());
        recipe.alpha_pattern.clear();
        for (const JsonMember& member : members) {
            TRY_ASSIGN(const double alpha, member.value.as_number());
            recipe.alpha_pattern.emplace_back(member.key, alpha);
        }
    }
    return ok_status();
}

// Of requests alone: records of jobs may hold others.
Status check_alphas(const JsonValue& root) {
    const std::optional<JsonValue> pattern = root.find("alpha_pattern");
    if (!pattern) return ok_status();
    TRY_ASSIGN(const std::vector<JsonMember> members, pattern->as_object());
    for (const JsonMember& member : members) {
        TRY_ASSIGN(const double alpha, member.value.as_number());
        if (!(alpha >= kLoraAlphaMin && alpha <= kLoraAlphaMax))
            return member.value.error(format("expected a number from {} to {}, found {}", kLoraAlphaMin, kLoraAlphaMax,
                                             member.value.describe()));
    }
    return ok_status();
}

Status read_adapter(const JsonValue& root, TrainingRecipe& recipe) {
    TRY_ASSIGN(const std::optional<uint32_t> rank, whole_in(root, "lora_r", 1, kLoraRankMax));
    TRY_ASSIGN(const std::optional<uint32_t> pefts, whole_in(root, "r", 1, kLoraRankMax));
    if (rank && pefts && *rank != *pefts) return root.find("r")->error("lora_r says another rank; give one of them");
    set_if(rank, recipe.lora_r);
    set_if(pefts, recipe.lora_r);
    static constexpr std::array<std::string_view, 3> kBiases = {"none", "lora_only", "all"};
    TRY_ASSIGN(recipe.bias, one_of(root, "bias", kBiases, recipe.bias));
    TRY_ASSIGN(recipe.lora_bias, root.bool_or("lora_bias", recipe.lora_bias));
    TRY_ASSIGN(recipe.lora_alpha, number_in(root, "lora_alpha", kLoraAlphaMin, kLoraAlphaMax));
    TRY(read_number(root, "lora_dropout", 0.0, kDropoutMax, recipe.lora_dropout));
    TRY(read_modules(root, recipe));
    TRY(read_patterns(root, recipe));
    TRY_ASSIGN(recipe.use_rslora, root.bool_or("use_rslora", recipe.use_rslora));
    TRY_ASSIGN(recipe.use_dora, root.bool_or("use_dora", recipe.use_dora));
    return ok_status();
}

Status read_optimizer(const JsonValue& root, TrainingRecipe& recipe) {
    TRY_ASSIGN(recipe.learning_rate, number_in(root, "learning_rate", 0.0, kLearningRateMax));
    TRY_ASSIGN(recipe.lr_scheduler, one_of(root, "lr_scheduler", kSchedulers, recipe.lr_scheduler));
    TRY(read_number(root, "warmup_ratio", 0.0, 1.0, recipe.warmup_ratio));
    TRY_ASSIGN(recipe.warmup_steps, whole_in(root, "warmup_steps", 0, kTrainingStepsMax));
    TRY(read_number(root, "weight_decay", 0.0, kWeightDecayMax, recipe.weight_decay));
    TRY(read_number(root, "max_grad_norm", 0.0, kGradNormMax, recipe.max_grad_norm));
    TRY(read_number(root, "adam_beta1", 0.0, kBeta1Max, recipe.adam_beta1));
    TRY(read_number(root, "adam_beta2", 0.0, kBeta2Max, recipe.adam_beta2));
    return read_number(root, "adam_epsilon", kAdamEpsilonMin, kAdamEpsilonMax, recipe.adam_epsilon);
}

Status read_data(const JsonValue& root, TrainingRecipe& recipe) {
    TRY_ASSIGN(recipe.max_steps, whole_in(root, "max_steps", 1, kTrainingStepsMax));
    TRY_ASSIGN(recipe.max_seq_length, whole_in(root, "max_seq_length", kSequenceTokensMin, kSequenceTokensMax));
    TRY_ASSIGN(recipe.train_on, one_of(root, "train_on", kTrainOnNames, recipe.train_on));
    static constexpr std::array<std::string_view, 2> kOverlong = {"truncate", "error"};
    TRY_ASSIGN(const std::string overlong,
               one_of(root, "overlong", kOverlong, recipe.refuse_overlong ? "error" : "truncate"));
    recipe.refuse_overlong = overlong == "error";
    TRY_ASSIGN(recipe.skip_bad_lines, root.bool_or("skip_bad_lines", recipe.skip_bad_lines));
    TRY_ASSIGN(recipe.shuffle, root.bool_or("shuffle", recipe.shuffle));
    // sequences are always packed; it changes no result
    TRY_ASSIGN([[maybe_unused]] const bool packing, root.bool_or("packing", true));
    TRY(read_number(root, "validation_split", 0.0, kValidationSplitMax, recipe.validation_split));
    TRY_ASSIGN(recipe.eval_steps, whole_in(root, "eval_steps", 1, kTrainingStepsMax));
    TRY_ASSIGN(recipe.checkpoint_steps, whole_in(root, "checkpoint_steps", 1, kTrainingStepsMax));
    TRY_ASSIGN(const std::optional<uint32_t> n_checkpoints, whole_in(root, "n_checkpoints", 1, 100));
    set_if(n_checkpoints, recipe.n_checkpoints);
    TRY_ASSIGN(recipe.early_stopping_patience, whole_in(root, "early_stopping_patience", 1, 1000));
    TRY_ASSIGN(recipe.use_best, root.bool_or("use_best", recipe.use_best));
    return ok_status();
}

Status read_hyperparameters(const JsonValue& value, TrainingRecipe& recipe, std::vector<std::string>& ignored) {
    if (!value.is_object()) return value.error(format("expected an object, found {}", value.describe()));
    TRY(check_fields(value, hyperparameter_fields(), ignored));
    TRY_ASSIGN(recipe.n_epochs, whole_in(value, "n_epochs", 1, kEpochsMax));
    TRY_ASSIGN(recipe.batch_size, whole_in(value, "batch_size", 1, kTrainingBatchMax));
    TRY_ASSIGN(recipe.learning_rate_multiplier, number_in(value, "learning_rate_multiplier", 1e-6, 1e4));
    return ok_status();
}

Status read_method(const JsonValue& root, FineTuningRequest& request) {
    const std::optional<JsonValue> older = root.find("hyperparameters");
    std::optional<JsonValue> newer;
    if (const std::optional<JsonValue> method = root.find("method")) {
        if (!method->is_object()) return method->error(format("expected an object, found {}", method->describe()));
        TRY_ASSIGN(const std::string_view type, method->string_or("type", "supervised"));
        if (type == "dpo" || type == "reinforcement")
            return unsupported_field("method.type", format("{} is not done here, supervised is", json_quote(type)));
        if (type != "supervised")
            return method->find("type")->error(
                format("expected supervised, found {}", method->find("type")->describe()));
        for (const std::string_view other : {"dpo", "reinforcement"}) {
            if (method->find(other))
                return unsupported_field(format("method.{}", other), "only supervised training is done here");
        }
        list_unknown_fields(*method, {"type", "supervised", "dpo", "reinforcement"}, request.ignored_fields);
        if (const std::optional<JsonValue> supervised = method->find("supervised")) {
            if (!supervised->is_object())
                return supervised->error(format("expected an object, found {}", supervised->describe()));
            list_unknown_fields(*supervised, {"hyperparameters"}, request.ignored_fields);
            newer = supervised->find("hyperparameters");
        }
    }
    if (older && newer && older->dump() != newer->dump())
        return older->error("expected the same as method.supervised.hyperparameters, or one of the two");
    if (older) TRY(read_hyperparameters(*older, request.recipe, request.ignored_fields));
    if (newer) TRY(read_hyperparameters(*newer, request.recipe, request.ignored_fields));
    return ok_status();
}

Status read_metadata(const JsonValue& root, FineTuningRequest& request) {
    constexpr size_t kPairsMax = 16, kKeyBytesMax = 64, kValueBytesMax = 512;
    const std::optional<JsonValue> metadata = root.find("metadata");
    if (!metadata) return ok_status();
    TRY_ASSIGN(const std::vector<JsonMember> members, metadata->as_object());
    if (members.size() > kPairsMax)
        return metadata->error(format("expected at most {} pairs, found {}", kPairsMax, members.size()));
    for (const JsonMember& member : members) {
        TRY_ASSIGN(const std::string_view text, member.value.as_string());
        if (member.key.size() > kKeyBytesMax || text.size() > kValueBytesMax)
            return member.value.error(
                format("expected a key of at most {} bytes and a text of at most {}", kKeyBytesMax, kValueBytesMax));
        request.metadata.emplace_back(member.key, text);
    }
    return ok_status();
}

Result<std::string> job_text(const JsonValue& root, std::string_view name) {
    constexpr size_t kTextBytesMax = 256;
    TRY_ASSIGN(const std::string_view text, root.string_or(name, ""));
    if (text.size() > kTextBytesMax) return root.find(name)->error(format("expected at most {} bytes", kTextBytesMax));
    return std::string(text);
}

void write_names(JsonWriter& writer, std::string_view key, std::span<const std::string> names) {
    writer.key(key).begin_array();
    for (const std::string& name : names) writer.value(name);
    writer.end_array();
}

template <typename T>
void write_optional(JsonWriter& writer, std::string_view key, const std::optional<T>& value) {
    if (value) writer.field(key, *value);
}

}  // namespace

Result<FineTuningRequest> parse_fine_tuning_request(std::string_view body) {
    TRY_ASSIGN(const JsonDocument document, parse_json(body));
    const JsonValue root = document.root();
    if (!root.is_object()) return root.error(format("expected an object, found {}", root.describe()));
    FineTuningRequest request;
    TRY(check_fields(root, fine_tuning_fields(), request.ignored_fields));
    TRY_ASSIGN([[maybe_unused]] const JsonValue model, root.require("model"));
    TRY_ASSIGN([[maybe_unused]] const JsonValue file, root.require("training_file"));
    TRY_ASSIGN(request.model, job_text(root, "model"));
    TRY_ASSIGN(request.training_file, job_text(root, "training_file"));
    TRY_ASSIGN(request.validation_file, job_text(root, "validation_file"));
    TRY_ASSIGN(request.suffix, job_text(root, "suffix"));
    TRY_ASSIGN(request.init_from, job_text(root, "init_from"));
    if (const std::optional<JsonValue> seed = root.find("seed")) {
        TRY_ASSIGN(const uint64_t number, seed->as_uint(uint64_t{1} << 53));
        request.seed = number;
    }
    TRY_ASSIGN(request.replace, root.bool_or("replace", true));
    TRY_ASSIGN(request.activate, root.bool_or("activate", true));
    for (const std::string_view field : kFormFields) {
        const std::optional<JsonValue> value = root.find(field);
        if (value && !is_auto(*value)) request.form_fields.emplace_back(field);
    }
    TRY(read_metadata(root, request));
    TRY(read_method(root, request));
    TRY(read_adapter(root, request.recipe));
    TRY(check_alphas(root));
    TRY(read_optimizer(root, request.recipe));
    TRY(read_data(root, request.recipe));
    if (!request.validation_file.empty() && request.recipe.validation_split > 0)
        return root.find("validation_split")->error("there is a validation_file; give one of them");
    if (request.recipe.early_stopping_patience && request.validation_file.empty() &&
        request.recipe.validation_split == 0)
        return root.find("early_stopping_patience")
            ->error("expected a validation_file or a validation_split beside it");
    if (request.recipe.eval_steps && request.validation_file.empty() && request.recipe.validation_split == 0)
        return root.find("eval_steps")->error("expected a validation_file or a validation_split beside it");
    return request;
}

std::string recipe_json(const TrainingRecipe& recipe) {
    JsonWriter writer;
    writer.begin_object().field("lora_r", recipe.lora_r);
    write_optional(writer, "lora_alpha", recipe.lora_alpha);
    writer.field("lora_dropout", recipe.lora_dropout);
    write_names(writer, "lora_trainable_modules", recipe.lora_trainable_modules);
    write_names(writer, "modules_to_save", recipe.modules_to_save);
    if (!recipe.exclude_modules.empty()) write_names(writer, "exclude_modules", recipe.exclude_modules);
    writer.key("rank_pattern").begin_object();
    for (const auto& [pattern, rank] : recipe.rank_pattern) writer.field(pattern, rank);
    writer.end_object().key("alpha_pattern").begin_object();
    for (const auto& [pattern, alpha] : recipe.alpha_pattern) writer.field(pattern, alpha);
    writer.end_object();
    if (!recipe.layers_to_transform.empty()) {
        writer.key("layers_to_transform").begin_array();
        for (const uint32_t layer : recipe.layers_to_transform) writer.value(layer);
        writer.end_array();
    }
    writer.field("use_rslora", recipe.use_rslora).field("use_dora", recipe.use_dora);
    // Checkpoints compare this text with that of versions before: what is usual is left out.
    if (recipe.bias != "none") writer.field("bias", recipe.bias);
    if (recipe.lora_bias) writer.field("lora_bias", true);
    write_optional(writer, "n_epochs", recipe.n_epochs);
    write_optional(writer, "batch_size", recipe.batch_size);
    write_optional(writer, "learning_rate_multiplier", recipe.learning_rate_multiplier);
    write_optional(writer, "learning_rate", recipe.learning_rate);
    writer.field("lr_scheduler", recipe.lr_scheduler).field("warmup_ratio", recipe.warmup_ratio);
    write_optional(writer, "warmup_steps", recipe.warmup_steps);
    writer.field("weight_decay", recipe.weight_decay).field("max_grad_norm", recipe.max_grad_norm);
    writer.field("adam_beta1", recipe.adam_beta1)
        .field("adam_beta2", recipe.adam_beta2)
        .field("adam_epsilon", recipe.adam_epsilon);
    writer.field("seed", recipe.seed);
    write_optional(writer, "max_steps", recipe.max_steps);
    write_optional(writer, "max_seq_length", recipe.max_seq_length);
    writer.field("train_on", recipe.train_on).field("overlong", recipe.refuse_overlong ? "error" : "truncate");
    writer.field("skip_bad_lines", recipe.skip_bad_lines)
        .field("shuffle", recipe.shuffle)
        .field("validation_split", recipe.validation_split);
    write_optional(writer, "eval_steps", recipe.eval_steps);
    write_optional(writer, "checkpoint_steps", recipe.checkpoint_steps);
    writer.field("n_checkpoints", recipe.n_checkpoints);
    write_optional(writer, "early_stopping_patience", recipe.early_stopping_patience);
    return writer.field("use_best", recipe.use_best).end_object().take();
}

Result<TrainingRecipe> parse_recipe(std::string_view json) {
    TRY_ASSIGN(const JsonDocument document, parse_json(json, {.name = "recipe"}));
    const JsonValue root = document.root();
    TrainingRecipe recipe;
    std::vector<std::string> ignored;
    TRY(read_adapter(root, recipe));
    TRY(read_optimizer(root, recipe));
    TRY(read_data(root, recipe));
    TRY_ASSIGN(recipe.n_epochs, whole_in(root, "n_epochs", 1, kEpochsMax));
    TRY_ASSIGN(recipe.batch_size, whole_in(root, "batch_size", 1, kTrainingBatchMax));
    TRY_ASSIGN(recipe.learning_rate_multiplier, number_in(root, "learning_rate_multiplier", 1e-6, 1e4));
    TRY_ASSIGN(const JsonValue seed, root.require("seed"));
    TRY_ASSIGN(recipe.seed, seed.as_uint());
    return recipe;
}

}  // namespace lorad::proto
