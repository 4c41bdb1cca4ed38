// The products of a model whose fastest forms a start measures, where a device leaves a choice (gpu::TuningOptions).
#pragma once

#include <vector>

#include "gpu/kernels/products/product.h"
#include "model/weights/weights.h"

namespace lorad::model {

// Of the largest plain matrices of 16 bits, each with few rows, some and many, the output layer's with few and some;
// those on which steps spend most time first. Only sizes and types of `weights` count, whatever the limits of a start.
std::vector<gpu::Product> tuned_products(const ModelWeights& weights);

}  // namespace lorad::model
