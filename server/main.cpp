// lorad: serve | train | key | check | devices | logits | generate | profile | quantize | print. Every flag is declared
// here or, for serve, in config.cpp.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fcntl.h>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/printable.h"
#include "proto/error.h"
#include "server/access/scope.h"
#include "server/cli.h"
#include "server/cli_print.h"
#include "server/cli_train_flags.h"
#include "server/sandbox/helper.h"

namespace lorad::server {
namespace {

void add_device_flags(CLI::App& app, DeviceArguments& device) {
    app.add_option("--device", device.device, "Vulkan device by index or part of its name (default: the best one)")
        ->type_name("INDEX|NAME");
    app.add_flag("--validation", device.validation, "Vulkan validation layers with synchronization checks (slow)");
    app.add_option("--pipeline-cache", device.pipeline_cache,
                   "where compiled pipelines are kept (default: in the user's cache folder)")
        ->type_name("FILE");
}

void add_model_flags(CLI::App& app, ModelArguments& model) {
    app.add_option("--model", model.model, "folder or GGUF file of the base model")->type_name("DIR")->required();
    app.add_option("--adapter", model.adapters, "adapter to apply, with a scale: sql, sql@0.5; several add up")
        ->type_name("PATH[@SCALE]");
    app.add_option("--kernel-path", model.kernel_path, "matrix kernels: auto, portable, coopmat, coopmat2 or warpgroup")
        ->type_name("PATH");
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

// lorad key new | check
class KeyCommand {
  public:
    explicit KeyCommand(CLI::App& app) {
        app.require_subcommand(1);
        new_ = app.add_subcommand("new", "draw a key and print it, this once, and the line for the file of keys");
        new_->add_option("--id", key_.id, "name of the key in the log")->required();
        new_->add_option("--scope", key_.scopes, access::scope_names() + "; may be repeated")->required();
        new_->add_option("--adapter", key_.adapters,
                         "name or pattern (team-*) of adapters that the key may use; may be repeated (default: all)");
        new_->add_option("--tenant", key_.tenant, "whose share of the server it uses (default: the id)");
        new_->add_option("--expires", key_.expires, "2027-01-31 or 2027-01-31T12:00:00Z");
        new_->add_option("--requests-per-minute", key_.requests_per_minute, "0: no limit");
        new_->add_option("--tokens-per-minute", key_.tokens_per_minute, "of prompts and answers; 0: no limit");
        new_->add_option("--max-queued-requests", key_.max_queued_requests, "0: no limit");
        new_->add_option("--max-queued-tokens", key_.max_queued_tokens, "of prompts; 0: no limit");
        new_->add_option("--priority-min", key_.priority_min,
                         "lowest priority of its requests, where lower ones come earlier (default: 0)")
            ->type_name("N");
        new_->add_option("--file", key_.file, "append the line to this file and print the key alone")
            ->type_name("FILE");
        check_ = app.add_subcommand("check", "say whose keys a file holds, or what is wrong with it");
        check_->add_option("file", checked_file_, "file of keys")->required();
    }
    Status run() const { return new_->parsed() ? run_key_new(key_) : run_key_check(checked_file_); }

  private:
    CLI::App* new_ = nullptr;
    CLI::App* check_ = nullptr;
    KeyArguments key_;
    std::string checked_file_;
};

// The flag that takes a switch back: no-strict of strict, prefix-cache of no-prefix-cache.
std::string opposite(const std::string& name) { return name.starts_with("no-") ? name.substr(3) : "no-" + name; }

// The serve command: one CLI flag for each setting of config.cpp, all read as text and checked
// there.
class ServeCommand {
  public:
    explicit ServeCommand(CLI::App& app)
        : options_(config_options()), values_(options_.size()), switches_(options_.size()) {
        app.add_option("--config", config_file_,
                       "TOML file with these settings, dashes as underscores: max_num_seqs = 32")
            ->type_name("FILE");
        for (size_t i = 0; i < options_.size(); ++i) {
            const ConfigOption& option = options_[i];
            std::string flag = "--" + option.name;
            if (option.is_switch) {
                cli_.push_back(app.add_flag(flag + ",!--" + opposite(option.name), switches_[i], option.help));
                continue;
            }
            CLI::Option* added = app.add_option(flag, values_[i], option.help)->type_name(option.value_name);
            if (!option.repeatable) added->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
            if (!option.default_text.empty()) added->default_str(option.default_text);
            cli_.push_back(added);
        }
        app.footer("Every setting can also come from LORAD_<NAME> (LORAD_MAX_NUM_SEQS=32; lists with "
                   "commas) or from the file;\n"
                   "flags win over the environment, the environment over the file.");
    }

    // From all sources, as they are now.
    Result<Config> read() const {
        TRY_ASSIGN(std::vector<ConfigSource> sources, config_from_file_and_environment(config_file_));
        ConfigSource from_flags;
        for (size_t i = 0; i < options_.size(); ++i) {
            if (cli_[i]->count() == 0) continue;
            std::vector<std::string> texts = values_[i];
            if (options_[i].is_switch) texts = {switches_[i] > 0 ? "true" : "false"};
            from_flags.values.push_back({options_[i].name, std::move(texts), "--" + options_[i].name});
        }
        sources.push_back(std::move(from_flags));
        return build_config(sources);
    }
    Status run() const {
        TRY_ASSIGN(Config config, read());
        return run_serve(config, [this] { return read(); });
    }

  private:
    std::vector<ConfigOption> options_;
    std::vector<std::vector<std::string>> values_;  // by option
    std::vector<int> switches_;                     // by option; negative for --no-NAME
    std::vector<CLI::Option*> cli_;
    std::string config_file_;
};

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

// Descriptors 0, 1 and 2 belong to nobody else: a connection that got one of them would receive
// what is printed.
void occupy_standard_streams() {
    for (int fd = 0; fd <= 2; ++fd) {
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);
    }
}

Status print_topic(const CLI::App& app, const std::string& topic, const std::vector<std::string>& values) {
    const std::vector<ConfigOption> options = config_options();
    std::string text;
    if (topic == "config") {
        TRY_ASSIGN(text, print_config(options, values));
    } else if (topic == "lorad.1") {
        text = print_man_lorad(app);
    } else if (topic == "lorad.toml.5") {
        text = print_man_config(options);
    } else if (topic == "bash" || topic == "zsh" || topic == "fish") {
        text = print_completion(app, options, topic);
    } else {
        return make_error(
            ErrorCode::kInvalidConfig,
            format("{} cannot be printed{}; what can: {}", topic,
                   did_you_mean(topic, std::vector<std::string>(std::begin(kPrintTopics), std::end(kPrintTopics))),
                   fmt::join(kPrintTopics, ", ")));
    }
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
        return make_error(ErrorCode::kIo, "the output cannot be written");
    return ok_status();
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App*) { return true; });
}

