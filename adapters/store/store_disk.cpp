#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <utility>

#include "adapters/store/hold_files.h"
#include "adapters/store/holding_store.h"
#include "adapters/store/stored_catalogue.h"
#include "proto/base/clock.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

constexpr int64_t kLooseBlobSeconds = kHoldSeconds;
constexpr int64_t kLooseBlobSecondsWhenFull = 10 * 60;

std::string blob_path(std::string_view sha256) { return format("blobs/{}", sha256); }

class DiskStore final : public HoldingStore {
  public:
    DiskStore(std::unique_ptr<FileSystem> files, const StoreLimits& limits)
        : files_(std::move(files)), limits_(limits), catalogue_(*files_, health_) {}

    Status open() {
        for (const char* folder : {"blobs", "incoming", "damaged", kHoldsFolder}) TRY(files_->make_folder(folder));
        TRY(files_->lock("lock"));
        TRY(files_->sync_folder(""));
        catalogue_.remove_unfinished();
        TRY_ASSIGN(const std::vector<FileSystem::Entry> stray, files_->list("incoming"));
        for (const FileSystem::Entry& entry : stray) (void)files_->remove("incoming/" + entry.name).ok();
        TRY(catalogue_.read());
        {
            const MutexLock lock(mutex_);
            set_used(found());
        }
        TRY_ASSIGN(const std::vector<HoldFile> holds, read_hold_files(*files_, unix_time_s()));
        return read_blobs(holds);
    }

    const Catalogue& found() const override { return catalogue_.found(); }

    Status save(const Catalogue& catalogue) override {
        TRY(health_.check_writable());
        TRY(is_in_place());
        TRY(catalogue_.save(catalogue));
        const MutexLock lock(mutex_);
        set_used(catalogue);
        return ok_status();
    }

    Status is_settled() const override { return catalogue_.is_settled(); }

    Result<std::unique_ptr<BlobUpload>> begin(std::string_view sha256, std::optional<uint64_t> bytes,
                                              const Holder* holder, bool may_know) override {
        return begin_upload(sha256, bytes, Digest::kCompare, holder, may_know);
    }

    Status put(std::string_view sha256, const FileBytes& bytes) override {
        TRY_ASSIGN(const std::unique_ptr<BlobUpload> upload,
                   begin_upload(sha256, bytes.size, Digest::kKnown, nullptr, true));
        TRY(upload->write(bytes.span()));
        return upload->finish();
    }

    std::optional<uint64_t> blob_bytes(std::string_view sha256) const override {
        const MutexLock lock(mutex_);
        const auto found = blobs_.find(sha256);
        if (found == blobs_.end()) return std::nullopt;
        return found->second.bytes;
    }

    Result<FileBytes> read(std::string_view sha256) override {
        for (;;) {
            TRY_ASSIGN(const uint64_t edition, begin_read(sha256));
            auto contents = files_->read(blob_path(sha256), limits_.blob_bytes_max);
            if (contents.ok() && sha256_hex(contents->span()) == sha256) return contents;
            const bool passing = !contents.ok() && (contents.error().code == ErrorCode::kOutOfMemory ||
                                                    contents.error().code == ErrorCode::kIo);
            if (passing) return contents;
            if (!put_aside(sha256, edition)) continue;  // an upload has mended it meanwhile
            const std::string why = contents.ok() ? "its bytes have changed on the disk" : contents.error().message;
            log_error("blob {} is damaged and put aside: {}", sha256, why);
            return make_error(ErrorCode::kStorageFailed,
                              format("a stored file of the adapter is damaged (sha256:{}); upload it again", sha256));
        }
    }

    void remove(std::string_view sha256) override {
        // In that state it is unknown which blobs the catalogue on disk needs.
        if (health_.is_read_only() || !blob_bytes(sha256)) return;
        const Status removed = files_->remove(blob_path(sha256));
        if (!removed.ok()) log_warn("{}", removed.error().message);
        forget(sha256);
        catalogue_.use_room();
    }

