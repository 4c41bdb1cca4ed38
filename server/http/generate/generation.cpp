#include "server/http/generate/generation.h"

#include <algorithm>
#include <random>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "server/access/principal.h"
#include "server/http/generate/bad_word_tokens.h"
#include "server/http/generate/request_check.h"
#include "server/http/place.h"

namespace lorad::server {
namespace {

using proto::GenerateRequest;

// The interval at which a waiting worker checks that its client is still there.
constexpr std::chrono::milliseconds kDisconnectPoll{50};

proto::SamplingParams sampling_of(const ServerContext& context, const GenerateRequest& request) {
    proto::SamplingParams sampling;
    sampling.temperature = request.temperature.value_or(context.defaults.temperature);
    sampling.top_p = request.top_p.value_or(context.defaults.top_p);
    sampling.top_k = request.top_k.value_or(context.defaults.top_k);
    sampling.min_p = request.min_p.value_or(context.defaults.min_p);
    sampling.typical_p = request.typical_p;
    sampling.repetition_penalty = request.repetition_penalty.value_or(context.defaults.repetition_penalty);
    sampling.presence_penalty = request.presence_penalty;
    sampling.frequency_penalty = request.frequency_penalty;
    sampling.logit_bias = request.logit_bias;
    sampling.allowed_token_ids = request.allowed_token_ids;
    sampling.seed = request.seed ? *request.seed : random_number();
    return sampling;
}

// Covers the answer's own log-probabilities, and those that best_of compares.
std::optional<uint32_t> logprobs_wanted(const GenerateRequest& request) {
    if (request.n_logprobs) return request.n_logprobs;
    if (request.best_of > request.n) return 0;
    return std::nullopt;
}

}  // namespace

uint64_t random_number() {
    thread_local std::mt19937_64 generator{std::random_device{}()};
    return generator();
}

Status share_constraint(std::unique_ptr<TokenConstraint> first, const std::string& param, std::span<Request> requests) {
    CHECK(!requests.empty());
    for (Request& one : requests.first(requests.size() - 1)) {
        Result<std::unique_ptr<TokenConstraint>> copy = first->duplicate();
        if (!copy.ok()) return make_error(copy.error().code, format("{}: {}", param, copy.error().message), param);
        one.constraint = std::move(*copy);
    }
    requests.back().constraint = std::move(first);
    return ok_status();
}

Generation::Generation(ServerContext& context, GenerateRequest its_request)
    : request(std::move(its_request)), text_(context.text) {
    head.kind = request.kind;
    head.created_s = unix_time_s();
    head.model = request.model.empty() ? context.base_name : request.model;
    head.token_bytes = [&text = context.text](TokenId token) { return text.token_bytes(token); };
    head.tokens_as_ids = request.tokens_as_ids;
    stop_tokens_ = request.stop_token_ids;
    if (std::optional<std::string> adapter = only_adapter(context, request))
        ends_ = context.registry.chat_files(*adapter).ends;
    end_tokens_ = end_tokens(context, ends_);
    if (!request.ignore_eos) stop_tokens_.insert(stop_tokens_.end(), end_tokens_.begin(), end_tokens_.end());
    std::sort(stop_tokens_.begin(), stop_tokens_.end());
    tool_format_ = tool_format_of(context, request);
    if (request.kind != proto::ApiKind::kChat) return;
    has_channels_ = writes(context, model::ToolFormat::kHarmony);
    if (has_channels_ || request.structure) return;
    if (writes(context, model::ToolFormat::kGemma4)) {
        thoughts_ = model::kGemma4Thoughts;
    } else if (context.separates_reasoning) {
        thoughts_ = context.thought_marks;
    }
}

Generation::~Generation() {
    cancel();
    if (charge_ != nullptr) {
        if (is_submitted_) {
            proto::Usage used = usage();
            charge_->settle(used.n_prompt_tokens, used.n_completion_tokens);
        } else {
            charge_->take_back();
        }
    }
    if (!choices_.empty()) log_end();
}

// One line for each request: sizes and times, but no content.
void Generation::log_end() const {
    std::string reasons;
    for (const Choice& choice : choices_) {
        std::string reason = choice.ended ? choice.finish_reason : to_string(FinishReason::kCancelled);
        if (reasons.find(reason) == std::string::npos) reasons += (reasons.empty() ? "" : ",") + reason;
    }
    auto seconds_since_start = [this](std::chrono::steady_clock::time_point time) {
        return std::chrono::duration<double>(time - started_).count();
    };
    proto::Usage all = usage();
    log_event(LogLevel::kInfo, "request ended",
              {{"id", head.id},
               {"request_id", request_id_},
               {"model", head.model},
               {"key", key_id_},
               {"generation", head.adapter_generation.substr(0, 12)},
               {"reason", reasons},
               {"choices", static_cast<uint64_t>(choices_.size())},
               {"prompt_tokens", all.n_prompt_tokens},
               {"cached_tokens", all.n_cached_tokens},
               {"completion_tokens", all.n_completion_tokens},
               {"first_s", first_piece_ ? seconds_since_start(*first_piece_) : -1.0},
               {"total_s", seconds_since_start(std::chrono::steady_clock::now())}});
}

void Generation::cancel() {
    for (const Choice& choice : choices_) {
        if (!choice.ended) choice.stream->cancel();
    }
}

Result<std::unique_ptr<Generation>> Generation::start(ServerContext& context, const HttpRequest& http,
                                                      GenerateRequest request,
                                                      std::optional<adapters::MixLease> lease) {
    const proto::FieldNames names = request.names;
    auto generation = prepared(context, http, std::move(request), lease);
    if (!generation.ok()) return names.renamed(generation.error());
    return generation;
}

Result<std::unique_ptr<Generation>> Generation::prepared(ServerContext& context, const HttpRequest& http,
                                                         GenerateRequest request,
                                                         const std::optional<adapters::MixLease>& lease) {
    TRY(limit_adapters(context, http, request));
    // An unknown name is reported first, with similar ones.
    if (!lease) TRY(check_adapters(context, http, request));
    TRY(context.engine.check_room());
    auto generation = std::unique_ptr<Generation>(new Generation(context, std::move(request)));
    generation->request_id_ = http.request_id;
    TRY_ASSIGN(generation->prompts_, prepare_prompts(context, http, generation->request, TokensFor::kGenerating));
    TRY(generation->submit_all(context, http, lease));
    return generation;
}

Request Generation::engine_request(const ServerContext& context, uint32_t n_tokens_max) const {
    Request out;
    // Even if no token is wanted one is generated: the prompt's log-probabilities come with it.
    out.n_tokens_max = std::max(n_tokens_max, 1u);
    out.n_tokens_min = request.n_tokens_min;
    out.sampling = sampling_of(context, request);
    out.wants_embedding = request.embed;
    if (request.embed) out.sampling = {.temperature = 0.0f};
    out.stop_tokens = stop_tokens_;
    out.n_logprobs = logprobs_wanted(request);
    out.n_prompt_logprobs = request.n_prompt_logprobs;
    if (request.echo && request.n_logprobs) {
        out.n_prompt_logprobs = std::max(out.n_prompt_logprobs.value_or(0), *request.n_logprobs);
    }
    out.may_skip_prefix = !out.n_prompt_logprobs;
    out.priority = request.priority;
    return out;
}

// The key decides the tenant; only a key with the admin scope, such as a gateway's, may name another one.
std::string Generation::tenant_of(const HttpRequest& http) const {
    const access::Principal* key = http.principal.get();
    const bool is_told = key == nullptr || key->scopes.allow(access::Scope::kAdmin);
    if (is_told && !http.fairness_id.empty()) return http.fairness_id;
    if (key == nullptr) return request.user;
    // A client's name never equals a key's tenant: those have no blank.
    return is_told && !request.user.empty() ? "user " + request.user : key->tenant;
}

// Makes one unambiguous salt: a key's own has a fixed length, and a tenant's name is preceded by its length.
std::string Generation::prefix_salt(const HttpRequest& http) const {
    const access::Principal* key = http.principal.get();
    const bool is_told = key == nullptr || key->scopes.allow(access::Scope::kAdmin);
    const std::string told = is_told ? http.fairness_id : std::string();
    return (key != nullptr ? key->prefix_salt : std::string()) +
           format("{}:{}{}", told.size(), told, request.cache_salt);
}

// Takes the key's quota: tokens per minute, and places in the queue.
Status Generation::take_quota(const HttpRequest& http, std::vector<Request>& requests) {
    if (http.principal == nullptr) return ok_status();
    key_id_ = http.principal->id;
    access::Account& account = *http.principal->account;
    auto refused = [&http](const access::QuotaExceeded& exceeded) {
        *http.retry_after_s = exceeded.retry_after_s;
        return exceeded.error;
    };
    access::Account::TokenCount count{.n_answers = static_cast<uint32_t>(requests.size())};
    for (const PreparedPrompt& prompt : prompts_) count.n_prompt += prompt.tokens.size();
    std::vector<uint64_t> prompt_tokens;
    for (const Request& one : requests) {
        count.n_generated_max = std::max(count.n_generated_max, static_cast<uint64_t>(one.n_tokens_max));
        prompt_tokens.push_back(one.prompt.size());
    }
    std::vector<std::shared_ptr<const void>> places;
    if (auto exceeded = account.enter_queue(prompt_tokens, places)) return refused(*exceeded);
    if (auto exceeded = account.charge(count, charge_)) return refused(*exceeded);
    for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].queue_place = std::move(places[i]);
        requests[i].priority = std::max(requests[i].priority, http.principal->priority_min);
    }
    return ok_status();
}

