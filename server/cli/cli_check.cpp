#include <cstdio>
#include <filesystem>
#include <fstream>

#include "adapters/plan/report.h"
#include "model/config/config.h"
#include "model/exec/kv_groups.h"
#include "model/exec/state_cache.h"
#include "model/files/model_files.h"
#include "model/weights/weights.h"
#include "proto/base/format.h"
#include "proto/error.h"
#include "proto/json/json.h"
#include "server/access/exposure.h"
#include "server/access/key_store.h"
#include "server/cli/cli.h"

namespace lorad::server {
namespace {

// One line for each part of what serving needs, and whether it is well.
class Findings {
  public:
    void well(const std::string& what, const std::string& text) {
        std::printf("ok    %s: %s\n", what.c_str(), text.c_str());
    }
    void bad(const std::string& what, const Error& error) {
        all_well_ = false;
        std::printf("error %s: %s\n", what.c_str(), proto::error_message(error).c_str());
    }
    bool all_well() const { return all_well_; }

  private:
    bool all_well_ = true;
};

Result<Config> read_config(const std::string& file) {
    TRY_ASSIGN(const std::vector<ConfigSource> sources, config_from_file_and_environment(file));
    return build_config(sources);
}

// Reads as much of the settings as it can, and collects all that is wrong with them.
Config read_config(const std::string& file, std::vector<Error>& errors) {
    Result<std::vector<ConfigSource>> sources = config_from_file_and_environment(file, &errors);
    if (sources.ok()) return build_config(*sources, errors);
    errors.push_back(sources.error());
    return {};
}

void check_folder(const std::string& what, const std::string& folder, Findings& findings) {
    if (folder.empty() || folder == "none") return;
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(folder, error);
    // The state folder is made where it is not there.
    if (std::filesystem::exists(status) && !std::filesystem::is_directory(status)) {
        findings.bad(what, make_error(ErrorCode::kInvalidConfig, format("{} is no folder", folder)));
    } else {
        findings.well(what, folder);
    }
}

void check_file(const std::string& what, const std::string& file, Findings& findings) {
    if (file.empty()) return;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(file, ignored) && std::ifstream(file).good()) {
        findings.well(what, file);
    } else {
        findings.bad(what, make_error(ErrorCode::kInvalidConfig, format("{}: expected a file that can be read", file)));
    }
}

void check_adapters(const std::vector<LoraArgument>& adapters, const Result<adapters::BaseModel>& base,
                    Findings& findings) {
    std::error_code ignored;
    for (const LoraArgument& adapter : adapters) {
        const std::string what = "adapter " + adapter.name;
        if (!base.ok()) {
            if (!std::filesystem::exists(adapter.dir, ignored))
                findings.bad(what, make_error(ErrorCode::kAdapterNotFound,
                                              format("{}: there is no such adapter folder", adapter.dir)));
            continue;
        }
        const adapters::AdapterReport report = adapters::inspect_adapter(adapter.dir, *base);
        if (report.fits()) {
            findings.well(what, format("rank {} to {}, {} bytes on the device", report.rank_min, report.rank_max,
                                       report.device_bytes));
        } else {
            findings.bad(what, *report.error);
        }
    }
}

// Checks an adapter's end token, whose id only the tokenizer knows.
void check_end_token(const std::string& folder, adapters::AdapterReport& report) {
    if (report.ends.token.empty()) return;
    const auto files = model::ModelFiles::open(folder);
    if (!files.ok()) return;
    const Result<std::shared_ptr<const model::Tokenizer>> tokenizer = (*files)->tokenizer();
    if (!tokenizer.ok() || !*tokenizer || (*tokenizer)->token_id(report.ends.token)) return;
    report.warnings.push_back(
        format("{}: the base's vocabulary has no token {}, the adapter's eos_token: it ends nothing",
               adapters::kTokenizerConfigFile, json_quote_short(report.ends.token)));
}

void check_text(const model::ModelFiles& files, Findings& findings) {
    const auto tokenizer = files.tokenizer();
    if (!tokenizer.ok()) return findings.bad("tokenizer", tokenizer.error());
    if (!*tokenizer) return findings.well("tokenizer", "none: requests have to bring token ids");
    findings.well("tokenizer", format("{}, {} tokens", files.tokenizer_kind(), (*tokenizer)->vocab_size()));
    const auto chat_template = files.chat_template();
    if (!chat_template.ok()) return findings.bad("chat template", chat_template.error());
    findings.well("chat template",
                  (*chat_template)->exists() ? "loaded" : "none: chats are refused, prompts are completed");
}

// Reports the formats of a quantized model's matrices on the device, with their bytes.
void check_device_formats(const model::ModelFiles& files, const model::ModelConfig& config, Findings& findings) {
    const auto tensors = files.tensors();
    if (!tensors.ok()) return findings.bad("on the device", tensors.error());
    model::ModelWeights weights;
    const auto loader = model::WeightLoader::create(*tensors, config, weights);
    if (!loader.ok()) return findings.bad("on the device", loader.error());
    findings.well("on the device",
                  format("{}; {} bytes in all", model::describe_formats(weights), (*loader)->device_bytes()));
}

// The bytes that a text takes beside the weights: for each token, for the last ones that some layers see, and of fixed
// size.
std::string memory_of_texts(const model::ModelConfig& config) {
    const model::KvGroups groups = model::KvGroups::of(config);
    const auto token_bytes = [&](bool of_windows) {
        return groups.block_bytes(config, {}, of_windows) / model::kBlockTokens;
    };
    std::string text = format("{} bytes for each token of a text in f16", token_bytes(false));
    if (groups.has_windows()) text += format(", {} for each of its last {}", token_bytes(true), groups.window);
    if (model::has_state(config)) text += format("; a state of {} bytes", model::state_slot_bytes(config));
    return text;
}

void check_model(const std::string& folder, const std::vector<LoraArgument>& adapters, Findings& findings) {
    const auto files = model::ModelFiles::open(folder);
    const Result<adapters::BaseModel> base = adapters::BaseModel::load(folder);
    if (base.ok()) {
        const model::ModelConfig& config = base->config;
        findings.well("model", format("{}: {} layers, hidden size {}, {} tokens", folder, config.n_layers,
                                      config.hidden_size, config.vocab_size));
        const std::string method = config.quantization.summary();
        findings.well("weights", format("{}{}{}{}", method, method.empty() ? "" : ": ", base->formats.text(),
                                        config.quantization.note.empty() ? "" : "; " + config.quantization.note));
        findings.well("keys and values", memory_of_texts(config));
        if (files.ok() && base->formats.is_quantized) check_device_formats(**files, config, findings);
    } else {
        findings.bad("model", base.error());
    }
    if (files.ok() && (base.ok() || (*files)->check_kind().ok())) check_text(**files, findings);
    check_adapters(adapters, base, findings);
}

bool check_serving(const CheckArguments& arguments) {
    Findings findings;
    std::vector<Error> errors;
    const Config config = read_config(arguments.config, errors);
    for (const Error& error : errors) findings.bad("configuration", error);
    if (errors.empty()) findings.well("configuration", arguments.config.empty() ? "environment" : arguments.config);
    const Result<std::vector<LoraArgument>> adapters = lora_arguments(config);
    const std::string folder = arguments.model.empty() ? config.model : arguments.model;
    if (!folder.empty()) {
        check_model(folder, adapters.ok() ? *adapters : std::vector<LoraArgument>(), findings);
    } else if (errors.empty()) {  // else what is wrong may be the line that was to name it
        findings.bad("model", make_error(ErrorCode::kInvalidConfig,
                                         "none is named: --model DIR, LORAD_MODEL or model = in the file"));
    }
    if (has_keys(config)) {
        Result<std::unique_ptr<access::KeyStore>> keys =
            access::KeyStore::create({.file = config.api_key_file, .full_key = config.api_key});
        if (keys.ok()) {
            findings.well("keys", format("{}", (*keys)->n_keys()));
        } else {
            findings.bad("keys", keys.error());
        }
    }
    const access::Exposure exposure{.host = config.host,
                                    .admin_listen = config.admin_listen,
                                    .has_keys = has_keys(config),
                                    .insecure_no_keys = config.insecure_no_keys};
    if (const Status exposed = access::check_exposure(exposure); !exposed.ok() && !config.host.empty())
        findings.bad("host", exposed.error());
    check_file("tls-cert", config.tls_cert, findings);
    check_file("tls-key", config.tls_key, findings);
    check_folder("adapter-root", config.adapter_root, findings);
    check_folder("state-dir", config.state_dir.empty() ? default_state_dir() : config.state_dir, findings);
    return findings.all_well();
}

}  // namespace

