#include "server/config.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <variant>

#include "model/text/tool_calls.h"
#include "proto/base/format.h"
#include "proto/base/nearest.h"
#include "proto/base/printable.h"
#include "server/http/cors.h"

namespace lorad::server {
namespace {

// The list. visit(name, field, value name, help, range) for numbers; strings may have a list of
// what they may be.
struct Range {
    double min = 0;
    double max = 0;
};
std::vector<std::string> tool_call_parsers() {
    std::vector<std::string> names = model::tool_format_names();
    names.insert(names.begin(), "auto");
    return names;
}

template <class Visit>
void describe(Config& c, Visit&& visit) {
    visit("model", c.model, "DIR",
          "the base model: a folder (config.json, *.safetensors, tokenizer.json) or a GGUF file; required");
    visit("lora", c.lora, "NAME=DIR", "adapter to load at start; may be repeated");
    visit("served-model-name", c.served_model_name, "NAME",
          "name of the base model in the API (default: the folder's or file's name)");
    visit("host", c.host, "ADDRESS", "address to listen on");
    visit("port", c.port, "N", "TCP port; 0 takes a free one", Range{0, 65535});
    visit("text-helpers", c.text_helpers, "N",
          "processes in which grammars, schemas and adapters' chat templates of clients are tried first; 0: none, and "
          "such requests are refused",
          Range{0, 64});
    visit("http-threads", c.http_threads, "N",
          "HTTP workers, one for each open request; 0: enough for all that may run or wait, up to "
          "4096",
          Range{0, kHttpThreadsMax});
    visit("body-bytes-max", c.body_bytes_max, "BYTES", "largest request body", Range{1024, 1u << 30});
    visit("tls-cert", c.tls_cert, "FILE", "PEM certificate chain: HTTPS instead of HTTP; with --tls-key");
    visit("tls-key", c.tls_key, "FILE", "PEM key of --tls-cert, without a password");
    visit("max-connections", c.max_connections, "N", "open connections; more are answered 503 and closed",
          Range{16, 65536});
    visit("max-connections-per-address", c.max_connections_per_address, "N",
          "open connections from one IPv4 address or IPv6 /64 network, this machine's own excepted; 0: no limit, and "
          "pools have no shares for addresses",
          Range{0, 65536});
    visit("drain-timeout-s", c.drain_timeout_s, "SECONDS", "how long running requests may finish after SIGTERM",
          Range{0, 86400});
    visit("api-key-file", c.api_key_file, "FILE",
          "keys with what each may do, one JSON object for each line; `lorad key new` makes them");
    visit("api-key", c.api_key, "KEY",
          "one key that may do everything, as with vLLM; better as LORAD_API_KEY or in the file of settings, since "
          "command lines are seen by everybody on this machine");
    visit(
        "insecure-no-keys", c.insecure_no_keys, "",
        "without keys listen also beyond this machine: for containers and networks that keep strangers out themselves");
    visit("metrics-without-key", c.metrics_without_key, "",
          "/metrics asks for no key: for scrapers that can show none; it names all adapters and how much each is used");
    visit("cors-origin", c.cors_origin, "ORIGIN",
          "origin whose pages may call this server from a browser, such as https://app.example, or * for all; may be "
          "repeated");
    visit("admin-listen", c.admin_listen, "HOST:PORT|unix:PATH",
          "another socket, for the routes that change adapters or the server: they are not on the main one then");
    visit("engine-hang-s", c.engine_hang_s, "SECONDS",
          "how long one step may take before the process counts as hung: /health/live fails and a watchdog is not fed; "
          "0: 10, on a "
          "software device 300",
          Range{0, 86400});
    visit("tool-call-parser", c.tool_call_parser, "FORMAT",
          "how the model writes tool calls: hermes (also Qwen), qwen3_xml, llama3_json, mistral, phi4, gemma4, "
          "functiongemma, pythonic or openai "
          "(gpt-oss); auto: as its chat template does",
          tool_call_parsers());
    visit("reasoning-parser", c.reasoning_parser, "FORMAT",
          "think: what stands between <think> and </think> is sent as reasoning_content, not as "
          "content; none: it stays there; thoughts of gpt-oss and Gemma 4 are never content",
          std::vector<std::string>{"none", "think", "qwen3", "deepseek_r1", "gemma4", "openai_gptoss"});
    visit("response-store", c.response_store, "WHERE",
          "where answers of /v1/responses are kept for later requests: off, memory, or state: also in the state "
          "folder, over restarts",
          std::vector<std::string>{"off", "memory", "state"});
    visit("response-store-mib", c.response_store_mib, "MIB",
          "memory, and with `state` disk, for kept responses; the oldest make way", Range{1, 1u << 20});
    visit("response-store-age-s", c.response_store_age_s, "SECONDS", "how long a response is kept",
          Range{1, 4294967295});
    visit("strict", c.strict, "",
          "refuse what would otherwise be ignored and listed in the header x-lorad-ignored-fields: fields that "
          "nobody knows, hints that change nothing, what the chat template does not show to the model");
    visit("device", c.device, "INDEX|NAME",
          "Vulkan device by index or part of its name, see `lorad devices` (default: the best one)");
    visit("kernel-path", c.kernel_path, "PATH", "matrix kernels: auto, portable, coopmat, coopmat2 or warpgroup",
          std::vector<std::string>{"auto", "portable", "coopmat", "coopmat2", "warpgroup"});
    visit("dtype", c.dtype, "TYPE",
          "type of the base model's matrices on the device, and of what is computed with them: float16, bfloat16 or "
          "float32; auto keeps that of the "
          "files, and of quantized ones takes what the model was made in",
          std::vector<std::string>{"auto", "float16", "half", "bfloat16", "float32", "float"});
    visit("quantize", c.quantize, "TYPE",
          "quantizes the matrices of a model in 16 or 32 bits while it is loaded: q8_0, q6_k, q4_k or nf4",
          std::vector<std::string>{"none", "q8_0", "q6_k", "q4_k", "nf4"});
    visit("quantized-weights", c.quantized_weights, "HOW",
          "matrices that the files hold in few bits: keep (so they lie on the device, and are read as they are), "
          "decode (into matrices of 16 bits while they are loaded), "
          "or auto, which decodes on software devices alone",
          std::vector<std::string>{"auto", "keep", "decode"});
    visit("kv-cache-dtype", c.kv_cache_dtype, "TYPE",
          "keys and values in the cache: float16 (auto), or int8 with a scale for each 32, which "
          "nearly doubles the tokens that fit; layers whose biases ask for it keep keys of 16 bits",
          std::vector<std::string>{"auto", "float16", "int8"});
    visit("persistent-decode", c.persistent_decode, "WHEN",
          "all layers of a one-row step in one dispatch, or, behind a long context and for a few rows, what lies "
          "between two attentions; its workgroups wait for each other: auto (where a "
          "trial at the start finds it right and faster), on or off",
          std::vector<std::string>{"auto", "on", "off"});
    visit("batch-invariant", c.batch_invariant, "",
          "one kernel for all batch sizes: a request's output never depends on the others, bit for "
          "bit");
    visit("validation", c.validation, "", "Vulkan validation layers with synchronization checks (slow)");
    visit("pipeline-cache", c.pipeline_cache, "FILE",
          "where compiled pipelines are kept (default: in the user's cache folder)");
    visit("max-model-len", c.max_model_len, "TOKENS", "longest prompt and answer together; 0: the model's own limit",
          Range{0, 1u << 24});
    visit("max-num-seqs", c.max_num_seqs, "N", "requests computed at once", Range{1, 4096});
    visit("max-num-batched-tokens", c.max_num_batched_tokens, "TOKENS",
          "tokens in one step, prompts and answers together", Range{1, 65536});
    visit("gpu-memory-utilization", c.gpu_memory_utilization, "SHARE",
          "share of the device's memory that lorad may use", Range{0.05, 1.0});
    visit("no-prefix-cache", c.no_prefix_cache, "",
          "compute every prompt from its first token on, also where an earlier one began the same");
    visit("state-cache-mib", c.state_cache_mib, "MIB",
          "device memory in which the prefix cache keeps states of models with recurrent state; 0: an eighth of what "
          "keys and values have, and where there is room a state for "
          "each of max-num-seqs",
          Range{0, 1u << 24});
    visit("state-cache-tokens", c.state_cache_tokens, "TOKENS",
          "of a long prompt such a state is kept every so many tokens, beside that at its end", Range{64, 1u << 24});
    visit("num-kv-blocks", c.num_kv_blocks, "N", "KV cache blocks of 64 tokens; 0: as many as memory allows",
          Range{0, 1u << 24});
    visit("max-loras", c.max_loras, "N", "adapters in device memory at once", Range{1, 1000});
    visit("adapter-memory-mib", c.adapter_memory_mib, "MIB",
          "device memory kept for adapters; 0: a tenth of the device's, at most 8 GiB", Range{0, 1u << 20});
    visit("merge-memory-mib", c.merge_memory_mib, "MIB",
          "device memory kept for merged weights, which need as much as the layers that the adapter "
          "changes; 0: none is kept, merging takes what is free",
          Range{0, 1u << 20});
    visit("adapter-root", c.adapter_root, "DIR",
          "folder that adapters may be loaded from at run time (default: any path)");
    visit("adapter-file-mib", c.adapter_file_mib, "MIB", "largest file of an adapter that is uploaded", Range{1, 8192});
    visit("max-queue", c.max_queue, "N", "requests that may wait; more are answered 429", Range{1, 1u << 20});
    visit("max-num-queued-tokens", c.max_num_queued_tokens, "TOKENS",
          "prompt tokens of requests that may wait; more are answered 429; 0: four times what the KV "
          "cache holds",
          Range{0, 4294967295});
    visit("max-request-s", c.max_request_s, "SECONDS",
          "longest time of a request, waiting included; then it ends with what there is; 0: no limit",
          Range{0, 1u << 24});
    visit("starvation-bound-ms", c.starvation_bound_ms, "MS",
          "how long requests may be passed over, by priority or by ones that run on and on, before "
          "one of them takes a place; 0: for ever",
          Range{0, 1u << 30});
    visit("prefill-chunk-tokens", c.prefill_chunk_tokens, "TOKENS",
          "prompt tokens in a step that also generates; 0: as many as keep such a step below 1.7 "
          "times one without prompts",
          Range{0, 65536});
    visit("state-dir", c.state_dir, "DIR|none",
          "where registered adapters are kept over restarts (default: STATE_DIRECTORY, or the user's "
          "state folder, by base model); none: nowhere");
    visit("adapter-ram-mib", c.adapter_ram_mib, "MIB",
          "host memory for adapters that are not on the device; 0: a quarter of the host's", Range{0, 1u << 24});
    visit("adapter-store-mib", c.adapter_store_mib, "MIB", "largest size of all stored adapter files; 0: no limit",
          Range{0, 1u << 24});
    visit("upload-quota-mib", c.upload_quota_mib, "MIB",
          "largest size of the files that a key's tenant has uploaded and made no adapter of; 0: half "
          "of adapter-store-mib, or 16384 without one",
          Range{0, 1u << 24});
    visit("adapter-wait-s", c.adapter_wait_s, "SECONDS",
          "how long a request waits for its adapter's place on the device; then it is answered 429", Range{1, 86400});
    visit("training-jobs", c.training_jobs, "N",
          "fine-tuning jobs of one key that have not ended; 0: this server trains nothing", Range{0, 10000});
    visit("training-together", c.training_together, "N",
          "fine-tuning jobs that run beside each other, in the same steps where they can; 1: one after the other",
          Range{1, 64});
    visit("training-share", c.training_share, "SHARE",
          "share of the device that training has at most while others are served; with nobody served it has all",
          Range{0.0, 0.95});
    visit("training-latency-factor", c.training_latency_factor, "FACTOR",
          "a step of those who are served, with training behind it, takes at most this many times as long",
          Range{1.0, 10.0});
    visit("training-memory-mib", c.training_memory_mib, "MIB",
          "device memory kept for training; 0: none is kept, a job takes what is free when it begins",
          Range{0, 1u << 20});
    visit("training-file-mib", c.training_file_mib, "MIB", "largest training file", Range{1, 1u << 20});
    visit("training-quota-mib", c.training_quota_mib, "MIB", "largest size of all training files of a key's tenant",
          Range{1, 1u << 24});
    visit("training-store-mib", c.training_store_mib, "MIB", "largest size of all training files", Range{1, 1u << 24});
    visit("training-checkpoint-s", c.training_checkpoint_s, "SECONDS",
          "how often a job writes a checkpoint, from which it goes on behind a restart", Range{1, 86400});
    visit("log-level", c.log_level, "LEVEL", "debug, info, warn or error",
          std::vector<std::string>{"debug", "info", "warn", "error"});
    visit("log-format", c.log_format, "FORMAT",
          "text, or json: one object for each line; prompts and answers are never logged",
          std::vector<std::string>{"text", "json"});
}

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

// Reads one value into the field it belongs to.
struct Assign {
    const ConfigSource::Value& value;
    std::optional<Error> error;
    bool found = false;

