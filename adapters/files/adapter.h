// The terms of an adapter's life: its states and the one table of changes between them, its tiers, and its listing.
//
//   generation   the content of an adapter, named by its digest; never changes
//   name         an alias that requests use: stands for a generation, or for a mix of names with scales
//   lease        a request's hold on the generations that its names stood for when it was admitted
//
//               +--------------- evicted (no lease) ---------------+
//               v                                                  |
//   stored --load begins--> loading --load ends--> resident (in a slot of the device) --dropped--> gone
//    ^  |                    |    |                                                                  ^
//    |  |                    |    +-- load fails --> stored                                          |
//    |  +-- found damaged ---+-----> damaged --- content stored again --> stored                     |
//    |                                  |                                                            |
//    +----------------------------------+------------- dropped: no name, no lease -------------------+
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace lorad::adapters {

enum class AdapterState : uint8_t {
    kStored,    // its files are kept; no slot
    kLoading,   // a thread reads, packs and copies it
    kResident,  // in a slot: steps may use it
    kDamaged,   // its files are not what they were when they were stored; not served
    kGone,      // nothing is left
};
enum class StateChange : uint8_t {
    kLoadBegins,
    kLoadEnds,
    kLoadFails,
    kEvicted,
    kFoundDamaged,
    kStoredAgain,
    kDropped
};

std::string_view name_of(AdapterState state);  // "stored", "loading", "resident", "damaged", "gone"
std::string_view name_of(StateChange change);  // "load_begins", ...

// The table. nullopt: no such change; applying it is a bug of ours.
std::optional<AdapterState> next_state(AdapterState state, StateChange change);

// The tokens that end an answer in addition to the base's own end tokens.
struct ChatEnds {
    std::vector<TokenId> ids;  // from generation_config.json
    // if that file has none: the end token of tokenizer_config.json, as its vocabulary spells it
    std::string token;
    bool empty() const { return ids.empty() && token.empty(); }
    bool operator==(const ChatEnds&) const = default;
};

// Where the nearest copy of the weights is.
enum class Tier : uint8_t { kDisk, kRam, kGpu };
std::string_view name_of(Tier tier);  // "disk", "ram", "gpu"

enum class ActivationMode : uint8_t {
    kNone,      // comes to the device when a request names it, leaves when others need the room
    kUnmerged,  // brought to the device ahead of requests
    kMerged,    // part of the weights while all rows of a step belong to it
    kAuto,      // merged while it dominates the traffic
};
std::string_view name_of(ActivationMode mode);  // "none", "unmerged", "merged", "auto"
std::optional<ActivationMode> activation_mode_of(std::string_view name);

inline constexpr uint32_t kMixTermsMax = kLoraUsesMax;  // adapters of one request or mix
inline constexpr float kMixScaleMax = 100.0f;           // |scale|
inline constexpr uint32_t kHistoryMax = 4;              // earlier targets of a name that rollback can go to
inline constexpr size_t kAdapterNameBytesMax = 128;

struct AdapterTerm {
    std::string name;
    float scale = 1.0f;
    bool operator==(const AdapterTerm&) const = default;
};

// An earlier target of a name.
struct PastTarget {
    std::string generation;
    std::vector<AdapterTerm> mix;     // empty: one adapter
    int64_t from_s = 0, until_s = 0;  // Unix time
};

// One line of the list. For a mix: the terms under the names that it was made of, and the sums over its parts; its
// generations stay those of that moment, even if a name changes.
struct AdapterInfo {
    std::string name;        // empty for a generation that only leases keep
    std::string generation;  // 64 hex digits: of the files; of the terms for a mix
    std::vector<AdapterTerm> mix;
    std::string path;  // as given to load(); empty for uploads
    AdapterState state = AdapterState::kStored;
    bool draining = false;  // no name stands for it any more; lives until its last lease ends
    Tier tier = Tier::kDisk;
    ActivationMode mode = ActivationMode::kNone;
    bool pinned = false;        // stays on the device
    uint32_t rank = 0;          // the largest of any module
    uint32_t n_modules = 0;     // adapted matrices over all layers
    uint64_t device_bytes = 0;  // taken on the device when resident
    uint64_t stored_bytes = 0;  // the size of all its files
    uint32_t slot = kNoAdapterSlot;
    uint32_t n_leases = 0;              // requests that hold it
    uint32_t n_waiting = 0;             // requests that wait until it is resident
    int64_t loaded_at_s = 0;            // Unix time since when the name stands for this
    std::vector<PastTarget> history;    // the newest first
    std::string problem;                // why it is damaged; empty if it is not
    std::vector<std::string> warnings;  // from the call that registered it: likely mistakes
};

// 1 to 128 bytes of printable UTF-8 (proto/base/printable.h), no white space at either end, no '/' at the beginning, no
// ".." part, and not the base model's name. kInvalidAdapterName, param "lora_name".
Status check_adapter_name(std::string_view name, std::string_view base_name);

// The form of a generation's id in the log.
inline std::string_view short_id(std::string_view generation) { return generation.substr(0, 12); }

// 1 to 8 terms, scales finite and within kMixScaleMax. kInvalidRequest, param "adapters".
Status check_terms(std::span<const AdapterTerm> terms);

}  // namespace lorad::adapters