    uint64_t bytes() const override {
        const MutexLock lock(mutex_);
        return bytes_;
    }

    std::vector<std::string> expire(int64_t now_s) override {
        const MutexLock lock(mutex_);
        std::vector<std::string> loose = end_holds(now_s);
        for (const auto& [sha256, blob] : blobs_) {
            if (!used_.contains(sha256) && !holds_.is_held(sha256) && now_s - blob.since_s > kLooseBlobSeconds)
                loose.push_back(sha256);
        }
        return loose;
    }

    Status is_in_place() const override {
        const Status status = files_->is_in_place();
        if (is_displaced_.exchange(!status.ok()) == status.ok()) {
            if (status.ok()) {
                log_info("the adapter store: its folder is back");
            } else {
                log_error("{}", status.error().message);
            }
        }
        return status;
    }

  private:
    struct Blob {
        uint64_t bytes = 0;
        int64_t since_s = 0;   // when it came or was read last
        uint64_t edition = 0;  // changes with every upload to its name
    };
    enum class Digest : uint8_t { kCompare, kKnown };

    Result<std::unique_ptr<BlobUpload>> begin_upload(std::string_view sha256, std::optional<uint64_t> bytes,
                                                     Digest digest, const Holder* holder, bool may_know) {
        TRY(health_.check_writable());
        TRY(is_in_place());
        if (!is_sha256_hex(sha256)) {
            return make_error(ErrorCode::kInvalidRequest,
                              format("{}: expected the 64 hex digits of a SHA-256", json_quote(sha256)), "sha256");
        }
        if (bytes && *bytes > limits_.blob_bytes_max) return too_large(limits_.blob_bytes_max);
        // Allocations that may fail come before anything is counted.
        auto upload = std::make_unique<Upload>(*this, std::string(sha256), bytes, digest, holder, may_know);
        {
            const MutexLock lock(mutex_);
            if (n_uploads_ >= limits_.n_uploads_max) {
                return make_error(ErrorCode::kAdapterBusy,
                                  format("{} uploads are under way, as many as there may be", n_uploads_));
            }
            TRY(upload->admit(format("incoming/{}", next_upload_++), bytes.value_or(0)));
        }
        TRY(upload->open());
        return std::unique_ptr<BlobUpload>(std::move(upload));
    }

    class Upload final : public BlobUpload {
      public:
        Upload(DiskStore& store, std::string sha256, std::optional<uint64_t> bytes, Digest digest, const Holder* holder,
               bool may_know)
            : store_(store),
              holder_(holder == nullptr ? std::nullopt : std::optional(*holder)),
              sha256_(std::move(sha256)),
              compares_(digest == Digest::kCompare),
              may_know_(may_know),
              bytes_max_(bytes.value_or(store.limits_.blob_bytes_max)) {}
        ~Upload() override {
            if (path_.empty()) return;
            const MutexLock lock(store_.mutex_);
            give_up_file();
            --store_.n_uploads_;
            if (is_counted_) store_.holds_.end_upload(holder_->key, n_bytes_);
        }

        // Its errors are early answers; what is written counts. Under the store's mutex, by the store's name for it.
        Status admit(std::string path, uint64_t bytes) NO_THREAD_SAFETY_ANALYSIS {
            path_ = std::move(path);
            ++store_.n_uploads_;
            is_counted_ = holder_ && !(may_know_ && store_.holds_.is_held_by(sha256_, holder_->key));
            if (is_counted_) {
                store_.holds_.begin_upload(holder_->key);
                TRY(store_.make_room_of(*holder_, bytes));
            }
            const Status room = store_.make_room(bytes);
            return room.ok() ? room : keep_none_locked(room.error());
        }

        Status open() {
            if (keeps_none_) return ok_status();
            auto created = store_.files_->create(path_);
            if (!created.ok()) return keep_none(created.error());
            file_ = std::move(created).value();
            return ok_status();
        }

