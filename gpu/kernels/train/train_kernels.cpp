#include "gpu/kernels/train/train_kernels.h"

#include <algorithm>
#include <bit>
#include <random>
#include <utility>

#include "gpu/kernels/launch.h"
#include "gpu/kernels/self_test.h"
#include "gpu/pipeline.h"
#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kTrainTile = 64;  // of train_product_tiled
constexpr uint32_t kTrainTileThreads = 256;
constexpr uint32_t kMatrixTile = 128, kHalfTile = 64, kNarrowTile = 32, kMatrixDepth = 32;  // of train_product_matrix
constexpr uint32_t kSplitMin = 256, kSplitsMax = 32;     // l of a part of k at least, and parts
constexpr uint32_t kLaneRowLoads = 2, kLaneColumns = 4;  // of train_product_lanes, where there are so many
constexpr uint32_t kTileLanes = 16;
constexpr uint32_t kTestSeed = 55;
constexpr uint32_t kGroupsAcross = 32768;  // workgroups along one side of a grid

struct TrainEmbedConstants {
    uint32_t threads, backward, table_type, transposed;
};

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

const char* matrix_module(ScalarType type) {
    return type == ScalarType::kBf16 ? "train_product_bf16" : "train_product_f16";
}

// Software devices, and those whose workgroups are too small for tiles.
bool multiplies_by_lanes(const DeviceCapabilities& caps) {
    return caps.subgroup_ballot && (caps.small_workgroups || threads_max(caps) < kTrainTileThreads);
}

// Rows of it begin at multiples of 16 bytes.
bool has_aligned_rows(const TrainMatrix& matrix) {
    return matrix.address % 16 == 0 && matrix.stride % (16 / bytes_of(matrix.type)) == 0;
}

}  // namespace

TrainKernels::TrainKernels(Device& device, const TrainKernelOptions& options)
    : options_(options),
      facts_{device.capabilities(), {}, {}},
      cache_(device),
      lora_(facts_, cache_),
      products_(facts_, cache_) {}

TrainRungs TrainKernels::rungs_of(const DeviceCapabilities& caps, const TrainKernelOptions& options) {
    const ScalarType type = options.matrix_type;
    const bool is_bf16 = type == ScalarType::kBf16;
    const bool has_subgroups =
        caps.subgroup_size >= 16 && caps.subgroup_size <= 64 && threads_max(caps) >= kTrainTileThreads;
    if (type == ScalarType::kF32 || !caps.coopmat_f16 || !has_subgroups || !has_kernel_module(matrix_module(type)))
        return {};
    if (is_bf16 && (!caps.bfloat16_coopmat || !caps.int16)) return {};
    return {type, caps.warpgroup_matrices, may_have_flash(caps, options)};
}

uint64_t TrainKernels::scratch_bytes(const TrainRungs& rungs, uint64_t block_bytes) {
    if (rungs.matrix_type == ScalarType::kF32) return 0;
    return kTrainPartBytes + (rungs.has_warpgroups ? block_bytes : 0);
}

Status TrainKernels::reserve(Device& device, uint64_t block_bytes) {
    const uint64_t n_bytes = scratch_bytes(rungs(), block_bytes);
    if (n_bytes <= scratch_.size()) return ok_status();
    scratch_ = {};
    TRY_ASSIGN(scratch_, device.create_buffer(n_bytes, MemoryKind::kDeviceLocal, "parts of products"));
    return ok_status();
}

Result<std::unique_ptr<TrainKernels>> TrainKernels::create(Device& device, const TrainKernelOptions& options) {
    std::unique_ptr<TrainKernels> made(new TrainKernels(device, options));
    const DeviceCapabilities& caps = device.capabilities();
    if (!multiplies_by_lanes(caps) && threads_max(caps) < kTrainTileThreads) {
        return make_error(
            ErrorCode::kInvalidConfig,
            lorad::format("training needs workgroups of {} threads, or subgroup ballots; {} has {} threads and none",
                          kTrainTileThreads, caps.name, threads_max(caps)));
    }
    const TrainRungs rungs = rungs_of(caps, options);
    if (rungs.matrix_type == ScalarType::kF32) return made;
    TRY_ASSIGN(const bool has_whole_tiles,
               made->gives_the_same_by(device, rungs.matrix_type, {{150, 200, 100}, {256, 256, 64}}));
    made->matrix_type_ = has_whole_tiles ? rungs.matrix_type : ScalarType::kF32;
    if (!has_whole_tiles) return made;
    TRY(made->reserve(device, 0));
    if (caps.subgroup_size >= 32) {  // fewer lanes would be more subgroups than a narrow tile has parts
        made->has_narrow_tiles_ = true;
        TRY_ASSIGN(
            made->has_narrow_tiles_,
            made->gives_the_same_by(device, rungs.matrix_type, {{300, 16, 1000}, {8, 300, 1000}, {300, 48, 1000}}));
    }
    made->matrix_type_ = rungs.matrix_type;
    if (rungs.has_warpgroups) TRY(made->test_warpgroups(device));
    if (rungs.has_flash) TRY(made->test_flash(device));
    return made;
}

