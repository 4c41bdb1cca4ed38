#include "server/http/call_grammar.h"

#include "proto/base/format.h"
#include "proto/json.h"
#include "proto/schema.h"

namespace lorad::server {
namespace {

using model::ToolFormat;

// How a format writes calls; terms of a grammar in Lark's form.
struct Form {
    std::string_view mark_text;  // opens calls
    std::string mark, end;       // as terms; the end is empty where nothing closes them
    bool mark_is_token = false;  // special, so that no text holds it
    bool is_list = false;        // [call, call] behind one mark
    std::string_view arguments_key = "arguments";
};

// A special token is no text: it is named by its number.
std::optional<TokenId> special_token(const TextCodec& text, std::string_view mark) {
    Result<std::vector<TokenId>> ids = text.encode(mark, false);
    if (!ids.ok() || ids->size() != 1) return std::nullopt;
    Result<std::string> shown = text.decode(*ids, true);
    return shown.ok() && shown->empty() ? std::optional(ids->front()) : std::nullopt;
}

std::string term_of(const TextCodec& text, std::string_view mark) {
    std::optional<TokenId> token = special_token(text, mark);
    return token ? format("<[{}]>", *token) : json_quote(mark);
}

Form form_of(ToolFormat format, const TextCodec& text) {
    Form form;
    std::string_view end;
    switch (format) {
        case ToolFormat::kLlama3:
            form.mark_text = "<|python_tag|>";
            form.arguments_key = "parameters";
            break;
        case ToolFormat::kMistral:
            form.mark_text = "[TOOL_CALLS]";
            form.is_list = true;
            break;
        case ToolFormat::kPhi:
            form.mark_text = "<|tool_call|>";
            end = "<|/tool_call|>";
            form.is_list = true;
            break;
        case ToolFormat::kHermes:
        case ToolFormat::kList:
        case ToolFormat::kArguments:
            form.mark_text = "<tool_call>";
            end = "</tool_call>";
            break;
    }
    form.mark = term_of(text, form.mark_text);
    form.mark_is_token = form.mark.starts_with('<');
    if (!end.empty()) form.end = term_of(text, end);
    return form;
}

// call: one of the functions, by its name, with its arguments; next: the same behind another one, in one piece with what
// separates them, which the compiler would take for the beginning of a text otherwise.
std::string call_rules(const proto::GenerateRequest& request, const Form& form) {
    std::string calls, nexts, rules;
    const std::string_view separator = form.arguments_key == "parameters" ? "; " : "\n";
    for (size_t i = 0; i < request.tools.size(); ++i) {
        const proto::CallableTool& tool = request.tools[i];
        const std::string head = format("{{\"name\": {}, \"{}\": ", json_quote(tool.name), form.arguments_key);
        const std::string_view or_else = i == 0 ? "" : " | ";
        calls += format("{}{} a{} \"}}\"", or_else, json_quote(head), i);
        nexts += format("{}{} a{} \"}}\"", or_else, json_quote(std::string(separator) + head), i);
        rules += format("a{}: %json {}\n", i, tool.arguments.whole(proto::kOneLineSwitches));
    }
    return format("call: {}\nnext: {}\n{}", calls, nexts, rules);
}

// What stands behind a mark.
std::string block_of(const Form& form, bool parallel) {
    if (form.is_list) return format("\"[\" call{} \"]\" {}", parallel ? " (\", \" call)*" : "", form.end);
    if (form.end.empty()) return parallel ? "call next*" : "call";
    return format("\"\\n\" call \"\\n\" {}", form.end);
}

// An object that begins as a call of one of the functions, with or without what stands between calls before it.
std::string bare_call_pattern(const proto::GenerateRequest& request) {
    constexpr std::string_view kBlank = "[ \\t\\r\\n]*";
    std::string names;
    for (const proto::CallableTool& tool : request.tools)
        names += (names.empty() ? "" : "|") + proto::escaped_pattern(json_quote(tool.name));
    return format("/[ \\t\\r\\n;,\\[\\]]*\\{{{0}(\"(type|id|function)\"{0}:{0}\"[^\"]*\"{0},{0})*"
                  "(\"name\"{0}:{0}({1})|\"(arguments|parameters)\"{0}:{0}\\{{)(?s:.*)/",
                  kBlank, names);
}

// The answer, or calls in the format's own form.
proto::Structure answer_or_calls(const proto::GenerateRequest& request, const Form& form) {
    const std::string& param = request.structure->param;
    if (form.is_list || !form.end.empty()) {
        const std::string calls = form.is_list || !request.parallel_tool_calls ? "block" : "block (\"\\n\" block)*";
        return {proto::StructureKind::kLark,
                format("start: answer | {}\nanswer: %json {}\nblock: {} {}\n{}", calls, request.structure->source, form.mark,
                       block_of(form, request.parallel_tool_calls), call_rules(request, form)),
                param};
    }
    // A call without marks is an object as the answer may be one: both begin alike, so they are one schema, of one call.
    proto::GrammarSchema schema{R"({"anyOf":[)" + request.response_schema.root, request.response_schema.definitions};
    for (const proto::CallableTool& tool : request.tools) {
        schema.root += format(
            R"(,{{"type":"object","properties":{{"name":{{"const":{}}},"{}":{}}},"required":["name","{}"],"additionalProperties":false}})",
            json_quote(tool.name), form.arguments_key, tool.arguments.root, form.arguments_key);
        const auto& definitions = tool.arguments.definitions;
        schema.definitions.insert(schema.definitions.end(), definitions.begin(), definitions.end());
    }
    schema.root += "]}";
    return {proto::StructureKind::kJsonSchema, schema.whole(proto::kAnswerSwitches), param};
}

// Any text, in which calls are those of the functions.
std::string text_with_calls(const proto::GenerateRequest& request, const Form& form) {
    const std::string mark_pattern = proto::escaped_pattern(form.mark_text);
    const std::string no_mark = form.mark_is_token ? std::string() : format(" & ~/(?s:.*){}(?s:.*)/", mark_pattern);
    std::string rules = format("TEXT: /(?s:.+)/ & ~BARE{}\nBARE: {}\n", no_mark, bare_call_pattern(request));
    if (form.mark_is_token) {
        rules += format("lead: TEXT? {}\n", form.mark);
    } else {
        rules += format("lead[lazy]: /(?s:.*){}/ & ~BARE\n", mark_pattern);
    }
    const bool parallel = request.parallel_tool_calls;
    rules += format("marked: lead {}\n", block_of(form, parallel));
    // Models leave the marks out.
    rules += parallel ? "bare: call next*\n" : "bare: call\n";
    return format("start: (marked | bare){} TEXT?\n{}{}", parallel ? "*" : "?", rules, call_rules(request, form));
}

}  // namespace

std::optional<proto::Structure> answer_structure(const proto::GenerateRequest& request, ToolFormat format,
                                                 const TextCodec& text) {
    if (request.tools.empty() || request.tools.front().arguments.root.empty()) return request.structure;
    if (request.structure && !request.is_response_format) return request.structure;
    const Form form = form_of(format, text);
    if (request.structure) return answer_or_calls(request, form);
    return proto::Structure{proto::StructureKind::kLark, text_with_calls(request, form), "tools"};
}

}  // namespace lorad::server
