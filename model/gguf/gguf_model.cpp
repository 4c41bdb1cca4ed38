#include "model/gguf/gguf_model.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <set>

#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_fields.h"
#include "model/gguf/gguf_tensors.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGgufSuffix = ".gguf";
constexpr uint32_t kSplitsMax = 1000;

// NAME-00002-of-00003.gguf
struct SplitName {
    std::string name;
    uint32_t number = 0, n_files = 0;
};

std::optional<SplitName> split_name(const fs::path& file) {
    constexpr size_t kDigits = 5, kTail = 2 * kDigits + 5;  // "-00002-of-00003"
    constexpr std::string_view kOf = "-of-";
    const std::string stem = file.stem().string();
    if (file.extension() != kGgufSuffix || stem.size() <= kTail) return std::nullopt;
    const std::string_view tail = std::string_view(stem).substr(stem.size() - kTail);
    SplitName split{stem.substr(0, stem.size() - kTail)};
    const auto read = [](std::string_view digits, uint32_t& to) {
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), to);
        return error == std::errc() && end == digits.data() + digits.size();
    };
    const bool is_one = tail.front() == '-' && tail.substr(1 + kDigits, kOf.size()) == kOf &&
                        read(tail.substr(1, kDigits), split.number) &&
                        read(tail.substr(1 + kDigits + kOf.size()), split.n_files);
    return is_one ? std::optional(std::move(split)) : std::nullopt;
}

Error invalid_gguf(const fs::path& file, std::string_view what) {
    return make_error(ErrorCode::kInvalidModel, format("{}: {}", file.filename().string(), what));
}

struct ParsedGguf {
    std::shared_ptr<const MappedFile> bytes;
    GgufFile gguf;
};

Result<ParsedGguf> map_gguf(const fs::path& file) {
    ParsedGguf parsed;
    TRY_ASSIGN(parsed.bytes, MappedFile::map(file, ErrorCode::kInvalidModel));
    Result<GgufFile> gguf = parse_gguf(parsed.bytes->bytes(), kGgufModelCodes);
    if (!gguf.ok()) return invalid_gguf(file, gguf.error().message);
    parsed.gguf = std::move(*gguf);
    return parsed;
}

// 1 where the field is not there.
Result<uint32_t> split_count(const fs::path& file, const GgufFile& gguf) {
    const GgufValue* value = gguf.field("split.count");
    if (value == nullptr) return 1u;
    const auto n = value->as_integer();
    if (n && *n >= 0 && *n <= int64_t{kSplitsMax}) return std::max(1u, static_cast<uint32_t>(*n));
    return invalid_gguf(file, gguf_field_error("split.count", format("1 to {}", kSplitsMax), *value).message);
}

// Returns true if a file may be the model that is meant. A file that cannot be read may, so that its error is told.
bool may_be_the_model(const fs::path& file) {
    const auto parsed = map_gguf(file);
    if (!parsed.ok()) return true;
    const std::string type = parsed->gguf.text("general.type");
    return (type.empty() || type == "model") && parsed->gguf.text("general.architecture") != "clip";
}

}  // namespace

bool is_gguf_path(const fs::path& file) {
    if (file.extension() == kGgufSuffix) return true;
    char magic[4] = {};
    std::ifstream stream(file, std::ios::binary);
    return stream.read(magic, sizeof magic) && std::string_view(magic, sizeof magic) == "GGUF";
}

std::string gguf_model_name(const fs::path& file) {
    if (const auto split = split_name(file)) return split->name;
    return file.extension() == kGgufSuffix ? file.stem().string() : file.filename().string();
}

Result<fs::path> gguf_in_folder(const fs::path& folder) {
    std::vector<fs::path> files;
    std::error_code error;
    fs::directory_iterator entry(folder, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
        const auto split = split_name(entry->path());
        if (entry->path().extension() == kGgufSuffix && (!split || split->number == 1)) files.push_back(entry->path());
    }
    std::ranges::sort(files);
    if (files.size() > 1) std::erase_if(files, [](const fs::path& file) { return !may_be_the_model(file); });
    if (files.empty()) return fs::path();
    if (files.size() == 1) return files.front();
    constexpr size_t kNamedMax = 5;
    std::string names;
    for (size_t i = 0; i < files.size() && i < kNamedMax; ++i)
        names += format("{}{}", i ? ", " : "", files[i].filename().string());
    return make_error(ErrorCode::kInvalidModel,
                      format("{}: expected one GGUF model, found {} ({}{}); give the file itself", folder.string(),
                             files.size(), names, files.size() > kNamedMax ? ", ..." : ""));
}