    bool mine(std::string_view name) {
        if (name != value.option) return false;
        found = true;
        if (value.texts.empty()) error = bad_value(value, "a value");
        return !error;
    }
    void operator()(const char* name, std::string& field, const char*, const char*,
                    const std::vector<std::string>& choices = {}) {
        if (!mine(name)) return;
        const std::string& text = value.texts.back();
        if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end()) {
            error = bad_value(value, format("one of {}", fmt::join(choices, ", ")));
            return;
        }
        field = text;
    }
    void operator()(const char* name, std::vector<std::string>& field, const char*, const char*) {
        if (mine(name)) field = value.texts;
    }
    void operator()(const char* name, bool& field, const char*, const char*) {
        if (!mine(name)) return;
        const std::string& text = value.texts.back();
        if (text == "true" || text == "1") {
            field = true;
        } else if (text == "false" || text == "0") {
            field = false;
        } else {
            error = bad_value(value, "true or false");
        }
    }
    void operator()(const char* name, uint32_t& field, const char*, const char*, Range range) {
        if (!mine(name)) return;
        uint64_t number = 0;
        if (!parse_number(value.texts.back(), number) || double(number) < range.min || double(number) > range.max) {
            error = bad_value(value, format("a whole number from {} to {}", uint64_t(range.min), uint64_t(range.max)));
            return;
        }
        field = uint32_t(number);
    }
    void operator()(const char* name, double& field, const char*, const char*, Range range) {
        if (!mine(name)) return;
        double number = 0;
        if (!parse_number(value.texts.back(), number) || !(number >= range.min && number <= range.max)) {
            error = bad_value(value, format("a number from {} to {}", range.min, range.max));
            return;
        }
        field = number;
    }
};

struct ListOptions {
    std::vector<ConfigOption>& out;

