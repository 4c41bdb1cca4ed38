// Reads settings from the environment and a TOML file, and the folders that the environment names.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <toml++/toml.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "server/config.h"

namespace lorad::server {
namespace {

std::string environment_name(std::string option) {
    std::string out = "LORAD_";
    for (char c : option) out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return out;
}

// A TOML scalar as text; strings as they are, numbers and booleans as they would be written.
std::optional<std::string> scalar_text(const toml::node& node) {
    if (auto text = node.value_exact<std::string>()) return *text;
    if (auto flag = node.value_exact<bool>()) return std::string(*flag ? "true" : "false");
    if (auto number = node.value_exact<int64_t>()) return format("{}", *number);
    if (auto number = node.value_exact<double>()) return format("{}", *number);
    return std::nullopt;
}

std::string environment_value(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
}

std::vector<std::string> names_of(const std::vector<ConfigOption>& options, std::string (*written)(std::string)) {
    std::vector<std::string> names;
    for (const ConfigOption& option : options) names.push_back(written(option.name));
    return names;
}

// Returns the value of a key of the file; it has no texts for an empty list.
Result<ConfigSource::Value> value_of(const std::vector<ConfigOption>& options, std::string_view key,
                                     const toml::node& node, const std::string& place) {
    const auto option =
        std::find_if(options.begin(), options.end(), [&](const ConfigOption& o) { return toml_key(o.name) == key; });
    if (option == options.end())
        return make_error(ErrorCode::kInvalidConfig,
                          format("{}: no such setting{}", place, did_you_mean(key, names_of(options, toml_key))));
    ConfigSource::Value value{option->name, {}, place};
    if (const toml::array* list = node.as_array(); list != nullptr && option->repeatable) {
        for (const toml::node& element : *list) {
            auto text = element.value_exact<std::string>();
            if (!text) return make_error(ErrorCode::kInvalidConfig, format("{}: expected a list of strings", place));
            value.texts.push_back(*text);
        }
    } else if (auto text = scalar_text(node)) {
        value.texts = {*text};
    } else {
        return make_error(ErrorCode::kInvalidConfig, format("{}: expected a single value", place));
    }
    return value;
}

// systemd gives one absolute path for each StateDirectory= or CacheDirectory=, between colons; the first is ours. Else
// a folder of the user.
std::string own_folder(const char* of_service, const char* of_user, std::string_view below_home) {
    const std::string service = environment_value(of_service), user = environment_value(of_user),
                      home = environment_value("HOME");
    if (!service.empty()) return service.substr(0, service.find(':'));
    if (!user.empty()) return user + "/lorad";
    return home.empty() ? home : format("{}/{}/lorad", home, below_home);
}

}  // namespace

std::vector<std::string> helper_environment() {
    std::vector<std::string> out;
    for (const char* name :
         {"LD_LIBRARY_PATH", "TZ", "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
        if (const char* value = std::getenv(name)) out.push_back(format("{}={}", name, value));
    }
    return out;
}

std::string toml_key(std::string option_name) {
    std::replace(option_name.begin(), option_name.end(), '-', '_');
    return option_name;
}

Result<ConfigSource> config_from_environment() {
    std::vector<ConfigOption> options = config_options();
    ConfigSource source;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        std::string_view text(*entry);
        if (text.substr(0, 6) != "LORAD_") continue;
        size_t equals = text.find('=');
        std::string name(text.substr(0, equals));
        std::string value(equals == std::string_view::npos ? "" : text.substr(equals + 1));
        if (name == "LORAD_CONFIG") continue;  // read by the command line: the file's own name
        auto option = std::find_if(options.begin(), options.end(),
                                   [&](const ConfigOption& o) { return environment_name(o.name) == name; });
        if (option == options.end()) {
            log_warn("environment variable {} is none of lorad's settings and has no effect{}", name,
                     did_you_mean(name, names_of(options, environment_name)));
            continue;
        }
        std::vector<std::string> texts;
        if (option->repeatable) {
            for (size_t begin = 0; begin <= value.size();) {
                size_t end = std::min(value.find(',', begin), value.size());
                if (end > begin) texts.push_back(value.substr(begin, end - begin));
                begin = end + 1;
            }
        } else {
            texts = {value};
        }
        if (!texts.empty()) source.values.push_back({option->name, texts, name});
    }
    return source;
}

Result<ConfigSource> config_from_file(const std::string& path, std::vector<Error>* errors) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored) || std::filesystem::is_directory(path, ignored)) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("{}: expected a TOML file, found {}", path,
                                 std::filesystem::exists(path, ignored) ? "a folder" : "nothing"),
                          "config");
    }
    toml::table table;
    try {
        table = toml::parse_file(path);
    } catch (const toml::parse_error& error) {
        return make_error(ErrorCode::kInvalidConfig, format("{}:{}:{}: {}", path, error.source().begin.line,
                                                            error.source().begin.column, error.description()));
    }
    const std::vector<ConfigOption> options = config_options();
    ConfigSource source;
    for (const auto& [key, node] : table) {
        Result<ConfigSource::Value> value =
            value_of(options, key.str(), node, format("{}:{}: {}", path, node.source().begin.line, key.str()));
        if (!value.ok() && errors == nullptr) return value.error();
        if (!value.ok()) {
            errors->push_back(value.error());
        } else if (!value->texts.empty()) {
            source.values.push_back(std::move(*value));
        }
    }
    return source;
}

Result<std::vector<ConfigSource>> config_from_file_and_environment(const std::string& file,
                                                                   std::vector<Error>* errors) {
    std::vector<ConfigSource> sources;
    const std::string path = file.empty() ? environment_value("LORAD_CONFIG") : file;
    if (!path.empty()) {
        TRY_ASSIGN(ConfigSource from_file, config_from_file(path, errors));
        sources.push_back(std::move(from_file));
    }
    TRY_ASSIGN(ConfigSource from_environment, config_from_environment());
    sources.push_back(std::move(from_environment));
    return sources;
}

std::string default_cache_folder() { return own_folder("CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache"); }

std::string default_state_dir() { return own_folder("STATE_DIRECTORY", "XDG_STATE_HOME", ".local/state"); }

}  // namespace lorad::server
