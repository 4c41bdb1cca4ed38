// The forward and the backward pass of a micro-batch, one method a part, in the order in which they run:
//
//   shadows, inverse_norms (once a step)   embed   layer 0, 1, ...   head   layer_backward ..., 1, 0   embed_backward
//
// The stream and its gradient are f32; the gradient of the stream is added into as the backward pass goes down. What a
// layer keeps, and what is computed again, is TrainSizes' matter. Gradients of trained tensors are added to what is
// there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu/command.h"
#include "gpu/kernels/train/train_kernels.h"
#include "model/config/config.h"
#include "model/train/micro_batch.h"
#include "model/train/train_memory.h"
#include "model/train/train_model.h"
#include "model/train/train_parameters.h"
#include "model/train/train_tables.h"
#include "model/weights/weights.h"

namespace lorad::model {

struct TrainPassContext {
    gpu::TrainKernels& kernels;
    const ModelConfig& config;
    const ModelWeights& weights;
    const TrainSizes& sizes;
    const TrainBuffers& buffers;
    // The first job's model. A job that trains more than pairs on linear modules and on the output layer has no other
    // job beside it.
    const TrainModel& model;
    const TrainParameters& parameters;
    uint32_t first_trained_layer = 0;  // of all jobs
};

// The dropout that a step applies to the pairs' inputs; p 0: none.
struct TrainDropout {
    float p = 0.0f;
    uint64_t seed = 0;
    uint32_t step = 0;
};

// One job's part of a micro-batch.
struct TrainJobRows {
    const TrainSlot* slot = nullptr;
    MicroBatchPart part;
    TrainDropout dropout = {};
};

// The rows of one micro-batch, whose tables lie at `tables_at` when the recording runs.
struct TrainRows {
    const MicroBatch& batch;
    const TrainTables& tables;
    gpu::DeviceAddress tables_at = 0;
    std::span<const TrainJobRows> jobs;
    bool has_few = false;  // products give each row the same bits whatever other jobs' rows there are
};

// One thread. Each method records what it says, and ends with a barrier.
class TrainPass {
  public:
    explicit TrainPass(const TrainPassContext& context)
        : context_(context), kernels_(context.kernels), config_(context.config), sizes_(context.sizes) {}

    // Records the shadows of the trained pairs as they are, where there are any.
    void shadows(gpu::Recorder& recorder, const TrainSlot& slot) const;
    // Records the inverse norms of the outputs with magnitudes, from the trained values as they are.
    void inverse_norms(gpu::Recorder& recorder, const TrainSlot& slot) const;
    // Records the biases of the groups that train one, from the trained values as they are.
    void biases(gpu::Recorder& recorder, const TrainSlot& slot) const;
    void embed(gpu::Recorder& recorder, const TrainRows& rows) const;
    void layer(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer) const;
    // Losses, and with gradients those of the stream behind the last layer.
    void head(gpu::Recorder& recorder, const TrainRows& rows, bool with_gradients) const;
    void layer_backward(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer) const;
    void embed_backward(gpu::Recorder& recorder, const TrainRows& rows) const;

  private:
    // Addresses of a layer's activations.
    struct LayerAt {
        gpu::DeviceAddress normed, qkv_sums, qkv, turned, lse, attention, o_sums, middle, middle_normed, gate_up_sums,
            gate_up, down_sums;
        uint32_t set;
    };
    LayerAt at(uint32_t layer) const;
    gpu::DeviceAddress stream(uint32_t layer) const;
    gpu::DeviceAddress gamma(const Vector& base, const std::optional<uint32_t>& trained) const;

    void layer_to_down(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer, const LayerAt& at,
                       bool with_down) const;
    // *: TrainSizes::act_type.
    gpu::TrainMatrix kept(gpu::DeviceAddress address, uint32_t stride) const {
        return {address, stride, sizes_.act_type};
    }
    // Of gate and up, in 16 bits, for the gradients of their magnitudes.
    void keep_gate_up_sums(gpu::Recorder& recorder, const LayerAt& at, const gpu::TrainMatrix& sums,
                           uint32_t n_rows) const;
    // h from gate and up, and from their sums, if these are given, what is kept of them.
    void act(gpu::Recorder& recorder, const LayerAt& at, gpu::DeviceAddress sums, uint32_t n_rows) const;
    void norm(gpu::Recorder& recorder, gpu::DeviceAddress x, gpu::DeviceAddress gamma, gpu::DeviceAddress y,
              uint32_t n_rows) const;
    // dnormed's gradient onto dstream; x: what was normed.
    void norm_backward(gpu::Recorder& recorder, gpu::DeviceAddress x, gpu::DeviceAddress gamma,
                       const std::optional<uint32_t>& trained, uint32_t n_rows) const;
    gpu::TrainHeadsParams heads_params(const TrainRows& rows, uint32_t layer, const LayerAt& at) const;
    // Records the probabilities of one wave, in the scores' place.
    void probabilities(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer, const LayerAt& at,
                       uint32_t wave_idx) const;
    gpu::TrainSoftmaxParams softmax_params(const TrainRows& rows, uint32_t layer, uint32_t wave_idx) const;
    gpu::TrainFlashParams flash_params(const TrainRows& rows, uint32_t layer, const LayerAt& at) const;
    void attend_backward_by_waves(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer,
                                  const LayerAt& at) const;
    void attend_backward_by_flash(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer,
                                  const LayerAt& at) const;
    void attend(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer, const LayerAt& at) const;
    void attend_backward(gpu::Recorder& recorder, const TrainRows& rows, uint32_t layer, const LayerAt& at) const;

