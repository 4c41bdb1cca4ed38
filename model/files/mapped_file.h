// A file that is mapped for reading: of the base model, which nobody changes while it loads.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "proto/base/result.h"

namespace lorad::model {

// Immutable, so any thread. The bytes live as long as it does.
class MappedFile {
  public:
    // Errors carry `code` and the file's name: missing, not a regular file, not to be mapped. An empty file has no
    // bytes.
    static Result<std::shared_ptr<const MappedFile>> map(const std::filesystem::path& file, ErrorCode code);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::span<const std::byte> bytes() const { return bytes_; }

  private:
    explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
    std::span<const std::byte> bytes_;
};

}  // namespace lorad::model
