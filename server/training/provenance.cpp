#include "server/training/provenance.h"

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::server::training {
namespace {

void write_loss(JsonWriter& writer, std::string_view key, const std::optional<double>& loss) {
    writer.key(key);
    if (loss)
        writer.value(*loss);
    else
        writer.null();
}

std::string loss_row(std::string_view name, const std::optional<double>& loss) {
    return loss ? format("| {} | {:.4f} |\n", name, *loss) : std::string();
}

}  // namespace

std::string provenance_json(const Provenance& provenance) {
    JsonWriter writer;
    writer.begin_object().field("lorad_version", provenance.identity.version).field("base_model", provenance.base_name);
    writer.field("base_fingerprint", provenance.identity.base_fingerprint)
        .field("data_sha256", provenance.identity.data_digest);
    if (!provenance.base_formats.empty()) writer.field("base_formats", provenance.base_formats);
    if (!provenance.identity.validation_digest.empty())
        writer.field("validation_sha256", provenance.identity.validation_digest);
    if (!provenance.init_from.empty()) writer.field("init_from", provenance.init_from);
    writer.key("recipe").raw(proto::recipe_json(provenance.recipe)).key("data").raw(provenance.data.counts_json());
    writer.field("steps", provenance.state.step)
        .field("used_step", provenance.used_step)
        .field("planned_steps", provenance.n_steps);
    writer.field("tokens", provenance.state.n_tokens)
        .field("trained_tokens", provenance.state.n_trained_tokens)
        .field("parameters", provenance.n_parameters);
    writer.key("losses").begin_object();
    write_loss(writer, "first", provenance.state.first_loss);
    write_loss(writer, "last", provenance.state.last_loss);
    write_loss(writer, "valid_start", provenance.state.start_valid_loss);
    write_loss(writer, "valid_best", provenance.state.best_valid_loss);
    write_loss(writer, "valid_last", provenance.state.last_valid_loss);
    return writer.end_object()
        .field("device", provenance.device)
        .field("seconds", provenance.seconds)
        .end_object()
        .take();
}

std::string model_card(const Provenance& provenance) {
    const proto::TrainingRecipe& recipe = provenance.recipe;
    std::string card = format("---\nbase_model: {}\nlibrary_name: peft\ntags:\n- lora\n- lorad\n---\n\n",
                              json_quote(provenance.base_name));
    card += format("# {} for {}\n\n", recipe.use_dora ? "DoRA adapter" : "LoRA adapter", provenance.base_name);
    card += format(
        "Trained by lorad {} in {} steps of {} sequences: {} sequences, {} tokens of which {} are trained on.\n\n",
        provenance.identity.version, provenance.used_step, recipe.batch_size.value_or(0), provenance.data.n_sequences,
        provenance.state.n_tokens, provenance.state.n_trained_tokens);
    card += format("| | |\n|---|---|\n| rank, alpha | {}, {} |\n| modules | {} |\n| parameters | {} |\n", recipe.lora_r,
                   recipe.lora_alpha.value_or(0.0), fmt::join(recipe.lora_trainable_modules, ", "),
                   provenance.n_parameters);
    card +=
        format("| learning rate | {}, {}, {} steps of warm-up |\n| seed | {} |\n", recipe.learning_rate.value_or(0.0),
               recipe.lr_scheduler, recipe.warmup_steps.value_or(0), recipe.seed);
    card += loss_row("loss of the first step", provenance.state.first_loss) +
            loss_row("loss of the last step", provenance.state.last_loss);
    card += loss_row("validation loss before", provenance.state.start_valid_loss) +
            loss_row("validation loss, the best", provenance.state.best_valid_loss);
    card += format("\n`{}` has all settings, and the digests of the base model and the data.\n", kProvenanceFile);
    return card;
}

}  // namespace lorad::server::training
