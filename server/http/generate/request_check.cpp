#include "server/http/generate/request_check.h"

#include <algorithm>

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "proto/schema/schema.h"
#include "server/http/generate/adapter_choice.h"
#include "server/http/generate/call_grammar.h"
#include "server/http/generate/harmony_grammar.h"
#include "server/http/generate/reply_parts.h"
#include "server/http/place.h"

namespace lorad::server {

using proto::GenerateRequest;

std::optional<model::ToolFormat> tool_format_of(const ServerContext& context, const GenerateRequest& request) {
    if (request.tool_choice == proto::ToolChoice::kNone) return std::nullopt;
    const model::ToolFormat own = context.tool_format.value_or(context.text.tool_format());
    if (writes(context, model::ToolFormat::kHarmony)) return model::ToolFormat::kHarmony;
    if (model::forces_own_form(own)) return own;
    switch (request.tool_choice) {
        case proto::ToolChoice::kNone:
        case proto::ToolChoice::kAuto: return own;
        case proto::ToolChoice::kRequired: return model::ToolFormat::kList;
        case proto::ToolChoice::kNamed: return model::ToolFormat::kArguments;
    }
    return std::nullopt;
}

bool writes(const ServerContext& context, model::ToolFormat format) {
    return context.tool_format == format || context.text.tool_format() == format;
}

// The base's own, then those of the adapter.
std::vector<TokenId> end_tokens(const ServerContext& context, const adapters::ChatEnds& ends) {
    std::vector<TokenId> tokens = context.defaults.eos_token_ids;
    const auto add = [&](TokenId token) {
        const bool is_known = token >= 0 && static_cast<uint32_t>(token) < context.vocab_size;
        if (is_known && std::ranges::find(tokens, token) == tokens.end()) tokens.push_back(token);
    };
    for (TokenId token : ends.ids) add(token);
    if (!ends.token.empty()) add(context.text.token_id(ends.token).value_or(-1));
    return tokens;
}

Status check_min_tokens(const GenerateRequest& request, uint32_t n_tokens_max) {
    if (request.n_tokens_min <= n_tokens_max) return ok_status();
    return make_error(ErrorCode::kInvalidRequest,
                      format("min_tokens: expected at most {}, which max_tokens is here, found {}", n_tokens_max,
                             request.n_tokens_min),
                      "min_tokens");
}

namespace {

// If a grammar of several functions cannot be compiled, the error names the first function that fails alone too.
Error of_function(const ServerContext& context, const GenerateRequest& request, std::span<const TokenId> end_tokens,
                  const access::Holder& holder, Error error) {
    const bool is_clients = error.code == ErrorCode::kInvalidRequest || error.code == ErrorCode::kInputTooComplex;
    const bool is_of_functions = error.param == "tools" || request.is_response_format;
    if (!is_of_functions || !is_clients) return error;
    for (const proto::CallableTool& tool : request.tools) {
        if (tool.arguments.root.empty()) continue;
        const std::string param = format("tools[{}].function.parameters", tool.index);
        const proto::Structure alone{proto::StructureKind::kJsonSchema, tool.arguments.whole(proto::kOneLineSwitches),
                                     param};
        const auto compiled = context.text.make_constraint(alone, end_tokens, context.vocab_size, holder);
        if (compiled.ok() || compiled.error().code != error.code) continue;
        Error found = compiled.error();
        found.message += format(" (function {})", json_quote_short(tool.name));
        return found;
    }
    return error;
}

}  // namespace

Result<std::unique_ptr<TokenConstraint>> compile_structure(const ServerContext& context, const GenerateRequest& request,
                                                           std::span<const TokenId> end_tokens,
                                                           const access::Holder& holder) {
    const std::optional<model::ToolFormat> tools = tool_format_of(context, request);
    const bool has_channels = request.kind == proto::ApiKind::kChat && writes(context, model::ToolFormat::kHarmony);
    const std::optional<proto::Structure> structure = has_channels ? harmony_structure(request, context.text)
                                                      : tools      ? answer_structure(request, *tools, context.text)
                                                                   : request.structure;
    if (!structure) return std::unique_ptr<TokenConstraint>();
    auto compiled = context.text.make_constraint(*structure, end_tokens, context.vocab_size, holder);
    if (!compiled.ok()) return of_function(context, request, end_tokens, holder, compiled.error());
    std::unique_ptr<TokenConstraint> constraint = std::move(*compiled);
    // A grammar that lets nothing begin is refused while the answer can still say so.
    std::vector<uint32_t> mask;
    bool begins =
        constraint->next_mask(mask).ok() && std::ranges::any_of(mask, [](uint32_t word) { return word != 0; });
    if (begins) return constraint;
    return make_error(ErrorCode::kInvalidRequest,
                      format("{}: no answer can begin as it asks, or it is too large to follow", structure->param),
                      structure->param);
}

std::vector<TokenId> end_tokens(ServerContext& context, const GenerateRequest& request) {
    const std::optional<std::string> adapter = only_adapter(context, request);
    return end_tokens(context, adapter ? context.registry.chat_files(*adapter).ends : adapters::ChatEnds());
}

Status check_structure(ServerContext& context, const HttpRequest& http, const GenerateRequest& request) {
    TRY(compile_structure(context, request, end_tokens(context, request), holder_of(http)));
    return ok_status();
}

namespace {

Result<std::vector<PreparedPrompt>> prepared_prompts(ServerContext& context, const HttpRequest& http,
                                                     GenerateRequest& request, Length length) {
    TRY(limit_adapters(context, http, request));
    TRY(check_adapters(context, http, request));
    TRY_ASSIGN(std::vector<PreparedPrompt> prompts, prepare_prompts(context, http, request, TokensFor::kShowing));
    for (const PreparedPrompt& prompt : prompts) {
        if (length == Length::kAny) continue;
        TRY_ASSIGN(uint32_t n_tokens_max, tokens_to_generate(context, request, prompt.tokens.size()));
        TRY(check_min_tokens(request, std::max(n_tokens_max, 1u)));
    }
    TRY(check_structure(context, http, request));
    return prompts;
}

}  // namespace

Result<PreparedOnly> prepare_only(ServerContext& context, const HttpRequest& http, GenerateRequest& request,
                                  Length length) {
    PreparedOnly out;
    TRY_ASSIGN(out.ignored, ignored_fields_header(context, request.ignored_fields));
    TRY_ASSIGN(out.not_enforced, not_enforced_header(context, request.not_enforced));
    Result<std::vector<PreparedPrompt>> prompts = prepared_prompts(context, http, request, length);
    if (!prompts.ok()) return request.names.renamed(prompts.error());
    out.prompts = std::move(*prompts);
    out.unread_fields = request.names.originals(out.prompts.front().unread_fields);
    return out;
}

void add_headers(HttpReply& reply, const PreparedOnly& prepared) {
    add_ignored_fields(reply, prepared.ignored, prepared.unread_fields);
    add_not_enforced(reply, prepared.not_enforced);
}

}  // namespace lorad::server
