#include <algorithm>

#include "proto/base/format.h"
#include "proto/generate/custom_tools.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"
#include "proto/responses/responses_parts.h"
#include "proto/responses/responses_request.h"

namespace lorad::proto {

namespace {

Status check_known(const JsonValue& root, std::vector<std::string>& ignored) {
    TRY(check_request_fields(root, Endpoint::kResponses, ignored));
    if (std::optional<JsonValue> reasoning = root.find("reasoning")) {
        static constexpr KnownField kReasoning[] = {{"effort", false, Neutral::kNone, Neutral::kAny},
                                                    {"summary", false, Neutral::kNone, Neutral::kAny},
                                                    {"generate_summary", false, Neutral::kNone, Neutral::kAny},
                                                    {"context", false}};
        TRY(check_fields(*reasoning, kReasoning, ignored));
    }
    if (std::optional<JsonValue> options = root.find("stream_options")) {
        static constexpr KnownField kOptions[] = {{"include_obfuscation", false, Neutral::kFalse}};
        TRY(check_fields(*options, kOptions, ignored));
    }
    return ok_status();
}

// More of what the answer has anyway, or of what it cannot have: clients ask for it with every request.
bool is_include_hint(const JsonValue& element) {
    for (std::string_view name : {"reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
                                  "web_search_call.action.sources", "message.input_image.image_url",
                                  "computer_call_output.output.image_url", "code_interpreter_call.outputs"}) {
        if (is_text(element, name)) return true;
    }
    return false;
}

struct ResponsesTranslator {
    const JsonValue& root;
    JsonWriter& chat;
    ResponsesRequest& out;
    FieldNames& names;  // from the chat's fields to this body's
    std::vector<std::string>& ignored;
    const ResponsesMemory* memory;

    // Reads whether to keep the response, and the kept one that it continues.
    Status stored() {
        TRY_ASSIGN(out.store, root.bool_or("store", memory != nullptr));
        TRY_ASSIGN(std::string_view id, root.string_or("previous_response_id", ""));
        if (memory == nullptr) {
            if (out.store)
                return unsupported_field("store", "this server keeps no responses (--response-store is off)");
            if (!id.empty())
                return unsupported_field("previous_response_id",
                                         "this server keeps no responses (--response-store is off)");
            return ok_status();
        }
        if (id.empty()) return ok_status();
        std::shared_ptr<const StoredResponse> earlier = memory->response(id);
        if (earlier == nullptr) {
            return make_error(
                ErrorCode::kInvalidRequest,
                format("previous_response_id: no response is called {}, or it is no longer kept", json_quote_short(id)),
                "previous_response_id");
        }
        out.previous_response_id = std::string(id);
        out.earlier = earlier->items;
        return ok_status();
    }

    // Tools whose name is in `allowed`, or all.
    Status tools(const std::vector<std::string>* allowed) {
        std::optional<JsonValue> list = root.find("tools");
        if (!list) return ok_status();
        TRY_ASSIGN(std::vector<JsonValue> elements, list->as_array());
        out.tools_json = list->dump();
        size_t n_written = 0;
        std::vector<std::string> missing = allowed != nullptr ? *allowed : std::vector<std::string>();
        chat.key("tools").begin_array();
        for (const JsonValue& element : elements) {
            TRY_ASSIGN(JsonValue type, element.require("type"));
            TRY_ASSIGN(std::string_view kind, type.as_string());
            if (kind != "function" && kind != "custom") {
                return unsupported_field(type.path(),
                                         "this server has no tools of its own, only \"function\" and \"custom\"");
            }
            TRY_ASSIGN(JsonValue name, element.require("name"));
            TRY_ASSIGN(std::string_view text, name.as_string());
            std::erase(missing, text);
            if (allowed != nullptr && std::find(allowed->begin(), allowed->end(), text) == allowed->end()) continue;
            if (kind == "custom") {
                TRY(write_custom_tool(element, chat, ignored));
                out.custom_tools.emplace(text);
            } else {
                TRY_ASSIGN(std::vector<JsonMember> fields, element.as_object());
                write_chat_tool(chat, fields, "parameters");
            }
            names.add(format("tools[{}].function", n_written), element.path());
            names.add(format("tools[{}]", n_written++), element.path());
        }
        chat.end_array();
        return missing.empty() ? ok_status() : Status(no_such_tool("tool_choice.tools", missing.front()));
    }