// `path` is the program's name with the commands before the one that was found.
std::string no_such_command(const CLI::App& app, const std::string& path, const std::string& found) {
    std::vector<std::string> names;
    for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
    return format("there is no command \"{}\"{}; `{} --help` lists those there are", found, did_you_mean(found, names),
                  path);
}

// What the command line's parser says of flags that there are not, with the name of the nearest.
std::string unexpected(const CLI::App& app, const CLI::ParseError& error) {
    const CLI::App* command = &app;
    std::string path = app.get_name();
    while (!command->get_subcommands().empty()) {
        command = command->get_subcommands().front();
        path += " " + command->get_name();
    }
    const std::vector<std::string> extras = app.remaining(true);
    const auto flag = std::ranges::find_if(extras, [](const std::string& text) { return text.starts_with("--"); });
    if (flag == extras.end() && !extras.empty() && !commands_of(*command).empty())
        return no_such_command(*command, path, extras.front());
    if (flag == extras.end()) return format("{} (see {} --help)", error.what(), path);
    const std::string name = flag->substr(0, flag->find('='));
    std::vector<std::string> names;
    for (const CLI::Option* option : command->get_options()) {
        for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
    }
    return format("{}: {} has no such flag{} (see {} --help)", name, path, did_you_mean(name, names), path);
}

// A switch whose name begins with no- is taken back by its name without it; with one more no- it is meant so, too.
void straighten(std::vector<std::string>& arguments) {
    constexpr std::string_view kTwice = "--no-no-";
    for (std::string& text : arguments) {
        if (text.starts_with(kTwice)) text = "--" + text.substr(kTwice.size());
    }
}

int report(const Status& status) {
    if (status.ok()) return 0;
    std::fprintf(stderr, "lorad: error: %s\n", proto::error_message(status.error()).c_str());
    return status.error().code == ErrorCode::kDeviceLost ? kExitDeviceLost : kExitError;
}

