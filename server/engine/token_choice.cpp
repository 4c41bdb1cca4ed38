#include "server/engine/token_choice.h"

#include "proto/base/log.h"

namespace lorad::server {
namespace {

uint32_t n_generated_before(const Request& request, uint32_t position) {
    return position - uint32_t(request.prompt.size());
}

// Until then no token may come that would end the request.
bool must_go_on(const Request& request, uint32_t position) {
    return n_generated_before(request, position) < request.n_tokens_min &&
           !request.stop_tokens.empty();
}

}  // namespace

ChoiceState::ChoiceState(const Request& request, bool draws_on_device)
    : constraint_(request.constraint), draws_on_device_(draws_on_device) {
    if (request.sampling.has_penalties()) history_.emplace(request.prompt);
    if (request.n_prompt_logprobs) prompt_logprobs.reserve(request.prompt.size());
}

Status ChoiceState::accept(TokenId token) {
    if (history_) history_->add_generated(token);
    mask_.clear();
    if (constraint_) return constraint_->accept(token);
    return ok_status();
}

bool ChoiceState::device_chooses(const Request& request, uint32_t position) const {
    return (request.sampling.greedy() || draws_on_device_) && !request.sampling.changes_logits() &&
           !request.n_logprobs && !request.constraint && !must_go_on(request, position);
}

std::optional<gpu::ChoiceRule> ChoiceState::rule(const Request& request, uint32_t position) const {
    if (request.sampling.greedy()) return std::nullopt;
    return model::choice_rule(request.sampling, position);
}

TokenChooser::TokenChooser(uint32_t n_threads) : threads_(n_threads), scratch_(n_threads) {}

void TokenChooser::prepare(std::span<const TokenChoice> choices) {
    std::vector<ChoiceState*> constrained;
    for (const TokenChoice& choice : choices) {
        if (choice.prompt_token < 0 && choice.state->constraint_ && choice.state->mask_.empty())
            constrained.push_back(choice.state);
    }
    threads_.run(uint32_t(constrained.size()), [&](uint32_t index, uint32_t) {
        ChoiceState& state = *constrained[index];
        Status done = state.constraint_->next_mask(state.mask_);
        // Nothing may come then, which ends the request with an error.
        if (!done.ok()) {
            log_error("grammar: {}", done.error().message);
            std::fill(state.mask_.begin(), state.mask_.end(), 0u);
        }
    });
}

void TokenChooser::choose(std::span<TokenChoice> choices, StepResult& result) {
    chosen_here_.clear();
    for (TokenChoice& choice : choices) {
        bool is_prompt = choice.prompt_token >= 0;
        if (result.argmax[choice.output] >= 0 &&
            (is_prompt || !choice.state->device_chooses(*choice.request, choice.position)))
            chosen_here_.push_back(&choice);
    }
    threads_.run(uint32_t(chosen_here_.size()), [&](uint32_t index, uint32_t worker) {
        TokenChoice& choice = *chosen_here_[index];
        TokenId& token = result.argmax[choice.output];
        std::span<const float> logits = result.logits[choice.output];
        if (choice.prompt_token >= 0) {
            choice.logprobs = model::logprobs_of(logits, choice.prompt_token,
                                                 *choice.request->n_prompt_logprobs);
            return;
        }
        token = choose_one(choice, token, logits, scratch_[worker]);
        choice.nothing_allowed = token < 0;
        if (token >= 0 && choice.request->n_logprobs)
            choice.logprobs = model::logprobs_of(logits, token, *choice.request->n_logprobs);
    });
}

TokenId TokenChooser::choose_one(TokenChoice& choice, TokenId argmax,
                                 std::span<const float> logits, Scratch& scratch) const {
    const Request& request = *choice.request;
    const proto::SamplingParams& sampling = request.sampling;
    const std::vector<uint32_t>& mask = choice.state->mask_;
    bool go_on = must_go_on(request, choice.position);
    if (sampling.greedy() && !sampling.changes_logits() && !go_on) {
        // The model's first choice is the answer wherever the grammar allows it.
        if (mask.empty() || (mask[size_t(argmax) / 32] >> (argmax % 32) & 1u) != 0) return argmax;
    }
    if (!sampling.changes_logits() && !go_on && mask.empty())
        return model::sample(logits, sampling, choice.position, scratch.sampler);
    scratch.logits.assign(logits.begin(), logits.end());
    if (!sampling.allowed_token_ids.empty())
        model::allow_only(scratch.logits, sampling.allowed_token_ids);
    if (!mask.empty()) model::apply_mask(scratch.logits, mask);
    if (sampling.changes_logits()) {
        static const model::TokenHistory kNothing{{}};
        model::adjust_logits(scratch.logits, sampling,
                             choice.state->history_ ? *choice.state->history_ : kNothing);
    }
    std::vector<float> with_ends;
    if (go_on) {
        if (!mask.empty()) with_ends = scratch.logits;
        model::forbid(scratch.logits, request.stop_tokens);
    }
    TokenId token = model::sample(scratch.logits, sampling, choice.position, scratch.sampler);
    // Where the grammar allows nothing but the end, min_tokens gives way.
    if (token < 0 && !with_ends.empty())
        token = model::sample(with_ends, sampling, choice.position, scratch.sampler);
    return token;
}

}  // namespace lorad::server