// Compiled once, before anything is admitted.
Status Generation::add_constraints(const ServerContext& context, const HttpRequest& http,
                                   std::vector<Request>& requests) const {
    TRY_ASSIGN(std::unique_ptr<TokenConstraint> first,
               compile_structure(context, request, end_tokens_, holder_of(http)));
    if (!first) return ok_status();
    return share_constraint(std::move(first), request.structure->param, requests);
}

// The prompt is written before the adapter is pinned; another one may have got its name meanwhile.
Status Generation::check_template(ServerContext& context, const adapters::MixLease& lease) const {
    if (request.embed || lease.content().size() != 1 || !only_adapter(context, request)) return ok_status();
    const adapters::ChatFiles now = context.registry.chat_files(lease.content()[0].generation);
    const bool is_same = request.kind != proto::ApiKind::kChat || now.digest == prompts_.front().template_digest;
    if (is_same && now.ends == ends_) return ok_status();
    return make_error(ErrorCode::kGenerationConflict,
                      "the adapter, its chat template or what ends its answers were replaced meanwhile; ask again",
                      "model");
}

Status Generation::submit_all(ServerContext& context, const HttpRequest& http,
                              const std::optional<adapters::MixLease>& given) {
    std::vector<Request> requests;
    for (const PreparedPrompt& prompt : prompts_) {
        TRY_ASSIGN(uint32_t n_tokens_max, tokens_to_generate(context, request, prompt.tokens.size()));
        TRY(check_min_tokens(request, std::max(n_tokens_max, 1u)));
        Request one = engine_request(context, n_tokens_max);
        for (uint32_t i = 0; i < request.best_of; ++i) {
            requests.push_back(one);
            requests.back().sampling.seed += i;
            requests.back().prompt = prompt.tokens;
        }
    }
    TRY(take_quota(http, requests));
    TRY(add_constraints(context, http, requests));
    TRY(add_bad_words(context.text, request.bad_words, context.vocab_size, requests));
    // Comes last, so that a refused request brings no adapter to the device.
    adapters::MixLease lease;
    if (given) {
        lease = *given;
    } else {
        TRY_ASSIGN(lease, choose_adapters(context, request, http));
    }
    TRY(check_template(context, lease));
    if (request.embed) lease_ = lease;
    if (lease) head.adapter_generation = lease.generation();
    const bool has_special_marks = (tool_format_ && model::marks_are_special(*tool_format_)) || has_channels_ ||
                                   (thoughts_ && thoughts_->open == model::kGemma4Thoughts.open);
    const bool skip_special = request.skip_special_tokens && !has_special_marks;
    DecodeOptions decoding{request.stop, request.include_stop, skip_special, request.n_tokens_min};
    for (Request& one : requests) {
        one.adapter = use_of(lease, one.prompt);
        one.prefix = prefix_of(context.registry, lease, one.adapter, one.prompt, prefix_salt(http));
        one.tenant = tenant_of(http);
        one.stream = std::make_shared<TokenStream>(one.n_tokens_max, signal_);
        Choice choice;
        choice.stream = one.stream;
        choice.decoder = context.text.make_decoder(decoding);
        choices_.push_back(std::move(choice));
        running_streams_.push_back(one.stream);
    }
    TRY(context.engine.submit(std::span(requests)));
    n_running_ = static_cast<uint32_t>(choices_.size());
    is_submitted_ = true;
    return ok_status();
}

