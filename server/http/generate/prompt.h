// Turns a request's prompt into the model's input; for all routes that generate. HTTP workers.
#pragma once

#include <string>
#include <vector>

#include "proto/generate/generate_request.h"
#include "server/http/generate/tokenizing.h"
#include "server/http/routes.h"

namespace lorad::server {

struct PreparedPrompt {
    std::vector<TokenId> tokens;                  // never empty, all within the model's vocabulary
    std::string text;                             // from the template or the client; empty for ids
    std::string template_digest = {};             // of an adapter's own chat template; empty: the model's
    std::vector<std::string> unread_fields = {};  // fields of a chat that its template does not show
};

// The prompt of a chat, without tokens, by the template of the adapter that it runs with, if that
// is one adapter and has one, else by the model's.
Result<PreparedPrompt> render_prompt(ServerContext& context, const HttpRequest& http,
                                     const proto::GenerateRequest& request);

// One for each prompt of the request, one for a chat. Errors name "prompt", "prompt[i]" or
// "messages".
Result<std::vector<PreparedPrompt>> prepare_prompts(ServerContext& context, const HttpRequest& http,
                                                    const proto::GenerateRequest& request, TokensFor what);

// Returns the number of tokens that may follow a prompt: max_tokens, else the rest of the context for chats and 16 for
// completions, as with OpenAI; 1 if a hidden state is wanted. kContextLengthExceeded if they do not fit behind the
// prompt.
Result<uint32_t> tokens_to_generate(const ServerContext& context, const proto::GenerateRequest& request,
                                    size_t n_prompt);

}  // namespace lorad::server
