// The holds of a store on its disk: an empty file for each promise, whose name says which, and whose time says since
// when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "adapters/store/blob_holds.h"
#include "adapters/store/file_system.h"

namespace lorad::adapters {

inline constexpr const char* kHoldsFolder = "holds";

struct HoldFile {
    BlobHolds::Promise promise;
    int64_t since_s = 0;
};
// Returns the holds that have not expired; removes expired ones, and files that are no holds.
Result<std::vector<HoldFile>> read_hold_files(FileSystem& files, int64_t now_s);

// Durable once the folder is synced too. `fresh` is the path under which it is written first, so that its time is now
// also where it is renewed.
Status write_hold_file(FileSystem& files, const std::string& fresh, const BlobHolds::Promise& promise);
void remove_hold_file(FileSystem& files, const BlobHolds::Promise& promise);

}  // namespace lorad::adapters
