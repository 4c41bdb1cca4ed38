#include "server/cli/cli_train.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <signal.h>
#include <unistd.h>

#include "adapters/files/source.h"
#include "adapters/plan/check.h"
#include "adapters/plan/trainable.h"
#include "model/config/rope.h"
#include "model/files/model_files.h"
#include "model/train/base_weights.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/version.h"
#include "server/cli/step_report.h"
#include "server/training/dataset.h"
#include "server/training/durable_file.h"
#include "server/training/progress.h"
#include "server/training/provenance.h"
#include "server/training/show_data.h"
#include "server/training/training_run.h"

namespace lorad::server::training {
namespace {

namespace fs = std::filesystem;
using CommandClock = std::chrono::steady_clock;

constexpr int kExitInterrupted = 130;
constexpr std::chrono::seconds kCheckpointEvery{120};
constexpr std::chrono::milliseconds kTurn{200};  // after which a signal is looked for

std::atomic<bool> is_interrupted{false};

// The first signal asks for a checkpoint; the second one ends the program as ever.
void catch_interrupts() {
    struct sigaction action{};
    action.sa_handler = [](int) { is_interrupted.store(true); };
    action.sa_flags = int(SA_RESETHAND);
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
}

Error bad_argument(std::string_view flag, std::string_view what) {
    return make_error(ErrorCode::kInvalidConfig, format("--{}: {}", flag, what), std::string(flag));
}

Result<std::optional<gpu::ScalarType>> weight_type_of(const std::string& text) {
    using Wish = std::optional<gpu::ScalarType>;
    if (text == "auto") return Wish();
    if (text == "float16") return Wish(gpu::ScalarType::kF16);
    if (text == "bfloat16") return Wish(gpu::ScalarType::kBf16);
    if (text == "float32") return Wish(gpu::ScalarType::kF32);
    return bad_argument("dtype", format("expected auto, float16, bfloat16 or float32, found \"{}\"", text));
}

Result<model::DType> saved_type_of(const std::string& text) {
    if (text == "float32") return model::DType::kF32;
    if (text == "float16") return model::DType::kF16;
    if (text == "bfloat16") return model::DType::kBF16;
    return bad_argument("save-dtype", format("expected float32, float16 or bfloat16, found \"{}\"", text));
}

class TrainCommand {
  public:
    explicit TrainCommand(const TrainArguments& arguments)
        : arguments_(arguments), out_(arguments.out), work_(out_ / "training") {}

    Result<int> run() {
        TRY(check_arguments());
        TRY_ASSIGN(files_, model::ModelFiles::open(arguments_.model));
        TRY_ASSIGN(config_, files_->config());
        TRY_ASSIGN(auto tokenizer, files_->tokenizer());
        std::shared_ptr<const model::ChatTemplate> chat_template;
        if (tokenizer) {
            TRY_ASSIGN(chat_template, files_->chat_template());
        }
        text_ = std::make_unique<TrainingText>(std::move(tokenizer), std::move(chat_template),
                                               config_.generation.eos_token_ids);
        if (arguments_.n_shown > 0) TRY(show());
        if (out_.empty() && !arguments_.check) return 0;
        TRY(prepare());
        TRY_ASSIGN(adapters::BaseModel base, adapters::BaseModel::load(arguments_.model));
        base_ = std::make_unique<adapters::BaseModel>(std::move(base));
        TRY(make_adapter());
        if (arguments_.check) return 0;
        TRY(start());
        TRY_ASSIGN(const bool is_whole, train());
        steps_.close();
        if (!is_whole) return kExitInterrupted;
        const Status saved = save();
        // What was trained is not lost with a full disk, if that has room for a checkpoint.
        if (!saved.ok() && save_checkpoint().ok())
            std::fprintf(stderr, "the same command with --resume writes the adapter again\n");
        TRY(saved);
        return 0;
    }

