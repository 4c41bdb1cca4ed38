#include "proto/responses_request.h"

#include <algorithm>

#include "proto/base/format.h"
#include "proto/chat_translation.h"
#include "proto/generate_request_parts.h"
#include "proto/known_fields.h"

namespace lorad::proto {

// proto/responses_input_parse.cpp
Status translate_input(const JsonValue& input, ChatMessages& messages);

namespace {

std::vector<KnownField> make_responses_fields() {
    std::vector<KnownField> fields = {
        {"model"}, {"input"}, {"instructions"}, {"max_output_tokens"}, {"metadata"},
        {"parallel_tool_calls"}, {"stream"}, {"stream_options"}, {"temperature"}, {"top_p"},
        {"top_k"}, {"stop"}, {"tools"}, {"tool_choice"}, {"text"}, {"include"}, {"top_logprobs"},
        {"reasoning"}, {"user"}, {"truncation"},
        // Labels, which change no answer.
        {"safety_identifier", false, Neutral::kAny},
        {"prompt_cache_key", false, Neutral::kAny},
        {"prompt_cache_retention", false, Neutral::kAny},
        {"service_tier", false, Neutral::kAuto},
        // What clients know and lorad does not do.
        {"store", false, Neutral::kFalse},
        {"background", false, Neutral::kFalse},
        {"previous_response_id", false},
        {"conversation", false},
        {"prompt", false},
        {"max_tool_calls", false},
        {"background_options", false},
        {"context_management", false, Neutral::kEmpty},
        {"prompt_cache_options", false},
        {"moderation", false},
        {"image", false},
        {"access_programs", false},
        {"n", false, Neutral::kOne},
        {"max_tokens", false},
        {"messages", false},
        {"response_format", false},
        {"enable_response_messages", false, Neutral::kFalse},
        {"previous_input_messages", false},
        {"mm_processor_kwargs", false},
        {"use_beam_search", false, Neutral::kFalse},
    };
    for (std::string_view name : extension_fields()) fields.push_back({name});
    return fields;
}

Status check_known(const JsonValue& root, std::vector<std::string>& ignored) {
    TRY(check_fields(root, responses_fields(), ignored));
    if (std::optional<JsonValue> reasoning = root.find("reasoning")) {
        static constexpr KnownField kReasoning[] = {{"effort", false},
                                                    {"summary", false},
                                                    {"generate_summary", false},
                                                    {"context", false}};
        TRY(check_fields(*reasoning, kReasoning, ignored));
    }
    if (std::optional<JsonValue> options = root.find("stream_options")) {
        static constexpr KnownField kOptions[] = {{"include_obfuscation", false, Neutral::kFalse}};
        TRY(check_fields(*options, kOptions, ignored));
    }
    std::optional<JsonValue> truncation = root.find("truncation");
    if (truncation && !is_text(*truncation, "disabled"))
        return unsupported_field("truncation", "a conversation that is too long is refused");
    return ok_status();
}

struct ResponsesTranslator {
    const JsonValue& root;
    JsonWriter& chat;
    ResponsesRequest& out;

    // Tools whose name is in `allowed`, or all.
    Status tools(const std::vector<std::string>* allowed) {
        std::optional<JsonValue> list = root.find("tools");
        if (!list) return ok_status();
        TRY_ASSIGN(std::vector<JsonValue> elements, list->as_array());
        out.tools_json = list->dump();
        size_t n_written = 0;
        chat.key("tools").begin_array();
        for (const JsonValue& element : elements) {
            TRY_ASSIGN(JsonValue type, element.require("type"));
            TRY_ASSIGN(std::string_view kind, type.as_string());
            if (kind != "function") {
                return unsupported_field(type.path(),
                                         "this server has no tools of its own, only \"function\"");
            }
            TRY_ASSIGN(JsonValue name, element.require("name"));
            TRY_ASSIGN(std::string_view text, name.as_string());
            if (allowed != nullptr &&
                std::find(allowed->begin(), allowed->end(), text) == allowed->end())
                continue;
            TRY_ASSIGN(std::vector<JsonMember> fields, element.as_object());
            write_chat_tool(chat, fields, "parameters");
            out.names.add(format("tools[{}].function", n_written), element.path());
            out.names.add(format("tools[{}]", n_written++), element.path());
        }
        chat.end_array();
        return ok_status();
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
        if (kind == "function") {
            TRY_ASSIGN(JsonValue name, choice->require("name"));
            TRY_ASSIGN(std::string_view text, name.as_string());
            out.names.add("tool_choice.function", "tool_choice");
            chat.key("tool_choice").begin_object().field("type", "function");
            chat.key("function").begin_object().field("name", text).end_object().end_object();
            return tools(nullptr);
        }
        if (kind != "allowed_tools") {
            return unsupported_field(type.path(),
                                     format("this server has no tools of its own, found {}",
                                            type.describe()));
        }
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
            allowed.emplace_back(text);
        }
        chat.field("tool_choice", mode_text);
        return tools(&allowed);
    }

