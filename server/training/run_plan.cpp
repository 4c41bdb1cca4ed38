#include "server/training/run_plan.h"

#include <algorithm>
#include <cmath>

#include "proto/base/check.h"
#include "proto/base/format.h"

namespace lorad::server::training {
namespace {

constexpr uint64_t kSplitKey = 0x5b1175ec7a7e5u;  // so that what is held out does not depend on the order of an epoch

uint32_t usual_epochs(uint64_t n) { return n >= 10'000 ? 1 : n >= 1'000 ? 2 : 3; }
uint32_t usual_batch(uint64_t n) { return static_cast<uint32_t>(std::clamp<uint64_t>(n / 64, 4, 32)); }

}  // namespace

uint64_t RunPlan::trained_sequence(uint64_t i) const {
    if (n_held_out == 0) return i;
    return permuted(n_held_out + i, n_held_out + order.n_sequences, order.seed ^ kSplitKey);
}

uint64_t RunPlan::held_out_sequence(uint64_t i) const {
    CHECK(i < n_held_out);
    return permuted(i, n_held_out + order.n_sequences, order.seed ^ kSplitKey);
}

Result<RunPlan> plan_run(proto::TrainingRecipe recipe, uint64_t n_sequences) {
    RunPlan plan;
    if (recipe.validation_split > 0)
        plan.n_held_out = std::max<uint64_t>(
            1, static_cast<uint64_t>(std::llround(recipe.validation_split * static_cast<double>(n_sequences))));
    if (n_sequences <= plan.n_held_out)
        return make_error(ErrorCode::kInvalidRequest,
                          format("validation_split: {} sequences, of which {} are held out: none is left to train on",
                                 n_sequences, plan.n_held_out),
                          "validation_split");
    plan.order.n_sequences = n_sequences - plan.n_held_out;
    plan.order.seed = recipe.seed;
    plan.order.shuffle = recipe.shuffle;
    recipe.n_epochs = recipe.n_epochs.value_or(usual_epochs(plan.order.n_sequences));
    recipe.batch_size = recipe.batch_size.value_or(usual_batch(plan.order.n_sequences));
    plan.order.batch_size = *recipe.batch_size;
    plan.order.n_samples =
        recipe.max_steps ? uint64_t(*recipe.max_steps) * *recipe.batch_size : plan.order.n_sequences * *recipe.n_epochs;
    recipe.learning_rate_multiplier = recipe.learning_rate_multiplier.value_or(1.0);
    recipe.learning_rate = recipe.learning_rate.value_or(kUsualLearningRate * *recipe.learning_rate_multiplier);
    recipe.lora_alpha = recipe.lora_alpha.value_or(2.0 * recipe.lora_r);
    plan.schedule.n_steps = plan.order.n_steps();
    recipe.warmup_steps = recipe.warmup_steps.value_or(
        static_cast<uint32_t>(std::ceil(recipe.warmup_ratio * static_cast<double>(plan.schedule.n_steps))));
    plan.schedule.n_warmup_steps = *recipe.warmup_steps;
    plan.schedule.learning_rate = *recipe.learning_rate;
    const std::optional<model::Schedule> schedule = model::schedule_named(recipe.lr_scheduler);
    if (!schedule)
        return make_error(ErrorCode::kInvalidRequest,
                          format("lr_scheduler: there is no schedule {}", recipe.lr_scheduler), "lr_scheduler");
    plan.schedule.schedule = *schedule;
    plan.optimizer = {recipe.adam_beta1, recipe.adam_beta2, recipe.adam_epsilon, recipe.weight_decay,
                      recipe.max_grad_norm};
    plan.recipe = std::move(recipe);
    return plan;
}

adapters::LoraRecipe lora_recipe(const proto::TrainingRecipe& recipe) {
    adapters::LoraRecipe lora;
    lora.r = recipe.lora_r;
    lora.lora_alpha = recipe.lora_alpha.value_or(2.0 * recipe.lora_r);
    lora.use_rslora = recipe.use_rslora;
    lora.use_dora = recipe.use_dora;
    lora.target_modules = recipe.lora_trainable_modules;
    lora.exclude_modules = recipe.exclude_modules;
    lora.rank_pattern = recipe.rank_pattern;
    lora.alpha_pattern = recipe.alpha_pattern;
    if (!recipe.layers_to_transform.empty())
        lora.layers_to_transform.emplace(recipe.layers_to_transform.begin(), recipe.layers_to_transform.end());
    lora.modules_to_save = recipe.modules_to_save;
    lora.bias = recipe.bias == "all"         ? adapters::BiasKind::kAll
                : recipe.bias == "lora_only" ? adapters::BiasKind::kLoraOnly
                                             : adapters::BiasKind::kNone;
    lora.lora_bias = recipe.lora_bias;
    lora.seed = recipe.seed;
    return lora;
}

}  // namespace lorad::server::training
