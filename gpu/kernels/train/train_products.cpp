// Products of training: by matrices, by lanes, by tiles; the sums over parts of k, which barrier() adds up. Those by
// warpgroups are in train_warpgroup.cpp.
#include <algorithm>
#include <utility>

#include "gpu/kernels/launch.h"
#include "gpu/kernels/train/train_kernels.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kTrainTile = 64;                                                         // of train_product_tiled
constexpr uint32_t kMatrixTile = 128, kHalfTile = 64, kNarrowTile = 32, kMatrixDepth = 32;  // of train_product_matrix
constexpr uint32_t kSplitMin = 256, kSplitsMax = 32;     // l of a part of k at least, and parts
constexpr uint32_t kLaneRowLoads = 2, kLaneColumns = 4;  // of train_product_lanes, where there are so many
constexpr uint32_t kTileLanes = 16;

TrainProductParams product_params_of(const TrainProduct& p) {
    return {.a = p.a.address,
            .b = p.b.address,
            .c = p.c.address,
            .items = p.items,
            .m = p.m,
            .n = p.n,
            .k = p.k,
            .a_i = p.a_is_m_major ? 1 : p.a.stride,
            .a_l = p.a_is_m_major ? p.a.stride : 1,
            .b_l = p.b_is_n_major ? p.b.stride : 1,
            .b_j = p.b_is_n_major ? 1 : p.b.stride,
            .c_i = p.c.stride,
            .c_j = 1,
            .alpha = p.alpha,
            .k_per_split = 0,
            .c_split = 0,
            .causal = p.causal,
            .pad = 0};
}

// The product of the transposed matrices, which is the transposed product.
void swap_sides(TrainProductParams& params) {
    std::swap(params.a, params.b);
    std::swap(params.m, params.n);
    std::swap(params.a_i, params.b_j);
    std::swap(params.a_l, params.b_l);
    std::swap(params.c_i, params.c_j);
}

DispatchInfo train_product_info(const char* name, const TrainProduct& p) {
    const uint64_t n_bytes =
        uint64_t{p.m} * p.k * bytes_of(p.a.type) + uint64_t{p.n} * p.k * bytes_of(p.b.type) + uint64_t{p.m} * p.n * 4;
    return {p.name != nullptr ? p.name : name, n_bytes * p.n_items, uint64_t{2} * p.m * p.n * p.k * p.n_items};
}

// Rows of it begin at multiples of 16 bytes.
bool has_aligned_rows(const TrainMatrix& matrix) {
    return matrix.address % 16 == 0 && matrix.stride % (16 / bytes_of(matrix.type)) == 0;
}

}  // namespace

const char* TrainKernels::matrix_module(ScalarType type) {
    return type == ScalarType::kBf16 ? "train_product_bf16" : "train_product_f16";
}

bool TrainKernels::multiplies_by_lanes(const DeviceCapabilities& caps) {
    return caps.subgroup_ballot && (caps.small_workgroups || threads_max(caps) < kTrainTileThreads);
}

void TrainKernels::product(Recorder& recorder, const TrainProduct& product) {
    CHECK(product.m != 0 && product.n != 0 && product.k != 0 && product.c.type == ScalarType::kF32);
    CHECK(!product.has_few_rows || (product.m <= kTrainFewRowsMax && product.items == 0 && product.more_k == 0));
    CHECK(product.causal == kCausalNone || zero_tile() == 0 || multiplies_by_matrix(product));
    if (multiplies_by_warpgroup(product)) {
        product_by_warpgroup(recorder, product);
        return;
    }
    if (product.more_k != 0) {
        TrainProduct first = product, more = product;
        first.more_k = 0;
        more = {.a = product.more_a,
                .b = product.more_b,
                .c = product.c,
                .b_is_n_major = product.b_is_n_major,
                .m = product.m,
                .n = product.n,
                .k = product.more_k,
                .adds = true,
                .name = "more k"};
        this->product(recorder, first);
        barrier(recorder);
        this->product(recorder, more);
        return;
    }
    if (multiplies_by_matrix(product)) {
        product_by_matrix(recorder, product);
    } else if (multiplies_by_lanes(facts_.capabilities)) {
        product_by_lanes(recorder, product);
    } else {
        product_tiled(recorder, product);
    }
}

bool TrainKernels::multiplies_by_matrix(const TrainProduct& product) const {
    if (matrix_type_ == ScalarType::kF32) return false;
    const auto fits = [&](const TrainMatrix& matrix) {
        return (matrix.type == ScalarType::kF32 || matrix.type == matrix_type_) && has_aligned_rows(matrix);
    };
    return fits(product.a) && fits(product.b) && has_aligned_rows(product.c);
}

void TrainKernels::product_by_matrix(Recorder& recorder, TrainProduct product) {
    TrainProductParams params = product_params_of(product);
    bool a_along_k = !product.a_is_m_major, b_along_k = !product.b_is_n_major;
    const bool may_be_narrow = has_narrow_tiles_;
    // Few rows become few columns, of which a tile may have fewer: the same product of the transposed matrices.
    const uint32_t planned_m = product.has_few_rows ? kTrainFewRows : params.m;
    if (may_be_narrow && product.items == 0 && planned_m <= kNarrowTile && params.n > params.m) {
        swap_sides(params);
        std::swap(product.a, product.b);
        std::swap(a_along_k, b_along_k);
    }
    const uint32_t tile_n = may_be_narrow && params.n <= kNarrowTile ? kNarrowTile
                            : may_be_narrow && params.n <= kHalfTile ? kHalfTile
                                                                     : kMatrixTile;
    const uint32_t across = ceil_div(params.n, tile_n), down = ceil_div(params.m, kMatrixTile);
    const uint32_t n_splits =
        product.items == 0 && has_narrow_tiles_
            ? cut_k(recorder, params, across * (product.has_few_rows ? ceil_div(planned_m, kMatrixTile) : down),
                    product)
            : 1;
    struct Constants {
        uint32_t threads, a_type, b_type, adds, a_along_k, b_along_k, subgroup, tile_n;
    };
    const Kernel* k = kernel(matrix_module(matrix_type_),
                             Constants{.threads = kTrainTileThreads,
                                       .a_type = static_cast<uint32_t>(product.a.type),
                                       .b_type = static_cast<uint32_t>(product.b.type),
                                       .adds = product.adds && n_splits == 1,
                                       .a_along_k = a_along_k,
                                       .b_along_k = b_along_k,
                                       .subgroup = facts_.capabilities.subgroup_size,
                                       .tile_n = tile_n},
                             facts_.capabilities.subgroup_size);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, across, down, product.items == 0 ? n_splits : product.n_items,
                      train_product_info(matrix_module(matrix_type_), product));
}