    Status text_format() {
        std::optional<JsonValue> text = root.find("text");
        if (!text) return ok_status();
        static constexpr KnownField kFields[] = {{"format"}, {"verbosity"}};
        TRY(check_fields(*text, kFields, out.generate.ignored_fields));
        std::optional<JsonValue> verbosity = text->find("verbosity");
        if (verbosity && !is_text(*verbosity, "medium"))
            return unsupported_field("text.verbosity", "the model has no such switch");
        std::optional<JsonValue> wanted = text->find("format");
        if (!wanted) return ok_status();
        TRY_ASSIGN(JsonValue type, wanted->require("type"));
        out.format_json = wanted->dump();
        out.names.add("response_format", "text.format");
        out.names.add("response_format.json_schema", "text.format");
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
                if (!is_text(element, "message.output_text.logprobs")) {
                    return unsupported_field(element.path(),
                                             format("this server does not have {}",
                                                    element.describe()));
                }
                out.with_logprobs = true;
            }
        }
        TRY_ASSIGN(int64_t n_top, root.int_or("top_logprobs", 0, 0, 20));
        out.with_logprobs = out.with_logprobs || n_top > 0;
        if (out.with_logprobs) chat.field("logprobs", true).field("top_logprobs", n_top);
        return ok_status();
    }

    Status messages() {
        ChatMessages list(out.names);
        if (std::optional<JsonValue> instructions = root.find("instructions")) {
            TRY_ASSIGN(std::string_view text, instructions->as_string());
            out.instructions_json = instructions->dump();
            list.add("system", text, "instructions");
        }
        TRY_ASSIGN(JsonValue input, root.require("input"));
        TRY(translate_input(input, list));
        add_ignored_fields({}, list.ignored(), out.generate.ignored_fields);
        out.names.add("messages", "input");
        chat.key("messages").raw(list.take());
        return ok_status();
    }
};

Status translate(const JsonValue& root, JsonWriter& chat, ResponsesRequest& out) {
    chat.begin_object();
    copy_fields(root, {"model", "stream", "temperature", "top_p", "top_k", "stop", "user",
                       "parallel_tool_calls"},
                chat);
    copy_fields(root, extension_fields(), chat);
    if (std::optional<JsonValue> n_max = root.find("max_output_tokens")) {
        out.names.add("max_tokens", "max_output_tokens");
        chat.key("max_tokens").raw(n_max->dump());
    }
    ResponsesTranslator translator{root, chat, out};
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

std::span<const KnownField> responses_fields() {
    static const std::vector<KnownField> kFields = make_responses_fields();
    return kFields;
}

Result<ResponsesRequest> parse_responses_request(std::string_view body, uint32_t vocab_size) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    if (!root.is_object())
        return root.error(format("expected an object, found {}", root.describe()));
    ResponsesRequest out;
    std::vector<std::string> ignored;
    TRY(check_known(root, ignored));
    JsonWriter chat;
    TRY(translate(root, chat, out));
    TRY_ASSIGN(JsonDocument translated, parse_json(chat.take()));
    ignored.insert(ignored.end(), out.generate.ignored_fields.begin(),
                   out.generate.ignored_fields.end());
    Result<GenerateRequest> parsed =
        parse_generate_object(translated.root(), ApiKind::kChat, vocab_size);
    if (!parsed.ok()) return out.names.renamed(parsed.error());
    out.generate = std::move(*parsed);
    add_ignored_fields(out.names, out.generate.ignored_fields, ignored);
    out.generate.ignored_fields = std::move(ignored);
    for (std::string& keyword : out.generate.not_enforced) keyword = out.names.original(keyword);
    out.generate.adapters_field = out.names.original(out.generate.adapters_field);
    if (out.generate.structure)
        out.generate.structure->param = out.names.original(out.generate.structure->param);
    out.parallel_tool_calls = *root.bool_or("parallel_tool_calls", true);
    return out;
}

}  // namespace lorad::proto
