// The kernels that work row by row: embedding, norms, activation, copies.
#pragma once

#include "gpu/command.h"
#include "gpu/kernels/consumer_shape.h"
#include "gpu/kernels/formats/weight_format.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/rows/add_norm.params.h"
#include "gpu/kernels/rows/copy_words.params.h"
#include "gpu/kernels/rows/embed.params.h"
#include "gpu/kernels/rows/finish_sums.params.h"
#include "gpu/kernels/rows/gated_act.params.h"
#include "gpu/kernels/rows/gather_rows.params.h"
#include "gpu/kernels/rows/norm_pair.params.h"
#include "gpu/kernels/rows/ple.params.h"
#include "gpu/kernels/rows/read_stream.params.h"
#include "gpu/kernels/rows/rms_norm.params.h"
#include "gpu/kernels/rows/row_normalize.params.h"
#include "gpu/kernels/rows/sum_parts.params.h"

namespace lorad::gpu {

// The work of add_norm beside its norm.
struct Closing {
    float multiplier = 1.0f;    // on what is added, behind its norm
    float stream_scale = 1.0f;  // on the sum
    // of the LoRA table: adapters may have weights of their own for the norm of what is added, whose addresses lie in
    // front of slot_norms
    uint32_t n_after_slots = 0;
    bool raw = false;  // without gamma: xn is the sum as it is
};

enum class RowOperation : uint32_t { kSoftmax = 0, kLayerNorm = 1, kRmsNorm = 2 };

class RowPlanner : public Planner {
  public:
    explicit RowPlanner(const KernelFacts& facts) : Planner(facts) {}

    // Returns true if gated_act runs on matrices, which add the adapters' part in another order.
    bool gates_by_matrix(const GatedActParams& params, const ConsumerShape& shape, ScalarType act_type) const;
};

// Each method records one dispatch unless it says otherwise. Several threads may record at once, each into its own
// Recorder.
class RowKernels : public RowPlanner, private KernelRecorder {
  public:
    RowKernels(const KernelFacts& facts, KernelCache& cache) : RowPlanner(facts), KernelRecorder(cache) {}

    // x[t] = table[token[t]] * scale. Moves 2-4 H bytes in, 4 H out, per row.
    void embed(Recorder& recorder, const EmbedParams& params, WeightKind table, uint32_t rows);
    // y[t] = x[row] * rsqrt(mean(x[row]^2) + eps) * gamma. Moves 4 H in, 2-4 H out, per row.
    void rms_norm(Recorder& recorder, const RmsNormParams& params, ScalarType act_type, uint32_t rows,
                  uint32_t fragment_order = kFragmentsByColumns);
    // x[t] += sum over splits + bias + LoRA; xn[t] = rms_norm(x[t]) * gamma. Moves 4 (S + 1) H in, 4-8 H out, per row.
    void add_norm(Recorder& recorder, const AddNormParams& params, const ConsumerShape& shape, ScalarType act_type,
                  uint32_t fragment_order = kFragmentsByColumns, const Closing& closing = {});
    // act[t][f] = activation(gate) * up, each with splits, bias and LoRA. Moves 8 S F in, 2-4 F out, per row.
    void gated_act(Recorder& recorder, const GatedActParams& params, const ConsumerShape& shape, Activation activation,
                   ScalarType act_type, uint32_t fragment_order = kFragmentsByColumns);
    // to[t] = sum over splits + bias + LoRA of a group of modules, f32, for readers of finished sums. Moves 4 (S + 1)
    // n, per row.
    void sum_parts(Recorder& recorder, const SumPartsParams& params, const ConsumerShape& shape);
    // The first split of a product's sums becomes its finished result, with bias and LoRA, and with RMS norms over all
    // columns of a module. Behind it the product counts as one of one split, without bias and adapters.
    void finish_sums(Recorder& recorder, const FinishSumsParams& params, const ConsumerShape& shape);
    // y[t] = the sum of the RMS norms of a[t] and b[t], each with weights of its own. Moves 12 H, per row.
    void norm_pair(Recorder& recorder, const NormPairParams& params, uint32_t rows);
    // Embeddings per layer: of all layers; and what one layer's gate lets through of its own.
    void ple_rows(Recorder& recorder, const PleRowsParams& params, ScalarType table_type, uint32_t n_layers,
                  uint32_t rows);
    void ple_gate(Recorder& recorder, const PleGateParams& params, const ConsumerShape& shape, ScalarType act_type);
    // to[t] = from[row of logit row t]. Moves the rows in and out.
    void gather_rows(Recorder& recorder, const GatherRowsParams& params, uint32_t rows);
    // to = from, a multiple of 16 bytes; either may lie in host memory.
    void copy_words(Recorder& recorder, DeviceAddress from, DeviceAddress to, uint64_t n_bytes);
    // Softmax, layer norm or RMS norm of each row, one type in and out. Moves the rows in and out. row_threads, to
    // compare: a power of two of threads for a row, a subgroup at least; 0: what is best for the size.
    void row_normalize(Recorder& recorder, RowOperation operation, const RowNormalizeParams& params, ScalarType type,
                       uint32_t rows, uint32_t row_threads = 0);
    // Reads memory and keeps nothing: the ceiling that benchmarks divide by. loads: 16-byte words of a thread in
    // flight.
    void read_stream(Recorder& recorder, const ReadStreamParams& params, uint32_t loads);
};

}  // namespace lorad::gpu
