#include "proto/base/format.h"
#include "proto/generate/chat_translation.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"
#include "proto/messages/messages_request.h"

namespace lorad::proto {

// proto/messages/messages_content_parse.cpp
Status translate_messages(const JsonValue& list, ChatMessages& messages);

namespace {

struct Translator {
    const JsonValue& root;
    JsonWriter& chat;
    FieldNames& names;  // from the chat's fields to this body's
    std::vector<std::string>& ignored;
    std::set<std::string, std::less<>>& eager_tools;

    Status messages() {
        ChatMessages list(names);
        if (std::optional<JsonValue> system = root.find("system")) {
            TRY_ASSIGN(std::string text, text_of_parts(*system, {"text"}));
            list.list_unknown_parts(system, {"type", "text", "cache_control", "citations"});
            list.add("system", text, "system", "system");
        }
        TRY_ASSIGN(JsonValue given, root.require("messages"));
        TRY(translate_messages(given, list));
        // An answer that the client has begun is gone on with.
        bool continues = list.ends_with_assistant_text();
        chat.field("add_generation_prompt", !continues);
        chat.field("continue_final_message", continues);
        names.add("continue_final_message", "messages");
        for (const std::string& field : list.ignored()) list_field(field, ignored);
        chat.key("messages").raw(list.take());
        return ok_status();
    }

    Status tools() {
        static constexpr KnownField kFields[] = {{"name"},
                                                 {"description"},
                                                 {"input_schema"},
                                                 {"type"},
                                                 {"strict"},
                                                 {"input_examples"},
                                                 {"cache_control", false, Neutral::kAny},
                                                 {"eager_input_streaming"},
                                                 {"defer_loading", false, Neutral::kFalse},
                                                 {"allowed_callers", false}};
        std::optional<JsonValue> list = root.find("tools");
        if (!list) return ok_status();
        TRY_ASSIGN(std::vector<JsonValue> elements, list->as_array());
        chat.key("tools").begin_array();
        for (size_t i = 0; i < elements.size(); ++i) {
            const JsonValue& element = elements[i];
            std::optional<JsonValue> type = element.find("type");
            if (type && !is_text(*type, "custom")) {
                return unsupported_field(type->path(), "this server has no tools of its own, only those of the client");
            }
            TRY(element.require("input_schema"));
            TRY(check_fields(element, kFields, ignored));
            TRY_ASSIGN(std::vector<JsonMember> fields, element.as_object());
            std::erase_if(fields, [](const JsonMember& field) {
                return field.key == "cache_control" || field.key == "eager_input_streaming";
            });
            TRY_ASSIGN(const bool is_eager, element.bool_or("eager_input_streaming", false));
            TRY_ASSIGN(std::string_view name, element.string_or("name", ""));
            if (is_eager) eager_tools.emplace(name);
            write_chat_tool(chat, fields, "input_schema");
            names.add(format("tools[{}].function", i), element.path());
            names.add(format("tools[{}].function.parameters", i), element.path() + ".input_schema");
        }
        chat.end_array();
        return ok_status();
    }

    Status tool_choice() {
        static constexpr KnownField kFields[] = {{"type"}, {"name"}, {"disable_parallel_tool_use"}};
        std::optional<JsonValue> choice = root.find("tool_choice");
        TRY_ASSIGN(const bool may_be_more, root.bool_or("parallel_tool_calls", true));
        if (!choice) {
            chat.field("parallel_tool_calls", may_be_more);
            return ok_status();
        }
        TRY_ASSIGN(JsonValue type, choice->require("type"));
        TRY(check_fields(*choice, kFields, ignored));
        TRY_ASSIGN(std::string_view kind, type.as_string());
        chat.key("tool_choice");
        if (kind == "auto" || kind == "none") {
            chat.value(kind);
        } else if (kind == "any") {
            chat.value("required");
        } else if (kind == "tool") {
            TRY_ASSIGN(JsonValue name, choice->require("name"));
            TRY_ASSIGN(std::string_view text, name.as_string());
            names.add("tool_choice.function", "tool_choice");
            chat.begin_object().field("type", "function").key("function");
            chat.begin_object().field("name", text).end_object().end_object();
        } else {
            return type.error(format("expected \"auto\", \"any\", \"tool\" or \"none\", found {}", type.describe()));
        }
        TRY_ASSIGN(bool one, choice->bool_or("disable_parallel_tool_use", false));
        chat.field("parallel_tool_calls", may_be_more && !one);
        return ok_status();
    }

