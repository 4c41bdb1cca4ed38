#include "proto/generate_response.h"
#include "proto/json.h"

namespace lorad::proto {
namespace {

void begin(JsonWriter& writer, const ResponseHead& head, std::string_view object) {
    writer.begin_object()
        .field("id", head.id)
        .field("object", object)
        .field("created", head.created_s)
        .field("model", head.model);
    writer.key("system_fingerprint").null();
    if (!head.adapter_generation.empty())
        writer.field("adapter_generation", head.adapter_generation);
}

void write_ids(JsonWriter& writer, std::string_view name, const std::vector<TokenId>* ids) {
    if (ids == nullptr) return;
    writer.key(name).begin_array();
    for (TokenId id : *ids) writer.value(int64_t(id));
    writer.end_array();
}

void write_finish_reason(JsonWriter& writer, std::string_view reason) {
    if (reason.empty()) {
        writer.key("finish_reason").null();
    } else {
        writer.field("finish_reason", reason);
    }
}

void write_usage(JsonWriter& writer, const Usage& usage) {
    writer.key("usage")
        .begin_object()
        .field("prompt_tokens", usage.n_prompt_tokens)
        .field("completion_tokens", usage.n_completion_tokens)
        .field("total_tokens", usage.n_prompt_tokens + usage.n_completion_tokens)
        .end_object();
}

std::string_view chunk_object(ApiKind kind) {
    return kind == ApiKind::kChat ? "chat.completion.chunk" : "text_completion";
}

}  // namespace

std::string whole_response(const ResponseHead& head, std::string_view text,
                           std::string_view finish_reason, const Usage& usage,
                           const TokenIds& ids) {
    bool chat = head.kind == ApiKind::kChat;
    JsonWriter writer;
    begin(writer, head, chat ? "chat.completion" : "text_completion");
    writer.key("choices").begin_array().begin_object().field("index", 0);
    if (chat) {
        writer.key("message").begin_object().field("role", "assistant").field("content", text);
        writer.key("refusal").null().end_object();
    } else {
        writer.field("text", text);
    }
    writer.key("logprobs").null();
    write_finish_reason(writer, finish_reason);
    if (!chat) write_ids(writer, "prompt_token_ids", ids.prompt);
    write_ids(writer, "token_ids", ids.completion);
    writer.end_object().end_array();
    write_usage(writer, usage);
    if (chat) write_ids(writer, "prompt_token_ids", ids.prompt);
    writer.end_object();
    return writer.take();
}

std::string chunk_response(const ResponseHead& head, const Chunk& chunk) {
    bool chat = head.kind == ApiKind::kChat;
    JsonWriter writer;
    begin(writer, head, chunk_object(head.kind));
    if (chat) write_ids(writer, "prompt_token_ids", chunk.ids.prompt);
    writer.key("choices").begin_array().begin_object().field("index", 0);
    if (chat) {
        writer.key("delta").begin_object();
        if (chunk.is_first) writer.field("role", "assistant");
        if (chunk.is_first || !chunk.text.empty()) writer.field("content", chunk.text);
        writer.end_object();
    } else {
        writer.field("text", chunk.text);
    }
    writer.key("logprobs").null();
    write_finish_reason(writer, chunk.finish_reason);
    if (!chat) write_ids(writer, "prompt_token_ids", chunk.ids.prompt);
    write_ids(writer, "token_ids", chunk.ids.completion);
    writer.end_object().end_array();
    if (chunk.with_usage) writer.key("usage").null();
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
