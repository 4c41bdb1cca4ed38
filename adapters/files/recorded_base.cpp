#include "adapters/files/recorded_base.h"

#include <algorithm>
#include <array>

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {
namespace {

// A word of names, and how the formats begin that it may stand for.
struct QuantizationWord {
    std::string_view word, method;
    std::array<std::string_view, 3> formats;
};
constexpr QuantizationWord kWords[] = {
    {"bnb", "bitsandbytes", {"NF4", "FP4", "LLM.int8"}},
    {"nf4", "NF4", {"NF4", "NF4", "NF4"}},
    {"gptq", "GPTQ", {"GPTQ", "GPTQ", "GPTQ"}},
    {"awq", "AWQ", {"AWQ", "AWQ", "AWQ"}},
    {"fp8", "FP8", {"FP8", "FP8", "FP8"}},
    {"w4a16", "W4A16", {"W4A16", "W4A16", "W4A16"}},
    {"w8a16", "W8A16", {"W8A16", "W8A16", "W8A16"}},
    {"w8a8", "W8A8", {"int8", "W8A16", "FP8"}},
};

bool is_letter_or_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'); }

// Returns true if `word` is a word of its own in `text`: "-bnb-4bit", not "webnb".
bool has_word(std::string_view text, std::string_view word) {
    for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
        const size_t end = at + word.size();
        if ((at == 0 || !is_letter_or_digit(text[at - 1])) && (end == text.size() || !is_letter_or_digit(text[end])))
            return true;
    }
    return false;
}

}  // namespace

std::optional<std::string> quantization_warning(std::string_view name, const WeightFormats& formats) {
    if (formats.n_matrices.empty()) return std::nullopt;  // a base by its config alone
    std::string lower(name);
    std::ranges::transform(lower, lower.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    for (const QuantizationWord& known : kWords) {
        if (!has_word(lower, known.word)) continue;
        const bool is_so = std::ranges::any_of(formats.n_matrices, [&](const auto& format_and_number) {
            return std::ranges::any_of(
                known.formats, [&](std::string_view begin) { return format_and_number.first.starts_with(begin); });
        });
        if (is_so) return std::nullopt;
        return format("made for {}, whose weights are quantized by {}; this base has {}: the adapter acts on numbers "
                      "that are a little off those of its training",
                      json_quote_short(name), known.method, formats.text());
    }
    return std::nullopt;
}

}  // namespace lorad::adapters
