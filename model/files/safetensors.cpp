#include "model/files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <set>

#include "model/files/files.h"
#include "model/files/mapped_file.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

struct DTypeName {
    DType dtype;
    std::string_view name;
    uint32_t bytes;
};
constexpr DTypeName kDTypes[] = {
    {DType::kF32, "F32", 4},   {DType::kF16, "F16", 2},        {DType::kBF16, "BF16", 2},      {DType::kF64, "F64", 8},
    {DType::kI64, "I64", 8},   {DType::kI32, "I32", 4},        {DType::kI16, "I16", 2},        {DType::kI8, "I8", 1},
    {DType::kU64, "U64", 8},   {DType::kU32, "U32", 4},        {DType::kU16, "U16", 2},        {DType::kU8, "U8", 1},
    {DType::kBool, "BOOL", 1}, {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kF8E5M2, "F8_E5M2", 1},
};

struct Range {
    uint64_t begin = 0, end = 0;  // in the data part
    size_t tensor = 0;
};

// Checks an entry field by field against the format. An unknown field could change the meaning, so it is refused.
Result<Range> read_entry(const JsonMember& member, uint64_t n_data_bytes, Tensor& tensor) {
    tensor.name = member.key;
    TRY_ASSIGN(const auto fields, member.value.as_object());
    for (const auto& field : fields) {
        if (field.key != "dtype" && field.key != "shape" && field.key != "data_offsets") {
            return field.value.error("unknown field, expected dtype, shape and data_offsets");
        }
    }
    TRY_ASSIGN(const auto dtype_value, member.value.require("dtype"));
    TRY_ASSIGN(const auto dtype_name, dtype_value.as_string());
    const auto* known = std::ranges::find(kDTypes, dtype_name, &DTypeName::name);
    if (known == std::end(kDTypes))
        return dtype_value.error("expected a type such as F32, F16 or BF16, found " + dtype_value.describe());
    tensor.dtype = known->dtype;

    TRY_ASSIGN(const auto shape_value, member.value.require("shape"));
    if (shape_value.size() > kTensorDimensionsMax) {
        return shape_value.error(
            format("expected at most {} dimensions, found {}", kTensorDimensionsMax, shape_value.size()));
    }
    TRY_ASSIGN(const auto dimensions, shape_value.as_array());
    uint64_t n_bytes = known->bytes;
    bool is_empty = false;
    for (const auto& dimension : dimensions) {
        TRY_ASSIGN(const uint64_t size, dimension.as_uint());
        tensor.shape.push_back(size);
        is_empty = is_empty || size == 0;
        // A zero later on does not excuse a product that wrapped before it.
        if (size != 0 && __builtin_mul_overflow(n_bytes, size, &n_bytes)) {
            return shape_value.error("the number of bytes of this shape overflows 64 bits");
        }
    }
    if (is_empty) n_bytes = 0;

    TRY_ASSIGN(const auto offsets_value, member.value.require("data_offsets"));
    TRY_ASSIGN(const auto offsets, offsets_value.as_array());
    if (offsets.size() != 2) return offsets_value.error(format("expected 2 numbers, found {}", offsets.size()));
    Range range;
    TRY_ASSIGN(range.begin, offsets[0].as_uint());
    TRY_ASSIGN(range.end, offsets[1].as_uint());
    if (range.begin > range.end || range.end > n_data_bytes) {
        return offsets_value.error(
            format("expected a range within the {} data bytes, found [{}, {}]", n_data_bytes, range.begin, range.end));
    }
    if (range.end - range.begin != n_bytes) {
        return offsets_value.error(format("{} {} takes {} bytes, the range [{}, {}] has {}", known->name,
                                          shape_text(tensor.shape), n_bytes, range.begin, range.end,
                                          range.end - range.begin));
    }
    return range;
}

