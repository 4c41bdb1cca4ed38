// What transformers' logits processors make of rows of logits: tests/goldens/sampling/cases.json, made by make.py
// beside it.
// For every implementation of the choosing, on host or device.
#pragma once

#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/check.h"
#include "proto/base/ids.h"
#include "proto/generate/sampling_params.h"
#include "proto/json/json.h"
#include "tests/support/source_dir.h"

namespace lorad {

struct SamplingCase {
    std::string name;
    std::vector<float> logits;  // the row before everything
    std::vector<TokenId> prompt, generated;
    proto::SamplingParams params;
    std::vector<std::pair<TokenId, float>> adjusted;  // logits of all tokens that penalties touch
    std::vector<uint32_t> kept;                       // tokens that may be drawn, by id
    std::vector<double> probabilities;                // of `kept`; empty for large vocabularies
};

inline uint64_t splitmix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// About normal, with a standard deviation of 1.15 * spread; exact in float, so the same everywhere.
inline std::vector<float> golden_logits(uint64_t seed, uint32_t n_vocab, uint32_t spread) {
    std::vector<float> logits(n_vocab);
    for (uint32_t id = 0; id < n_vocab; ++id) {
        const uint64_t a = splitmix64((seed << 32) + id), b = splitmix64(a);
        int64_t sum = -131070;
        for (int shift = 0; shift < 64; shift += 16) sum += int64_t(a >> shift & 0xffff);
        logits[id] = float(sum * 64 + int64_t(b & 63)) * (float(spread) * 0x1p-21f);
    }
    return logits;
}

inline std::vector<SamplingCase> sampling_cases() {
    std::ifstream file(lorad::testing::source_dir() / "tests/goldens/sampling/cases.json");
    std::stringstream text;
    text << file.rdbuf();
    Result<JsonDocument> document = parse_json(text.str());
    CHECK(document.ok());
    const auto tokens_of = [](const JsonValue& value) {
        std::vector<TokenId> out;
        for (const JsonValue& token : *value.as_array()) out.push_back(TokenId(*token.as_int()));
        return out;
    };
    std::vector<SamplingCase> cases;
    for (const JsonValue& value : *document->root().find("cases")->as_array()) {
        SamplingCase one;
        one.name = std::string(*value.find("name")->as_string());
        const JsonValue row = *value.find("row");
        one.logits = golden_logits(*row.find("seed")->as_uint(), uint32_t(*row.find("n_vocab")->as_uint()),
                                   uint32_t(*row.find("spread")->as_uint()));
        one.prompt = tokens_of(*value.find("prompt"));
        one.generated = tokens_of(*value.find("generated"));
        const JsonValue params = *value.find("params");
        const auto number = [&](const char* key, float fallback) { return float(*params.number_or(key, fallback)); };
        one.params.temperature = number("temperature", 1);
        one.params.top_k = uint32_t(*params.int_or("top_k", 0));
        one.params.top_p = number("top_p", 1);
        one.params.min_p = number("min_p", 0);
        one.params.typical_p = number("typical_p", 1);
        one.params.repetition_penalty = number("repetition_penalty", 1);
        one.params.frequency_penalty = number("frequency_penalty", 0);
        one.params.presence_penalty = number("presence_penalty", 0);
        if (auto adjusted = value.find("adjusted")) {
            for (const JsonValue& pair : *adjusted->as_array()) {
                const std::vector<JsonValue> both = *pair.as_array();
                one.adjusted.emplace_back(TokenId(*both[0].as_int()), float(*both[1].as_number()));
            }
        }
        for (const JsonValue& run : *value.find("kept")->as_array()) {
            const std::vector<JsonValue> both = *run.as_array();
            const auto begin = uint32_t(*both[0].as_uint());
            for (uint32_t i = 0; i < *both[1].as_uint(); ++i) one.kept.push_back(begin + i);
        }
        if (auto probabilities = value.find("probabilities")) {
            for (const JsonValue& p : *probabilities->as_array()) one.probabilities.push_back(*p.as_number());
        }
        cases.push_back(std::move(one));
    }
    return cases;
}

// Chi-square of how often each kept token was drawn, and the value that one fair sample in 10,000 exceeds. Tokens of
// fewer than five expected draws count as one.
inline std::pair<double, double> chi_square_of(const SamplingCase& one, const std::vector<uint32_t>& counts,
                                               uint32_t n_draws) {
    double statistic = 0.0, rare_expected = 0.0, rare_found = 0.0;
    int n_cells = 0;
    const auto add = [&](double expected, double found) {
        statistic += (found - expected) * (found - expected) / expected;
        ++n_cells;
    };
    for (size_t i = 0; i < one.kept.size(); ++i) {
        const double expected = n_draws * one.probabilities[i];
        if (expected >= 5.0) {
            add(expected, counts[one.kept[i]]);
        } else {
            rare_expected += expected;
            rare_found += counts[one.kept[i]];
        }
    }
    if (rare_expected > 0.0) add(std::max(rare_expected, 1.0), rare_found);
    // Wilson and Hilferty: the cube root of chi-square by its freedom is nearly normal; 3.719 is the normal's quantile.
    const double freedom = std::max(n_cells - 1, 1), spread = 2.0 / (9.0 * freedom);
    const double root = 1.0 - spread + 3.719 * std::sqrt(spread);
    return {statistic, freedom * root * root * root};
}

}  // namespace lorad
