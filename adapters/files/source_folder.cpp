#include "adapters/files/source_folder.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/base/format.h"

namespace lorad::adapters {

namespace {

namespace fs = std::filesystem;

bool is_link(int fd) {
    struct stat status{};
    return ::fstat(fd, &status) == 0 && S_ISLNK(status.st_mode);
}

OwnedFd open_location(const AdapterLocation& location, int flags) {
    if (location.root.empty()) return OwnedFd(::open(location.path.c_str(), flags | O_CLOEXEC));
    const OwnedFd root(::open(location.root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!root.ok()) return OwnedFd();
    return open_beneath(root.get(), location.below.empty() ? fs::path(".") : location.below, flags);
}

Error forbidden_link(std::string_view what) {
    return make_error(ErrorCode::kAdapterPathForbidden,
                      format("{}: a link; below the folder that adapters are read from none is followed", what),
                      "lora_path");
}

}  // namespace

OwnedFd walk_beneath(int root, const fs::path& path, int flags) {
    OwnedFd at(::openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    for (auto part = path.begin(); at.ok() && part != path.end(); ++part) {
        const bool is_last = std::next(part) == path.end();
        OwnedFd next(::openat(at.get(), part->c_str(), (is_last ? flags : O_PATH) | O_NOFOLLOW | O_CLOEXEC));
        if (next.ok() && is_link(next.get())) {
            errno = ELOOP;
            return OwnedFd();
        }
        at = std::move(next);
    }
    return at;
}

OwnedFd open_beneath(int root, const fs::path& path, int flags) {
    constexpr int kTries = 8;  // EAGAIN: something was renamed meanwhile
    for (int i = 0; i < kTries; ++i) {
        open_how how{};
        how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
        how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
        OwnedFd fd(static_cast<int>(::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how)));
        if (fd.ok() || errno != EAGAIN) {
            // Old sandboxes answer EPERM to calls that they do not know.
            if (!fd.ok() && (errno == ENOSYS || errno == EPERM)) return walk_beneath(root, path, flags);
            return fd;
        }
    }
    return walk_beneath(root, path, flags);
}

Result<SourceFolder> SourceFolder::open(const AdapterLocation& location) {
    // Messages go to clients and into the log: they hold no path. Who asked knows it, and the command line tells it
    // beside the message.
    const auto not_there = [] {
        return make_error(ErrorCode::kAdapterNotFound, "there is no such adapter folder", "lora_path");
    };
    // The system would read on the part before a NUL.
    if (location.path.native().find('\0') != std::string::npos) return not_there();
    SourceFolder source;
    source.follows_links_ = location.root.empty();
    OwnedFd fd = open_location(location, O_PATH);
    if (!fd.ok()) return errno == ELOOP && !source.follows_links_ ? forbidden_link("the adapter's path") : not_there();
    struct stat status{};
    if (::fstat(fd.get(), &status) != 0) return not_there();
    if (S_ISDIR(status.st_mode)) {
        source.folder_ = std::move(fd);
        return source;
    }
    AdapterLocation folder = location;
    source.file_name_ = location.path.filename();
    folder.path = location.path.parent_path().empty() ? fs::path(".") : location.path.parent_path();
    folder.below = location.below.parent_path();
    source.folder_ = open_location(folder, O_PATH | O_DIRECTORY);
    if (!source.folder_.ok() || source.file_name_.empty()) return not_there();
    return source;
}

Result<SourceFolder> SourceFolder::inner(std::string_view name) const {
    const int links = follows_links_ ? 0 : O_NOFOLLOW;
    SourceFolder found;
    found.follows_links_ = follows_links_;
    found.folder_ =
        OwnedFd(::openat(folder_.get(), std::string(name).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | links));
    if (found.folder_.ok()) return found;
    struct stat status{};
    const bool is_linked = ::fstatat(folder_.get(), std::string(name).c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                           S_ISLNK(status.st_mode);
    if (is_linked && !follows_links_) return forbidden_link(name);
    return make_error(ErrorCode::kAdapterInvalid, format("{}: expected a folder", name));
}

bool SourceFolder::has(std::string_view name) const {
    struct stat status{};
    return ::fstatat(folder_.get(), std::string(name).c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

Result<FileReader> SourceFolder::reader(std::string_view name, std::string_view called, uint64_t bytes_max) const {
    const int links = follows_links_ ? 0 : O_NOFOLLOW;
    OwnedFd file(::openat(folder_.get(), std::string(name).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | links));
    if (!file.ok() && errno == ELOOP && !follows_links_) return forbidden_link(called);
    return FileReader::open(std::move(file), called, bytes_max);
}

Result<FileBytes> SourceFolder::read(std::string_view name, uint64_t bytes_max) const {
    TRY_ASSIGN(FileReader file, reader(name, name, bytes_max));
    return std::move(file).read_all();
}

Result<std::vector<std::string>> SourceFolder::names_ending(std::string_view end) const {
    const auto failed = [](int error) {
        return make_error(ErrorCode::kIo, format("the adapter folder: cannot read: {}",
                                                 std::error_code(error, std::generic_category()).message()));
    };
    OwnedFd list(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!list.ok()) return failed(errno);
    DIR* const stream = ::fdopendir(list.get());
    if (stream == nullptr) return failed(errno);
    (void)list.release();
    std::vector<std::string> names;
    for (errno = 0; const dirent* found = ::readdir(stream); errno = 0) {
        const std::string_view name = found->d_name;
        if (name.size() > end.size() && name.ends_with(end)) names.emplace_back(name);
    }
    const int error = errno;
    ::closedir(stream);
    if (error != 0) return failed(error);
    return names;
}

}  // namespace lorad::adapters
