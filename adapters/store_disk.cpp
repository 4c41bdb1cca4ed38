#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>

#include "adapters/hold_files.h"
#include "adapters/holding_store.h"
#include "proto/base/clock.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/json.h"

namespace lorad::adapters {

namespace {

const std::string kManifest = "registry.json", kCopy = "registry.copy.json";
const std::string kManifestNew = "registry.json.new", kCopyNew = "registry.copy.json.new";
constexpr uint64_t kManifestBytesMax = uint64_t{1} << 30;
constexpr int64_t kLooseBlobSeconds = kHoldSeconds;
constexpr int64_t kLooseBlobSecondsWhenFull = 10 * 60;

std::string blob_path(std::string_view sha256) { return format("blobs/{}", sha256); }

class DiskStore final : public HoldingStore {
  public:
    DiskStore(std::unique_ptr<FileSystem> files, const StoreLimits& limits) : files_(std::move(files)), limits_(limits) {}

    Status open() {
        for (const char* folder : {"blobs", "incoming", "damaged", kHoldsFolder}) TRY(files_->make_folder(folder));
        TRY(files_->lock("lock"));
        TRY(files_->sync_folder(""));
        for (const std::string& name : {kManifestNew, kCopyNew}) (void)files_->remove(name).ok();
        TRY_ASSIGN(const std::vector<FileSystem::Entry> stray, files_->list("incoming"));
        for (const FileSystem::Entry& entry : stray) (void)files_->remove("incoming/" + entry.name).ok();
        TRY(read_catalogue());
        TRY_ASSIGN(const std::vector<HoldFile> holds, read_hold_files(*files_, unix_time_s()));
        return read_blobs(holds);
    }

    const Catalogue& found() const override { return found_; }

    Status save(const Catalogue& catalogue) override {
        TRY(check_writable());
        TRY(is_in_place());
        const std::string text = manifest_text(catalogue);
        Status written = write_both(text);
        // What makes the catalogue no larger, such as a removal, has to work on a full disk: the copy makes room for it.
        const bool is_full = !written.ok() && written.error().code == ErrorCode::kStorageFull;
        const bool leaves_copy = is_full && main_is_current_ && text.size() <= saved_bytes_;
        if (leaves_copy) {
            remove_new_manifests();
            (void)files_->remove(kCopy).ok();
            written = write_file(kManifestNew, text);
        }
        if (!written.ok()) {
            remove_new_manifests();
            if (leaves_copy) mend_copy();
            return written;
        }
        const Status renamed = files_->rename(kManifestNew, kManifest);
        if (!renamed.ok() && renamed.error().code == ErrorCode::kStorageFull) {
            remove_new_manifests();
            if (leaves_copy) mend_copy();
            return renamed;
        }
        // From here on nobody knows what is on the disk where a call fails; only a restart finds out.
        is_half_saved_ = true;
        if (!renamed.ok()) return read_only(renamed.error());
        if (!leaves_copy) {
            if (const Status copied = files_->rename(kCopyNew, kCopy); !copied.ok()) return read_only(copied.error());
        }
        if (const Status synced = files_->sync_folder(""); !synced.ok()) return read_only(synced.error());
        is_half_saved_ = false;
        saved_bytes_ = text.size();
        main_is_current_ = true;
        lacks_copy_ = leaves_copy;
        const std::lock_guard lock(mutex_);
        set_used(catalogue);
        return ok_status();
    }

    Status is_settled() const override { return is_half_saved_ ? check_writable() : ok_status(); }

    Result<std::unique_ptr<BlobUpload>> begin(std::string_view sha256, std::optional<uint64_t> bytes, const Holder* holder) override {
        return begin_upload(sha256, bytes, Digest::kCompare, holder);
    }

    Status put(std::string_view sha256, const FileBytes& bytes) override {
        TRY_ASSIGN(const std::unique_ptr<BlobUpload> upload, begin_upload(sha256, bytes.size, Digest::kKnown, nullptr));
        TRY(upload->write(bytes.span()));
        return upload->finish();
    }

    std::optional<uint64_t> blob_bytes(std::string_view sha256) const override {
        const std::lock_guard lock(mutex_);
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
        // What the disk's catalogue needs is not known then.
        if (read_only_ || !blob_bytes(sha256)) return;
        const Status removed = files_->remove(blob_path(sha256));
        if (!removed.ok()) log_warn("{}", removed.error().message);
        forget(sha256);
        // There is room again.
        if (lacks_copy_) mend_copy();
    }

