// The catalogue on the disk, twice, and what a disk that fails to sync means for all that is written there.
// adapters/store/store.h says what the files are.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "adapters/store/catalogue.h"
#include "adapters/store/file_system.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// Read-only for good once a sync has failed: it may succeed when it is tried again although the bytes are lost, so
// nothing is kept any more. Any thread.
class DiskHealth {
  public:
    bool is_read_only() const { return is_read_only_; }
    // kStoreReadOnly.
    Status check_writable() const;
    // Syncs. kStorageFull without room for the bytes: the new file goes away, and with it all that could not be
    // written.
    Status synced(NewFile& file);
    // Makes the store read-only for good. Returns the error to answer with.
    Error read_only(const Error& why);

  private:
    std::atomic<bool> is_read_only_{false};
};

// Writes a file and syncs it; its name is durable once its folder is synced too.
Status write_synced(FileSystem& files, DiskHealth& health, const std::string& path, std::string_view text);

// One thread at a time, but found() and is_settled(): any.
class StoredCatalogue {
  public:
    // Both outlive it.
    StoredCatalogue(FileSystem& files, DiskHealth& health) : files_(files), health_(health) {}

    // Removes unfinished files of a process that was killed.
    void remove_unfinished();
    // Reads the newer sound copy and rewrites the other if it is missing, damaged or older. kIo: no copy is sound.
    Status read();
    const Catalogue& found() const { return found_; }

    // Durable when it returns; on an error the one before is still there. What makes the catalogue no larger, such as a
    // removal, works on a full disk.
    // kStorageFull, kStorageFailed, kStoreReadOnly.
    Status save(const Catalogue& catalogue);
    // kStoreReadOnly: a save failed half-way, and only a restart tells what it has left.
    Status is_settled() const { return is_half_saved_ ? health_.check_writable() : ok_status(); }
    // The disk may have room again, for the copy that a full one has left out.
    void use_room() {
        if (lacks_copy_) mend_copy();
    }

  private:
    Status write_both(std::string_view text);
    void mend_copy();

    FileSystem& files_;
    DiskHealth& health_;
    Catalogue found_;
    std::atomic<bool> is_half_saved_{false};  // between the first rename and the sync of the folder
    bool lacks_copy_ = false;                 // a full disk has left one copy of the catalogue
    bool main_is_current_ = false;            // registry.json is what was saved last
    uint64_t saved_bytes_ = 0;                // of the saved text
};

}  // namespace lorad::adapters
