// The parts of a pass over a model's layers: products with what adapters add, and what follows them. Internal to
// forward*.cpp.
#pragma once

#include <cstddef>
#include <vector>

#include "gpu/command.h"
#include "gpu/kernels/kernels.h"
#include "model/forward/forward.h"
#include "model/forward/forward_adapters.h"
#include "model/forward/weight_products.h"
#include "model/step/step_plan.h"
#include "model/step/step_state.h"

namespace lorad::model {

// Letters as in gpu/kernels/kernels.h: T rows, H hidden, Q/K heads, D head dim, F ffn, V vocabulary. For one recording.
class PassParts {
  protected:
    using DeviceAddress = gpu::DeviceAddress;
    using ScalarType = gpu::ScalarType;

    PassParts(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan);

    // A recorded product of the layer's input.
    struct Product {
        gpu::MatmulPlan plan;
        bool has_adapters = false;  // its sums include what the rows' adapters add
    };

    // The plan and the input of a product: in rows, in fragments (gpu/kernels/products/activation_fragments.h) or, if
    // adapters' shrinks read the rows, in both.
    struct Input {
        gpu::MatmulPlan plan;
        DeviceAddress rows = 0, fragments = 0;
        // of residual(), which the norm's factors are still to be found from; 0: they are in it
        uint32_t norm_tiles = 0;

        DeviceAddress of_product() const { return fragments != 0 ? fragments : rows; }
    };

    // Header and rows of those that are worked on.
    DeviceAddress rows_state() const {
        static_assert(offsetof(gpu::StepHeader, n_rows) == 0);
        return step_ + rows_header_;
    }

    Input input_of(const gpu::MatmulPlan& plan, const gpu::Buffer& buffer) const;

    // The input of o's product, in the form that it is planned for.
    Input attention_input(const Matrix& o, const LayerPlan& plan);

    // The norm that comes with the sum of a residual, or the sum as it is; without an input to write there is neither.
    struct NextNorm {
        DeviceAddress gamma = 0;  // 0: as it is
        DeviceAddress slot_norms = 0;
        ScalarType weight_type = ScalarType::kF32;  // of the matrix that reads its result,
        Input to = {};                              // from here
    };
    NextNorm input_norm(uint32_t layer, const Input& to) const;
    NextNorm ffn_norm(uint32_t layer, const Input& to) const;

    uint32_t hidden_stride() const { return gpu::padded(config_.hidden_size); }
    template <typename MatrixOrVector>
    DeviceAddress address_of(const MatrixOrVector& weights) const {
        return context_.address_of(weights, shape_.weight_set);
    }
    const MergedWeights* merged() const { return shape_.weight_set != 0 ? context_.merged : nullptr; }
    ScalarType act_type(ScalarType weight_type) const { return kernels_.act_type(weight_type); }
    gpu::ConsumerShape consumer(const Product& product) const;

    void norm_first(const Input& to);

    // The base matrix product and, beside it without a barrier, the adapters' shrink, with expanded the expand behind
    // both; or the shrink, with stacked adapters also lora_stack, and after it the product with the adapters.
    Product linear(uint32_t layer, LoraGroup group, const Matrix& w, const Input& x);
    // For a product that does not add the adapters itself.
    Product linear_apart(uint32_t layer, LoraGroup group, const Matrix& w, const Input& x, const gpu::MatmulPlan& plan,
                         gpu::ProductArguments& arguments);
    // Records what a product in this form needs first, with a barrier behind it, and gives its arguments the adapters.
    void add_adapters(uint32_t layer, LoraGroup group, const Matrix& w, const Input& x, gpu::AdapterForm form,
                      gpu::ProductArguments& arguments);

    // The pages that the product behind this group's reads. Without adapters, prefetching them gains nothing
    // (docs/PERFORMANCE.md, "Addresses of what comes next").
    gpu::PrefetchPages next_weights(uint32_t layer, LoraGroup group) const;
    gpu::PrefetchPages pages_to_prefetch(const Matrix& w) const {
        return w.n == 0
                   ? gpu::PrefetchPages{}
                   : gpu::pages_to_prefetch(address_of(w), is_packed(w, merged()) ? w.device_bytes() : w.plain_bytes());
    }

    void gated_product(uint32_t layer, const LayerWeights& w, const Input& x, const Input& act);

    // The arguments that every implementation of a product reads, with the sums in y.
    gpu::ProductArguments arguments_of(const Matrix& w, const Input& x, const gpu::Buffer& y) const;

    // Records o or down, in front of the norm with these weights, whose result goes to `next`.
    void residual(const Matrix& w, const gpu::MatmulPlan& plan, DeviceAddress input, const Vector& bias,
                  const Vector& gamma, Input& next);

    // Adds a part's output, with the norm behind it if it has one, to the residual stream.
    void add_norm(uint32_t layer, LoraGroup group, const Product& product, const Matrix& w, const Vector& bias,
                  const Vector& after, const NextNorm& norm);

    // The address of the adapters' weights of the norm that would follow a part, also if none follows.
    DeviceAddress next_slot_norms(uint32_t layer, LoraGroup group) const;

    // Embeddings per layer: of the rows' tokens and of their embeddings, for all layers.
    void per_layer_inputs();

    // x += norm(projection(gelu(gate(x)) * the token's own numbers for the layer)), and the norm in front of the next
    // layer.
    void per_layer_part(uint32_t layer, const Input& input, const NextNorm& next);

    // The sums of a product with all that belongs to them, in the first split.
    Product finish(uint32_t layer, LoraGroup group, Product product, const Matrix& w);

    void gated_act(uint32_t layer, const LayerWeights& w, const Product& product, const Input& act);

    gpu::Recorder& recorder_;
    gpu::KernelSet& kernels_;
    const ModelConfig& config_;
    const ModelWeights& weights_;
    const Scratch& scratch_;
    const ForwardContext& context_;
    const StepPlan& plan_;
    const StepShape& shape_;
    const StepLayout layout_;
    const DeviceAddress step_;
    std::vector<LayerFacts> facts_;
    const Vector no_bias_;  // of matrices that have none in any model

    // The rows that are worked on, see keep_rows_with_outputs().
    uint32_t rows_;
    DeviceAddress x_, attention_;
    bool has_all_rows_ = true;
    uint64_t rows_header_ = 0;  // where the step state has their header, with their number in front
    AdapterMethod method_;
    AdapterPass adapters_;
    const WeightProducts products_;
};

}  // namespace lorad::model
