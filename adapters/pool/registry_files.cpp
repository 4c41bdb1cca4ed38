// The registry's calls that read an adapter's files: from a folder, from uploads, and again when it comes to the
// device.
#include <algorithm>

#include "adapters/plan/check.h"
#include "adapters/plan/pack.h"
#include "adapters/pool/registry.h"
#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

// Makes the record of a checked adapter.
GenerationRecord record_of(const CheckedAdapter& checked, std::vector<FileRecord> files) {
    GenerationRecord record;
    record.id = checked.generation();
    record.files = std::move(files);
    record.rank = checked.rank_max;
    record.n_modules = checked.n_modules;
    record.device_bytes = packed_bytes(checked);
    record.replaces_parts = checked.has_replaced_parts();
    record.invocation_tokens = checked.plan.invocation_tokens;
    record.ends = checked.ends;
    return record;
}

// The stored files of an adapter, whole and with the right digests.
Result<AdapterSource> read_stored(Store& store, std::span<const FileRecord> records) {
    std::vector<SourceFile> files;
    for (const FileRecord& record : records) {
        TRY_ASSIGN(FileBytes bytes, store.read(record.sha256));
        files.push_back({record.name, std::move(bytes), record.sha256});
    }
    return make_adapter_source(std::move(files));
}

bool refuses_content(const Error& error) {
    return error.code == ErrorCode::kAdapterInvalid || error.code == ErrorCode::kAdapterUnsupported;
}

// Warnings go to the log and to the caller that registers the adapter.
std::vector<std::string> told_warnings(std::string_view name, std::vector<std::string> warnings) {
    for (const std::string& warning : warnings) log_warn("adapter {}: {}", json_quote(name), warning);
    return warnings;
}

}  // namespace

// Keeps blobs that a call works with from being deleted while it does.
class Registry::BlobHold {
  public:
    BlobHold(Registry& registry, std::vector<std::string> blobs) : registry_(registry), blobs_(std::move(blobs)) {
        const FifoLock turn(registry_.commit_mutex_);
        registry_.held_blobs_.insert(blobs_.begin(), blobs_.end());
    }
    ~BlobHold() { release(); }
    BlobHold(const BlobHold&) = delete;
    BlobHold& operator=(const BlobHold&) = delete;

    void release() {
        const FifoLock turn(registry_.commit_mutex_);
        for (const std::string& blob : std::exchange(blobs_, {}))
            registry_.held_blobs_.erase(registry_.held_blobs_.find(blob));
        registry_.delete_unwanted();
    }

  private:
    Registry& registry_;
    std::vector<std::string> blobs_;
};

// An upload of a blob that is about to be deleted, with the adapter that it belonged to, saves it.
class Registry::HeldUpload final : public BlobUpload {
  public:
    HeldUpload(Registry& registry, std::string sha256, std::optional<uint64_t> bytes_total, bool is_promised,
               std::unique_ptr<BlobUpload> upload)
        : registry_(registry),
          is_promised_(is_promised),
          sha256_(std::move(sha256)),
          hold_(registry, {sha256_}),
          bytes_total_(bytes_total),
          upload_(std::move(upload)) {}
    Status write(std::span<const std::byte> bytes) override {
        TRY(upload_->write(bytes));
        n_bytes_ += bytes.size();
        if (n_bytes_ >= next_told_ && n_bytes_ != bytes_total_) tell();
        return ok_status();
    }
    Status finish() override {
        TRY(upload_->finish());  // first: bytes that are not the blob's save nothing
        const auto is_trash = [&] {
            const FifoLock turn(registry_.commit_mutex_);
            registry_.unwanted_blobs_.erase(sha256_);
            return registry_.catalogue_->trash.contains(sha256_);
        };
        // A promised blob stays even if it is in the trash, and leaves it with the adapter that is made of it.
        if (is_trash() && !is_promised_) {
            const Result<AdapterInfo> saved =
                registry_.commit({}, [&](Catalogue& next) REQUIRES(registry_.commit_mutex_) {
                    next.trash.erase(sha256_);
                    registry_.unwanted_blobs_.erase(sha256_);
                    return ok_status();
                });
            if (!saved.ok()) {
                // A blob that stays in the trash goes when the hold ends.
                const FifoLock turn(registry_.commit_mutex_);
                if (registry_.catalogue_->trash.contains(sha256_)) registry_.unwanted_blobs_.insert(sha256_);
                return saved.error();
            }
        }
        tell();
        return ok_status();
    }

  private:
    void tell() {
        registry_.pool_->events.add_upload(sha256_, n_bytes_, bytes_total_);
        // Small files are told of when they are there, and large ones not too often: readers of events have a bounded
        // log.
        next_told_ = n_bytes_ + std::max(kToldBytes, bytes_total_.value_or(0) / 10);
    }

