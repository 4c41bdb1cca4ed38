// One sequence through Executor::submit and finish, for the command line and for tests: logits of a text, or its
// continuation. The same step as the server's, with nobody else in it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/exec/executor.h"
#include "model/exec/kv_cache.h"
#include "proto/base/result.h"
#include "proto/generate/sampling_params.h"

namespace lorad::model {

// One adapter as it is, or none for kNoAdapterSlot.
inline std::vector<LoraUse> uses_of(uint32_t slot) {
    return slot == kNoAdapterSlot ? std::vector<LoraUse>{} : std::vector<LoraUse>{{slot, 1.0f}};
}

struct GenerateOptions {
    uint32_t n_tokens_max = 16;
    bool ignore_eos = false;  // else a token of config().generation.eos_token_ids ends it (and is part of the answer)
    proto::SamplingParams sampling = {.temperature = 0.0f};
    std::vector<LoraUse> uses;              // adapters; none: the base
    uint32_t uses_from = 0;                 // position from which on they act
    uint32_t n_chunk_rows = 0;              // rows of a prefill step; 0: as many as a step may have
    std::function<void(TokenId)> on_token;  // as soon as each is known
};

struct Generated {
    std::vector<TokenId> ids;
    bool stopped = false;  // by an end-of-sequence token
};

// Uses the executor's KV blocks as if it were alone: not beside an engine.
class Runner {
  public:
    explicit Runner(Executor& executor);

    // [vocab] of the last position, or [tokens.size()][vocab] of all.
    Result<std::vector<float>> logits(std::span<const TokenId> tokens, bool all_positions,
                                      uint32_t adapter_slot = kNoAdapterSlot, uint32_t n_chunk_rows = 0);
    Result<std::vector<float>> logits(std::span<const TokenId> tokens, bool all_positions, const RowAdapters& adapters,
                                      uint32_t n_chunk_rows = 0);
    Result<Generated> generate(std::span<const TokenId> prompt, const GenerateOptions& options);

    // From now on the steps run on the merged weights, which replace the uses: see Executor::use_merged.
    void set_merged(bool merged) { merged_ = merged; }

  private:
    class Blocks;
    Status check_tokens(std::span<const TokenId> tokens, uint32_t n_more) const;
    Executor* executor_;
    BlockPool pool_;
    bool merged_ = false;
};

}  // namespace lorad::model
