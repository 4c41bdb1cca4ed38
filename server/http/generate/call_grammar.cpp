#include "server/http/generate/call_grammar.h"

#include <vector>

#include "model/text/literal_call.h"
#include "proto/base/format.h"
#include "proto/json/json.h"
#include "proto/schema/schema.h"
#include "server/http/generate/argument_grammar.h"
#include "server/http/generate/harmony_grammar.h"

namespace lorad::server {
namespace {

using model::ToolFormat;

// A format's way of writing calls, as terms of a Lark grammar.
struct Form {
    ToolFormat format = ToolFormat::kHermes;
    std::string_view mark_text;  // opens calls; empty: nothing does
    std::string mark, end;       // as terms; `end` is empty if nothing closes calls
    bool mark_is_token = false;  // special, so that no text holds it
    bool is_list = false;        // [call, call] behind one mark
    std::string_view arguments_key = "arguments";
    std::string_view before_call = "\n", after_call = "\n";  // within marks that close
    bool is_json = true;                                     // else calls are as ArgumentGrammar has them
};

bool is_special(const TextCodec& text, std::string_view mark) { return mark_term(text, mark).starts_with('<'); }

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
        case ToolFormat::kQwenXml:
            form.mark_text = "<tool_call>";
            end = "</tool_call>";
            form.is_json = false;
            break;
        case ToolFormat::kGemma4:
            form.mark_text = "<|tool_call>";
            end = "<tool_call|>";
            form.before_call = form.after_call = "";
            form.is_json = false;
            break;
        case ToolFormat::kFunctionGemma:
            form.mark_text = "<start_function_call>";
            end = "<end_function_call>";
            form.before_call = form.after_call = "";
            form.is_json = false;
            break;
        case ToolFormat::kPython:
            // Models without such tokens write the list alone.
            if (is_special(text, "<|tool_call_start|>")) {
                form.mark_text = "<|tool_call_start|>";
                end = "<|tool_call_end|>";
            } else if (is_special(text, "<|python_start|>")) {
                form.mark_text = "<|python_start|>";
                end = "<|python_end|>";
            }
            form.is_list = true;
            form.is_json = false;
            break;
        case ToolFormat::kHarmony:
        case ToolFormat::kHermes:
        case ToolFormat::kList:
        case ToolFormat::kArguments:
            form.mark_text = "<tool_call>";
            end = "</tool_call>";
            break;
    }
    form.format = format;
    if (!form.mark_text.empty()) form.mark = mark_term(text, form.mark_text);
    form.mark_is_token = form.mark.starts_with('<');
    if (!end.empty()) form.end = mark_term(text, end);
    return form;
}