int run(int argc, char** argv) {
    // Nobody calls this by hand: no option, no help.
    if (argc == 2 && std::string_view(argv[1]) == sandbox::kHelperCommand) return sandbox::run_helper();
    CLI::App app("lorad serves a base language model and its LoRA adapters on Vulkan over HTTP.", "lorad");
    app.set_version_flag("--version", LORAD_VERSION);
    app.set_help_all_flag("--help-all", "Print the help of all subcommands and exit");
    app.require_subcommand(1);
    app.get_formatter()->column_width(38);

    CLI::App* serve = app.add_subcommand("serve", "serve a model and its adapters over HTTP");
    ServeCommand serve_command(*serve);

    CLI::App* train = app.add_subcommand("train", "train an adapter on a file of chats or texts, without serving");
    TrainCommandFlags train_flags(*train);

    CLI::App* key = app.add_subcommand("key", "make keys for clients, and check the file of keys");
    KeyCommand key_command(*key);

    CLI::App* check = app.add_subcommand(
        "check", "say what is wrong with a configuration, a model or an adapter; needs no GPU and serves nothing");
    CheckArguments check_arguments;
    check->add_option("--config", check_arguments.config, "settings as for serve: this file and the environment")
        ->type_name("FILE");
    check
        ->add_option("--model", check_arguments.model,
                     "folder or GGUF file of the base model (default: the configuration's)")
        ->type_name("DIR");
    check
        ->add_option("--adapter", check_arguments.adapter,
                     "adapter: a PEFT or MLX folder, or a GGUF file (default: those of the configuration)")
        ->type_name("PATH");
    check
        ->add_option("--memory-gib", check_arguments.memory_gib,
                     "sizes of cards, as in 8,12,16,24: what the model takes of each, and the flags with which it "
                     "fits; config.json is enough")
        ->delimiter(',')
        ->check(CLI::Range(1u, 4096u));
    check->add_flag("--json", check_arguments.as_json, "JSON instead of text, of an adapter and of sizes");
    check->footer("Exit status 0: all is well; 1: something is not, with every reason.");

    CLI::App* devices = app.add_subcommand("devices", "list the Vulkan devices and what speaks for or against each");
    DeviceArguments device;
    bool devices_as_json = false;
    add_device_flags(*devices, device);
    devices->add_flag("--json", devices_as_json, "JSON instead of text");

    CLI::App* logits = app.add_subcommand("logits", "write the logits after a sequence of tokens as a NumPy file");
    LogitsArguments logits_arguments;
    add_model_flags(*logits, logits_arguments.model);
    logits->add_option("--tokens", logits_arguments.tokens, "token ids, or a file with them")
        ->type_name("1,2,3|FILE")
        ->required();
    logits->add_option("--out", logits_arguments.out, "file to write: float32 [vocab]")->type_name("X.npy")->required();
    logits->add_flag("--all-positions", logits_arguments.all_positions,
                     "logits of every position: float32 [tokens][vocab]");

    CLI::App* generate = app.add_subcommand("generate", "continue a prompt once, without serving");
    GenerateArguments generate_arguments;
    proto::SamplingParams& sampling = generate_arguments.sampling;
    add_model_flags(*generate, generate_arguments.model);
    CLI::Option* prompt =
        generate->add_option("--prompt", generate_arguments.prompt, "text to continue, taken as it is");
    generate->add_option("--tokens", generate_arguments.tokens, "token ids to continue, or a file with them")
        ->type_name("1,2,3|FILE")
        ->excludes(prompt);
    generate->add_option("--max-tokens", generate_arguments.max_tokens, "tokens to generate at most")
        ->capture_default_str()
        ->check(CLI::Range(1u, 1u << 24));
    generate->add_flag("--ignore-eos", generate_arguments.ignore_eos, "go on after an end-of-sequence token");
    generate->add_option("--temperature", sampling.temperature, "0: the most probable token")
        ->capture_default_str()
        ->check(in_range(0.0, 2.0));
    generate->add_option("--top-k", sampling.top_k, "0: off")->capture_default_str();
    generate->add_option("--top-p", sampling.top_p, "1: off")->capture_default_str()->check(in_range(1e-6, 1.0));
    generate->add_option("--min-p", sampling.min_p, "0: off")->capture_default_str()->check(in_range(0.0, 1.0));
    generate->add_option("--seed", sampling.seed, "the same seed gives the same text")->capture_default_str();
    generate->add_flag("--json", generate_arguments.as_json, R"(print {"token_ids":[...],"text":"..."})");

    CLI::App* profile = app.add_subcommand("profile", "time every kernel of a step: microseconds, bytes, GB/s");
    ProfileArguments profile_arguments;
    add_model_flags(*profile, profile_arguments.model);
    profile->add_option("--rows", profile_arguments.n_rows, "rows of the step: decoding sequences")
        ->capture_default_str()
        ->check(CLI::Range(1u, 2048u));
    profile->add_option("--context", profile_arguments.n_context, "tokens each row sees")
        ->capture_default_str()
        ->check(CLI::Range(1u, 1u << 20));
    profile->add_flag("--prompt", profile_arguments.prompt,
                      "the rows are the tokens of one prompt; --context is not used");
    profile
        ->add_option("--temperature", profile_arguments.sampling.temperature, "draws the tokens; 0: the most probable")
        ->check(CLI::Range(0.0, 2.0));
    profile->add_option("--top-p", profile_arguments.sampling.top_p, "of the draw")->check(CLI::Range(0.0, 1.0));
    profile->add_option("--top-k", profile_arguments.sampling.top_k, "of the draw");
    profile->add_flag(
        "--plan", profile_arguments.plan,
        "say how the step is computed (schedule, products, attention, adapters, output) instead of timing it");
    profile->add_option("--repeats", profile_arguments.n_repeats, "steps to average")
        ->capture_default_str()
        ->check(CLI::Range(1u, 10000u));
    profile->add_flag("--json", profile_arguments.as_json, "JSON instead of a table");

    CLI::App* quantize = app.add_subcommand("quantize", "write a model in 16 or 32 bits as a quantized GGUF file");
    QuantizeArguments quantize_arguments;
    quantize->add_option("--model", quantize_arguments.model, "Hugging Face folder, or GGUF file in F32, F16 or BF16")
        ->type_name("DIR|FILE")
        ->required();
    quantize->add_option("--type", quantize_arguments.type, "of the matrices: q8_0, q6_k or q4_k")
        ->type_name("TYPE")
        ->required();
    quantize->add_option("--out", quantize_arguments.out, "file to write")->type_name("FILE.gguf")->required();

    CLI::App* print = app.add_subcommand(
        "print", "write a configuration file, a man page or shell completion to the standard output");
    std::string topic;
    std::vector<std::string> set_values;
    print->add_option("topic", topic, "config, lorad.1, lorad.toml.5, bash, zsh or fish")->required();
    print->add_option("--set", set_values, "a setting that the configuration file is to have")->type_name("NAME=VALUE");

    const auto commands = commands_of(app);
    if (argc > 1 && argv[1][0] != '-' &&
        std::ranges::none_of(commands, [&](const CLI::App* command) { return command->get_name() == argv[1]; }))
        return report(make_error(ErrorCode::kInvalidConfig, no_such_command(app, app.get_name(), argv[1])));
    // The parser takes the last one first.
    std::vector<std::string> given(std::make_reverse_iterator(argv + argc),
                                   std::make_reverse_iterator(argv + std::min(argc, 1)));
    straighten(given);
    try {
        app.parse(std::move(given));
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
        std::fprintf(stderr, "lorad: error: %s\n", escape_unprintable(unexpected(app, error)).c_str());
        return kExitError;
    }
    if (serve->parsed()) return report(serve_command.run());
    if (key->parsed()) return report(key_command.run());
    set_log_level(LogLevel::kWarn);
    if (train->parsed()) {
        Result<int> ended = train_flags.run();
        return ended.ok() ? *ended : report(ended.error());
    }
    if (check->parsed()) {
        Result<bool> fits = run_check(check_arguments);
        if (!fits.ok()) return report(fits.error());
        return *fits ? 0 : kExitError;
    }
    if (quantize->parsed()) return report(run_quantize(quantize_arguments));
    if (print->parsed()) return report(print_topic(app, topic, set_values));
    if (devices->parsed()) return report(run_devices(device, devices_as_json));
    if (logits->parsed()) return report(run_logits(logits_arguments));
    if (profile->parsed()) return report(run_profile(profile_arguments));
    if (prompt->count() == 0 && generate_arguments.tokens.empty()) {
        return report(make_error(ErrorCode::kInvalidConfig, "generate needs --prompt or --tokens"));
    }
    return report(run_generate(generate_arguments));
}

}  // namespace
}  // namespace lorad::server

int main(int argc, char** argv) {
    lorad::server::occupy_standard_streams();
    // What is left to throw is the system's: no memory, no threads.
    try {
        return lorad::server::run(argc, argv);
    } catch (const std::exception& exception) {
        std::fprintf(stderr, "lorad: error: the system gives no more memory or threads: %s\n", exception.what());
        return 1;
    }
}
