#include "proto/error.h"
#include "proto/generate/custom_tools.h"
#include "proto/generate/generate_logprobs_write.h"
#include "proto/json/json.h"
#include "proto/responses/responses_response.h"
#include "proto/sse.h"

namespace lorad::proto {
namespace {

void write_logprobs(JsonWriter& writer, const ResponseHead& head, const std::vector<TokenLogprobs>& tokens) {
    writer.key("logprobs");
    write_token_logprobs(writer, head, tokens);
}

// Writes the part of a reasoning block or a text; `whole`: with the text so far, else with none.
void write_part(JsonWriter& writer, const ResponsesHead& head, const AnswerBlock& block, bool whole) {
    bool is_text = block.kind == BlockKind::kText;
    writer.begin_object()
        .field("type", is_text ? "output_text" : "reasoning_text")
        .field("text", whole ? block.text : std::string());
    if (is_text) {
        writer.key("annotations").begin_array().end_array();
        write_logprobs(writer, head.head, whole ? block.logprobs : std::vector<TokenLogprobs>());
    }
    writer.end_object();
}

bool is_custom_call(const ResponsesHead& head, const AnswerBlock& block) {
    return block.kind == BlockKind::kToolCall && head.request.custom_tools.contains(block.name);
}

// `begins`: shows nothing of its content yet.
void write_item(JsonWriter& writer, const ResponsesHead& head, const AnswerBlock& block, bool begins) {
    writer.begin_object().field("id", block.id);
    if (is_custom_call(head, block)) {
        writer.field("type", "custom_tool_call")
            .field("call_id", block.call_id)
            .field("name", block.name)
            .field("input", begins ? std::string() : custom_tool_input(block.text));
    } else if (block.kind == BlockKind::kToolCall) {
        writer.field("type", "function_call")
            .field("call_id", block.call_id)
            .field("name", block.name)
            .field("arguments", begins ? std::string() : block.text);
    } else {
        bool is_text = block.kind == BlockKind::kText;
        writer.field("type", is_text ? "message" : "reasoning");
        if (is_text) {
            writer.field("role", "assistant");
        } else {
            writer.key("summary").begin_array().end_array();
        }
        writer.key("content").begin_array();
        if (!begins) write_part(writer, head, block, true);
        writer.end_array();
    }
    bool is_whole = block.ended && !block.cut;
    writer.field("status", begins ? "in_progress" : is_whole ? "completed" : "incomplete");
    writer.end_object();
}

std::string_view status_of(const ResponsesEnd& end) {
    if (end.error) return "failed";
    if (end.finish_reason.empty()) return "in_progress";
    if (end.finish_reason == "stop" || end.finish_reason == "tool_calls") return "completed";
    return "incomplete";
}

void write_usage(JsonWriter& writer, const ResponsesEnd& end) {
    const Usage& usage = end.usage;
    writer.key("usage").begin_object().field("input_tokens", usage.n_prompt_tokens);
    writer.key("input_tokens_details").begin_object().field("cached_tokens", usage.n_cached_tokens).end_object();
    writer.field("output_tokens", usage.n_completion_tokens).key("output_tokens_details");
    writer.begin_object().field("reasoning_tokens", end.n_reasoning_tokens).end_object();
    writer.field("total_tokens", usage.n_prompt_tokens + usage.n_completion_tokens).end_object();
}

template <typename Value>
void write_value_or_null(JsonWriter& writer, std::string_view name, const std::optional<Value>& value) {
    writer.key(name);
    if (value) {
        writer.value(*value);
    } else {
        writer.null();
    }
}

// Writes the request's settings back, and the fixed values of settings that lorad does not have.
void write_echo(JsonWriter& writer, const ResponsesHead& head) {
    const ResponsesRequest& request = head.request;
    const GenerateRequest& generate = request.generate;
    writer.field("background", false).key("instructions").raw(request.instructions_json);
    write_value_or_null(writer, "max_output_tokens", generate.n_tokens_max);
    for (const char* name : {"max_tool_calls", "prompt_cache_key", "safety_identifier"}) writer.key(name).null();
    writer.key("previous_response_id");
    if (request.previous_response_id.empty()) {
        writer.null();
    } else {
        writer.value(request.previous_response_id);
    }
    writer.key("metadata").raw(request.metadata_json);
    writer.field("parallel_tool_calls", request.parallel_tool_calls);
    writer.key("reasoning").begin_object().key("effort").null().key("summary").null().end_object();
    writer.field("service_tier", "default").field("store", request.store);
    writer.field("temperature", head.temperature).field("top_p", head.top_p);
    writer.key("text").begin_object().key("format").raw(request.format_json).end_object();
    writer.key("tool_choice").raw(request.tool_choice_json);
    writer.key("tools").raw(request.tools_json);
    writer.field("top_logprobs", uint64_t{generate.n_logprobs.value_or(0)});
    writer.field("truncation", "disabled").key("user");
    if (generate.user.empty()) {
        writer.null();
    } else {
        writer.value(generate.user);
    }
}

void write_object(JsonWriter& writer, const ResponsesHead& head, const std::vector<AnswerBlock>& blocks,
                  const ResponsesEnd& end) {
    const std::string_view status = status_of(end);
    writer.begin_object()
        .field("id", head.head.id)
        .field("object", "response")
        .field("created_at", head.head.created_s)
        .field("status", status);
    write_value_or_null(writer, "completed_at", status == "completed" ? std::optional(end.ended_s) : std::nullopt);
    writer.key("error");
    if (end.error) {
        writer.begin_object().field("code", "server_error").field("message", error_message(*end.error)).end_object();
    } else {
        writer.null();
    }
    writer.key("incomplete_details");
    if (status == "incomplete") {
        writer.begin_object()
            .field("reason", end.finish_reason == "length" ? "max_output_tokens" : std::string_view(end.finish_reason))
            .end_object();
    } else {
        writer.null();
    }
    writer.field("model", head.head.model);
    if (!head.head.adapter_generation.empty()) writer.field("adapter_generation", head.head.adapter_generation);
    writer.key("output").begin_array();
    if (status != "in_progress") {
        for (const AnswerBlock& block : blocks) write_item(writer, head, block, false);
    }
    writer.end_array();
    write_echo(writer, head);
    if (status == "in_progress") {
        writer.key("usage").null();
    } else {
        write_usage(writer, end);
    }
    writer.end_object();
}

}  // namespace

ResponseItems output_items(const ResponsesHead& head, const std::vector<AnswerBlock>& blocks) {
    ResponseItems items;
    for (const AnswerBlock& block : blocks) {
        JsonWriter writer;
        write_item(writer, head, block, false);
        items.push_back(std::make_shared<const ResponseItem>(ResponseItem{block.id, writer.take()}));
    }
    return items;
}

std::string responses_object(const ResponsesHead& head, const std::vector<AnswerBlock>& blocks,
                             const ResponsesEnd& end) {
    JsonWriter writer;
    write_object(writer, head, blocks, end);
    return writer.take();
}

JsonWriter& ResponsesEvents::event(std::string_view type) {
    type_ = std::string(type);
    return writer_.begin_object().field("type", type).field("sequence_number", n_events_++);
}

std::string ResponsesEvents::sent() { return sse_event(type_, writer_.end_object().take()); }

std::string ResponsesEvents::response(std::string_view type, const std::vector<AnswerBlock>& blocks,
                                      const ResponsesEnd& end) {
    event(type).key("response");
    write_object(writer_, head_, blocks, end);
    return sent();
}

std::string ResponsesEvents::begin() {
    std::string out = response("response.created", {}, {});
    return out += response("response.in_progress", {}, {});
}

void ResponsesEvents::place(const AnswerBlock& block, uint32_t index) {
    writer_.field("item_id", block.id).field("output_index", index);
    if (block.kind != BlockKind::kToolCall) writer_.field("content_index", 0);
}

std::string ResponsesEvents::item(std::string_view type, const AnswerBlock& block, uint32_t index, bool begins) {
    event(type).field("output_index", index).key("item");
    write_item(writer_, head_, block, begins);
    return sent();
}

std::string ResponsesEvents::part(std::string_view type, const AnswerBlock& block, uint32_t index, bool whole) {
    event(type);
    place(block, index);
    writer_.key("part");
    write_part(writer_, head_, block, whole);
    return sent();
}

std::string ResponsesEvents::grown(const AnswerBlock& block, const BlockChange& change) {
    // Half of the arguments is no text yet: it comes at the end.
    if (is_custom_call(head_, block)) return {};
    switch (block.kind) {
        case BlockKind::kReasoning: event("response.reasoning_text.delta"); break;
        case BlockKind::kText: event("response.output_text.delta"); break;
        case BlockKind::kToolCall: event("response.function_call_arguments.delta"); break;
    }
    place(block, change.block);
    writer_.field("delta", change.delta);
    if (block.kind == BlockKind::kText) write_logprobs(writer_, head_.head, change.logprobs);
    return sent();
}

std::string ResponsesEvents::custom_call_ended(const AnswerBlock& block, uint32_t index) {
    const std::string input = custom_tool_input(block.text);
    event("response.custom_tool_call_input.delta");
    place(block, index);
    writer_.field("delta", input);
    std::string out = sent();
    event("response.custom_tool_call_input.done");
    place(block, index);
    writer_.field("input", input);
    out += sent();
    return out += item("response.output_item.done", block, index, false);
}

std::string ResponsesEvents::ended(const AnswerBlock& block, uint32_t index) {
    if (is_custom_call(head_, block)) return custom_call_ended(block, index);
    if (block.kind == BlockKind::kToolCall) {
        event("response.function_call_arguments.done");
        place(block, index);
        writer_.field("name", block.name).field("arguments", block.text);
        std::string out = sent();
        return out += item("response.output_item.done", block, index, false);
    }
    event(block.kind == BlockKind::kText ? "response.output_text.done" : "response.reasoning_text.done");
    place(block, index);
    writer_.field("text", block.text);
    if (block.kind == BlockKind::kText) write_logprobs(writer_, head_.head, block.logprobs);
    std::string out = sent();
    out += part("response.content_part.done", block, index, true);
    return out += item("response.output_item.done", block, index, false);
}

std::string ResponsesEvents::change(const std::vector<AnswerBlock>& blocks, const BlockChange& change) {
    const AnswerBlock& block = blocks[change.block];
    switch (change.what) {
        case BlockChange::What::kBegins: {
            std::string out = item("response.output_item.added", block, change.block, true);
            if (block.kind != BlockKind::kToolCall)
                out += part("response.content_part.added", block, change.block, false);
            return out;
        }
        case BlockChange::What::kGrows: return grown(block, change);
        case BlockChange::What::kEnds: return ended(block, change.block);
    }
    return {};
}

std::string ResponsesEvents::end(const std::vector<AnswerBlock>& blocks, const ResponsesEnd& end) {
    return response("response." + std::string(status_of(end)), blocks, end);
}

}  // namespace lorad::proto
