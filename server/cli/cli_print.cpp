#include "server/cli/cli_print.h"

#include <algorithm>
#include <map>

#include <CLI/CLI.hpp>

#include "proto/base/format.h"
#include "proto/base/version.h"
#include "server/cli/cli.h"
#include "server/ops/reload.h"
#include "server/ops/signals.h"

namespace lorad::server {
namespace {

constexpr size_t kCommentColumns = 110;

std::string in_quotes(std::string_view text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + '"';
}

std::string toml_value(const ConfigOption& option, const std::vector<std::string>& texts) {
    if (option.repeatable) {
        std::vector<std::string> parts;
        for (const std::string& text : texts) parts.push_back(in_quotes(text));
        return format("[{}]", fmt::join(parts, ", "));
    }
    return option.is_text ? in_quotes(texts.at(0)) : texts.at(0);
}

std::string default_value(const ConfigOption& option) {
    if (option.is_switch) return "false";
    return option.repeatable ? "[]" : toml_value(option, {option.default_text});
}

// Lines of "# ..." of bounded length.
std::string comment(const std::string& text) {
    std::string out, line = "#";
    size_t begin = 0;
    while (begin < text.size()) {
        const size_t end = std::min(text.find(' ', begin), text.size());
        const std::string word = text.substr(begin, end - begin);
        if (line.size() + 1 + word.size() > kCommentColumns) {
            out += line + "\n";
            line = "#";
        }
        line += " " + word;
        begin = end + 1;
    }
    return out + line + "\n";
}

std::string notes_of(const ConfigOption& option) {
    std::string out = option.help;
    if (!option.choices.empty()) out += format(" [{}]", fmt::join(option.choices, ", "));
    if (ops::takes_effect_on_reload(option.name)) out += "; taken again on SIGHUP";
    return out;
}

// Text for roff: its own characters say themselves, and no line begins with a request.
std::string roff(std::string_view text) {
    std::string out;
    for (char c : text) {
        if (c == '\\') {
            out += "\\e";
        } else if (c == '-') {
            out += "\\-";
        } else if (c == '\'') {
            out += "\\(aq";
        } else if (c == '.' && (out.empty() || out.back() == '\n')) {
            out += "\\&.";
        } else {
            out += c;
        }
    }
    return out;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App*) { return true; });
}

bool takes_value(const CLI::Option* option) { return option->get_items_expected_max() > 0; }

std::string roff_options(const CLI::App& command) {
    std::string out;
    for (const CLI::Option* option : command.get_options()) {
        if (option->get_lnames().empty()) continue;
        out += ".TP\n\\fB" + roff("--" + option->get_lnames()[0]) + "\\fR";
        if (takes_value(option)) out += " \\fI" + roff(option->get_type_name()) + "\\fR";
        out += "\n" + roff(option->get_description()) + "\n";
    }
    return out;
}

// The purpose of the program, and its commands.
std::string man_examples() {
    constexpr std::pair<std::string_view, std::string_view> kExamples[] = {
        {"A base and two adapters, on this machine only; the console is then on http://127.0.0.1:8080/console.",
         "lorad serve --model /models/Qwen2.5-7B-Instruct --lora sql=/adapters/sql --lora legal=/adapters/legal"},
        {"Settings from a file, one of them otherwise.",
         "lorad serve --config /etc/lorad/lorad.toml --port 8081 --prefix-cache"},
        {"Everything that is wrong with a configuration, its model and adapters, before a restart.",
         "lorad check --config /etc/lorad/lorad.toml"},
        {"Whether an adapter fits a base, and what it costs.",
         "lorad check --model /models/Qwen2.5-7B-Instruct --adapter /adapters/sql"},
        {"A key for a client that may use some adapters, with quotas; and one for Prometheus.",
         "lorad key new --id alice --tenant acme --scope generate --adapter 'acme-*' --tokens-per-minute 200000 "
         "--priority-min 5 --file keys.jsonl\n"
         "lorad key new --id prometheus --scope metrics --file keys.jsonl"},
        {"For other machines, with these keys.",
         "lorad serve --model /models/Qwen2.5-7B-Instruct --host 0.0.0.0 --api-key-file keys.jsonl"},
        {"A prompt, once, without serving.", "lorad generate --model /models/Qwen2.5-7B-Instruct --adapter "
                                             "/adapters/sql@0.5 --prompt 'The capital of France is'"},
        {"A settings file with two of them set, and completion for this shell.",
         "lorad print config --set model=/models/base --set port=8081 > lorad.toml\nsource <(lorad print bash)"},
    };
    std::string out = ".SH EXAMPLES\n";
    for (const auto& [what, commands] : kExamples)
        out += format(".PP\n{}\n.PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n", roff(what), roff(commands));
    return out;
}

