// The finishing half of the engine: hands out a finished step's results and ends sequences.
#include <algorithm>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "server/engine/engine.h"

namespace lorad::server {

using Clock = std::chrono::steady_clock;

namespace {

double seconds_between(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

Status Engine::finish_step() {
    TRY(prepare_draw());
    const Clock::time_point begin = time_now();
    TRY_ASSIGN(StepResult result, runner_.finish());
    const double waited_s = seconds_between(begin, time_now());
    Flight flight = std::move(in_flight_.front());
    in_flight_.pop_front();
    ++n_finished_;
    if (result.argmax.size() != flight.n_outputs || result.logits.size() != flight.n_outputs) {
        return make_error(ErrorCode::kInternal,
                          format("step returned {} outputs, expected {}", result.argmax.size(), flight.n_outputs));
    }
    list_choices(flight);
    chooser_.choose(choices_, result);
    take_prompt_logprobs(result);
    Clock::time_point now = time_now();
    // The choices of tokens come first, in this order.
    auto choice = choices_.begin();
    for (const Planned& planned : flight.planned) {
        if (choice == choices_.end() || choice->prompt_token >= 0) break;
        if (static_cast<int64_t>(choice->output) != planned.output) continue;
        TokenId token = result.argmax[choice->output];
        if (planned.sequence->request.wants_embedding) {
            take_embedding(planned, token, result, now);
        } else {
            set_token(planned, token, *choice, now);
        }
        ++choice;
    }
    flight.metrics.seconds = seconds_between(std::max(flight.submitted, last_finish_), now);
    last_finish_ = now;
    const double rested_s = in_flight_.empty() ? 0 : rested_s_;
    if (flight.is_disturbed || !plan_ahead_.observe(flight.kind, flight.metrics.seconds, rested_s, waited_s)) {
        // Its time is not the step's own, so nothing is learned from it.
    } else if (flight.metrics.n_rows > flight.metrics.n_prefill_rows) {
        step_times_.observe(flight.metrics.n_rows, flight.prompts, flight.metrics.seconds);
    } else {
        step_times_.observe_alone(flight.n_prompt_rows, flight.prompt_context, flight.metrics.seconds);
    }
    flight.metrics.n_dispatches = result.n_dispatches;
    metrics_.on_step(flight.metrics);
    last_step_s_ = flight.metrics.seconds;
    was_last_quiet_ = !flight.is_disturbed;
    retire_ended();
    return ok_status();
}

// Lists the step's choices: tokens first, then the outputs about prompts.
void Engine::list_choices(const Flight& flight) {
    choices_.clear();
    choosers_.clear();
    for (const Planned& planned : flight.planned) {
        if (planned.output < 0 || planned.sequence->ended) continue;
        choices_.push_back({&planned.sequence->request, &planned.sequence->choice,
                            static_cast<uint32_t>(planned.output), planned.position, -1, planned.mask});
        choosers_.push_back(planned.sequence);
    }
    for (const Planned& planned : flight.planned) {
        if (planned.sequence->ended) continue;
        for (uint32_t i = 0; i < planned.n_prompt_outputs; ++i) {
            uint32_t position = planned.prompt_position + i;
            choices_.push_back({&planned.sequence->request, &planned.sequence->choice, planned.first_prompt_output + i,
                                position, planned.sequence->request.prompt[position]});
            choosers_.push_back(planned.sequence);
        }
    }
}

void Engine::take_prompt_logprobs(const StepResult& result) {
    for (size_t i = 0; i < choices_.size(); ++i) {
        TokenChoice& choice = choices_[i];
        Sequence& sequence = *choosers_[i];
        if (choice.prompt_token < 0 || sequence.ended) continue;
        std::vector<proto::TokenLogprobs>& known = sequence.choice.prompt_logprobs;
        if (result.argmax[choice.output] < 0) {
            end_not_finite(sequence, choice.position);
        } else if (known.size() + 1 == choice.position) {  // else computed again after a preemption
            known.push_back(std::move(*choice.logprobs));
        }
    }
}

void Engine::end_not_finite(Sequence& sequence, uint32_t position) {
    log_error("request {}: the model's output is not finite at position {}", sequence.request.id, position);
    forget_content(sequence);
    end_sequence(sequence, {FinishReason::kError,
                            make_error(ErrorCode::kNotFinite, "the model's output is not a finite number")});
}

void Engine::set_token(const Planned& planned, TokenId token, TokenChoice& choice, Clock::time_point now) {
    Sequence& sequence = *planned.sequence;
    if (sequence.ended) return;
    if (choice.nothing_allowed) {
        end_sequence(sequence, {FinishReason::kError,
                                !choice.masked.ok() ? choice.masked.error()
                                                    : make_error(ErrorCode::kInvalidRequest,
                                                                 "what the request allows and what it forbids leave no "
                                                                 "token")});
        return;
    }
    if (token < 0) {
        end_not_finite(sequence, planned.position);
        return;
    }
    if (planned.position < sequence.n_known()) {
        sequence.tokens[planned.position] = token;
    } else {
        sequence.tokens.push_back(token);
    }
    take_token(sequence, token, choice, now);
}

void Engine::take_token(Sequence& sequence, TokenId token, TokenChoice& choice, Clock::time_point now) {
    const Request& request = sequence.request;
    if (sequence.n_generated == 0) {
        metrics_.on_prompt_tokens(request.prompt.size());
        metrics_.on_first_token(seconds_between(request.arrived, now));
        sequence.first_token_at = now;
    } else {
        metrics_.on_next_token(seconds_between(sequence.last_token_at, now));
    }
    sequence.last_token_at = now;
    ++sequence.n_generated;
    metrics_.on_generated(1);
    fair_share_.charge(sequence.ticket, kGeneratedTokenCost);
    Publication publication{request.stream, token, std::nullopt, std::move(choice.logprobs)};
    if (sequence.n_generated == 1) {
        publication.prompt_logprobs = std::move(sequence.choice.prompt_logprobs);
        sequence.prompt_logprobs_sent = true;
        request.stream->set_cached_tokens(sequence.n_cached_tokens);
    }
    publications_.push_back(std::move(publication));
    sequence.choice.accept(token);
    bool is_stop =
        std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) != request.stop_tokens.end();
    if (is_stop) {
        end_sequence(sequence, {FinishReason::kStop, std::nullopt});
    } else if (sequence.n_generated == request.n_tokens_max) {
        end_sequence(sequence, {FinishReason::kLength, std::nullopt});
    } else {
        begin_mask(sequence);
    }
}

void Engine::take_embedding(const Planned& planned, TokenId token, const StepResult& result, Clock::time_point now) {
    Sequence& sequence = *planned.sequence;
    if (sequence.ended) return;
    if (token < 0) {
        end_not_finite(sequence, planned.position);
        return;
    }
    std::span<const float> hidden = result.hidden[static_cast<size_t>(planned.output)];
    metrics_.on_prompt_tokens(sequence.request.prompt.size());
    sequence.first_token_at = sequence.last_token_at = now;
    sequence.request.stream->set_cached_tokens(sequence.n_cached_tokens);
    publications_.push_back({sequence.request.stream,
                             -1,
                             std::nullopt,
                             std::nullopt,
                             {},
                             std::vector<float>(hidden.begin(), hidden.end())});
    end_sequence(sequence, {FinishReason::kStop, std::nullopt});
}

Metrics::Finished Engine::finished(const Sequence& sequence, FinishReason reason) const {
    Metrics::Finished out;
    out.reason = reason;
    out.total_s = seconds_between(sequence.request.arrived, time_now());
    out.n_prompt = sequence.request.prompt.size();
    out.n_generated = sequence.n_generated;
    out.n_tokens_max = sequence.request.n_tokens_max;
    out.adapter = sequence.request.adapter.name;
    if (sequence.was_admitted) out.queue_s = seconds_between(sequence.request.arrived, sequence.started);
    if (sequence.n_generated > 0) {
        out.prefill_s = seconds_between(sequence.started, sequence.first_token_at);
        out.decode_s = seconds_between(sequence.first_token_at, sequence.last_token_at);
    }
    return out;
}

// The sequence object and its lease go with retire_ended().
void Engine::end_sequence(Sequence& sequence, StreamEnd end) {
    CHECK(!sequence.ended);
    sequence.ended = true;
    release_blocks(sequence);
    fair_share_.leave(sequence.ticket, now_ms());
    if (!sequence.was_admitted) queue_.leave_waiting(1, sequence.request.prompt.size());
    metrics_.on_finished(finished(sequence, end.reason));
    publications_.push_back({sequence.request.stream, -1, std::move(end)});
}

void Engine::publish() {
    for (Publication& publication : publications_) {
        if (!publication.prompt_logprobs.empty())
            publication.stream->set_prompt_logprobs(std::move(publication.prompt_logprobs));
        if (!publication.embedding.empty()) publication.stream->set_embedding(std::move(publication.embedding));
        if (publication.token >= 0) publication.stream->push(publication.token, std::move(publication.logprobs));
        if (publication.end) publication.stream->close(std::move(*publication.end));
    }
    publications_.clear();
}

}  // namespace lorad::server
