#include "adapters/store/hold_files.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "proto/base/digest.h"
#include "proto/base/format.h"

namespace lorad::adapters {

namespace {

std::string hold_path(const BlobHolds::Promise& promise) {
    return format("{}/{}.{}.{}", kHoldsFolder, promise.sha256, promise.holder, promise.number);
}

// Parses a file's name; nothing if it is no hold's.
std::optional<BlobHolds::Promise> promise_of(std::string_view name) {
    constexpr size_t kDigits = 64;
    if (name.size() < 2 * kDigits + 3 || name[kDigits] != '.' || name[2 * kDigits + 1] != '.') return std::nullopt;
    BlobHolds::Promise promise{std::string(name.substr(0, kDigits)), std::string(name.substr(kDigits + 1, kDigits)), 0};
    const std::string_view digits = name.substr(2 * kDigits + 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), promise.number);
    const bool is_number =
        error == std::errc() && end == digits.data() + digits.size() && promise.number < BlobHolds::kPromisesMax;
    if (!is_number || !is_sha256_hex(promise.sha256) || !is_sha256_hex(promise.holder)) return std::nullopt;
    return promise;
}

}  // namespace

Result<std::vector<HoldFile>> read_hold_files(FileSystem& files, int64_t now_s) {
    TRY_ASSIGN(const std::vector<FileSystem::Entry> entries, files.list(kHoldsFolder));
    std::vector<HoldFile> holds;
    for (const FileSystem::Entry& entry : entries) {
        auto promise = promise_of(entry.name);
        if (promise && now_s - entry.modified_s <= kHoldSeconds) {
            holds.push_back({std::move(*promise), entry.modified_s});
        } else {
            (void)files.remove(format("{}/{}", kHoldsFolder, entry.name)).ok();
        }
    }
    return holds;
}

Status write_hold_file(FileSystem& files, const std::string& fresh, const BlobHolds::Promise& promise) {
    {
        TRY_ASSIGN(const std::unique_ptr<NewFile> file, files.create(fresh));
        TRY(file->sync());
    }
    return files.rename(fresh, hold_path(promise));
}

void remove_hold_file(FileSystem& files, const BlobHolds::Promise& promise) {
    (void)files.remove(hold_path(promise)).ok();
}

}  // namespace lorad::adapters
