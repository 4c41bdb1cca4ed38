// The kernels of training: products of any layout, and what goes row by row. Activations, gradients and trained values
// are f32; weights of the base have any type.
// On devices with cooperative matrices of a 16-bit type products round their operands to it and sum in f32. Sums run in
// a fixed order without atomics, so that the same recording on the same device gives the same bits.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/command.h"
#include "gpu/device.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/lora/lora_kernels.h"
#include "gpu/kernels/products/products.h"
#include "gpu/kernels/scalar_type.h"
#include "gpu/kernels/train/train_product.params.h"
#include "gpu/kernels/train/train_rows.params.h"
#include "proto/base/result.h"

namespace lorad::gpu {

// Rows of `stride` elements.
struct TrainMatrix {
    DeviceAddress address = 0;
    uint32_t stride = 0;
    ScalarType type = ScalarType::kF32;
};

// Rows that a product by warpgroups writes at once.
inline constexpr uint32_t kTrainTileRows = 128;
inline constexpr uint32_t kTrainMoreKMax = 512;
// The room for the parts of products, beside inputs in fragments.
inline constexpr uint64_t kTrainPartBytes = uint64_t{128} << 20;
// Rows that TrainProduct::has_few_rows is planned for, and that it may have.
inline constexpr uint32_t kTrainFewRows = 128, kTrainFewRowsMax = 1024;

// c[m][n] = alpha * a b, or that added to c.
struct TrainProduct {
    TrainMatrix a, b, c;           // c is f32
    bool a_is_m_major = false;     // a lies as [k][m], else as [m][k]
    bool b_is_n_major = false;     // b lies as [k][n], else as [n][k]
    uint32_t m = 0, n = 0, k = 0;  // with items the largest of each
    float alpha = 1.0f;
    bool adds = false;
    // b is padded with zeros to multiples of kWeightAlign both ways, and c has room for rows up to a multiple of
    // kTrainTileRows, and for padded columns, whose content does not matter.
    bool is_padded = false;
    // The cut of sums does not depend on m, which is up to kTrainFewRowsMax: a row of c has the same bits beside any
    // others.
    bool has_few_rows = false;
    // With more_k: c = a b + more_a more_b, a product without items. more_b lies like b, in the weights' type, of a
    // padded product with zeros behind more_k up to a multiple of kWeightAlign, which then is its stride if it has no
    // rows of k. more_k: up to kTrainMoreKMax.
    TrainMatrix more_a = {}, more_b = {};
    uint32_t more_k = 0;
    const char* name = nullptr;     // for profiles; null: the kernel's
    uint32_t causal = kCausalNone;  // of all items
    DeviceAddress items = 0;        // TrainProductItem[n_items], whose offsets are multiples of 4; 0: one product
    uint32_t n_items = 1;
};

struct TrainKernelOptions {
    // in which products may be computed on matrices, that of the base's weights; f32: never
    ScalarType matrix_type = ScalarType::kF32;
    uint32_t head_dim = 0, head_group = 1;  // of attention; head_group: query heads of a KV head
};

// The ways beside portable kernels that a device offers to training.
struct TrainRungs {
    ScalarType matrix_type = ScalarType::kF32;  // of products on matrices; f32: none
    bool has_warpgroups = false;                // for padded products
    bool has_flash = false;                     // attention without whole scores
};

enum class TrainDirection : uint32_t { kForward = 0, kBackward = 1 };

// train_rows.params.h says what each writes.
enum class TrainDropoutForm : uint32_t { kLeft = kDropoutLeft, kAdds = kDropoutAdds, kRest = kDropoutRest };

// One thread at a time. Each method records one dispatch (a product may be whole only behind barrier()); the params say
// what it does, `rows` how many rows there are.
class TrainKernels {
  public:
    // Shows on small data that the device's matrices give what portable kernels give; where they do not they are left
    // out with a warning.
    static Result<std::unique_ptr<TrainKernels>> create(Device& device, const TrainKernelOptions& options);
    // Takes memory for padded products whose a has so many bytes, in 16 bits and tiles of rows. Nothing that is
    // recorded is pending.
    Status reserve(Device& device, uint64_t block_bytes);
    // Bytes that reserve() takes.
    static uint64_t scratch_bytes(const TrainRungs& rungs, uint64_t block_bytes);
    // The first says what a device is expected to have, the second what it was found to have.
    static TrainRungs rungs_of(const DeviceCapabilities& capabilities, const TrainKernelOptions& options);
    TrainRungs rungs() const { return {matrix_type_, has_warpgroups_, has_flash_}; }
    TrainKernels(const TrainKernels&) = delete;
    TrainKernels& operator=(const TrainKernels&) = delete;
    // f32: products are computed in f32.
    ScalarType matrix_type() const { return matrix_type_; }
    // softmax() writes zeros as far as causal products by tiles of so many rows read: TrainSoftmaxParams::zero_tile.
    uint32_t zero_tile() const { return matrix_type_ == ScalarType::kF32 ? 0 : kCausalTile; }

