// An adapter compared with a base model, before a byte of device memory is taken.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapters/files/adapter.h"
#include "adapters/files/source.h"
#include "adapters/plan/base_model.h"
#include "adapters/plan/plan.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// An adapter that fits, in host memory: ready to be packed.
struct CheckedAdapter {
    PeftConfig peft;  // also of files without one: what they say, in PEFT's words
    AdapterPlan plan;
    uint32_t rank_max = 0;
    uint32_t n_modules = 0;  // adapted linear modules over all layers, and the embedding and output layer if they are
    std::vector<std::string> warnings;
    ChatEnds ends;  // with ids of the base's vocabulary; `token` may be missing from that vocabulary

    AdapterSource source;  // `tensors` points into its files
    AdapterTensors tensors;

    const std::string& generation() const { return source.generation; }
    // Requests that mix or scale such an adapter are refused.
    bool has_replaced_parts() const { return plan.has_replaced_parts(); }
};

// The bytes that are checked are those that were hashed and are uploaded, even if files change. Messages are one line.
Result<std::unique_ptr<CheckedAdapter>> check_adapter(AdapterSource source, const BaseModel& base);

// The same with all intermediate results, for reports.
struct Inspection {
    std::unique_ptr<CheckedAdapter> adapter;  // never null; its plan holds what fits
    std::vector<Misfit> misfits;
    std::optional<Error> error;  // the error of check_adapter(); none: it fits
};
Inspection compare_adapter(AdapterSource source, const BaseModel& base);

// read_adapter_source() and check_adapter().
Result<std::unique_ptr<CheckedAdapter>> check_adapter(const AdapterLocation& location, const BaseModel& base);

}  // namespace lorad::adapters
