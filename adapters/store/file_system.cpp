#include "adapters/store/file_system.h"

#include <cerrno>
#include <map>
#include <mutex>
#include <system_error>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "proto/base/owned_fd.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

constexpr size_t kTransferBytes = size_t{64} << 20;  // per read() or write()

Error system_error(std::string_view what, const std::string& path, int error) {
    const auto code = [&] {
        switch (error) {
            case ENOENT: return ErrorCode::kAdapterFileNotFound;
            case ENOSPC:
            case EDQUOT:
            case EFBIG: return ErrorCode::kStorageFull;
            case EROFS: return ErrorCode::kStoreReadOnly;
            case ENOMEM: return ErrorCode::kOutOfMemory;
            default: return ErrorCode::kStorageFailed;
        }
    };
    return make_error(code(), format("the adapter store: cannot {} {}: {}", what, json_quote(path),
                                     std::error_code(error, std::generic_category()).message()));
}

class SystemFile final : public NewFile {
  public:
    SystemFile(OwnedFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

    Status write(std::span<const std::byte> bytes) override {
        while (!bytes.empty()) {
            const ssize_t n = ::write(file_.get(), bytes.data(), std::min(bytes.size(), kTransferBytes));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) return system_error("write", path_, errno);
            bytes = bytes.subspan(static_cast<size_t>(n));
        }
        return ok_status();
    }
    Status sync() override {
        if (::fsync(file_.get()) != 0) return system_error("sync", path_, errno);
        return ok_status();
    }

  private:
    OwnedFd file_;
    const std::string path_;
};

class SystemFileSystem final : public FileSystem {
  public:
    SystemFileSystem(OwnedFd root, std::filesystem::path path) : root_(std::move(path)) {
        folders_.emplace("", std::move(root));
    }

