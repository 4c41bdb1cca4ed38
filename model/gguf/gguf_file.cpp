#include "model/gguf/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "model/files/safetensors.h"
#include "proto/base/format.h"
#include "proto/base/rounding.h"
#include "proto/json/json.h"

namespace lorad::model {

namespace {

constexpr uint32_t kFlag = 7, kText = 8, kArray = 9, kFieldTypes = 13;
// Bytes of a value by type; 0: text or array.
constexpr std::array<uint32_t, kFieldTypes> kFieldBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr uint64_t kKeyBytesMax = 1024, kFieldsMax = 65536, kTensorsMax = 65536;
constexpr uint32_t kDimensionsMax = 4;
constexpr uint64_t kDefaultAlignment = 32, kAlignmentMax = 1 << 20;

// Takes numbers off the front of a file.
class Cursor {
  public:
    Cursor(std::span<const std::byte> file, GgufCodes codes) : file_(file), codes_(codes) {}

    size_t at() const { return at_; }
    size_t n_left() const { return file_.size() - at_; }
    std::span<const std::byte> since(size_t begin) const { return file_.subspan(begin, at_ - begin); }
    const GgufCodes& codes() const { return codes_; }
    Error broken(std::string what) const { return make_error(codes_.broken, std::move(what)); }
    Error unsupported(std::string what) const { return make_error(codes_.unsupported, std::move(what)); }

    Result<std::span<const std::byte>> take(uint64_t n, std::string_view what) {
        if (n > n_left())
            return broken(format("cut short: {} needs {} bytes at {}, {} are left", what, n, at_, n_left()));
        const auto bytes = file_.subspan(at_, n);
        at_ += n;
        return bytes;
    }
    template <typename T>
    Result<T> number(std::string_view what) {
        TRY_ASSIGN(const auto bytes, take(sizeof(T), what));
        T value{};
        std::memcpy(&value, bytes.data(), sizeof(value));
        return value;
    }
    Result<std::span<const std::byte>> text(std::string_view what) {
        TRY_ASSIGN(const uint64_t size, number<uint64_t>(what));
        return take(size, what);
    }
    Result<std::string> name(std::string_view what) {
        TRY_ASSIGN(const auto bytes, text(what));
        if (bytes.empty() || bytes.size() > kKeyBytesMax) {
            return broken(format("{}: a name of {} bytes, expected 1 to {}", what, bytes.size(), kKeyBytesMax));
        }
        return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }

