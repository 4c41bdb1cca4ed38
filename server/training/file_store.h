// Files that users upload to train on: their contents, and a record of each. Kept below one folder; durable when a call
// returns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/owned_fd.h"
#include "proto/base/result.h"
#include "proto/training/training_write.h"

namespace lorad::server::training {

struct StoredFile {
    proto::FileObject object;
    std::string tenant;  // whose; empty where there are no keys
};

struct FileLimits {
    uint64_t file_bytes_max = uint64_t{512} << 20;
    uint64_t tenant_bytes_max = uint64_t{4} << 30;
    uint64_t bytes_max = uint64_t{32} << 30;  // for all files
    uint32_t n_files_max = 1000;              // per tenant
};

// 24 letters and digits that nobody guesses behind a prefix: "file-...".
std::string new_id(std::string_view prefix);
// Returns true if a text has the form of such an id: nothing else becomes part of a path.
bool is_id(std::string_view text, std::string_view prefix);

// Any thread.
class FileStore {
  public:
    // A file on its way in; dropped before it is finished it leaves nothing. One thread.
    class Upload {
      public:
        ~Upload();
        Upload(const Upload&) = delete;
        Upload& operator=(const Upload&) = delete;
        // kPayloadTooLarge, kStorageFull.
        Status write(std::string_view bytes);
        Result<StoredFile> finish();

      private:
        friend class FileStore;
        Upload(FileStore& store, StoredFile file, OwnedFd fd);
        FileStore& store_;
        StoredFile file_;
        OwnedFd fd_;
        bool is_finished_ = false;
    };

    // Reads what is there; uploads that were under way are removed.
    static Result<std::unique_ptr<FileStore>> open(const std::filesystem::path& folder, const FileLimits& limits);

    // kStorageFull where the tenant has as many as it may.
    Result<std::unique_ptr<Upload>> begin(const std::string& tenant, const std::string& filename,
                                          const std::string& purpose, std::optional<int64_t> expires_s);
    // A file of the server's own making: results.
    Result<StoredFile> add(const std::string& tenant, const std::string& filename, const std::string& purpose,
                           std::string_view content);
    // Only the tenant's own: nothing for others' and for those whose time is over.
    std::optional<StoredFile> find(std::string_view tenant, std::string_view id) const;
    // Sorted by age, the newest first.
    std::vector<StoredFile> list(std::string_view tenant) const;
    // False where there is none.
    Result<bool> remove(std::string_view tenant, std::string_view id);
    std::filesystem::path content_of(std::string_view id) const;
    uint64_t bytes() const;
    const FileLimits& limits() const { return limits_; }

  private:
    FileStore(std::filesystem::path folder, const FileLimits& limits) : folder_(std::move(folder)), limits_(limits) {}
    std::filesystem::path record_of(std::string_view id) const;
    Status read_all();
    Status check_room(std::string_view tenant, uint64_t more) const REQUIRES(mutex_);
    Status keep(const StoredFile& file);

    const std::filesystem::path folder_;
    const FileLimits limits_;
    mutable Mutex mutex_;
    std::map<std::string, StoredFile, std::less<>> files_ GUARDED_BY(mutex_);   // by id
    std::map<std::string, uint64_t, std::less<>> incoming_ GUARDED_BY(mutex_);  // bytes of uploads under way, by tenant
};

}  // namespace lorad::server::training