    // Models think as their template has it; what is decided here is whether the answer shows it.
    Status thinking() {
        std::optional<JsonValue> thinking = root.find("thinking");
        if (!thinking) return ok_status();
        TRY_ASSIGN(JsonValue type, thinking->require("type"));
        std::optional<JsonValue> display = thinking->find("display");
        // A budget is a hint: how long it thinks is left to the model.
        static constexpr KnownField kFields[] = {
            {"type"}, {"display"}, {"budget_tokens", false, Neutral::kNone, Neutral::kAny}};
        TRY(check_fields(*thinking, kFields, ignored));
        const bool thinks = is_text(type, "adaptive") || is_text(type, "enabled");
        if (!thinks && !is_text(type, "disabled")) {
            return type.error(format("expected \"adaptive\", \"enabled\" or \"disabled\", found {}", type.describe()));
        }
        const bool is_omitted = display && is_text(*display, "omitted");
        if (display && !is_omitted && !is_text(*display, "summarized"))
            return display->error(format("expected \"summarized\" or \"omitted\", found {}", display->describe()));
        // Nothing is summarised here: thoughts are shown in full.
        if (display && !is_omitted) list_field(display->path(), ignored);
        const bool shown = thinks && !is_omitted;
        if (!root.find("include_reasoning")) chat.field("include_reasoning", shown);
        return ok_status();
    }

    Status output_config() {
        std::optional<JsonValue> config = root.find("output_config");
        if (!config) return ok_status();
        static constexpr KnownField kFields[] = {{"format"}, {"effort", false, Neutral::kNone, Neutral::kAny}};
        TRY(check_fields(*config, kFields, ignored));
        std::optional<JsonValue> wanted = config->find("format");
        if (!wanted) return ok_status();
        TRY_ASSIGN(JsonValue type, wanted->require("type"));
        if (!is_text(type, "json_schema"))
            return type.error(format("expected \"json_schema\", found {}", type.describe()));
        static constexpr KnownField kFormatFields[] = {{"type"}, {"schema"}, {"name"}};
        TRY(check_fields(*wanted, kFormatFields, ignored));
        TRY_ASSIGN(JsonValue schema, wanted->require("schema"));
        names.add("response_format", "output_config.format");
        names.add("response_format.json_schema", "output_config.format");
        chat.key("response_format").begin_object().field("type", "json_schema");
        chat.key("json_schema").begin_object().field("name", "output");
        chat.key("schema").raw(schema.dump()).end_object().end_object();
        return ok_status();
    }

    Status metadata() {
        std::optional<JsonValue> metadata = root.find("metadata");
        std::optional<JsonValue> user = root.find("user");
        if (metadata) {
            static constexpr KnownField kFields[] = {{"user_id"}};
            TRY(check_fields(*metadata, kFields, ignored));
            if (std::optional<JsonValue> id = metadata->find("user_id")) {
                if (user && user->dump() != id->dump())
                    return user->error("metadata.user_id is given, too: use one of them");
                names.add("user", "metadata.user_id");
                user = id;
            }
        }
        if (user) chat.key("user").raw(user->dump());
        return ok_status();
    }
};

Status translate(MessagesUse use, Translator translator) {
    const auto& [root, chat, names, ignored, eager_tools] = translator;
    TRY(check_request_fields(root, Endpoint::kMessages, ignored));
    if (use == MessagesUse::kGenerate) TRY(root.require("max_tokens"));
    chat.begin_object();
    copy_fields(root, fields_as_in_chats(Endpoint::kMessages), chat);
    if (std::optional<JsonValue> stop = root.find("stop_sequences")) {
        TRY(stop->as_array());
        names.add("stop", "stop_sequences");
        chat.key("stop").raw(stop->dump());
    }
    TRY(translator.messages());
    TRY(translator.tools());
    TRY(translator.tool_choice());
    TRY(translator.thinking());
    TRY(translator.output_config());
    TRY(translator.metadata());
    chat.end_object();
    return ok_status();
}

}  // namespace

Result<GenerateRequest> parse_messages_request(std::string_view body, MessagesUse use, uint32_t vocab_size) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    if (!root.is_object()) return root.error(format("expected an object, found {}", root.describe()));
    FieldNames names;
    std::vector<std::string> ignored;
    JsonWriter chat;
    std::set<std::string, std::less<>> eager_tools;
    TRY(translate(use, {root, chat, names, ignored, eager_tools}));
    TRY_ASSIGN(GenerateRequest request,
               parse_translated(chat.take(), ApiKind::kChat, vocab_size, std::move(names), std::move(ignored)));
    request.eager_tools = std::move(eager_tools);
    // Clients must say a number and say what their model may write at most, whatever is left of its context.
    request.n_tokens_max_is_cut = true;
    return request;
}

}  // namespace lorad::proto