  private:
    Status check_arguments() const {
        std::error_code ignored;
        if (out_.empty() && !arguments_.check && arguments_.n_shown == 0)
            return bad_argument("out", "expected the folder that the adapter is written to");
        if (!out_.empty() && fs::equivalent(out_, arguments_.model, ignored))
            return bad_argument("out", "is the base model's folder; an adapter has one of its own");
        if (!out_.empty() && fs::exists(out_, ignored) && !fs::is_directory(out_, ignored))
            return bad_argument("out", format("{} is not a folder", arguments_.out));
        if (arguments_.resume && (out_.empty() || !fs::exists(work_ / "checkpoint", ignored)))
            return bad_argument("resume", "the folder has no checkpoint of a run that was interrupted");
        if (!out_.empty() && !arguments_.resume && !arguments_.check &&
            fs::exists(out_ / adapters::kConfigFile, ignored))
            return bad_argument("out", format("{} has an adapter, which is not overwritten", arguments_.out));
        TRY(saved_type_of(arguments_.save_dtype));
        TRY(quantize_type());
        TRY(parse_quantized_weights(arguments_.quantized_weights));
        return weight_type_of(arguments_.dtype).ok() ? ok_status() : Status(weight_type_of(arguments_.dtype).error());
    }

    Result<std::optional<model::QuantizeType>> quantize_type() const {
        if (arguments_.quantize == "none") return std::optional<model::QuantizeType>();
        TRY_ASSIGN(const model::QuantizeType type, model::parse_quantize_type(arguments_.quantize));
        return std::optional(type);
    }

    DataOptions options_of_data() const {
        DataOptions options = data_options(arguments_.recipe, config_.max_positions, config_.vocab_size);
        options.cancelled = [] { return is_interrupted.load(); };
        return options;
    }

    Status show() const {
        TRY_ASSIGN(const std::vector<TrainingSequence> sequences,
                   first_sequences(arguments_.data, *text_, options_of_data(), arguments_.n_shown));
        for (const TrainingSequence& one : sequences)
            std::fputs(shown_sequence(one, *text_, ::isatty(STDOUT_FILENO) != 0).c_str(), stdout);
        std::fflush(stdout);
        return ok_status();
    }

    // A file's tokens, in the folder of work.
    Result<std::unique_ptr<const TokenFile>> prepare_file(const std::string& data, const char* name,
                                                          DataReport& report) const {
        std::unique_ptr<TokenFileWriter> writer;
        if (!arguments_.check) {
            TRY_ASSIGN(writer, TokenFileWriter::create(work_ / name));
        }
        const Result<DataReport> prepared = prepare_data(data, *text_, options_of_data(), writer.get());
        if (!prepared.ok()) return make_error(prepared.error().code, format("{}: {}", data, prepared.error().message));
        report = *prepared;
        std::fprintf(stderr, "%s: %s", data.c_str(), report.text().c_str());
        if (report.n_bad_lines > 0 && !arguments_.recipe.skip_bad_lines)
            return make_error(
                ErrorCode::kInvalidRequest,
                format("{}: {} lines cannot be used; correct them, or leave them out with --skip-bad-lines", data,
                       report.n_bad_lines));
        if (report.n_sequences == 0)
            return make_error(ErrorCode::kInvalidRequest, format("{}: no line can be trained on", data));
        if (arguments_.check) return std::unique_ptr<const TokenFile>();
        return TokenFile::open(work_ / name, report.digest);
    }

    Status prepare() {
        if (!arguments_.check) {
            TRY(make_folder(out_));
            TRY(make_folder(work_));
        }
        TRY_ASSIGN(data_, prepare_file(arguments_.data, "data.tok", report_));
        DataReport validation;
        if (!arguments_.eval_data.empty()) {
            TRY_ASSIGN(validation_, prepare_file(arguments_.eval_data, "validation.tok", validation));
        }
        TRY_ASSIGN(plan_, plan_run(arguments_.recipe, report_.n_sequences));
        identity_ = {report_.digest, validation.digest, {}, {}, version()};
        return ok_status();
    }

    Status make_adapter() {
        proto::TrainingRecipe& recipe = plan_.recipe;
        if (arguments_.init_adapter.empty()) {
            if (!arguments_.resume) TRY(adapters::trainable_shape(lora_recipe(recipe), *base_));
            TRY_ASSIGN(adapter_, adapters::make_trainable(lora_recipe(recipe), *base_));
        } else {
            const auto found = adapters::check_adapter(adapters::AdapterLocation(arguments_.init_adapter), *base_);
            if (!found.ok())
                return bad_argument("init-adapter", format("{}: {}", arguments_.init_adapter, found.error().message));
            const auto& checked = *found;
            TRY_ASSIGN(adapter_, adapters::to_trainable(*checked, *base_));
            take_form(*checked, recipe);
        }
        identity_.base_fingerprint =
            base_->fingerprint + (arguments_.quantize == "none" ? "" : " as " + arguments_.quantize);
        identity_.recipe = proto::recipe_json(recipe);
        std::fprintf(stderr,
                     "%llu steps of %u sequences, %llu trained numbers in %zu tensors, about %llu tokens in all\n",
                     static_cast<unsigned long long>(plan_.n_steps()), plan_.order.batch_size,
                     static_cast<unsigned long long>(adapter_.n_parameters()), std::as_const(adapter_).tensors().size(),
                     static_cast<unsigned long long>(report_.n_tokens * plan_.order.n_samples /
                                                     std::max<uint64_t>(1, report_.n_sequences)));
        return ok_status();
    }

