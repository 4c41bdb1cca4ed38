// The form that a request wants its answer to have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lorad::proto {

inline constexpr size_t kStructureBytesMax = 256 << 10;

enum class StructureKind : uint8_t { kJsonSchema, kRegex, kLark };

struct Structure {
    StructureKind kind = StructureKind::kJsonSchema;
    std::string source;  // a JSON schema's text, a regular expression, or a grammar in Lark's form
    std::string param;   // the field that asked for it
};

}  // namespace lorad::proto