// Every data byte belongs to exactly one tensor: no overlap, no gap, nothing behind the last.
Status check_ranges_tile(std::vector<Range>& ranges, const std::vector<Tensor>& tensors, uint64_t n_data_bytes,
                         ErrorCode code) {
    std::ranges::sort(ranges, {}, [](const Range& r) { return std::pair(r.begin, r.end); });
    uint64_t at = 0;
    for (const Range& range : ranges) {
        if (range.begin != at) {
            return make_error(code, format("tensor {}: its bytes begin at {} of the data, expected {} ({})",
                                           json_quote(tensors[range.tensor].name), range.begin, at,
                                           range.begin < at ? "they overlap the tensor before" : "a gap"));
        }
        at = range.end;
    }
    if (at != n_data_bytes) {
        return make_error(code, format("{} bytes follow the last tensor's", n_data_bytes - at));
    }
    return ok_status();
}

struct HeaderLimits {
    uint64_t bytes;
    uint32_t values;
};
HeaderLimits header_limits(ErrorCode code) {
    if (code == ErrorCode::kAdapterInvalid) return {kAdapterHeaderBytesMax, 1u << 17};
    return {kSafetensorsHeaderBytesMax, 1u << 22};
}

}  // namespace

std::string_view name_of(DType dtype) {
    return dtype == DType::kPacked ? "packed" : kDTypes[static_cast<size_t>(dtype)].name;
}
uint32_t bytes_of(DType dtype) {
    CHECK(dtype != DType::kPacked);
    return kDTypes[static_cast<size_t>(dtype)].bytes;
}

uint32_t weight_type_of(DType dtype) {
    CHECK(is_weight_type(dtype));
    return static_cast<uint32_t>(dtype);
}

float widen(DType dtype, const std::byte* at) {
    uint32_t bits = 0;
    std::memcpy(&bits, at, bytes_of(dtype));
    if (dtype == DType::kF32) return std::bit_cast<float>(bits);
    if (dtype == DType::kBF16) return std::bit_cast<float>(bits << 16);
    const uint32_t sign = (bits & 0x8000) << 16, exponent = (bits >> 10) & 0x1f, mantissa = bits & 0x3ff;
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    constexpr uint32_t kBiasDifference = 127 - 15;
    const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + kBiasDifference;
    return std::bit_cast<float>(sign | (wide_exponent << 23) | (mantissa << 13));
}

uint64_t Tensor::n_elements() const {
    if (!source) return data.size() / bytes_of(dtype);
    uint64_t n = 1;
    for (const uint64_t size : shape) n *= size;
    return n;
}

std::vector<float> numbers_of(const Tensor& tensor) {
    std::vector<float> numbers(tensor.n_elements());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = number_at(tensor, i);
    return numbers;
}

std::string shape_text(std::span<const uint64_t> shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) text += format("{}{}", i ? ", " : "", shape[i]);
    return text + "]";
}

Result<uint64_t> safetensors_header_end(std::span<const std::byte> file, ErrorCode code) {
    if (file.size() < kSafetensorsLengthBytes) {
        return make_error(code, format("not a safetensors file: expected at least {} bytes, found {}",
                                       kSafetensorsLengthBytes, file.size()));
    }
    uint64_t n_header_bytes = 0;
    for (size_t i = 0; i < kSafetensorsLengthBytes; ++i) {
        n_header_bytes |= uint64_t{std::to_integer<uint8_t>(file[i])} << (8 * i);
    }
    const uint64_t n_rest = file.size() - kSafetensorsLengthBytes;
    if (const uint64_t limit = header_limits(code).bytes; n_header_bytes > limit) {
        return make_error(
            code, format("not a safetensors file: its header claims {} bytes, the limit is {}", n_header_bytes, limit));
    }
    if (n_header_bytes > n_rest) {
        return make_error(
            code, format("cut short: the header has {} bytes, only {} are left in the file", n_header_bytes, n_rest));
    }
    return kSafetensorsLengthBytes + n_header_bytes;
}

