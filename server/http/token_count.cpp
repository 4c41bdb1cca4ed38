#include "server/http/token_count.h"

#include "server/http/adapter_choice.h"
#include "server/http/place.h"
#include "server/http/prompt.h"
#include "server/http/reply_parts.h"
#include "server/http/request_check.h"

namespace lorad::server {

Result<HttpReply> token_count_reply(ServerContext& context, const HttpRequest& http, proto::GenerateRequest& request,
                                    const proto::FieldNames& names, std::string (*write)(uint64_t n_tokens)) {
    TRY_ASSIGN(std::string ignored, ignored_fields_header(context, request.ignored_fields));
    TRY_ASSIGN(std::string not_enforced, not_enforced_header(context, request.not_enforced));
    TRY(limit_adapters(context, http, request));
    TRY(check_adapters(context, http, request));
    Result<std::vector<PreparedPrompt>> prompts = prepare_prompts(context, http, request, TokensFor::kShowing);
    if (!prompts.ok()) return names.renamed(prompts.error());
    if (auto compiled = compile_structure(context, request, context.defaults.eos_token_ids, holder_of(http)); !compiled.ok())
        return names.renamed(compiled.error());
    HttpReply reply = json_reply(write(prompts->front().tokens.size()));
    add_ignored_fields(reply, ignored, names.originals(prompts->front().unread_fields));
    add_not_enforced(reply, not_enforced);
    return reply;
}

}  // namespace lorad::server
