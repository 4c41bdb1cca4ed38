// Trained biases: a layer's own in place of the base's, and those of lora_B, which are scaled as their pairs are. Once
// a step they become one bias for each product, which is added where the base's is.
#include "model/train/train_pass.h"

namespace lorad::model {

using gpu::TrainMatrix;

void TrainPass::biases(gpu::Recorder& recorder, const TrainSlot& slot) const {
    if (slot.sizes.n_biases == 0) return;
    const auto n_bytes_of = [](uint32_t n) { return uint64_t{n} * sizeof(float); };
    const auto for_each_group = [&](const auto& visit) {
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            for (uint32_t g = 0; g < kTrainGroups; ++g) {
                const std::optional<uint32_t>& begin = slot.sizes.bias_begins[layer * kTrainGroups + g];
                if (begin) visit(slot.model.layers[layer].groups[g], *begin);
            }
        }
    };
    recorder.fill(slot.biases, 0, slot.biases.size(), 0);
    kernels_.barrier(recorder);
    for_each_group([&](const TrainGroup& group, uint32_t begin) {
        if (group.bias->address() != 0)
            recorder.copy(group.bias->buffer, 0, slot.biases, n_bytes_of(begin), n_bytes_of(group.w->n));
    });
    kernels_.barrier(recorder);
    const TrainParameters& parameters = *slot.parameters;
    for_each_group([&](const TrainGroup& group, uint32_t begin) {
        for (const TrainBiasPart& part : group.biases)
            recorder.copy(parameters.range(TrainParameters::Range::kValues),
                          parameters.layout().biases[part.bias].begin * sizeof(float), slot.biases,
                          n_bytes_of(begin + part.begin), n_bytes_of(part.n));
    });
    kernels_.barrier(recorder);
    for_each_group([&](const TrainGroup& group, uint32_t begin) {
        for (const TrainPart& part : group.parts) {
            if (!part.has_b_bias) continue;
            const TrainedPairPlaces& pair = parameters.layout().linears[*part.linear];
            kernels_.column_sums(recorder, {.to = slot.biases.address() + n_bytes_of(begin + part.begin),
                                            .a = parameters.value(pair.b_bias),
                                            .b = 0,
                                            .factor = 0,
                                            .n_columns = part.n,
                                            .n_parts = 1,
                                            .rows = 1,
                                            .a_stride = part.n,
                                            .b_stride = 0,
                                            .scale = pair.scale});
        }
    });
    kernels_.barrier(recorder);
}

void TrainPass::biases_backward(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& dout) const {
    const TrainParameters& parameters = context_.parameters;
    const auto add = [&](const TrainedPlace& place, uint32_t begin, uint32_t n, float scale) {
        kernels_.column_sums(recorder,
                             {.to = parameters.gradient(place),
                              .a = columns_from(dout, begin).address,
                              .b = 0,
                              .factor = 0,
                              .n_columns = n,
                              .n_parts = 1,
                              .rows = at.n_rows(),
                              .a_stride = dout.stride,
                              .b_stride = 0,
                              .scale = scale},
                             dout.type);
    };
    for (const TrainBiasPart& part : at.group.biases)
        add(parameters.layout().biases[part.bias], part.begin, part.n, 1.0f);
    for (const TrainPart& part : at.group.parts) {
        if (!part.has_b_bias) continue;
        const TrainedPairPlaces& pair = parameters.layout().linears[*part.linear];
        add(pair.b_bias, part.begin, part.n, pair.scale);
    }
    kernels_.barrier(recorder);  // what comes may scale the gradients where they lie
}

}  // namespace lorad::model