    // One job's pair on the output layer, and its rows of a chunk.
    struct HeadPairAt {
        const TrainParameters& parameters;
        const TrainedPairPlaces& pair;
        uint32_t n_rows = 0;
        gpu::TrainMatrix x = {}, dx = {}, logits = {}, low = {}, dlow = {};
        // Where a step drops of x: what is left lies in a place of its own, which gives way to its gradient.
        gpu::TrainDropoutParams dropout = {};
        bool drops = false;
        gpu::TrainMatrix left = {};
        const gpu::TrainMatrix& input() const { return drops ? left : x; }
    };
    // `n_rows` target rows from `first` on: the output layer, which is plain, the rows' inputs of it, their logits and
    // the low-rank parts of both, with the gradients' places.
    struct HeadAt {
        const TrainRows& rows;
        gpu::TrainMatrix w;
        uint32_t first = 0, n_rows = 0;
        std::optional<TrainedPlace> whole = {};  // the output layer, where it is trained itself
        gpu::TrainMatrix x = {}, dx = {}, logits = {};
        std::vector<HeadPairAt> pairs = {};
    };
    HeadAt head_at(const TrainRows& rows, const gpu::TrainMatrix& w, uint32_t first, uint32_t n_rows) const;
    // Logits and losses; with gradients, those of the logits.
    void head_chunk(gpu::Recorder& recorder, const HeadAt& at, bool with_gradients) const;
    void head_chunk_backward(gpu::Recorder& recorder, const HeadAt& at) const;
    void head_pairs_backward(gpu::Recorder& recorder, const HeadAt& at) const;
    // What a step leaves of the pairs' inputs, and what comes of the gradients of these. The first ends with a barrier.
    void drop_inputs(gpu::Recorder& recorder, const HeadAt& at) const;
    void add_dropped_gradients(gpu::Recorder& recorder, const HeadAt& at) const;