    Status make_folder(const std::string& path) override {
        const int root = folders_.at("").get();
        if (::mkdirat(root, path.c_str(), 0700) != 0 && errno != EEXIST)
            return system_error("make the folder", path, errno);
        OwnedFd folder(::openat(root, path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (!folder.ok()) return system_error("open the folder", path, errno);
        folders_.emplace(path, std::move(folder));
        return ok_status();
    }

    Result<std::unique_ptr<NewFile>> create(const std::string& path) override {
        const Place place = place_of(path);
        OwnedFd file(::openat(place.folder, place.name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!file.ok()) return system_error("create", path, errno);
        return std::unique_ptr<NewFile>(std::make_unique<SystemFile>(std::move(file), path));
    }

    Result<FileBytes> read(const std::string& path, uint64_t bytes_max) override {
        const Place place = place_of(path);
        const OwnedFd file(::openat(place.folder, place.name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
        // Whatever keeps a file from being read may be over later, unless it is no file at all.
        const auto failed = [&](std::string_view what) {
            const int why = errno;
            Error error = system_error(what, path, why);
            if (why != ENOENT && why != ELOOP) error.code = ErrorCode::kIo;
            return error;
        };
        if (!file.ok()) return failed("open");
        struct stat status{};
        if (::fstat(file.get(), &status) != 0) return failed("read");
        const auto size = static_cast<uint64_t>(status.st_size);
        if (!S_ISREG(status.st_mode) || size > bytes_max) {
            return make_error(ErrorCode::kStorageFailed,
                              format("the adapter store: {}: expected a regular file of at most {} bytes",
                                     json_quote(path), bytes_max));
        }
        TRY_ASSIGN(FileBytes contents, FileBytes::allocate(size, path));
        size_t at = 0;
        while (at < size) {
            const ssize_t n =
                ::read(file.get(), contents.bytes.get() + at, std::min<size_t>(size - at, kTransferBytes));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) return failed("read");
            if (n == 0)
                return make_error(ErrorCode::kStorageFailed,
                                  format("the adapter store: {} is cut off", json_quote(path)));
            at += static_cast<size_t>(n);
        }
        return contents;
    }

    Status rename(const std::string& from, const std::string& to) override {
        const Place source = place_of(from), target = place_of(to);
        if (::renameat(source.folder, source.name, target.folder, target.name) != 0)
            return system_error("rename", from, errno);
        return ok_status();
    }

    Status remove(const std::string& path) override {
        const Place place = place_of(path);
        if (::unlinkat(place.folder, place.name, 0) != 0) return system_error("remove", path, errno);
        return ok_status();
    }

    Status sync_folder(const std::string& folder) override {
        if (::fsync(folders_.at(folder).get()) != 0) return system_error("sync the folder", folder, errno);
        return ok_status();
    }

    Result<std::vector<Entry>> list(const std::string& folder) override {
        const int fd = ::openat(folders_.at(folder).get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) return system_error("list", folder, errno);
        DIR* stream = ::fdopendir(fd);
        if (stream == nullptr) {
            ::close(fd);
            return system_error("list", folder, errno);
        }
        std::vector<Entry> entries;
        for (errno = 0; const dirent* found = ::readdir(stream); errno = 0) {
            const std::string name = found->d_name;
            if (name == "." || name == "..") continue;
            struct stat status{};
            if (::fstatat(fd, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
            entries.push_back({name, S_ISREG(status.st_mode), static_cast<uint64_t>(status.st_size),
                               static_cast<int64_t>(status.st_mtime)});
        }
        const int error = errno;
        ::closedir(stream);
        if (error != 0) return system_error("list", folder, error);
        return entries;
    }

    Status lock(const std::string& path) override {
        const Place place = place_of(path);
        OwnedFd file(::openat(place.folder, place.name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!file.ok()) return system_error("open", path, errno);
        if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK) return system_error("lock", path, errno);
            return make_error(ErrorCode::kStorageFailed, "another process uses this folder");
        }
        lock_ = std::move(file);
        return ok_status();
    }

    Status is_in_place() const override {
        for (const auto& [name, folder] : folders_) {
            struct stat ours{}, named{};
            const bool is_there = ::fstat(folder.get(), &ours) == 0 && ::stat((root_ / name).c_str(), &named) == 0;
            if (is_there && ours.st_dev == named.st_dev && ours.st_ino == named.st_ino) continue;
            return make_error(ErrorCode::kStoreReadOnly, "the folder of the adapter store was moved or removed; "
                                                         "nothing is taken until it is back, or a restart");
        }
        return ok_status();
    }

  private:
    struct Place {
        int folder;
        const char* name;  // of the path asked about
    };
    // Folders are opened once; what lies behind their names later does not matter. Takes no memory: uploads that fail
    // for want of it clean up.
    Place place_of(const std::string& path) const {
        const size_t slash = path.find('/');
        if (slash == std::string::npos) return {folders_.find(std::string_view())->second.get(), path.c_str()};
        const auto folder = folders_.find(std::string_view(path).substr(0, slash));
        CHECK(folder != folders_.end());
        return {folder->second.get(), path.c_str() + slash + 1};
    }

    const std::filesystem::path root_;
    std::map<std::string, OwnedFd, std::less<>> folders_;  // all made before other threads come
    OwnedFd lock_;
};

}  // namespace

Result<std::unique_ptr<FileSystem>> open_file_system(const std::filesystem::path& root) {
    std::error_code error;
    std::filesystem::create_directories(root.parent_path(), error);
    if (::mkdir(root.c_str(), 0700) != 0 && errno != EEXIST)
        return system_error("make the folder", root.string(), errno);
    OwnedFd folder(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder.ok()) return system_error("open the folder", root.string(), errno);
    return std::unique_ptr<FileSystem>(
        std::make_unique<SystemFileSystem>(std::move(folder), std::filesystem::absolute(root, error)));
}

Status replace_file(FileSystem& files, const std::string& name, const std::string& beside,
                    std::span<const std::byte> bytes) {
    const Status written = [&]() -> Status {
        TRY_ASSIGN(std::unique_ptr<NewFile> file, files.create(beside));
        TRY(file->write(bytes));
        TRY(file->sync());
        file.reset();
        TRY(files.rename(beside, name));
        return files.sync_folder("");
    }();
    if (!written.ok()) (void)files.remove(beside);
    return written;
}

}  // namespace lorad::adapters