    static constexpr uint64_t kToldBytes = uint64_t{8} << 20;
    Registry& registry_;
    const bool is_promised_;
    const std::string sha256_;
    BlobHold hold_;
    const std::optional<uint64_t> bytes_total_;
    uint64_t n_bytes_ = 0, next_told_ = kToldBytes;
    std::unique_ptr<BlobUpload> upload_;
};

Result<std::unique_ptr<BlobUpload>> Registry::put_blob(std::string_view sha256, std::optional<uint64_t> bytes,
                                                       const Holder* holder, bool may_know) {
    TRY_ASSIGN(std::unique_ptr<BlobUpload> upload, files_->begin(sha256, bytes, holder, may_know));
    return std::unique_ptr<BlobUpload>(
        std::make_unique<HeldUpload>(*this, std::string(sha256), bytes, holder != nullptr, std::move(upload)));
}

std::optional<uint64_t> Registry::blob_bytes(std::string_view sha256) const { return files_->blob_bytes(sha256); }

bool Registry::holds_blob(std::string_view sha256, std::string_view holder) const {
    return files_->is_held_by(sha256, holder);
}

std::shared_ptr<const void> Registry::hold_blobs(std::vector<std::string> blobs) {
    return std::make_shared<BlobHold>(*this, std::move(blobs));
}

Result<std::vector<FileRecord>> Registry::uploaded(std::span<const UploadedFile> files) const {
    std::vector<FileRecord> records;
    for (const UploadedFile& file : files) {
        const std::optional<uint64_t> bytes = files_->blob_bytes(file.sha256);
        if (!bytes) {
            return make_error(
                ErrorCode::kAdapterFileNotFound,
                format("files: {}: no blob {} was uploaded", json_quote(file.name), json_quote(file.sha256)), "files");
        }
        records.push_back({file.name, file.sha256, *bytes});
    }
    return records;
}

Result<AdapterReport> Registry::inspect(std::span<const UploadedFile> files) {
    TRY_ASSIGN(const std::vector<FileRecord> records, uploaded(files));
    return inspect_records(records);
}

Result<AdapterReport> Registry::inspect(std::string_view name) {
    const std::shared_ptr<const Catalogue> now = catalogue();
    TRY_ASSIGN(const Alias* alias, now->find(name));
    if (alias->target.parts.size() != 1) {
        return make_error(ErrorCode::kInvalidRequest,
                          format("{} is a mix; its parts are adapters that can be looked at", json_quote(name)),
                          "lora_name");
    }
    return inspect_records(now->generations.at(alias->target.parts.front().generation).files);
}

Result<AdapterReport> Registry::inspect_records(const std::vector<FileRecord>& records) {
    std::vector<std::string> blobs;
    for (const FileRecord& record : records) blobs.push_back(record.sha256);
    const BlobHold hold(*this, blobs);
    Result<AdapterSource> source = read_stored(*files_, records);
    if (source.ok()) return inspect_adapter(std::move(source).value(), base_);
    if (!refuses_content(source.error())) return source.error();
    AdapterReport report;
    report.error = source.error();
    return report;
}

Result<AdapterInfo> Registry::register_adapter(std::string_view name, std::span<const UploadedFile> files,
                                               const ChangeOptions& options, std::string_view holder) {
    const std::string key(name);
    TRY(check_adapter_name(name, options_.base_name));
    TRY(catalogue()->may_set(name, options));
    TRY_ASSIGN(std::vector<FileRecord> records, uploaded(files));
    std::vector<std::string> blobs;
    for (const FileRecord& record : records) blobs.push_back(record.sha256);
    BlobHold hold(*this, blobs);
    auto checked = [&]() -> Result<std::unique_ptr<CheckedAdapter>> {
        TRY_ASSIGN(AdapterSource source, read_stored(*files_, records));
        return check_adapter(std::move(source), base_);
    }();
    if (!checked.ok()) {
        hold.release();
        if (!refuses_content(checked.error())) return checked.error();
        for (const std::string& blob : blobs) files_->mark_tried(blob, holder);
        discard_files(blobs);
        return checked.error();
    }
    const GenerationRecord record = record_of(**checked, std::move(records));
    store_again(record.id);
    Target target;
    target.parts = {{key, record.id, 1.0f}};
    target.since_s = unix_time_s();
    TRY_ASSIGN(AdapterInfo info, set_name(key, std::move(target), &record, options));
    info.warnings = told_warnings(key, (*checked)->warnings);
    for (const std::string& blob : blobs) files_->keep_promise(blob, holder);
    give_image(record.id, std::move(checked).value(), Pool::ImageRoom::kFree);
    keep_active(key);
    return info;
}

// Packs a checked adapter at once if host memory has room, so that it need not be read again to come to the device.
void Registry::give_image(const std::string& generation, std::unique_ptr<CheckedAdapter> checked,
                          Pool::ImageRoom room) {
    if (!pool_->wants_image(generation, room)) return;
    auto image = pack(*checked);
    checked.reset();
    if (image.ok()) pool_->give_image(generation, std::move(image).value(), room);
}

