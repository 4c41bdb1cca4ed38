// The files of one adapter in any accepted form: a PEFT folder, a GGUF file or an MLX folder, or the same by upload.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapters/files/files.h"
#include "adapters/files/source_folder.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// The only names under which files are kept; a GGUF file is renamed to the last.
inline constexpr std::string_view kConfigFile = "adapter_config.json";
inline constexpr std::string_view kPeftFile = "adapter_model.safetensors";
inline constexpr std::string_view kMlxFile = "adapters.safetensors";
inline constexpr std::string_view kGgufFile = "adapter.gguf";
// May come with any of the others: how chats with the adapter are written, and its end tokens (chat_files.h).
inline constexpr std::string_view kTemplateFile = "chat_template.jinja";
inline constexpr std::string_view kTokenizerConfigFile = "tokenizer_config.json";
inline constexpr std::string_view kGenerationConfigFile = "generation_config.json";
inline constexpr uint64_t kTemplateBytesMax = uint64_t{1} << 20;
inline constexpr uint64_t kWeightsBytesMax = uint64_t{8} << 30;
inline constexpr uint64_t kConfigBytesMax = uint64_t{4} << 20;

enum class AdapterKind : uint8_t {
    kPeft,  // adapter_config.json, adapter_model.safetensors
    kGguf,  // adapter.gguf
    kMlx,   // adapter_config.json, adapters.safetensors
};
std::string_view name_of(AdapterKind kind);  // "peft", "gguf", "mlx"

struct SourceFile {
    std::string name;
    FileBytes bytes;
    // SHA-256 of the bytes, 64 hex digits. Hashing dominates the cost of reading: pass the digest in if it is known.
    std::string sha256 = {};
};

// Spans of the files stay valid when it is moved. Only the first bytes of the files have been checked.
struct AdapterSource {
    AdapterKind kind = AdapterKind::kPeft;
    std::vector<SourceFile> files;  // sorted by name
    // The identity of the content: what
    //   sha256sum adapter_config.json adapter_model.safetensors | sha256sum
    // prints (the files of the kind and those about chats, where there are any, sorted by name), 64 hex digits.
    std::string generation;

    const FileBytes& file(std::string_view name) const;  // one that its kind has
    // The chat files, {name, text}.
    std::vector<std::pair<std::string_view, std::string_view>> chat_files() const;
    uint64_t n_bytes() const;
};

// `path`: a folder with a PEFT or an MLX adapter or with exactly one .gguf file, or a .gguf file; other files are not
// looked at, but for those about chats, as read_chat_files() has them.
// `path`: a folder with a PEFT or an MLX adapter or with exactly one .gguf file, or a .gguf file. Other files are
// ignored, except for chat files, as read_chat_files() finds them.
// beginning is checked first (kAdapterInvalid, kAdapterUnsupported): a header that does not fit the file's length costs
// no reading.
Result<AdapterSource> read_adapter_source(const AdapterLocation& location);

// The same from files that a client sent: exactly those of one kind, and any about chats. The kind and name of each are
// checked, nothing else;
// a digest that is given is believed.
Result<AdapterSource> make_adapter_source(std::vector<SourceFile> files);

// The generation from the SHA-256 of each file, without the files. `digests`: {name, 64 hex digits}.
std::string generation_of(std::vector<std::pair<std::string, std::string>> digests);

}  // namespace lorad::adapters
