// One HTTP request while the engine answers it: several sequences, one for each answer to each
// prompt, taken as text. For all routes that generate; shapes on the wire are the routes' own.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/generate/generate_response.h"
#include "server/access/account.h"
#include "server/http/generate/prompt.h"
#include "server/http/routes.h"

namespace lorad::server {

// One admitted request on its HTTP worker. What it has begun is cancelled when it goes away early.
class Generation {
  public:
    // One choice's output since the last piece.
    struct Piece {
        uint32_t choice = 0;  // prompt index * best_of + number of the answer
        std::string text;
        std::vector<TokenId> ids;                    // also those that are not text
        std::vector<proto::TokenLogprobs> logprobs;  // of the ids that are text
        std::string finish_reason;                   // set in the choice's last piece
        std::string stop_text;                       // the stop string that was the reason
        std::optional<Error> error;                  // instead of a finish reason
        bool ended() const { return error || !finish_reason.empty(); }
    };

    // Prepares the prompts, brings the adapters to the device and hands everything to the engine:
    // all of it or nothing. Errors are about the client's fields.
    // With a lease its adapters are used, whatever the request's names stand for by now.
    static Result<std::unique_ptr<Generation>> start(ServerContext& context, const HttpRequest& http,
                                                     proto::GenerateRequest request,
                                                     std::optional<adapters::MixLease> lease = std::nullopt);
    ~Generation();
    Generation(const Generation&) = delete;
    Generation& operator=(const Generation&) = delete;

    // Waits, but no longer than until the client has to be looked at again. Choices that have ended
    // give nothing more.
    std::vector<Piece> next();
    bool ended() const { return n_running_ == 0; }
    void cancel();  // all choices

    uint32_t n_choices() const { return static_cast<uint32_t>(choices_.size()); }
    const PreparedPrompt& prompt_of(uint32_t choice) const;
    // The client's text, or the text of the client's ids.
    std::string prompt_text(uint32_t choice) const;
    // Fields of a chat that its template does not show to the model, by the client's names.
    std::vector<std::string> unread_fields() const { return request.names.originals(prompts_.front().unread_fields); }
    // The format of tool calls in this request's answers; nothing: they have none.
    std::optional<model::ToolFormat> tool_format() const { return tool_format_; }
    // The marks around thoughts in this request's answers; nothing: thoughts are part of the text.
    const std::optional<model::ThoughtMarks>& thoughts() const { return thoughts_; }
    // Its answers are messages in channels, which model::HarmonyParser reads.
    bool has_channels() const { return has_channels_; }
    // For all tokens of the choice's prompt but the first; set with its first piece.
    const std::vector<proto::TokenLogprobs>& prompt_logprobs_of(uint32_t choice) const;
    // Over the answer's tokens so far, without the prompt's.
    double logprob_sum(uint32_t choice) const { return choices_[choice].logprob_sum; }
    uint32_t n_tokens(uint32_t choice) const { return choices_[choice].n_tokens; }
    // Set for requests that embed, after the choice has ended; empty if it ended early.
    const std::vector<float>& embedding(uint32_t choice) const { return choices_[choice].embedding; }
    const std::string& finish_reason(uint32_t choice) const { return choices_[choice].finish_reason; }
    // A request that embeds passes it on to its next inputs.
    const adapters::MixLease& lease() const { return lease_; }
    // Over all choices; each prompt counts once.
    proto::Usage usage() const;

    proto::ResponseHead head;  // without an id
    const proto::GenerateRequest request;

  private:
    struct Choice {
        std::shared_ptr<TokenStream> stream;
        std::unique_ptr<TextDecoder> decoder;
        std::vector<proto::TokenLogprobs> prompt_logprobs;
        std::vector<float> embedding = {};
        uint32_t n_tokens = 0;
        double logprob_sum = 0.0;
        bool ended = false;
        std::string finish_reason = {};  // once it has ended
    };

    Generation(ServerContext& context, proto::GenerateRequest its_request);
    static Result<std::unique_ptr<Generation>> prepared(ServerContext& context, const HttpRequest& http,
                                                        proto::GenerateRequest request,
                                                        const std::optional<adapters::MixLease>& lease);
    Status submit_all(ServerContext& context, const HttpRequest& http, const std::optional<adapters::MixLease>& given);
    Status check_template(ServerContext& context, const adapters::MixLease& lease) const;
    std::string prefix_salt(const HttpRequest& http) const;
    std::string tenant_of(const HttpRequest& http) const;
    Status take_quota(const HttpRequest& http, std::vector<Request>& requests);
    void log_end() const;
    Status add_constraints(const ServerContext& context, const HttpRequest& http, std::vector<Request>& requests) const;
    Request engine_request(const ServerContext& context, uint32_t n_tokens_max) const;
    Piece read(uint32_t index);
    Status take_tokens(Choice& choice, TokenStream::Batch& batch, Piece& piece);

    std::vector<PreparedPrompt> prompts_;
    std::vector<Choice> choices_;
    adapters::MixLease lease_;
    std::shared_ptr<access::Account::Charge> charge_;  // null: no key, no quota
    std::string key_id_, request_id_;
    std::shared_ptr<StreamSignal> signal_ = std::make_shared<StreamSignal>();
    std::vector<std::shared_ptr<TokenStream>> running_streams_;
    uint32_t n_running_ = 0;
    bool is_submitted_ = false;
    adapters::ChatEnds ends_;           // the adapter's, if there is exactly one
    std::vector<TokenId> end_tokens_;   // the base's and the adapter's
    std::vector<TokenId> stop_tokens_;  // sorted
    const TextCodec& text_;
    const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
    std::optional<std::chrono::steady_clock::time_point> first_piece_;  // the first of any choice
    std::optional<model::ToolFormat> tool_format_;
    std::optional<model::ThoughtMarks> thoughts_;
    bool has_channels_ = false;
};

uint64_t random_number();

// Gives each of these requests, at least one, its own state of the constraint. The last one gets `first` itself, so
// that no spare copy is kept. Errors name `param`.
Status share_constraint(std::unique_ptr<TokenConstraint> first, const std::string& param, std::span<Request> requests);

}  // namespace lorad::server