        Status write(std::span<const std::byte> bytes) override {
            if (bytes.size() > bytes_max_ - n_bytes_) return too_large(bytes_max_);
            {
                const MutexLock lock(store_.mutex_);
                if (is_counted_) {
                    TRY(store_.make_room_of(*holder_, bytes.size()));
                    store_.holds_.add_incoming(holder_->key, bytes.size());
                }
                n_bytes_ += bytes.size();
                if (!keeps_none_) {
                    const Status room = store_.make_room(bytes.size());
                    if (!room.ok()) TRY(keep_none_locked(room.error()));
                    if (room.ok()) count_incoming(bytes.size());
                }
            }
            if (compares_) digest_.add(bytes);
            if (keeps_none_) return ok_status();
            const Status written = file_->write(bytes);
            return written.ok() ? written : keep_none(written.error());
        }

        Status finish() override {
            if (const std::string found = compares_ ? digest_.hex() : sha256_; found != sha256_) {
                return make_error(ErrorCode::kDigestMismatch,
                                  format("expected the SHA-256 {}, found {} in {} bytes", sha256_, found, n_bytes_));
            }
            TRY(hold_has_room());
            if (keeps_none_) return finish_without_file();
            TRY(store_.health_.synced(*file_));
            file_.reset();
            {
                const MutexLock lock(store_.mutex_);
                TRY(store_.files_->rename(path_, blob_path(sha256_)));
                if (const auto known = store_.blobs_.find(sha256_); known != store_.blobs_.end()) {
                    known->second.edition = ++store_.last_edition_;
                    known->second.since_s = unix_time_s();  // the old file may have been old enough for make_room()
                }
            }
            kept_ = true;
            const Status synced = store_.files_->sync_folder("blobs");
            if (!synced.ok()) return store_.health_.read_only(synced.error());
            {
                const MutexLock lock(store_.mutex_);
                Blob& blob = store_.blobs_[sha256_];
                store_.bytes_ += n_bytes_ - blob.bytes;
                blob = {n_bytes_, unix_time_s(), ++store_.last_edition_};
            }
            return holder_ ? store_.make_promise(sha256_, holder_->key, n_bytes_) : ok_status();
        }

      private:
        // The rest of an upload for which there is no room, where the same blob is here and may be known to be: its
        // bytes are compared with its digest, and what is here stays. Else `why`.
        Status keep_none(const Error& why) {
            const MutexLock lock(store_.mutex_);
            return keep_none_locked(why);
        }
        Status keep_none_locked(const Error& why) REQUIRES(store_.mutex_) {
            const auto known = store_.blobs_.find(sha256_);
            if (!may_know_ || why.code != ErrorCode::kStorageFull || known == store_.blobs_.end()) return why;
            known->second.since_s = unix_time_s();  // make_room() leaves it alone for a while
            give_up_file();
            keeps_none_ = true;
            return ok_status();
        }
        Status finish_without_file() {
            {
                const MutexLock lock(store_.mutex_);
                const auto known = store_.blobs_.find(sha256_);
                if (known == store_.blobs_.end()) {
                    return make_error(
                        ErrorCode::kStorageFull,
                        format("no room for {} bytes more, and the blob that was here is gone", n_bytes_));
                }
                known->second.since_s = unix_time_s();
            }
            return holder_ ? store_.make_promise(sha256_, holder_->key, n_bytes_) : ok_status();
        }
        // An upload of a held blob was not counted; if that hold has ended meanwhile, it needs room now.
        Status hold_has_room() {
            if (!holder_ || is_counted_) return ok_status();
            const MutexLock lock(store_.mutex_);
            return store_.holds_.is_held_by(sha256_, holder_->key) ? ok_status()
                                                                   : store_.make_room_of(*holder_, n_bytes_);
        }
        void count_incoming(uint64_t bytes) REQUIRES(store_.mutex_) {
            file_bytes_ += bytes;
            store_.incoming_bytes_ += bytes;
        }
        void give_up_file() REQUIRES(store_.mutex_) {
            file_.reset();
            if (!kept_ && !keeps_none_) (void)store_.files_->remove(path_).ok();
            store_.incoming_bytes_ -= std::exchange(file_bytes_, 0);
        }

