// The keys of a running server.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/mutex.h"
#include "server/access/key_file.h"

namespace lorad::server::access {

// The index of the digest among the keys', or keys.size(). Takes the same time whatever the digest is: every key is
// compared as a whole, and nothing is decided on the way.
size_t find_digest(std::span<const KeyDigest> keys, const KeyDigest& digest);

struct KeyOptions {
    std::string file;                           // empty: none
    std::string full_key;                       // one key for everything, as with vLLM's --api-key; empty: none
    std::function<int64_t()> unix_time_s = {};  // for tests; empty: the system's
};

// Any thread. A request's principal stays unchanged over reloads.
class KeyStore {
  public:
    // kInvalidConfig with file, line and reason.
    static Result<std::unique_ptr<KeyStore>> create(const KeyOptions& options);

    // Reads the file again; on an error nothing has changed. Remaining keys keep their use of quotas.
    Status reload();
    // The same in two parts, for callers with more to check: the result makes the new keys valid, and cannot fail.
    Result<std::function<void()>> prepare();

    enum class Verdict : uint8_t { kValid, kMissing, kUnknown, kExpired };
    struct Found {
        Verdict verdict = Verdict::kMissing;
        std::shared_ptr<const Principal> principal;  // also of an expired key, for the log
    };
    // Finds the key in "Bearer KEY", or in the other header's KEY if the first is empty.
    Found find(std::string_view authorization, std::string_view x_api_key) const;

    size_t n_keys() const;

  private:
    struct Table {
        std::vector<KeyDigest> digests;
        std::vector<std::shared_ptr<const Principal>> principals;
    };
    explicit KeyStore(const KeyOptions& options, std::string secret);
    Result<std::vector<KeyEntry>> read() const;
    void take(std::vector<KeyEntry> entries);

    const KeyOptions options_;
    const std::string secret_;  // random per process, for salts
    mutable Mutex mutex_;
    std::map<std::string, std::shared_ptr<Account>> accounts_ GUARDED_BY(mutex_);  // by id
    std::shared_ptr<const Table> table_ GUARDED_BY(mutex_);
};

}  // namespace lorad::server::access
