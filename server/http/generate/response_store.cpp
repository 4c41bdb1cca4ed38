#include "server/http/generate/response_store.h"

#include <algorithm>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"

namespace lorad::server {
namespace {

constexpr std::string_view kSuffix = ".json";
constexpr std::string_view kUnfinished = ".new";
constexpr uint64_t kOneBytesMax = uint64_t{1} << 30;     // per response; a longer text could not be read again
constexpr uint64_t kEntryBytes = 512, kItemBytes = 192;  // memory beside the texts

uint64_t bytes_of(const proto::StoredResponse& response) {
    uint64_t bytes = kEntryBytes + response.json.size() + response.tenant.size();
    for (const auto& item : response.items) bytes += kItemBytes + item->json.size() + item->id.size();
    return bytes;
}

// A tenant's name may hold anything; its length says where it ends.
std::string item_key(std::string_view tenant, std::string_view id) {
    return format("{}:{}{}", tenant.size(), tenant, id);
}

// Ours are; others are no file of this store.
bool is_response_id(std::string_view id) {
    constexpr std::string_view kPrefix = "resp_";
    return id.size() == kPrefix.size() + 16 && id.starts_with(kPrefix) &&
           id.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

}  // namespace

Result<std::unique_ptr<ResponseStore>> ResponseStore::create(const ResponseStoreOptions& options,
                                                             std::unique_ptr<adapters::FileSystem> files) {
    auto store = std::unique_ptr<ResponseStore>(new ResponseStore(options, std::move(files)));
    if (store->files_ != nullptr) TRY(store->read_files());
    return store;
}

Status ResponseStore::read_files() {
    TRY_ASSIGN(std::vector<adapters::FileSystem::Entry> files, files_->list(""));
    std::ranges::sort(files, {}, &adapters::FileSystem::Entry::modified_s);
    std::vector<std::string> gone;
    size_t n_damaged = 0;
    for (const adapters::FileSystem::Entry& file : files) {
        const bool is_half = file.name.ends_with(kUnfinished);
        const std::string id = file.name.substr(0, file.name.size() - std::min(file.name.size(), kSuffix.size()));
        if (!file.is_file || (!is_half && !(file.name.ends_with(kSuffix) && is_response_id(id)))) continue;
        if (is_half) {
            (void)files_->remove(file.name);
            continue;
        }
        Result<adapters::FileBytes> bytes = files_->read(file.name, options_.bytes_max);
        Result<proto::StoredResponse> response = bytes.ok()
                                                     ? proto::parse_stored_response(bytes->text(), options_.bytes_max)
                                                     : Result<proto::StoredResponse>(bytes.error());
        if (!response.ok() || response->id != id) {
            ++n_damaged;
            gone.push_back(id);
            continue;
        }
        const uint64_t n_bytes = bytes_of(*response);
        MutexLock lock(mutex_);
        insert(std::move(*response), n_bytes, gone);
    }
    if (n_damaged > 0) log_warn("{} stored responses cannot be read and are removed", n_damaged);
    remove_files(gone);
    return ok_status();
}

Status ResponseStore::write_file(const proto::StoredResponse& response) const {
    if (files_ == nullptr) return ok_status();
    const std::string text = proto::stored_response_text(response);
    return adapters::replace_file(*files_, response.id + std::string(kSuffix), response.id + std::string(kUnfinished),
                                  std::as_bytes(std::span(text)));
}

void ResponseStore::remove_files(const std::vector<std::string>& ids) const {
    if (files_ == nullptr) return;
    for (const std::string& id : ids) {
        Status removed = files_->remove(id + std::string(kSuffix));
        if (!removed.ok()) log_warn("a stored response cannot be removed: {}", removed.error().message);
    }
}

void ResponseStore::erase(const std::string& id) {
    auto found = entries_.find(id);
    if (found == entries_.end()) return;
    const Entry entry = std::move(found->second);
    entries_.erase(found);
    order_.erase(entry.number);
    bytes_ -= entry.bytes;
    const std::string& name = entry.response->tenant;
    auto tenant = tenants_.find(name);
    tenant->second.bytes -= entry.bytes;
    tenant->second.numbers.erase(entry.number);
    if (tenant->second.numbers.empty()) tenants_.erase(tenant);
    for (const auto& item : entry.response->items) {
        auto its = items_.find(item_key(name, item->id));
        if (its != items_.end() && --its->second.n_responses == 0) items_.erase(its);
    }
}

void ResponseStore::drop_old(std::vector<std::string>& gone) {
    const int64_t oldest = options_.now_s() - options_.age_max_s;
    while (!order_.empty()) {
        const std::string id = order_.begin()->second;
        if (entries_.at(id).response->created_s >= oldest) return;
        erase(id);
        gone.push_back(id);
    }
}

void ResponseStore::insert(proto::StoredResponse response, uint64_t bytes, std::vector<std::string>& gone) {
    const std::string id = response.id;
    erase(id);
    const uint64_t number = n_ever_++;
    Tenant& tenant = tenants_[response.tenant];
    tenant.bytes += bytes;
    tenant.numbers.insert(number);
    for (const auto& item : response.items) {
        Item& its = items_[item_key(response.tenant, item->id)];
        its.item = item;
        ++its.n_responses;
    }
    entries_[id] = {std::make_shared<const proto::StoredResponse>(std::move(response)), number, bytes};
    order_[number] = id;
    bytes_ += bytes;
    drop_old(gone);
    while (bytes_ > options_.bytes_max || entries_.size() > options_.n_max) {
        auto largest = std::ranges::max_element(tenants_, {}, [](const auto& one) { return one.second.bytes; });
        const std::string oldest = order_.at(*largest->second.numbers.begin());
        erase(oldest);
        gone.push_back(oldest);
    }
}

Status ResponseStore::put(proto::StoredResponse response) {
    constexpr uint64_t kShareMax = 16;
    const uint64_t bytes = bytes_of(response);
    if (const uint64_t at_most = std::min(options_.bytes_max / kShareMax, kOneBytesMax); bytes > at_most) {
        return make_error(ErrorCode::kStorageFull,
                          format("the conversation has {} bytes, at most {} of one are kept", bytes, at_most));
    }
    TRY(write_file(response));
    std::vector<std::string> gone;
    {
        MutexLock lock(mutex_);
        insert(std::move(response), bytes, gone);
    }
    remove_files(gone);
    return ok_status();
}

std::shared_ptr<const proto::StoredResponse> ResponseStore::find(std::string_view tenant, std::string_view id) {
    std::vector<std::string> gone;
    std::shared_ptr<const proto::StoredResponse> response;
    {
        MutexLock lock(mutex_);
        drop_old(gone);
        auto found = entries_.find(std::string(id));
        if (found != entries_.end() && found->second.response->tenant == tenant) response = found->second.response;
    }
    remove_files(gone);
    return response;
}

std::shared_ptr<const proto::ResponseItem> ResponseStore::find_item(std::string_view tenant,
                                                                    std::string_view id) const {
    MutexLock lock(mutex_);
    auto found = items_.find(item_key(tenant, id));
    return found == items_.end() ? nullptr : found->second.item;
}

Result<bool> ResponseStore::remove(std::string_view tenant, std::string_view id) {
    const std::string name(id);
    {
        MutexLock lock(mutex_);
        auto found = entries_.find(name);
        if (found == entries_.end() || found->second.response->tenant != tenant) return false;
    }
    // Removes the file first: a response reported as deleted must not come back with a restart.
    if (files_ != nullptr) {
        Status removed = files_->remove(name + std::string(kSuffix));
        if (!removed.ok() && removed.error().code != ErrorCode::kAdapterFileNotFound) return removed.error();
        TRY(files_->sync_folder(""));
    }
    MutexLock lock(mutex_);
    const bool was_there = entries_.contains(name);
    erase(name);
    return was_there;
}

ResponseStore::Counts ResponseStore::counts() const {
    MutexLock lock(mutex_);
    return {entries_.size(), bytes_};
}

}  // namespace lorad::server