std::vector<Generation::Piece> Generation::next() {
    std::vector<Piece> pieces;
    if (ended() || !TokenStream::wait_any(*signal_, running_streams_, kDisconnectPoll)) return pieces;
    for (uint32_t i = 0; i < choices_.size(); ++i) {
        if (choices_[i].ended) continue;
        Piece piece = read(i);
        if (!first_piece_ && !piece.ids.empty()) first_piece_ = std::chrono::steady_clock::now();
        if (piece.ended()) {
            choices_[i].ended = true;
            choices_[i].finish_reason = piece.error ? to_string(FinishReason::kError) : piece.finish_reason;
            --n_running_;
            std::erase(running_streams_, choices_[i].stream);
        }
        if (piece.ended() || !piece.ids.empty()) pieces.push_back(std::move(piece));
    }
    return pieces;
}

Generation::Piece Generation::read(uint32_t index) {
    Choice& choice = choices_[index];
    Piece piece;
    piece.choice = index;
    TokenStream::Batch batch = choice.stream->take();
    if (!batch.embedding.empty()) choice.embedding = std::move(batch.embedding);
    if (!batch.prompt_logprobs.empty()) choice.prompt_logprobs = std::move(batch.prompt_logprobs);
    if (Status taken = take_tokens(choice, batch, piece); !taken.ok()) {
        choice.stream->cancel();
        piece.error = taken.error();
        return piece;
    }
    if (!piece.finish_reason.empty() || !batch.end) return piece;
    if (batch.end->error) {
        piece.error = batch.end->error;
        return piece;
    }
    Result<std::string> rest = choice.decoder->finish();
    if (!rest.ok()) {
        piece.error = rest.error();
        return piece;
    }
    piece.text += *rest;
    // A stop string may become certain only now.
    if (request.n_tokens_max && *request.n_tokens_max == 0) {
        piece.finish_reason = to_string(FinishReason::kLength);
        return piece;
    }
    FinishReason reason = choice.decoder->found_stop() ? FinishReason::kStop : batch.end->reason;
    piece.finish_reason = to_string(reason);
    piece.stop_text = choice.decoder->matched_stop();
    return piece;
}

