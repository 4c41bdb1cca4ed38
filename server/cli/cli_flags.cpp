#include "server/cli/cli_flags.h"

#include <cstdlib>

#include <CLI/CLI.hpp>

#include "proto/base/format.h"

namespace lorad::server {
namespace {

void add_device_flags(CLI::App& app, DeviceArguments& device) {
    app.add_option("--device", device.device, "Vulkan device by index or part of its name (default: the best one)")
        ->type_name("INDEX|NAME");
    app.add_flag("--validation", device.validation, "Vulkan validation layers with synchronization checks (slow)");
    app.add_option("--pipeline-cache", device.pipeline_cache,
                   "where compiled pipelines are kept (default: in the user's cache folder, a file for each device)")
        ->type_name("FILE");
    app.add_option("--self-test", device.self_test,
                   "tests of fast kernels at the start: remembered (those of an earlier start count) or always")
        ->type_name("WHEN");
    app.add_option("--submission-ms", device.submission_ms,
                   "longest time that work submitted to the device at once is expected to take; 0: no bound")
        ->type_name("MS")
        ->check(CLI::Range(0u, 60000u))
        ->capture_default_str();
}

void add_model_flags(CLI::App& app, ModelArguments& model) {
    app.add_option("--model", model.model, "folder or GGUF file of the base model")->type_name("DIR")->required();
    app.add_option("--adapter", model.adapters, "adapter to apply, with a scale: sql, sql@0.5; several add up")
        ->type_name("PATH[@SCALE]");
    app.add_option("--kernel-path", model.kernel_path,
                   "matrix kernels: auto, portable-f32, portable, coopmat, coopmat2 or warpgroup")
        ->type_name("PATH");
    app.add_option("--tune", model.tune,
                   "tiles of products without matrix units: remembered (measured at the first start), always or off")
        ->type_name("WHEN");
    app.add_option("--dtype", model.dtype,
                   "type of the base model's matrices: auto (that of the files), float16, bfloat16 or float32")
        ->type_name("TYPE");
    app.add_option("--quantize", model.quantize,
                   "quantizes a model in 16 or 32 bits while it is loaded: q8_0, q6_k, q4_k or nf4")
        ->type_name("TYPE");
    app.add_option("--quantized-weights", model.quantized_weights,
                   "matrices that the files hold in few bits: keep them so, decode them while they are loaded, or "
                   "auto: decode on software devices")
        ->type_name("HOW");
    app.add_option("--kv-cache-dtype", model.kv_cache_dtype,
                   "keys and values in the cache: auto (float16), float16 or int8")
        ->type_name("TYPE");
    app.add_option(
           "--persistent-decode", model.persistent_decode,
           "programs whose workgroups wait for each other (one row, a few, 33 to 64 with adapters): auto, on or off")
        ->type_name("WHEN");
    app.add_flag("--batch-invariant", model.batch_invariant, "one kernel for all batch sizes");
    add_device_flags(app, model.device);
}

// Comparisons let "nan" pass.
CLI::Validator in_range(double min, double max) {
    return CLI::Validator(
        [min, max](std::string& text) {
            char* end = nullptr;
            double number = std::strtod(text.c_str(), &end);
            bool is_number = end != text.c_str() && *end == '\0';
            if (is_number && number >= min && number <= max) return std::string();
            return format("expected a number from {} to {}, found {}", min, max, text);
        },
        format("{} - {}", min, max));
}

}  // namespace

CheckCommand::CheckCommand(CLI::App& app) {
    app.add_option("--config", arguments_.config, "settings as for serve: this file and the environment")
        ->type_name("FILE");
    app.add_option("--model", arguments_.model, "folder or GGUF file of the base model (default: the configuration's)")
        ->type_name("DIR");
    app.add_option("--adapter", arguments_.adapter,
                   "adapter: a PEFT or MLX folder, or a GGUF file (default: those of the configuration)")
        ->type_name("PATH");
    app.add_option("--memory-gib", arguments_.memory_gib,
                   "sizes of cards, as in 8,12,16,24: what the model takes of each, and the flags with which it "
                   "fits; config.json is enough")
        ->delimiter(',')
        ->check(CLI::Range(1u, 4096u));
    app.add_flag("--json", arguments_.as_json, "JSON instead of text, of an adapter and of sizes");
    app.footer("Exit status 0: all is well; 1: something is not, with every reason.");
}

Result<int> CheckCommand::run() const {
    TRY_ASSIGN(const bool fits, run_check(arguments_));
    return fits ? 0 : kExitError;
}

DevicesCommand::DevicesCommand(CLI::App& app) {
    add_device_flags(app, device_);
    app.add_flag("--json", as_json_, "JSON instead of text");
}

Result<int> DevicesCommand::run() const {
    TRY(run_devices(device_, as_json_));
    return 0;
}

LogitsCommand::LogitsCommand(CLI::App& app) {
    add_model_flags(app, arguments_.model);
    app.add_option("--tokens", arguments_.tokens, "token ids, or a file with them")
        ->type_name("1,2,3|FILE")
        ->required();
    app.add_option("--out", arguments_.out, "file to write: float32 [vocab]")->type_name("X.npy")->required();
    app.add_flag("--all-positions", arguments_.all_positions, "logits of every position: float32 [tokens][vocab]");
}

Result<int> LogitsCommand::run() const {
    TRY(run_logits(arguments_));
    return 0;
}

GenerateCommand::GenerateCommand(CLI::App& app) {
    proto::SamplingParams& sampling = arguments_.sampling;
    add_model_flags(app, arguments_.model);
    prompt_ = app.add_option("--prompt", arguments_.prompt, "text to continue, taken as it is");
    app.add_option("--tokens", arguments_.tokens, "token ids to continue, or a file with them")
        ->type_name("1,2,3|FILE")
        ->excludes(prompt_);
    app.add_option("--max-tokens", arguments_.max_tokens, "tokens to generate at most")
        ->capture_default_str()
        ->check(CLI::Range(1u, 1u << 24));
    app.add_flag("--ignore-eos", arguments_.ignore_eos, "go on after an end-of-sequence token");
    app.add_option("--temperature", sampling.temperature, "0: the most probable token")
        ->capture_default_str()
        ->check(in_range(0.0, 2.0));
    app.add_option("--top-k", sampling.top_k, "0: off")->capture_default_str();
    app.add_option("--top-p", sampling.top_p, "1: off")->capture_default_str()->check(in_range(1e-6, 1.0));
    app.add_option("--min-p", sampling.min_p, "0: off")->capture_default_str()->check(in_range(0.0, 1.0));
    app.add_option("--seed", sampling.seed, "the same seed gives the same text")->capture_default_str();
    app.add_flag("--json", arguments_.as_json, R"(print {"token_ids":[...],"text":"..."})");
}

Result<int> GenerateCommand::run() const {
    if (prompt_->count() == 0 && arguments_.tokens.empty())
        return make_error(ErrorCode::kInvalidConfig, "generate needs --prompt or --tokens");
    TRY(run_generate(arguments_));
    return 0;
}

ProfileCommand::ProfileCommand(CLI::App& app) {
    add_model_flags(app, arguments_.model);
    app.add_option("--rows", arguments_.n_rows, "rows of the step: decoding sequences")
        ->capture_default_str()
        ->check(CLI::Range(1u, 2048u));
    app.add_option("--context", arguments_.n_context, "tokens each row sees")
        ->capture_default_str()
        ->check(CLI::Range(1u, 1u << 20));
    app.add_flag("--prompt", arguments_.prompt, "the rows are the tokens of one prompt; --context is not used");
    app.add_option("--temperature", arguments_.sampling.temperature, "draws the tokens; 0: the most probable")
        ->check(CLI::Range(0.0, 2.0));
    app.add_option("--top-p", arguments_.sampling.top_p, "of the draw")->check(CLI::Range(0.0, 1.0));
    app.add_option("--top-k", arguments_.sampling.top_k, "of the draw");
    app.add_flag("--plan", arguments_.plan,
                 "say how the step is computed (schedule, products, attention, adapters, output) instead of timing it");
    app.add_option("--repeats", arguments_.n_repeats, "steps to average")
        ->capture_default_str()
        ->check(CLI::Range(1u, 10000u));
    app.add_flag("--json", arguments_.as_json, "JSON instead of a table");
}

Result<int> ProfileCommand::run() const {
    TRY(run_profile(arguments_));
    return 0;
}

QuantizeCommand::QuantizeCommand(CLI::App& app) {
    app.add_option("--model", arguments_.model, "Hugging Face folder, or GGUF file in F32, F16 or BF16")
        ->type_name("DIR|FILE")
        ->required();
    app.add_option("--type", arguments_.type, "of the matrices: q8_0, q6_k or q4_k")->type_name("TYPE")->required();
    app.add_option("--out", arguments_.out, "file to write")->type_name("FILE.gguf")->required();
}

Result<int> QuantizeCommand::run() const {
    TRY(run_quantize(arguments_));
    return 0;
}

}  // namespace lorad::server
