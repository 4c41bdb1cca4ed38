#include "server/access/key_store.h"

#include <algorithm>

#include "proto/base/clock.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/mutex.h"

namespace lorad::server::access {
namespace {

// The id of --api-key's key.
constexpr std::string_view kFullKeyId = "api-key";

std::string salt_of(std::string_view secret, std::string_view tenant) {
    const Sha256Digest salt = hmac_sha256(secret, tenant);
    return std::string(reinterpret_cast<const char*>(salt.data()), salt.size());
}

// RFC 6750: the word in any case, one blank or more, the key.
std::string_view bearer_key(std::string_view authorization) {
    constexpr std::string_view kBearer = "bearer";
    if (authorization.size() <= kBearer.size() || authorization[kBearer.size()] != ' ') return {};
    for (size_t i = 0; i < kBearer.size(); ++i) {
        if ((authorization[i] | 0x20) != kBearer[i]) return {};
    }
    authorization.remove_prefix(kBearer.size());
    authorization.remove_prefix(std::min(authorization.find_first_not_of(' '), authorization.size()));
    return authorization;
}

}  // namespace

size_t find_digest(std::span<const KeyDigest> keys, const KeyDigest& digest) {
    size_t found = keys.size();
    for (size_t i = 0; i < keys.size(); ++i) {
        uint32_t difference = 0;
        for (size_t b = 0; b < digest.size(); ++b) difference |= static_cast<uint32_t>(keys[i][b] ^ digest[b]);
        // All ones where nothing differs: (0 - 1) has its high bit, a difference of 1 to 255 minus 1 has not.
        const size_t is_same = size_t{0} - static_cast<size_t>((difference - 1) >> 31);
        found = (found & ~is_same) | (i & is_same);
    }
    return found;
}

KeyStore::KeyStore(const KeyOptions& options, std::string secret) : options_(options), secret_(std::move(secret)) {}

Result<std::unique_ptr<KeyStore>> KeyStore::create(const KeyOptions& options) {
    TRY_ASSIGN(std::string secret, new_key());
    std::unique_ptr<KeyStore> store(new KeyStore(options, std::move(secret)));
    TRY(store->reload());
    return store;
}

Result<std::vector<KeyEntry>> KeyStore::read() const {
    std::vector<KeyEntry> entries;
    if (!options_.file.empty()) {
        TRY_ASSIGN(entries, read_key_file(options_.file));
    }
    if (options_.full_key.empty()) return entries;
    if (options_.full_key.size() < kKeyBytesMin || options_.full_key.size() > kKeyBytesMax ||
        !std::ranges::all_of(options_.full_key, [](char c) { return c > 0x20 && c < 0x7f; })) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("api-key: expected {} to {} printable ASCII characters without blanks, found {}; "
                                 "`lorad key new` makes a good one",
                                 kKeyBytesMin, kKeyBytesMax, options_.full_key.size()),
                          "api-key");
    }
    KeyEntry full;
    full.digest = key_digest(options_.full_key);
    full.principal.id = full.principal.tenant = std::string(kFullKeyId);
    full.principal.scopes.add(Scope::kAdmin);
    for (const KeyEntry& entry : entries) {
        if (entry.digest != full.digest && entry.principal.id != kFullKeyId) continue;
        return make_error(ErrorCode::kInvalidConfig, format("{}: the id or the key of {} is --api-key's as well",
                                                            options_.file, entry.principal.id));
    }
    entries.push_back(std::move(full));
    return entries;
}

Result<std::function<void()>> KeyStore::prepare() {
    TRY_ASSIGN(std::vector<KeyEntry> entries, read());
    return std::function<void()>([this, entries = std::move(entries)] { take(entries); });
}

Status KeyStore::reload() {
    TRY_ASSIGN(const std::function<void()> commit, prepare());
    commit();
    return ok_status();
}

void KeyStore::take(std::vector<KeyEntry> entries) {
    auto table = std::make_shared<Table>();
    MutexLock lock(mutex_);
    std::map<std::string, std::shared_ptr<Account>> accounts;
    for (KeyEntry& entry : entries) {
        Principal& principal = entry.principal;
        auto known = accounts_.find(principal.id);
        principal.account = known != accounts_.end() ? known->second : std::make_shared<Account>();
        principal.account->set_quotas(entry.quotas);
        principal.prefix_salt = salt_of(secret_, principal.tenant);
        // A key with the admin scope may use any priority.
        if (principal.scopes.has(Scope::kAdmin)) principal.priority_min = std::numeric_limits<int32_t>::min();
        accounts.emplace(principal.id, principal.account);
        table->digests.push_back(entry.digest);
        table->principals.push_back(std::make_shared<const Principal>(std::move(principal)));
    }
    accounts_ = std::move(accounts);
    table_ = std::move(table);
}

KeyStore::Found KeyStore::find(std::string_view authorization, std::string_view x_api_key) const {
    if (authorization.empty() && x_api_key.empty()) return {};
    // A proxy in between may have used the first header for itself.
    std::string_view key = bearer_key(authorization);
    if (key.empty()) key = x_api_key;
    if (key.empty() || key.size() > kKeyBytesMax) return {Verdict::kUnknown, nullptr};
    std::shared_ptr<const Table> table;
    {
        MutexLock lock(mutex_);
        table = table_;
    }
    size_t index = find_digest(table->digests, key_digest(key));
    if (index == table->digests.size()) return {Verdict::kUnknown, nullptr};
    const std::shared_ptr<const Principal>& principal = table->principals[index];
    int64_t now_s = options_.unix_time_s ? options_.unix_time_s() : unix_time_s();
    return {now_s < principal->expires_s ? Verdict::kValid : Verdict::kExpired, principal};
}

size_t KeyStore::n_keys() const {
    MutexLock lock(mutex_);
    return table_->digests.size();
}

}  // namespace lorad::server::access