    void operator()(const char* name, std::string& field, const char* value, const char* help,
                    const std::vector<std::string>& choices = {}) {
        out.push_back({name, value, help, field, false, false, true, choices});
    }
    void operator()(const char* name, std::vector<std::string>&, const char* value, const char* help) {
        out.push_back({name, value, help, "", true, false, true});
    }
    void operator()(const char* name, bool&, const char*, const char* help) {
        out.push_back({name, "", help, "", false, true});
    }
    template <typename Number>
    void operator()(const char* name, Number& field, const char* value, const char* help, Range) {
        out.push_back({name, value, help, format("{}", field), false, false});
    }
};

// The fields themselves, by name.
using Field = std::variant<std::string*, std::vector<std::string>*, bool*, uint32_t*, double*>;
struct ListFields {
    std::vector<std::pair<std::string, Field>>& out;

    template <typename T, typename... Rest>
    void operator()(const char* name, T& field, const Rest&...) {
        out.emplace_back(name, &field);
    }
};
std::vector<std::pair<std::string, Field>> fields_of(Config& config) {
    std::vector<std::pair<std::string, Field>> fields;
    describe(config, ListFields{fields});
    return fields;
}

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
    Config defaults;
    std::vector<ConfigOption> options;
    describe(defaults, ListOptions{options});
    return options;
}

