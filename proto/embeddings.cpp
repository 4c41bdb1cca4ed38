#include "proto/embeddings.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "proto/base/format.h"
#include "proto/generate/chat_translation.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"

namespace lorad::proto {
namespace {

constexpr std::array kEmbeddingFields = {
    KnownField{"model"},
    KnownField{"input"},
    KnownField{"encoding_format"},
    KnownField{"dimensions"},
    KnownField{"user"},
    KnownField{"adapter"},
    KnownField{"adapters"},
    KnownField{"lora"},
    KnownField{"lora_path"},
    KnownField{"adapter_id"},
    KnownField{"parameters"},
    KnownField{"lora_request"},
    KnownField{"lora_name"},
    KnownField{"adapter_name"},
    KnownField{"merged_adapters", false, Neutral::kEmpty},
    KnownField{"adapter_source", false, Neutral::kNone, Neutral::kAny},
    KnownField{"priority"},
    KnownField{"cache_salt"},
    KnownField{"add_special_tokens"},
    KnownField{"normalize"},
    KnownField{"truncate_prompt_tokens"},
    // Known to clients, not supported by lorad.
    KnownField{"messages", false},
    KnownField{"embed_dtype", false},
    KnownField{"endianness", false},
    KnownField{"additional_data", false},
    KnownField{"pooling", false},
    KnownField{"use_activation", false, Neutral::kTrue},
    KnownField{"chat_template", false},
    KnownField{"mm_processor_kwargs", false},
};

// Clients that tokenize themselves do it for OpenAI's models, unless they are told otherwise.
Error of_another_vocabulary(const JsonValue& ids, Error error, uint32_t vocab_size) {
    const std::vector<JsonValue> elements = *ids.as_array();
    const bool is_outside = std::ranges::any_of(
        elements, [&](const JsonValue& id) { return id.is_integer() && !id.as_int(0, int64_t{vocab_size} - 1).ok(); });
    if (!is_outside) return error;
    error.message += format(
        " (ids of this model's tokenizer are 0 to {}; others' stand for other texts: send texts, with LangChain by "
        "check_embedding_ctx_length=False)",
        vocab_size - 1);
    return error;
}

Result<Prompt> one_input(const JsonValue& value, uint32_t vocab_size) {
    Prompt prompt;
    if (value.is_string()) {
        TRY_ASSIGN(std::string_view text, value.as_string());
        if (text.empty()) return value.error("expected a text, found an empty one");
        prompt.text = std::string(text);
        return prompt;
    }
    if (!value.is_array()) {
        return value.error(format("expected a string or a list of token ids, found {}", value.describe()));
    }
    if (value.size() == 0) return value.error("expected at least one token id, found an empty list");
    Result<std::vector<TokenId>> ids = parse_ids(value, vocab_size, value.size());
    if (!ids.ok()) return of_another_vocabulary(value, ids.error(), vocab_size);
    prompt.ids = std::move(*ids);
    return prompt;
}

// A text, token ids, or a list of either.
Result<std::vector<Prompt>> parse_input(const JsonValue& input, uint32_t vocab_size) {
    std::vector<JsonValue> elements{input};
    bool is_list = false;
    if (input.is_array()) {
        TRY_ASSIGN(std::vector<JsonValue> list, input.as_array());
        if (list.empty()) return input.error("expected at least one text, found an empty list");
        is_list = !list.front().is_number();
        if (is_list) elements = std::move(list);
    }
    if (elements.size() > kEmbeddingInputsMax) {
        return input.error(format("expected at most {} inputs, found {}", kEmbeddingInputsMax, elements.size()));
    }
    std::vector<Prompt> prompts;
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(Prompt prompt, one_input(element, vocab_size));
        prompts.push_back(std::move(prompt));
    }
    return prompts;
}

}  // namespace

std::span<const KnownField> embeddings_fields() { return kEmbeddingFields; }

