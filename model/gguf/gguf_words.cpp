#include "model/gguf/gguf_words.h"

#include <algorithm>

namespace lorad::model {
namespace {

// Llama 3's, of up to three digits, and Qwen 2's, of one: as their tokenizer.json has them.
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Qwen 3.5's, whose words have marks.
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Mistral's tekken, and OpenAI's o200k, of which Phi-4-mini's is one: words by the case of their letters.
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr WordCutting kCuttings[] = {
    {.name = "gpt-2", .pattern = ""},
    {.name = "phi-2", .pattern = ""},
    {.name = "smollm", .pattern = "", .is_digit_by_digit = true},
    {.name = "starcoder", .pattern = "", .is_digit_by_digit = true},
    {.name = "llama-bpe", .pattern = kLlama3, .takes_whole_words = true, .adds_begin = true},
    {.name = "llama3", .pattern = kLlama3, .takes_whole_words = true, .adds_begin = true},
    {.name = "llama-v3", .pattern = kLlama3, .takes_whole_words = true, .adds_begin = true},
    {.name = "falcon3", .pattern = kLlama3, .takes_whole_words = true, .adds_begin = true},
    {.name = "pixtral", .pattern = kLlama3, .takes_whole_words = true, .adds_begin = true},
    {.name = "lfm2", .pattern = kLlama3, .takes_whole_words = true, .adds_begin = true},
    {.name = "dbrx", .pattern = kLlama3},
    {.name = "smaug-bpe", .pattern = kLlama3},
    {.name = "qwen2", .pattern = kQwen2, .is_nfc = true},
    {.name = "deepseek-r1-qwen", .pattern = kQwen2, .is_nfc = true},
    {.name = "megrez", .pattern = kQwen2, .is_nfc = true},
    {.name = "qwen35", .pattern = kQwen35, .is_nfc = true},
    {.name = "olmo", .pattern = ""},
    {.name = "refact", .pattern = "", .is_digit_by_digit = true},
    {.name = "tekken", .pattern = kTekken, .takes_whole_words = true, .adds_begin = true},
    {.name = "gpt-4o", .pattern = kO200k},
    {.name = "llama4", .pattern = kO200k},
};

}  // namespace

const WordCutting* word_cutting(std::string_view name) {
    const auto* found = std::ranges::find(kCuttings, name, &WordCutting::name);
    return found == std::end(kCuttings) ? nullptr : found;
}

std::string word_cuttings() {
    std::string names;
    for (const WordCutting& one : kCuttings) names.append(names.empty() ? "" : ", ").append(one.name);
    return names;
}

}  // namespace lorad::model
