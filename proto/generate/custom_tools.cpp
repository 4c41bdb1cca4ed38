#include "proto/generate/custom_tools.h"

#include <algorithm>

#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"

namespace lorad::proto {
namespace {

bool is_custom(const JsonValue& tool) {
    std::optional<JsonValue> type = tool.find("type");
    return type && is_text(*type, "custom");
}

// {"type": "custom", "custom": {"name": NAME}} or the same of a function.
Result<std::string> named_tool(const JsonValue& tool) {
    TRY_ASSIGN(JsonValue inner, tool.require(is_custom(tool) ? "custom" : "function"));
    TRY_ASSIGN(JsonValue name, inner.require("name"));
    TRY_ASSIGN(std::string_view text, name.as_string());
    return std::string(text);
}

bool has_custom_call(const JsonValue& message) {
    std::optional<JsonValue> calls = message.find("tool_calls");
    Result<std::vector<JsonValue>> list = calls ? calls->as_array() : std::vector<JsonValue>();
    return list.ok() && std::ranges::any_of(*list, is_custom);
}

bool needs_rewriting(const JsonValue& root) {
    for (const char* name : {"tools", "messages"}) {
        std::optional<JsonValue> value = root.find(name);
        if (!value || !value->is_array()) continue;
        const std::vector<JsonValue> elements = *value->as_array();
        if (std::ranges::any_of(elements, name[0] == 't' ? is_custom : has_custom_call)) return true;
    }
    std::optional<JsonValue> choice = root.find("tool_choice");
    std::optional<JsonValue> type = choice ? choice->find("type") : std::nullopt;
    return type && (is_text(*type, "custom") || is_text(*type, "allowed_tools"));
}

struct Rewriter {
    const JsonValue& root;
    PlainChat& out;
    JsonWriter writer = {};

    Status custom_tool(const JsonValue& tool) {
        static constexpr KnownField kOuterFields[] = {{"type"}, {"custom"}};
        TRY_ASSIGN(JsonValue inner, tool.require("custom"));
        TRY(check_fields(tool, kOuterFields, out.ignored_fields));
        TRY_ASSIGN(std::string name, write_custom_tool(inner, writer, out.ignored_fields));
        out.custom_tools.insert(std::move(name));
        return ok_status();
    }
    // {"type": "custom", "custom": {"name": NAME}} or the same of a function, in a choice.
    Result<std::string> chosen_tool(const JsonValue& tool) {
        static constexpr KnownField kFields[] = {{"type"}, {"custom"}, {"function"}};
        static constexpr KnownField kInnerFields[] = {{"name"}};
        TRY_ASSIGN(std::string name, named_tool(tool));
        TRY(check_fields(tool, kFields, out.ignored_fields));
        TRY(check_fields(*tool.find(is_custom(tool) ? "custom" : "function"), kInnerFields, out.ignored_fields));
        return name;
    }

    Status tools(const std::optional<ToolNames>& allowed) {
        std::optional<JsonValue> list = root.find("tools");
        if (!list) return ok_status();
        TRY_ASSIGN(std::vector<JsonValue> elements, list->as_array());
        writer.key("tools").begin_array();
        size_t n_written = 0;
        ToolNames missing = allowed.value_or(ToolNames());
        for (const JsonValue& tool : elements) {
            TRY_ASSIGN(std::string name, named_tool(tool));
            missing.erase(name);
            if (allowed && !allowed->contains(name)) continue;
            if (is_custom(tool)) {
                TRY(custom_tool(tool));
            } else {
                writer.raw(tool.dump());
            }
            if (is_custom(tool)) out.names.add(format("tools[{}].function", n_written), tool.path() + ".custom");
            out.names.add(format("tools[{}]", n_written++), tool.path());
        }
        writer.end_array();
        return missing.empty() ? ok_status()
                               : Status(no_such_tool("tool_choice.allowed_tools.tools", *missing.begin()));
    }