// Where there are too few tiles for the device, k is cut, and the parts are left to be summed. Fills in how; 1: it is
// not cut.
uint32_t TrainKernels::cut_k(Recorder& recorder, TrainProductParams& params, uint32_t n_tiles,
                             const TrainProduct& product) {
    const uint32_t wanted = ceil_div(multiprocessors(facts_.capabilities) * 2, n_tiles);
    const uint32_t n_splits = std::min({wanted, params.k / kSplitMin, kSplitsMax});
    if (n_splits < 2) return 1;
    const uint32_t per_split = round_up(ceil_div(params.k, n_splits), kMatrixDepth),
                   n_parts = ceil_div(params.k, per_split);
    const uint32_t stride = round_up(params.n, 4);
    const uint64_t part_bytes = uint64_t{stride} * sizeof(float) * (product.has_few_rows ? kTrainFewRowsMax : params.m);
    const uint64_t n_bytes = uint64_t{n_parts} * params.m * stride * sizeof(float);
    if (n_parts < 2 || n_parts * part_bytes > (product.has_few_rows ? kTrainPartBytes : scratch_.size())) return 1;
    const DeviceAddress parts = take_scratch(recorder, n_bytes);
    left_.push_back({{.parts = parts,
                      .c = params.c,
                      .m = params.m,
                      .n = params.n,
                      .stride = stride,
                      .n_parts = n_parts,
                      .c_i = params.c_i,
                      .c_j = params.c_j,
                      .alpha = params.alpha,
                      .part_rows = params.m},
                     product.adds});
    params.c = parts;
    params.c_i = stride;
    params.c_j = 1;
    params.alpha = 1.0f;
    params.k_per_split = per_split;
    params.c_split = params.m * stride;
    return n_parts;
}

void TrainKernels::product_by_lanes(Recorder& recorder, TrainProduct product) {
    TrainProductParams params = product_params_of(product);
    const uint32_t lanes = facts_.capabilities.subgroup_size;
    // Lanes go along the longer side where the other would leave them idle: the same product of the transposed
    // matrices.
    if (product.n < lanes * kLaneColumns && product.m > product.n && product.items == 0) {
        swap_sides(params);
        std::swap(product.a, product.b);
    }
    const bool has_few = lanes <= kTileLanes;  // sums of all rows and columns of a tile are in registers
    const uint32_t row_loads = has_few && params.m > lanes ? kLaneRowLoads : 1,
                   columns = has_few && params.n > lanes ? kLaneColumns : 1;
    struct Constants {
        uint32_t threads, a_type, b_type, adds, lanes, row_loads, columns;
    };
    const Kernel* k = kernel("train_product_lanes",
                             Constants{.threads = lanes,
                                       .a_type = static_cast<uint32_t>(product.a.type),
                                       .b_type = static_cast<uint32_t>(product.b.type),
                                       .adds = product.adds,
                                       .lanes = lanes,
                                       .row_loads = row_loads,
                                       .columns = columns},
                             lanes);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.n, lanes * columns), ceil_div(params.m, lanes * row_loads),
                      product.n_items, train_product_info("train_product_lanes", product));
}

void TrainKernels::product_tiled(Recorder& recorder, const TrainProduct& product) {
    struct Constants {
        uint32_t threads, a_type, b_type, adds, a_along_k, b_along_k;
    };
    const Kernel* k = kernel("train_product_tiled", Constants{.threads = kTrainTileThreads,
                                                              .a_type = static_cast<uint32_t>(product.a.type),
                                                              .b_type = static_cast<uint32_t>(product.b.type),
                                                              .adds = product.adds,
                                                              .a_along_k = !product.a_is_m_major,
                                                              .b_along_k = !product.b_is_n_major});
    if (k == nullptr) return;
    recorder.dispatch(*k, product_params_of(product), ceil_div(product.n, kTrainTile), ceil_div(product.m, kTrainTile),
                      product.n_items, train_product_info("train_product_tiled", product));
}

void TrainKernels::barrier(Recorder& recorder) {
    recorder.barrier();
    n_scratch_bytes_ = 0;
    if (left_.empty()) {
        recorder.cut();
        return;
    }
    for (const LeftJoin& join : left_) {
        const uint32_t size = workgroup_size(facts_.capabilities, 64, 32);
        struct Constants {
            uint32_t threads, adds;
        };
        const Kernel* k = kernel("train_join", Constants{.threads = size, .adds = join.adds});
        if (k == nullptr) continue;
        recorder.dispatch(*k, join.params, ceil_div(join.params.n, size), join.params.m, 1,
                          {"train_join", uint64_t{join.params.n_parts + 1} * join.params.m * join.params.n * 4, 0});
    }
    left_.clear();
    recorder.barrier();
    recorder.cut();
}

}  // namespace lorad::gpu
