// A request's hold on its adapters, from admission until its last step has finished: the generations that they had at
// admission, their slots, and the request's scales.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/weights/lora_table.h"
#include "proto/base/ids.h"

namespace lorad::adapters {

struct LeaseState;

// The identity of a summand, as caches need it.
struct LeasedContent {
    std::string generation;
    float scale = 1.0f;
};

// Copied and moved freely, from any thread; the copies share one hold. The engine lets go of the last one only after
// the last step that names a slot has finished. Empty for the base model.
class MixLease {
  public:
    MixLease() = default;

    explicit operator bool() const { return state_ != nullptr; }
    const std::vector<LoraUse>& uses() const;  // at most kMixTermsMax, in the order of the request
    uint32_t slot() const;                     // of the first use; kNoAdapterSlot for an empty lease
    const std::string& name() const;           // as requested; of several: "a+b"; empty for an empty lease
    const std::string& generation() const;     // the only adapter's, at scale 1; else the mix's digest
    std::span<const LeasedContent> content() const;
    // The weights of a use, as the table of adapters has them. Valid while the lease lives.
    const model::AdapterView& view(size_t use) const;
    // aLoRA: the only use counts from the last occurrence of these on; empty: from the beginning.
    std::span<const TokenId> invocation_tokens() const;
    // The adapter was removed with mode "now": the request should end.
    bool revoked() const;

  private:
    friend class Registry;
    friend struct LeaseState;
    explicit MixLease(std::shared_ptr<const LeaseState> state) : state_(std::move(state)) {}
    std::shared_ptr<const LeaseState> state_;
};

}  // namespace lorad::adapters
