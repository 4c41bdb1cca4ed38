#include "adapters/store/catalogue.h"

#include <algorithm>

#include "adapters/files/files.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {

uint64_t GenerationRecord::stored_bytes() const {
    uint64_t bytes = 0;
    for (const FileRecord& file : files) bytes += file.bytes;
    return bytes;
}

std::string Target::generation() const { return mix_generation(parts); }

std::string mix_generation(std::span<const Part> parts) {
    if (parts.empty()) return {};
    if (parts.size() == 1 && parts.front().scale == 1.0f) return parts.front().generation;
    std::string text = "lorad mix 1\n";
    for (const Part& part : parts) text += format("{} {:a}\n", part.generation, part.scale);
    return sha256_hex(std::as_bytes(std::span(text)));
}

std::vector<Part> simplified(std::vector<Part> parts) {
    std::vector<Part> out;
    for (Part& part : parts) {
        const auto same = std::find_if(out.begin(), out.end(),
                                       [&](const Part& other) { return other.generation == part.generation; });
        if (same == out.end()) {
            out.push_back(std::move(part));
        } else {
            same->scale += part.scale;
        }
    }
    std::erase_if(out, [](const Part& part) { return part.scale == 0.0f; });
    return out;
}

Result<const Alias*> Catalogue::find(std::string_view name) const {
    const auto found = aliases.find(name);
    if (found == aliases.end()) {
        return make_error(ErrorCode::kAdapterNotFound, format("no adapter is called {}", json_quote_short(name)),
                          "lora_name");
    }
    return &found->second;
}

namespace {

Status check_expected(const Alias* alias, std::string_view expected) {
    if (expected.empty()) return ok_status();
    const std::string present = alias == nullptr ? std::string() : alias->target.generation();
    if (present == expected) return ok_status();
    return make_error(ErrorCode::kGenerationMismatch,
                      format("expected_generation: expected {}, found {}", json_quote_short(expected),
                             present.empty() ? "no such adapter" : present),
                      "expected_generation");
}

}  // namespace

Status Catalogue::may_set(std::string_view name, const ChangeOptions& options) const {
    const auto found = aliases.find(name);
    if (found != aliases.end() && !options.replace) {
        return make_error(
            ErrorCode::kAdapterExists,
            format("an adapter called {} is there already; remove it, or ask for it to be replaced", json_quote(name)),
            "lora_name");
    }
    return check_expected(found == aliases.end() ? nullptr : &found->second, options.expected_generation);
}

Status Catalogue::set(std::string_view name, Target target, const ChangeOptions& options) {
    TRY(may_set(name, options));
    CHECK(!target.parts.empty());
    Alias& alias = aliases[std::string(name)];
    if (alias.target.parts == target.parts) {
        alias.target.path = std::move(target.path);
        return ok_status();
    }
    if (!alias.target.parts.empty()) alias.history.insert(alias.history.begin(), std::move(alias.target));
    if (alias.history.size() > kHistoryMax) alias.history.resize(kHistoryMax);
    alias.target = std::move(target);
    return ok_status();
}

Status Catalogue::remove(std::string_view name, std::string_view expected_generation) {
    TRY_ASSIGN(const Alias* alias, find(name));
    TRY(check_expected(alias, expected_generation));
    aliases.erase(aliases.find(name));
    return ok_status();
}

Status Catalogue::rollback(std::string_view name, std::string_view generation, int64_t now_s) {
    TRY(find(name));
    Alias& alias = aliases.find(name)->second;
    const auto found = std::find_if(alias.history.begin(), alias.history.end(), [&](const Target& past) {
        return generation.empty() || past.generation() == generation;
    });
    if (found == alias.history.end()) {
        return make_error(ErrorCode::kGenerationConflict,
                          generation.empty() ? format("{} has no earlier generation", json_quote(name))
                                             : format("generation {} is not in the history of {}",
                                                      json_quote_short(generation), json_quote(name)),
                          "generation");
    }
    Target back = std::move(*found);
    alias.history.erase(found);
    back.since_s = now_s;
    alias.history.insert(alias.history.begin(), std::exchange(alias.target, std::move(back)));
    return ok_status();
}

void Catalogue::drop_unused() {
    std::set<std::string_view> used;
    const auto use = [&](const Target& target) {
        for (const Part& part : target.parts) used.insert(part.generation);
    };
    for (const auto& [name, alias] : aliases) {
        use(alias.target);
        for (const Target& past : alias.history) use(past);
    }
    std::set<std::string> needed;
    for (const auto& [id, record] : generations) {
        if (!used.contains(id)) continue;
        for (const FileRecord& file : record.files) needed.insert(file.sha256);
    }
    for (auto it = generations.begin(); it != generations.end();) {
        if (used.contains(it->first)) {
            ++it;
            continue;
        }
        for (const FileRecord& file : it->second.files) trash.insert(file.sha256);
        it = generations.erase(it);
    }
    std::erase_if(trash, [&](const std::string& sha256) { return needed.contains(sha256); });
}

uint64_t Catalogue::stored_bytes() const {
    std::map<std::string_view, uint64_t> blobs;
    for (const auto& [id, record] : generations) {
        for (const FileRecord& file : record.files) blobs[file.sha256] = file.bytes;
    }
    uint64_t bytes = 0;
    for (const auto& [sha256, size] : blobs) bytes += size;
    return bytes;
}

}  // namespace lorad::adapters