std::string single_quoted(std::string_view text) {
    std::string out = "'";
    for (char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
    return out + "'";
}

bool names_a_path(const std::string& type) {
    return type.find("DIR") != std::string::npos || type.find("FILE") != std::string::npos ||
           type.find("PATH") != std::string::npos || type.find(".npy") != std::string::npos;
}

// A flag as the shells see it.
struct Flag {
    std::string name, help;
    bool has_value = false, is_path = false;
    std::vector<std::string> choices;
};

std::vector<Flag> flags_of(const CLI::App& command, const std::map<std::string, const ConfigOption*>& settings) {
    std::vector<Flag> out;
    for (const CLI::Option* option : command.get_options()) {
        for (const std::string& name : option->get_lnames()) {
            const bool is_first = name == option->get_lnames()[0];
            Flag flag{name,
                      is_first ? option->get_description() : "takes back --" + option->get_lnames()[0],
                      takes_value(option),
                      false,
                      {}};
            const auto setting = settings.find(flag.name);
            if (setting != settings.end() && command.get_name() == "serve") flag.choices = setting->second->choices;
            flag.is_path = flag.choices.empty() && names_a_path(option->get_type_name()) && flag.name != "kernel-path";
            out.push_back(std::move(flag));
        }
    }
    return out;
}

std::string bash_completion(const CLI::App& app, const std::map<std::string, const ConfigOption*>& settings) {
    std::vector<std::string> names;
    std::string cases;
    for (const CLI::App* command : commands_of(app)) {
        names.push_back(command->get_name());
        std::vector<std::string> words;
        std::string values;
        for (const Flag& flag : flags_of(*command, settings)) {
            words.push_back("--" + flag.name);
            if (!flag.choices.empty()) {
                values += format("                --{}) COMPREPLY=($(compgen -W {} -- \"$cur\")); return ;;\n",
                                 flag.name, single_quoted(format("{}", fmt::join(flag.choices, " "))));
            } else if (flag.is_path) {
                values += format("                --{}) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", flag.name);
            } else if (flag.has_value) {
                values += format("                --{}) return ;;\n", flag.name);
            }
        }
        if (command->get_name() == "print") words.insert(words.end(), std::begin(kPrintTopics), std::end(kPrintTopics));
        cases += format("        {})\n            case $prev in\n{}            esac\n            COMPREPLY=($(compgen "
                        "-W {} -- \"$cur\")) ;;\n",
                        command->get_name(), values, single_quoted(format("{}", fmt::join(words, " "))));
    }
    return "# bash completion for lorad\n_lorad() {\n    local cur=${COMP_WORDS[COMP_CWORD]} "
           "prev=${COMP_WORDS[COMP_CWORD-1]}\n    compopt -o filenames 2>/dev/null\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W " +
           single_quoted(format("{} --help --version", fmt::join(names, " "))) +
           " -- \"$cur\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n" + cases +
           "    esac\n}\ncomplete -F _lorad lorad\n";
}

std::string zsh_text(std::string text) {
    for (const auto& [from, to] : {std::pair<char, char>{'[', '('}, {']', ')'}, {':', ','}})
        std::replace(text.begin(), text.end(), from, to);
    return text;
}

std::string zsh_completion(const CLI::App& app, const std::map<std::string, const ConfigOption*>& settings) {
    std::string names, cases;
    for (const CLI::App* command : commands_of(app)) {
        names += "        " + single_quoted(command->get_name() + ":" + zsh_text(command->get_description())) + "\n";
        cases += format("        {})\n            _arguments", command->get_name());
        for (const Flag& flag : flags_of(*command, settings)) {
            std::string spec = "*--" + flag.name + "[" + zsh_text(flag.help) + "]";
            if (!flag.choices.empty()) {
                spec += format(":value:({})", fmt::join(flag.choices, " "));
            } else if (flag.is_path) {
                spec += ":path:_files";
            } else if (flag.has_value) {
                spec += ":value: ";
            }
            cases += " \\\n                " + single_quoted(spec);
        }
        if (command->get_name() == "print")
            cases += format(" \\\n                ':topic:({})'", fmt::join(kPrintTopics, " "));
        cases += " ;;\n";
    }
    return "#compdef lorad\n_lorad() {\n    local -a commands\n    commands=(\n" + names +
           "    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n    "
           "local command=$words[2]\n    shift words\n"
           "    (( CURRENT-- ))\n    case $command in\n" +
           cases + "    esac\n}\n_lorad \"$@\"\n";
}

std::string fish_completion(const CLI::App& app, const std::map<std::string, const ConfigOption*>& settings) {
    std::string out = "# fish completion for lorad\ncomplete -c lorad -f\n";
    for (const CLI::App* command : commands_of(app)) {
        const std::string& name = command->get_name();
        out += format("complete -c lorad -n __fish_use_subcommand -a {} -d {}\n", name,
                      single_quoted(command->get_description()));
        for (const Flag& flag : flags_of(*command, settings)) {
            out += format("complete -c lorad -n '__fish_seen_subcommand_from {}' -l {} -d {}", name, flag.name,
                          single_quoted(flag.help));
            if (!flag.choices.empty()) {
                out += " -x -a " + single_quoted(format("{}", fmt::join(flag.choices, " ")));
            } else if (flag.is_path) {
                out += " -r -F";
            } else if (flag.has_value) {
                out += " -x";
            }
            out += "\n";
        }
    }
    return out +
           format("complete -c lorad -n '__fish_seen_subcommand_from print' -a '{}'\n", fmt::join(kPrintTopics, " "));
}

}  // namespace