    uint64_t bytes() const override {
        const std::lock_guard lock(mutex_);
        return bytes_;
    }

    std::vector<std::string> expire(int64_t now_s) override {
        const std::lock_guard lock(mutex_);
        std::vector<std::string> loose = end_holds(now_s);
        for (const auto& [sha256, blob] : blobs_) {
            if (!used_.contains(sha256) && !holds_.is_held(sha256) && now_s - blob.since_s > kLooseBlobSeconds) loose.push_back(sha256);
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
        uint64_t edition = 0;  // of the bytes that its name has; no two uploads have the same
    };
    enum class Digest : uint8_t { kCompare, kKnown };

    Result<std::unique_ptr<BlobUpload>> begin_upload(std::string_view sha256, std::optional<uint64_t> bytes, Digest digest,
                                                     const Holder* holder) {
        TRY(check_writable());
        TRY(is_in_place());
        if (!is_sha256_hex(sha256)) {
            return make_error(ErrorCode::kInvalidRequest,
                              format("{}: expected the 64 hex digits of a SHA-256", json_quote(sha256)), "sha256");
        }
        if (bytes && *bytes > limits_.blob_bytes_max) return too_large(limits_.blob_bytes_max);
        // What may fail for want of memory comes before what is counted.
        auto upload = std::make_unique<Upload>(*this, std::string(sha256), bytes, digest, holder);
        {
            const std::lock_guard lock(mutex_);
            if (n_uploads_ >= limits_.n_uploads_max) {
                return make_error(ErrorCode::kAdapterBusy, format("{} uploads are under way, as many as there may be", n_uploads_));
            }
            // An early answer; what is written counts.
            TRY(make_room(bytes.value_or(0)));
            upload->admit(format("incoming/{}", next_upload_++));
            if (holder != nullptr) TRY(make_room_of(*holder, bytes.value_or(0)));
        }
        TRY(upload->open());
        return std::unique_ptr<BlobUpload>(std::move(upload));
    }

    class Upload final : public BlobUpload {
      public:
        Upload(DiskStore& store, std::string sha256, std::optional<uint64_t> bytes, Digest digest, const Holder* holder)
            : store_(store),
              holder_(holder == nullptr ? std::nullopt : std::optional(*holder)),
              sha256_(std::move(sha256)),
              compares_(digest == Digest::kCompare),
              bytes_max_(bytes.value_or(store.limits_.blob_bytes_max)) {}
        ~Upload() override {
            file_.reset();
            if (path_.empty()) return;
            if (!kept_) (void)store_.files_->remove(path_).ok();
            const std::lock_guard lock(store_.mutex_);
            --store_.n_uploads_;
            store_.incoming_bytes_ -= n_bytes_;
            if (holder_) store_.holds_.end_upload(holder_->key, n_bytes_);
        }

        // Under the store's mutex.
        void admit(std::string path) {
            if (holder_) store_.holds_.begin_upload(holder_->key);
            path_ = std::move(path);
            ++store_.n_uploads_;
        }

        Status open() {
            TRY_ASSIGN(file_, store_.files_->create(path_));
            return ok_status();
        }

        Status write(std::span<const std::byte> bytes) override {
            if (bytes.size() > bytes_max_ - n_bytes_) return too_large(bytes_max_);
            {
                const std::lock_guard lock(store_.mutex_);
                TRY(store_.make_room(bytes.size()));
                if (holder_) TRY(store_.make_room_of(*holder_, bytes.size()));
                store_.incoming_bytes_ += bytes.size();
                if (holder_) store_.holds_.add_incoming(holder_->key, bytes.size());
                n_bytes_ += bytes.size();
            }
            if (compares_) digest_.add(bytes);
            return file_->write(bytes);
        }

        Status finish() override {
            if (const std::string found = compares_ ? digest_.hex() : sha256_; found != sha256_) {
                return make_error(ErrorCode::kDigestMismatch,
                                  format("expected the SHA-256 {}, found {} in {} bytes", sha256_, found, n_bytes_));
            }
            TRY(store_.synced(*file_));
            file_.reset();
            {
                const std::lock_guard lock(store_.mutex_);
                TRY(store_.files_->rename(path_, blob_path(sha256_)));
                if (const auto known = store_.blobs_.find(sha256_); known != store_.blobs_.end()) {
                    known->second.edition = ++store_.last_edition_;
                    known->second.since_s = unix_time_s();  // what it replaced may have been old enough for make_room()
                }
            }
            kept_ = true;
            const Status synced = store_.files_->sync_folder("blobs");
            if (!synced.ok()) return store_.read_only(synced.error());
            {
                const std::lock_guard lock(store_.mutex_);
                Blob& blob = store_.blobs_[sha256_];
                store_.bytes_ += n_bytes_ - blob.bytes;
                blob = {n_bytes_, unix_time_s(), ++store_.last_edition_};
            }
            return holder_ ? store_.make_promise(sha256_, holder_->key, n_bytes_) : ok_status();
        }

      private:
        DiskStore& store_;
        const std::optional<Holder> holder_;
        const std::string sha256_;
        std::string path_;  // empty before it is admitted
        const bool compares_;
        const uint64_t bytes_max_;
        std::unique_ptr<NewFile> file_;
        Sha256 digest_;
        uint64_t n_bytes_ = 0;
        bool kept_ = false;
    };

    static Error too_large(uint64_t max) {
        return make_error(ErrorCode::kAdapterFileTooLarge, format("more than the {} bytes that were announced or are taken", max));
    }

    Status check_writable() const {
        if (!read_only_) return ok_status();
        return make_error(ErrorCode::kStoreReadOnly, "the adapter store is read-only after a failure of its disk; see the log");
    }

    Status write_file(const std::string& path, std::string_view text) {
        TRY_ASSIGN(const std::unique_ptr<NewFile> file, files_->create(path));
        TRY(file->write(std::as_bytes(std::span(text))));
        return synced(*file);
    }

    Status write_both(std::string_view text) {
        TRY(write_file(kManifestNew, text));
        return write_file(kCopyNew, text);
    }

    // The second copy of what was saved, where a full disk left none. Without it one sound copy is there still, and the next save writes both.
    void mend_copy() {
        const auto mended = [&]() -> Status {
            TRY_ASSIGN(const FileBytes saved, files_->read(kManifest, kManifestBytesMax));
            TRY(write_file(kCopyNew, saved.text()));
            TRY(files_->rename(kCopyNew, kCopy));
            return files_->sync_folder("");
        }();
        lacks_copy_ = !mended.ok();
        if (!mended.ok()) remove_new_manifests();
    }

    // Durable when it returns: what was acknowledged is held over a restart too.
    Status make_promise(const std::string& sha256, const std::string& holder, uint64_t bytes) {
        BlobHolds::Promise promise;
        std::string fresh;
        std::optional<int64_t> renewed_s;  // since when there is the acknowledged one that is renewed
        {
            const std::lock_guard lock(mutex_);
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
            made = read_only(synced.error());
        }
        (void)files_->remove(fresh).ok();
        const std::lock_guard lock(mutex_);
        if (renewed_s) {
            holds_.restore(promise, *renewed_s);
        } else if (holds_.remove(promise)) {
            end_hold(promise);
        }
        return made;
    }

    // A file that stays behind ends with its time.
    void remove_record(const BlobHolds::Promise& promise) override {
        if (!read_only_) remove_hold_file(*files_, promise);
    }

    void remove_new_manifests() {
        for (const std::string& unused : {kManifestNew, kCopyNew}) (void)files_->remove(unused).ok();
    }

    // A sync that failed may succeed when it is tried again although the bytes are lost, so nothing is kept any more. Without room for them
    // the new file goes away, and with it all that could not be written.
    Status synced(NewFile& file) {
        const Status status = file.sync();
        if (status.ok() || status.error().code == ErrorCode::kStorageFull) return status;
        return read_only(status.error());
    }

    Error read_only(const Error& why) {
        read_only_ = true;
        log_error("the adapter store is read-only from here on: {}", why.message);
        return make_error(ErrorCode::kStoreReadOnly, "the disk of the adapter store fails; the store is read-only, see the log");
    }

    // Whichever copy is sound and newer; what is missing, damaged or older is written again.
    Status read_catalogue() {
        std::optional<Error> problem;
        std::vector<uint64_t> sequences;  // of the sound copies
        for (const std::string& name : {kManifest, kCopy}) {
            auto text = files_->read(name, kManifestBytesMax);
            if (!text.ok() && text.error().code == ErrorCode::kAdapterFileNotFound) continue;
            auto catalogue = text.ok() ? parse_manifest(text->text()) : Result<Catalogue>(text.error());
            if (!catalogue.ok()) {
                log_error("the adapter store: {} is not used: {}", name, catalogue.error().message);
                problem = catalogue.error();
                continue;
            }
            sequences.push_back(catalogue->sequence);
            if (sequences.size() > 1 && catalogue->sequence <= found_.sequence) continue;
            main_is_current_ = name == kManifest;
            saved_bytes_ = text->size;
            found_ = std::move(catalogue).value();
        }
        if (problem && sequences.empty()) {
            return make_error(ErrorCode::kIo, format("{}; no copy of it is sound. Put both files aside to begin with no adapters",
                                                     problem->message));
        }
        set_used(found_);
        const bool both = sequences.size() == 2 && sequences[0] == sequences[1];
        if (!both && !sequences.empty()) {
            const Status mended = save(found_);
            if (!mended.ok()) log_warn("the adapter store: the registry has one sound copy: {}", mended.error().message);
        }
        return ok_status();
    }

    Status read_blobs(const std::vector<HoldFile>& holds) {
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
            if (loose && (found_.trash.contains(entry.name) || now_s - entry.modified_s > kLooseBlobSeconds)) {
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
            if (!blobs_.contains(sha256)) log_error("the adapter store: blob {} is missing; its adapters cannot be used", sha256);
        }
        return ok_status();
    }

    // Under mutex_. Blobs that no adapter was made of leave, the oldest first, before an upload is refused.
    Status make_room(uint64_t bytes) {
        const auto full = [&] {
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
                return make_error(ErrorCode::kStorageFull,
                                  format("no room for {} bytes more: {} of {} bytes and {} of {} files are in use; remove adapters "
                                         "first",
                                         bytes, bytes_ + incoming_bytes_, limits_.bytes_max, blobs_.size(), limits_.n_blobs_max));
            }
            (void)files_->remove(blob_path(oldest->first)).ok();
            forget(oldest);
        }
        return ok_status();
    }

