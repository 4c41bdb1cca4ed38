#include "server/training/file_store.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/json/json.h"
#include "server/training/durable_file.h"

namespace lorad::server::training {
namespace {

constexpr size_t kIdCharacters = 24;
constexpr std::string_view kIdAlphabet = "0123456789abcdefghijklmnopqrstuv";  // 32: five bits each
constexpr uint64_t kRecordBytesMax = 64 << 10;

std::string record_json(const StoredFile& file) {
    JsonWriter writer;
    writer.begin_object()
        .field("id", file.object.id)
        .field("filename", file.object.filename)
        .field("purpose", file.object.purpose);
    writer.field("bytes", file.object.bytes).field("created", file.object.created_s).field("tenant", file.tenant);
    if (file.object.expires_s) writer.field("expires", *file.object.expires_s);
    return writer.end_object().take();
}

Result<StoredFile> parse_record(std::string_view text) {
    TRY_ASSIGN(const JsonDocument document, parse_json(text, {.name = "file record"}));
    const JsonValue root = document.root();
    StoredFile file;
    TRY_ASSIGN(const std::string_view id, root.string_or("id", ""));
    TRY_ASSIGN(const std::string_view filename, root.string_or("filename", ""));
    TRY_ASSIGN(const std::string_view purpose, root.string_or("purpose", ""));
    TRY_ASSIGN(const std::string_view tenant, root.string_or("tenant", ""));
    TRY_ASSIGN(const int64_t bytes, root.int_or("bytes", 0, 0));
    TRY_ASSIGN(file.object.created_s, root.int_or("created", 0));
    if (root.find("expires")) {
        TRY_ASSIGN(file.object.expires_s, root.int_or("expires", 0));
    }
    file.object.id = std::string(id);
    file.object.filename = std::string(filename);
    file.object.purpose = std::string(purpose);
    file.object.bytes = static_cast<uint64_t>(bytes);
    file.tenant = std::string(tenant);
    return file;
}

bool is_over(const StoredFile& file) { return file.object.expires_s && *file.object.expires_s <= unix_time_s(); }

}  // namespace

std::string new_id(std::string_view prefix) {
    unsigned char bits[kIdCharacters];
    CHECK(::getrandom(bits, sizeof(bits), 0) == static_cast<ssize_t>(sizeof(bits)));
    std::string id(prefix);
    for (const unsigned char byte : bits) id += kIdAlphabet[byte % kIdAlphabet.size()];
    return id;
}

bool is_id(std::string_view text, std::string_view prefix) {
    return text.size() == prefix.size() + kIdCharacters && text.starts_with(prefix) &&
           std::ranges::all_of(text.substr(prefix.size()),
                               [](char c) { return kIdAlphabet.find(c) != std::string_view::npos; });
}

FileStore::Upload::Upload(FileStore& store, StoredFile file, OwnedFd fd)
    : store_(store), file_(std::move(file)), fd_(std::move(fd)) {}

FileStore::Upload::~Upload() {
    {
        MutexLock lock(store_.mutex_);
        const auto incoming = store_.incoming_.find(file_.tenant);
        if (incoming != store_.incoming_.end()) {
            incoming->second -= std::min(incoming->second, file_.object.bytes);
            if (incoming->second == 0) store_.incoming_.erase(incoming);
        }
    }
    if (!is_finished_) remove_quietly(store_.content_of(file_.object.id));
}

Status FileStore::Upload::write(std::string_view bytes) {
    if (file_.object.bytes + bytes.size() > store_.limits_.file_bytes_max)
        return make_error(
            ErrorCode::kPayloadTooLarge,
            format("the file has more than {} bytes (--training-file-mib)", store_.limits_.file_bytes_max), "file");
    {
        MutexLock lock(store_.mutex_);
        TRY(store_.check_room(file_.tenant, bytes.size()));
        store_.incoming_[file_.tenant] += bytes.size();
        file_.object.bytes += bytes.size();
    }
    return write_all(fd_.get(), std::as_bytes(std::span(bytes)));
}

Result<StoredFile> FileStore::Upload::finish() {
    if (::fsync(fd_.get()) != 0) return disk_error("sync a file", errno);
    TRY(store_.keep(file_));
    is_finished_ = true;
    return file_;
}

std::filesystem::path FileStore::content_of(std::string_view id) const { return folder_ / (std::string(id) + ".data"); }
std::filesystem::path FileStore::record_of(std::string_view id) const { return folder_ / (std::string(id) + ".json"); }

Result<std::unique_ptr<FileStore>> FileStore::open(const std::filesystem::path& folder, const FileLimits& limits) {
    TRY(make_folder(folder));
    auto store = std::unique_ptr<FileStore>(new FileStore(folder, limits));
    TRY(store->read_all());
    return store;
}

// Contents without a record were never finished.
Status FileStore::read_all() {
    const MutexLock lock(mutex_);
    std::error_code error;
    std::vector<std::filesystem::path> contents;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
        if (entry.path().extension() == ".data" || entry.path().extension() == ".new") contents.push_back(entry.path());
        if (entry.path().extension() != ".json") continue;
        const Result<std::string> text = read_whole(entry.path(), kRecordBytesMax);
        Result<StoredFile> file = text.ok() ? parse_record(*text) : Result<StoredFile>(text.error());
        if (!file.ok() || file->object.id != entry.path().stem().string()) {
            log_error("the record of a training file cannot be read: {}",
                      file.ok() ? std::string("it is another's") : file.error().message);
            continue;
        }
        files_.emplace(file->object.id, std::move(*file));
    }
    if (error)
        return make_error(ErrorCode::kStorageFailed,
                          format("the folder of training files cannot be read: {}", error.message()));
    for (const std::filesystem::path& path : contents) {
        if (!files_.contains(path.stem().string())) remove_quietly(path);
    }
    return ok_status();
}