  private:
    std::span<const std::byte> file_;
    GgufCodes codes_;
    size_t at_ = 0;
};

Result<GgufValue> read_value(Cursor& cursor, const std::string& key) {
    GgufValue value;
    TRY_ASSIGN(value.type, cursor.number<uint32_t>(key));
    if (value.type == kArray) {
        value.is_array = true;
        TRY_ASSIGN(value.type, cursor.number<uint32_t>(key));
        TRY_ASSIGN(value.n, cursor.number<uint64_t>(key));
    }
    if (value.type >= kFieldTypes || value.type == kArray) {
        return cursor.broken(format("field {}: a value of type {}, expected 0 to {}{}", json_quote(key), value.type,
                                    kFieldTypes - 1, value.type == kArray ? ", and no arrays of arrays" : ""));
    }
    if (value.type != kText) {
        uint64_t n_bytes = 0;
        if (__builtin_mul_overflow(value.n, uint64_t{kFieldBytes[value.type]}, &n_bytes)) {
            return cursor.broken(format("field {}: {} elements", json_quote(key), value.n));
        }
        TRY_ASSIGN(value.bytes, cursor.take(n_bytes, key));
        return value;
    }
    if (!value.is_array) {
        TRY_ASSIGN(value.bytes, cursor.text(key));
        return value;
    }
    if (value.n > cursor.n_left() / sizeof(uint64_t)) {
        return cursor.broken(format("field {}: cut short in {} texts", json_quote(key), value.n));
    }
    const size_t begin = cursor.at();
    for (uint64_t i = 0; i < value.n; ++i) TRY(cursor.text(key));
    value.bytes = cursor.since(begin);
    return value;
}

Result<uint64_t> bytes_of(const GgmlTypeInfo& type, const GgufTensor& tensor, const Cursor& cursor) {
    if (tensor.shape.back() % type.block_numbers != 0) {
        return cursor.broken(format("tensor {}: {} with rows of {}, expected a multiple of {}", json_quote(tensor.name),
                                    type.name, tensor.shape.back(), type.block_numbers));
    }
    uint64_t n_bytes = tensor.shape.back() / type.block_numbers;
    bool overflows = __builtin_mul_overflow(n_bytes, uint64_t{type.block_bytes}, &n_bytes);
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i)
        overflows |= __builtin_mul_overflow(n_bytes, tensor.shape[i], &n_bytes);
    if (!overflows) return n_bytes;
    return cursor.broken(format("tensor {}: the number of bytes of {} overflows 64 bits", json_quote(tensor.name),
                                shape_text(tensor.shape)));
}

struct Placed {
    GgufTensor tensor;
    uint64_t offset = 0, n_bytes = 0;
};

Result<Placed> read_tensor(Cursor& cursor) {
    Placed placed;
    TRY_ASSIGN(placed.tensor.name, cursor.name("a tensor's name"));
    const std::string& name = placed.tensor.name;
    TRY_ASSIGN(const uint32_t n_dimensions, cursor.number<uint32_t>(name));
    if (n_dimensions == 0 || n_dimensions > kDimensionsMax) {
        return cursor.broken(
            format("tensor {}: {} dimensions, expected 1 to {}", json_quote(name), n_dimensions, kDimensionsMax));
    }
    std::vector<uint64_t>& shape = placed.tensor.shape;
    for (uint32_t i = 0; i < n_dimensions; ++i) {
        TRY_ASSIGN(const uint64_t size, cursor.number<uint64_t>(name));
        if (size == 0) return cursor.broken(format("tensor {}: a dimension of 0", json_quote(name)));
        shape.push_back(size);
    }
    while (shape.size() > 2 && shape.back() == 1) shape.pop_back();
    std::ranges::reverse(shape);
    TRY_ASSIGN(const uint32_t number, cursor.number<uint32_t>(name));
    const GgmlTypeInfo* type = ggml_type_info(number);
    if (type == nullptr) {
        return cursor.unsupported(format("tensor {}: ggml type {} is not known to lorad, which reads {}",
                                         json_quote(name), number, readable_ggml_types()));
    }
    if (type->block_bytes == 0) {
        return cursor.unsupported(
            format("tensor {}: ggml type {} ({}), which ggml has dropped; convert the model again", json_quote(name),
                   number, type->name));
    }
    placed.tensor.type = static_cast<GgmlType>(number);
    TRY_ASSIGN(placed.offset, cursor.number<uint64_t>(name));
    TRY_ASSIGN(placed.n_bytes, bytes_of(*type, placed.tensor, cursor));
    return placed;
}

// The tensors' bytes follow each other from the end of the entries on, each padded to the alignment, where the file may
// have no gaps without any.
Status place_tensors(std::vector<Placed>& placed, std::span<const std::byte> file, const Cursor& cursor,
                     uint64_t alignment, std::vector<GgufTensor>& tensors) {
    const uint64_t data_begin = round_up(uint64_t{cursor.at()}, alignment);
    std::ranges::sort(placed, {}, &Placed::offset);
    const uint64_t n_data = file.size() > data_begin ? file.size() - data_begin : 0;
    uint64_t end = 0;  // at most n_data
    for (Placed& one : placed) {
        const uint64_t expected = round_up(end, alignment);
        const bool is_behind_a_gap =
            cursor.codes().may_have_gaps && one.offset > expected && one.offset % alignment == 0;
        if (one.offset != expected && !is_behind_a_gap) {
            const std::string_view why = one.offset < end              ? "they overlap another tensor's"
                                         : one.offset % alignment != 0 ? "not aligned"
                                                                       : "a gap";
            return cursor.broken(format("tensor {}: its bytes begin at {} of the data, expected {} ({})",
                                        json_quote(one.tensor.name), one.offset, expected, why));
        }
        if (one.offset > n_data || one.n_bytes > n_data - one.offset) {
            return cursor.broken(format("cut short: tensor {} has {} bytes at {}, the data has {}",
                                        json_quote(one.tensor.name), one.n_bytes, one.offset, n_data));
        }
        one.tensor.data = file.subspan(data_begin + one.offset, one.n_bytes);
        end = one.offset + one.n_bytes;
        tensors.push_back(std::move(one.tensor));
    }
    if (n_data - end >= alignment && !cursor.codes().may_have_gaps)
        return cursor.broken(format("{} bytes follow the last tensor's", n_data - end));
    std::ranges::sort(tensors, {}, &GgufTensor::name);
    return ok_status();
}

template <typename T>
T number_at(std::span<const std::byte> bytes, uint64_t index) {
    T value{};
    std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
    return value;
}

std::optional<int64_t> integer_at(const GgufValue& value, uint64_t index) {
    switch (value.type) {
        case 0: return number_at<uint8_t>(value.bytes, index);
        case 1: return number_at<int8_t>(value.bytes, index);
        case 2: return number_at<uint16_t>(value.bytes, index);
        case 3: return number_at<int16_t>(value.bytes, index);
        case 4: return number_at<uint32_t>(value.bytes, index);
        case 5: return number_at<int32_t>(value.bytes, index);
        case 10: {
            const auto number = number_at<uint64_t>(value.bytes, index);
            return number > uint64_t{INT64_MAX} ? std::nullopt : std::optional(static_cast<int64_t>(number));
        }
        case 11: return number_at<int64_t>(value.bytes, index);
        default: return std::nullopt;
    }
}

std::optional<double> float_at(const GgufValue& value, uint64_t index) {
    if (value.type == 6) return number_at<float>(value.bytes, index);
    if (value.type == 12) return number_at<double>(value.bytes, index);
    const std::optional<int64_t> integer = integer_at(value, index);
    return integer ? std::optional(static_cast<double>(*integer)) : std::nullopt;
}

template <typename T, typename At>
std::optional<std::vector<T>> all_of(const GgufValue& value, At at) {
    if (!value.is_array) return std::nullopt;
    std::vector<T> numbers;
    for (uint64_t i = 0; i < value.n; ++i) {
        const std::optional<T> number = at(value, i);
        if (!number) return std::nullopt;
        numbers.push_back(*number);
    }
    return numbers;
}

std::string_view as_view(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::optional<std::string_view> GgufValue::as_text() const {
    return is_array || type != kText ? std::nullopt : std::optional(as_view(bytes));
}
std::optional<double> GgufValue::as_number() const { return is_array ? std::nullopt : float_at(*this, 0); }
std::optional<int64_t> GgufValue::as_integer() const { return is_array ? std::nullopt : integer_at(*this, 0); }
std::optional<bool> GgufValue::as_flag() const {
    return is_array || type != kFlag ? std::nullopt : std::optional(bytes[0] != std::byte{0});
}
std::optional<std::vector<int64_t>> GgufValue::as_integers() const { return all_of<int64_t>(*this, integer_at); }
std::optional<std::vector<double>> GgufValue::as_numbers() const { return all_of<double>(*this, float_at); }

std::optional<std::vector<bool>> GgufValue::as_flags() const {
    if (!is_array || type != kFlag) return std::nullopt;
    std::vector<bool> flags;
    for (uint64_t i = 0; i < n; ++i) flags.push_back(bytes[i] != std::byte{0});
    return flags;
}

std::optional<std::vector<std::string_view>> GgufValue::as_texts() const {
    if (!is_array || type != kText) return std::nullopt;
    std::vector<std::string_view> texts;
    size_t at = 0;
    for (uint64_t i = 0; i < n; ++i) {  // their lengths were followed when the file was read
        uint64_t size = 0;
        std::memcpy(&size, bytes.data() + at, sizeof size);
        texts.push_back(as_view(bytes.subspan(at + sizeof size, size)));
        at += sizeof size + size;
    }
    return texts;
}

std::string GgufValue::describe() const {
    static constexpr std::array<std::string_view, kFieldTypes> kNames = {
        "uint8", "int8", "uint16", "int16",  "uint32", "int32",  "float32",
        "bool",  "text", "array",  "uint64", "int64",  "float64"};
    if (is_array) return format("an array of {} ({})", n, kNames[type]);
    if (const auto text = as_text()) return json_quote_short(*text);
    if (const auto flag = as_flag()) return *flag ? "true" : "false";
    if (const auto integer = as_integer()) return format("{} ({})", *integer, kNames[type]);
    if (const auto number = as_number()) return format("{} ({})", *number, kNames[type]);
    return std::string(kNames[type]);
}

const GgufValue* GgufFile::field(std::string_view key) const {
    const auto found = fields.find(key);
    return found == fields.end() ? nullptr : &found->second;
}

std::string GgufFile::text(std::string_view key) const {
    const GgufValue* value = field(key);
    return value != nullptr ? std::string(value->as_text().value_or(std::string_view())) : std::string();
}

namespace {

struct Counts {
    uint64_t n_tensors = 0, n_fields = 0;
};

Result<Counts> read_start(Cursor& cursor) {
    TRY_ASSIGN(const auto magic, cursor.take(4, "the magic number"));
    if (std::memcmp(magic.data(), "GGUF", 4) != 0) return cursor.broken("not a GGUF file: it does not begin with GGUF");
    TRY_ASSIGN(const uint32_t version, cursor.number<uint32_t>("the version"));
    if (version != 2 && version != 3) {
        const bool is_swapped = version != 0 && (version & 0xffffff) == 0;
        return cursor.unsupported(is_swapped ? std::string("a big-endian GGUF file is not supported")
                                             : format("GGUF version {} is not supported; 2 and 3 are", version));
    }
    TRY_ASSIGN(const uint64_t n_tensors, cursor.number<uint64_t>("the number of tensors"));
    TRY_ASSIGN(const uint64_t n_fields, cursor.number<uint64_t>("the number of fields"));
    if (n_tensors > kTensorsMax || n_fields > kFieldsMax) {
        return cursor.broken(format("{} tensors and {} fields, at most {} and {} are read", n_tensors, n_fields,
                                    kTensorsMax, kFieldsMax));
    }
    return Counts{n_tensors, n_fields};
}

Result<uint64_t> alignment_of(const GgufFile& gguf, const Cursor& cursor) {
    const GgufValue* field = gguf.field("general.alignment");
    if (field == nullptr) return kDefaultAlignment;
    const int64_t given = field->as_integer().value_or(0);
    if (given >= 1 && given <= int64_t{kAlignmentMax} && std::has_single_bit(static_cast<uint64_t>(given)))
        return static_cast<uint64_t>(given);
    return cursor.broken(
        format("general.alignment: expected a power of two up to {}, found {}", kAlignmentMax, field->describe()));
}

}  // namespace

Status check_gguf_start(std::span<const std::byte> file, GgufCodes codes) {
    Cursor cursor(file, codes);
    TRY(read_start(cursor));
    return ok_status();
}

Result<GgufFile> parse_gguf(std::span<const std::byte> file, GgufCodes codes) {
    Cursor cursor(file, codes);
    TRY_ASSIGN(const Counts counts, read_start(cursor));
    GgufFile gguf;
    for (uint64_t i = 0; i < counts.n_fields; ++i) {
        TRY_ASSIGN(const std::string key, cursor.name("a field's key"));
        TRY_ASSIGN(const GgufValue value, read_value(cursor, key));
        if (!gguf.fields.emplace(key, value).second)
            return cursor.broken(format("field {} occurs twice", json_quote(key)));
    }
    std::set<std::string_view> names;
    std::vector<Placed> placed;
    for (uint64_t i = 0; i < counts.n_tensors; ++i) {
        TRY_ASSIGN(Placed one, read_tensor(cursor));
        placed.push_back(std::move(one));
    }
    for (const Placed& one : placed) {
        if (!names.insert(one.tensor.name).second)
            return cursor.broken(format("tensor {} occurs twice", json_quote(one.tensor.name)));
    }
    TRY_ASSIGN(const uint64_t alignment, alignment_of(gguf, cursor));
    TRY(place_tensors(placed, file, cursor, alignment, gguf.tensors));
    return gguf;
}

}  // namespace lorad::model
