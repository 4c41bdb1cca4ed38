#include "model/exec/tuned_products.h"

#include <algorithm>

#include "gpu/kernels/tuning/measured_products.h"
#include "model/forward/scratch.h"
#include "model/step/step_plan.h"

namespace lorad::model {
namespace {

constexpr size_t kMatricesMax = 6;

struct Candidate {
    const Matrix* matrix;  // one of those that are alike
    uint64_t elements;     // of all that are
    uint32_t max_splits;
};

bool is_alike(const Matrix& a, const Matrix& b) { return a.n == b.n && a.k == b.k && a.type == b.type; }

}  // namespace

std::vector<gpu::Product> tuned_products(const ModelWeights& weights) {
    std::vector<Candidate> all;
    const auto add = [&](const Matrix& matrix, uint32_t max_splits) {
        if (matrix.n == 0 || matrix.is_packed() || matrix.type == gpu::ScalarType::kF32) return;
        const auto known = std::ranges::find_if(all, [&](const Candidate& candidate) {
            return is_alike(*candidate.matrix, matrix) && candidate.max_splits == max_splits;
        });
        const uint64_t elements = uint64_t{matrix.n} * matrix.k;
        if (known != all.end())
            known->elements += elements;
        else
            all.push_back({&matrix, elements, max_splits});
    };
    for (const LayerWeights& layer : weights.layers) {
        for (const Matrix* matrix : products_of(layer)) add(*matrix, kProductSplitsMax);
    }
    constexpr uint32_t kOutputSplits = 1;  // output_product()
    add(weights.output(), kOutputSplits);
    std::ranges::stable_sort(all, std::ranges::greater(), &Candidate::elements);
    all.resize(std::min(all.size(), kMatricesMax));
    std::vector<gpu::Product> products;
    for (const Candidate& candidate : all) {
        for (const uint32_t rows : gpu::kMeasuredRows) {
            if (candidate.max_splits == kOutputSplits && rows > gpu::kMeasuredRows[1]) continue;
            products.push_back(
                product_of(*candidate.matrix, {.rows = rows, .max_splits = candidate.max_splits}, false));
        }
    }
    return products;
}

}  // namespace lorad::model
