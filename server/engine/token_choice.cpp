#include "server/engine/token_choice.h"

#include <algorithm>

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

proto::TokenLogprobs read_logprobs(const gpu::ChoiceLogprobs& from, TokenId token) {
    proto::TokenLogprobs to{{token, from.logprob, from.rank}, {}};
    for (uint32_t i = 0; i < from.n_top; ++i)
        to.top.push_back({TokenId(from.tokens[i]), from.logprobs[i], i + 1});
    return to;
}

}  // namespace

ChoiceState::ChoiceState(const Request& request, bool draws_on_device)
    : constraint_(request.constraint), draws_on_device_(draws_on_device) {
    std::span<const TokenId> ends;
    if (request.n_tokens_min > 0) ends = request.stop_tokens;
    const proto::SamplingParams& sampling = request.sampling;
    if (sampling.has_penalties() || !sampling.logit_bias.empty() || !ends.empty())
        changes_.emplace(sampling, request.prompt, ends);
    if (changes_) n_first_changes_ = uint32_t(changes_->entries().size());
    if (request.n_prompt_logprobs) prompt_logprobs.reserve(request.prompt.size());
}

Status ChoiceState::accept(TokenId token) {
    if (changes_) changes_->add_generated(token);
    mask_.clear();
    if (constraint_) return constraint_->accept(token);
    return ok_status();
}

bool ChoiceState::device_chooses(const Request& request, uint32_t position) const {
    if (request.constraint) return false;
    if (!rule(request, position)) return true;
    // By position alone, so that the answer stays the same while the step runs.
    uint32_t n_changes = n_first_changes_ + n_generated_before(request, position);
    return draws_on_device_ && (!changes_ || n_changes <= model::kChoiceListMax) &&
           request.sampling.allowed_token_ids.size() <= model::kChoiceListMax;
}

std::optional<gpu::ChoiceRule> ChoiceState::rule(const Request& request, uint32_t position) const {
    gpu::ChoiceRule rule = model::choice_rule(request.sampling, position);
    bool go_on = must_go_on(request, position);
    if (request.sampling.has_penalties() || !request.sampling.logit_bias.empty() || go_on)
        model::add_changes(request.sampling, rule);
    if (go_on) rule.what |= gpu::kRuleBansEnds;
    if (request.n_logprobs) {
        rule.what |= gpu::kRuleLogprobs;
        rule.n_top = std::min(*request.n_logprobs, gpu::kTopTokensMax);
    }
    if (rule.what == 0 && request.sampling.allowed_token_ids.empty()) return std::nullopt;
    return rule;
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
        TokenId& token = result.argmax[choice.output];
        bool is_prompt = choice.prompt_token >= 0;
        bool on_device = !is_prompt && choice.state->device_chooses(*choice.request, choice.position);
        if (on_device) {
            choice.nothing_allowed = token == gpu::kNothingAllowed;
            if (token >= 0 && choice.request->n_logprobs)
                choice.logprobs = read_logprobs(result.logprobs[choice.output], token);
        } else if (token >= 0) {
            chosen_here_.push_back(&choice);
        }
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
    const std::vector<uint32_t>& mask = choice.state->mask_;
    std::span<const TokenId> allowed = request.sampling.allowed_token_ids;
    gpu::ChoiceRule rule = choice.state->rule(request, choice.position).value_or(gpu::ChoiceRule{});
    bool changes = (rule.what & gpu::kRuleAdjusts) != 0 || !allowed.empty();
    if ((rule.what & gpu::kRuleDraws) == 0 && !changes) {
        // The model's first choice is the answer wherever the grammar allows it.
        if (mask.empty() || (mask[size_t(argmax) / 32] >> (argmax % 32) & 1u) != 0) return argmax;
    }
    if (!changes && mask.empty()) return model::sample(logits, rule, scratch.sampler);
    scratch.logits.assign(logits.begin(), logits.end());
    if (!allowed.empty()) model::allow_only(scratch.logits, allowed);
    if (!mask.empty()) model::apply_mask(scratch.logits, mask);
    // Where the grammar allows nothing but the end, min_tokens gives way.
    bool may_give_way = !mask.empty() && (rule.what & gpu::kRuleBansEnds) != 0;
    std::vector<float> with_ends;
    if (may_give_way) with_ends = scratch.logits;
    model::change_logits(scratch.logits, rule, choice.state->changes());
    TokenId token = model::sample(scratch.logits, rule, scratch.sampler);
    if (token >= 0 || !may_give_way) return token;
    rule.what &= ~gpu::kRuleBansEnds;
    model::change_logits(with_ends, rule, choice.state->changes());
    return model::sample(with_ends, rule, scratch.sampler);
}

}  // namespace lorad::server
