#include "server/tinker/state_store.h"

#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/version.h"
#include "proto/json/json.h"
#include "server/training/checkpoint_file.h"
#include "server/training/durable_file.h"

namespace lorad::server::tinker {
namespace {

std::string digest_name(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))).substr(0, 40); }

std::string shape_json(const LoraShape& shape) {
    return JsonWriter()
        .begin_object()
        .field("rank", shape.rank)
        .field("seed", std::to_string(shape.seed))
        .field("train_unembed", shape.trains_unembed)
        .field("train_mlp", shape.trains_mlp)
        .field("train_attn", shape.trains_attention)
        .end_object()
        .take();
}

Result<LoraShape> shape_of(std::string_view text) {
    TRY_ASSIGN(const JsonDocument document, parse_json(text, {.name = "state", .code = ErrorCode::kStorageFailed}));
    const JsonValue root = document.root();
    LoraShape shape;
    TRY_ASSIGN(const int64_t rank, root.int_or("rank", 0, 1, 512));
    shape.rank = static_cast<uint32_t>(rank);
    TRY_ASSIGN(const std::string_view seed, root.string_or("seed", "0"));
    shape.seed = std::strtoull(std::string(seed).c_str(), nullptr, 10);
    TRY_ASSIGN(shape.trains_unembed, root.bool_or("train_unembed", true));
    TRY_ASSIGN(shape.trains_mlp, root.bool_or("train_mlp", true));
    TRY_ASSIGN(shape.trains_attention, root.bool_or("train_attn", true));
    return shape;
}

}  // namespace

std::filesystem::path StateStore::folder_of(std::string_view tenant) const { return folder_ / digest_name(tenant); }

std::filesystem::path StateStore::file_of(std::string_view tenant, std::string_view path) const {
    return folder_of(tenant) / digest_name(path);
}

void StateStore::remove_unfinished() const {
    std::error_code error;
    std::vector<std::filesystem::path> unfinished;
    for (auto entry = std::filesystem::recursive_directory_iterator(folder_, error);
         !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
        if (entry->path().extension() == ".new") unfinished.push_back(entry->path());
    }
    for (const std::filesystem::path& path : unfinished) training::remove_quietly(path);
}

Status StateStore::save(std::string_view tenant, const std::string& path, const SavedState& state,
                        bool overwrites) const {
    TRY(training::make_folder(folder_of(tenant)));
    const std::filesystem::path file = file_of(tenant, path);
    std::error_code error;
    const bool is_there = std::filesystem::exists(file, error);
    if (is_there && !overwrites)
        return make_error(ErrorCode::kGenerationConflict,
                          format("path: there is a state {} already, and overwrite is false", path), "path");
    uint32_t n = 0;
    uint64_t n_bytes = state.trainer.size();
    for (const auto& entry : std::filesystem::directory_iterator(folder_of(tenant), error)) {
        if (entry.path() == file) continue;
        std::error_code gone;
        const uint64_t size = entry.file_size(gone);
        if (gone) continue;
        ++n;
        n_bytes += size;
    }
    if (n >= limits_.n_max)
        return make_error(ErrorCode::kStorageFull,
                          format("{} states of this key are kept, as many as it may have; overwrite one", n), "path");
    if (n_bytes > limits_.bytes_max)
        return make_error(
            ErrorCode::kStorageFull,
            format("{} bytes with the states that are kept: this key may have {}", n_bytes, limits_.bytes_max), "path");
    training::Checkpoint kept;
    kept.identity = {path, "", base_fingerprint_, shape_json(state.shape), version()};
    kept.trainer = state.trainer;
    return training::write_checkpoint(file, kept);
}

Result<SavedState> StateStore::load(std::string_view tenant, const std::string& path) const {
    Result<training::Checkpoint> found = training::read_checkpoint(file_of(tenant, path));
    if (!found.ok() && found.error().code == ErrorCode::kNotFound)
        return make_error(ErrorCode::kNotFound, format("path: no state is called {}", json_quote_short(path)), "path");
    TRY_ASSIGN(training::Checkpoint kept, std::move(found));
    if (kept.identity.data_digest != path)
        return make_error(ErrorCode::kStorageFailed, format("path: the state {} is another's", json_quote_short(path)));
    if (kept.identity.base_fingerprint != base_fingerprint_)
        return make_error(ErrorCode::kInvalidModel,
                          format("path: the state {} is of another base model", json_quote_short(path)), "path");
    SavedState state;
    TRY_ASSIGN(state.shape, shape_of(kept.identity.recipe));
    state.trainer = std::move(kept.trainer);
    return state;
}

}  // namespace lorad::server::tinker
