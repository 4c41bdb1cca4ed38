// Every setting of lorad, declared once: the table in config_table.cpp gives each field its flag, its
// LORAD_* variable, its key in a TOML file, its range and its help text. Flags win over the
// environment, that over the file, that over the default. An error names the place the value came
// from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad::server {

struct LoraArgument {
    std::string name;
    std::string dir;
};

inline constexpr uint32_t kHttpThreadsMax = 4096;

struct Config {
    std::string model;
    std::vector<std::string> lora;  // NAME=DIR, as given; see lora_arguments()
    std::string served_model_name;  // empty: the model folder's name

    std::string host = "127.0.0.1";
    uint32_t port = 8080;       // 0: any free port
    uint32_t text_helpers = 2;  // 0: none, and no grammars
    uint32_t http_threads = 0;  // 0: one for each request that may run or wait, and some
    uint32_t body_bytes_max = 16u << 20;
    std::string tls_cert, tls_key;  // PEM files; empty: plain HTTP
    uint32_t max_connections = 4096;
    uint32_t max_connections_per_address = 256;  // 0: no limit
    uint32_t drain_timeout_s = 30;
    uint32_t engine_hang_s = 0;  // 0: by device

    std::string api_key_file;       // access/key_file.h; empty: none
    std::string api_key;            // one key for everything; empty: none
    bool insecure_no_keys = false;  // listens beyond loopback without keys
    bool metrics_without_key = false;
    std::vector<std::string> cors_origin;  // see cors_origins() in http/cors.h; none: no page of another origin
    std::string admin_listen;              // HOST:PORT or unix:PATH; empty: administration is on the main listener

    std::string tool_call_parser = "auto";  // a format's name
    std::string reasoning_parser = "none";  // or think
    std::string response_store = "off";     // off, memory, state
    uint32_t response_store_mib = 256;
    uint32_t response_store_age_s = 2592000;
    bool strict = false;  // refuses what would else be ignored and listed in a header

    std::string device;                      // empty: the best one
    std::string kernel_path = "auto";        // auto, portable-f32, portable, coopmat, coopmat2, warpgroup
    std::string persistent_decode = "auto";  // auto, on, off
    bool batch_invariant = false;
    bool validation = false;
    std::string pipeline_cache;            // empty: in the user's cache folder, by device
    std::string self_test = "remembered";  // or always
    std::string tune = "remembered";       // always, off
    uint32_t submission_ms = 500;          // 0: no bound

    uint32_t max_model_len = 0;  // 0: the model's own
    uint32_t max_num_seqs = 64;
    uint32_t max_num_batched_tokens = 2048;
    double gpu_memory_utilization = 0.9;
    bool no_prefix_cache = false;
    uint32_t state_cache_mib = 0;  // 0: by what keys and values have
    uint32_t state_cache_tokens = 4096;
    std::string dtype = "auto";              // auto, float16, bfloat16, float32
    std::string quantize = "none";           // none, q8_0, q6_k, q4_k, nf4
    std::string quantized_weights = "auto";  // auto, keep, decode
    std::string kv_cache_dtype = "auto";     // auto, float16, int8
    uint32_t num_kv_blocks = 0;              // 0: from the memory that is left
    uint32_t max_loras = 64;
    uint32_t adapter_memory_mib = 0;   // 0: a tenth of the device's memory, at most 8 GiB
    uint32_t merge_memory_mib = 0;     // 0: what is free when it is asked for
    std::string adapter_root;          // folder that loads may read from; empty: any
    uint32_t adapter_file_mib = 8192;  // largest uploaded file
    uint32_t max_queue = 256;
    uint32_t max_num_queued_tokens = 0;  // 0: four times what the KV cache holds
    uint32_t max_request_s = 0;          // 0: no limit
    uint32_t starvation_bound_ms = 10000;
    uint32_t prefill_chunk_tokens = 0;  // 0: by what steps take