    void product(Recorder& recorder, const TrainProduct& product);
    // is_transposed: the table is [hidden][vocab], as embedding LoRA's A.
    // Between products and what reads or adds to their results: a barrier, and sums of parts that were left to it. A
    // recording in parts may be cut there, and within long products.
    void barrier(Recorder& recorder);
    // Rows of `type` in 16 bits and in fragments (products/activation_fragments.h, kFragmentsByRows).
    void fragments(Recorder& recorder, const TrainFragmentsParams& params, ScalarType type, ScalarType to);
    void round(Recorder& recorder, const TrainRoundParams& params, ScalarType to, uint32_t rows);
    void round_items(Recorder& recorder, const TrainRoundItemsParams& params, ScalarType to);
    void sum_heads(Recorder& recorder, const TrainSumHeadsParams& params, uint32_t rows);
    // Numbers of a packed table are rounded to its matrix's type, as a plain copy has them.
    void embed(Recorder& recorder, const TrainEmbedParams& params, WeightKind table, bool is_transposed, uint32_t rows);
    void embed_backward(Recorder& recorder, const TrainEmbedBackwardParams& params, bool is_transposed,
                        uint32_t n_tokens);
    void norm(Recorder& recorder, TrainDirection direction, const TrainNormParams& params, uint32_t rows,
              ScalarType y_type = ScalarType::kF32);
    void heads(Recorder& recorder, TrainDirection direction, const TrainHeadsParams& params, uint32_t n_heads,
               uint32_t head_dim, uint32_t rotary_dim, uint32_t rows, ScalarType turned_type = ScalarType::kF32);
    // n_queries: of the longest run.
    void softmax(Recorder& recorder, TrainDirection direction, const TrainSoftmaxParams& params, uint32_t n_queries,
                 uint32_t n_runs);
    // Needs rungs() that have it. Backward: both kernels. Rows of several tiles are side by side.
    void flash(Recorder& recorder, TrainDirection direction, const TrainFlashParams& params, uint32_t n_heads);
    void dots(Recorder& recorder, const TrainDotsParams& params, uint32_t n_heads, uint32_t rows);
    void act(Recorder& recorder, TrainDirection direction, const TrainActParams& params, ScalarType type);
    void affine(Recorder& recorder, const TrainAffineParams& params, ScalarType type = ScalarType::kF32);
    // kAdds: of f32 alone.
    void dropout(Recorder& recorder, const TrainDropoutParams& params, TrainDropoutForm form, uint32_t rows,
                 ScalarType type = ScalarType::kF32);
    void column_sums(Recorder& recorder, const TrainColumnSumsParams& params, ScalarType type = ScalarType::kF32);
    void cross_entropy(Recorder& recorder, const TrainCrossEntropyParams& params, bool with_gradient, uint32_t rows);
    void grad_norm(Recorder& recorder, const TrainGradNormParams& params);
    void adamw(Recorder& recorder, const TrainAdamwParams& params);
    // gain[n] = gain[n] / || W[n] + scale (B A)[n] ||.
    void weight_norm(Recorder& recorder, const WeightNormParams& params, ScalarType weight_type) {
        lora_.weight_norm(recorder, params, weight_type);
    }

