// POST /v1/embeddings: OpenAI's bodies and answers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/generate/generate_request.h"

namespace lorad::proto {

inline constexpr size_t kEmbeddingInputsMax = 2048;  // per request, OpenAI's limit

struct EmbeddingsRequest {
    GenerateRequest generate;  // one prompt for each input; embed is set
    bool as_base64 = false;
    bool normalized = true;                // to the length 1
    std::optional<uint32_t> n_dimensions;  // only the first so many
};
// Errors name the fields of the body. hidden_size: how many dimensions there are.
Result<EmbeddingsRequest> parse_embeddings_request(std::string_view body, uint32_t vocab_size, uint32_t hidden_size);

// A hidden state as the request wants it: cut, then normalized.
std::vector<float> shown_embedding(std::span<const float> hidden, const EmbeddingsRequest& request);

struct EmbeddingsAnswer {
    std::string model;               // as named in the request
    std::string adapter_generation;  // empty for the base, then not written
    std::vector<std::vector<float>> embeddings;
    uint64_t n_prompt_tokens = 0;
};
std::string embeddings_response(const EmbeddingsAnswer& answer, bool as_base64);

// Little-endian, as OpenAI's clients read them.
std::string base64_floats(std::span<const float> values);

}  // namespace lorad::proto