Result<std::string> print_config(const std::vector<ConfigOption>& options, const std::vector<std::string>& values) {
    std::map<std::string, std::vector<std::string>> given;
    for (const std::string& text : values) {
        const size_t equals = std::min(text.find('='), text.size());
        std::string name = text.substr(0, equals);
        std::replace(name.begin(), name.end(), '_', '-');
        if (std::ranges::find(options, name, &ConfigOption::name) == options.end()) {
            std::vector<std::string> names;
            for (const ConfigOption& option : options) names.push_back(option.name);
            return make_error(ErrorCode::kInvalidConfig,
                              format("{}: no such setting{}", name, did_you_mean(name, names)), name);
        }
        given[name].push_back(text.substr(std::min(equals + 1, text.size())));
    }
    std::string out = "# lorad's settings: lorad.toml(5). Each is a flag and a LORAD_* variable as well; flags win "
                      "over variables, these over this file.\n"
                      "# What stands here behind a # is the default. After a change: systemctl restart lorad; for what "
                      "says so, systemctl reload lorad.\n"
                      "# lorad check --config FILE says what is wrong with it.\n";
    for (const ConfigOption& option : options) {
        out += "\n" + comment(notes_of(option));
        const auto found = given.find(option.name);
        if (found != given.end()) {
            out += format("{} = {}\n", toml_key(option.name), toml_value(option, found->second));
        } else {
            out += format("#{} = {}\n", toml_key(option.name), default_value(option));
        }
    }
    return out;
}