Status Generation::take_tokens(Choice& choice, TokenStream::Batch& batch, Piece& piece) {
    if (request.n_tokens_max && *request.n_tokens_max == 0) {
        batch.tokens.clear();
        return ok_status();
    }
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
        TokenId token = batch.tokens[i];
        piece.ids.push_back(token);
        ++choice.n_tokens;
        bool is_stop = std::binary_search(stop_tokens_.begin(), stop_tokens_.end(), token);
        if (!batch.logprobs.empty()) {
            choice.logprob_sum += static_cast<double>(batch.logprobs[i].token.logprob);
            if (request.n_logprobs && (!is_stop || request.include_stop))
                piece.logprobs.push_back(std::move(batch.logprobs[i]));
        }
        // Not text; the engine's ending follows.
        if (is_stop && !request.include_stop) break;
        TRY_ASSIGN(std::string text, choice.decoder->push(token));
        piece.text += text;
        if (choice.decoder->found_stop()) {
            choice.stream->cancel(FinishReason::kStop);
            piece.finish_reason = to_string(FinishReason::kStop);
            piece.stop_text = choice.decoder->matched_stop();
            return ok_status();
        }
    }
    return ok_status();
}

const PreparedPrompt& Generation::prompt_of(uint32_t choice) const { return prompts_[choice / request.best_of]; }

std::string Generation::prompt_text(uint32_t choice) const {
    const PreparedPrompt& prompt = prompt_of(choice);
    if (!prompt.text.empty()) return prompt.text;
    Result<std::string> text = text_.decode(prompt.tokens, request.skip_special_tokens);
    return text.ok() ? *text : std::string();
}

const std::vector<proto::TokenLogprobs>& Generation::prompt_logprobs_of(uint32_t choice) const {
    return choices_[choice].prompt_logprobs;
}

proto::Usage Generation::usage() const {
    proto::Usage usage;
    for (uint32_t i = 0; i < choices_.size(); ++i) {
        usage.n_completion_tokens += choices_[i].n_tokens;
        if (i % request.best_of != 0) continue;
        usage.n_prompt_tokens += prompt_of(i).tokens.size();
        usage.n_cached_tokens += choices_[i].stream->n_cached_tokens();
    }
    return usage;
}

}  // namespace lorad::server
