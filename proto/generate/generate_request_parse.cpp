#include <limits>

#include "proto/base/format.h"
#include "proto/generate/custom_tools.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"

namespace lorad::proto {

bool is_number(const JsonValue& value, double expected) {
    if (!value.is_number()) return false;
    Result<double> number = value.as_number();
    return number.ok() && *number == expected;
}
bool is_bool(const JsonValue& value, bool expected) {
    if (!value.is_bool()) return false;
    Result<bool> flag = value.as_bool();
    return flag.ok() && *flag == expected;
}
bool is_text(const JsonValue& value, std::string_view expected) {
    if (!value.is_string()) return false;
    Result<std::string_view> text = value.as_string();
    return text.ok() && *text == expected;
}

Result<GenerateRequest> parse_generate_object(const JsonValue& root, ApiKind kind, uint32_t vocab_size) {
    if (!root.is_object()) return root.error(format("expected an object, found {}", root.describe()));
    bool chat = kind == ApiKind::kChat;
    GenerateRequest request;
    request.kind = kind;
    TRY_ASSIGN(std::string_view model, root.string_or("model", ""));
    request.model = std::string(model);
    TRY(check_request_fields(root, chat ? Endpoint::kChats : Endpoint::kCompletions, request.ignored_fields));
    TRY(parse_adapters(root, request));
    TRY(chat ? parse_messages(root, request) : parse_prompts(root, request, vocab_size));
    if (chat) TRY(parse_template_options(root, request));
    TRY(parse_sampling(root, request, vocab_size));
    TRY(parse_limits(root, request, vocab_size));
    TRY(parse_stop(root, request));
    TRY(parse_tools(root, request));
    TRY(parse_output(root, request));
    // Chat templates write the special tokens themselves.
    if (std::optional<JsonValue> n_max = root.find("truncate_prompt_tokens")) {
        TRY_ASSIGN(int64_t n, n_max->as_int(-1, std::numeric_limits<int32_t>::max()));
        if (n == 0) return n_max->error("expected -1 or at least 1, found 0");
        request.n_prompt_max = static_cast<int32_t>(n);
    }
    TRY_ASSIGN(request.add_special_tokens, root.bool_or("add_special_tokens", !chat));
    return request;
}

Result<GenerateRequest> parse_translated(const std::string& translated, ApiKind kind, uint32_t vocab_size,
                                         FieldNames names, std::vector<std::string> ignored) {
    TRY_ASSIGN(JsonDocument document, parse_json(translated));
    Result<GenerateRequest> request = parse_generate_object(document.root(), kind, vocab_size);
    if (!request.ok()) return names.renamed(request.error());
    for (const std::string& field : request->ignored_fields) list_field(names.original(field), ignored);
    request->ignored_fields = std::move(ignored);
    for (std::string& keyword : request->not_enforced) keyword = names.original(keyword);
    request->names = std::move(names);
    return request;
}

Result<GenerateRequest> parse_generate_root(const JsonValue& root, ApiKind kind, uint32_t vocab_size) {
    if (kind != ApiKind::kChat) return parse_generate_object(root, kind, vocab_size);
    TRY_ASSIGN(std::optional<PlainChat> plain, plain_chat(root));
    if (!plain) return parse_generate_object(root, kind, vocab_size);
    TRY_ASSIGN(GenerateRequest request, parse_translated(plain->body, kind, vocab_size, std::move(plain->names),
                                                         std::move(plain->ignored_fields)));
    request.custom_tools = std::move(plain->custom_tools);
    return request;
}

Result<GenerateRequest> parse_generate_request(std::string_view body, ApiKind kind, uint32_t vocab_size) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    return parse_generate_root(document.root(), kind, vocab_size);
}

}  // namespace lorad::proto
