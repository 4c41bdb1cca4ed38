// Checks of a request's meaning before anything is generated, for routes that generate and for those that only prepare:
// both refuse the same. Errors are about the chat's fields, except for prepare_only(). HTTP workers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "server/access/shared_places.h"
#include "server/engine/token_constraint.h"
#include "server/http/generate/prompt.h"
#include "server/http/routes.h"

namespace lorad::server {

// Returns the format of tool calls in the answer; nothing: it has none. An answer that must be calls is only calls.
std::optional<model::ToolFormat> tool_format_of(const ServerContext& context, const proto::GenerateRequest& request);

// The model writes in this format, as its template or the operator says.
bool writes(const ServerContext& context, model::ToolFormat format);

// Returns the tokens that end an answer: the model's, and the adapter's own if there is exactly one adapter. They are
// in the order of the grammar's key, so that a request that is checked and then generated compiles one grammar.
std::vector<TokenId> end_tokens(const ServerContext& context, const adapters::ChatEnds& ends);
std::vector<TokenId> end_tokens(ServerContext& context, const proto::GenerateRequest& request);

Status check_min_tokens(const proto::GenerateRequest& request, uint32_t n_tokens_max);

// Compiles the constraint of the answers; null: there is none. kInvalidRequest for a structure that cannot be compiled
// or that allows no first token. `end_tokens` end an answer; `holder` is who uses the compiler's places.
Result<std::unique_ptr<TokenConstraint>> compile_structure(const ServerContext& context,
                                                           const proto::GenerateRequest& request,
                                                           std::span<const TokenId> end_tokens,
                                                           const access::Holder& holder);

// Checks that answers can have the request's structure, with their end tokens; compiles it.
Status check_structure(ServerContext& context, const HttpRequest& http, const proto::GenerateRequest& request);

// Prepares a request without generating. It refuses all that generating would refuse, except for what depends on
// others' requests (room in the queue and for adapters, quotas).
enum class Length : uint8_t { kMustFit, kAny };  // the context, with max_tokens
struct PreparedOnly {
    std::vector<PreparedPrompt> prompts;
    std::vector<std::string> unread_fields;  // the client's names
    std::string ignored, not_enforced;       // headers so far
};
Result<PreparedOnly> prepare_only(ServerContext& context, const HttpRequest& http, proto::GenerateRequest& request,
                                  Length length);
void add_headers(HttpReply& reply, const PreparedOnly& prepared);

}  // namespace lorad::server
