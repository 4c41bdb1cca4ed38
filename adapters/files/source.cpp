#include "adapters/files/source.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "adapters/files/chat_files.h"
#include "model/files/safetensors.h"
#include "model/gguf/gguf_file.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

// Files under which adapters come that are not read, and why.
struct ForeignFile {
    std::string_view name, reason;
};
constexpr std::array<ForeignFile, 4> kForeignFiles = {{
    {"adapter_model.bin", "a pickle, which can run code when it is read; save the adapter as safetensors"},
    {"adapter_model.pt", "a pickle, which can run code when it is read; save the adapter as safetensors"},
    {"adapter_model.safetensors.index.json", "the index of a sharded adapter; save it as one file"},
    {"adapters.npz", "an MLX adapter of an old form; save it as adapters.safetensors"},
}};

constexpr std::string_view kGgufMagic = "GGUF";
constexpr uint64_t kSmallFileBytes = uint64_t{16} << 20;  // read before anything is checked

struct KindFiles {
    AdapterKind kind;
    std::string_view weights;
    bool has_config;
};
constexpr std::array<KindFiles, 3> kKinds = {{
    {AdapterKind::kPeft, kPeftFile, true},
    {AdapterKind::kMlx, kMlxFile, true},
    {AdapterKind::kGguf, kGgufFile, false},
}};

// Returns true for a file of torch.save: a zip archive, or a bare pickle. A safetensors file begins with the length of
// its header, whose upper half is zero.
bool is_pickle(std::string_view file) {
    if (file.starts_with("PK\x03\x04")) return true;
    const bool magic = file.starts_with("\x80\x02") || file.starts_with("\x80\x03") || file.starts_with("\x80\x04");
    return magic && file.size() >= 8 && file.substr(4, 4) != std::string_view("\0\0\0\0", 4);
}

// `text`: at least the first 8 bytes of the file.
Status check_magic(AdapterKind kind, std::string_view name, std::string_view text) {
    const bool is_gguf = text.starts_with(kGgufMagic);
    if (is_pickle(text)) {
        return make_error(
            ErrorCode::kAdapterUnsupported,
            format("{}: a pickle under the name of another format; pickles can run code and are not read", name));
    }
    if (is_gguf != (kind == AdapterKind::kGguf)) {
        return make_error(ErrorCode::kAdapterInvalid,
                          format("{}: expected {}, found {}", name, is_gguf ? "a safetensors file" : "a GGUF file",
                                 is_gguf ? "a GGUF file" : "other first bytes"));
    }
    return ok_status();
}

// Compares the header of a large file with the file's length, before all of it is read and hashed.
Status check_beginning(FileReader& reader, AdapterKind kind, std::string_view name) {
    static_assert(model::kGgufStartBytes > model::kSafetensorsLengthBytes);
    TRY(reader.read_until(model::kGgufStartBytes));
    TRY(check_magic(kind, name, {reinterpret_cast<const char*>(reader.span().data()), model::kGgufStartBytes}));
    const auto check = [&]() -> Status {
        if (kind == AdapterKind::kGguf) return model::check_gguf_start(reader.span(), model::kGgufAdapterCodes);
        TRY_ASSIGN(const uint64_t end, model::safetensors_header_end(reader.span(), ErrorCode::kAdapterInvalid));
        TRY(reader.read_until(end));
        TRY(model::parse_safetensors(reader.span(), ErrorCode::kAdapterInvalid));
        return ok_status();
    };
    Status checked = check();
    if (checked.ok()) return checked;
    return make_error(checked.error().code, format("{}: {}", name, checked.error().message));
}

Result<FileBytes> read_weights(const SourceFolder& folder, std::string_view file, AdapterKind kind,
                               std::string_view name) {
    TRY_ASSIGN(FileReader reader, folder.reader(file, name, kWeightsBytesMax));
    if (reader.size() > kSmallFileBytes) TRY(check_beginning(reader, kind, name));
    return std::move(reader).read_all();
}

