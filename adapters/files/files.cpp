#include "adapters/files/files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "proto/base/rounding.h"

namespace lorad::adapters {

namespace {

constexpr size_t kHugePagesFrom = size_t{8} << 20;
constexpr size_t kReadBytes = size_t{64} << 20;  // per read()

std::string system_text(int error) { return std::error_code(error, std::generic_category()).message(); }

}  // namespace

void prefer_huge_pages(void* begin, size_t size) {
    constexpr uintptr_t kPage = 4096;
    const auto address = reinterpret_cast<uintptr_t>(begin);
    const uintptr_t first = round_up(address, kPage), end = (address + size) / kPage * kPage;
    if (size < kHugePagesFrom || first >= end) return;
    // A system without huge pages ignores it.
    (void)::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

Result<FileBytes> FileBytes::allocate(uint64_t size, std::string_view what) {
    FileBytes contents;
    contents.bytes.reset(new (std::nothrow) std::byte[std::max<size_t>(size, 1)]);
    if (!contents.bytes) {
        return make_error(ErrorCode::kOutOfMemory, format("{}: {} bytes of host memory are not there", what, size));
    }
    contents.size = size;
    prefer_huge_pages(contents.bytes.get(), size);
    return contents;
}

FileBytes FileBytes::copy_of(std::span<const std::byte> contents) {
    FileBytes copy;
    copy.bytes = std::make_shared_for_overwrite<std::byte[]>(std::max<size_t>(contents.size(), 1));
    copy.size = contents.size();
    if (!contents.empty()) std::memcpy(copy.bytes.get(), contents.data(), contents.size());
    return copy;
}

Result<FileReader> FileReader::open(OwnedFd file, std::string_view name, uint64_t bytes_max) {
    if (!file.ok()) {
        // The folder's content is the client's: only errors of limits and of the disk are the server's failure.
        const bool is_ours = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EIO;
        if (errno == ENOENT) return make_error(ErrorCode::kAdapterInvalid, format("{}: the file is missing", name));
        return make_error(is_ours ? ErrorCode::kIo : ErrorCode::kAdapterInvalid,
                          format("{}: cannot open: {}", name, system_text(errno)));
    }
    FileReader reader(std::move(file), std::string(name));
    struct stat status{};
    if (::fstat(reader.file_.get(), &status) != 0) {
        return make_error(ErrorCode::kIo, format("{}: cannot read: {}", name, system_text(errno)));
    }
    if (!S_ISREG(status.st_mode)) {
        return make_error(ErrorCode::kAdapterInvalid,
                          format("{}: expected a regular file, found something else", name));
    }
    const auto size = static_cast<uint64_t>(status.st_size);
    if (size > bytes_max) {
        return make_error(ErrorCode::kAdapterInvalid,
                          format("{}: {} bytes, at most {} are read", name, size, bytes_max));
    }
    TRY_ASSIGN(reader.contents_, FileBytes::allocate(size, name));
    return reader;
}

Status FileReader::read_until(uint64_t n_bytes) {
    n_bytes = std::min<uint64_t>(n_bytes, size());
    while (n_read_ < n_bytes) {
        const ssize_t got =
            ::read(file_.get(), contents_.bytes.get() + n_read_, std::min<size_t>(n_bytes - n_read_, kReadBytes));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return make_error(ErrorCode::kIo, format("{}: cannot read: {}", name_, system_text(errno)));
        if (got == 0) {
            return make_error(ErrorCode::kAdapterInvalid,
                              format("{}: it shrank from {} to {} bytes while it was read", name_, size(), n_read_));
        }
        n_read_ += static_cast<uint64_t>(got);
    }
    return ok_status();
}

Result<FileBytes> FileReader::read_all() && {
    TRY(read_until(size()));
    return std::move(contents_);
}

}  // namespace lorad::adapters
