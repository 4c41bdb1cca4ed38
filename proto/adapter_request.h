// Bodies of the routes about adapters, typed and checked: ours, vLLM's, SGLang's and llama-server's.
// Every error names the field at fault; keys that occur twice are errors. In our own routes unknown
// fields are, too: a misspelt expected_generation would be dangerous. In those of others they are listed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad {
class JsonValue;
}

namespace lorad::proto {

inline constexpr size_t kAdapterTermsMax = 8;      // per request or mix
inline constexpr double kAdapterScaleMax = 100.0;  // |scale|
inline constexpr size_t kAdapterFilesMax = 16;     // per adapter
inline constexpr size_t kLoraEntriesMax = 4096;    // per list with llama-server's ids
inline constexpr uint32_t kTimeoutMsMax = 3600000;

struct NamedScale {
    std::string name;
    float scale = 1.0f;
};
struct IdScale {
    uint32_t id = 0;
    float scale = 0.0f;
};
struct FileDigest {
    std::string file;    // a plain file name
    std::string sha256;  // 64 hex digits
};

// "sha256:<hex>": the 64 digits. kInvalidRequest with `param`.
Result<std::string> parse_digest(std::string_view text, std::string_view param);
// Checks the name of an adapter's file: no folders, no control characters. kInvalidRequest.
Status check_file_name(std::string_view name, std::string_view param);

// POST /v1/load_lora_adapter (vLLM, mistral.rs) and /load_lora_adapter (SGLang).
struct LoadAdapterRequest {
    std::string name;
    std::string path;
    bool load_inplace = false;                     // replace an adapter of this name
    std::string expected_generation;               // with load_inplace: only if this is the present one; empty:
                                                   // whatever it is
    bool pin = false;                              // keep it on the device (SGLang's "pinned")
    std::vector<std::string> ignored_fields = {};  // unknown ones
};
Result<LoadAdapterRequest> parse_load_adapter_request(std::string_view body);

// POST /v1/unload_lora_adapter and /unload_lora_adapter.
struct UnloadAdapterRequest {
    std::string name;
    std::string expected_generation;
    std::vector<std::string> ignored_fields = {};
};
Result<UnloadAdapterRequest> parse_unload_adapter_request(std::string_view body);

// POST /v1/adapters: a name for uploaded files, or for a mix of other names. One of the two.
struct RegisterAdapterRequest {
    std::string name;
    std::vector<FileDigest> files;
    std::vector<NamedScale> mix;
    bool replace = false;
    std::string expected_generation;  // with replace
};
Result<RegisterAdapterRequest> parse_register_request(std::string_view body);

// POST /v1/adapters/validate: uploaded files, or a folder or file of the server.
struct ValidateAdapterRequest {
    std::vector<FileDigest> files;
    std::string path;
};
Result<ValidateAdapterRequest> parse_validate_request(std::string_view body);

// POST /v1/adapters/{name}/activate. An empty body is {}.
struct ActivateRequest {
    std::string mode = "unmerged";  // "unmerged", "merged" or "auto"
    bool pin = false;
};
Result<ActivateRequest> parse_activate_request(std::string_view body);

// POST /v1/adapters/{name}/rollback: the generation to go back to; empty: the one before.
struct RollbackRequest {
    std::string generation;
};
Result<RollbackRequest> parse_rollback_request(std::string_view body);

// A body that may be empty or {}.
Status parse_empty_request(std::string_view body);

// POST /lora-adapters: [{"id":0,"scale":0.5}]; ids that are left out get 0.
struct LoraScalesRequest {
    std::vector<IdScale> scales;
    std::vector<std::string> ignored_fields = {};
};
Result<LoraScalesRequest> parse_lora_scales_request(std::string_view body);

// The same lists as fields of other bodies.
Result<std::vector<NamedScale>> parse_named_scales(const JsonValue& list);
// The paths of what nobody knows are added to `ignored`.
Result<std::vector<IdScale>> parse_id_scales(const JsonValue& list, std::vector<std::string>& ignored);

}  // namespace lorad::proto