    // An adapter that is there has its own form, whatever the flags say.
    static void take_form(const adapters::CheckedAdapter& checked, proto::TrainingRecipe& recipe) {
        recipe.lora_r = checked.peft.rank;
        recipe.lora_alpha = checked.peft.alpha;
        recipe.use_rslora = checked.peft.use_rslora;
        recipe.use_dora = checked.peft.use_dora;
        recipe.lora_bias = checked.peft.lora_bias;
        recipe.bias = checked.peft.bias == adapters::BiasKind::kAll        ? "all"
                      : checked.peft.bias == adapters::BiasKind::kLoraOnly ? "lora_only"
                                                                           : "none";
        recipe.modules_to_save = checked.peft.modules_to_save;
        recipe.lora_trainable_modules = {"those of the adapter it began with"};
    }

    Status start() {
        TRY_ASSIGN(const gpu::DeviceOptions options, device_options(arguments_.device));
        TRY_ASSIGN(device_, gpu::Device::create(options));
        TRY_ASSIGN(const std::optional<gpu::ScalarType> type, weight_type_of(arguments_.dtype));
        model::BaseWeightOptions base{.weights = {.type = type}};
        TRY_ASSIGN(base.quantize, quantize_type());
        TRY_ASSIGN(const std::optional<bool> wish, parse_quantized_weights(arguments_.quantized_weights));
        base.weights.keeps_packed = keeps_packed(wish, base.quantize.has_value(), device_->capabilities());
        TRY(warn_of_quantizing(arguments_.model, base.quantize));
        TRY_ASSIGN(weights_, model::load_base_weights(*device_, arguments_.model, config_, base));
        if (model::packed_formats_of(*weights_) != 0)
            std::fprintf(stderr, "the base: %s\n", model::describe_formats(*weights_).c_str());
        model::TrainerOptions trainer;
        trainer.optimizer = plan_.optimizer;
        trainer.n_rows = arguments_.n_rows;
        trainer.n_positions_max = std::max(data_->longest(), validation_ ? validation_->longest() : 0);
        trainer.memory_bytes = arguments_.memory_mib << 20;
        trainer.lora_dropout = float(plan_.recipe.lora_dropout);
        trainer.seed = plan_.recipe.seed;
        TRY_ASSIGN(auto made, model::Trainer::create(*device_, config_, *weights_, adapter_, trainer));
        const model::TrainMemory memory = made->memory();
        std::fprintf(stderr, "on %s: %.1f MiB for parameters, %.1f for activations, %.1f for scratch\n",
                     device_->capabilities().name.c_str(), double(memory.parameters) / (1 << 20),
                     double(memory.activations) / (1 << 20), double(memory.scratch) / (1 << 20));
        trainer_ = step_trainer_of(std::move(made));
        RunState state;
        if (arguments_.resume) {
            TRY_ASSIGN(const Checkpoint checkpoint, read_checkpoint(work_ / "checkpoint"));
            if (const std::string other = difference(checkpoint.identity, identity_); !other.empty())
                return bad_argument("resume", format("{} is not what the interrupted run had", other));
            TRY(trainer_->restore(checkpoint.trainer));
            state = checkpoint.state;
            std::fprintf(stderr, "goes on behind step %llu\n", static_cast<unsigned long long>(state.step));
        }
        run_ = std::make_unique<TrainingRun>(plan_, *trainer_, *data_, validation_.get(), state);
        return steps_.open(arguments_.report, state.step);
    }

    Status save_checkpoint() {
        Checkpoint checkpoint{identity_, run_->state(), {}};
        TRY_ASSIGN(checkpoint.trainer, trainer_->checkpoint());
        last_checkpoint_ = CommandClock::now();
        return write_checkpoint(work_ / "checkpoint", checkpoint);
    }

