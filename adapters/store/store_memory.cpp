#include <algorithm>
#include <utility>

#include "adapters/store/holding_store.h"
#include "proto/base/clock.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/mutex.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

constexpr uint64_t kReserveMax = uint64_t{256} << 20;  // more than that must first arrive

class MemoryStore final : public HoldingStore {
  public:
    explicit MemoryStore(const StoreLimits& limits) : limits_(limits) {}

    const Catalogue& found() const override { return empty_; }
    Status save(const Catalogue&) override { return ok_status(); }
    Status is_settled() const override { return ok_status(); }

    Result<std::unique_ptr<BlobUpload>> begin(std::string_view sha256, std::optional<uint64_t> bytes,
                                              const Holder* holder, bool may_know) override {
        if (!is_sha256_hex(sha256)) {
            return make_error(ErrorCode::kInvalidRequest,
                              format("{}: expected the 64 hex digits of a SHA-256", json_quote(sha256)), "sha256");
        }
        if (bytes && *bytes > limits_.blob_bytes_max) return too_large(limits_.blob_bytes_max);
        auto upload = std::make_unique<Upload>(*this, std::string(sha256), bytes, holder);
        if (holder != nullptr && !(may_know && is_held_by(sha256, holder->key))) TRY(upload->admit(bytes.value_or(0)));
        return std::unique_ptr<BlobUpload>(std::move(upload));
    }

    Status put(std::string_view sha256, const FileBytes& bytes) override {
        if (bytes.size > limits_.blob_bytes_max) return too_large(limits_.blob_bytes_max);
        return keep(std::string(sha256), bytes);
    }

    std::optional<uint64_t> blob_bytes(std::string_view sha256) const override {
        const MutexLock lock(mutex_);
        const auto found = blobs_.find(sha256);
        if (found == blobs_.end()) return std::nullopt;
        return found->second.size;
    }

    // Compared with its digest when it came; nobody writes it since.
    Result<FileBytes> read(std::string_view sha256) override {
        const MutexLock lock(mutex_);
        const auto found = blobs_.find(sha256);
        if (found != blobs_.end()) return found->second;
        return make_error(ErrorCode::kAdapterFileNotFound, format("no blob {} was uploaded", json_quote(sha256)));
    }

    void remove(std::string_view sha256) override {
        const MutexLock lock(mutex_);
        const auto found = blobs_.find(sha256);
        if (found == blobs_.end()) return;
        bytes_ -= found->second.size;
        blobs_.erase(found);
    }

    uint64_t bytes() const override {
        const MutexLock lock(mutex_);
        return bytes_;
    }

    Status is_in_place() const override { return ok_status(); }

  private:
    static Error too_large(uint64_t max) {
        return make_error(ErrorCode::kAdapterFileTooLarge, format("more than {} bytes", max));
    }

    class Upload final : public BlobUpload {
      public:
        Upload(MemoryStore& store, std::string sha256, std::optional<uint64_t> bytes, const Holder* holder)
            : store_(store),
              holder_(holder == nullptr ? std::nullopt : std::optional(*holder)),
              sha256_(std::move(sha256)),
              bytes_max_(bytes.value_or(store.limits_.blob_bytes_max)) {
            // Growing by doubling touches three times the pages, and fresh pages are what loading costs.
            if (bytes) text_.reserve(std::min(*bytes, kReserveMax));
            prefer_huge_pages(text_.data(), text_.capacity());
        }
        ~Upload() override {
            if (!is_counted_) return;
            const MutexLock lock(store_.mutex_);
            store_.holds_.end_upload(holder_->key, n_bytes_);
        }

        // For a holder that does not hold the blob yet.
        Status admit(uint64_t bytes) {
            const MutexLock lock(store_.mutex_);
            store_.holds_.begin_upload(holder_->key);
            is_counted_ = true;
            return store_.make_room_of(*holder_, bytes);
        }

        Status write(std::span<const std::byte> bytes) override {
            if (bytes.size() > bytes_max_ - text_.size()) return too_large(bytes_max_);
            if (is_counted_) {
                const MutexLock lock(store_.mutex_);
                TRY(store_.make_room_of(*holder_, bytes.size()));
                store_.holds_.add_incoming(holder_->key, bytes.size());
            }
            n_bytes_ += bytes.size();
            digest_.add(bytes);
            text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
            return ok_status();
        }
        Status finish() override {
            const std::string found = digest_.hex();
            if (found != sha256_) {
                return make_error(ErrorCode::kDigestMismatch, format("expected the SHA-256 {}, found {} in {} bytes",
                                                                     sha256_, found, text_.size()));
            }
            auto text = std::make_shared<std::string>(std::move(text_));
            auto* const bytes = reinterpret_cast<std::byte*>(text->data());
            const size_t size = text->size();
            // An upload of a held blob was not counted; if that hold has ended meanwhile, it counts now.
            if (holder_ && !is_counted_ && !store_.is_held_by(sha256_, holder_->key)) TRY(admit(size));
            return store_.keep(sha256_, {std::shared_ptr<std::byte[]>(std::move(text), bytes), size},
                               holder_ ? &*holder_ : nullptr);
        }

      private:
        MemoryStore& store_;
        const std::optional<Holder> holder_;
        const std::string sha256_;
        const uint64_t bytes_max_;
        Sha256 digest_;
        std::string text_;
        uint64_t n_bytes_ = 0;
        bool is_counted_ = false;
    };

    Status keep(const std::string& sha256, FileBytes bytes, const Holder* holder = nullptr) {
        const MutexLock lock(mutex_);
        const uint64_t size = bytes.size;
        TRY(keep_bytes(sha256, std::move(bytes)));
        if (holder != nullptr) holds_.add(holds_.next(sha256, holder->key), size, unix_time_s());
        return ok_status();
    }

    Status keep_bytes(const std::string& sha256, FileBytes bytes) REQUIRES(mutex_) {
        if (blobs_.contains(sha256)) return ok_status();
        if ((limits_.bytes_max != 0 && bytes_ + bytes.size > limits_.bytes_max) ||
            blobs_.size() >= limits_.n_blobs_max) {
            return make_error(ErrorCode::kStorageFull, format("{} bytes more than the {} that adapters may take",
                                                              bytes.size, limits_.bytes_max));
        }
        bytes_ += bytes.size;
        blobs_.emplace(sha256, std::move(bytes));
        return ok_status();
    }

    const StoreLimits limits_;
    const Catalogue empty_;
    std::map<std::string, FileBytes, std::less<>> blobs_ GUARDED_BY(mutex_);
    uint64_t bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<Store> memory_store(const StoreLimits& limits) { return std::make_unique<MemoryStore>(limits); }

}  // namespace lorad::adapters
