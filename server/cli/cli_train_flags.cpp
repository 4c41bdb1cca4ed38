#include "server/cli/cli_train_flags.h"

#include <CLI/CLI.hpp>

#include "proto/base/format.h"

namespace lorad::server {
namespace {

// Comma lists; blanks around names do not count.
std::vector<std::string> split_names(const std::string& text) {
    std::vector<std::string> names;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        std::string name = text.substr(begin, end - begin);
        name.erase(0, name.find_first_not_of(' '));
        name.erase(name.find_last_not_of(' ') + 1);
        if (!name.empty()) names.push_back(std::move(name));
        begin = end + 1;
    }
    return names;
}

template <typename To, typename From>
void set_given(std::optional<To>& to, From value, From not_given) {
    if (value != not_given) to = To(value);
}

// As CLI::Range, which takes "nan" for a number between any two.
CLI::Validator number_in(double min, double max) {
    const auto check = [=](const std::string& text) {
        double value = 0;
        const bool is_in = CLI::detail::lexical_cast(text, value) && value >= min && value <= max;
        return is_in ? std::string() : format("expected a number from {} to {}, found {}", min, max, text);
    };
    return CLI::Validator(check, format("FLOAT in [{} - {}]", min, max));
}

}  // namespace

TrainCommandFlags::TrainCommandFlags(CLI::App& app) {
    app.add_option("--model", arguments_.model, "folder or GGUF file of the base model")->type_name("DIR")->required();
    app.add_option("--out", arguments_.out,
                   "folder that the adapter is written to, as PEFT writes it; one without an adapter")
        ->type_name("DIR");
    add_data_flags(app);
    add_adapter_flags(app);
    add_optimizer_flags(app);
    app.add_flag("--resume", arguments_.resume,
                 "go on with the run that was interrupted in the folder --out, from its last checkpoint");
    app.add_option("--report", arguments_.report, "write one JSON object a step: step, loss, grad_norm, lr, tokens")
        ->type_name("FILE");
    app.add_flag("--check", arguments_.check,
                 "say what the data holds and how many steps it makes, and train nothing; needs no GPU");
    app.add_option("--show", arguments_.n_shown,
                   "print the first lines with what of them is trained, in colours; without --out nothing else is done")
        ->type_name("LINES");
    app.add_option("--rows", arguments_.n_rows,
                   "tokens of a micro-batch; 2048 to 8192 by the model and the device, if it is not given")
        ->check(CLI::Range(64u, 1u << 20));
    app.add_option("--training-memory", arguments_.memory_mib,
                   "device memory beside the weights, in MiB (default: what is free)")
        ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40))
        ->type_name("MIB");
    app.add_option("--dtype", arguments_.dtype,
                   "type of the base model's matrices: auto (that of the files), float16, bfloat16 or float32")
        ->type_name("TYPE");
    app.add_option("--quantize", arguments_.quantize,
                   "quantizes a model in 16 or 32 bits while it is loaded: q8_0, q6_k, q4_k or nf4")
        ->type_name("TYPE");
    app.add_option("--quantized-weights", arguments_.quantized_weights,
                   "matrices that the files hold in few bits: keep them so, decode them while they are loaded, or "
                   "auto: decode on software devices")
        ->type_name("HOW");
    app.add_option("--save-dtype", arguments_.save_dtype, "type of the adapter's tensors: float32, float16 or bfloat16")
        ->capture_default_str()
        ->type_name("TYPE");
    app.add_option("--base-name", arguments_.base_name,
                   "what the adapter's files call the base model (default: the model folder's name)")
        ->type_name("NAME");
    app.add_option("--device", arguments_.device.device,
                   "Vulkan device by index or part of its name (default: the best one)")
        ->type_name("INDEX|NAME");
    app.footer("Lines are {\"messages\": [...]}, {\"prompt\": ..., \"completion\": ...}, {\"text\": ...} or "
               "{\"tokens\": [...], \"labels\": [...]}; docs/TRAINING.md tells more.\n"
               "Ctrl-C writes a checkpoint, from which --resume goes on. Exit status 130: it was interrupted so.");
}

void TrainCommandFlags::add_data_flags(CLI::App& app) {
    proto::TrainingRecipe& recipe = arguments_.recipe;
    app.add_option("--data", arguments_.data, "training file, one JSON object a line")->type_name("FILE")->required();
    app.add_option("--eval", arguments_.eval_data,
                   "validation file: its loss is told before, at epochs' ends and at the end")
        ->type_name("FILE");
    app.add_option("--validation-split", recipe.validation_split,
                   "part of the training file that is held out for validation")
        ->check(number_in(0.0, proto::kValidationSplitMax));
    app.add_option("--eval-steps", eval_steps_, "validate on one batch each so many steps")
        ->check(CLI::Range(1u, proto::kTrainingStepsMax));
    app.add_option("--max-seq-length", max_seq_length_,
                   "tokens of a sequence (default: the model's context, at most 4096)")
        ->check(CLI::Range(proto::kSequenceTokensMin, proto::kSequenceTokensMax));
    app.add_option("--overlong", overlong_, "longer lines: truncate or error")
        ->capture_default_str()
        ->check(CLI::IsMember({"truncate", "error"}));
    app.add_option("--train-on", recipe.train_on,
                   "assistant (its answers), last (the last one), expand (each an example of its own) or all")
        ->capture_default_str()
        ->check(CLI::IsMember({"assistant", "last", "expand", "all"}));
    app.add_flag("--skip-bad-lines", recipe.skip_bad_lines, "leave out lines that cannot be used instead of ending");
    app.add_flag("--no-shuffle", no_shuffle_, "take the lines in the file's order");
    app.add_option("--seed", recipe.seed, "of the order and of the adapter's start")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
}