// call: one of the functions, by its name, with its arguments; next: the same behind another one, in one piece with
// what separates them, which the compiler would take for the beginning of a text otherwise.
std::string call_rules(const proto::GenerateRequest& request, const Form& form, const TextCodec& text) {
    std::string calls, nexts, rules;
    if (!form.is_json) {
        const std::string_view quote =
            form.format == ToolFormat::kFunctionGemma ? model::kFunctionGemmaStyle.quote : model::kGemma4Style.quote;
        ArgumentGrammar arguments(form.format, mark_term(text, quote), quote);
        for (const proto::CallableTool& tool : request.tools) {
            const std::string_view or_else = calls.empty() ? "" : " | ";
            calls.append(or_else).append(arguments.call_of(tool));
            // A bracket by itself would be taken for the beginning of a text.
            if (form.is_list) nexts.append(or_else).append(arguments.call_of(tool, "["));
        }
        return format("call: {}\n{}{}", calls, form.is_list ? "opened: " + nexts + "\n" : std::string(),
                      arguments.rules());
    }
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

// The rule for the text behind a mark.
std::string block_of(const Form& form, bool parallel) {
    if (form.is_list && !form.is_json) return format("opened{} \"]\" {}", parallel ? " (\", \" call)*" : "", form.end);
    if (form.is_list) return format("\"[\" call{} \"]\" {}", parallel ? " (\", \" call)*" : "", form.end);
    if (form.end.empty()) return parallel ? "call next*" : "call";
    if (form.before_call.empty()) return "call " + form.end;
    return format("{} call {} {}", json_quote(form.before_call), json_quote(form.after_call), form.end);
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
proto::Structure answer_or_calls(const proto::GenerateRequest& request, const Form& form, const TextCodec& text) {
    const std::string& param = request.structure->param;
    if (form.is_list || !form.end.empty()) {
        const std::string calls = form.is_list || !request.parallel_tool_calls ? "block" : "block (\"\\n\" block)*";
        return {proto::StructureKind::kLark,
                format("start: answer | {}\nanswer: %json {}\nblock: {} {}\n{}", calls, request.structure->source,
                       form.mark, block_of(form, request.parallel_tool_calls), call_rules(request, form, text)),
                param};
    }
    // A call without marks is an object as the answer may be one: both begin alike, so they are one schema, of one
    // call.
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

// The same where calls are not JSON: the text holds nothing that is read as a call.
std::string text_with_own_calls(const proto::GenerateRequest& request, const Form& form, const TextCodec& text) {
    std::vector<std::string> opening;
    if (!form.mark_text.empty() && !form.mark_is_token) opening.push_back(proto::escaped_pattern(form.mark_text));
    std::string names;
    for (const proto::CallableTool& tool : request.tools)
        names += (names.empty() ? "" : "|") + proto::escaped_pattern(tool.name);
    if (form.format == ToolFormat::kQwenXml) opening.push_back(format("<function=({})>", names));
    if (form.format == ToolFormat::kPython) {
        for (std::string_view fence : {"```tool_code", "```tool_call", "```json", "<tool_call>"})
            opening.push_back(proto::escaped_pattern(fence));
    }
    std::string excluded;
    for (const std::string& pattern : opening) excluded += format(" & ~/(?s:.*){}(?s:.*)/", pattern);
    if (form.format == ToolFormat::kPython)
        excluded += format(" & ~/[ \\t\\r\\n]*\\[[ \\t\\r\\n]*({})(?s:.*)/ & ~BARE", names);
    std::string rules = format("TEXT: /(?s:.+)/{}\n", excluded);
    if (form.format == ToolFormat::kPython) rules += format("BARE: {}\n", bare_call_pattern(request));
    const std::string block = format("{} {}", form.mark, block_of(form, request.parallel_tool_calls));
    if (form.mark_text.empty())
        return format("start: TEXT | block\nblock: {}\n{}{}", block, rules, call_rules(request, form, text));
    // The mark of a call ends the text before it.
    if (form.mark_is_token) {
        rules += format("block: TEXT? {}\n", block);
    } else {
        std::string unmarked;
        for (size_t i = 1; i < opening.size(); ++i) unmarked += format(" & ~/(?s:.*){}(?s:.*)/", opening[i]);
        rules += format("lead[lazy]: /(?s:.*){}/{}\nblock: lead {}\n", opening.front(), unmarked,
                        block_of(form, request.parallel_tool_calls));
    }
    return format("start: block{} TEXT?\n{}{}", request.parallel_tool_calls ? "*" : "?", rules,
                  call_rules(request, form, text));
}

// Any text, in which calls are those of the functions.
std::string text_with_calls(const proto::GenerateRequest& request, const Form& form, const TextCodec& text) {
    if (!form.is_json) return text_with_own_calls(request, form, text);
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
    return format("start: (marked | bare){} TEXT?\n{}{}", parallel ? "*" : "?", rules, call_rules(request, form, text));
}

// A grammar of calls only: at least one.
proto::Structure calls_alone(const proto::GenerateRequest& request, const Form& form, const TextCodec& text) {
    const bool parallel = request.parallel_tool_calls && request.tool_choice == proto::ToolChoice::kRequired;
    const std::string blocks =
        form.is_list || !parallel ? "block" : format("block ({} block)*", form.before_call.empty() ? "" : "\"\\n\"");
    return {proto::StructureKind::kLark,
            format("start: {}\nblock: {} {}\n{}", blocks, form.mark, block_of(form, parallel),
                   call_rules(request, form, text)),
            request.structure->param};
}

}  // namespace

std::optional<proto::Structure> answer_structure(const proto::GenerateRequest& request, ToolFormat format,
                                                 const TextCodec& text) {
    if (format == ToolFormat::kHarmony) return harmony_structure(request, text);
    const bool is_forced =
        request.tool_choice == proto::ToolChoice::kRequired || request.tool_choice == proto::ToolChoice::kNamed;
    if (request.tools.empty() || request.tools.front().arguments.root.empty()) return request.structure;
    if (is_forced && model::forces_own_form(format)) return calls_alone(request, form_of(format, text), text);
    if (request.structure && !request.is_response_format) return request.structure;
    const Form form = form_of(format, text);
    if (request.structure) return answer_or_calls(request, form, text);
    return proto::Structure{proto::StructureKind::kLark, text_with_calls(request, form, text), "tools"};
}

}  // namespace lorad::server
