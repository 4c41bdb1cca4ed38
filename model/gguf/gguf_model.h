// A base model in GGUF: one file, or the files of a split set (NAME-00001-of-00003.gguf and so on, as llama.cpp's
// gguf-split makes them).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/files/mapped_file.h"
#include "model/files/safetensors.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_names.h"
#include "model/gguf/gguf_tokenizer.h"
#include "proto/base/result.h"

namespace lorad::model {

// Returns true if the file's first bytes are GGUF's, or its name says so.
bool is_gguf_path(const std::filesystem::path& file);
// The one GGUF model that a folder holds, or the first file of its split set; adapters and parts for pictures beside it
// are passed over. Empty:
// the folder holds no GGUF file. kInvalidModel where it holds several models: the message names them.
Result<std::filesystem::path> gguf_in_folder(const std::filesystem::path& folder);
// The model's name: the file's without ".gguf" and "-00001-of-00003".
std::string gguf_model_name(const std::filesystem::path& file);

// Immutable, so any thread. All errors are kInvalidModel and begin with the file's name.
class GgufModel {
  public:
    // Maps the files and checks all that their fields say of the model; of a split set `path` is any file.
    static Result<GgufModel> open(const std::filesystem::path& path);

    const ModelConfig& config() const { return config_; }
    const GgufFile& file() const { return file_; }  // fields of the first file, tensors of all
    // Checked by name, shape and type; they keep the files mapped.
    Result<TensorFiles> tensors() const;
    // See gguf_tokenizer.h.
    Result<std::string> tokenizer_json() const;
    std::string tokenizer_kind() const { return model::tokenizer_kind(file_); }
    Result<GgufChat> chat() const;

  private:
    GgufModel() = default;
    Status read_files(const std::filesystem::path& path);
    template <typename T>
    Result<T> named(Result<T> result) const;

    std::string name_;  // of the file that was given
    std::vector<std::shared_ptr<const MappedFile>> files_;
    GgufFile file_;  // fields of the first file, tensors of all
    const GgufArchitecture* architecture_ = nullptr;
    ModelConfig config_;
};

}  // namespace lorad::model