// Returns true if products of these shapes, one operand of the weights' type and one f32, in both layouts, give the
// same on matrices as in f32. Sets matrix_type_ to either.
Result<bool> TrainKernels::gives_the_same_by(Device& device, ScalarType type, std::initializer_list<TestShape> shapes) {
    constexpr uint32_t kRows = 1024, kStride = 1024;
    std::mt19937 random(kTestSeed);
    Buffer a, b, c[2];
    TRY(self_test::make(device, a, uint64_t{kRows} * kStride * 4, MemoryKind::kHostUpload));
    TRY(self_test::make(device, b, uint64_t{kRows} * kStride * 2, MemoryKind::kHostUpload));
    self_test::fill_random(a.mapped(), ScalarType::kF32, random);
    self_test::fill_random(b.mapped(), type, random);
    for (Buffer& result : c)
        TRY(self_test::make(device, result, uint64_t{kRows} * kStride * 4, MemoryKind::kHostReadback));
    self_test::Deviation deviation;
    for (const TestShape& shape : shapes) {
        for (const bool is_transposed : {false, true}) {
            const auto record = [&](Recorder& recorder, bool by_matrix) {
                matrix_type_ = by_matrix ? type : ScalarType::kF32;
                product(recorder, {.a = {a.address(), kStride},
                                   .b = {b.address(), kStride, type},
                                   .c = {c[by_matrix].address(), kStride},
                                   .a_is_m_major = is_transposed,
                                   .b_is_n_major = is_transposed,
                                   .m = shape.m,
                                   .n = shape.n,
                                   .k = shape.k});
                barrier(recorder);
                return cache_.status();
            };
            TRY(self_test::compare_ways(device, c, {shape.m, shape.n, kStride}, record, deviation));
        }
    }
    // Operands of 8 or 11 bits: sums of many products differ by less than two of their roundings.
    const bool is_right = deviation.failure.empty() && deviation.error < (type == ScalarType::kBf16 ? 4e-3 : 5e-4);
    if (!is_right) self_test::tell_left_out(matrix_module(type), device, deviation);
    cache_.forget_failures();
    return is_right;
}

