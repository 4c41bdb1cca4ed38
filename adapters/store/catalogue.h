// The registry's contents as a value: names, their present and past targets, and the generations that these keep. Pure:
// the registry changes a copy, stores it, and only then makes it count.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapters/files/adapter.h"
#include "proto/base/result.h"

namespace lorad::adapters {

struct FileRecord {
    std::string name;    // "adapter_config.json"
    std::string sha256;  // of the contents, 64 hex digits: the blob's name
    uint64_t bytes = 0;
    bool operator==(const FileRecord&) const = default;
};

// Content, with what the checks found out about it.
struct GenerationRecord {
    std::string id;  // 64 hex digits
    std::vector<FileRecord> files;
    uint32_t rank = 0;
    uint32_t n_modules = 0;
    uint64_t device_bytes = 0;
    bool replaces_parts = false;             // embedding, head, norms or token rows: runs alone, at scale 1
    std::vector<TokenId> invocation_tokens;  // aLoRA: applied from the last occurrence on; empty: everywhere
    ChatEnds ends;                           // read from its files
    uint64_t stored_bytes() const;
    bool operator==(const GenerationRecord&) const = default;
};

// One summand of what a name stands for.
struct Part {
    std::string name;  // under which it was asked for
    std::string generation;
    float scale = 1.0f;
    bool operator==(const Part&) const = default;
};

struct Target {
    std::vector<Part> parts;  // one at scale 1: an adapter; else a mix
    std::string path;         // as found by load(); empty for uploads and mixes
    int64_t since_s = 0;      // Unix time
    bool is_mix() const { return parts.size() != 1 || parts.front().scale != 1.0f; }
    std::string generation() const;  // mix_generation(parts)
    bool operator==(const Target&) const = default;
};

struct Alias {
    Target target;
    std::vector<Target> history;  // the newest first, at most kHistoryMax
    ActivationMode mode = ActivationMode::kNone;
    bool pinned = false;
    bool operator==(const Alias&) const = default;
};

struct ChangeOptions {
    bool replace = false;             // the name may stand for something already
    std::string expected_generation;  // only if the name stands for this; empty: whatever it is
};

struct Catalogue {
    std::map<std::string, Alias, std::less<>> aliases;
    std::map<std::string, GenerationRecord, std::less<>> generations;
    std::set<std::string> trash;  // blobs that no generation needs any more, to be deleted
    uint64_t sequence = 0;        // counts changes; the larger of two manifests is the newer

    // kAdapterNotFound, param "lora_name".
    Result<const Alias*> find(std::string_view name) const;
    // kAdapterExists without replace, kGenerationMismatch where the generation is not the expected one.
    Status may_set(std::string_view name, const ChangeOptions& options) const;
    // may_set, then the present target becomes history. The same target again changes nothing but the path.
    Status set(std::string_view name, Target target, const ChangeOptions& options);
    Status remove(std::string_view name, std::string_view expected_generation);
    // Back to the target before, or to the newest one in the history that has `generation`. What was present becomes
    // history.
    Status rollback(std::string_view name, std::string_view generation, int64_t now_s);

    // Forgets generations that no name stands for or stood for, and puts blobs that only they had into the trash.
    void drop_unused();
    uint64_t stored_bytes() const;  // each blob once
    bool operator==(const Catalogue&) const = default;
};

// The parts' identity: of a single one at scale 1 its generation, else a digest of generations and exact scales; empty
// for no parts (the base model).
std::string mix_generation(std::span<const Part> parts);

// Sums up scales of equal generations, drops those at 0; the order stays.
std::vector<Part> simplified(std::vector<Part> parts);

// Writes and reads the text of the manifest. It carries its own digest: kIo if it was changed.
std::string manifest_text(const Catalogue& catalogue);
Result<Catalogue> parse_manifest(std::string_view text);

}  // namespace lorad::adapters
