// The base model's tensors on the device, in the layouts that the kernels read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/formats/weight_format.h"
#include "gpu/kernels/scalar_type.h"
#include "model/config/config.h"
#include "model/files/safetensors.h"
#include "proto/base/result.h"

namespace lorad::model {

// Neighbouring rows of a packed matrix, in bricks of one format.
struct MatrixPart {
    gpu::WeightFormat format = gpu::WeightFormat::kF32;
    uint32_t row_begin = 0, n = 0;
    uint64_t offset = 0;  // of the first brick in the matrix' buffer

    bool has_row(uint32_t row) const { return row >= row_begin && row - row_begin < n; }
};

// Plain: row-major [n_padded][k_stride] in the type that WeightLoader::create() says; rows and columns beyond n and k
// are zero.
// Packed: in few bits, as its parts say (gpu/kernels/formats/weight_format.h). `type` is then what its numbers become
// where something needs a plain matrix: for products on matrix units of many rows, and merged copies.
struct Matrix {
    gpu::Buffer buffer;
    uint32_t n = 0, k = 0;
    uint32_t n_padded = 0;  // n rounded up to 64
    uint32_t k_stride = 0;  // k rounded up to 64
    gpu::ScalarType type = gpu::ScalarType::kF32;
    std::vector<MatrixPart> parts = {};  // of a packed matrix, by rows; else empty

    bool is_packed() const { return !parts.empty(); }
    uint64_t row_bytes() const { return uint64_t{k_stride} * gpu::bytes_of(type); }  // plain
    uint64_t plain_bytes() const { return row_bytes() * n_padded; }
    uint64_t device_bytes() const;
    // The part of a packed matrix that has this row.
    const MatrixPart& part_of(uint32_t row) const;
    gpu::DeviceAddress address_of(const MatrixPart& part) const { return buffer.address() + part.offset; }
    // Of a matrix that is plain or has one part: what a kernel needs to read it as a whole.
    gpu::WeightKind kind() const;
    gpu::DeviceAddress address() const;
};

// f32 [size rounded up to 64], widened from the file's type.
struct Vector {
    gpu::Buffer buffer;
    uint32_t n = 0;
    gpu::DeviceAddress address() const { return buffer ? buffer.address() : 0; }
};

// A member that the layer does not have is empty.
struct LayerWeights {
    Vector input_norm;        // [H], in front of the mixer,
    Vector mixer_after_norm;  // and of what it gives
    // rows q, k, v, as many as the layer has; of other mixers what their input is multiplied by
    Matrix qkv;
    Vector qkv_bias;
    Vector q_norm, k_norm;   // [D]; QkNorm::kFullWidth: of all heads
    Vector sinks;            // [heads]
    Vector conv, conv_bias;  // [channels][taps], [channels]: of mixers with a convolution,
    Vector a_log, dt_bias;   // [value heads], and of delta nets and Mamba,
    Vector skip;             // [heads], of Mamba alone: D,
    Vector delta_norm;       // [size of a value head], of Mamba [heads * size]
    Matrix o;                // what the mixer ends with
    Vector o_bias;
    Vector ffn_norm;        // [H], in front of the feed-forward,
    Vector ffn_after_norm;  // and of what it gives
    Matrix gate_up;         // rows gate, up
    Vector gate_up_bias;
    Matrix down;
    Vector down_bias;
    // Experts; gate_up and down are the shared one's then, or, with FeedForward::kDenseAndExperts, of the dense half.
    Matrix router;                    // [experts][H]
    Vector router_bias, choice_bias;  // [experts]; the second is on what they are chosen by alone
    Vector expert_scale;              // [experts]: on the weights of those that are chosen
    // [H]: of the residual stream for router and experts, where they do not read what the dense half reads,
    Vector router_norm, expert_norm;
    Vector dense_after_norm, expert_after_norm;  // and of what each half gives
    Matrix shared_gate;                          // [1][H]
    // the experts' matrices one behind the other: [experts * 2 I][H], rows gate, up of each, or in turns,
    Matrix expert_gate_up;
    Matrix expert_down;                            // [experts * H][I]
    Vector expert_gate_up_bias, expert_down_bias;  // [experts][2 I], [experts][H]
    Matrix ple_gate, ple_projection;               // of LayerFacts::per_layer_input
    Vector ple_norm;                               // [H], of what they give
    float stream_scale = 1.0f;                     // of LayerFacts::stream_scale
};

struct ModelWeights {
    Matrix embedding;  // [V][H]
    std::vector<LayerWeights> layers;
    Vector final_norm;
    Matrix lm_head;  // empty where the embedding is tied
    // embeddings per layer: [tokens][layers * numbers], and of the embedding's rows [layers * numbers][H]
    Matrix ple_table, ple_model;
    Vector ple_model_norm;  // [numbers]
    const Matrix& output() const { return lm_head.n != 0 ? lm_head : embedding; }
};

// Bytes by format, for people: "q4_K 3981.2 MiB, q6_K 512.0 MiB".
std::string describe_formats(const ModelWeights& weights);
// 1 << number_of(format) for each packed format in it.
uint32_t packed_formats_of(const ModelWeights& weights);

struct WeightOptions {
    // The type of all matrices. Without one each keeps its own; if some are packed, all become what the model was made
    // in (ModelConfig::dtype, else f16), as do matrices of several types that are joined to one.
    std::optional<gpu::ScalarType> type = std::nullopt;
    // Matrices that a file holds in few bits stay so on the device, where all of a joined matrix can
    // (MatrixSource::device_format()).
    bool keeps_packed = true;
};

// Called from the loading thread with bytes done and in all; at most about a hundred times.
using LoadProgress = std::function<void(uint64_t n_bytes_done, uint64_t n_bytes)>;

struct WeightPart;  // weight_inventory.h

// Brings the tensors of a folder to the device in three steps, so that memory can be planned before anything is
// allocated, and addresses are known before the data has arrived.
class WeightLoader {
  public:
    // Fills `weights` with sizes and types. Refuses tensors that are missing, unknown, or of another shape or type than
    // the config asks for: the message names the tensor, what was expected and what was found. All three outlive the
    // loader.
    static Result<std::unique_ptr<WeightLoader>> create(const TensorFiles& files, const ModelConfig& config,
                                                        ModelWeights& weights, const WeightOptions& options = {});
    ~WeightLoader();

    // The tensors that a folder of this model would hold, in the type it was made in and without their numbers, which
    // are zeros: to plan for a model of which only its config is there. Not of a model whose config says that its files
    // are quantized (kInvalidModel): how is in the files.
    static Result<TensorFiles> imagine(const ModelConfig& config);

    uint64_t device_bytes() const;
    // Makes the buffers. kOutOfMemory compares the bytes with what is free.
    Status allocate(gpu::Device& device);
    // Copies everything and waits until it has arrived.
    Status upload(gpu::Device& device, const LoadProgress& progress);

  private:
    explicit WeightLoader(std::vector<WeightPart> parts);
    static Status upload_vector(gpu::Device& device, const WeightPart& part);
    static Status upload_matrix(gpu::Device& device, const WeightPart& part,
                                const std::function<void(uint64_t)>& on_bytes);
    static Status upload_packed(gpu::Device& device, const WeightPart& part,
                                const std::function<void(uint64_t)>& on_bytes);
    static void place_packed(std::vector<WeightPart>& parts, const Matrix& always_plain);
    static Status bind(const TensorFiles& files, const ModelConfig& config, std::optional<gpu::ScalarType> type,
                       std::vector<WeightPart>& parts);
    std::vector<WeightPart> parts_;
};

}  // namespace lorad::model