Result<AdapterSource> finished(AdapterSource source) {
    std::ranges::sort(source.files, {}, &SourceFile::name);
    for (const SourceFile& file : source.files) {
        if (file.name != kConfigFile && !is_chat_file(file.name))
            TRY(check_magic(source.kind, file.name, file.bytes.text()));
    }
    std::vector<std::pair<std::string, std::string>> digests;
    for (SourceFile& file : source.files) {
        if (file.sha256.empty()) file.sha256 = sha256_hex(file.bytes.span());
        digests.emplace_back(file.name, file.sha256);
    }
    source.generation = generation_of(std::move(digests));
    return source;
}

Result<AdapterSource> read_gguf(const SourceFolder& folder, std::string_view file) {
    AdapterSource source;
    source.kind = AdapterKind::kGguf;
    TRY_ASSIGN(FileBytes bytes, read_weights(folder, file, AdapterKind::kGguf, kGgufFile));
    source.files.push_back({std::string(kGgufFile), std::move(bytes)});
    return finished(std::move(source));
}

Result<AdapterSource> read_folder(const SourceFolder& folder, const KindFiles& kind) {
    AdapterSource source;
    source.kind = kind.kind;
    TRY_ASSIGN(FileBytes config, folder.read(kConfigFile, kConfigBytesMax));
    TRY_ASSIGN(FileBytes weights, read_weights(folder, kind.weights, kind.kind, kind.weights));
    source.files.push_back({std::string(kConfigFile), std::move(config)});
    source.files.push_back({std::string(kind.weights), std::move(weights)});
    TRY_ASSIGN(std::vector<SourceFile> chat_files, read_chat_files(folder));
    std::ranges::move(chat_files, std::back_inserter(source.files));
    return finished(std::move(source));
}

bool is_model_folder(const SourceFolder& folder) { return folder.has("config.json") && !folder.has(kConfigFile); }

const ForeignFile* foreign_file(std::string_view name) {
    const auto* found = std::ranges::find(kForeignFiles, name, &ForeignFile::name);
    return found == kForeignFiles.end() ? nullptr : found;
}

}  // namespace

std::string_view name_of(AdapterKind kind) {
    switch (kind) {
        case AdapterKind::kPeft: return "peft";
        case AdapterKind::kGguf: return "gguf";
        case AdapterKind::kMlx: return "mlx";
    }
    return "";
}

const FileBytes& AdapterSource::file(std::string_view name) const {
    const auto found = std::ranges::find(files, name, &SourceFile::name);
    CHECK(found != files.end());
    return found->bytes;
}

std::vector<std::pair<std::string_view, std::string_view>> AdapterSource::chat_files() const {
    std::vector<std::pair<std::string_view, std::string_view>> found;
    for (const SourceFile& one : files) {
        if (is_chat_file(one.name)) found.emplace_back(one.name, one.bytes.text());
    }
    return found;
}

uint64_t AdapterSource::n_bytes() const {
    uint64_t sum = 0;
    for (const SourceFile& file : files) sum += file.bytes.size;
    return sum;
}

std::string generation_of(std::vector<std::pair<std::string, std::string>> digests) {
    std::ranges::sort(digests);
    std::string list;
    for (const auto& [name, digest] : digests) list += format("{}  {}\n", digest, name);
    return sha256_hex(std::as_bytes(std::span(list)));
}