    std::string state_dir;           // empty: default_state_dir(); "none": nothing is kept
    uint32_t adapter_ram_mib = 0;    // 0: a quarter of the host's memory
    uint32_t adapter_store_mib = 0;  // 0: no limit
    uint32_t upload_quota_mib = 0;   // per tenant, files without an adapter; 0: half of the store, or 16 GiB
    uint32_t adapter_wait_s = 60;

    double training_share = 0.5;            // of the device's time while others are served
    double training_latency_factor = 1.25;  // the most that a step may slow down with training behind it
    uint32_t training_memory_mib = 0;       // 0: what is free when a job begins
    uint32_t training_file_mib = 512;
    uint32_t training_store_mib = 32768;    // files of all
    uint32_t training_quota_mib = 4096;     // files of a tenant
    uint32_t training_jobs = 4;             // per tenant, not ended; 0: nothing is trained
    uint32_t training_together = 4;         // jobs that run beside each other
    uint32_t training_models = 2;           // per tenant, that are trained by calls; 0: none
    uint32_t training_model_tokens = 4096;  // of a sequence of these
    uint32_t training_idle_s = 1800;        // without a call such a model ends
    uint32_t training_checkpoint_s = 120;

    std::string log_level = "info";
    std::string log_format = "text";
};

// One setting as the command line, the file and the environment see it.
struct ConfigOption {
    std::string name;        // "max-num-seqs": --max-num-seqs, LORAD_MAX_NUM_SEQS, max_num_seqs = in TOML
    std::string value_name;  // for --help; empty for switches
    std::string help;
    std::string default_text;
    bool repeatable = false;
    bool is_switch = false;
    bool is_text = false;  // a string in TOML, not a number
    std::vector<std::string> choices = {};
};
std::vector<ConfigOption> config_options();
std::string toml_key(std::string option_name);

// Names of the settings in which they differ.
std::vector<std::string> differing_settings(const Config& a, const Config& b);
void copy_setting(const std::string& name, const Config& from, Config& to);

// Values by option name, as text; repeatable options have several.
struct ConfigSource {
    struct Value {
        std::string option;
        std::vector<std::string> texts;
        std::string place;  // "--port", "LORAD_PORT" or "lorad.toml: port"
    };
    std::vector<Value> values;
};

// Later sources win. Checks types, ranges and what must be there for serving; the error is the first of all that there
// are.
Result<Config> build_config(const std::vector<ConfigSource>& sources);
// The same, with everything that is wrong; the settings that are well have their values.
Config build_config(const std::vector<ConfigSource>& sources, std::vector<Error>& errors);
// "; did you mean max_num_seqs?", or nothing.
std::string did_you_mean(std::string_view name, std::span<const std::string> names);

// LORAD_* of this process. An unknown LORAD_* variable is most likely a misspelt one and gets a
// warning.
Result<ConfigSource> config_from_environment();
// With `errors`, errors in single keys go there, and the other keys are read; without, the first one is returned.
Result<ConfigSource> config_from_file(const std::string& path, std::vector<Error>* errors = nullptr);
// The sources that every command has: the file (empty: the one that LORAD_CONFIG names, if any), then the environment.
Result<std::vector<ConfigSource>> config_from_file_and_environment(const std::string& file,
                                                                   std::vector<Error>* errors = nullptr);

Result<std::vector<LoraArgument>> lora_arguments(const Config& config);
inline bool has_keys(const Config& config) { return !config.api_key_file.empty() || !config.api_key.empty(); }

// The default folder for compiled pipelines and what tests at the start have shown; empty without a home folder.
std::string default_cache_folder();
// The default folder for registered adapters: systemd's STATE_DIRECTORY, or a folder of the user; empty without a home
// folder.
std::string default_state_dir();
// The environment of a helper process (server/sandbox): where libraries are, and the time zone. No settings, and no
// keys.
std::vector<std::string> helper_environment();

}  // namespace lorad::server