    // A product of a layer with what is trained on it: its input, its sums, and the rows' low-rank parts.
    struct GroupAt {
        const TrainGroup& group;
        gpu::TrainMatrix x, sums;
        const TrainRows& rows;
        uint32_t layer = 0;
        TrainGroupIndex index = kTrainQkv;
        uint32_t set = 0;  // of the layer's activations
        uint32_t n_rows() const { return rows.batch.n_rows(); }
        // Shadows are more k of the base's product, but where others' rows may be beside.
        bool stacks_shadows() const { return !rows.has_few; }
        // Of the gradients: what a step drops of a pair's input lies between its A and what the base adds.
        bool joins_shadows_backward() const { return stacks_shadows() && rows.jobs.front().dropout.p == 0; }
        // What a step drops of an input is dropped of the base's product, too. Such a job is alone.
        bool drops_base() const { return group.has_magnitudes() && rows.jobs.front().dropout.p > 0; }
    };
    // One job's trained part of the group, and its rows.
    struct JobAt {
        const TrainJobRows& job;
        const TrainGroup& group;
        const GroupShadow* shadow;  // with pairs, where there are shadows
        uint32_t n_rows() const { return job.part.n_rows; }
        const TrainParameters& parameters() const { return *job.slot->parameters; }
        gpu::TrainMatrix of(const gpu::TrainMatrix& matrix) const;  // the job's rows
        gpu::TrainMatrix low(uint32_t set, uint32_t linear) const;
        gpu::TrainMatrix dlow(uint32_t linear) const;
        uint32_t first_linear() const;
        bool drops() const { return job.dropout.p > 0; }
        gpu::TrainMatrix shadow_a(gpu::ScalarType type) const;
        gpu::TrainMatrix shadow_b(gpu::ScalarType type) const;
        // One pair's A as products read it, and how many rows it has.
        gpu::TrainMatrix pair_a(uint32_t linear, gpu::ScalarType shadow_type) const;
        uint32_t n_pair_rows(uint32_t linear) const;
    };
    // Jobs that train something there.
    std::vector<JobAt> jobs_at(const GroupAt& at) const;
    // A step's dropout of the rows with these keys, but where they lie. module: a linear's index; the output layer's
    // is the number of linears.
    static gpu::TrainDropoutParams dropout_params(const TrainDropout& dropout, gpu::DeviceAddress row_keys,
                                                  uint32_t columns, uint32_t module);
    // Applies a step's dropout to a pair's input, or to its gradient. Ends with a barrier.
    void drop(gpu::Recorder& recorder, const GroupAt& at, const JobAt& job, uint32_t linear, const gpu::TrainMatrix& x,
              const gpu::TrainMatrix& to, gpu::TrainDropoutForm form) const;
    // The address of a matrix of the base for products. A packed one is unpacked there first: it is complete behind the
    // next barrier and stays until the next such call.
    gpu::TrainMatrix plain(gpu::Recorder& recorder, const Matrix& w) const;
    void product(gpu::Recorder& recorder, const GroupAt& at) const;
    // Adds what the pairs make of their low rows to the sums.
    void add_lows(gpu::Recorder& recorder, const GroupAt& at) const;
    void lows(gpu::Recorder& recorder, const GroupAt& at) const;
    void lows_of(gpu::Recorder& recorder, const GroupAt& at, const JobAt& job) const;
    GroupAt group(const TrainRows& rows, const LayerAt& here, uint32_t layer, TrainGroupIndex index,
                  const gpu::TrainMatrix& x, const gpu::TrainMatrix& sums) const;
    // to = base + gain * sums + bias; base.address 0: none.
    void finish(gpu::Recorder& recorder, const GroupAt& at, const gpu::TrainMatrix& to,
                const gpu::TrainMatrix& base) const;
    // to = base + (gain - less) * from + bias; addresses 0: none.
    struct Scaled {
        gpu::TrainMatrix from, to, base = {};
        gpu::DeviceAddress bias = 0;
        float less = 0.0f;
    };
    void scale(gpu::Recorder& recorder, const GroupAt& at, const Scaled& scaled) const;
    // The gradients of what is trained in the group, and dx, from those of finish()'s output. dsums: where those of the
    // sums may be, which may be dout.
    void group_backward(gpu::Recorder& recorder, const GroupAt& at, const gpu::TrainMatrix& dout,
                        const gpu::TrainMatrix& dsums, const gpu::TrainMatrix& dx) const;
    // The gradients of trained biases, from those of finish()'s output.
    void biases_backward(gpu::Recorder& recorder, const GroupAt& at, const gpu::TrainMatrix& dout) const;
    // The gradients of the magnitudes, from the sums and those of finish()'s output.
    void magnitudes_backward(gpu::Recorder& recorder, const GroupAt& at, const gpu::TrainMatrix& dout) const;
    // dx.address 0: nobody wants it.
    void product_backward(gpu::Recorder& recorder, const GroupAt& at, const gpu::TrainMatrix& dsums,
                          const gpu::TrainMatrix& dx) const;
    // dlow of a job's pairs, and the gradients of their B.
    void b_backward(gpu::Recorder& recorder, const GroupAt& at, const JobAt& job, const gpu::TrainMatrix& dsums) const;
    // What a base product of left inputs needs in the backward pass; address 0: there is none.
    struct LeftOfBase {
        gpu::TrainMatrix w = {}, dsums = {};
    };
    // The gradients of A, and what they add to dx.
    void a_backward(gpu::Recorder& recorder, const GroupAt& at, const JobAt& job, const gpu::TrainMatrix& dx,
                    const LeftOfBase& left) const;

    // train_pass_dropout.cpp says what these compute. base: the group's whole product.
    void product_of_left(gpu::Recorder& recorder, const GroupAt& at, const JobAt& job,
                         const gpu::TrainProduct& base) const;
    void add_rest(gpu::Recorder& recorder, const GroupAt& at, const gpu::TrainMatrix& to) const;
    void left_backward(gpu::Recorder& recorder, const GroupAt& at, const gpu::TrainMatrix& dout,
                       const gpu::TrainMatrix& dsums, const gpu::TrainMatrix& dx) const;
    void base_backward(gpu::Recorder& recorder, const GroupAt& at, const TrainPart& part, const LeftOfBase& left,
                       const gpu::TrainMatrix& dinput) const;

    static gpu::TrainMatrix columns_from(const gpu::TrainMatrix& matrix, uint32_t column);
    static gpu::TrainMatrix rows_from(const gpu::TrainMatrix& matrix, uint32_t row);

    TrainPassContext context_;
    gpu::TrainKernels& kernels_;
    const ModelConfig& config_;
    const TrainSizes& sizes_;
};

}  // namespace lorad::model
