#include "model/files/model_files.h"

#include "model/files/files.h"
#include "model/files/model_folder.h"
#include "model/files/tensor_map.h"
#include "model/gguf/gguf_model.h"
#include "model/quant/quantized_folder.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& file) {
    std::error_code ignored;
    return fs::exists(file, ignored);
}

class FolderFiles final : public ModelFiles {
  public:
    explicit FolderFiles(fs::path folder) : folder_(std::move(folder)) {}

    Status check_kind() const override { return check_model_folder(folder_); }
    Result<ModelConfig> config() const override { return load_model_config(folder_); }
    Result<TensorFiles> tensors() const override {
        TRY_ASSIGN(const ModelConfig config, load_model_config(folder_));
        TRY_ASSIGN(TensorFiles files, map_quantized_folder(folder_, config.quantization));
        return map_tensors(std::move(files), config);
    }
    Result<std::shared_ptr<const Tokenizer>> tokenizer() const override {
        if (!is_there(folder_ / "tokenizer.json")) return std::shared_ptr<const Tokenizer>();
        return Tokenizer::load(folder_);
    }
    Result<std::shared_ptr<const ChatTemplate>> chat_template() const override { return ChatTemplate::load(folder_); }
    Result<TokenizerConfig> tokenizer_config() const override {
        TokenizerConfig config;
        TRY_ASSIGN(config.json, text_of("tokenizer_config.json"));
        TRY_ASSIGN(config.chat_template, text_of("chat_template.jinja"));
        return config;
    }
    std::string tokenizer_kind() const override { return "tokenizer.json"; }

  private:
    // Empty where it is not there.
    Result<std::string> text_of(const char* name) const {
        constexpr uint64_t kBytesMax = 16 << 20;
        if (!is_there(folder_ / name)) return std::string();
        return read_text_file(folder_ / name, kBytesMax, ErrorCode::kInvalidModel);
    }

    fs::path folder_;
};

class GgufFiles final : public ModelFiles {
  public:
    GgufFiles(std::string name, GgufModel model) : name_(std::move(name)), model_(std::move(model)) {}

    Status check_kind() const override { return ok_status(); }
    Result<ModelConfig> config() const override { return model_.config(); }
    Result<TensorFiles> tensors() const override { return model_.tensors(); }
    Result<std::shared_ptr<const Tokenizer>> tokenizer() const override {
        TRY_ASSIGN(const std::string json, model_.tokenizer_json());
        if (json.empty()) return std::shared_ptr<const Tokenizer>();
        return Tokenizer::from_json(json, name_);
    }
    Result<std::shared_ptr<const ChatTemplate>> chat_template() const override {
        TRY_ASSIGN(const GgufChat chat, model_.chat());
        return ChatTemplate::from_sources(chat.templates, chat.tokens_json);
    }
    Result<TokenizerConfig> tokenizer_config() const override {
        TRY_ASSIGN(GgufChat chat, model_.chat());
        TokenizerConfig config{std::move(chat.tokens_json), {}};
        for (const NamedTemplate& one : chat.templates) {
            if (one.name == kDefaultTemplate) config.chat_template = one.source;
        }
        return config;
    }
    std::string tokenizer_kind() const override { return model_.tokenizer_kind(); }

  private:
    std::string name_;
    GgufModel model_;
};

}  // namespace

Result<std::unique_ptr<const ModelFiles>> ModelFiles::open(const fs::path& model) {
    std::error_code ignored;
    fs::path gguf;
    if (fs::is_directory(model, ignored)) {
        const bool has_safetensors =
            is_there(model / "model.safetensors") || is_there(model / "model.safetensors.index.json");
        if (!has_safetensors) {
            TRY_ASSIGN(gguf, gguf_in_folder(model));
        }
    } else if (fs::is_regular_file(model, ignored) && is_gguf_path(model)) {
        gguf = model;
    }
    if (gguf.empty()) return std::unique_ptr<const ModelFiles>(std::make_unique<FolderFiles>(model));
    TRY_ASSIGN(GgufModel read, GgufModel::open(gguf));
    return std::unique_ptr<const ModelFiles>(std::make_unique<GgufFiles>(gguf.filename().string(), std::move(read)));
}

std::string served_name_of(const fs::path& model) {
    std::error_code error;
    // not what a link points to: caches name their files by digests
    if (fs::is_regular_file(model, error)) return gguf_model_name(model);
    fs::path path = fs::weakly_canonical(model, error);
    if (error) path = model;
    return path.filename().empty() ? path.parent_path().filename().string() : path.filename().string();
}

}  // namespace lorad::model
