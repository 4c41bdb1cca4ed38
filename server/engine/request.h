// One generation as the engine sees it: token ids in, token ids out.
//
//                     +------------- preempted (KV blocks ran out; recomputed later) -------------+
//                     v                                                                           |
//   queue --drain--> waiting --admitted--> prefill --last prompt row--> decode --+--> finished    |
//                     |                       |                           |      (stop, length,
//                     error)
//                     +-----------------------+---------------------------+--> cancelled
//
// An HTTP worker builds a Request and hands it over; from then on only the engine thread touches
// it, and the two talk through `stream`.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/step/step_batch.h"
#include "proto/base/ids.h"
#include "proto/generate/sampling_params.h"
#include "server/engine/prefix_identity.h"
#include "server/engine/token_constraint.h"
#include "server/engine/token_stream.h"

namespace lorad::server {

// The adapters a request runs with. `lease` keeps the weights in their slots for as long as any
// copy lives, so an adapter that is unloaded or replaced meanwhile stays as it was for this request.
struct AdapterUse {
    std::vector<LoraUse> uses;   // at most kLoraUsesMax, no scale of 0; empty: the base model
    uint32_t from_position = 0;  // tokens before it are computed with the base (activated LoRA)
    std::string name;            // for the metrics; empty: the base model
    std::shared_ptr<const void> lease;
    // Asked by the engine thread before each step: true ends the request, its adapter was revoked.
    std::function<bool()> revoked;

    model::RowAdapters rows() const { return {uses, from_position}; }
};

// The position from which an activated LoRA acts: the last occurrence of the invocation tokens in the prompt; behind
// every position if they are not in it, so that the base answers.
uint32_t activation_position(std::span<const TokenId> prompt, std::span<const TokenId> invocation);

struct Request {
    RequestId id = 0;
    std::vector<TokenId> prompt;  // never empty
    uint32_t n_tokens_max = 0;    // prompt.size() + n_tokens_max fits the context; checked before hand-over
    uint32_t n_tokens_min = 0;    // none of stop_tokens comes before this many
    proto::SamplingParams sampling;
    std::vector<TokenId> stop_tokens;    // end-of-sequence ids; without them with ignore_eos
    std::optional<uint32_t> n_logprobs;  // beside each token of the answer; 0: its own
    // Beside each token of the prompt but the first; may_skip_prefix is false then.
    std::optional<uint32_t> n_prompt_logprobs;
    std::shared_ptr<TokenConstraint> constraint;  // null: the answer may be anything
    // The request wants the hidden state of the prompt's last token; no token is chosen. n_tokens_max is 1, sampling
    // greedy.
    bool wants_embedding = false;
    int32_t priority = 0;                     // lower runs earlier, as in vLLM
    std::string tenant;                       // whose share of the server it uses; may be empty
    std::shared_ptr<const void> queue_place;  // let go when it first runs, or ends
    AdapterUse adapter;
    PrefixIdentity prefix;  // extended by `prompt`; empty: its KV blocks are not shared
    // False if an output of every prompt row is wanted: a cached prefix would skip rows.
    bool may_skip_prefix = true;
    std::shared_ptr<TokenStream> stream;
    std::chrono::steady_clock::time_point arrived;
};

}  // namespace lorad::server