Result<AdapterSource> read_adapter_source(const AdapterLocation& location) {
    TRY_ASSIGN(const SourceFolder folder, SourceFolder::open(location));
    if (folder.is_file()) {
        if (folder.file_name().ends_with(".gguf")) return read_gguf(folder, folder.file_name());
        return make_error(ErrorCode::kAdapterUnsupported,
                          format("expected a folder with {} and {}, or a .gguf file, found {}", kConfigFile, kPeftFile,
                                 folder.file_name().ends_with(".safetensors")
                                     ? "one safetensors file: give the folder that it lies in"
                                     : "another file"),
                          "lora_path");
    }
    if (folder.has(kPeftFile)) return read_folder(folder, kKinds[0]);
    if (folder.has(kMlxFile)) return read_folder(folder, kKinds[1]);
    TRY_ASSIGN(const std::vector<std::string> ggufs, folder.names_ending(".gguf"));
    if (ggufs.size() == 1) return read_gguf(folder, ggufs.front());
    if (ggufs.size() > 1) {
        return make_error(
            ErrorCode::kAdapterInvalid,
            format("the adapter folder has {} .gguf files: expected one; name the file itself", ggufs.size()));
    }
    for (const ForeignFile& foreign : kForeignFiles) {
        if (!folder.has(foreign.name)) continue;
        return make_error(ErrorCode::kAdapterUnsupported,
                          format("{} is missing, and {} is {}", kPeftFile, foreign.name, foreign.reason));
    }
    if (is_model_folder(folder)) {
        return make_error(ErrorCode::kAdapterUnsupported,
                          format("a whole model (config.json, no {}), not an adapter; expected a LoRA adapter: a "
                                 "folder with {} and {}, or a .gguf file. "
                                 "A model is served with --model DIR",
                                 kConfigFile, kConfigFile, kPeftFile),
                          "lora_path");
    }
    return read_folder(folder, kKinds[0]);
}

Result<AdapterSource> make_adapter_source(std::vector<SourceFile> files) {
    AdapterSource source;
    const KindFiles* kind = nullptr;
    for (SourceFile& file : files) {
        if (const ForeignFile* foreign = foreign_file(file.name)) {
            return make_error(ErrorCode::kAdapterUnsupported, format("files.{}: {}", file.name, foreign->reason),
                              "files");
        }
        if (is_chat_file(file.name)) {
            const uint64_t bytes_max = chat_file_bytes_max(file.name);
            if (file.bytes.size > bytes_max || std::ranges::count(files, file.name, &SourceFile::name) != 1) {
                return make_error(ErrorCode::kAdapterInvalid,
                                  format("files: expected one {} of at most {} bytes", file.name, bytes_max), "files");
            }
            continue;
        }
        if (file.name != kConfigFile && file.name.ends_with(".gguf")) file.name = kGgufFile;
        const auto* found = std::ranges::find(kKinds, std::string_view(file.name), &KindFiles::weights);
        if (found == kKinds.end() && file.name != kConfigFile) {
            return make_error(ErrorCode::kAdapterInvalid,
                              format("files: expected {} with {} or {}, or one .gguf file, and perhaps {}, found {}",
                                     kConfigFile, kPeftFile, kMlxFile, kTemplateFile, json_quote(file.name)),
                              "files");
        }
        if (found != kKinds.end()) {
            if (kind != nullptr) {
                return make_error(ErrorCode::kAdapterInvalid,
                                  format("files: expected the weights of one adapter, found {} and {}", kind->weights,
                                         found->weights),
                                  "files");
            }
            kind = found;
        }
    }
    const size_t n_configs =
        static_cast<size_t>(std::ranges::count(files, std::string(kConfigFile), &SourceFile::name));
    if (kind == nullptr) {
        return make_error(ErrorCode::kAdapterInvalid,
                          format("files: expected {}, {} or a .gguf file, found none", kPeftFile, kMlxFile), "files");
    }
    if (n_configs != (kind->has_config ? 1u : 0u)) {
        return make_error(ErrorCode::kAdapterInvalid,
                          format("files: expected {} {} beside {}, found {}", kind->has_config ? "one" : "no",
                                 kConfigFile, kind->weights, n_configs),
                          "files");
    }
    source.kind = kind->kind;
    source.files = std::move(files);
    return finished(std::move(source));
}

}  // namespace lorad::adapters
