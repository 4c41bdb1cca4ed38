#include "adapters/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "model/safetensors.h"
#include "proto/base/format.h"
#include "proto/base/rounding.h"
#include "proto/json.h"

namespace lorad::adapters {

namespace {

constexpr uint32_t kText = 8, kArray = 9, kFieldTypes = 13;
// Bytes of a value by type; 0: text or array.
constexpr std::array<uint32_t, kFieldTypes> kFieldBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr uint64_t kNameBytesMax = 1024, kFieldsMax = 65536, kTensorsMax = 65536;
constexpr uint32_t kDimensionsMax = 4;
constexpr uint64_t kDefaultAlignment = 32, kAlignmentMax = 1 << 20;

Error broken(std::string what) { return make_error(ErrorCode::kAdapterInvalid, std::move(what)); }

// Takes numbers off the front of a file.
class Cursor {
  public:
    explicit Cursor(std::span<const std::byte> file) : file_(file) {}

    size_t at() const { return at_; }
    size_t n_left() const { return file_.size() - at_; }

    Result<std::span<const std::byte>> take(uint64_t n, std::string_view what) {
        if (n > n_left()) return broken(format("cut short: {} needs {} bytes at {}, {} are left", what, n, at_, n_left()));
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
        if (bytes.empty() || bytes.size() > kNameBytesMax) {
            return broken(format("{}: a name of {} bytes, expected 1 to {}", what, bytes.size(), kNameBytesMax));
        }
        return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }

  private:
    std::span<const std::byte> file_;
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
        return broken(format("field {}: a value of type {}, expected 0 to {}{}", json_quote(key), value.type, kFieldTypes - 1,
                             value.type == kArray ? ", and no arrays of arrays" : ""));
    }
    if (value.type != kText) {
        uint64_t n_bytes = 0;
        if (__builtin_mul_overflow(value.n, uint64_t{kFieldBytes[value.type]}, &n_bytes)) {
            return broken(format("field {}: {} elements", json_quote(key), value.n));
        }
        TRY_ASSIGN(value.bytes, cursor.take(n_bytes, key));
        return value;
    }
    if (!value.is_array) {
        TRY_ASSIGN(value.bytes, cursor.text(key));
        return value;
    }
    if (value.n > cursor.n_left() / sizeof(uint64_t)) return broken(format("field {}: cut short in {} texts", json_quote(key), value.n));
    for (uint64_t i = 0; i < value.n; ++i) TRY(cursor.text(key));
    return value;
}

Result<uint64_t> bytes_of(GgufType type, std::span<const uint64_t> shape, const std::string& name) {
    uint64_t n_bytes = 1;
    bool overflows = false;
    for (const uint64_t size : shape) overflows |= __builtin_mul_overflow(n_bytes, size, &n_bytes);
    switch (type) {
        case GgufType::kF32: overflows |= __builtin_mul_overflow(n_bytes, uint64_t{4}, &n_bytes); break;
        case GgufType::kF16:
        case GgufType::kBF16: overflows |= __builtin_mul_overflow(n_bytes, uint64_t{2}, &n_bytes); break;
        case GgufType::kQ8_0:
            if (shape.back() % kQ8Numbers != 0) {
                return broken(format("tensor {}: Q8_0 with rows of {}, expected a multiple of {}", json_quote(name), shape.back(), kQ8Numbers));
            }
            n_bytes /= kQ8Numbers;
            overflows |= __builtin_mul_overflow(n_bytes, uint64_t{kQ8Bytes}, &n_bytes);
            break;
    }
    if (overflows) return broken(format("tensor {}: the number of bytes of {} overflows 64 bits", json_quote(name), model::shape_text(shape)));
    return n_bytes;
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
        return broken(format("tensor {}: {} dimensions, expected 1 to {}", json_quote(name), n_dimensions, kDimensionsMax));
    }
    std::vector<uint64_t>& shape = placed.tensor.shape;
    for (uint32_t i = 0; i < n_dimensions; ++i) {
        TRY_ASSIGN(const uint64_t size, cursor.number<uint64_t>(name));
        if (size == 0) return broken(format("tensor {}: a dimension of 0", json_quote(name)));
        shape.push_back(size);
    }
    while (shape.size() > 2 && shape.back() == 1) shape.pop_back();
    std::ranges::reverse(shape);
    TRY_ASSIGN(const uint32_t type, cursor.number<uint32_t>(name));
    placed.tensor.type = static_cast<GgufType>(type);
    if (name_of(placed.tensor.type).empty()) {
        return make_error(ErrorCode::kAdapterUnsupported,
                          format("tensor {}: ggml type {} is not supported; F32, F16, BF16 and Q8_0 are", json_quote(name), type));
    }
    TRY_ASSIGN(placed.offset, cursor.number<uint64_t>(name));
    TRY_ASSIGN(placed.n_bytes, bytes_of(placed.tensor.type, shape, name));
    return placed;
}

