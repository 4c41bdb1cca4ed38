// Describes an adapter and its effect, for people: a dry run without device memory. Covers refused adapters too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "adapters/files/source.h"
#include "adapters/plan/base_model.h"
#include "adapters/plan/check.h"
#include "adapters/plan/misfit.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace lorad::adapters {

struct AdapterReport {
    std::optional<Error> error;  // the error of loading it; none: it fits
    bool fits() const { return !error.has_value(); }
    // Everything that does not fit; empty if it fits, and where the files could not be read as an adapter at all.
    std::vector<Misfit> refused;
    std::vector<std::string> warnings;

    AdapterKind kind = AdapterKind::kPeft;
    std::string generation;       // empty: the files could not be read
    std::string base_model_name;  // the adapter's name for it, for people
    uint64_t file_bytes = 0;
    uint64_t device_bytes = 0;
    uint64_t n_parameters = 0;  // numbers in the tensors that are applied

    // The modules that fit, in the order of the model.
    struct Module {
        std::string name;    // "model.layers.3.self_attn.q_proj", "lm_head"
        uint32_t rank = 0;   // 0: no A and B, only a bias
        float scale = 0.0f;  // effective: alpha / rank, alpha / sqrt(rank), or what the file says
        std::string dtype;   // "F16"; of the wider one where A and B differ
        bool has_dora = false, has_bias = false;
        bool is_zero = false;  // A or B is all zero, the scale is 0: it changes nothing
    };
    std::vector<Module> modules;
    std::vector<std::string> targets;         // "q_proj", without layers
    std::vector<std::string> replaced_parts;  // "lm_head", "rows of 3 tokens": cannot be scaled or mixed
    std::vector<TokenId> invocation_tokens;   // aLoRA
    ChatEnds ends;                            // of answers, in addition to the base's
    uint32_t rank_min = 0, rank_max = 0;      // of the modules with A and B
    bool changes_something = false;           // some module is not zero, or a part is replaced

    enum class Fingerprint : uint8_t { kNotRecorded, kFits, kDiffers, kUnknownBase };
    Fingerprint fingerprint = Fingerprint::kNotRecorded;
    std::string base_fingerprint;  // of the base it was compared with
};

// Reads all of A and B. Any thread.
AdapterReport inspect_adapter(AdapterSource source, const BaseModel& base);
AdapterReport inspect_adapter(const AdapterLocation& location, const BaseModel& base);

std::string report_json(const AdapterReport& report);
// Some lines for a terminal.
std::string report_text(const AdapterReport& report);

}  // namespace lorad::adapters