std::vector<std::string> differing_settings(Config a, Config b) {
    std::vector<std::string> names;
    const auto of_a = fields_of(a), of_b = fields_of(b);
    for (size_t i = 0; i < of_a.size(); ++i) {
        std::visit(
            [&](auto* field) {
                if (*field != *std::get<decltype(field)>(of_b[i].second)) names.push_back(of_a[i].first);
            },
            of_a[i].second);
    }
    return names;
}

void copy_setting(const std::string& name, Config from, Config& to) {
    const auto sources = fields_of(from), targets = fields_of(to);
    for (size_t i = 0; i < sources.size(); ++i) {
        if (sources[i].first != name) continue;
        std::visit([&](auto* field) { *std::get<decltype(field)>(targets[i].second) = *field; }, sources[i].second);
    }
}

Config build_config(const std::vector<ConfigSource>& sources, std::vector<Error>& errors) {
    Config config;
    for (const ConfigSource& source : sources) {
        for (const ConfigSource::Value& value : source.values) {
            Assign assign{value, std::nullopt};
            describe(config, assign);
            if (!assign.found) {
                errors.push_back(
                    make_error(ErrorCode::kInvalidConfig, format("{}: no such setting", value.place), value.option));
            } else if (assign.error) {
                errors.push_back(*assign.error);
            }
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
