#include "server/http/request_check.h"

#include <algorithm>

#include "proto/base/format.h"
#include "server/http/adapter_choice.h"
#include "server/http/call_grammar.h"

namespace lorad::server {

using proto::GenerateRequest;

std::optional<model::ToolFormat> tool_format_of(const ServerContext& context, const GenerateRequest& request) {
    switch (request.tool_choice) {
        case proto::ToolChoice::kNone:
            return std::nullopt;
        case proto::ToolChoice::kAuto:
            return context.tool_format ? *context.tool_format : context.text.tool_format();
        case proto::ToolChoice::kRequired:
            return model::ToolFormat::kList;
        case proto::ToolChoice::kNamed:
            return model::ToolFormat::kArguments;
    }
    return std::nullopt;
}

// The base's own, then those of the adapter.
std::vector<TokenId> end_tokens(const ServerContext& context, const adapters::ChatEnds& ends) {
    std::vector<TokenId> tokens = context.defaults.eos_token_ids;
    const auto add = [&](TokenId token) {
        const bool is_known = token >= 0 && uint32_t(token) < context.vocab_size;
        if (is_known && std::ranges::find(tokens, token) == tokens.end()) tokens.push_back(token);
    };
    for (TokenId token : ends.ids) add(token);
    if (!ends.token.empty()) add(context.text.token_id(ends.token).value_or(-1));
    return tokens;
}

Status check_min_tokens(const GenerateRequest& request, uint32_t n_tokens_max) {
    if (request.n_tokens_min <= n_tokens_max) return ok_status();
    return make_error(ErrorCode::kInvalidRequest,
                      format("min_tokens: expected at most {}, which max_tokens is here, found {}",
                             n_tokens_max, request.n_tokens_min),
                      "min_tokens");
}

Result<std::unique_ptr<TokenConstraint>> compile_structure(const ServerContext& context, const GenerateRequest& request,
                                                           std::span<const TokenId> end_tokens, const access::Holder& holder) {
    const std::optional<model::ToolFormat> tools = tool_format_of(context, request);
    const std::optional<proto::Structure> structure =
        tools ? answer_structure(request, *tools, context.text) : request.structure;
    if (!structure) return std::unique_ptr<TokenConstraint>();
    TRY_ASSIGN(std::unique_ptr<TokenConstraint> constraint,
               context.text.make_constraint(*structure, end_tokens, context.vocab_size, holder));
    // A grammar that lets nothing begin is refused while the answer can still say so.
    std::vector<uint32_t> mask;
    bool begins = constraint->next_mask(mask).ok() &&
                  std::ranges::any_of(mask, [](uint32_t word) { return word != 0; });
    if (begins) return constraint;
    return make_error(ErrorCode::kInvalidRequest,
                      format("{}: no answer can begin as it asks, or it is too large to follow",
                             structure->param),
                      structure->param);
}

std::vector<TokenId> end_tokens(ServerContext& context, const GenerateRequest& request) {
    const std::optional<std::string> adapter = only_adapter(context, request);
    return end_tokens(context, adapter ? context.registry.chat_files(*adapter).ends : adapters::ChatEnds());
}

Status check_request(ServerContext& context, const GenerateRequest& request,
                     const std::vector<PreparedPrompt>& prompts, const access::Holder& holder) {
    for (const PreparedPrompt& prompt : prompts) {
        TRY_ASSIGN(uint32_t n_tokens_max, tokens_to_generate(context, request, prompt.tokens.size()));
        TRY(check_min_tokens(request, std::max(n_tokens_max, 1u)));
    }
    TRY(compile_structure(context, request, end_tokens(context, request), holder));
    return ok_status();
}

}  // namespace lorad::server
