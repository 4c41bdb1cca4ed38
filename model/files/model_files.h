// The source of a base model: a Hugging Face folder, or a GGUF file. A loader asks here and need not know which it is.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "model/config/config.h"
#include "model/files/safetensors.h"
#include "model/text/text.h"
#include "proto/base/result.h"

namespace lorad::model {

// Immutable, so any thread. Every call reads the files anew; errors are kInvalidModel.
class ModelFiles {
  public:
    // `model`: a Hugging Face folder; a .gguf file, any one of a split set; or a folder that holds one such model and
    // no safetensors. A folder is not read yet: each part is read, and refused, when it is asked for. A GGUF file is
    // read and checked except for its weights and text.
    static Result<std::unique_ptr<const ModelFiles>> open(const std::filesystem::path& model);
    virtual ~ModelFiles() = default;

    // kInvalidModel says what the path is instead of a model, and what to give. Does not look inside.
    virtual Status check_kind() const = 0;
    virtual Result<ModelConfig> config() const = 0;
    // Mapped; sources of packed matrices read the mapping, so this outlives them.
    virtual Result<TensorFiles> tensors() const = 0;
    // Null: there is none, prompts are token ids.
    virtual Result<std::shared_ptr<const Tokenizer>> tokenizer() const = 0;
    virtual Result<std::shared_ptr<const ChatTemplate>> chat_template() const = 0;

    // The tokenizer's configuration, in the form of tokenizer_config.json, and the chat template if it is a file of its
    // own; either may be empty.
    struct TokenizerConfig {
        std::string json, chat_template;
    };
    virtual Result<TokenizerConfig> tokenizer_config() const = 0;
    // The tokenizer's kind, for reports: "tokenizer.json", "gpt2 (qwen2)".
    virtual std::string tokenizer_kind() const = 0;
};

// The default name under which clients ask for it: the folder's own name, also for "models/qwen/" and ".", or the
// file's without its extension.
std::string served_name_of(const std::filesystem::path& model);

}  // namespace lorad::model
