#include "server/training/token_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "server/training/durable_file.h"

namespace lorad::server::training {
namespace {

constexpr std::string_view kTokenFileMagic = "LORADTK1";
constexpr size_t kTokenBufferBytes = size_t{1} << 20;
constexpr size_t kRecordWords = 2;  // line and number of tokens

struct Footer {
    uint64_t n_sequences, index_begin;
    char magic[8];
};
static_assert(sizeof(Footer) == 24);

Error damaged_tokens() {
    return make_error(ErrorCode::kStorageFailed, "the prepared data of this job is missing or damaged");
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
    return std::as_bytes(std::span(&value, 1));
}

}  // namespace

TokenFileWriter::TokenFileWriter(OwnedFd file, std::filesystem::path path, std::filesystem::path beside)
    : file_(std::move(file)), path_(std::move(path)), beside_(std::move(beside)) {
    buffer_.reserve(kTokenBufferBytes);
}

TokenFileWriter::~TokenFileWriter() {
    if (!is_finished_) ::unlink(beside_.c_str());
}

Result<std::unique_ptr<TokenFileWriter>> TokenFileWriter::create(const std::filesystem::path& path) {
    std::filesystem::path beside = path;
    beside += ".new";
    OwnedFd file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file.ok()) return disk_error("make a file", errno);
    return std::unique_ptr<TokenFileWriter>(new TokenFileWriter(std::move(file), path, std::move(beside)));
}

Status TokenFileWriter::flush() {
    digest_.add(buffer_);
    TRY(write_all(file_.get(), buffer_));
    buffer_.clear();
    return ok_status();
}

Status TokenFileWriter::write(std::span<const std::byte> bytes) {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    n_bytes_ += bytes.size();
    return buffer_.size() < kTokenBufferBytes ? ok_status() : flush();
}

Status TokenFileWriter::add(const TrainingSequence& sequence) {
    CHECK(sequence.tokens.size() == sequence.labels.size());
    begins_.push_back(n_bytes_);
    const uint32_t head[kRecordWords] = {sequence.line, static_cast<uint32_t>(sequence.tokens.size())};
    TRY(write(bytes_of(head)));
    TRY(write(std::as_bytes(std::span(sequence.tokens))));
    return write(std::as_bytes(std::span(sequence.labels)));
}

Result<std::string> TokenFileWriter::finish() {
    // The list of places is of eight bytes each, and begins at a multiple of them.
    constexpr size_t kWord = sizeof(uint64_t);
    const std::vector<std::byte> padding((kWord - n_bytes_ % kWord) % kWord);
    TRY(write(padding));
    Footer footer{begins_.size(), n_bytes_, {}};
    std::memcpy(footer.magic, kTokenFileMagic.data(), sizeof(footer.magic));
    TRY(write(std::as_bytes(std::span(begins_))));
    TRY(write(bytes_of(footer)));
    TRY(flush());
    TRY(put_in_place(file_.get(), beside_, path_));
    is_finished_ = true;
    return digest_.hex();
}

Result<std::unique_ptr<const TokenFile>> TokenFile::open(const std::filesystem::path& path, std::string_view digest) {
    // Whose job it is need not know where it lies.
    Result<std::shared_ptr<const model::MappedFile>> mapped = model::MappedFile::map(path, ErrorCode::kStorageFailed);
    if (!mapped.ok() || (!digest.empty() && sha256_hex((*mapped)->bytes()) != digest)) return damaged_tokens();
    auto file = std::unique_ptr<TokenFile>(new TokenFile(std::move(*mapped)));
    TRY(file->read_index());
    return std::unique_ptr<const TokenFile>(std::move(file));
}

Status TokenFile::read_index() {
    const std::span<const std::byte> all = file_->bytes();
    Footer footer{};
    if (all.size() < sizeof(footer)) return damaged_tokens();
    std::memcpy(&footer, all.data() + all.size() - sizeof(footer), sizeof(footer));
    const uint64_t n_index = all.size() - sizeof(footer);
    if (std::string_view(footer.magic, sizeof(footer.magic)) != kTokenFileMagic || footer.index_begin > n_index ||
        footer.index_begin % sizeof(uint64_t) != 0 ||
        (n_index - footer.index_begin) / sizeof(uint64_t) != footer.n_sequences ||
        (n_index - footer.index_begin) % sizeof(uint64_t) != 0)
        return damaged_tokens();
    begins_ = {reinterpret_cast<const uint64_t*>(all.data() + footer.index_begin), footer.n_sequences};
    for (const uint64_t begin : begins_) {
        uint32_t head[kRecordWords];
        if (begin % sizeof(uint32_t) != 0 || begin > footer.index_begin || footer.index_begin - begin < sizeof(head))
            return damaged_tokens();
        std::memcpy(head, all.data() + begin, sizeof(head));
        if ((footer.index_begin - begin - sizeof(head)) / (2 * sizeof(int32_t)) < head[1]) return damaged_tokens();
    }
    for (size_t i = 0; i < begins_.size(); ++i)
        longest_ = std::max(longest_, static_cast<uint32_t>(at(i).tokens.size()));
    return ok_status();
}

SequenceView TokenFile::at(size_t sequence) const {
    CHECK(sequence < begins_.size());
    const std::byte* begin = file_->bytes().data() + begins_[sequence];
    uint32_t head[kRecordWords];
    std::memcpy(head, begin, sizeof(head));
    const auto* tokens = reinterpret_cast<const int32_t*>(begin + sizeof(head));
    return {{tokens, head[1]}, {tokens + head[1], head[1]}, head[0]};
}

}  // namespace lorad::server::training
