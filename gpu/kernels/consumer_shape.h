// A consumer is the kernel that reads what a product has written (qkv_post, gated_act, add_norm): it adds the parts of
// a split k, bias and, where nobody did before, LoRA. This is what it needs to know when it is recorded.
#pragma once

#include <cstdint>

namespace lorad::gpu {

enum class Activation : uint32_t { kSilu = 0, kGeluTanh = 1 };

// The level of LoRA that a recording supports.
enum class LoraLevel : uint32_t {
    kNone = 0,  // no row has an adapter: no LoRA kernel runs
    // a row has at most one, with the request's scale 1 and neither gain nor bias; its shrink result is low row t
    kPlain = 1,
    kFull = 2,  // several for each row, scales, gains, biases
};

inline constexpr uint32_t kAdapterTileRows = 32;  // of gated_act_matrix

struct ConsumerShape {
    uint32_t rows = 0;
    uint32_t n_splits = 1;  // of the matmul whose result is consumed
    LoraLevel lora = LoraLevel::kNone;
    // at most a few runs of rows with one adapter in every kAdapterTileRows rows; at level kPlain
    bool few_runs = false;
    uint32_t whole_rows = 0;  // as in the matmul's plan
};

}  // namespace lorad::gpu
