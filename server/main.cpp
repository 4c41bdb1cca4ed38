// lorad: serve | train | key | check | devices | logits | generate | profile | quantize | print. Flags are declared
// here, in cli/cli_flags.cpp and cli/cli_train_flags.cpp, and those of serve in config_table.cpp.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fcntl.h>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/printable.h"
#include "proto/base/version.h"
#include "proto/error.h"
#include "server/access/scope.h"
#include "server/cli/cli.h"
#include "server/cli/cli_flags.h"
#include "server/cli/cli_print.h"
#include "server/cli/cli_train_flags.h"
#include "server/sandbox/helper.h"

namespace lorad::server {
namespace {

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
        new_->add_option("--prefix", key_.prefix,
                         "what the key begins with; some clients ask for one: tml- is Tinker's")
            ->type_name("TEXT");
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

// The serve command: one CLI flag for each setting of config_table.cpp, all read as text and checked
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

    // Reads the present state of all sources.
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

// Descriptors 0, 1 and 2 belong to nobody else: a connection that got one of them would receive
// what is printed.
void occupy_standard_streams() {
    for (int fd = 0; fd <= 2; ++fd) {
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);
    }
}

// lorad print config | lorad.1 | ...
class PrintCommand {
  public:
    explicit PrintCommand(CLI::App& app) {
        app.add_option("topic", topic_, "config, lorad.1, lorad.toml.5, bash, zsh or fish")->required();
        app.add_option("--set", set_values_, "a setting that the configuration file is to have")
            ->type_name("NAME=VALUE");
    }
    // `app`: the whole program's, whose commands man pages and completions list.
    Status run(const CLI::App& app) const {
        const std::vector<ConfigOption> options = config_options();
        std::string text;
        if (topic_ == "config") {
            TRY_ASSIGN(text, print_config(options, set_values_));
        } else if (topic_ == "lorad.1") {
            text = print_man_lorad(app);
        } else if (topic_ == "lorad.toml.5") {
            text = print_man_config(options);
        } else if (topic_ == "bash" || topic_ == "zsh" || topic_ == "fish") {
            text = print_completion(app, options, topic_);
        } else {
            return make_error(
                ErrorCode::kInvalidConfig,
                format("{} cannot be printed{}; what can: {}", topic_,
                       did_you_mean(topic_, std::vector<std::string>(std::begin(kPrintTopics), std::end(kPrintTopics))),
                       fmt::join(kPrintTopics, ", ")));
        }
        if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
            return make_error(ErrorCode::kIo, "the output cannot be written");
        return ok_status();
    }

  private:
    std::string topic_;
    std::vector<std::string> set_values_;
};

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

// Rewrites the parser's error about unknown flags, with the name of the nearest one.
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

// Reads the command line; the exit status where that is all there is to do: help, the version, or an error.
std::optional<int> parse(CLI::App& app, int argc, char** argv) {
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
    return std::nullopt;
}

int run(int argc, char** argv) {
    // Nobody calls this by hand: no option, no help.
    if (argc == 2 && std::string_view(argv[1]) == sandbox::kHelperCommand) return sandbox::run_helper();
    CLI::App app("lorad serves a base language model and its LoRA adapters on Vulkan over HTTP.", "lorad");
    app.set_version_flag("--version", version());
    app.set_help_all_flag("--help-all", "Print the help of all subcommands and exit");
    app.require_subcommand(1);
    app.get_formatter()->column_width(38);

    const auto add = [&app](const char* name, const char* help) -> CLI::App& {
        return *app.add_subcommand(name, help);
    };
    CLI::App& serve = add("serve", "serve a model and its adapters over HTTP");
    ServeCommand serve_command(serve);
    CLI::App& train = add("train", "train an adapter on a file of chats or texts, without serving");
    TrainCommandFlags train_command(train);
    CLI::App& key = add("key", "make keys for clients, and check the file of keys");
    KeyCommand key_command(key);
    CLI::App& check =
        add("check", "say what is wrong with a configuration, a model or an adapter; needs no GPU and serves nothing");
    CheckCommand check_command(check);
    CLI::App& devices = add("devices", "list the Vulkan devices and what speaks for or against each");
    DevicesCommand devices_command(devices);
    CLI::App& logits = add("logits", "write the logits after a sequence of tokens as a NumPy file");
    LogitsCommand logits_command(logits);
    CLI::App& generate = add("generate", "continue a prompt once, without serving");
    GenerateCommand generate_command(generate);
    CLI::App& profile = add("profile", "time every kernel of a step: microseconds, bytes, GB/s");
    ProfileCommand profile_command(profile);
    CLI::App& quantize = add("quantize", "write a model in 16 or 32 bits as a quantized GGUF file");
    QuantizeCommand quantize_command(quantize);
    CLI::App& print = add("print", "write a configuration file, a man page or shell completion to the standard output");
    PrintCommand print_command(print);

    if (const std::optional<int> ended = parse(app, argc, argv)) return *ended;
    if (serve.parsed()) return report(serve_command.run());
    if (key.parsed()) return report(key_command.run());
    set_log_level(LogLevel::kWarn);
    if (print.parsed()) return report(print_command.run(app));
    Result<int> ended = train.parsed()      ? train_command.run()
                        : check.parsed()    ? check_command.run()
                        : devices.parsed()  ? devices_command.run()
                        : logits.parsed()   ? logits_command.run()
                        : profile.parsed()  ? profile_command.run()
                        : quantize.parsed() ? quantize_command.run()
                                            : generate_command.run();
    return ended.ok() ? *ended : report(ended.error());
}

}  // namespace
}  // namespace lorad::server

int main(int argc, char** argv) {
    lorad::server::occupy_standard_streams();
    // Only the system's exceptions remain: no memory, no threads.
    try {
        return lorad::server::run(argc, argv);
    } catch (const std::exception& exception) {
        std::fprintf(stderr, "lorad: error: the system gives no more memory or threads: %s\n", exception.what());
        return 1;
    }
}
