// The base model's tensors on the device, in the layouts that the kernels read.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/matmul_plan.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "proto/base/result.h"

namespace lorad::model {

// Row-major [n_padded][k_stride] in the file's type; rows and columns beyond n and k are zero.
struct Matrix {
    gpu::Buffer buffer;
    uint32_t n = 0, k = 0;
    uint32_t n_padded = 0;     // n rounded up to 64
    uint32_t k_stride = 0;     // k rounded up to 64
    gpu::ScalarType type = gpu::ScalarType::kF32;
};

// f32 [size rounded up to 64], widened from the file's type.
struct Vector {
    gpu::Buffer buffer;
    uint32_t n = 0;
    gpu::DeviceAddress address() const { return buffer ? buffer.address() : 0; }
};

struct LayerWeights {
    Vector input_norm;      // [H]
    Matrix qkv;             // rows q, k, v
    Vector qkv_bias;        // empty without
    Vector q_norm, k_norm;  // [D], empty without
    Matrix o;
    Vector o_bias;
    Vector post_attention_norm;  // [H]
    Matrix gate_up;              // rows gate, up
    Vector gate_up_bias;
    Matrix down;
    Vector down_bias;
};

struct ModelWeights {
    Matrix embedding;  // [V][H]
    std::vector<LayerWeights> layers;
    Vector final_norm;
    Matrix lm_head;  // empty where the embedding is tied
    const Matrix& output() const { return lm_head.n != 0 ? lm_head : embedding; }
};

// The model's matrices and vectors with sizes and types, but without buffers: enough to plan memory.
struct WeightsPlan {
    ModelWeights weights;
    uint64_t device_bytes = 0;
};

// Called from the loading thread with bytes done and in all; at most about a hundred times.
using LoadProgress = std::function<void(uint64_t n_bytes_done, uint64_t n_bytes)>;

// Refuses tensors that are missing, unknown, or of another shape or type than the config asks for: the message names the
// tensor, what was expected and what was found.
Result<WeightsPlan> plan_weights(const TensorFiles& files, const ModelConfig& config);

// Plans, compares with the device's free memory, uploads and waits for the copies.
Result<ModelWeights> load_weights(gpu::Device& device, const TensorFiles& files, const ModelConfig& config,
                                  const LoadProgress& progress = {});

}  // namespace lorad::model