    // Also the tools, since a choice may leave some of them out.
    Status choice() {
        std::optional<JsonValue> choice = root.find("tool_choice");
        std::optional<JsonValue> type = choice ? choice->find("type") : std::nullopt;
        if (type && is_text(*type, "allowed_tools")) {
            static constexpr KnownField kFields[] = {{"type"}, {"allowed_tools"}};
            static constexpr KnownField kAmongFields[] = {{"mode"}, {"tools"}};
            TRY_ASSIGN(JsonValue among, choice->require("allowed_tools"));
            TRY(check_fields(*choice, kFields, out.ignored_fields));
            if (!among.is_object()) return among.error(format("expected an object, found {}", among.describe()));
            TRY(check_fields(among, kAmongFields, out.ignored_fields));
            TRY_ASSIGN(JsonValue mode, among.require("mode"));
            if (!is_text(mode, "auto") && !is_text(mode, "required"))
                return mode.error(format("expected \"auto\" or \"required\", found {}", mode.describe()));
            TRY_ASSIGN(JsonValue list, among.require("tools"));
            TRY_ASSIGN(std::vector<JsonValue> elements, list.as_array());
            ToolNames allowed;
            for (const JsonValue& element : elements) {
                TRY_ASSIGN(std::string name, chosen_tool(element));
                allowed.insert(std::move(name));
            }
            writer.key("tool_choice").raw(mode.dump());
            return tools(allowed);
        }
        if (type && is_text(*type, "custom")) {
            TRY_ASSIGN(std::string name, chosen_tool(*choice));
            out.names.add("tool_choice.function", "tool_choice.custom");
            writer.key("tool_choice").begin_object().field("type", "function").key("function");
            writer.begin_object().field("name", name).end_object().end_object();
        } else if (choice) {
            writer.key("tool_choice").raw(choice->dump());
        }
        return tools(std::nullopt);
    }

    // `path`: of the call in the chat that is written.
    Status call(const JsonValue& call, const std::string& path) {
        if (!is_custom(call)) {
            writer.raw(call.dump());
            return ok_status();
        }
        TRY_ASSIGN(std::string name, named_tool(call));
        const JsonValue custom = *call.find("custom");
        list_unknown_fields(custom, {"name", "input"}, out.ignored_fields);
        out.names.add(path + ".function", custom.path());
        out.names.add(path + ".function.arguments", custom.path() + ".input");
        TRY_ASSIGN(JsonValue input, custom.require("input"));
        TRY_ASSIGN(std::string_view text, input.as_string());
        writer.begin_object();
        for (const JsonMember& member : *call.as_object()) {
            if (member.key != "type" && member.key != "custom") writer.key(member.key).raw(member.value.dump());
        }
        writer.field("type", "function").key("function").begin_object().field("name", name);
        writer.field("arguments", custom_tool_arguments(text)).end_object().end_object();
        return ok_status();
    }

