#include "server/training/durable_file.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "proto/base/owned_fd.h"

namespace lorad::server::training {

Error disk_error(std::string_view what, int error) {
    ErrorCode code = ErrorCode::kStorageFailed;
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) code = ErrorCode::kStorageFull;
    if (error == EROFS) code = ErrorCode::kStoreReadOnly;
    return make_error(code, format("the training store cannot {}: {}", what, std::generic_category().message(error)));
}

Status write_all(int fd, std::span<const std::byte> bytes) {
    constexpr size_t kAtOnce = size_t{16} << 20;
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd, bytes.data(), std::min(bytes.size(), kAtOnce));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return disk_error("write", errno);
        bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return ok_status();
}

Status sync_parent(const std::filesystem::path& path) {
    const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    const OwnedFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.ok() || ::fsync(fd.get()) != 0) return disk_error("sync a folder", errno);
    return ok_status();
}

Status put_in_place(int fd, const std::filesystem::path& beside, const std::filesystem::path& path) {
    if (::fsync(fd) != 0) return disk_error("sync a file", errno);
    if (::rename(beside.c_str(), path.c_str()) != 0) return disk_error("rename a file", errno);
    return sync_parent(path);
}

Status write_durably(const std::filesystem::path& path, std::span<const std::byte> bytes) {
    std::filesystem::path beside = path;
    beside += ".new";
    const auto written = [&]() -> Status {
        const OwnedFd fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!fd.ok()) return disk_error("make a file", errno);
        TRY(write_all(fd.get(), bytes));
        return put_in_place(fd.get(), beside, path);
    }();
    if (!written.ok()) ::unlink(beside.c_str());
    return written;
}

Status write_durably(const std::filesystem::path& path, std::string_view text) {
    return write_durably(path, std::as_bytes(std::span(text)));
}

Result<std::string> read_whole(const std::filesystem::path& path, uint64_t bytes_max) {
    const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd.ok() && errno == ENOENT) return make_error(ErrorCode::kNotFound, "no such file in the training store");
    if (!fd.ok()) return disk_error("open a file", errno);
    struct stat status{};
    if (::fstat(fd.get(), &status) != 0) return disk_error("read a file", errno);
    const auto size = static_cast<uint64_t>(status.st_size);
    if (!S_ISREG(status.st_mode) || size > bytes_max)
        return make_error(
            ErrorCode::kStorageFailed,
            format("the training store has a file of {} bytes where at most {} are expected", size, bytes_max));
    std::string text(size, '\0');
    size_t at = 0;
    while (at < text.size()) {
        const ssize_t n = ::read(fd.get(), text.data() + at, text.size() - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return disk_error("read a file", errno);
        if (n == 0) return make_error(ErrorCode::kStorageFailed, "a file of the training store is cut off");
        at += static_cast<size_t>(n);
    }
    return text;
}

void remove_quietly(const std::filesystem::path& path) { ::unlink(path.c_str()); }

Status make_folder(const std::filesystem::path& path) {
    std::error_code error;
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return disk_error("make a folder", errno);
    return std::filesystem::is_directory(path, error) ? ok_status() : Status(disk_error("make a folder", ENOTDIR));
}

}  // namespace lorad::server::training