    void set_used(const Catalogue& catalogue) {
        used_.clear();
        for (const auto& [id, record] : catalogue.generations) {
            for (const FileRecord& file : record.files) used_.insert(file.sha256);
        }
    }

    void forget(std::string_view sha256) {
        const std::lock_guard lock(mutex_);
        if (const auto found = blobs_.find(sha256); found != blobs_.end()) forget(found);
    }
    // Under mutex_.
    void forget(std::map<std::string, Blob, std::less<>>::iterator blob) {
        bytes_ -= blob->second.bytes;
        blobs_.erase(blob);
    }

    // The blob's edition. Who reads a blob is about to use it: make_room() leaves it alone for a while.
    Result<uint64_t> begin_read(std::string_view sha256) {
        const std::lock_guard lock(mutex_);
        const auto found = blobs_.find(sha256);
        if (found == blobs_.end()) return make_error(ErrorCode::kAdapterFileNotFound, format("no blob {} was uploaded", json_quote(sha256)));
        found->second.since_s = unix_time_s();
        return found->second.edition;
    }

    // False, and nothing is done, if this is not the edition any more that was found to be damaged.
    bool put_aside(std::string_view sha256, uint64_t edition) {
        const std::lock_guard lock(mutex_);
        const auto found = blobs_.find(sha256);
        if (found == blobs_.end() || found->second.edition != edition) return false;
        (void)files_->rename(blob_path(sha256), format("damaged/{}", sha256)).ok();
        forget(found);
        return true;
    }

    const std::unique_ptr<FileSystem> files_;
    const StoreLimits limits_;
    Catalogue found_;
    std::atomic<bool> read_only_{false};
    mutable std::atomic<bool> is_displaced_{false};  // as is_in_place() said last
    bool is_half_saved_ = false;                     // as save()
    bool lacks_copy_ = false;                        // as save(): a full disk has left one copy of the catalogue
    bool main_is_current_ = false;                   // registry.json is what was saved last
    uint64_t saved_bytes_ = 0;                       // of its text
    std::map<std::string, Blob, std::less<>> blobs_;
    std::set<std::string, std::less<>> used_;  // blobs of the catalogue
    uint64_t bytes_ = 0, incoming_bytes_ = 0;
    uint32_t n_uploads_ = 0;
    uint64_t next_upload_ = 1, last_edition_ = 0;
};

}  // namespace

Result<std::unique_ptr<Store>> disk_store(std::unique_ptr<FileSystem> files, const StoreLimits& limits) {
    auto store = std::make_unique<DiskStore>(std::move(files), limits);
    TRY(store->open());
    return std::unique_ptr<Store>(std::move(store));
}

}  // namespace lorad::adapters
