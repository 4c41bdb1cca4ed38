// A disk in memory whose program ends, or that fails, at a chosen call. It knows what is only in the system's cache:
// names and bytes survive a loss of power once they were synced, before that perhaps.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>

#include "adapters/store/file_system.h"
#include "proto/base/format.h"

namespace lorad::testing {

class CrashDisk {
  public:
    enum class Loss { kProgram, kPower, kPowerAndLuck };
    static constexpr uint64_t kNever = UINT64_MAX;

    struct File {
        std::string bytes;   // as programs see them
        std::string synced;  // as they are on the disk for certain
    };

    // From call `at` on (counted from 1) every call fails: the program has ended. With `for_calls`: so many calls fail,
    // and the program goes on.
    void fail_at(uint64_t at, uint64_t for_calls = kNever) {
        const std::lock_guard lock(mutex);
        n_calls = 0;
        fail_from = at;
        fail_to = for_calls == kNever ? kNever : at + for_calls;
    }

    // What is there when the machine comes back.
    void restart(Loss loss, uint64_t seed) {
        const std::lock_guard lock(mutex);
        std::mt19937_64 random(seed);
        const auto keeps = [&] { return loss == Loss::kProgram || (loss == Loss::kPowerAndLuck && random() % 2 == 0); };
        std::map<std::string, std::shared_ptr<File>> left = on_disk;
        if (loss == Loss::kProgram) {
            left = names;
        } else if (loss == Loss::kPowerAndLuck) {
            // Each change of a name that was not synced yet has reached the disk or not.
            std::set<std::string> all;
            for (const auto& [name, file] : names) all.insert(name);
            for (const auto& [name, file] : on_disk) all.insert(name);
            for (const std::string& name : all) {
                if (!keeps()) continue;
                const auto now = names.find(name);
                if (now == names.end()) {
                    left.erase(name);
                } else {
                    left[name] = now->second;
                }
            }
        }
        std::set<File*> seen;
        for (const auto& [name, file] : left) {
            if (!seen.insert(file.get()).second) continue;
            if (!keeps()) {
                // A part of what was written since may have arrived.
                const size_t n = loss == Loss::kPowerAndLuck ? random() % (file->bytes.size() + 1) : 0;
                file->bytes = file->synced.empty() ? file->bytes.substr(0, n) : file->synced;
            }
            file->synced = file->bytes;
        }
        names = on_disk = left;
        n_calls = 0;
        fail_from = fail_to = kNever;
        locked = false;
    }

    std::mutex mutex;
    std::map<std::string, std::shared_ptr<File>> names, on_disk;  // by path
    uint64_t n_calls = 0, fail_from = kNever, fail_to = kNever;
    uint64_t bytes_max = UINT64_MAX;  // that there is room for
    bool locked = false;

    // Under mutex.
    uint64_t bytes() const {
        uint64_t sum = 0;
        for (const auto& [name, file] : names) sum += file->bytes.size();
        return sum;
    }

    Status call() {
        const std::lock_guard lock(mutex);
        ++n_calls;
        if (n_calls >= fail_from && n_calls < fail_to)
            return make_error(ErrorCode::kStorageFailed, "the disk has failed");
        return ok_status();
    }
    bool reached() {
        const std::lock_guard lock(mutex);
        return n_calls >= fail_from;
    }
};

class CrashFileSystem final : public adapters::FileSystem {
  public:
    explicit CrashFileSystem(CrashDisk& disk) : disk_(disk) {}
    ~CrashFileSystem() override {
        if (holds_lock_) disk_.locked = false;
    }

    Status make_folder(const std::string&) override { return disk_.call(); }

    Result<std::unique_ptr<adapters::NewFile>> create(const std::string& path) override {
        TRY(disk_.call());
        const std::lock_guard lock(disk_.mutex);
        auto& file = disk_.names[path];
        if (file) return make_error(ErrorCode::kStorageFailed, path + ": it is there");
        file = std::make_shared<CrashDisk::File>();
        return std::unique_ptr<adapters::NewFile>(std::make_unique<Writer>(disk_, file));
    }

