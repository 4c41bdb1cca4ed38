// Reads GGUF files, trusting no byte of them: fields, tensors, and where their bytes lie. What the fields mean is another file's
// business. Versions 2 and 3, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad::adapters {

// Types of tensors that adapters come in; the format has many more, which are refused by number.
enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30 };
std::string_view name_of(GgufType type);  // "Q8_0"
// Q8_0: blocks of 32 numbers, an f16 factor and 32 int8 each.
inline constexpr uint32_t kQ8Numbers = 32, kQ8Bytes = 34;

struct GgufTensor {
    std::string name;
    GgufType type = GgufType::kF32;
    std::vector<uint64_t> shape;  // slowest first, as elsewhere here: a matrix is [rows][columns]; no sizes of 1 in front
    std::span<const std::byte> data;
};

// A field's value, still in the file's bytes.
struct GgufValue {
    uint32_t type = 0;          // of the value, or of an array's elements
    bool is_array = false;
    uint64_t n = 1;             // elements
    std::span<const std::byte> bytes;

    std::optional<std::string_view> as_text() const;
    std::optional<double> as_number() const;                 // any integer or float
    std::optional<std::vector<int64_t>> as_integers() const;  // an array of integers
};

struct GgufFile {
    std::map<std::string, GgufValue, std::less<>> fields;
    std::vector<GgufTensor> tensors;  // sorted by name; spans point into the file
};

// What every file begins with: magic number, version and how much of all follows. Looks at the first kGgufStartBytes only.
inline constexpr size_t kGgufStartBytes = 24;
Status check_gguf_start(std::span<const std::byte> file);

// kAdapterInvalid, or kAdapterUnsupported for versions, byte orders and types that are not read. The fuzzed entry point.
Result<GgufFile> parse_gguf(std::span<const std::byte> file);

}  // namespace lorad::adapters
