// Reads the generation settings of a GGUF file: where answers end, and how tokens are drawn.
#include <algorithm>
#include <array>

#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_fields.h"
#include "model/gguf/gguf_tokenizer.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

// Control tokens that end a turn, or a text, in known families, whatever else the file names: llama.cpp ends answers at
// them as well.
constexpr std::array<std::string_view, 11> kEnds = {"<|eot_id|>",      "<|im_end|>", "<|end|>",       "<end_of_turn>",
                                                    "<|end_of_turn|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>",
                                                    "<|return|>",      "<|call|>",   "<turn|>"};
// Gemma 4's calls end with the token that begins what they gave; files have it as a token that is shown.
constexpr std::string_view kResponse = "<|tool_response>";
// gpt-oss's files have the other end tokens too; there this one ends a message, behind which the answer goes on.
constexpr std::string_view kEndOfMessage = "<|end|>", kEndOfAnswer = "<|return|>";

std::vector<TokenId> ends_by_text(const GgufFile& file) {
    std::vector<TokenId> ids;
    const GgufValue* tokens = file.field("tokenizer.ggml.tokens");
    const GgufValue* types = file.field("tokenizer.ggml.token_type");
    const auto texts = tokens ? tokens->as_texts() : std::nullopt;
    const auto kinds = types ? types->as_integers() : std::nullopt;
    constexpr int64_t kControlType = 3;
    if (!texts || !kinds || texts->size() != kinds->size()) return ids;
    const bool has_messages = std::ranges::find(*texts, kEndOfAnswer) != texts->end();
    for (size_t id = 0; id < texts->size(); ++id) {
        const std::string_view text = (*texts)[id];
        if (has_messages && text == kEndOfMessage) continue;
        const bool is_end =
            ((*kinds)[id] == kControlType && std::ranges::find(kEnds, text) != kEnds.end()) || text == kResponse;
        if (is_end) ids.push_back(static_cast<TokenId>(id));
    }
    return ids;
}

Status read_sampling(const GgufFile& file, std::string_view name, double min, double max, float& to) {
    const std::string key = "general.sampling." + std::string(name);
    const GgufValue* value = file.field(key);
    if (value == nullptr) return ok_status();
    const auto number = value->as_number();
    if (!number || !(*number >= min && *number <= max))
        return gguf_field_error(key, format("{:g} to {:g}", min, max), *value);
    to = static_cast<float>(*number);
    return ok_status();
}

}  // namespace

Result<GenerationDefaults> generation_from_gguf(const GgufFile& file, uint32_t vocab_size) {
    GenerationDefaults generation;
    for (const std::string_view name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
        TRY_ASSIGN(const auto id, special_token_of(file, name, vocab_size));
        if (id) generation.eos_token_ids.push_back(*id);
    }
    std::ranges::copy(ends_by_text(file), std::back_inserter(generation.eos_token_ids));
    std::ranges::sort(generation.eos_token_ids);
    const auto twice = std::ranges::unique(generation.eos_token_ids);
    generation.eos_token_ids.erase(twice.begin(), twice.end());
    TRY(read_sampling(file, "temp", 0.0, 100.0, generation.temperature));
    TRY(read_sampling(file, "top_p", 0.0, 1.0, generation.top_p));
    TRY(read_sampling(file, "min_p", 0.0, 1.0, generation.min_p));
    TRY(read_sampling(file, "penalty_repeat", 0.01, 10.0, generation.repetition_penalty));
    constexpr std::string_view kTopK = "general.sampling.top_k";
    const GgufValue* top_k = file.field(kTopK);
    if (top_k == nullptr) return generation;
    const auto number = top_k->as_integer();
    if (!number || *number < -1 || *number > INT32_MAX) return gguf_field_error(kTopK, "a number of tokens", *top_k);
    generation.top_k = static_cast<uint32_t>(std::max<int64_t>(*number, 0));
    return generation;
}

}  // namespace lorad::model