Status FileStore::check_room(std::string_view tenant, uint64_t more) const {
    uint64_t own = more, all = more;
    uint32_t n_own = 0;
    for (const auto& [id, file] : files_) {
        all += file.object.bytes;
        if (file.tenant != tenant) continue;
        own += file.object.bytes;
        ++n_own;
    }
    for (const auto& [whose, bytes] : incoming_) {
        all += bytes;
        if (whose == tenant) own += bytes;
    }
    if (own > limits_.tenant_bytes_max)
        return make_error(
            ErrorCode::kStorageFull,
            format("training files of one key may have {} bytes together; delete some", limits_.tenant_bytes_max),
            "file");
    if (all > limits_.bytes_max)
        return make_error(ErrorCode::kStorageFull,
                          format("training files may have {} bytes together (--training-store-mib)", limits_.bytes_max),
                          "file");
    if (n_own >= limits_.n_files_max)
        return make_error(ErrorCode::kStorageFull,
                          format("one key may have {} training files; delete some", limits_.n_files_max), "file");
    return ok_status();
}

Result<std::unique_ptr<FileStore::Upload>> FileStore::begin(const std::string& tenant, const std::string& filename,
                                                            const std::string& purpose,
                                                            std::optional<int64_t> expires_s) {
    {
        MutexLock lock(mutex_);
        TRY(check_room(tenant, 0));
    }
    StoredFile file;
    file.object.id = new_id("file-");
    file.object.filename = filename;
    file.object.purpose = purpose;
    file.object.created_s = unix_time_s();
    file.object.expires_s = expires_s;
    file.tenant = tenant;
    OwnedFd fd(::open(content_of(file.object.id).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd.ok()) return disk_error("make a file", errno);
    return std::unique_ptr<Upload>(new Upload(*this, std::move(file), std::move(fd)));
}

Result<StoredFile> FileStore::add(const std::string& tenant, const std::string& filename, const std::string& purpose,
                                  std::string_view content) {
    TRY_ASSIGN(const std::unique_ptr<Upload> upload, begin(tenant, filename, purpose, std::nullopt));
    TRY(upload->write(content));
    return upload->finish();
}

// The record makes the file one: its content is there by then.
Status FileStore::keep(const StoredFile& file) {
    TRY(write_durably(record_of(file.object.id), record_json(file)));
    MutexLock lock(mutex_);
    files_.emplace(file.object.id, file);
    return ok_status();
}

std::optional<StoredFile> FileStore::find(std::string_view tenant, std::string_view id) const {
    MutexLock lock(mutex_);
    const auto found = files_.find(id);
    if (found == files_.end() || found->second.tenant != tenant || is_over(found->second)) return std::nullopt;
    return found->second;
}

std::vector<StoredFile> FileStore::list(std::string_view tenant) const {
    std::vector<StoredFile> files;
    {
        MutexLock lock(mutex_);
        for (const auto& [id, file] : files_) {
            if (file.tenant == tenant && !is_over(file)) files.push_back(file);
        }
    }
    std::ranges::sort(files, [](const StoredFile& a, const StoredFile& b) {
        return std::tie(a.object.created_s, a.object.id) > std::tie(b.object.created_s, b.object.id);
    });
    return files;
}

Result<bool> FileStore::remove(std::string_view tenant, std::string_view id) {
    if (!find(tenant, id)) return false;
    // The record first: content without one is no file any more.
    remove_quietly(record_of(id));
    TRY(sync_parent(record_of(id)));
    remove_quietly(content_of(id));
    MutexLock lock(mutex_);
    files_.erase(std::string(id));
    return true;
}

uint64_t FileStore::bytes() const {
    MutexLock lock(mutex_);
    uint64_t sum = 0;
    for (const auto& [id, file] : files_) sum += file.object.bytes;
    return sum;
}

}  // namespace lorad::server::training