// Its files are sound, whatever they were before.
void Registry::store_again(const std::string& generation) {
    const MutexLock lock(pool_->mutex);
    const auto known = pool_->generations.find(generation);
    if (known == pool_->generations.end() || known->second->state != AdapterState::kDamaged) return;
    known->second->change(StateChange::kStoredAgain);
    known->second->load_error.reset();
}

Result<AdapterInfo> Registry::load(std::string_view name, const AdapterLocation& location, const LoadOptions& options) {
    const std::string key(name);
    const ChangeOptions change{options.load_inplace, options.expected_generation};
    TRY(check_adapter_name(name, options_.base_name));
    TRY(catalogue()->may_set(name, change));
    TRY_ASSIGN(std::unique_ptr<CheckedAdapter> checked, check_adapter(location, base_));
    std::vector<FileRecord> records;
    std::vector<std::string> blobs;
    for (const SourceFile& file : checked->source.files) {
        blobs.push_back(file.sha256);
        records.push_back({file.name, file.sha256, file.bytes.size});
    }
    BlobHold hold(*this, blobs);
    std::vector<std::string> added;
    std::shared_ptr<LeaseState> lease;
    const auto refuse = [&](Error error) {
        lease.reset();
        hold.release();
        discard_files(added);
        return error;
    };
    for (size_t i = 0; i < records.size(); ++i) {
        // Blobs that exist already are compared; a damaged one is put aside and stored anew.
        if (files_->read(records[i].sha256).ok()) continue;
        const Status stored = files_->put(records[i].sha256, checked->source.files[i].bytes);
        if (!stored.ok()) return refuse(stored.error());
        added.push_back(records[i].sha256);
    }
    const GenerationRecord record = record_of(*checked, records);
    store_again(record.id);

    const std::vector<std::string> warnings = checked->warnings;
    // On the device before the name stands for it; where there is no place in time, it is there when it is used.
    lease = lease_of(record, key);
    give_image(record.id, std::move(checked), Pool::ImageRoom::kMade);
    const Status granted = grant(*lease, {});
    if (!granted.ok() && granted.error().code != ErrorCode::kAdapterBusy) return refuse(granted.error());
    Target target;
    target.parts = {{key, record.id, 1.0f}};
    target.path = location.path.string();
    target.since_s = unix_time_s();
    auto info = set_name(key, std::move(target), &record, change);
    if (!info.ok()) return refuse(info.error());
    info->warnings = told_warnings(key, warnings);
    lease.reset();
    keep_active(key);
    return info;
}

// Content that has no name yet, held by the call that brings it in.
std::shared_ptr<LeaseState> Registry::lease_of(const GenerationRecord& record, std::string name) {
    auto lease = std::make_shared<LeaseState>(pool_);
    const MutexLock lock(pool_->mutex);
    lease->generations = {known_generation(record)};
    lease->uses = {{kNoAdapterSlot, 1.0f}};
    lease->content = {{record.id, 1.0f}};
    lease->name = std::move(name);
    lease->generation = record.id;
    pool_->take(*lease);
    return lease;
}

// Without a lock, on the thread that brings the generation to the device.
Result<std::unique_ptr<CheckedAdapter>> Registry::read(std::string_view name_or_generation) const {
    const std::shared_ptr<const Catalogue> now = catalogue();
    std::string_view generation = name_or_generation;
    if (const auto alias = now->aliases.find(name_or_generation); alias != now->aliases.end()) {
        if (alias->second.target.is_mix())
            return make_error(
                ErrorCode::kInvalidRequest,
                format("{} is a mix of others, not an adapter of its own", json_quote_short(name_or_generation)),
                "lora_name");
        generation = alias->second.target.parts.front().generation;
    }
    const auto record = now->generations.find(generation);
    if (record == now->generations.end())
        return make_error(ErrorCode::kAdapterNotFound,
                          format("no adapter is called {}", json_quote_short(name_or_generation)), "lora_name");
    TRY_ASSIGN(AdapterSource source, read_stored(*files_, record->second.files));
    return check_adapter(std::move(source), base_);
}

Result<PackedImage> Registry::load_image(const GenerationRecord& record) {
    auto source = read_stored(*files_, record.files);
    if (!source.ok()) {
        Error error = std::move(source).error();
        if (error.code != ErrorCode::kAdapterFileNotFound) return error;
        // Gone, or put aside when another adapter that shares it was loaded: as bad as one that has changed.
        const auto missing = std::ranges::find_if(
            record.files, [&](const FileRecord& file) { return !files_->blob_bytes(file.sha256); });
        return make_error(ErrorCode::kStorageFailed,
                          format("a stored file of the adapter is missing or was found damaged ({}); upload it again",
                                 missing == record.files.end() ? "it is back by now" : "sha256:" + missing->sha256));
    }
    TRY_ASSIGN(const std::unique_ptr<CheckedAdapter> checked, check_adapter(std::move(source).value(), base_));
    return pack(*checked);
}

}  // namespace lorad::adapters
