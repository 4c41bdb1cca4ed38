#include "server/tinker/saved_weights.h"

#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/json/json.h"
#include "server/training/durable_file.h"

namespace lorad::server::tinker {
namespace {

constexpr uint64_t kRecordBytes = 16 << 10;

std::string weight_json(const std::string& name, const WeightRecord& record) {
    return JsonWriter()
        .begin_object()
        .field("name", name)
        .field("tenant", record.tenant)
        .field("bytes", record.n_bytes)
        .field("temporary", record.is_temporary)
        .end_object()
        .take();
}

Result<std::pair<std::string, WeightRecord>> parse_weight(std::string_view text) {
    TRY_ASSIGN(const JsonDocument document, parse_json(text, {.name = "weights", .code = ErrorCode::kStorageFailed}));
    const JsonValue root = document.root();
    TRY_ASSIGN(const std::string_view name, root.string_or("name", ""));
    TRY_ASSIGN(const std::string_view tenant, root.string_or("tenant", ""));
    TRY_ASSIGN(const int64_t n_bytes, root.int_or("bytes", 0, 0));
    WeightRecord record{.tenant = std::string(tenant), .n_bytes = static_cast<uint64_t>(n_bytes)};
    TRY_ASSIGN(record.is_temporary, root.bool_or("temporary", false));
    return std::pair(std::string(name), std::move(record));
}

}  // namespace

std::filesystem::path SavedWeights::file_of(std::string_view name) const {
    return folder_ / (sha256_hex(std::as_bytes(std::span(name))).substr(0, 40) + ".json");
}

Result<SavedWeights> SavedWeights::open(const std::filesystem::path& folder, const WeightLimits& limits) {
    TRY(training::make_folder(folder));
    SavedWeights weights(folder, limits);
    std::error_code error;
    std::vector<std::filesystem::path> unfinished;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        const std::filesystem::path& path = entry.path();
        if (path.extension() == ".new") unfinished.push_back(path);
        if (path.extension() != ".json") continue;
        const Result<std::string> text = training::read_whole(path, kRecordBytes);
        auto record = text.ok() ? parse_weight(*text) : Result<std::pair<std::string, WeightRecord>>(text.error());
        if (record.ok() && weights.file_of(record->first) == path) {
            weights.records_.insert(std::move(*record));
            continue;
        }
        log_error("a record of saved weights cannot be read: {}",
                  record.ok() ? std::string("it is another's") : record.error().message);
        unfinished.push_back(path);
    }
    if (error)
        return make_error(ErrorCode::kStorageFailed,
                          format("the folder of saved weights cannot be read: {}", error.message()));
    for (const std::filesystem::path& path : unfinished) training::remove_quietly(path);
    return weights;
}

Status SavedWeights::check_room(const std::string& name, const WeightRecord& record) const {
    if (record.is_temporary) return ok_status();
    uint64_t n = 1, n_bytes = record.n_bytes;
    for (const auto& [other, kept] : records_) {
        if (kept.tenant != record.tenant || kept.is_temporary || other == name) continue;
        ++n;
        n_bytes += kept.n_bytes;
    }
    if (n > limits_.n_max)
        return make_error(
            ErrorCode::kForbidden,
            format("path: {} weights of this key are kept as adapters, as many as it may have; delete some "
                   "of these adapters",
                   n - 1),
            "path");
    if (n_bytes > limits_.bytes_max)
        return make_error(
            ErrorCode::kForbidden,
            format("path: {} bytes with the weights of this key that are kept as adapters: it may have {} "
                   "(--training-quota-mib); delete some of these adapters",
                   n_bytes, limits_.bytes_max),
            "path");
    return ok_status();
}

// Adapters that somebody deleted no longer count.
void SavedWeights::remove_gone(std::string_view tenant, const std::function<bool(const std::string& name)>& is_there) {
    std::vector<std::string> names;
    for (const auto& [name, record] : records_) {
        if (record.tenant == tenant) names.push_back(name);
    }
    for (const std::string& name : names) {
        if (!is_there(name)) remove(name);
    }
}

Status SavedWeights::add(const std::string& name, const WeightRecord& record,
                         const std::function<bool(const std::string& name)>& is_there) {
    remove_gone(record.tenant, is_there);
    TRY(check_room(name, record));
    TRY(training::write_durably(file_of(name), weight_json(name, record)));
    records_.insert_or_assign(name, record);
    return ok_status();
}

void SavedWeights::remove(const std::string& name) {
    training::remove_quietly(file_of(name));
    records_.erase(name);
}

std::vector<std::string> SavedWeights::temporary() const {
    std::vector<std::string> names;
    for (const auto& [name, record] : records_) {
        if (record.is_temporary) names.push_back(name);
    }
    return names;
}

}  // namespace lorad::server::tinker