uint32_t TrainKernels::row_threads(uint32_t elements) const {
    return workgroup_size(facts_.capabilities, threads_for(elements, 64, 512), 32);
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

void TrainKernels::round(Recorder& recorder, const TrainRoundParams& params, ScalarType to, uint32_t rows) {
    CHECK(params.columns % 4 == 0);
    const uint32_t size = workgroup_size(facts_.capabilities, params.columns < 256 ? 32 : 128, 32);
    const Kernel* k = kernel(
        "train_round", RoundConstants{.threads = size, .to = static_cast<uint32_t>(to), .in_blocks = 0, .type = 0});
    if (k == nullptr) return;
    const TrainRoundKernelParams of_kernel{.from = params.from,
                                           .to = params.to,
                                           .columns = params.columns,
                                           .from_stride = params.from_stride,
                                           .to_stride = params.to_stride,
                                           .rows = rows,
                                           .factor = params.factor,
                                           .pad = 0};
    recorder.dispatch(*k, of_kernel, ceil_div(params.columns / 4, size), rows, 1,
                      {"train_round", uint64_t{rows} * params.columns * 6, 0});
}

void TrainKernels::sum_heads(Recorder& recorder, const TrainSumHeadsParams& params, uint32_t rows) {
    const uint32_t size = workgroup_size(facts_.capabilities, 128, 32);
    const Kernel* k = kernel("train_sum_heads", TypedRowConstants{.threads = size, .type = 0});
    if (k == nullptr) return;
    const TrainHeadSumsParams of_kernel{.from = params.from,
                                        .to = params.to,
                                        .dout = 0,
                                        .rounded = 0,
                                        .columns = params.columns,
                                        .head_dim = params.head_dim,
                                        .n_group = params.n_group,
                                        .from_stride = params.from_stride,
                                        .to_stride = params.to_stride,
                                        .pad = 0};
    recorder.dispatch(*k, of_kernel, ceil_div(params.columns, size), rows, 1,
                      {"train_sum_heads", uint64_t{rows} * params.columns * (params.n_group + 1) * 4, 0});
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

void TrainKernels::embed(Recorder& recorder, const TrainEmbedParams& params, WeightKind table, bool is_transposed,
                         uint32_t rows) {
    const bool is_packed_table = is_packed(table.format);
    CHECK(!is_packed_table || (!is_transposed && params.x_stride == params.table_stride));
    const uint32_t rounding = is_packed_table ? static_cast<uint32_t>(table.type) << kWeightRoundShift : 0;
    const Kernel* k = kernel("train_embed", TrainEmbedConstants{.threads = row_threads(params.hidden),
                                                                .backward = 0,
                                                                .table_type = number_of(table.format) | rounding,
                                                                .transposed = is_transposed});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows, 1, 1,
                      {"train_embed", uint64_t{rows} * params.hidden * (4 + bytes_of(table.type)), 0});
}

void TrainKernels::embed_backward(Recorder& recorder, const TrainEmbedBackwardParams& params, bool is_transposed,
                                  uint32_t n_tokens) {
    const uint32_t size = row_threads(64);
    const Kernel* k =
        kernel("train_embed",
               TrainEmbedConstants{.threads = size, .backward = 1, .table_type = 0, .transposed = is_transposed});
    if (k == nullptr) return;
    const TrainEmbedParams of_kernel{.table = params.dtable,
                                     .tokens = params.tokens,
                                     .x = params.dx,
                                     .rows = params.rows,
                                     .hidden = params.hidden,
                                     .table_stride = params.table_stride,
                                     .x_stride = params.x_stride,
                                     .pad = 0};
    recorder.dispatch(*k, of_kernel, n_tokens, ceil_div(params.hidden, size), 1,
                      {"train_embed_backward", uint64_t{n_tokens} * params.hidden * 12, 0});
}

void TrainKernels::norm(Recorder& recorder, TrainDirection direction, const TrainNormParams& params, uint32_t rows,
                        ScalarType y_type) {
    const bool is_backward = direction == TrainDirection::kBackward;
    struct Constants {
        uint32_t threads, backward, type;
    };
    const Kernel* k = kernel("train_norm", Constants{.threads = row_threads(params.hidden),
                                                     .backward = is_backward,
                                                     .type = static_cast<uint32_t>(y_type)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows, 1, 1,
                      {is_backward ? "train_norm_backward" : "train_norm",
                       uint64_t{rows} * params.hidden * (is_backward ? 16 : 8), 0});
}

void TrainKernels::heads(Recorder& recorder, TrainDirection direction, const TrainHeadsParams& params, uint32_t n_heads,
                         uint32_t head_dim, uint32_t rotary_dim, uint32_t rows, ScalarType turned_type) {
    CHECK(turned_type == ScalarType::kF32 || head_dim % 2 == 0);
    CHECK(rotary_dim % 2 == 0 && rotary_dim <= head_dim && (params.q_gamma != 0) == (params.k_gamma != 0));
    const bool is_backward = direction == TrainDirection::kBackward;
    const uint32_t size = workgroup_size(facts_.capabilities, threads_for(head_dim, 32, 128), 32);
    struct Constants {
        uint32_t threads, backward, head_dim, rotary_dim, type;
    };
    const Kernel* k = kernel("train_heads", Constants{.threads = size,
                                                      .backward = is_backward,
                                                      .head_dim = head_dim,
                                                      .rotary_dim = rotary_dim,
                                                      .type = static_cast<uint32_t>(turned_type)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, n_heads, rows, 1,
                      {is_backward ? "train_heads_backward" : "train_heads",
                       uint64_t{rows} * n_heads * head_dim * (is_backward ? 12 : 8), 0});
}

void TrainKernels::softmax(Recorder& recorder, TrainDirection direction, const TrainSoftmaxParams& params,
                           uint32_t n_queries, uint32_t n_runs) {
    const bool is_backward = direction == TrainDirection::kBackward;
    struct Constants {
        uint32_t threads, backward;
    };
    const Kernel* k = kernel("train_softmax", Constants{.threads = row_threads(256), .backward = is_backward});
    if (k == nullptr) return;
    recorder.dispatch(
        *k, params, n_queries, 1, n_runs,
        {is_backward ? "train_softmax_backward" : "train_softmax", uint64_t{n_runs} * n_queries * n_queries * 8, 0});
}

void TrainKernels::act(Recorder& recorder, TrainDirection direction, const TrainActParams& params, ScalarType type) {
    const bool is_backward = direction == TrainDirection::kBackward;
    const uint32_t size = workgroup_size(facts_.capabilities, 256, 32);
    const uint32_t columns = type == ScalarType::kF32 ? 1 : 4, element = bytes_of(type);
    CHECK(params.ffn % columns == 0);
    struct Constants {
        uint32_t threads, backward, type;
    };
    const Kernel* k =
        kernel("train_act", Constants{.threads = size, .backward = is_backward, .type = static_cast<uint32_t>(type)});
    if (k == nullptr) return;
    const uint32_t column_bytes = is_backward ? 4 * element + 4 : 3 * element + (params.sums != 0 ? 8 : 0);
    recorder.dispatch(
        *k, params, ceil_div(params.h_stride, size * columns), params.rows, 1,
        {is_backward ? "train_act_backward" : "train_act", uint64_t{params.rows} * params.ffn * column_bytes, 0});
}

void TrainKernels::affine(Recorder& recorder, const TrainAffineParams& params, ScalarType type) {
    const uint32_t size = workgroup_size(facts_.capabilities, 256, 32), columns = type == ScalarType::kF32 ? 1 : 4;
    CHECK(columns == 1 || (params.n % columns == 0 && params.base == 0 && params.bias == 0));
    const Kernel* k = kernel("train_affine", TypedRowConstants{.threads = size, .type = static_cast<uint32_t>(type)});
    if (k == nullptr) return;
    recorder.dispatch(
        *k, params, ceil_div(params.n, size * columns), params.rows, 1,
        {"train_affine", uint64_t{params.rows} * params.n * (2 * bytes_of(type) + (params.base != 0 ? 4 : 0)), 0});
}

void TrainKernels::dropout(Recorder& recorder, const TrainDropoutParams& params, bool adds, uint32_t rows,
                           ScalarType type) {
    CHECK(!adds || type == ScalarType::kF32);
    const uint32_t size = workgroup_size(facts_.capabilities, 128, 32);
    struct Constants {
        uint32_t threads, adds, type;
    };
    const Kernel* k =
        kernel("train_dropout", Constants{.threads = size, .adds = adds, .type = static_cast<uint32_t>(type)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(ceil_div(params.columns, 4), size), rows, 1,
                      {"train_dropout", uint64_t{rows} * params.columns * (adds ? 3 : 2) * bytes_of(type), 0});
}

void TrainKernels::column_sums(Recorder& recorder, const TrainColumnSumsParams& params, ScalarType type) {
    const uint32_t size = workgroup_size(facts_.capabilities, 64, 32);
    const Kernel* k =
        kernel("train_column_sums", TypedRowConstants{.threads = size, .type = static_cast<uint32_t>(type)});
    if (k == nullptr) return;
    const uint64_t n_bytes =
        uint64_t{params.rows} * params.n_columns * params.n_parts * bytes_of(type) * (params.b != 0 ? 2 : 1);
    recorder.dispatch(*k, params, ceil_div(params.n_columns, size), 1, 1, {"train_column_sums", n_bytes, 0});
}

void TrainKernels::cross_entropy(Recorder& recorder, const TrainCrossEntropyParams& params, bool with_gradient,
                                 uint32_t rows) {
    struct Constants {
        uint32_t threads, gradient;
    };
    const Kernel* k =
        kernel("train_cross_entropy", Constants{.threads = row_threads(params.vocab), .gradient = with_gradient});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows, 1, 1,
                      {"train_cross_entropy", uint64_t{rows} * params.vocab * (with_gradient ? 16 : 8), 0});
}

void TrainKernels::grad_norm(Recorder& recorder, const TrainGradNormParams& params) {
    const Kernel* k = kernel("train_grad_norm", WorkgroupConstants{.threads = row_threads(params.n_per_group)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, grad_norm_groups(params), 1, 1, {"train_grad_norm", uint64_t{params.n} * 4, 0});
}

void TrainKernels::adamw(Recorder& recorder, const TrainAdamwParams& params) {
    const uint32_t size = workgroup_size(facts_.capabilities, 256, 32);
    const Kernel* k = kernel("train_adamw", WorkgroupConstants{.threads = size});
    if (k == nullptr) return;
    const uint32_t n_groups = ceil_div(params.n, size), across = std::min(n_groups, kGroupsAcross);
    recorder.dispatch(*k, params, across, ceil_div(n_groups, across), 1, {"train_adamw", uint64_t{params.n} * 28, 0});
}

}  // namespace lorad::gpu
