// Where registered adapters are kept: blobs by their digest, and the catalogue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapters/files/source.h"
#include "adapters/store/blob_holds.h"
#include "adapters/store/catalogue.h"
#include "adapters/store/file_system.h"
#include "proto/base/result.h"

namespace lorad::adapters {

struct StoreLimits {
    uint64_t bytes_max = 0;  // for all blobs; 0: no limit
    uint64_t blob_bytes_max = kWeightsBytesMax;
    uint32_t n_blobs_max = 100'000;
    uint32_t n_uploads_max = 64;  // at a time
};

// One blob on its way in. On one thread. Dropped before finish() it leaves nothing.
class BlobUpload {
  public:
    virtual ~BlobUpload() = default;
    // kAdapterFileTooLarge beyond the announced or largest size, kStorageFull, kStorageFailed.
    virtual Status write(std::span<const std::byte> bytes) = 0;
    // Durable when this returns. kDigestMismatch: not the bytes that the digest names.
    virtual Status finish() = 0;
};

// Any thread, but save() from one at a time.
class Store {
  public:
    virtual ~Store() = default;

    // The catalogue as it was saved last.
    virtual const Catalogue& found() const = 0;
    // Durable when this returns; on an error the one before is still there. kStorageFull; kStoreReadOnly: a disk has
    // failed to sync, and nothing is taken before a restart.
    virtual Status save(const Catalogue& catalogue) = 0;
    // Returns ok if a restart finds the catalogue that was saved last. kStoreReadOnly: a save failed half-way, and only
    // a restart tells which one is there.
    virtual Status is_settled() const = 0;

    // `bytes`: the size, if it is known. With a holder the blob is held for it once finish() returns. `may_know`: the
    // uploader may learn that the blob exists already; then it needs no room in the store, nor in the holder's quota if
    // the holder has it. kInvalidRequest for an invalid digest, kStorageFull, also for the holder's quota, kAdapterBusy
    // with too many uploads at once.
    virtual Result<std::unique_ptr<BlobUpload>> begin(std::string_view sha256, std::optional<uint64_t> bytes,
                                                      const Holder* holder = nullptr, bool may_know = false) = 0;
    // A file whose digest the caller has computed; durable when this returns. The store may share the bytes. Errors as
    // begin().
    virtual Status put(std::string_view sha256, const FileBytes& bytes) = 0;
    virtual std::optional<uint64_t> blob_bytes(std::string_view sha256) const = 0;
    // The whole blob, compared with its digest: kStorageFailed, and the blob is put aside, where it differs.
    // kAdapterFileNotFound; kIo where the disk fails.
    virtual Result<FileBytes> read(std::string_view sha256) = 0;
    virtual void remove(std::string_view sha256) = 0;
    virtual uint64_t bytes() const = 0;  // of all blobs

    // blob_holds.h.
    virtual bool is_held(std::string_view sha256) const = 0;
    virtual bool is_held_by(std::string_view sha256, std::string_view holder) const = 0;
    // An adapter was made of the blob: this fulfils one upload's promise to this holder.
    virtual void keep_promise(std::string_view sha256, std::string_view holder) = 0;
    // A registration of the blob was refused: it may go when this holder needs the room.
    virtual void mark_tried(std::string_view sha256, std::string_view holder) = 0;
    // Ends expired holds. Returns blobs that lost their last holder, and old blobs without an adapter: to be removed
    // unless something needs them.
    virtual std::vector<std::string> expire(int64_t now_s) = 0;

    // Returns ok if the data is still where a restart looks for it, else kStoreReadOnly.
    virtual Status is_in_place() const = 0;
};

// Keeps everything below a folder, which belongs to this store alone while it lives:
//
//   registry.json, registry.copy.json   the catalogue, twice; each with its digest
//   blobs/<sha256>                      files; those that no adapter was made of go away a day after they came
//   holds/<sha256>.<holder>.<number>    empty; who was promised that file, and since when
//   incoming/                           uploads under way; emptied at the start
//   damaged/<sha256>                    blobs that were not what their name says any more
//   lock
//
// Acknowledged data survives a crash at any moment: a new file is synced, renamed, and its folder synced first.
// kStorageFailed: the folder cannot be used, or another process has it. kIo: both copies of the catalogue are damaged.
Result<std::unique_ptr<Store>> disk_store(std::unique_ptr<FileSystem> files, const StoreLimits& limits);

// Keeps everything in memory, for as long as it lives.
std::unique_ptr<Store> memory_store(const StoreLimits& limits);

}  // namespace lorad::adapters