Result<EmbeddingsRequest> parse_embeddings_request(std::string_view body, uint32_t vocab_size, uint32_t hidden_size) {
    TRY_ASSIGN(JsonDocument document, parse_json(body));
    JsonValue root = document.root();
    if (!root.is_object()) return root.error(format("expected an object, found {}", root.describe()));
    EmbeddingsRequest out;
    std::vector<std::string> ignored;
    TRY(refuse_unknown_adapters(root, kEmbeddingFields));
    TRY(check_fields(root, kEmbeddingFields, ignored));
    TRY_ASSIGN(JsonValue input, root.require("input"));
    TRY_ASSIGN(std::vector<Prompt> prompts, parse_input(input, vocab_size));
    if (std::optional<JsonValue> encoding = root.find("encoding_format")) {
        out.as_base64 = is_text(*encoding, "base64");
        if (!out.as_base64 && !is_text(*encoding, "float")) {
            return encoding->error(format("expected \"float\" or \"base64\", found {}", encoding->describe()));
        }
    }
    if (std::optional<JsonValue> dimensions = root.find("dimensions")) {
        TRY_ASSIGN(int64_t n, dimensions->as_int(1, hidden_size));
        out.n_dimensions = static_cast<uint32_t>(n);
    }
    TRY_ASSIGN(out.normalized, root.bool_or("normalize", true));
    JsonWriter completion;
    completion.begin_object().field("prompt", "-");
    static constexpr std::string_view kCopied[] = {
        "model",        "user",       "adapter",    "adapters",           "lora",
        "lora_path",    "adapter_id", "parameters", "lora_request",       "lora_name",
        "adapter_name", "priority",   "cache_salt", "add_special_tokens", "truncate_prompt_tokens"};
    copy_fields(root, kCopied, completion);
    FieldNames names;
    names.add("prompt", "input");
    TRY_ASSIGN(out.generate, parse_translated(completion.end_object().take(), ApiKind::kCompletion, vocab_size,
                                              std::move(names), std::move(ignored)));
    out.generate.prompts = std::move(prompts);
    out.generate.embed = true;
    return out;
}

std::vector<float> shown_embedding(std::span<const float> hidden, const EmbeddingsRequest& request) {
    if (request.n_dimensions && *request.n_dimensions < hidden.size()) hidden = hidden.first(*request.n_dimensions);
    std::vector<float> shown(hidden.begin(), hidden.end());
    if (!request.normalized) return shown;
    double squares = 0.0;
    for (float value : shown) squares += double{value} * double{value};
    if (squares == 0.0) return shown;
    const double scale = 1.0 / std::sqrt(squares);
    for (float& value : shown) value = static_cast<float>(double{value} * scale);
    return shown;
}

std::string base64_floats(std::span<const float> values) {
    static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string bytes;
    bytes.reserve(values.size() * 4);
    for (float value : values) {
        const uint32_t bits = std::bit_cast<uint32_t>(value);
        for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift & 0xff);
    }
    std::string text;
    text.reserve((bytes.size() + 2) / 3 * 4);
    for (size_t i = 0; i < bytes.size(); i += 3) {
        const size_t n = std::min<size_t>(3, bytes.size() - i);
        uint32_t group = 0;
        for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < n ? static_cast<uint8_t>(bytes[i + k]) : 0u);
        for (size_t k = 0; k < 4; ++k) text += k <= n ? kDigits[group >> (18 - 6 * k) & 63] : '=';
    }
    return text;
}

std::string embeddings_response(const EmbeddingsAnswer& answer, bool as_base64) {
    JsonWriter writer;
    writer.begin_object().field("object", "list").key("data").begin_array();
    for (size_t i = 0; i < answer.embeddings.size(); ++i) {
        writer.begin_object().field("object", "embedding").field("index", uint64_t{i});
        writer.key("embedding");
        if (as_base64) {
            writer.value(base64_floats(answer.embeddings[i]));
        } else {
            writer.begin_array();
            for (float value : answer.embeddings[i]) writer.value(value);
            writer.end_array();
        }
        writer.end_object();
    }
    writer.end_array().field("model", answer.model);
    if (!answer.adapter_generation.empty()) writer.field("adapter_generation", answer.adapter_generation);
    writer.key("usage")
        .begin_object()
        .field("prompt_tokens", answer.n_prompt_tokens)
        .field("total_tokens", answer.n_prompt_tokens)
        .end_object();
    return writer.end_object().take();
}

}  // namespace lorad::proto
