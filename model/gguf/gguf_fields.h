// Fields of a GGUF file as the numbers that they are meant to be, with errors that name them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "model/gguf/gguf_file.h"
#include "proto/base/result.h"

namespace lorad::model {

// "llama.block_count: expected 1 to 1024, found 0 (uint32)"
Error gguf_field_error(std::string_view key, std::string_view expected, const GgufValue& found);

// The fields whose keys begin with the architecture's name. A value that is given for each layer must be the same for
// all of them.
class GgufFields {
  public:
    GgufFields(const GgufFile& file, std::string_view architecture)
        : file_(file), prefix_(std::string(architecture) + ".") {}

    std::string full(std::string_view key) const { return prefix_ + std::string(key); }
    const GgufValue* find(std::string_view key) const { return file_.field(full(key)); }

    Result<uint32_t> size_of(std::string_view key, uint32_t max) const;  // from 1 on; must be there
    Result<uint32_t> size_or(std::string_view key, uint32_t fallback, uint32_t max) const;
    Result<double> number_or(std::string_view key, double fallback, double min, double max) const;
    Result<std::string_view> text_or(std::string_view key, std::string_view fallback) const;

  private:
    const GgufFile& file_;
    std::string prefix_;
};

}  // namespace lorad::model
