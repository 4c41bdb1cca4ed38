#include "server/config.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <variant>

#include "proto/base/format.h"
#include "proto/base/nearest.h"
#include "proto/base/printable.h"
#include "server/config_table.h"
#include "server/http/cors.h"

namespace lorad::server {
namespace {

Error bad_value(const ConfigSource::Value& value, const std::string& expected) {
    return make_error(
        ErrorCode::kInvalidConfig,
        format("{}: expected {}, found \"{}\"", value.place, expected, value.texts.empty() ? "" : value.texts.back()),
        value.option);
}

template <typename T>
bool parse_number(const std::string& text, T& out) {
    const char* end = text.data() + text.size();
    auto [stopped, error] = std::from_chars(text.data(), end, out);
    return error == std::errc() && stopped == end;
}

// A value is read into the field it belongs to; what is wrong with it is the error.
struct Assign {
    const Setting& setting;
    const ConfigSource::Value& value;

    Status operator()(std::string& field) const {
        const std::string& text = value.texts.back();
        if (setting.choices != nullptr) {
            const std::vector<std::string> choices = setting.choices();
            if (std::ranges::find(choices, text) == choices.end())
                return bad_value(value, format("one of {}", fmt::join(choices, ", ")));
        }
        field = text;
        return ok_status();
    }
    Status operator()(std::vector<std::string>& field) const {
        field = value.texts;
        return ok_status();
    }
    Status operator()(bool& field) const {
        const std::string& text = value.texts.back();
        if (text != "true" && text != "1" && text != "false" && text != "0") return bad_value(value, "true or false");
        field = text == "true" || text == "1";
        return ok_status();
    }
    Status operator()(uint32_t& field) const {
        const auto [min, max] = setting.range;
        uint64_t number = 0;
        if (!parse_number(value.texts.back(), number) || double(number) < min || double(number) > max)
            return bad_value(value, format("a whole number from {} to {}", uint64_t(min), uint64_t(max)));
        field = uint32_t(number);
        return ok_status();
    }
    Status operator()(double& field) const {
        const auto [min, max] = setting.range;
        double number = 0;
        if (!parse_number(value.texts.back(), number) || !(number >= min && number <= max))
            return bad_value(value, format("a number from {} to {}", min, max));
        field = number;
        return ok_status();
    }
};

Status assign(const ConfigSource::Value& value, Config& config) {
    const auto setting = std::ranges::find(settings(), value.option, &Setting::name);
    if (setting == settings().end())
        return make_error(ErrorCode::kInvalidConfig, format("{}: no such setting", value.place), value.option);
    if (value.texts.empty()) return bad_value(value, "a value");
    return std::visit([&](auto field) { return Assign{*setting, value}(config.*field); }, setting->field);
}

// Sets an option's default and type from its setting.
struct Describe {
    ConfigOption& option;

    void operator()(const std::string& field) const {
        option.default_text = field;
        option.is_text = true;
    }
    void operator()(const std::vector<std::string>&) const { option.repeatable = option.is_text = true; }
    void operator()(bool) const { option.is_switch = true; }
    template <typename Number>
    void operator()(const Number& field) const {
        option.default_text = format("{}", field);
    }
};

Status check_steps(const Config& config) {
    if (config.max_num_batched_tokens >= config.max_num_seqs) return ok_status();
    return make_error(ErrorCode::kInvalidConfig,
                      format("max-num-batched-tokens is {}, expected at least max-num-seqs, "
                             "{}: a step holds a token of each",
                             config.max_num_batched_tokens, config.max_num_seqs),
                      "max-num-batched-tokens");
}

Status check_tls(const Config& config) {
    if (config.tls_cert.empty() == config.tls_key.empty()) return ok_status();
    return make_error(ErrorCode::kInvalidConfig, "tls-cert and tls-key: expected both or neither",
                      config.tls_cert.empty() ? "tls-cert" : "tls-key");
}

Status check_response_store(const Config& config) {
    if (config.response_store != "state" || config.state_dir != "none") return ok_status();
    return make_error(ErrorCode::kInvalidConfig,
                      "response-store: expected off or memory where state-dir is none, found \"state\"",
                      "response-store");
}

Status check_texts(const Config& config) {
    // The system would take it for every address of this machine.
    if (config.host.empty()) {
        return make_error(ErrorCode::kInvalidConfig,
                          "host: expected an address such as 127.0.0.1, found nothing; 0.0.0.0 "
                          "stands for all of this machine",
                          "host");
    }
    if (!is_printable(config.served_model_name)) {
        return make_error(ErrorCode::kInvalidConfig,
                          "served-model-name: expected UTF-8 without control characters, line separators, marks of "
                          "direction or invisible characters",
                          "served-model-name");
    }
    return ok_status();
}

}  // namespace

std::vector<ConfigOption> config_options() {
    const Config defaults;
    std::vector<ConfigOption> options;
    for (const Setting& setting : settings()) {
        ConfigOption& option = options.emplace_back();
        option.name = setting.name;
        option.value_name = setting.value_name;
        option.help = setting.help;
        if (setting.choices != nullptr) option.choices = setting.choices();
        std::visit([&](auto field) { Describe{option}(defaults.*field); }, setting.field);
    }
    return options;
}

std::vector<std::string> differing_settings(const Config& a, const Config& b) {
    std::vector<std::string> names;
    for (const Setting& setting : settings()) {
        if (std::visit([&](auto field) { return a.*field != b.*field; }, setting.field)) names.push_back(setting.name);
    }
    return names;
}

void copy_setting(const std::string& name, const Config& from, Config& to) {
    const auto setting = std::ranges::find(settings(), name, &Setting::name);
    if (setting != settings().end()) std::visit([&](auto field) { to.*field = from.*field; }, setting->field);
}

Config build_config(const std::vector<ConfigSource>& sources, std::vector<Error>& errors) {
    Config config;
    for (const ConfigSource& source : sources) {
        for (const ConfigSource::Value& value : source.values) {
            const Status assigned = assign(value, config);
            if (!assigned.ok()) errors.push_back(assigned.error());
        }
    }
    const auto add = [&errors](const auto& checked) {
        if (!checked.ok()) errors.push_back(checked.error());
    };
    add(check_steps(config));
    add(check_tls(config));
    add(check_texts(config));
    add(check_response_store(config));
    add(cors_origins(config.cors_origin));
    add(lora_arguments(config));
    return config;
}

Result<Config> build_config(const std::vector<ConfigSource>& sources) {
    std::vector<Error> errors;
    Config config = build_config(sources, errors);
    if (!errors.empty()) return errors.front();
    return config;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> names) {
    const std::vector<std::string> nearest = nearest_names(name, names, 1);
    return nearest.empty() ? std::string() : format("; did you mean {}?", nearest.front());
}

Result<std::vector<LoraArgument>> lora_arguments(const Config& config) {
    std::vector<LoraArgument> out;
    std::set<std::string> names;
    for (const std::string& text : config.lora) {
        size_t equals = text.find('=');
        if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
            return make_error(ErrorCode::kInvalidConfig, format("lora: expected NAME=DIR, found \"{}\"", text), "lora");
        }
        std::string name = text.substr(0, equals);
        if (!names.insert(name).second) {
            return make_error(ErrorCode::kInvalidConfig, format("lora: \"{}\" is given twice", name), "lora");
        }
        out.push_back({name, text.substr(equals + 1)});
    }
    return out;
}

}  // namespace lorad::server