    // False where a signal ended it.
    Result<bool> train() {
        catch_interrupts();
        Progress progress(plan_.n_steps(), run_->state().step, ::isatty(STDERR_FILENO) != 0);
        begun_ = last_checkpoint_ = CommandClock::now();
        std::optional<StepResult> step;  // whose line of the report is not written yet
        std::optional<EvalResult> before, after;
        const auto tell = [&] {
            if (step)
                steps_.add(*step, before, after, std::chrono::duration<double>(CommandClock::now() - begun_).count());
            if (step) before.reset(), after.reset();
            step.reset();
        };
        while (!run_->is_done()) {
            TRY(run_->begin_next());
            for (bool is_over = false; !is_over && !is_interrupted;) {
                TRY_ASSIGN(is_over, trainer_->run_piece(kTurn));
                if (!is_over) continue;
                TRY_ASSIGN(const RunOutcome outcome, run_->finish_current());
                if (outcome.trained) {
                    tell();
                    step = outcome.trained;
                    progress.stepped(*step, run_->state());
                }
                if (outcome.evaluated) {
                    (run_->state().step == 0 ? before : after) = outcome.evaluated;
                    progress.evaluated(*outcome.evaluated, run_->state());
                }
            }
            if (is_interrupted) {
                trainer_->abandon();
                tell();
                progress.end();
                TRY(save_checkpoint());
                std::fprintf(stderr,
                             "interrupted behind step %llu; the same command with --resume goes on from there\n",
                             static_cast<unsigned long long>(run_->state().step));
                return false;
            }
            if (run_->is_at_rest() && CommandClock::now() - last_checkpoint_ >= kCheckpointEvery)
                TRY(save_checkpoint());
        }
        tell();
        progress.end();
        return true;
    }

    Status save() {
        TRY_ASSIGN(const model::TrainableAdapter trained, trainer_->adapter());
        TRY_ASSIGN(const model::DType type, saved_type_of(arguments_.save_dtype));
        adapters::PeftFileOptions options;
        options.base_name = base_name();
        options.type = type;
        options.use_rslora = plan_.recipe.use_rslora;
        TRY(adapters::write_peft_folder(adapters::peft_files(trained, *base_, options), out_));
        Provenance provenance;
        provenance.base_name = base_name();
        provenance.identity = identity_;
        provenance.identity.base_fingerprint = base_->fingerprint;
        if (model::packed_formats_of(*weights_) != 0) provenance.base_formats = model::describe_formats(*weights_);
        provenance.recipe = plan_.recipe;
        provenance.state = run_->state();
        provenance.used_step = run_->state().step;
        provenance.n_steps = plan_.n_steps();
        provenance.n_parameters = trained.n_parameters();
        provenance.data = report_;
        provenance.device = device_->capabilities().name;
        provenance.init_from =
            arguments_.init_adapter.empty() ? "" : fs::path(arguments_.init_adapter).filename().string();
        provenance.seconds = std::chrono::duration<double>(CommandClock::now() - begun_).count();
        TRY(write_durably(out_ / kProvenanceFile, provenance_json(provenance)));
        TRY(write_durably(out_ / kCardFile, model_card(provenance)));
        // Its own files alone: a folder of this name may have others.
        std::error_code ignored;
        for (const char* name : {"data.tok", "validation.tok", "checkpoint"}) fs::remove(work_ / name, ignored);
        fs::remove(work_, ignored);
        device_->save_caches();
        std::fprintf(stderr, "%s has the adapter\n", out_.string().c_str());
        return ok_status();
    }

    std::string base_name() const {
        return arguments_.base_name.empty() ? model::served_name_of(arguments_.model) : arguments_.base_name;
    }

    const TrainArguments& arguments_;
    const fs::path out_, work_;
    std::unique_ptr<const model::ModelFiles> files_;
    model::ModelConfig config_;
    std::unique_ptr<TrainingText> text_;
    DataReport report_;
    std::unique_ptr<const TokenFile> data_, validation_;
    RunPlan plan_;
    RunIdentity identity_;
    std::unique_ptr<adapters::BaseModel> base_;
    model::TrainableAdapter adapter_;
    std::unique_ptr<gpu::Device> device_;
    std::unique_ptr<const model::ModelWeights> weights_;
    std::unique_ptr<StepTrainer> trainer_;
    std::unique_ptr<TrainingRun> run_;
    StepReport steps_;
    CommandClock::time_point begun_, last_checkpoint_;
};

}  // namespace
}  // namespace lorad::server::training

namespace lorad::server {

Result<int> run_train(const TrainArguments& arguments) { return training::TrainCommand(arguments).run(); }

}  // namespace lorad::server
