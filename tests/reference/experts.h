// Mixtures of experts in double precision, row by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/reference/transformer.h"

namespace lorad::reference {

enum class RouterRule : uint32_t { kSoftmaxThenTop = 0, kTopThenSoftmax = 1, kSigmoidBias = 2 };

struct Router {
    RouterRule rule = RouterRule::kSoftmaxThenTop;
    size_t top = 1;
    bool normalises = false;
    double sum_eps = 0, scale = 1;
    std::span<const float> bias, expert_scale;  // or empty
};
struct Choice {
    size_t expert = 0;
    double weight = 0;
};
// In the order of what they are chosen by; the lower number first among equals.
std::vector<Choice> route(const Router& router, std::span<const double> logits);

// gpt-oss: (clamp(up) + 1) g sigmoid(alpha g), g = min(gate, limit)
double clamped_swiglu(double gate, double up, double alpha, double limit);

}  // namespace lorad::reference
