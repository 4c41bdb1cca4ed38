// The sequences of a training file as they were prepared: tokens and labels, in one file that is mapped while it is
// trained on.
//
//   of each sequence: line (u32), n (u32), n tokens (i32), n labels (i32)
//   where each begins (u64), then their number (u64), where the list begins (u64), and 8 bytes that name the format
//
// Numbers are little-endian. It holds what users sent: it is not for logs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/files/mapped_file.h"
#include "proto/base/digest.h"
#include "proto/base/owned_fd.h"
#include "proto/base/result.h"
#include "server/training/line_encoder.h"

namespace lorad::server::training {

struct SequenceView {
    std::span<const TokenId> tokens;
    std::span<const int32_t> labels;
    uint32_t line = 0;
};

// One thread. Dropped before finish() it leaves nothing.
class TokenFileWriter {
  public:
    // Beside `path` until finish(). kStorageFull, kStorageFailed, here and below.
    static Result<std::unique_ptr<TokenFileWriter>> create(const std::filesystem::path& path);
    ~TokenFileWriter();
    TokenFileWriter(const TokenFileWriter&) = delete;
    TokenFileWriter& operator=(const TokenFileWriter&) = delete;

    Status add(const TrainingSequence& sequence);
    uint64_t bytes() const { return n_bytes_; }
    // Durable under its name when this returns. The digest of its bytes.
    Result<std::string> finish();

  private:
    TokenFileWriter(OwnedFd file, std::filesystem::path path, std::filesystem::path beside);
    Status write(std::span<const std::byte> bytes);
    Status flush();

    OwnedFd file_;
    const std::filesystem::path path_, beside_;
    std::vector<std::byte> buffer_;
    std::vector<uint64_t> begins_;
    uint64_t n_bytes_ = 0;
    Sha256 digest_;
    bool is_finished_ = false;
};

// Immutable, any thread.
class TokenFile {
  public:
    // kStorageFailed where it is missing, cut off, or not what `digest` says; an empty digest is not asked for.
    static Result<std::unique_ptr<const TokenFile>> open(const std::filesystem::path& path, std::string_view digest);
    size_t size() const { return begins_.size(); }
    SequenceView at(size_t sequence) const;
    uint32_t longest() const { return longest_; }  // tokens of a sequence

  private:
    explicit TokenFile(std::shared_ptr<const model::MappedFile> file) : file_(std::move(file)) {}
    Status read_index();

    std::shared_ptr<const model::MappedFile> file_;
    std::span<const uint64_t> begins_;
    uint32_t longest_ = 0;
};

}  // namespace lorad::server::training