    Result<adapters::FileBytes> read(const std::string& path, uint64_t bytes_max) override {
        if (!disk_.call().ok()) return make_error(ErrorCode::kIo, "the disk has failed");
        const std::lock_guard lock(disk_.mutex);
        const auto found = disk_.names.find(path);
        if (found == disk_.names.end()) return make_error(ErrorCode::kAdapterFileNotFound, path + ": no such file");
        const std::string& bytes = found->second->bytes;
        if (bytes.size() > bytes_max) return make_error(ErrorCode::kStorageFailed, path + ": too large");
        return adapters::FileBytes::copy_of(std::as_bytes(std::span(bytes)));
    }

    Status rename(const std::string& from, const std::string& to) override {
        TRY(disk_.call());
        const std::lock_guard lock(disk_.mutex);
        const auto found = disk_.names.find(from);
        if (found == disk_.names.end()) return make_error(ErrorCode::kAdapterFileNotFound, from + ": no such file");
        const std::shared_ptr<CrashDisk::File> file = found->second;
        disk_.names.erase(found);
        disk_.names[to] = file;
        return ok_status();
    }

    Status remove(const std::string& path) override {
        TRY(disk_.call());
        const std::lock_guard lock(disk_.mutex);
        if (disk_.names.erase(path) == 0) return make_error(ErrorCode::kAdapterFileNotFound, path + ": no such file");
        return ok_status();
    }

    Status sync_folder(const std::string& folder) override {
        TRY(disk_.call());
        const std::lock_guard lock(disk_.mutex);
        const auto inside = [&](const std::string& path) {
            const size_t slash = path.find('/');
            return (slash == std::string::npos ? "" : path.substr(0, slash)) == folder;
        };
        std::erase_if(disk_.on_disk, [&](const auto& entry) { return inside(entry.first); });
        for (const auto& [path, file] : disk_.names) {
            if (inside(path)) disk_.on_disk[path] = file;
        }
        return ok_status();
    }

    Result<std::vector<Entry>> list(const std::string& folder) override {
        TRY(disk_.call());
        const std::lock_guard lock(disk_.mutex);
        std::vector<Entry> entries;
        for (const auto& [path, file] : disk_.names) {
            if (!path.starts_with(folder + "/")) continue;
            entries.push_back({path.substr(folder.size() + 1), true, file->bytes.size(), now_s});
        }
        return entries;
    }

    Status lock(const std::string&) override {
        TRY(disk_.call());
        if (disk_.locked) return make_error(ErrorCode::kStorageFailed, "another process uses this folder");
        disk_.locked = holds_lock_ = true;
        return ok_status();
    }

    static inline int64_t now_s = int64_t{1} << 40;  // files are new

  private:
    class Writer final : public adapters::NewFile {
      public:
        Writer(CrashDisk& disk, std::shared_ptr<CrashDisk::File> file) : disk_(disk), file_(std::move(file)) {}
        Status write(std::span<const std::byte> bytes) override {
            const Status called = disk_.call();
            const std::lock_guard lock(disk_.mutex);
            // A write that fails has written a part.
            const bool is_full = disk_.bytes() + bytes.size() > disk_.bytes_max;
            const size_t n =
                is_full ? std::min<uint64_t>(bytes.size(), disk_.bytes_max - std::min(disk_.bytes_max, disk_.bytes()))
                : called.ok() ? bytes.size()
                              : bytes.size() / 2;
            file_->bytes.append(reinterpret_cast<const char*>(bytes.data()), n);
            if (called.ok() && is_full) return make_error(ErrorCode::kStorageFull, "no room on the disk");
            return called;
        }
        Status sync() override {
            TRY(disk_.call());
            const std::lock_guard lock(disk_.mutex);
            file_->synced = file_->bytes;
            return ok_status();
        }

      private:
        CrashDisk& disk_;
        std::shared_ptr<CrashDisk::File> file_;
    };

    CrashDisk& disk_;
    bool holds_lock_ = false;
};

}  // namespace lorad::testing