        DiskStore& store_;
        const std::optional<Holder> holder_;
        const std::string sha256_;
        std::string path_;  // empty before it is admitted
        const bool compares_;
        const bool may_know_;
        const uint64_t bytes_max_;
        std::unique_ptr<NewFile> file_;
        Sha256 digest_;
        uint64_t n_bytes_ = 0, file_bytes_ = 0;  // received; counted by the store
        bool is_counted_ = false;                // with the holder
        bool keeps_none_ = false;                // keep_none()
        bool kept_ = false;
    };

    static Error too_large(uint64_t max) {
        return make_error(ErrorCode::kAdapterFileTooLarge,
                          format("more than the {} bytes that were announced or are taken", max));
    }

    // Durable when it returns: what was acknowledged is held over a restart too.
    Status make_promise(const std::string& sha256, const std::string& holder, uint64_t bytes) {
        BlobHolds::Promise promise;
        std::string fresh;
        std::optional<int64_t> renewed_s;  // since when there is the acknowledged one that is renewed
        {
            const MutexLock lock(mutex_);
            promise = holds_.next(sha256, holder);
            renewed_s = holds_.time_of(promise);
            // Counted at once, so that nobody else takes the number.
            holds_.add(promise, bytes, unix_time_s());
            fresh = format("incoming/{}", next_upload_++);
        }
        Status made = write_hold_file(*files_, fresh, promise);
        if (made.ok()) {
            const Status synced = files_->sync_folder(kHoldsFolder);
            if (synced.ok()) return ok_status();
            made = health_.read_only(synced.error());
        }
        (void)files_->remove(fresh).ok();
        const MutexLock lock(mutex_);
        if (renewed_s) {
            holds_.restore(promise, *renewed_s);
        } else if (holds_.remove(promise)) {
            end_hold(promise);
        }
        return made;
    }

    // A file that stays behind ends with its time.
    void remove_record(const BlobHolds::Promise& promise) override {
        if (!health_.is_read_only()) remove_hold_file(*files_, promise);
    }

    Status read_blobs(const std::vector<HoldFile>& holds) {
        const MutexLock lock(mutex_);
        TRY_ASSIGN(const std::vector<FileSystem::Entry> entries, files_->list("blobs"));
        const int64_t now_s = unix_time_s();
        std::set<std::string, std::less<>> held;
        for (const HoldFile& hold : holds) held.insert(hold.promise.sha256);
        for (const FileSystem::Entry& entry : entries) {
            if (!entry.is_file || !is_sha256_hex(entry.name)) {
                log_warn("the adapter store: blobs/{} is no blob and is not used", json_quote(entry.name));
                continue;
            }
            const bool loose = !used_.contains(entry.name) && !held.contains(entry.name);
            if (loose && (found().trash.contains(entry.name) || now_s - entry.modified_s > kLooseBlobSeconds)) {
                (void)files_->remove("blobs/" + entry.name).ok();
                continue;
            }
            blobs_[entry.name] = {entry.bytes, entry.modified_s};
            bytes_ += entry.bytes;
        }
        for (const HoldFile& hold : holds) {
            const auto blob = blobs_.find(hold.promise.sha256);
            if (blob != blobs_.end()) {
                holds_.add(hold.promise, blob->second.bytes, hold.since_s);
            } else {
                remove_hold_file(*files_, hold.promise);
            }
        }
        for (const std::string& sha256 : used_) {
            if (!blobs_.contains(sha256))
                log_error("the adapter store: blob {} is missing; its adapters cannot be used", sha256);
        }
        return ok_status();
    }

