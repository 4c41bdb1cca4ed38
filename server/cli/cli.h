// The subcommands of lorad. main.cpp reads the command line into these structs; an Error becomes
// one line on stderr and one of these exit statuses.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "proto/base/result.h"
#include "proto/generate/sampling_params.h"
#include "server/config.h"
#include "server/loaded_model.h"

namespace lorad::server {

inline constexpr int kExitError = 1;
inline constexpr int kExitDeviceLost = 75;  // EX_TEMPFAIL of sysexits.h: started again, it may well serve

// Serves until SIGTERM or SIGINT, then drains; on SIGHUP takes what `read_again` gives, as far as it can be changed
// while serving. A device that gives up is an error.
Status run_serve(const Config& config, const std::function<Result<Config>()>& read_again);

// A table of all Vulkan devices with capabilities and the verdict on each.
Status run_devices(const DeviceArguments& device, bool as_json);

struct KeyArguments {
    std::string id;
    std::vector<std::string> scopes;
    std::vector<std::string> adapters;                          // patterns; empty: all
    std::string tenant;                                         // empty: the id
    std::string expires;                                        // empty: never
    uint32_t requests_per_minute = 0, max_queued_requests = 0;  // 0: no limit
    uint64_t tokens_per_minute = 0, max_queued_tokens = 0;
    int32_t priority_min = 0;  // lower ones, which come earlier, are not for this key
    std::string prefix;        // of the key; empty: lorad's
    std::string file;          // the entry is appended to it; empty: it is printed
};
// Makes a key and prints it, this once.
Status run_key_new(const KeyArguments& arguments);
// Says whose keys are in the file, or what is wrong with it.
Status run_key_check(const std::string& file);

// Arguments that logits, generate and profile share.
struct ModelArguments {
    std::string model;
    std::vector<std::string> adapters;  // "PATH" or "PATH@SCALE"; their sum, at most kLoraUsesMax
    DeviceArguments device;
    std::string kernel_path = "auto";
    std::string tune = "remembered";
    std::string dtype = "auto";
    std::string quantize = "none";
    std::string quantized_weights = "auto";
    std::string kv_cache_dtype = "auto";
    std::string persistent_decode = "auto";
    bool batch_invariant = false;
};

struct LogitsArguments {
    ModelArguments model;
    std::string tokens;  // "1,2,3", or a file with ids between commas, spaces or line ends
    std::string out;     // .npy
    bool all_positions = false;
};
Status run_logits(const LogitsArguments& arguments);

struct GenerateArguments {
    ModelArguments model;
    std::string prompt;
    std::string tokens;  // instead of prompt
    uint32_t max_tokens = 64;
    bool ignore_eos = false;
    proto::SamplingParams sampling = {.temperature = 0.0f};
    bool as_json = false;
};
Status run_generate(const GenerateArguments& arguments);

struct CheckArguments {
    std::string model;                 // empty: the configuration's
    std::string adapter;               // folder or file; empty: the configuration's adapters
    std::string config;                // file; empty: none is asked for
    std::vector<uint32_t> memory_gib;  // sizes of cards that the model should fit; empty: not checked
    bool as_json = false;
};
// With sizes of cards: shows the model's memory on each, and the flags that it needs to fit; true if it fits all. With
// an adapter: shows what it is and what does not fit. Else: checks if `lorad serve` would get as far as the device with
// this configuration, and why not, a line for each part. Needs no device and serves nothing. True if all is well.
Result<bool> run_check(const CheckArguments& arguments);

// Does the same for the model and the settings of a configuration; writes a table, or JSON.
Result<bool> check_memory(const Config& config, const std::vector<uint32_t>& sizes_gib, bool as_json);

struct QuantizeArguments {
    std::string model, type, out;
};
// Writes the model as a quantized GGUF file, and says on stderr how far it is.
Status run_quantize(const QuantizeArguments& arguments);

struct ProfileArguments {
    ModelArguments model;
    uint32_t n_rows = 1;
    uint32_t n_context = 256;
    uint32_t n_repeats = 20;
    bool prompt = false;                                  // the rows are one prompt's, not those of decoding sequences
    proto::SamplingParams sampling{.temperature = 0.0f};  // for decode rows
    bool plan = false;                                    // says how the step is computed, and runs nothing
    bool as_json = false;
};
Status run_profile(const ProfileArguments& arguments);

}  // namespace lorad::server
