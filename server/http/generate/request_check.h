// What a request has to satisfy beyond its words before anything is generated, for routes that generate and for those
// that only prepare: both refuse the same. Errors are about the chat's fields, but for prepare_only(). HTTP workers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "server/access/shared_places.h"
#include "server/engine/token_constraint.h"
#include "server/http/generate/prompt.h"
#include "server/http/routes.h"

namespace lorad::server {

// How the answer holds tool calls; what has to be calls is nothing else. Nothing: it holds none.
std::optional<model::ToolFormat> tool_format_of(const ServerContext& context, const proto::GenerateRequest& request);

// The model writes in this format, as its template or the operator says.
bool writes(const ServerContext& context, model::ToolFormat format);

// What ends an answer: the model's end tokens, and the adapter's own where there is one adapter alone. In the order in
// which grammars know them, so that a request that is checked and then generated compiles one grammar.
std::vector<TokenId> end_tokens(const ServerContext& context, const adapters::ChatEnds& ends);
std::vector<TokenId> end_tokens(ServerContext& context, const proto::GenerateRequest& request);

Status check_min_tokens(const proto::GenerateRequest& request, uint32_t n_tokens_max);

// What answers may go on with; null: with anything. kInvalidRequest for what cannot be compiled, and for a structure
// that lets nothing begin. `end_tokens` end an answer; `holder` is who uses the compiler's places.
Result<std::unique_ptr<TokenConstraint>> compile_structure(const ServerContext& context,
                                                           const proto::GenerateRequest& request,
                                                           std::span<const TokenId> end_tokens,
                                                           const access::Holder& holder);

// That answers can be as the request asks, with what ends them; compiles it.
Status check_structure(ServerContext& context, const HttpRequest& http, const proto::GenerateRequest& request);

// A request that is not going to be generated: what generating would refuse is refused, but for what others' requests
// decide (room in the queue and for adapters, quotas).
enum class Length : uint8_t { kMustFit, kAny };  // the context, with max_tokens
struct PreparedOnly {
    std::vector<PreparedPrompt> prompts;
    std::vector<std::string> unread_fields;  // as the client calls them
    std::string ignored, not_enforced;       // headers so far
};
Result<PreparedOnly> prepare_only(ServerContext& context, const HttpRequest& http, proto::GenerateRequest& request,
                                  Length length);
void add_headers(HttpReply& reply, const PreparedOnly& prepared);

}  // namespace lorad::server