    // Also the tools, since a choice may leave some of them out.
    Status tool_choice() {
        std::optional<JsonValue> choice = root.find("tool_choice");
        if (!choice) return tools(nullptr);
        out.tool_choice_json = choice->dump();
        if (!choice->is_object()) {
            chat.key("tool_choice").raw(choice->dump());
            return tools(nullptr);
        }
        TRY_ASSIGN(JsonValue type, choice->require("type"));
        TRY_ASSIGN(std::string_view kind, type.as_string());
        static constexpr KnownField kNamedFields[] = {{"type"}, {"name"}};
        if (kind == "function" || kind == "custom") {
            TRY_ASSIGN(JsonValue name, choice->require("name"));
            TRY_ASSIGN(std::string_view text, name.as_string());
            TRY(check_fields(*choice, kNamedFields, ignored));
            names.add("tool_choice.function", "tool_choice");
            chat.key("tool_choice").begin_object().field("type", "function");
            chat.key("function").begin_object().field("name", text).end_object().end_object();
            return tools(nullptr);
        }
        if (kind != "allowed_tools") {
            return unsupported_field(type.path(),
                                     format("this server has no tools of its own, found {}", type.describe()));
        }
        static constexpr KnownField kAllowedFields[] = {{"type"}, {"mode"}, {"tools"}};
        TRY(check_fields(*choice, kAllowedFields, ignored));
        TRY_ASSIGN(JsonValue mode, choice->require("mode"));
        TRY_ASSIGN(std::string_view mode_text, mode.as_string());
        if (mode_text != "auto" && mode_text != "required")
            return mode.error(format("expected \"auto\" or \"required\", found {}", mode.describe()));
        TRY_ASSIGN(JsonValue list, choice->require("tools"));
        TRY_ASSIGN(std::vector<JsonValue> elements, list.as_array());
        std::vector<std::string> allowed;
        for (const JsonValue& element : elements) {
            TRY_ASSIGN(JsonValue name, element.require("name"));
            TRY_ASSIGN(std::string_view text, name.as_string());
            TRY(check_fields(element, kNamedFields, ignored));
            allowed.emplace_back(text);
        }
        chat.field("tool_choice", mode_text);
        return tools(&allowed);
    }

    Status text_format() {
        std::optional<JsonValue> text = root.find("text");
        if (!text) return ok_status();
        static constexpr KnownField kFields[] = {{"format"}, {"verbosity", false, Neutral::kMedium, Neutral::kAny}};
        TRY(check_fields(*text, kFields, ignored));
        std::optional<JsonValue> wanted = text->find("format");
        if (!wanted) return ok_status();
        TRY_ASSIGN(JsonValue type, wanted->require("type"));
        out.format_json = wanted->dump();
        names.add("response_format", "text.format");
        names.add("response_format.json_schema", "text.format");
        chat.key("response_format");
        if (!is_text(type, "json_schema")) {
            chat.raw(out.format_json);
            return ok_status();
        }
        TRY_ASSIGN(std::vector<JsonMember> members, wanted->as_object());
        chat.begin_object().field("type", "json_schema").key("json_schema").begin_object();
        for (const JsonMember& member : members) {
            if (member.key != "type") chat.key(member.key).raw(member.value.dump());
        }
        chat.end_object().end_object();
        return ok_status();
    }

    Status include() {
        std::optional<JsonValue> list = root.find("include");
        if (list) {
            TRY_ASSIGN(std::vector<JsonValue> elements, list->as_array());
            for (const JsonValue& element : elements) {
                if (is_text(element, "message.output_text.logprobs")) {
                    out.with_logprobs = true;
                } else if (is_include_hint(element)) {
                    list_field(element.path(), ignored);
                } else {
                    return unsupported_field(element.path(),
                                             format("this server does not have {}", element.describe()));
                }
            }
        }
        TRY_ASSIGN(int64_t n_top, root.int_or("top_logprobs", 0, 0, 20));
        out.with_logprobs = out.with_logprobs || n_top > 0;
        if (!out.with_logprobs) return ok_status();
        chat.field("logprobs", true).field("top_logprobs", n_top);
        names.add("logprobs", "include");
        return ok_status();
    }

    Status messages() {
        ChatMessages list(names);
        if (std::optional<JsonValue> instructions = root.find("instructions")) {
            TRY_ASSIGN(std::string_view text, instructions->as_string());
            out.instructions_json = instructions->dump();
            list.add("system", text, "instructions", "instructions");
        }
        TRY(stored());
        // The first part of a conversation may be all of it.
        TRY(translate_conversation(out.earlier, list));
        std::optional<JsonValue> input = root.find("input");
        if (!input && out.earlier.empty()) return root.require("input").error();
        if (input) TRY(translate_input(*input, list, {memory, &out.own_input, bytes_of(out.earlier)}));
        for (const std::string& field : list.ignored()) list_field(field, ignored);
        names.add("messages", "input");
        chat.key("messages").raw(list.take());
        return ok_status();
    }
};

Status translate(ResponsesTranslator translator) {
    const auto& [root, chat, out, names, ignored, memory] = translator;
    chat.begin_object();
    copy_fields(root, fields_as_in_chats(Endpoint::kResponses), chat);
    names.add("max_tokens", "max_output_tokens");
    if (std::optional<JsonValue> n_max = root.find("max_output_tokens")) chat.key("max_tokens").raw(n_max->dump());
    TRY(translator.messages());
    TRY(translator.tool_choice());
    TRY(translator.text_format());
    TRY(translator.include());
    if (std::optional<JsonValue> metadata = root.find("metadata")) {
        if (!metadata->is_object())
            return metadata->error(format("expected an object, found {}", metadata->describe()));
        out.metadata_json = metadata->dump();
    }
    chat.end_object();
    return ok_status();
}

}  // namespace

Result<ResponsesRequest> parse_responses_request(std::string_view body, uint32_t vocab_size,
                                                 const ResponsesMemory* memory) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    if (!root.is_object()) return root.error(format("expected an object, found {}", root.describe()));
    ResponsesRequest out;
    std::vector<std::string> ignored;
    FieldNames names;
    TRY(check_known(root, ignored));
    JsonWriter chat;
    TRY(translate({root, chat, out, names, ignored, memory}));
    TRY_ASSIGN(out.generate,
               parse_translated(chat.take(), ApiKind::kChat, vocab_size, std::move(names), std::move(ignored)));
    out.parallel_tool_calls = *root.bool_or("parallel_tool_calls", true);
    return out;
}

}  // namespace lorad::proto
