// Bytes of adapter files, read once and whole, so that the same bytes are checked, hashed and uploaded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "proto/base/digest.h"
#include "proto/base/owned_fd.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// The bytes keep their address when it is moved. Copies share them; only the maker writes, before they are shared.
struct FileBytes {
    std::shared_ptr<std::byte[]> bytes;
    size_t size = 0;
    std::span<const std::byte> span() const { return {bytes.get(), size}; }
    std::string_view text() const { return {reinterpret_cast<const char*>(bytes.get()), size}; }

    // kOutOfMemory if the host has not that much. The contents are not initialised.
    static Result<FileBytes> allocate(uint64_t size, std::string_view what);
    static FileBytes copy_of(std::span<const std::byte> contents);
};

// A hint for memory that is about to be filled: an adapter touches tens of thousands of fresh pages otherwise, which
// costs as much as reading it.
void prefer_huge_pages(void* begin, size_t size);

// A file that is read from its beginning, piece by piece, so that invalid files are refused after their first bytes.
// One thread.
class FileReader {
  public:
    // Wraps a file that was just opened; an invalid `file` is reported by errno. Messages call it `name`.
    // kAdapterInvalid: missing, not a regular file or larger than bytes_max. kIo, kOutOfMemory.
    static Result<FileReader> open(OwnedFd file, std::string_view name, uint64_t bytes_max);

    uint64_t size() const { return contents_.size; }
    // All of the file's size; only what was read is filled.
    std::span<const std::byte> span() const { return contents_.span(); }
    // The first n_bytes, or all. kIo: reading failed. kAdapterInvalid: the file shrank.
    Status read_until(uint64_t n_bytes);
    Result<FileBytes> read_all() &&;

  private:
    FileReader(OwnedFd file, std::string name) : file_(std::move(file)), name_(std::move(name)) {}

    OwnedFd file_;
    std::string name_;
    FileBytes contents_;
    uint64_t n_read_ = 0;
};

}  // namespace lorad::adapters
