// Plans how each product, attention and the output of a step are computed: everything that recording it needs to know
// and does not decide. Pure: no device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "model/config/config.h"
#include "model/step/step_shape.h"
#include "model/weights/weight_transform.h"
#include "model/weights/weights.h"

namespace lorad::model {

// The most parts that k of a product is split into.
constexpr uint32_t kProductSplitsMax = 16;

// The form in which a product finds its input (gpu/kernels/products/activation_fragments.h).
enum class InputForm : uint8_t {
    kRows,
    kFragments,  // written so by the kernel before
    kArranged,   // written in rows; arrange_fragments makes fragments of them
};

// A product with a matrix as a step wants it: what product_of() needs beside the matrix itself.
struct ProductUse {
    uint32_t rows = 0;                 // capacity
    bool may_be_in_fragments = false;  // the kernel before can write its input in fragments
    gpu::AdapterForm adapters = gpu::AdapterForm::kApart;
    bool leaves_room = false;       // a shrink runs beside it
    bool may_unpack = true;         // a packed matrix: there is room for a plain copy, as there is of the layers'
    bool norm_is_deferred = false;  // its input is of a product that ends in the residual stream
    gpu::ProductResult result = gpu::ProductResult::kSums;
    gpu::Activation activation = gpu::Activation::kSilu;  // of kGated
    uint32_t max_splits = kProductSplitsMax;
};
// is_packed: whether the step finds the matrix packed, see is_packed() in model/weights/weight_transform.h.
gpu::Product product_of(const Matrix& w, const ProductUse& use, bool is_packed);
// The plan of a product's sums. Where no implementation adds what the rows' adapters bring in the form that is
// asked for, the plan is of the sums alone, and the kernel that reads them adds it.
gpu::MatmulPlan plan_sums(const gpu::ProductPlanner& products, gpu::Product product);

// Of the output layer. result: kSums for logits, or kGreatest.
gpu::Product output_product(const Matrix& head, uint32_t rows, gpu::ProductResult result, const ModelConfig& config);

struct LayerPlan {
    // o and down may end in the residual stream (ProductResult::kResidual): the products that follow apply the norm's
    // factor. gate_up may end in the activation (kGated).
    gpu::MatmulPlan qkv, o, gate_up, down;
    InputForm o_input = InputForm::kRows;
    gpu::MatmulPlan router, shared_gate;       // of layers with experts, whose gate_up and down are the shared expert's
    gpu::MatmulPlan ple_gate, ple_projection;  // of layers with embeddings per layer
    uint32_t rows = 0;        // capacity after attention: of all rows, or in the last layer of those with an output
    bool keeps_rows = false;  // after attention only rows with an output are computed
    AdapterMethod method = AdapterMethod::kConsumers;  // after attention
};

struct StepPlan {
    StepShape shape;
    // of LayerSchedule::kSeparate one for each layer; of kApart and kBetween one, of which only qkv counts; of
    // kOneDispatch none
    std::vector<LayerPlan> layers;
    gpu::MatmulPlan ple_model;  // of models with embeddings per layer
    gpu::MatmulPlan output;     // of steps with outputs: logits, or rows' greatest ones alone
    bool defers_norms = false;
};

// `merged`: the weights of weight set 1, whose adapters may bring biases; null for the model's own.
StepPlan plan_step(const gpu::KernelPlanner& kernels, const ModelConfig& config, const ModelWeights& weights,
                   const MergedWeights* merged, const StepShape& shape);

// For people: a line for each decision, layers that are alike together.
std::string describe(const StepPlan& plan, const ModelConfig& config);

}  // namespace lorad::model