Result<std::vector<Tensor>> parse_safetensors(std::span<const std::byte> file, ErrorCode code, Metadata* metadata) {
    TRY_ASSIGN(const uint64_t header_end, safetensors_header_end(file, code));
    const std::string_view header(reinterpret_cast<const char*>(file.data()) + kSafetensorsLengthBytes,
                                  header_end - kSafetensorsLengthBytes);
    const std::span<const std::byte> data = file.subspan(header_end);

    // JSON files may begin with a byte order mark; other readers of this format refuse it.
    if (header.starts_with("\xef\xbb\xbf")) return make_error(code, "header: expected JSON, found a byte order mark");
    const HeaderLimits limits = header_limits(code);
    TRY_ASSIGN(
        const JsonDocument document,
        parse_json(
            header,
            {.name = "header", .code = code, .max_bytes = limits.bytes, .max_depth = 3, .max_values = limits.values}));
    TRY_ASSIGN(const auto members, document.root().as_object());
    std::vector<Tensor> tensors;
    std::vector<Range> ranges;
    for (const auto& member : members) {
        if (member.key == "__metadata__") {
            TRY_ASSIGN(const auto pairs, member.value.as_object());
            for (const auto& pair : pairs) {
                TRY_ASSIGN(const std::string_view value, pair.value.as_string());
                if (metadata) metadata->emplace(pair.key, value);
            }
            continue;
        }
        Tensor tensor;
        TRY_ASSIGN(Range range, read_entry(member, data.size(), tensor));
        range.tensor = tensors.size();
        tensor.data = data.subspan(range.begin, range.end - range.begin);
        ranges.push_back(range);
        tensors.push_back(std::move(tensor));
    }
    TRY(check_ranges_tile(ranges, tensors, data.size(), code));
    std::ranges::sort(tensors, {}, &Tensor::name);
    return tensors;
}

TensorFiles::TensorFiles() = default;
TensorFiles::~TensorFiles() = default;
TensorFiles::TensorFiles(TensorFiles&&) noexcept = default;
TensorFiles& TensorFiles::operator=(TensorFiles&&) noexcept = default;

TensorFiles TensorFiles::of(std::vector<Tensor> tensors, std::vector<std::shared_ptr<const void>> owners) {
    TensorFiles files;
    files.tensors_ = std::move(tensors);
    files.owners_ = std::move(owners);
    std::ranges::sort(files.tensors_, {}, &Tensor::name);
    return files;
}

Result<TensorFiles> TensorFiles::parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                                       const std::filesystem::path& file, ErrorCode code) {
    auto tensors = parse_safetensors(bytes, code);
    if (!tensors.ok()) return make_error(code, format("{}: {}", file.filename().string(), tensors.error().message));
    TensorFiles files;
    files.tensors_ = std::move(tensors).value();
    files.owners_.push_back(std::move(owner));
    return files;
}

Result<TensorFiles> TensorFiles::read(const std::filesystem::path& file, uint64_t n_bytes_max, ErrorCode code) {
    TRY_ASSIGN(std::string text, read_text_file(file, n_bytes_max, code));
    auto copy = std::make_shared<const std::string>(std::move(text));
    const auto bytes = std::as_bytes(std::span(*copy));
    return parse(bytes, std::move(copy), file, code);
}

Result<TensorFiles> TensorFiles::map(const std::filesystem::path& file, ErrorCode code) {
    TRY_ASSIGN(std::shared_ptr<const MappedFile> mapped, MappedFile::map(file, code));
    const auto bytes = mapped->bytes();
    return parse(bytes, std::move(mapped), file, code);
}

namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";

// weight_map of the index: tensor -> shard. Shards are plain names of files beside the index, so that a model folder
// cannot point anywhere else.
Result<std::map<std::string, std::string, std::less<>>> read_index(const std::filesystem::path& file) {
    TRY_ASSIGN(const std::string text, read_text_file(file, kSafetensorsHeaderBytesMax, ErrorCode::kInvalidModel));
    TRY_ASSIGN(const JsonDocument document, parse_json(text, {.name = std::string(kIndexName),
                                                              .code = ErrorCode::kInvalidModel,
                                                              .max_bytes = kSafetensorsHeaderBytesMax,
                                                              .max_depth = 8,
                                                              .max_values = 1u << 20}));
    TRY_ASSIGN(const auto weight_map, document.root().require("weight_map"));
    TRY_ASSIGN(const auto members, weight_map.as_object());
    std::map<std::string, std::string, std::less<>> shards;
    for (const auto& member : members) {
        TRY_ASSIGN(const auto shard, member.value.as_string());
        const std::filesystem::path path(shard);
        if (shard.empty() || shard == "." || shard == ".." || shard.find('\0') != std::string_view::npos ||
            path.filename() != path) {
            return member.value.error("expected the name of a file in this folder, found " + member.value.describe());
        }
        shards.emplace(member.key, shard);
    }
    return shards;
}

}  // namespace

