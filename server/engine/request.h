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
#include <memory>
#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "proto/sampling_params.h"
#include "server/engine/token_stream.h"

namespace lorad::server {

// The adapter a request runs with. `lease` keeps the weights in their slot for as long as any copy
// lives, so an adapter that is unloaded or replaced meanwhile stays as it was for this request.
struct AdapterUse {
    uint32_t slot = kNoAdapterSlot;
    std::string name;  // empty: the base model
    std::shared_ptr<const void> lease;
};

struct Request {
    RequestId id = 0;
    std::vector<TokenId> prompt;  // never empty
    uint32_t n_tokens_max =
        0;  // prompt.size() + n_tokens_max fits the context; checked before hand-over
    uint32_t n_tokens_min = 0;  // no end-of-sequence token ends the request before this many
    proto::SamplingParams sampling;
    std::vector<TokenId> stop_tokens;  // end-of-sequence ids; empty with ignore_eos
    AdapterUse adapter;
    std::shared_ptr<TokenStream> stream;
    std::chrono::steady_clock::time_point arrived;
};

}  // namespace lorad::server
