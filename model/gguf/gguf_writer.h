// Writes GGUF files, version 3: fields and tensors in the order in which they were added.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf/gguf_file.h"
#include "model/quant/ggml_types.h"
#include "proto/base/result.h"

namespace lorad::model {

class GgufWriter {
  public:
    // The bytes of rows [row_begin, row_begin + n_rows). Any thread. An error ends the writing.
    using Rows = std::function<Status(uint64_t row_begin, uint64_t n_rows, std::span<std::byte> out)>;

    void text(std::string_view key, std::string_view value);
    void u32(std::string_view key, uint32_t value);
    void f32(std::string_view key, float value);
    void flag(std::string_view key, bool value);
    void texts(std::string_view key, std::span<const std::string> values);
    void integers(std::string_view key, std::span<const int32_t> values);
    // A field of another file, as it is there.
    void copy(std::string_view key, const GgufValue& value);
    // shape: slowest first, whole blocks in a row.
    void tensor(std::string name, GgmlType type, std::vector<uint64_t> shape, Rows rows);

    uint64_t tensor_bytes() const { return offset_; }
    // All of it, on several threads, into `to`.part, which gets its name when it is whole and is removed if it could
    // not be written. kIo, or what a tensor's rows have returned.
    Status write(const std::filesystem::path& to, const std::function<void(uint64_t n_bytes_done)>& on_bytes) const;

  private:
    struct Entry {
        GgmlType type;
        uint64_t n_rows, row_bytes;
        Rows rows;
    };
    void key(std::string_view name, uint32_t type);

    std::string fields_, infos_;
    uint64_t n_fields_ = 0, offset_ = 0;
    std::vector<Entry> tensors_;
};

}  // namespace lorad::model