    Status messages() {
        TRY_ASSIGN(JsonValue list, root.require("messages"));
        TRY_ASSIGN(std::vector<JsonValue> elements, list.as_array());
        writer.key("messages").begin_array();
        for (const JsonValue& message : elements) {
            if (!has_custom_call(message)) {
                writer.raw(message.dump());
                continue;
            }
            writer.begin_object();
            for (const JsonMember& member : *message.as_object()) {
                writer.key(member.key);
                if (member.key != "tool_calls") {
                    writer.raw(member.value.dump());
                    continue;
                }
                writer.begin_array();
                for (const JsonValue& one : *member.value.as_array()) TRY(call(one, one.path()));
                writer.end_array();
            }
            writer.end_object();
        }
        writer.end_array();
        return ok_status();
    }
};

}  // namespace

Error no_such_tool(std::string_view param, std::string_view name) {
    return make_error(ErrorCode::kInvalidRequest, format("{}: no tool is called {}", param, json_quote_short(name)),
                      std::string(param));
}

Result<std::string> write_custom_tool(const JsonValue& tool, JsonWriter& writer, std::vector<std::string>& ignored) {
    static constexpr KnownField kFields[] = {{"type"}, {"name"}, {"description"}, {"format"}};
    static constexpr KnownField kFormatFields[] = {{"type"}};
    if (!tool.is_object()) return tool.error(format("expected an object, found {}", tool.describe()));
    TRY(check_fields(tool, kFields, ignored));
    TRY_ASSIGN(JsonValue name, tool.require("name"));
    TRY_ASSIGN(std::string_view text, name.as_string());
    if (std::optional<JsonValue> form = tool.find("format")) {
        std::optional<JsonValue> kind = form->find("type");
        if (!kind || !is_text(*kind, "text"))
            return unsupported_field(form->path(), "a custom tool's input is a text without a grammar here");
        TRY(check_fields(*form, kFormatFields, ignored));
    }
    TRY_ASSIGN(std::string_view description, tool.string_or("description", ""));
    writer.begin_object().field("type", "function").key("function").begin_object().field("name", text);
    if (!description.empty()) writer.field("description", description);
    writer.key("parameters").raw(kCustomToolSchema).end_object().end_object();
    return std::string(text);
}

std::string custom_tool_arguments(std::string_view input) {
    JsonWriter writer;
    return writer.begin_object().field("input", input).end_object().take();
}

namespace {

std::optional<std::string> whole_input(const std::string& arguments) {
    Result<JsonDocument> document = parse_json(arguments);
    std::optional<JsonValue> input = document.ok() ? document->root().find("input") : std::nullopt;
    return input && input->is_string() ? std::optional<std::string>(*input->as_string()) : std::nullopt;
}

// Reads the text so far from arguments that were cut off, without an incomplete escape or character at the end.
std::optional<std::string> begun_input(std::string_view arguments) {
    constexpr size_t kEscapeBytesMax = 12;  // two halves of a character
    constexpr std::string_view kBegin = R"({"input":")";
    std::string bare;
    for (char byte : arguments.substr(0, kBegin.size() * 2)) {
        if (byte != ' ' && byte != '\n') bare += byte;
    }
    if (kBegin.starts_with(bare)) return std::string();
    for (size_t n = 0; n <= std::min(kEscapeBytesMax, arguments.size()); ++n) {
        std::string ended(arguments.substr(0, arguments.size() - n));
        if (std::optional<std::string> input = whole_input(ended + "\"}")) return input;
    }
    return std::nullopt;
}

}  // namespace

std::string custom_tool_input(const std::string& arguments) {
    if (std::optional<std::string> input = whole_input(arguments)) return std::move(*input);
    return begun_input(arguments).value_or(arguments);
}

Result<std::optional<PlainChat>> plain_chat(const JsonValue& root) {
    if (!needs_rewriting(root)) return std::optional<PlainChat>();
    PlainChat out;
    Rewriter rewriter{root, out};
    rewriter.writer.begin_object();
    TRY_ASSIGN(std::vector<JsonMember> members, root.as_object());
    for (const JsonMember& member : members) {
        if (member.key == "tools" || member.key == "tool_choice" || member.key == "messages") continue;
        rewriter.writer.key(member.key).raw(member.value.dump());
    }
    TRY(rewriter.choice());
    TRY(rewriter.messages());
    out.body = rewriter.writer.end_object().take();
    return std::optional(std::move(out));
}

void CustomCalls::apply(ChoicePart& part) {
    if (custom_tools_.empty()) return;
    std::optional<ToolCallPart>& open = open_[part.index];
    std::vector<ToolCallPart> calls;
    const auto finish = [&] {
        if (!open) return;
        open->arguments = custom_tool_input(open->arguments);
        calls.push_back(std::move(*open));
        open.reset();
    };
    for (ToolCallPart& call : part.tool_calls) {
        if (open && call.index == open->index) {
            open->arguments += call.arguments;
            continue;
        }
        finish();
        call.is_custom = !call.name.empty() && custom_tools_.contains(call.name);
        if (call.is_custom) {
            open = std::move(call);
        } else {
            calls.push_back(std::move(call));
        }
    }
    if (!part.finish_reason.empty()) finish();
    part.tool_calls = std::move(calls);
}

}  // namespace lorad::proto