Result<TensorFiles> TensorFiles::map_folder(const std::filesystem::path& folder) {
    std::error_code ignored;
    const auto single = folder / "model.safetensors", index = folder / kIndexName;
    if (!std::filesystem::exists(index, ignored)) {
        if (std::filesystem::exists(single, ignored)) {
            TRY_ASSIGN(TensorFiles files, map(single, ErrorCode::kInvalidModel));
            TRY(files.name_as_causal_lm());
            return files;
        }
        const bool has_pickle = std::filesystem::exists(folder / "pytorch_model.bin", ignored) ||
                                std::filesystem::exists(folder / "pytorch_model.bin.index.json", ignored);
        return make_error(
            ErrorCode::kInvalidModel,
            format("{}: no model.safetensors and no {}{}", folder.string(), kIndexName,
                   has_pickle ? "; pytorch_model.bin is a pickle, which lorad does not run: save the model as "
                                "safetensors"
                              : "; is this a Hugging Face model folder, fully downloaded?"));
    }
    TRY_ASSIGN(const auto shard_of, read_index(index));
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
    TensorFiles all;
    for (const auto& shard : shards) {
        TRY_ASSIGN(TensorFiles one, map(folder / shard, ErrorCode::kInvalidModel));
        for (auto& tensor : one.tensors_) {
            const auto listed = shard_of.find(tensor.name);
            if (listed == shard_of.end() || listed->second != shard) {
                return make_error(
                    ErrorCode::kInvalidModel,
                    format("{}: {} has tensor {}, which the index {}", kIndexName, shard, json_quote(tensor.name),
                           listed == shard_of.end() ? "does not list" : "places in " + listed->second));
            }
            all.tensors_.push_back(std::move(tensor));
        }
        std::ranges::move(one.owners_, std::back_inserter(all.owners_));
    }
    std::ranges::sort(all.tensors_, {}, &Tensor::name);
    for (const auto& [name, shard] : shard_of) {
        if (!all.find(name)) {
            return make_error(ErrorCode::kInvalidModel, format("{}: places tensor {} in {}, which does not hold it",
                                                               kIndexName, json_quote(name), shard));
        }
    }
    TRY(all.name_as_causal_lm());
    return all;
}

Status TensorFiles::name_as_causal_lm() {
    constexpr std::string_view kEmbedding = "embed_tokens.weight";
    if (!find(kEmbedding) || find("model." + std::string(kEmbedding))) return ok_status();
    for (Tensor& tensor : tensors_) {
        const std::string_view name = tensor.name;
        if (name == kEmbedding || name.starts_with("layers.") || name.starts_with("norm."))
            tensor.name.insert(0, "model.");
    }
    std::ranges::sort(tensors_, {}, &Tensor::name);
    const auto twice = std::ranges::adjacent_find(tensors_, {}, &Tensor::name);
    if (twice == tensors_.end()) return ok_status();
    return make_error(ErrorCode::kInvalidModel,
                      format("tensor {}: expected it once, found it with and without \"model.\"", twice->name));
}

const Tensor* TensorFiles::find(std::string_view name) const {
    const auto at =
        std::ranges::lower_bound(tensors_, name, {}, [](const Tensor& t) { return std::string_view(t.name); });
    return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

void TensorFiles::set_tensors(std::vector<Tensor> tensors, std::vector<std::string> left_out) {
    n_bytes_told_otherwise_ = total_bytes();
    left_out_ = std::move(left_out);
    tensors_ = std::move(tensors);
}

uint64_t TensorFiles::total_bytes() const {
    if (n_bytes_told_otherwise_) return *n_bytes_told_otherwise_;
    uint64_t sum = 0;
    for (const auto& tensor : tensors_) sum += tensor.data.size();
    return sum;
}

}  // namespace lorad::model
