// The base model that adapters are compared with: its config, and the parts of its weights that a check needs.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/config.h"
#include "model/files/safetensors.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// Safetensors metadata and GGUF fields under which an adapter may record its base: base_fingerprint() of the folder.
inline constexpr std::string_view kFingerprintKey = "lorad.base_fingerprint";

struct TableComparison {
    enum class Kind : uint8_t {
        kSame,
        kRounded,  // the base's numbers but for rounding: what is left of them when the base was loaded in another type
        kOther,
    };
    Kind kind = Kind::kOther;
    uint64_t n_different = 0;  // numbers; 0 with kOther: not compared
    float largest = 0.0f;      // difference
};
// A table that may have been trained is the base's where the base was rounded to it. One that cannot have been, such as
// what LoRA lies on, is so too where both were rounded from one, each to its type.
enum class TableOrigin : uint8_t { kMayBeTrained, kFrozen };
// Two of float types and one shape.
TableComparison compare_tables(const model::Tensor& base, const model::Tensor& saved,
                               TableOrigin origin = TableOrigin::kMayBeTrained);

// The formats of the matrices in the files, for people: the number of each, and the bytes of all tensors.
struct WeightFormats {
    std::map<std::string, uint32_t, std::less<>> n_matrices;  // "BF16", "NF4"
    uint64_t file_bytes = 0;
    bool is_quantized = false;
    // "14 matrices in NF4, 2 in F16; 283476 bytes"
    std::string text() const;
};

// Copied freely; read by any thread.
struct BaseModel {
    // From the config alone: adapters with trained biases, which are differences to the base's, cannot be checked then.
    BaseModel(model::ModelConfig model_config) : config(std::move(model_config)) {}  // NOLINT(implicit)

    // A Hugging Face folder or a GGUF file, as model::ModelFiles::open() takes them. Reads the headers of the weights,
    // the biases, a few bytes of each tensor, and an lm_head.weight beside a tied embedding, which it then unties if
    // they differ. kInvalidModel.
    static Result<BaseModel> load(const std::filesystem::path& folder);

    // Compares a table that was saved with an adapter with the base's tensor of this name. Reads the folder's files;
    // kOther if in doubt, such as when the folder has changed since load().
    TableComparison compare_table(std::string_view name, const model::Tensor& tensor, TableOrigin origin) const;

    model::ModelConfig config;
    // Adapters with numbers that are not finite, or absurd, are refused. False only in tests of what one would do.
    bool checks_numbers = true;
    // Returns ok if a chat template that an adapter brings can be read. If empty, this process reads it, so a malicious
    // template may harm it.
    std::function<Status(std::string_view source)> check_template;
    std::filesystem::path folder;  // or a GGUF file; empty: made from the config alone
    std::string fingerprint;       // 64 hex digits
    WeightFormats formats;
    std::map<std::string, std::vector<float>, std::less<>> biases;  // by tensor name, f32
};

// SHA-256 over the shape of the model and each tensor's name, type (of a matrix of few bits its format), shape and a
// few of its bytes: the same however the weights are split into files, another for each quantization of a model. Cheap,
// so no proof against forgery: it finds mistaken bases.
std::string base_fingerprint(const model::ModelConfig& config, const model::TensorFiles& files);

}  // namespace lorad::adapters
