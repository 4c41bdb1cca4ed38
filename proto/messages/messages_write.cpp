#include <algorithm>

#include "proto/error.h"
#include "proto/messages/messages_request.h"
#include "proto/messages/messages_response.h"
#include "proto/sse.h"

namespace lorad::proto {
namespace {

std::string_view error_type(int http_status) {
    switch (http_status) {
        case 401: return "authentication_error";
        case 403: return "permission_error";
        case 404: return "not_found_error";
        case 408: return "timeout_error";
        case 413: return "request_too_large";
        case 429: return "rate_limit_error";
        case 503: return "overloaded_error";
        default: return http_status < 500 ? "invalid_request_error" : "api_error";
    }
}

std::string_view stop_reason(const std::vector<AnswerBlock>& blocks, const MessagesEnd& end) {
    if (end.finish_reason == "length") return "max_tokens";
    if (end.finish_reason != "stop" && end.finish_reason != "tool_calls") return end.finish_reason;
    if (!end.stop_sequence.empty()) return "stop_sequence";
    bool called = std::any_of(blocks.begin(), blocks.end(),
                              [](const AnswerBlock& block) { return block.kind == BlockKind::kToolCall; });
    return called ? "tool_use" : "end_turn";
}

void write_stop(JsonWriter& writer, const std::vector<AnswerBlock>& blocks, const MessagesEnd& end) {
    writer.field("stop_reason", stop_reason(blocks, end)).key("stop_sequence");
    if (end.stop_sequence.empty()) {
        writer.null();
    } else {
        writer.value(end.stop_sequence);
    }
}

// Anthropic's counting: cached tokens are no part of the input tokens.
void write_messages_usage(JsonWriter& writer, const Usage& usage) {
    writer.key("usage")
        .begin_object()
        .field("input_tokens", usage.n_prompt_tokens - usage.n_cached_tokens)
        .field("cache_creation_input_tokens", 0)
        .field("cache_read_input_tokens", usage.n_cached_tokens)
        .field("output_tokens", usage.n_completion_tokens)
        .end_object();
}

// An answer that was cut may hold half of an object, and models write broken ones: never one that could be run.
std::string input_of(const std::string& arguments) {
    Result<JsonDocument> input = parse_json(arguments, {.allow_duplicate_keys = true});
    if (input.ok() && input->root().is_object()) return input->root().dump();
    JsonWriter writer;
    return writer.begin_object().field(kInvalidJsonInput, arguments).end_object().take();
}

// `begins`: as content_block_start shows it, still empty.
void write_block(JsonWriter& writer, const AnswerBlock& block, bool begins) {
    std::string text = begins ? std::string() : block.text;
    writer.begin_object();
    switch (block.kind) {
        case BlockKind::kReasoning:
            writer.field("type", "thinking").field("thinking", text).field("signature", "");
            break;
        case BlockKind::kText: writer.field("type", "text").field("text", text); break;
        case BlockKind::kToolCall: {
            writer.field("type", "tool_use").field("id", block.call_id).field("name", block.name);
            writer.key("input").raw(begins ? "{}" : input_of(text));
            break;
        }
    }
    writer.end_object();
}

void write_head(JsonWriter& writer, const ResponseHead& head) {
    writer.field("id", head.id).field("type", "message").field("role", "assistant").field("model", head.model);
    if (!head.adapter_generation.empty()) writer.field("adapter_generation", head.adapter_generation);
}

JsonWriter begun(std::string_view type) {
    JsonWriter writer;
    writer.begin_object().field("type", type);
    return writer;
}

std::string sent(std::string_view type, JsonWriter& writer) { return sse_event(type, writer.end_object().take()); }

void write_delta(JsonWriter& writer, BlockKind kind, const std::string& delta) {
    writer.key("delta").begin_object();
    switch (kind) {
        case BlockKind::kReasoning: writer.field("type", "thinking_delta").field("thinking", delta); break;
        case BlockKind::kText: writer.field("type", "text_delta").field("text", delta); break;
        case BlockKind::kToolCall: writer.field("type", "input_json_delta").field("partial_json", delta); break;
    }
    writer.end_object();
}

std::string delta_event(uint32_t block, BlockKind kind, const std::string& delta) {
    JsonWriter writer = begun("content_block_delta");
    writer.field("index", block);
    write_delta(writer, kind, delta);
    return sent("content_block_delta", writer);
}

}  // namespace

std::string messages_error_body(const Error& error) {
    JsonWriter writer = begun("error");
    writer.key("error")
        .begin_object()
        .field("type", error_type(error_info(error.code).http_status))
        .field("message", error_message(error))
        .end_object();
    return writer.end_object().take();
}

std::string messages_object(const ResponseHead& head, const std::vector<AnswerBlock>& blocks, const MessagesEnd& end) {
    JsonWriter writer;
    writer.begin_object();
    write_head(writer, head);
    writer.key("content").begin_array();
    for (const AnswerBlock& block : blocks) write_block(writer, block, false);
    writer.end_array();
    write_stop(writer, blocks, end);
    write_messages_usage(writer, end.usage);
    return writer.end_object().take();
}

std::string messages_token_count(uint64_t n_tokens) {
    JsonWriter writer;
    return writer.begin_object().field("input_tokens", n_tokens).end_object().take();
}

std::string messages_begin_event(const ResponseHead& head, uint64_t n_prompt_tokens) {
    JsonWriter writer = begun("message_start");
    writer.key("message").begin_object();
    write_head(writer, head);
    writer.key("content").begin_array().end_array();
    writer.key("stop_reason").null().key("stop_sequence").null();
    write_messages_usage(writer, {n_prompt_tokens, 0, 0});
    writer.end_object();
    return sent("message_start", writer);
}

std::string messages_ping_event() {
    JsonWriter writer = begun("ping");
    return sent("ping", writer);
}

std::string messages_change_event(const std::vector<AnswerBlock>& blocks, const BlockChange& change,
                                  const EagerTools& eager_tools) {
    const AnswerBlock& block = blocks[change.block];
    const bool is_whole_input = block.kind == BlockKind::kToolCall && !eager_tools.contains(block.name);
    switch (change.what) {
        case BlockChange::What::kBegins: {
            JsonWriter writer = begun("content_block_start");
            writer.field("index", change.block).key("content_block");
            write_block(writer, block, true);
            return sent("content_block_start", writer);
        }
        case BlockChange::What::kGrows: {
            return is_whole_input ? std::string() : delta_event(change.block, block.kind, change.delta);
        }
        case BlockChange::What::kEnds: {
            std::string out =
                is_whole_input ? delta_event(change.block, block.kind, input_of(block.text)) : std::string();
            JsonWriter writer = begun("content_block_stop");
            writer.field("index", change.block);
            return out += sent("content_block_stop", writer);
        }
    }
    return {};
}

std::string messages_end_events(const std::vector<AnswerBlock>& blocks, const MessagesEnd& end) {
    JsonWriter writer = begun("message_delta");
    writer.key("delta").begin_object();
    write_stop(writer, blocks, end);
    writer.end_object();
    write_messages_usage(writer, end.usage);
    std::string out = sent("message_delta", writer);
    JsonWriter stop = begun("message_stop");
    return out += sent("message_stop", stop);
}

std::string messages_error_event(const Error& error) { return sse_event("error", messages_error_body(error)); }

}  // namespace lorad::proto
