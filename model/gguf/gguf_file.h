// Reads GGUF files, trusting no byte of them: fields, tensors, and where their bytes lie.
// adapters/files/gguf_adapter.cpp and model/gguf/gguf_model.h interpret the fields. Versions 2 and 3, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/quant/ggml_types.h"
#include "proto/base/result.h"

namespace lorad::model {

// Codes of what is wrong with a file: broken, or of a version, byte order or type that is not read.
struct GgufCodes {
    ErrorCode broken, unsupported;
    bool may_have_gaps = false;  // bytes that no tensor covers; else they are refused
};
// A model that lacks a tensor has a gap where it was: which one is missing says more.
inline constexpr GgufCodes kGgufModelCodes{ErrorCode::kInvalidModel, ErrorCode::kInvalidModel, true};
inline constexpr GgufCodes kGgufAdapterCodes{ErrorCode::kAdapterInvalid, ErrorCode::kAdapterUnsupported};

struct GgufTensor {
    std::string name;
    GgmlType type = GgmlType::kF32;
    // slowest first, as elsewhere here: a matrix is [rows][columns]; no sizes of 1 in front
    std::vector<uint64_t> shape;
    std::span<const std::byte> data;
};

// A field's value, still in the file's bytes.
struct GgufValue {
    uint32_t type = 0;  // of the value, or of an array's elements
    bool is_array = false;
    uint64_t n = 1;  // elements
    std::span<const std::byte> bytes;

    std::optional<std::string_view> as_text() const;
    std::optional<double> as_number() const;    // any integer or float
    std::optional<int64_t> as_integer() const;  // any integer; of uint64 those that int64 holds
    std::optional<bool> as_flag() const;
    std::optional<std::vector<int64_t>> as_integers() const;  // an array of integers
    std::optional<std::vector<double>> as_numbers() const;    // an array of integers or floats
    std::optional<std::vector<bool>> as_flags() const;        // an array of flags
    std::optional<std::vector<std::string_view>> as_texts() const;
    std::string describe() const;  // "uint32 7", "a text", "an array of 12": for messages
};

struct GgufFile {
    std::map<std::string, GgufValue, std::less<>> fields;
    std::vector<GgufTensor> tensors;  // sorted by name; spans point into the file

    const GgufValue* field(std::string_view key) const;  // nullptr: there is none
    std::string text(std::string_view key) const;        // empty: no such field, or no text
};

// Checks the start of a file: magic number, version and the counts of what follows. Looks at the first kGgufStartBytes
// only.
inline constexpr size_t kGgufStartBytes = 24;
Status check_gguf_start(std::span<const std::byte> file, GgufCodes codes);

// Every tensor lies within the file, behind the one before it and aligned, and has whole blocks of a type that ggml has
// today: whether somebody reads that type is not asked. Time and memory are bounded by the file's size. The fuzzed
// entry point.
Result<GgufFile> parse_gguf(std::span<const std::byte> file, GgufCodes codes);

}  // namespace lorad::model
