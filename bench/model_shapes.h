// Shapes of models that benchmarks know without their files: Qwen2.5's, Gemma 3's, and one for tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lorad::bench {

struct ModelShape {
    uint32_t n_layers, hidden, ffn, q_heads, kv_heads, head_dim, vocab;
    bool is_gemma = false;  // norms of what o and down give, and of queries and keys; GELU; a rope for each layer

    uint32_t q_size() const { return q_heads * head_dim; }
    uint32_t kv_size() const { return kv_heads * head_dim; }
};

inline const std::map<std::string, ModelShape> kModelShapes = {
    {"tiny", {4, 256, 704, 4, 2, 64, 4096}},
    {"7b", {28, 3584, 18944, 28, 4, 128, 152064}},
    {"1.5b", {28, 1536, 8960, 12, 2, 128, 151936}},
    {"0.5b", {24, 896, 4864, 14, 2, 64, 151936}},
    {"gemma3-4b", {34, 2560, 10240, 8, 4, 256, 262208, true}}};

}  // namespace lorad::bench