Status GgufModel::read_files(const fs::path& path) {
    TRY_ASSIGN(ParsedGguf given, map_gguf(path));
    TRY_ASSIGN(const uint32_t n_files, split_count(path, given.gguf));
    if (n_files == 1) {
        files_.push_back(std::move(given.bytes));
        file_ = std::move(given.gguf);
        return ok_status();
    }
    const auto split = split_name(path);
    if (!split || split->n_files != n_files) {
        return invalid_gguf(path, format("one of {} files (split.count): expected a name such as "
                                         "NAME-{:05}-of-{:05}{}, by which the others are found",
                                         n_files, 1, n_files, kGgufSuffix));
    }
    for (uint32_t i = 0; i < n_files; ++i) {
        const fs::path file =
            path.parent_path() / format("{}-{:05}-of-{:05}{}", split->name, i + 1, n_files, kGgufSuffix);
        std::error_code ignored;
        if (!fs::exists(file, ignored))
            return invalid_gguf(file, format("no such file; the model is split into {} files", n_files));
        TRY_ASSIGN(ParsedGguf part, map_gguf(file));
        TRY_ASSIGN(const uint32_t n_of_part, split_count(file, part.gguf));
        const GgufValue* number = part.gguf.field("split.no");
        if (n_of_part != n_files || number == nullptr || number->as_integer() != int64_t{i}) {
            return invalid_gguf(file, format("expected split.no {} of {}, found {} of {}", i, n_files,
                                             number ? number->describe() : "none", n_of_part));
        }
        if (i == 0) file_.fields = std::move(part.gguf.fields);
        std::ranges::move(part.gguf.tensors, std::back_inserter(file_.tensors));
        files_.push_back(std::move(part.bytes));
    }
    std::ranges::sort(file_.tensors, {}, &GgufTensor::name);
    const auto twice = std::ranges::adjacent_find(file_.tensors, {}, &GgufTensor::name);
    if (twice != file_.tensors.end())
        return invalid_gguf(path, format("tensor {} occurs in two of the {} files", json_quote(twice->name), n_files));
    const GgufValue* n_tensors = file_.field("split.tensors.count");
    if (n_tensors != nullptr && n_tensors->as_integer() != static_cast<int64_t>(file_.tensors.size())) {
        return invalid_gguf(path, format("split.tensors.count: expected {} as the {} files hold, found {}",
                                         file_.tensors.size(), n_files, n_tensors->describe()));
    }
    return ok_status();
}

template <typename T>
Result<T> GgufModel::named(Result<T> result) const {
    if (result.ok()) return result;
    return make_error(result.error().code, format("{}: {}", name_, result.error().message));
}

Result<GgufModel> GgufModel::open(const fs::path& path) {
    GgufModel model;
    model.name_ = path.filename().string();
    TRY(model.read_files(path));
    TRY_ASSIGN(model.architecture_, model.named(check_is_gguf_model(model.file_)));
    TRY_ASSIGN(model.config_, model.named(config_from_gguf(model.file_, *model.architecture_)));
    return model;
}

Result<TensorFiles> GgufModel::tensors() const {
    TRY_ASSIGN(GgufTensors tensors, named(tensors_from_gguf(file_, *architecture_, config_)));
    std::vector<std::shared_ptr<const void>> owners(files_.begin(), files_.end());
    owners.push_back(std::make_shared<const std::vector<std::vector<std::byte>>>(std::move(tensors.owned)));
    TensorFiles files = TensorFiles::of(std::move(tensors.tensors), std::move(owners));
    if (!tensors.notes.empty())
        files.set_tensors({files.tensors().begin(), files.tensors().end()}, std::move(tensors.notes));
    return files;
}

Result<std::string> GgufModel::tokenizer_json() const { return named(tokenizer_from_gguf(file_, config_.vocab_size)); }
Result<GgufChat> GgufModel::chat() const { return named(chat_from_gguf(file_, config_.vocab_size)); }

}  // namespace lorad::model
