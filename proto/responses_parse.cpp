#include "proto/responses_request.h"

#include <algorithm>

#include "proto/base/format.h"
#include "proto/custom_tools.h"
#include "proto/generate_request_parts.h"
#include "proto/known_fields.h"
#include "proto/responses_parts.h"

namespace lorad::proto {

namespace {

std::vector<KnownField> make_responses_fields() {
    std::vector<KnownField> fields = {
        {"model"}, {"input"}, {"instructions"}, {"max_output_tokens"}, {"metadata"},
        {"parallel_tool_calls"}, {"stream"}, {"stream_options"}, {"temperature"}, {"top_p"},
        {"top_k"}, {"stop"}, {"tools"}, {"tool_choice"}, {"text"}, {"include"}, {"top_logprobs"},
        {"reasoning"}, {"user"}, {"truncation"}, {"store"}, {"previous_response_id"},
        // Labels, which change no answer.
        {"safety_identifier", false, Neutral::kAny},
        {"prompt_cache_key", false, Neutral::kAny},
        {"prompt_cache_retention", false, Neutral::kAny},
        // Hints, which change no answer here.
        {"service_tier", false, Neutral::kAuto, Neutral::kAny},
        {"max_tool_calls", false, Neutral::kNone, Neutral::kAny},
        {"context_management", false, Neutral::kNone, Neutral::kEmpty},
        {"prompt_cache_options", false, Neutral::kNone, Neutral::kAny},
        // What clients know and lorad does not do.
        {"background", false, Neutral::kFalse},
        {"conversation", false},
        {"prompt", false},
        {"background_options", false},
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
        {"merged_adapters", false, Neutral::kEmpty},
    };
    for (std::string_view name : extension_fields()) fields.push_back({name});
    return fields;
}

Status check_known(const JsonValue& root, std::vector<std::string>& ignored) {
    TRY(check_fields(root, responses_fields(), ignored));
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
    std::optional<JsonValue> truncation = root.find("truncation");
    if (truncation && !is_text(*truncation, "disabled"))
        return unsupported_field("truncation", "a conversation that is too long is refused");
    return ok_status();
}

// More of what the answer has anyway, or of what it cannot have: clients ask for it with every request.
bool is_include_hint(const JsonValue& element) {
    for (std::string_view name :
         {"reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
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
    const ResponsesMemory* memory;

    // What is kept, and what of that is referred to.
    Status stored() {
        TRY_ASSIGN(out.store, root.bool_or("store", memory != nullptr));
        TRY_ASSIGN(std::string_view id, root.string_or("previous_response_id", ""));
        if (memory == nullptr) {
            if (out.store) return unsupported_field("store", "this server keeps no responses (--response-store is off)");
            if (!id.empty())
                return unsupported_field("previous_response_id", "this server keeps no responses (--response-store is off)");
            return ok_status();
        }
        if (id.empty()) return ok_status();
        std::shared_ptr<const StoredResponse> earlier = memory->response(id);
        if (earlier == nullptr) {
            return make_error(ErrorCode::kInvalidRequest,
                              format("previous_response_id: no response is called {}, or it is no longer kept", json_quote_short(id)),
                              "previous_response_id");
        }
        out.previous_response_id = std::string(id);
        out.earlier = earlier->items;
        return ok_status();
    }

    // Of a custom tool: the function that stands for it.
    Status custom_tool(const JsonValue& element, std::string_view name) {
        static constexpr KnownField kFields[] = {{"type"}, {"name"}, {"description"}, {"format"}};
        TRY(check_fields(element, kFields, out.generate.ignored_fields));
        std::optional<JsonValue> format_of_input = element.find("format");
        std::optional<JsonValue> kind = format_of_input ? format_of_input->find("type") : std::nullopt;
        if (format_of_input && !(kind && is_text(*kind, "text")))
            return unsupported_field(format_of_input->path(), "a custom tool's input is a text without a grammar here");
        TRY_ASSIGN(std::string_view description, element.string_or("description", ""));
        out.custom_tools.emplace(name);
        chat.begin_object().field("type", "function").key("function").begin_object().field("name", name);
        if (!description.empty()) chat.field("description", description);
        chat.key("parameters").raw(kCustomToolSchema).end_object().end_object();
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
            if (allowed != nullptr &&
                std::find(allowed->begin(), allowed->end(), text) == allowed->end())
                continue;
            if (kind == "custom") {
                TRY(custom_tool(element, text));
            } else {
                TRY_ASSIGN(std::vector<JsonMember> fields, element.as_object());
                write_chat_tool(chat, fields, "parameters");
            }
            out.names.add(format("tools[{}].function", n_written), element.path());
            out.names.add(format("tools[{}]", n_written++), element.path());
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
        if (kind == "function" || kind == "custom") {
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
        static constexpr KnownField kFields[] = {{"format"}, {"verbosity", false, Neutral::kMedium, Neutral::kAny}};
        TRY(check_fields(*text, kFields, out.generate.ignored_fields));
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
                if (is_text(element, "message.output_text.logprobs")) {
                    out.with_logprobs = true;
                } else if (is_include_hint(element)) {
                    if (out.generate.ignored_fields.size() < kIgnoredFieldsMax)
                        out.generate.ignored_fields.push_back(element.path());
                } else {
                    return unsupported_field(element.path(),
                                             format("this server does not have {}",
                                                    element.describe()));
                }
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
        TRY(stored());
        // The first part of a conversation may be all of it.
        TRY(translate_conversation(out.earlier, list));
        std::optional<JsonValue> input = root.find("input");
        if (!input && out.earlier.empty()) return root.require("input").error();
        if (input) TRY(translate_input(*input, list, {memory, &out.own_input, bytes_of(out.earlier)}));
        add_ignored_fields({}, list.ignored(), out.generate.ignored_fields);
        out.names.add("messages", "input");
        chat.key("messages").raw(list.take());
        return ok_status();
    }
};

Status translate(const JsonValue& root, const ResponsesMemory* memory, JsonWriter& chat, ResponsesRequest& out) {
    chat.begin_object();
    copy_fields(root, {"model", "stream", "temperature", "top_p", "top_k", "stop", "user",
                       "parallel_tool_calls"},
                chat);
    copy_fields(root, extension_fields(), chat);
    if (std::optional<JsonValue> n_max = root.find("max_output_tokens")) {
        out.names.add("max_tokens", "max_output_tokens");
        chat.key("max_tokens").raw(n_max->dump());
    }
    ResponsesTranslator translator{root, chat, out, memory};
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

Result<ResponsesRequest> parse_responses_request(std::string_view body, uint32_t vocab_size, const ResponsesMemory* memory) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    if (!root.is_object())
        return root.error(format("expected an object, found {}", root.describe()));
    ResponsesRequest out;
    std::vector<std::string> ignored;
    TRY(check_known(root, ignored));
    JsonWriter chat;
    TRY(translate(root, memory, chat, out));
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