void TrainCommandFlags::add_adapter_flags(CLI::App& app) {
    proto::TrainingRecipe& recipe = arguments_.recipe;
    CLI::Option* const init = app.add_option("--init-adapter", arguments_.init_adapter,
                                             "adapter to go on with, which says rank, modules and the like")
                                  ->type_name("DIR");
    app.add_option("--lora-r", recipe.lora_r, "rank")
        ->capture_default_str()
        ->check(CLI::Range(1u, proto::kLoraRankMax));
    app.add_option("--lora-alpha", alpha_, "the adapter is scaled by alpha / rank (default: twice the rank)")
        ->check(number_in(proto::kLoraAlphaMin, proto::kLoraAlphaMax));
    app.add_option("--bias", recipe.bias, "the layers' own biases that are trained: none, lora_only or all")
        ->capture_default_str()
        ->check(CLI::IsMember({"none", "lora_only", "all"}));
    app.add_flag("--lora-bias", recipe.lora_bias, "train a bias of lora_B on each module");
    app.add_option("--lora-dropout", recipe.lora_dropout, "part of the inputs of A that is left out")
        ->capture_default_str()
        ->check(number_in(0.0, proto::kDropoutMax));
    app.add_option("--lora-trainable-modules", modules_, "all-linear, or names with commas: q_proj,v_proj")
        ->capture_default_str()
        ->type_name("NAMES");
    app.add_flag("--use-rslora", recipe.use_rslora, "scale by alpha / sqrt(rank)");
    app.add_flag("--use-dora", recipe.use_dora, "train the size of each output beside its direction");
    app.add_option("--modules-to-save", saved_, "modules that are trained whole: norm,lm_head")->type_name("NAMES");
    for (const char* form : {"--lora-r", "--lora-alpha", "--lora-trainable-modules", "--use-rslora", "--use-dora",
                             "--modules-to-save", "--bias", "--lora-bias"})
        init->excludes(app.get_option(form));
}

void TrainCommandFlags::add_optimizer_flags(CLI::App& app) {
    proto::TrainingRecipe& recipe = arguments_.recipe;
    app.add_option("--max-steps", max_steps_, "optimizer steps, instead of --epochs")
        ->check(CLI::Range(1u, proto::kTrainingStepsMax));
    app.add_option("--epochs", epochs_, "passes over the data (default: 3; 2 from 1,000 sequences on, 1 from 10,000)")
        ->check(CLI::Range(1u, proto::kEpochsMax));
    app.add_option("--batch-size", batch_size_, "sequences of an optimizer step (default: by their number, 4 to 32)")
        ->check(CLI::Range(1u, proto::kTrainingBatchMax));
    app.add_option("--learning-rate", learning_rate_, "the highest rate (default: 0.0002)")
        ->check(number_in(0.0, proto::kLearningRateMax));
    app.add_option("--lr-scheduler", recipe.lr_scheduler, "constant, linear, cosine, hf-linear or hf-cosine")
        ->capture_default_str()
        ->check(CLI::IsMember({"constant", "linear", "cosine", "hf-linear", "hf-cosine"}));
    app.add_option("--warmup-steps", warmup_steps_, "steps in which the rate grows")
        ->check(CLI::Range(int64_t(0), int64_t(proto::kTrainingStepsMax)));
    app.add_option("--warmup-ratio", recipe.warmup_ratio, "the same as a part of all steps")
        ->capture_default_str()
        ->check(number_in(0.0, 1.0));
    app.add_option("--weight-decay", recipe.weight_decay, "AdamW's")
        ->capture_default_str()
        ->check(number_in(0.0, proto::kWeightDecayMax));
    app.add_option("--max-grad-norm", recipe.max_grad_norm, "gradients with a larger norm are scaled to it; 0: never")
        ->capture_default_str()
        ->check(number_in(0.0, proto::kGradNormMax));
    app.add_option("--adam-beta1", recipe.adam_beta1, "AdamW's")
        ->capture_default_str()
        ->check(number_in(0.0, proto::kBeta1Max));
    app.add_option("--adam-beta2", recipe.adam_beta2, "AdamW's")
        ->capture_default_str()
        ->check(number_in(0.0, proto::kBeta2Max));
    app.add_option("--adam-epsilon", recipe.adam_epsilon, "AdamW's")
        ->capture_default_str()
        ->check(number_in(proto::kAdamEpsilonMin, proto::kAdamEpsilonMax));
}

Result<int> TrainCommandFlags::run() {
    proto::TrainingRecipe& recipe = arguments_.recipe;
    recipe.lora_trainable_modules = split_names(modules_);
    recipe.modules_to_save = split_names(saved_);
    recipe.refuse_overlong = overlong_ == "error";
    recipe.shuffle = !no_shuffle_;
    set_given(recipe.max_steps, max_steps_, 0u);
    set_given(recipe.n_epochs, epochs_, 0u);
    set_given(recipe.batch_size, batch_size_, 0u);
    set_given(recipe.max_seq_length, max_seq_length_, 0u);
    set_given(recipe.eval_steps, eval_steps_, 0u);
    set_given(recipe.learning_rate, learning_rate_, kNotGiven);
    set_given(recipe.lora_alpha, alpha_, kNotGiven);
    set_given(recipe.warmup_steps, warmup_steps_, int64_t(-1));
    return run_train(arguments_);
}

}  // namespace lorad::server
