#include "server/engine/token_choice.h"

#include <algorithm>
#include <utility>

#include "proto/base/log.h"

namespace lorad::server {
namespace {

uint32_t n_generated_before(const Request& request, uint32_t position) {
    return position - static_cast<uint32_t>(request.prompt.size());
}

// Until then no token may come that would end the request.
bool must_go_on(const Request& request, uint32_t position) {
    return n_generated_before(request, position) < request.n_tokens_min && !request.stop_tokens.empty();
}

proto::TokenLogprobs read_logprobs(const gpu::ChoiceLogprobs& from, TokenId token) {
    proto::TokenLogprobs to{{token, from.logprob, from.rank}, {}};
    for (uint32_t i = 0; i < from.n_top; ++i) to.top.push_back({TokenId(from.tokens[i]), from.logprobs[i], i + 1});
    return to;
}

}  // namespace

ChoiceState::ChoiceState(const Request& request, bool draws_on_device)
    : constraint_(request.constraint),
      mask_seconds_(request.constraint ? request.constraint->mask_seconds() : 0),
      draws_on_device_(draws_on_device) {
    std::span<const TokenId> ends;
    if (request.n_tokens_min > 0) ends = request.stop_tokens;
    const proto::SamplingParams& sampling = request.sampling;
    if (sampling.has_penalties() || !sampling.logit_bias.empty() || !ends.empty())
        changes_.emplace(sampling, request.prompt, ends);
    if (changes_) n_first_changes_ = static_cast<uint32_t>(changes_->entries().size());
    if (request.n_prompt_logprobs) prompt_logprobs.reserve(request.prompt.size());
}

void ChoiceState::accept(TokenId token) {
    if (changes_) changes_->add_generated(token);
    if (constraint_ != nullptr) untold_ = token;
    job_.reset();
}

bool ChoiceState::device_chooses(const Request& request, uint32_t position) const {
    if (!request.constraint && !rule(request, position)) return true;
    // By position alone, so that the answer stays the same while the step runs.
    uint32_t n_changes = n_first_changes_ + n_generated_before(request, position);
    return draws_on_device_ && (!changes_ || n_changes <= model::kChoiceListMax) &&
           device_allowed(request).size() <= model::kChoiceListMax;
}

std::optional<gpu::ChoiceRule> ChoiceState::device_rule(const Request& request, uint32_t position) const {
    std::optional<gpu::ChoiceRule> chosen = rule(request, position);
    if (!request.constraint) return chosen;
    if (!chosen) chosen = model::choice_rule(request.sampling, position);
    chosen->what = (chosen->what & ~gpu::kRuleBansEnds) | gpu::kRuleMasked;
    return chosen;
}

std::span<const TokenId> ChoiceState::device_allowed(const Request& request) const {
    if (request.constraint) return {};
    return request.sampling.allowed_token_ids;
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

double TokenChoice::mask_seconds() const { return prompt_token < 0 && state->has_mask() ? state->mask_seconds() : 0; }

void ChoiceState::begin_mask(MaskPool& pool, const std::string& tenant, bool is_patient) {
    if (constraint_ != nullptr && job_ == nullptr)
        job_ = pool.begin(constraint_, tenant, is_patient, std::exchange(untold_, std::nullopt));
}

void TokenChooser::prepare(std::span<TokenChoice> choices, uint32_t n_masks, std::span<uint32_t> masks, MaskPool& pool,
                           std::chrono::steady_clock::duration at_most, bool for_patient) {
    mask_owners_.assign(n_masks, nullptr);
    awaited_.clear();
    for (TokenChoice& choice : choices) {
        if (choice.prompt_token >= 0 || !choice.state->constraint_) continue;
        if (choice.mask >= 0)
            mask_owners_[static_cast<size_t>(choice.mask)] = &choice;
        else
            mask_owners_.push_back(&choice);
        if (for_patient || !choice.state->is_patient()) awaited_.push_back(choice.state->job_);
    }
    pool.wait(awaited_, at_most);
    awaited_.clear();
    const size_t n_words = n_masks > 0 ? masks.size() / n_masks : 0;
    for (TokenChoice* choice : mask_owners_) {
        if (choice == nullptr) continue;
        choice->is_late = !choice->state->job_->done();
        if (!choice->is_late) take_mask(*choice->state);
    }
    threads_.run(n_masks, [&](uint32_t index, uint32_t worker) {
        const TokenChoice* choice = mask_owners_[index];
        std::span<uint32_t> to = masks.subspan(index * n_words, n_words);
        if (choice != nullptr && !choice->is_late)
            write_mask(*choice, to, scratch_[worker]);
        else
            std::fill(to.begin(), to.end(), 0u);
    });
}

void TokenChooser::take_mask(ChoiceState& state) {
    MaskJob& job = *state.job_;
    state.mask_seconds_ = std::max(job.seconds, state.mask_seconds_ / 2);
    if (job.status.ok()) return;
    // An empty mask allows no token, which ends the request with this error.
    if (job.status.error().code == ErrorCode::kInternal) log_error("grammar: {}", job.status.error().message);
    std::fill(job.words.begin(), job.words.end(), 0u);
}

void TokenChooser::note_nothing_allowed(TokenChoice& choice, bool nothing_allowed) {
    choice.nothing_allowed = nothing_allowed;
    if (nothing_allowed && choice.state->has_mask()) choice.masked = choice.state->job_->status;
}

// Writes the grammar's mask without tokens that are forbidden otherwise, as in choose_one().
void TokenChooser::write_mask(const TokenChoice& choice, std::span<uint32_t> to, Scratch& scratch) {
    const Request& request = *choice.request;
    std::vector<uint32_t>& words = scratch.mask;
    words = choice.state->job_->words;
    CHECK(words.size() == to.size());
    auto is_in = [&](TokenId token) { return token >= 0 && static_cast<size_t>(token) / 32 < words.size(); };
    if (std::span<const TokenId> allowed = request.sampling.allowed_token_ids; !allowed.empty()) {
        words.assign(words.size(), 0);
        for (TokenId token : allowed) {
            if (is_in(token)) words[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
        }
        for (size_t i = 0; i < words.size(); ++i) words[i] &= choice.state->job_->words[i];
    }
    std::copy(words.begin(), words.end(), to.begin());
    if (!must_go_on(request, choice.position)) return;
    for (TokenId token : request.stop_tokens) {
        if (is_in(token)) words[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
    }
    // Where the grammar allows nothing but the end, min_tokens gives way.
    if (std::any_of(words.begin(), words.end(), [](uint32_t word) { return word != 0; }))
        std::copy(words.begin(), words.end(), to.begin());
}

void TokenChooser::choose(std::span<TokenChoice> choices, StepResult& result) {
    chosen_here_.clear();
    for (TokenChoice& choice : choices) {
        TokenId& token = result.argmax[choice.output];
        bool is_prompt = choice.prompt_token >= 0;
        bool on_device = !is_prompt && choice.state->device_chooses(*choice.request, choice.position);
        if (on_device) {
            note_nothing_allowed(choice, token == gpu::kNothingAllowed);
            if (token >= 0 && choice.request->n_logprobs)
                choice.logprobs = read_logprobs(result.logprobs[choice.output], token);
        } else if (token >= 0) {
            chosen_here_.push_back(&choice);
        }
    }
    threads_.run(static_cast<uint32_t>(chosen_here_.size()), [&](uint32_t index, uint32_t worker) {
        TokenChoice& choice = *chosen_here_[index];
        TokenId& token = result.argmax[choice.output];
        std::span<const float> logits = result.logits[choice.output];
        if (choice.prompt_token >= 0) {
            choice.logprobs = model::logprobs_of(logits, choice.prompt_token, *choice.request->n_prompt_logprobs);
            return;
        }
        token = choose_one(choice, token, logits, scratch_[worker]);
        note_nothing_allowed(choice, token < 0);
        if (token >= 0 && choice.request->n_logprobs)
            choice.logprobs = model::logprobs_of(logits, token, *choice.request->n_logprobs);
    });
}

TokenId TokenChooser::choose_one(TokenChoice& choice, TokenId argmax, std::span<const float> logits,
                                 Scratch& scratch) const {
    const Request& request = *choice.request;
    static const std::vector<uint32_t> kNoMask;
    const std::vector<uint32_t>& mask = choice.state->job_ != nullptr ? choice.state->job_->words : kNoMask;
    std::span<const TokenId> allowed = request.sampling.allowed_token_ids;
    gpu::ChoiceRule rule = choice.state->rule(request, choice.position).value_or(gpu::ChoiceRule{});
    bool changes = (rule.what & gpu::kRuleAdjusts) != 0 || !allowed.empty();
    if ((rule.what & gpu::kRuleDraws) == 0 && !changes) {
        // The model's first choice is the answer wherever the grammar allows it.
        if (mask.empty() || (mask[static_cast<size_t>(argmax) / 32] >> (argmax % 32) & 1u) != 0) return argmax;
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
