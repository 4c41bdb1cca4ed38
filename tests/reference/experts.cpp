#include "tests/reference/experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lorad::reference {

std::vector<Choice> route(const Router& router, std::span<const double> logits) {
    Vector score(logits.begin(), logits.end());
    if (router.rule == RouterRule::kSigmoidBias) {
        for (size_t e = 0; e < score.size(); e++)
            score[e] = 1 / (1 + std::exp(-logits[e])) + (router.bias.empty() ? 0.0f : router.bias[e]);
    }
    std::vector<size_t> order(logits.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return score[a] > score[b]; });
    double all = 0, chosen = 0;
    for (const double logit : logits) all += std::exp(logit);
    for (size_t j = 0; j < router.top; j++) chosen += std::exp(logits[order[j]]);
    std::vector<Choice> choices;
    double sum = 0;
    for (size_t j = 0; j < router.top; j++) {
        const double logit = logits[order[j]];
        double weight = 0;
        switch (router.rule) {
            case RouterRule::kSoftmaxThenTop: weight = std::exp(logit) / all; break;
            case RouterRule::kTopThenSoftmax: weight = std::exp(logit) / chosen; break;
            case RouterRule::kSigmoidBias: weight = 1 / (1 + std::exp(-logit)); break;
        }
        choices.push_back({order[j], weight});
        sum += weight;
    }
    for (Choice& choice : choices) {
        if (router.rule != RouterRule::kTopThenSoftmax && router.normalises) choice.weight /= sum + router.sum_eps;
        choice.weight *= router.scale;
        if (!router.expert_scale.empty()) choice.weight *= router.expert_scale[choice.expert];
    }
    return choices;
}

double clamped_swiglu(double gate, double up, double alpha, double limit) {
    const double g = std::min(gate, limit);
    return (std::clamp(up, -limit, limit) + 1) * g / (1 + std::exp(-alpha * g));
}

}  // namespace lorad::reference