// The tensors' bytes follow each other from `data_begin` on, each padded to the alignment.
Status place_tensors(std::vector<Placed>& placed, std::span<const std::byte> file, uint64_t data_begin, uint64_t alignment,
                     std::vector<GgufTensor>& tensors) {
    std::ranges::sort(placed, {}, &Placed::offset);
    const uint64_t n_data = file.size() > data_begin ? file.size() - data_begin : 0;
    uint64_t end = 0;  // at most n_data
    for (Placed& one : placed) {
        const uint64_t expected = round_up(end, alignment);
        if (one.offset != expected) {
            return broken(format("tensor {}: its bytes begin at {} of the data, expected {}", json_quote(one.tensor.name), one.offset, expected));
        }
        if (one.offset > n_data || one.n_bytes > n_data - one.offset) {
            return broken(format("cut short: tensor {} has {} bytes at {}, the data has {}", json_quote(one.tensor.name), one.n_bytes,
                                 one.offset, n_data));
        }
        one.tensor.data = file.subspan(data_begin + one.offset, one.n_bytes);
        end = one.offset + one.n_bytes;
        tensors.push_back(std::move(one.tensor));
    }
    if (n_data - end >= alignment) return broken(format("{} bytes follow the last tensor's", n_data - end));
    std::ranges::sort(tensors, {}, &GgufTensor::name);
    const auto twice = std::ranges::adjacent_find(tensors, {}, &GgufTensor::name);
    if (twice != tensors.end()) return broken(format("tensor {} occurs twice", json_quote(twice->name)));
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
        case 10: return std::bit_cast<int64_t>(number_at<uint64_t>(value.bytes, index));
        case 11: return number_at<int64_t>(value.bytes, index);
        default: return std::nullopt;
    }
}

}  // namespace

std::string_view name_of(GgufType type) {
    switch (type) {
        case GgufType::kF32: return "F32";
        case GgufType::kF16: return "F16";
        case GgufType::kBF16: return "BF16";
        case GgufType::kQ8_0: return "Q8_0";
    }
    return "";
}

std::optional<std::string_view> GgufValue::as_text() const {
    if (is_array || type != kText) return std::nullopt;
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::optional<double> GgufValue::as_number() const {
    if (is_array) return std::nullopt;
    if (type == 6) return number_at<float>(bytes, 0);
    if (type == 12) return number_at<double>(bytes, 0);
    const std::optional<int64_t> integer = integer_at(*this, 0);
    return integer ? std::optional(static_cast<double>(*integer)) : std::nullopt;
}

std::optional<std::vector<int64_t>> GgufValue::as_integers() const {
    std::vector<int64_t> integers;
    for (uint64_t i = 0; is_array && i < n; ++i) {
        const std::optional<int64_t> integer = integer_at(*this, i);
        if (!integer) return std::nullopt;
        integers.push_back(*integer);
    }
    return is_array ? std::optional(std::move(integers)) : std::nullopt;
}

namespace {

struct Counts {
    uint64_t n_tensors = 0, n_fields = 0;
};

Result<Counts> read_start(Cursor& cursor) {
    TRY_ASSIGN(const auto magic, cursor.take(4, "the magic number"));
    if (std::memcmp(magic.data(), "GGUF", 4) != 0) return broken("not a GGUF file: it does not begin with GGUF");
    TRY_ASSIGN(const uint32_t version, cursor.number<uint32_t>("the version"));
    if (version != 2 && version != 3) {
        const bool is_swapped = version != 0 && (version & 0xffffff) == 0;
        return make_error(ErrorCode::kAdapterUnsupported,
                          is_swapped ? std::string("a big-endian GGUF file is not supported")
                                     : format("GGUF version {} is not supported; 2 and 3 are", version));
    }
    TRY_ASSIGN(const uint64_t n_tensors, cursor.number<uint64_t>("the number of tensors"));
    TRY_ASSIGN(const uint64_t n_fields, cursor.number<uint64_t>("the number of fields"));
    if (n_tensors > kTensorsMax || n_fields > kFieldsMax) {
        return broken(format("{} tensors and {} fields, at most {} and {} are read", n_tensors, n_fields, kTensorsMax, kFieldsMax));
    }
    return Counts{n_tensors, n_fields};
}

// A base model, of which the first thing to say is not that its tensors have types of which adapters are none. Older ones do not tell what they are.
Status check_is_no_model(const GgufFile& gguf) {
    const auto field = gguf.fields.find("general.type");
    const auto type = field == gguf.fields.end() ? std::nullopt : field->second.as_text();
    if (type ? *type != "model" : !gguf.fields.contains("general.architecture")) return ok_status();
    return make_error(ErrorCode::kAdapterUnsupported,
                      format("general.type: expected \"adapter\", found {}: a whole model in GGUF, which lorad does not read yet, and no LoRA adapter",
                             type ? "\"model\"" : "nothing"));
}

}  // namespace

Status check_gguf_start(std::span<const std::byte> file) {
    Cursor cursor(file);
    TRY(read_start(cursor));
    return ok_status();
}

Result<GgufFile> parse_gguf(std::span<const std::byte> file) {
    Cursor cursor(file);
    TRY_ASSIGN(const Counts counts, read_start(cursor));
    GgufFile gguf;
    for (uint64_t i = 0; i < counts.n_fields; ++i) {
        TRY_ASSIGN(const std::string key, cursor.name("a field's key"));
        TRY_ASSIGN(const GgufValue value, read_value(cursor, key));
        if (!gguf.fields.emplace(key, value).second) return broken(format("field {} occurs twice", json_quote(key)));
    }
    TRY(check_is_no_model(gguf));
    std::vector<Placed> placed;
    for (uint64_t i = 0; i < counts.n_tensors; ++i) {
        TRY_ASSIGN(Placed one, read_tensor(cursor));
        placed.push_back(std::move(one));
    }
    uint64_t alignment = kDefaultAlignment;
    if (const auto field = gguf.fields.find("general.alignment"); field != gguf.fields.end()) {
        const std::optional<int64_t> given = field->second.is_array ? std::nullopt : integer_at(field->second, 0);
        if (!given || *given < 1 || *given > int64_t{kAlignmentMax} || !std::has_single_bit(static_cast<uint64_t>(*given))) {
            return broken(format("general.alignment: expected a power of two up to {}", kAlignmentMax));
        }
        alignment = static_cast<uint64_t>(*given);
    }
    const uint64_t data_begin = round_up(cursor.at(), alignment);
    TRY(place_tensors(placed, file, data_begin, alignment, gguf.tensors));
    return gguf;
}

}  // namespace lorad::adapters