    // Blobs that no adapter was made of leave, the oldest first, before an upload is refused.
    Status make_room(uint64_t bytes) REQUIRES(mutex_) {
        const auto full = [&]() REQUIRES(mutex_) {
            return (limits_.bytes_max != 0 && bytes_ + incoming_bytes_ + bytes > limits_.bytes_max) ||
                   blobs_.size() + n_uploads_ > limits_.n_blobs_max;
        };
        while (full()) {
            auto oldest = blobs_.end();
            for (auto it = blobs_.begin(); it != blobs_.end(); ++it) {
                const bool loose = !used_.contains(it->first) && !holds_.is_held(it->first) &&
                                   unix_time_s() - it->second.since_s > kLooseBlobSecondsWhenFull;
                if (loose && (oldest == blobs_.end() || it->second.since_s < oldest->second.since_s)) oldest = it;
            }
            if (oldest == blobs_.end()) {
                return make_error(
                    ErrorCode::kStorageFull,
                    format("no room for {} bytes more: {} of {} bytes and {} of {} files are in use; remove adapters "
                           "first",
                           bytes, bytes_ + incoming_bytes_, limits_.bytes_max, blobs_.size(), limits_.n_blobs_max));
            }
            (void)files_->remove(blob_path(oldest->first)).ok();
            forget(oldest);
        }
        return ok_status();
    }

    void set_used(const Catalogue& catalogue) REQUIRES(mutex_) {
        used_.clear();
        for (const auto& [id, record] : catalogue.generations) {
            for (const FileRecord& file : record.files) used_.insert(file.sha256);
        }
    }

    void forget(std::string_view sha256) {
        const MutexLock lock(mutex_);
        if (const auto found = blobs_.find(sha256); found != blobs_.end()) forget(found);
    }
    void forget(std::map<std::string, Blob, std::less<>>::iterator blob) REQUIRES(mutex_) {
        bytes_ -= blob->second.bytes;
        blobs_.erase(blob);
    }

    // The blob's edition. Who reads a blob is about to use it: make_room() leaves it alone for a while.
    Result<uint64_t> begin_read(std::string_view sha256) {
        const MutexLock lock(mutex_);
        const auto found = blobs_.find(sha256);
        if (found == blobs_.end())
            return make_error(ErrorCode::kAdapterFileNotFound, format("no blob {} was uploaded", json_quote(sha256)));
        found->second.since_s = unix_time_s();
        return found->second.edition;
    }

    // False, and nothing is done, if this is not the edition any more that was found to be damaged.
    bool put_aside(std::string_view sha256, uint64_t edition) {
        const MutexLock lock(mutex_);
        const auto found = blobs_.find(sha256);
        if (found == blobs_.end() || found->second.edition != edition) return false;
        (void)files_->rename(blob_path(sha256), format("damaged/{}", sha256)).ok();
        forget(found);
        return true;
    }

    const std::unique_ptr<FileSystem> files_;
    const StoreLimits limits_;
    DiskHealth health_;
    StoredCatalogue catalogue_;
    mutable std::atomic<bool> is_displaced_{false};  // from the last is_in_place()
    std::map<std::string, Blob, std::less<>> blobs_ GUARDED_BY(mutex_);
    std::set<std::string, std::less<>> used_ GUARDED_BY(mutex_);  // blobs of the catalogue
    uint64_t bytes_ GUARDED_BY(mutex_) = 0, incoming_bytes_ GUARDED_BY(mutex_) = 0;
    uint32_t n_uploads_ GUARDED_BY(mutex_) = 0;
    uint64_t next_upload_ GUARDED_BY(mutex_) = 1, last_edition_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<std::unique_ptr<Store>> disk_store(std::unique_ptr<FileSystem> files, const StoreLimits& limits) {
    auto store = std::make_unique<DiskStore>(std::move(files), limits);
    TRY(store->open());
    return std::unique_ptr<Store>(std::move(store));
}

}  // namespace lorad::adapters
