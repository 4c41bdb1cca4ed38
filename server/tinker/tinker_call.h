// A call of Tinker's client that is worked off on the training thread, and what came of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/train/trainer.h"
#include "proto/base/result.h"

namespace lorad::server::tinker {

enum class CallKind : uint8_t { kCreate, kForwardBackward, kForward, kUpdate, kSaveForSampler, kSaveState, kLoadState };

// What a call says; moved to the training thread, which alone reads it.
struct CallContent {
    CallKind kind = CallKind::kForward;
    std::optional<Error> refusal;  // the call fails with it when its turn comes
    std::vector<model::TrainExample> examples;
    bool is_sampled = false;  // importance sampling
    model::OptimizerSettings optimizer;
    double learning_rate = 0;
    std::string name;        // of a state or of weights for samplers
    std::string path;        // of a state
    std::string sampler_id;  // the sampling session that is to use the weights; empty: none
    bool overwrites = false, with_optimizer = false;

    uint64_t n_tokens() const {
        uint64_t n = 0;
        for (const model::TrainExample& example : examples) n += example.tokens.size();
        return n;
    }
};

struct CallResult {
    std::optional<Error> error;
    bool is_protobuf = false;
    std::string body;
};

// Under the sessions' mutex.
struct Call {
    std::string id, tenant;
    CallContent content;
    uint64_t n_tokens = 0;
    std::optional<CallResult> result;
    std::chrono::steady_clock::time_point done_at;
    bool waits_for_room = false;  // beside others who are trained
};

}  // namespace lorad::server::tinker
