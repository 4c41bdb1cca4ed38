#include "adapters/store/stored_catalogue.h"

#include <optional>
#include <vector>

#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::adapters {

namespace {

const std::string kManifest = "registry.json", kCopy = "registry.copy.json";
const std::string kManifestNew = "registry.json.new", kCopyNew = "registry.copy.json.new";
constexpr uint64_t kManifestBytesMax = uint64_t{1} << 30;

}  // namespace

Status DiskHealth::check_writable() const {
    if (!is_read_only_) return ok_status();
    return make_error(ErrorCode::kStoreReadOnly,
                      "the adapter store is read-only after a failure of its disk; see the log");
}

Status DiskHealth::synced(NewFile& file) {
    const Status status = file.sync();
    if (status.ok() || status.error().code == ErrorCode::kStorageFull) return status;
    return read_only(status.error());
}

Error DiskHealth::read_only(const Error& why) {
    is_read_only_ = true;
    log_error("the adapter store is read-only from here on: {}", why.message);
    return make_error(ErrorCode::kStoreReadOnly,
                      "the disk of the adapter store fails; the store is read-only, see the log");
}

Status write_synced(FileSystem& files, DiskHealth& health, const std::string& path, std::string_view text) {
    TRY_ASSIGN(const std::unique_ptr<NewFile> file, files.create(path));
    TRY(file->write(std::as_bytes(std::span(text))));
    return health.synced(*file);
}

Status StoredCatalogue::save(const Catalogue& catalogue) {
    const std::string text = manifest_text(catalogue);
    Status written = write_both(text);
    // The copy makes room for what is no larger.
    const bool is_full = !written.ok() && written.error().code == ErrorCode::kStorageFull;
    const bool leaves_copy = is_full && main_is_current_ && text.size() <= saved_bytes_;
    if (leaves_copy) {
        remove_unfinished();
        (void)files_.remove(kCopy).ok();
        written = write_synced(files_, health_, kManifestNew, text);
    }
    if (!written.ok()) {
        remove_unfinished();
        if (leaves_copy) mend_copy();
        return written;
    }
    const Status renamed = files_.rename(kManifestNew, kManifest);
    if (!renamed.ok() && renamed.error().code == ErrorCode::kStorageFull) {
        remove_unfinished();
        if (leaves_copy) mend_copy();
        return renamed;
    }
    // If a call fails from here on, the content of the disk is unknown; only a restart finds out.
    is_half_saved_ = true;
    if (!renamed.ok()) return health_.read_only(renamed.error());
    if (!leaves_copy) {
        if (const Status copied = files_.rename(kCopyNew, kCopy); !copied.ok())
            return health_.read_only(copied.error());
    }
    if (const Status synced = files_.sync_folder(""); !synced.ok()) return health_.read_only(synced.error());
    is_half_saved_ = false;
    saved_bytes_ = text.size();
    main_is_current_ = true;
    lacks_copy_ = leaves_copy;
    return ok_status();
}

Status StoredCatalogue::write_both(std::string_view text) {
    TRY(write_synced(files_, health_, kManifestNew, text));
    return write_synced(files_, health_, kCopyNew, text);
}

// The second copy of what was saved, where a full disk left none. Without it one sound copy is there still, and the
// next save writes both.
void StoredCatalogue::mend_copy() {
    const auto mended = [&]() -> Status {
        TRY_ASSIGN(const FileBytes saved, files_.read(kManifest, kManifestBytesMax));
        TRY(write_synced(files_, health_, kCopyNew, saved.text()));
        TRY(files_.rename(kCopyNew, kCopy));
        return files_.sync_folder("");
    }();
    lacks_copy_ = !mended.ok();
    if (!mended.ok()) remove_unfinished();
}

void StoredCatalogue::remove_unfinished() {
    for (const std::string& unused : {kManifestNew, kCopyNew}) (void)files_.remove(unused).ok();
}

Status StoredCatalogue::read() {
    std::optional<Error> problem;
    std::vector<uint64_t> sequences;  // of the sound copies
    for (const std::string& name : {kManifest, kCopy}) {
        auto text = files_.read(name, kManifestBytesMax);
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
        return make_error(
            ErrorCode::kIo,
            format("{}; no copy of it is sound. Put both files aside to begin with no adapters", problem->message));
    }
    const bool both = sequences.size() == 2 && sequences[0] == sequences[1];
    if (!both && !sequences.empty()) {
        const Status mended = save(found_);
        if (!mended.ok()) log_warn("the adapter store: the registry has one sound copy: {}", mended.error().message);
    }
    return ok_status();
}

}  // namespace lorad::adapters
