#include "model/files/model_folder.h"

#include <string>
#include <string_view>

#include "model/files/files.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kConfigFileBytesMax = 16 << 20;
constexpr std::string_view kModelFolder =
    "a Hugging Face model folder with config.json, tokenizer.json and safetensors files, or a GGUF file";

bool has_entry(const fs::path& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}

Error not_a_model(const fs::path& path, std::string_view what) {
    return make_error(ErrorCode::kInvalidModel, format("{}: {}", path.string(), what));
}

Error single_file(const fs::path& file) {
    if (file.extension() == ".safetensors")
        return not_a_model(file, format("one file of weights; expected {}: the folder that it lies in", kModelFolder));
    return not_a_model(file, format("a file; expected {}", kModelFolder));
}

std::string_view text_or_nothing(const JsonValue& object, std::string_view key) {
    const auto value = object.find(key);
    if (!value || !value->is_string()) return {};
    const auto text = value->as_string();
    return text.ok() ? *text : std::string_view();
}

// An adapter's folder as the model; its base is named where the adapter tells it.
Error adapter_folder(const fs::path& folder, const fs::path& config) {
    std::string base = "its base model";
    const auto text = read_text_file(config, kConfigFileBytesMax, ErrorCode::kInvalidModel);
    if (text.ok()) {
        const auto json = parse_json(*text, {.allow_duplicate_keys = true});
        const std::string_view name =
            json.ok() ? text_or_nothing(json->root(), "base_model_name_or_path") : std::string_view();
        if (!name.empty()) base = format("its base model ({})", json_quote_short(name));
    }
    return not_a_model(
        folder,
        format("a LoRA adapter; give {} as the model, and this folder as --lora NAME=DIR or --adapter DIR", base));
}

}  // namespace

Status check_model_folder(const fs::path& folder) {
    std::error_code ignored;
    const fs::file_status status = fs::status(folder, ignored);
    if (!fs::exists(status)) return not_a_model(folder, format("no such folder or file; expected {}", kModelFolder));
    if (!fs::is_directory(status)) return single_file(folder);
    if (has_entry(folder / "config.json")) return ok_status();
    if (has_entry(folder / "adapter_config.json")) return adapter_folder(folder, folder / "adapter_config.json");
    if (has_entry(folder / "model_index.json"))
        return not_a_model(folder, format("a pipeline for images; expected {}", kModelFolder));
    if (has_entry(folder / "params.json"))
        return not_a_model(
            folder, format("a model in its maker's own form (params.json, no config.json); expected {}", kModelFolder));
    return make_error(ErrorCode::kInvalidModel,
                      format("config.json: no such file in {}; expected {}", folder.string(), kModelFolder));
}

}  // namespace lorad::model
