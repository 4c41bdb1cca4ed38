#include "proto/generate/generate_logprobs_write.h"
#include "proto/generate/generate_response.h"
#include "proto/json/json.h"

namespace lorad::proto {
namespace {

void begin(JsonWriter& writer, const ResponseHead& head, std::string_view object) {
    writer.begin_object()
        .field("id", head.id)
        .field("object", object)
        .field("created", head.created_s)
        .field("model", head.model);
    writer.key("system_fingerprint").null();
    if (!head.adapter_generation.empty()) writer.field("adapter_generation", head.adapter_generation);
}

void write_ids(JsonWriter& writer, std::string_view name, const std::optional<std::vector<TokenId>>& ids) {
    if (!ids) return;
    writer.key(name).begin_array();
    for (TokenId id : *ids) writer.value(int64_t{id});
    writer.end_array();
}

void write_usage(JsonWriter& writer, const Usage& usage) {
    writer.key("usage")
        .begin_object()
        .field("prompt_tokens", usage.n_prompt_tokens)
        .field("completion_tokens", usage.n_completion_tokens)
        .field("total_tokens", usage.n_prompt_tokens + usage.n_completion_tokens);
    writer.key("prompt_tokens_details").begin_object().field("cached_tokens", usage.n_cached_tokens).end_object();
    writer.end_object();
}

std::string_view chunk_object(ApiKind kind) {
    return kind == ApiKind::kChat ? "chat.completion.chunk" : "text_completion";
}

void write_tool_calls(JsonWriter& writer, const ChoicePart& part, bool with_index) {
    writer.key("tool_calls").begin_array();
    for (const ToolCallPart& call : part.tool_calls) {
        writer.begin_object();
        if (with_index) writer.field("index", uint64_t{call.index});
        const char* type = call.is_custom ? "custom" : "function";
        if (!call.id.empty()) writer.field("id", call.id).field("type", type);
        writer.key(type).begin_object();
        if (!call.name.empty()) writer.field("name", call.name);
        writer.field(call.is_custom ? "input" : "arguments", call.arguments).end_object().end_object();
    }
    writer.end_array();
}

void write_message(JsonWriter& writer, const ChoicePart& choice) {
    writer.key("message").begin_object().field("role", "assistant").key("content");
    if (choice.text.empty() && !choice.tool_calls.empty()) {
        writer.null();
    } else {
        writer.value(choice.text);
    }
    writer.key("refusal").null();
    if (!choice.reasoning.empty()) writer.field("reasoning_content", choice.reasoning);
    if (!choice.tool_calls.empty()) write_tool_calls(writer, choice, false);
    writer.end_object();
}

void write_delta(JsonWriter& writer, const ChoicePart& part) {
    writer.key("delta").begin_object();
    if (part.is_first) writer.field("role", "assistant");
    if (part.is_first || !part.text.empty()) writer.field("content", part.text);
    if (!part.reasoning.empty()) writer.field("reasoning_content", part.reasoning);
    if (!part.tool_calls.empty()) write_tool_calls(writer, part, true);
    writer.end_object();
}

// Writes the fields behind the text or message in every choice.
void write_choice_rest(JsonWriter& writer, const ResponseHead& head, const ChoicePart& part) {
    bool chat = head.kind == ApiKind::kChat;
    writer.key("logprobs");
    if (!part.logprobs) {
        writer.null();
    } else if (chat) {
        write_chat_logprobs(writer, head, *part.logprobs);
    } else {
        write_completion_logprobs(writer, head, *part.logprobs);
    }
    writer.key("finish_reason");
    if (part.finish_reason.empty()) {
        writer.null();
    } else {
        writer.value(part.finish_reason);
    }
    if (!chat) {
        if (part.prompt_logprobs) {
            writer.key("prompt_logprobs");
            write_prompt_logprobs(writer, head, *part.prompt_logprobs);
        }
        write_ids(writer, "prompt_token_ids", part.prompt_ids);
    }
    write_ids(writer, "token_ids", part.token_ids);
}

}  // namespace

std::string whole_response(const ResponseHead& head, std::span<const ChoicePart> choices, const Usage& usage) {
    bool chat = head.kind == ApiKind::kChat;
    JsonWriter writer;
    begin(writer, head, chat ? "chat.completion" : "text_completion");
    writer.key("choices").begin_array();
    for (const ChoicePart& choice : choices) {
        writer.begin_object().field("index", uint64_t{choice.index});
        if (chat) {
            write_message(writer, choice);
        } else {
            writer.field("text", choice.text);
        }
        write_choice_rest(writer, head, choice);
        writer.end_object();
    }
    writer.end_array();
    write_usage(writer, usage);
    if (chat && !choices.empty()) {
        if (choices[0].prompt_logprobs) {
            writer.key("prompt_logprobs");
            write_prompt_logprobs(writer, head, *choices[0].prompt_logprobs);
        }
        write_ids(writer, "prompt_token_ids", choices[0].prompt_ids);
    }
    writer.end_object();
    return writer.take();
}

std::string chunk_response(const ResponseHead& head, const ChoicePart& part, const ChunkUsage& usage) {
    bool chat = head.kind == ApiKind::kChat;
    JsonWriter writer;
    begin(writer, head, chunk_object(head.kind));
    if (chat) write_ids(writer, "prompt_token_ids", part.prompt_ids);
    writer.key("choices").begin_array().begin_object().field("index", uint64_t{part.index});
    if (chat) {
        write_delta(writer, part);
    } else {
        writer.field("text", part.text);
    }
    write_choice_rest(writer, head, part);
    writer.end_object().end_array();
    if (usage.so_far) {
        write_usage(writer, *usage.so_far);
    } else if (usage.with_usage) {
        writer.key("usage").null();
    }
    writer.end_object();
    return writer.take();
}

std::string usage_chunk(const ResponseHead& head, const Usage& usage) {
    JsonWriter writer;
    begin(writer, head, chunk_object(head.kind));
    writer.key("choices").begin_array().end_array();
    write_usage(writer, usage);
    writer.end_object();
    return writer.take();
}

}  // namespace lorad::proto