    // The kernels of serving, for work that training does in the same way.
    ProductKernels& products() { return products_; }

    static uint32_t grad_norm_groups(const TrainGradNormParams& params) {
        return (params.n + params.n_per_group - 1) / params.n_per_group;
    }

    // The first kernel that could not be made since the last call; the recording is incomplete then.
    Status status() { return cache_.status(); }

  private:
    template <typename Constants>
    const Kernel* kernel(const char* module, const Constants& constants, uint32_t subgroup_size = 0) {
        return cache_.find_or_make(module, words_of(constants), subgroup_size);
    }
    // Of modules that several files dispatch.
    struct RoundConstants {
        uint32_t threads, to, in_blocks, type;
    };
    // Of kernels that read rows of a type.
    struct TypedRowConstants {
        uint32_t threads, type;
    };
    TrainKernels(Device& device, const TrainKernelOptions& options);
    struct TestShape {
        uint32_t m, n, k;
    };
    Result<bool> gives_the_same_by(Device& device, ScalarType type, std::initializer_list<TestShape> shapes);
    static constexpr uint32_t kTrainTileThreads = 256;
    static const char* matrix_module(ScalarType type);
    // On software devices, and on those whose workgroups are too small for tiles.
    static bool multiplies_by_lanes(const DeviceCapabilities& capabilities);
    bool multiplies_by_matrix(const TrainProduct& product) const;
    bool multiplies_by_warpgroup(const TrainProduct& product) const;
    Status test_warpgroups(Device& device);
    Status test_flash(Device& device);
    // Attention and its gradients of `sums`, the heads before they are rounded, and `dout`.
    void record_flash_test(Recorder& recorder, const TrainFlashParams& params, DeviceAddress sums, DeviceAddress dout);
    static bool may_have_flash(const DeviceCapabilities& capabilities, const TrainKernelOptions& options);
    void product_by_matrix(Recorder& recorder, TrainProduct product);
    void product_by_warpgroup(Recorder& recorder, const TrainProduct& product);
    void matmul_by_warpgroup(Recorder& recorder, const TrainProduct& product, const MatmulParams& params,
                             DeviceAddress low, const MatmulPlan& plan);
    DeviceAddress take_scratch(Recorder& recorder, uint64_t n_bytes);
    uint32_t cut_k(Recorder& recorder, TrainProductParams& params, uint32_t n_tiles, const TrainProduct& product);
    void product_by_lanes(Recorder& recorder, TrainProduct product);
    void product_tiled(Recorder& recorder, const TrainProduct& product);
    uint32_t row_threads(uint32_t elements) const;

    TrainKernelOptions options_;
    KernelFacts facts_;
    KernelCache cache_;
    LoraKernels lora_;
    ProductKernels products_;
    // A sum over a product's parts of k that is left to barrier().
    struct LeftJoin {
        TrainJoinParams params;
        bool adds = false;
    };
    Buffer scratch_;                // parts of products, and inputs in fragments
    uint64_t n_scratch_bytes_ = 0;  // taken since the last barrier
    Buffer row_count_;              // more rows than there are
    // StackedWindow[kTrainMoreKMax / 64][tiles of rows]: so many steps of 64 for each tile
    Buffer windows_;
    std::vector<LeftJoin> left_;
    ScalarType matrix_type_ = ScalarType::kF32;
    bool has_narrow_tiles_ = false;  // and products whose k is cut
    bool has_warpgroups_ = false;
    bool has_flash_ = false;
};

}  // namespace lorad::gpu