std::string print_man_config(const std::vector<ConfigOption>& options) {
    std::string out = std::string(".TH LORAD.TOML 5 \"\" \"lorad ") + version() +
                      "\" \"File formats\"\n.SH NAME\nlorad.toml \\- settings of lorad serve\n.SH SYNOPSIS\n"
                      ".I /etc/lorad/lorad.toml\n.SH DESCRIPTION\n"
                      "A TOML file of keys and values, without tables. The service reads /etc/lorad/lorad.toml; "
                      "elsewhere \\fBlorad serve \\-\\-config\\fR or the\n"
                      "variable LORAD_CONFIG names the file. A key that lorad does not know, a value of another type "
                      "and a value out of range are errors with\n"
                      "file and line, and nothing is served. Every key is also a flag with dashes (max_num_seqs: "
                      "\\-\\-max\\-num\\-seqs) and a variable\n"
                      "(LORAD_MAX_NUM_SEQS); flags win over variables, variables over the file.\n.PP\n"
                      "On SIGHUP the file is read again. If anything in it is wrong, the old settings stay, with one "
                      "line in the log.\n.SH SETTINGS\n";
    for (const ConfigOption& option : options) {
        out += ".TP\n\\fB" + roff(toml_key(option.name)) + "\\fR";
        out += roff(" = " + default_value(option)) + "\n" + roff(notes_of(option)) + "\n";
    }
    return out + ".SH EXAMPLES\n.PP\nA base with two adapters, for other machines, behind keys:\n.PP\n.RS 4\n.nf\n" +
           roff("model = \"/models/Qwen2.5-7B-Instruct\"\nserved_model_name = \"qwen\"\nlora = [\"sql=/adapters/sql\", "
                "\"legal=/adapters/legal\"]\n"
                "host = \"0.0.0.0\"\napi_key_file = \"/etc/lorad/keys.jsonl\"\nmax_num_seqs = 32\nlog_format = "
                "\"json\"") +
           "\n.fi\n.RE\n.PP\n\\fBlorad check \\-\\-config\\fR \\fIFILE\\fR says everything that is wrong with it.\n.SH "
           "SEE ALSO\n.BR lorad (1)\n";
}

std::string print_man_lorad(const CLI::App& app) {
    std::string out =
        std::string(".TH LORAD 1 \"\" \"lorad ") + version() +
        "\" \"User commands\"\n.SH NAME\nlorad \\- serves a language model and its LoRA adapters on Vulkan over HTTP\n"
        ".SH SYNOPSIS\n.B lorad\n.I command\n[\\fIoptions\\fR]\n.SH DESCRIPTION\n" +
        roff(app.get_description()) +
        "\nThe requests have OpenAI's and Anthropic's form; adapters are loaded, replaced and removed while others are "
        "served.\n.SH COMMANDS\n";
    for (const CLI::App* command : commands_of(app)) {
        if (command->get_name() == "serve") {
            out +=
                ".SS lorad serve\n" + roff(command->get_description()) +
                ".\nIts flags are the settings of\n.BR lorad.toml (5)\nwith dashes instead of underscores, and "
                "\\fB\\-\\-config\\fR \\fIFILE\\fR. What is true or false is a switch: \\fB\\-\\-strict\\fR, taken "
                "back by\n"
                "\\fB\\-\\-no\\-strict\\fR, and \\fB\\-\\-no\\-prefix\\-cache\\fR by \\fB\\-\\-prefix\\-cache\\fR.\n";
            continue;
        }
        out += ".SS " + roff("lorad " + command->get_name()) + "\n" + roff(command->get_description()) + ".\n" +
               roff_options(*command);
        if (!command->get_footer().empty()) out += ".PP\n" + roff(command->get_footer()) + "\n";
    }
    return out +
           ".SH SIGNALS\n.TP\n.B SIGTERM, SIGINT\nNew requests are refused with 503, running ones may finish for "
           "drain_timeout_s, the rest end with an error. The second one\n"
           "ends the process at once.\n.TP\n.B SIGHUP\nReads the configuration again, all or nothing.\n" +
           man_examples() + ".SH EXIT STATUS\n" +
           format("0 after a drain; {} after an error; {} where the device gave up: started again, lorad may well "
                  "serve; {} after a second SIGTERM.\n",
                  kExitError, kExitDeviceLost, ops::kExitAtOnce) +
           ".SH FILES\n.TP\n.I /etc/lorad/lorad.toml\nsettings of the service\n.TP\n.I /var/lib/lorad\nadapters with "
           "their names and earlier generations\n"
           ".TP\n.I /var/cache/lorad\ncompiled pipelines and what tests at the start have shown; may be deleted\n.SH SEE ALSO\n.BR lorad.toml (5)\n";
}

std::string print_completion(const CLI::App& app, const std::vector<ConfigOption>& options, std::string_view shell) {
    std::map<std::string, const ConfigOption*> settings;
    for (const ConfigOption& option : options) settings[option.name] = &option;
    if (shell == "bash") return bash_completion(app, settings);
    if (shell == "zsh") return zsh_completion(app, settings);
    return fish_completion(app, settings);
}

}  // namespace lorad::server
