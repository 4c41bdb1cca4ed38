// States of models that clients train by calls, kept on disk: values, moments and steps, each in a file of its own
// below its tenant's folder. Bounded per tenant in number and bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad::server::tinker {

// The adapter of a model, as a client asked for it.
struct LoraShape {
    uint32_t rank = 32;
    uint64_t seed = 0;
    bool trains_unembed = true, trains_mlp = true, trains_attention = true;
    bool operator==(const LoraShape&) const = default;
};

struct StateLimits {
    uint32_t n_max = 64;  // of a tenant
    uint64_t bytes_max = uint64_t{4} << 30;
};

struct SavedState {
    LoraShape shape;
    std::vector<std::byte> trainer;  // StepTrainer::checkpoint()
};

// The disk's thread of model_sessions.h.
class StateStore {
  public:
    StateStore(std::filesystem::path folder, std::string base_fingerprint, const StateLimits& limits)
        : folder_(std::move(folder)), base_fingerprint_(std::move(base_fingerprint)), limits_(limits) {}

    // What a process that was killed had begun to write.
    void remove_unfinished() const;
    // Durable when this returns. kGenerationConflict where there is one of this path already and it does not overwrite;
    // kStorageFull over the limits or of the disk.
    Status save(std::string_view tenant, const std::string& path, const SavedState& state, bool overwrites) const;
    // kNotFound; kInvalidModel of another base; kStorageFailed where it is damaged.
    Result<SavedState> load(std::string_view tenant, const std::string& path) const;

  private:
    std::filesystem::path folder_of(std::string_view tenant) const;
    std::filesystem::path file_of(std::string_view tenant, std::string_view path) const;

    const std::filesystem::path folder_;
    const std::string base_fingerprint_;
    const StateLimits limits_;
};

}  // namespace lorad::server::tinker
