// Answers of /v1/responses that are kept for later requests: in memory, and where a folder is given in files as well,
// so that they outlast the process. Bounded in number, bytes and age; each is its tenant's alone. Any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "adapters/store/file_system.h"
#include "proto/base/clock.h"
#include "proto/base/mutex.h"
#include "proto/responses/responses_stored.h"

namespace lorad::server {

struct ResponseStoreOptions {
    uint64_t bytes_max = uint64_t{256} << 20;  // of conversations and answers; shared items count each time
    size_t n_max = 100000;
    int64_t age_max_s = int64_t{30} * 24 * 3600;
    std::function<int64_t()> now_s = unix_time_s;
};

class ResponseStore {
  public:
    // `files`: null keeps nothing over a restart. What cannot be read in them is removed, with a warning. Errors of the
    // folder.
    static Result<std::unique_ptr<ResponseStore>> create(const ResponseStoreOptions& options,
                                                         std::unique_ptr<adapters::FileSystem> files);

    // If there is no room, the oldest responses of the tenant that has the most make way. kStorageFull for one larger
    // than a sixteenth of the room or a GiB, and errors of the disk; then it is not kept.
    Status put(proto::StoredResponse response);
    // Null: this tenant has none of that name.
    std::shared_ptr<const proto::StoredResponse> find(std::string_view tenant, std::string_view id);
    std::shared_ptr<const proto::ResponseItem> find_item(std::string_view tenant, std::string_view id) const;
    // False: there was none.
    Result<bool> remove(std::string_view tenant, std::string_view id);

    struct Counts {
        size_t n = 0;
        uint64_t bytes = 0;
    };
    Counts counts() const;

  private:
    struct Entry {
        std::shared_ptr<const proto::StoredResponse> response;
        uint64_t number = 0;
        uint64_t bytes = 0;
    };
    struct Tenant {
        uint64_t bytes = 0;
        std::set<uint64_t> numbers;
    };
    struct Item {
        std::shared_ptr<const proto::ResponseItem> item;
        size_t n_responses = 0;
    };
    ResponseStore(const ResponseStoreOptions& options, std::unique_ptr<adapters::FileSystem> files)
        : options_(options), files_(std::move(files)) {}
    Status read_files();
    Status write_file(const proto::StoredResponse& response) const;
    void remove_files(const std::vector<std::string>& ids) const;
    // Inserts; the ids of responses that make way are added to `gone`.
    void insert(proto::StoredResponse response, uint64_t bytes, std::vector<std::string>& gone) REQUIRES(mutex_);
    void erase(const std::string& id) REQUIRES(mutex_);
    void drop_old(std::vector<std::string>& gone) REQUIRES(mutex_);

    const ResponseStoreOptions options_;
    const std::unique_ptr<adapters::FileSystem> files_;

    mutable Mutex mutex_;
    std::unordered_map<std::string, Entry> entries_ GUARDED_BY(mutex_);
    std::map<uint64_t, std::string> order_ GUARDED_BY(mutex_);
    std::map<std::string, Tenant, std::less<>> tenants_ GUARDED_BY(mutex_);
    std::unordered_map<std::string, Item> items_ GUARDED_BY(mutex_);  // by tenant and id
    uint64_t bytes_ GUARDED_BY(mutex_) = 0;
    uint64_t n_ever_ GUARDED_BY(mutex_) = 0;
};

}  // namespace lorad::server