Result<bool> run_check(const CheckArguments& arguments) {
    if (!arguments.memory_gib.empty()) {
        Config config;
        if (!arguments.config.empty()) {
            TRY_ASSIGN(config, read_config(arguments.config));
        }
        if (!arguments.model.empty()) config.model = arguments.model;
        if (config.model.empty())
            return make_error(ErrorCode::kInvalidConfig,
                              "check --memory-gib needs --model DIR or a configuration that names one");
        return check_memory(config, arguments.memory_gib, arguments.as_json);
    }
    if (arguments.adapter.empty()) return check_serving(arguments);
    std::string folder = arguments.model;
    if (folder.empty()) {
        TRY_ASSIGN(const Config config, read_config(arguments.config));
        folder = config.model;
    }
    if (folder.empty())
        return make_error(ErrorCode::kInvalidConfig,
                          "check --adapter needs --model DIR or a configuration that names one");
    TRY_ASSIGN(const adapters::BaseModel base, adapters::BaseModel::load(folder));
    adapters::AdapterReport report = adapters::inspect_adapter(arguments.adapter, base);
    check_end_token(folder, report);
    if (arguments.as_json) {
        std::printf("%s\n", adapters::report_json(report).c_str());
    } else {
        std::fputs(adapters::report_text(report).c_str(), stdout);
    }
    return report.fits();
}

}  // namespace lorad::server
