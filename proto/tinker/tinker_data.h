// What Tinker's client sends and reads as protocol buffers: data with their losses, log-probabilities, samples.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace lorad::proto {

inline constexpr size_t kTinkerDataMax = 4096;  // sequences of a call

enum class TinkerLoss : uint8_t {
    kCrossEntropy,        // -weights * log-probability
    kImportanceSampling,  // -advantages * exp(log-probability - logprobs)
};

// One sequence; all lists have the length of its tokens.
struct TinkerDatum {
    std::vector<TokenId> tokens;
    std::vector<TokenId> targets;  // what is predicted behind each token
    std::vector<float> weights;    // or advantages
    std::vector<float> sampled;    // importance sampling: log-probabilities of the targets
};

struct TinkerForwardBackward {
    std::string model_id;
    uint64_t seq_id = 0;  // the order of a model's calls, from 1; 0: none is told
    bool is_forward_only = false;
    TinkerLoss loss = TinkerLoss::kCrossEntropy;
    std::vector<TinkerDatum> data;
    // What is wrong or not there in a call whose model and place in the order are known: such a call takes its place
    // all the same.
    std::optional<Error> refusal;
};
// kInvalidRequest: no such message.
Result<TinkerForwardBackward> parse_tinker_forward_backward(std::string_view bytes);

// log_probabilities: of each sequence's targets.
std::string tinker_forward_backward_output(const std::vector<std::vector<float>>& log_probabilities,
                                           const std::map<std::string, double>& metrics);

struct TinkerSample {
    bool is_stopped = false;  // else its length is over
    std::vector<TokenId> tokens;
    std::vector<float> log_probabilities;
};
// prompt_log_probabilities: of each token but the first; empty: not asked for. first_scored: positions before it are
// told as not scored.
std::string tinker_sample_output(const std::vector<TinkerSample>& samples,
                                 const std::vector<float>& prompt_log_probabilities, size_t first_scored,
                                 uint64_t n_cached_tokens);

}  // namespace lorad::proto
