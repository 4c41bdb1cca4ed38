// The types of numbers in GGUF files: blocks of so many numbers in so many bytes. The numbers of the types are ggml's
// (include/ggml.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lorad::model {

enum class GgmlType : uint32_t {
    kF32 = 0,
    kF16 = 1,
    kQ4_0 = 2,
    kQ4_1 = 3,
    kQ5_0 = 6,
    kQ5_1 = 7,
    kQ8_0 = 8,
    kQ3_K = 11,
    kQ4_K = 12,
    kQ5_K = 13,
    kQ6_K = 14,
    kIQ4_NL = 20,
    kIQ4_XS = 23,
    kBF16 = 30,
    kMXFP4 = 39,
};

struct GgmlTypeInfo {
    uint32_t number = 0;
    std::string_view name;
    uint32_t block_numbers = 0;  // in one block; a row is whole blocks
    uint32_t block_bytes = 0;    // 0: ggml has dropped the type, its number has no meaning any more
    bool is_read = false;        // decode_ggml() has it
};
// nullptr: no type that lorad knows has this number.
const GgmlTypeInfo* ggml_type_info(uint32_t number);
// The type must be a known one (CHECK).
const GgmlTypeInfo& info_of(GgmlType type);
std::string_view name_of(GgmlType type);  // "Q4_K"
// The type holds numbers as they are, not codes of few bits.
inline bool is_plain(GgmlType type) {
    return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16;
}
// "F32, F16, Q4_0, ...": what decode_ggml() reads.
std::string readable_ggml_types();

}  // namespace lorad::model
