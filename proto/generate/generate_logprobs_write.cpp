#include "proto/generate/generate_logprobs_write.h"

#include <algorithm>
#include <set>

#include "proto/base/format.h"

namespace lorad::proto {
namespace {

// OpenAI has no lower number, and JSON no infinity.
float shown(float logprob) { return std::max(logprob, -9999.0f); }

void write_bytes(JsonWriter& writer, std::string_view bytes) {
    writer.key("bytes").begin_array();
    for (char byte : bytes) writer.value(int{static_cast<uint8_t>(byte)});
    writer.end_array();
}

void write_chat_token(JsonWriter& writer, const ResponseHead& head, const TokenLogprob& token) {
    std::string bytes = head.token_bytes(token.id);
    writer.field("token", head.tokens_as_ids ? format("token_id:{}", token.id) : replace_invalid_utf8(bytes));
    writer.field("logprob", shown(token.logprob));
    write_bytes(writer, bytes);
}

}  // namespace

uint64_t n_characters(std::string_view text) {
    return static_cast<uint64_t>(
        std::count_if(text.begin(), text.end(), [](char byte) { return (static_cast<uint8_t>(byte) & 0xc0) != 0x80; }));
}

std::string token_name(const ResponseHead& head, TokenId token) {
    if (head.tokens_as_ids) return format("token_id:{}", token);
    std::string bytes = head.token_bytes(token);
    if (replace_invalid_utf8(bytes) == bytes) return bytes;
    std::string name = "bytes:";
    for (char byte : bytes) name += format("\\x{:02x}", static_cast<uint8_t>(byte));
    return name;
}

void write_token_logprobs(JsonWriter& writer, const ResponseHead& head, std::span<const TokenLogprobs> tokens) {
    writer.begin_array();
    for (const TokenLogprobs& token : tokens) {
        writer.begin_object();
        write_chat_token(writer, head, token.token);
        writer.key("top_logprobs").begin_array();
        for (const TokenLogprob& top : token.top) {
            writer.begin_object();
            write_chat_token(writer, head, top);
            writer.end_object();
        }
        writer.end_array().end_object();
    }
    writer.end_array();
}

void write_chat_logprobs(JsonWriter& writer, const ResponseHead& head, const ShownLogprobs& shown_logprobs) {
    writer.begin_object().key("content");
    write_token_logprobs(writer, head, shown_logprobs.tokens);
    writer.key("refusal").null().end_object();
}

void write_completion_logprobs(JsonWriter& writer, const ResponseHead& head, const ShownLogprobs& shown_logprobs) {
    const std::vector<TokenLogprobs>& tokens = shown_logprobs.tokens;
    writer.begin_object().key("tokens").begin_array();
    for (const TokenLogprobs& token : tokens) writer.value(token_name(head, token.token.id));
    writer.end_array().key("token_logprobs").begin_array();
    for (const TokenLogprobs& token : tokens) {
        if (token.token.rank == 0) {
            writer.null();
        } else {
            writer.value(shown(token.token.logprob));
        }
    }
    writer.end_array().key("top_logprobs").begin_array();
    for (const TokenLogprobs& token : tokens) {
        if (token.token.rank == 0) {
            writer.null();
            continue;
        }
        // The token itself is there in any case. Two tokens may look the same: the likelier counts.
        std::set<std::string> names;
        writer.begin_object();
        auto add = [&](const TokenLogprob& one) {
            std::string name = token_name(head, one.id);
            if (names.insert(name).second) writer.field(name, shown(one.logprob));
        };
        for (const TokenLogprob& top : token.top) add(top);
        add(token.token);
        writer.end_object();
    }
    writer.end_array().key("text_offset").begin_array();
    uint64_t offset = shown_logprobs.text_offset;
    for (const TokenLogprobs& token : tokens) {
        writer.value(offset);
        offset += n_characters(replace_invalid_utf8(head.token_bytes(token.token.id)));
    }
    writer.end_array().end_object();
}

void write_prompt_logprobs(JsonWriter& writer, const ResponseHead& head, std::span<const TokenLogprobs> tokens) {
    writer.begin_array().null();
    for (const TokenLogprobs& token : tokens) {
        writer.begin_object();
        auto add = [&](const TokenLogprob& one) {
            writer.key(format("{}", one.id))
                .begin_object()
                .field("logprob", shown(one.logprob))
                .field("rank", uint64_t{one.rank})
                .field("decoded_token", replace_invalid_utf8(head.token_bytes(one.id)))
                .end_object();
        };
        bool is_among_top = false;
        for (const TokenLogprob& top : token.top) {
            add(top);
            is_among_top = is_among_top || top.id == token.token.id;
        }
        if (!is_among_top) add(token.token);
        writer.end_object();
    }
    writer.end_array();
}

}  // namespace lorad::proto
