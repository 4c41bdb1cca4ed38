// Tinker's bodies in JSON, typed and checked. What is not there is refused by name; of a call to a model, whose place
// in the model's order is known, the refusal is part of the call (TinkerCall::refusal).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/result.h"
#include "proto/generate/generate_request.h"

namespace lorad::proto {

inline constexpr size_t kTinkerNameBytesMax = 128;

// The client's settings: nothing of the body has an effect.
Status check_tinker_client(std::string_view body);
Status check_tinker_telemetry(std::string_view body);

struct TinkerCreateSession {
    std::vector<std::string> ignored_fields;  // labels, which nobody here shows
};
Result<TinkerCreateSession> parse_tinker_create_session(std::string_view body);
// Why a session ends changes nothing.
Status check_tinker_finish_session(std::string_view body);

struct TinkerCreateModel {
    std::string session_id;
    uint64_t model_seq_id = 0;
    std::string base_model;
    uint32_t rank = 32;
    std::optional<uint64_t> seed;
    bool trains_unembed = true, trains_mlp = true, trains_attention = true;
    std::vector<std::string> ignored_fields;
};
Result<TinkerCreateModel> parse_tinker_create_model(std::string_view body);

struct TinkerCall {
    std::string model_id;
    uint64_t seq_id = 0;  // from 1; 0: none is told
    std::optional<Error> refusal;
    std::vector<std::string> ignored_fields;
};

struct TinkerOptimStep : TinkerCall {
    double learning_rate = 1e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-12, weight_decay = 0.0;
    double grad_clip_norm = 0.0;  // 0: gradients are not clipped
};
Result<TinkerOptimStep> parse_tinker_optim_step(std::string_view body);

struct TinkerSaveForSampler : TinkerCall {
    std::string name;  // empty: a snapshot without a name, for one sampling session
    std::optional<uint64_t> sampling_session_seq_id;
    bool is_inflight = false;  // replaces what the model's other sampling sessions of this kind use
};
Result<TinkerSaveForSampler> parse_tinker_save_for_sampler(std::string_view body);
// What weights without a name are called; no client may name some so.
std::string tinker_unnamed(const TinkerSaveForSampler& call);

struct TinkerSaveState : TinkerCall {
    std::string name;
    bool overwrites = false;
};
Result<TinkerSaveState> parse_tinker_save_state(std::string_view body);

struct TinkerLoadState : TinkerCall {
    std::string path;
    bool with_optimizer = false;
    // Instead of a model: one that begins with what is loaded.
    std::string session_id;
    uint64_t model_seq_id = 0;
    std::string base_model;  // empty: the state's
};
Result<TinkerLoadState> parse_tinker_load_state(std::string_view body);

struct TinkerCreateSampler {
    std::string session_id;
    uint64_t seq_id = 0;
    std::string base_model, model_path;  // one of them, or both
};
Result<TinkerCreateSampler> parse_tinker_create_sampler(std::string_view body);

struct TinkerSampleRequest {
    std::string sampler_id, base_model, model_path;  // one of them
    std::optional<uint64_t> seq_id;                  // a repeated one is the same sample
    // Without a model; tokens of the prompt.
    GenerateRequest generate;
    // Of the prompt, how many at its end are scored; nothing: all.
    std::optional<uint32_t> n_scored;
};
Result<TinkerSampleRequest> parse_tinker_sample(std::string_view body, uint32_t vocab_size);

// The text of one member: request_id, model_id, session_id.
Result<std::string> parse_tinker_id(std::string_view body, std::string_view member);
// The request_id of a result that is asked for.
Result<std::string> parse_tinker_retrieve(std::string_view body);

// "tinker://MODEL/KIND/NAME"
struct TinkerPath {
    std::string model_id, kind, name;
    std::string text() const { return "tinker://" + model_id + "/" + kind + "/" + name; }
};
inline constexpr std::string_view kTinkerSamplerWeights = "sampler_weights", kTinkerWeights = "weights";
Result<TinkerPath> parse_tinker_path(std::string_view text, std::string_view kind, std::string_view param);

}  // namespace lorad::proto
