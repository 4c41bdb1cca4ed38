#include "server/engine/token_choice.h"

namespace lorad::server {

TokenChooser::TokenChooser(uint32_t n_threads) : threads_(n_threads), scratch_(n_threads) {}

void TokenChooser::choose(std::span<const TokenChoice> choices, StepResult& result) {
    to_sample_.clear();
    for (const TokenChoice& choice : choices) {
        if (!device_chooses(*choice.request) && result.argmax[choice.output] >= 0)
            to_sample_.push_back(&choice);
    }
    threads_.run(uint32_t(to_sample_.size()), [&](uint32_t index, uint32_t worker) {
        const TokenChoice& choice = *to_sample_[index];
        result.argmax[choice.output] =
            model::sample(result.logits[choice.output], choice.request->sampling, choice.position,
                          scratch_[worker]);
    });
}

}  // namespace lorad::server
