// Products of training by warpgroups (products/warpgroup_text.h): a rounded and put in fragments, b as it lies,
// whichever way.
#include <algorithm>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gpu/kernels/launch.h"
#include "gpu/kernels/self_test.h"
#include "gpu/kernels/train/train_kernels.h"
#include "gpu/upload.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kWarpgroupSideMin = 256;  // m, n and k
constexpr uint32_t kWarpgroupSplitsMax = 8;
constexpr uint32_t kWindowTilesMax = 512;  // of products with more k
// The size of a slice of rows, where a recording is in parts: about 0.6 ms of a GH100.
constexpr uint64_t kSliceFlops = 300'000'000'000;

}  // namespace

bool TrainKernels::multiplies_by_warpgroup(const TrainProduct& p) const {
    if (!has_warpgroups_ || !p.is_padded || p.items != 0 || p.adds || p.alpha != 1.0f || p.a_is_m_major ||
        p.b.type != matrix_type_)
        return false;
    if ((p.m < kWarpgroupSideMin && !p.has_few_rows) || p.n < kWarpgroupSideMin || p.k < kWarpgroupSideMin ||
        (p.a.type != ScalarType::kF32 && p.a.type != matrix_type_))
        return false;
    const bool has_whole_rows =
        p.b.stride % kWeightAlign == 0 && p.b.stride >= padded(p.b_is_n_major ? p.n : p.k) && p.c.stride == padded(p.n);
    const uint64_t n_bytes = uint64_t{round_up(p.m, kTrainTileRows)} * (padded(p.k) + padded(p.more_k)) * 2;
    if (p.more_k != 0 &&
        (p.more_k > kTrainMoreKMax || p.m > kWindowTilesMax * kTrainTileRows || p.more_b.type != matrix_type_))
        return false;
    if (p.more_k != 0 && p.more_b.stride != (p.b_is_n_major ? p.b.stride : padded(p.more_k))) return false;
    return has_whole_rows && n_bytes <= scratch_.size() && p.a.address % 16 == 0 && p.a.stride % 8 == 0;
}

void TrainKernels::product_by_warpgroup(Recorder& recorder, const TrainProduct& p) {
    const uint32_t stride = padded(p.k), n_padded = padded(p.n), rows = round_up(p.m, kTrainTileRows),
                   more_stride = padded(p.more_k);
    const uint64_t x_bytes = uint64_t{rows} * stride * 2, block_bytes = x_bytes + uint64_t{rows} * more_stride * 2,
                   part_bytes = uint64_t{rows} * n_padded * sizeof(float);
    const uint64_t splits_held = p.has_few_rows
                                     ? kTrainPartBytes / (uint64_t{kTrainFewRowsMax} * n_padded * sizeof(float))
                                     : (scratch_.size() - block_bytes) / part_bytes;
    const auto max_splits = static_cast<uint32_t>(std::min<uint64_t>(splits_held, kWarpgroupSplitsMax));
    std::optional<MatmulPlan> plan = products_.plan_by(
        MatmulVariant::kWarpgroup, {.n = p.n,
                                    .k = p.k,
                                    .type = matrix_type_,
                                    .is_n_major = p.b_is_n_major,
                                    .rows = p.has_few_rows ? kTrainFewRows : p.m,
                                    .max_splits = std::max(max_splits, 1u),
                                    .adapters = p.more_k != 0 ? AdapterForm::kStacked : AdapterForm::kApart});
    CHECK(plan);
    if (p.has_few_rows) plan->rows = rows;
    const bool is_cut = plan->n_splits > 1;
    const DeviceAddress fragments = take_scratch(recorder, block_bytes + (is_cut ? plan->n_splits * part_bytes : 0)),
                        parts = fragments + block_bytes;
    this->fragments(recorder,
                    {.x = p.a.address,
                     .fragments = fragments,
                     .k = p.k,
                     .x_stride = p.a.stride,
                     .fragments_stride = stride,
                     .rows = p.m},
                    p.a.type, matrix_type_);
    if (p.more_k != 0) {
        this->fragments(recorder,
                        {.x = p.more_a.address,
                         .fragments = fragments + x_bytes,
                         .k = p.more_k,
                         .x_stride = p.more_a.stride,
                         .fragments_stride = more_stride,
                         .rows = p.m},
                        p.more_a.type, matrix_type_);
    }
    recorder.barrier();
    const MatmulParams params{.n_rows = row_count_.address(),
                              .w = p.b.address,
                              .x = fragments,
                              .y = is_cut ? parts : p.c.address,
                              .y_fragments = 0,
                              .n = p.n,
                              .k = p.k,
                              .w_stride = p.b.stride,
                              .x_stride = stride,
                              .y_stride = is_cut ? n_padded : p.c.stride,
                              .split_stride = is_cut ? rows * n_padded : 0,
                              .k_per_split = plan->k_per_split,
                              .pad = 0};
    matmul_by_warpgroup(recorder, p, params, fragments + x_bytes, *plan);
    if (!is_cut) return;
    left_.push_back({{.parts = parts,
                      .c = p.c.address,
                      .m = p.m,
                      .n = p.n,
                      .stride = n_padded,
                      .n_parts = plan->n_splits,
                      .c_i = p.c.stride,
                      .c_j = 1,
                      .alpha = 1.0f,
                      .part_rows = rows},
                     false});
}

// If recorded in parts, a long product goes by slices of rows, which all are computed as the whole is.
void TrainKernels::matmul_by_warpgroup(Recorder& recorder, const TrainProduct& p, const MatmulParams& params,
                                       DeviceAddress low, const MatmulPlan& plan) {
    const uint64_t n_flops = uint64_t{2} * p.m * p.n * p.k;
    const uint32_t n_tiles = ceil_div(p.m, plan.row_tile),
                   n_slices =
                       recorder.in_parts() ? std::min(n_tiles, static_cast<uint32_t>(n_flops / kSliceFlops) + 1) : 1,
                   slice_rows = ceil_div(n_tiles, n_slices) * plan.row_tile, more_stride = padded(p.more_k);
    for (uint32_t row = 0; row < p.m; row += slice_rows) {
        if (row != 0) recorder.cut();
        MatmulParams slice = params;
        slice.x += uint64_t{row} * params.x_stride * 2;
        slice.y += uint64_t{row} * params.y_stride * sizeof(float);
        MatmulPlan of_slice = plan;
        if (n_slices > 1) of_slice.rows = std::min(slice_rows, round_up(p.m - row, plan.row_tile));
        ProductArguments arguments{.product = slice};
        if (p.more_k != 0) {
            arguments.stacked = {.windows = windows_.address() +
                                            (more_stride / kStackedStep - 1) * kWindowTilesMax * sizeof(StackedWindow),
                                 .b = p.more_b.address,
                                 .low = low + uint64_t{row} * more_stride * 2,
                                 .columns = more_stride};
        }
        products_.record(recorder, of_slice, arguments);
    }
}

void TrainKernels::fragments(Recorder& recorder, const TrainFragmentsParams& params, ScalarType type, ScalarType to) {
    constexpr uint32_t kLanes = 32;  // of a block, whatever the device's subgroups
    const uint32_t size = workgroup_size(facts_.capabilities, 256, kLanes);
    const Kernel* k = kernel(
        "train_round",
        RoundConstants{
            .threads = size, .to = static_cast<uint32_t>(to), .in_blocks = 1, .type = static_cast<uint32_t>(type)});
    if (k == nullptr) return;
    const TrainRoundKernelParams of_kernel{.from = params.x,
                                           .to = params.fragments,
                                           .columns = params.k,
                                           .from_stride = params.x_stride,
                                           .to_stride = params.fragments_stride,
                                           .rows = params.rows,
                                           .factor = 1.0f,
                                           .pad = 0};
    recorder.dispatch(*k, of_kernel, ceil_div(params.fragments_stride / kFragmentColumns * kLanes, size),
                      ceil_div(params.rows, kFragmentRows), 1,
                      {"train_blocks", uint64_t{params.rows} * params.k * (bytes_of(type) + 2), 0});
}

DeviceAddress TrainKernels::take_scratch(Recorder& recorder, uint64_t n_bytes) {
    CHECK(n_bytes <= scratch_.size());
    if (n_scratch_bytes_ + n_bytes > scratch_.size()) barrier(recorder);
    const DeviceAddress at = scratch_.address() + n_scratch_bytes_;
    n_scratch_bytes_ = std::min(n_scratch_bytes_ + round_up(n_bytes, uint64_t{256}), scratch_.size());
    return at;
}

// Padded products of f32 and the weights' type, which lies either way, whole and cut, are what the other kernels give.
Status TrainKernels::test_warpgroups(Device& device) {
    constexpr uint32_t kRows = 512, kSide = 1024, kTestRows = 300, kTestColumns = 700;
    std::mt19937 random(kTrainTileRows);
    Buffer a, b, more_b, c[2];
    std::vector<StackedWindow> windows;
    for (uint32_t n = 1; n <= kTrainMoreKMax / kStackedStep; ++n)
        windows.insert(windows.end(), kWindowTilesMax, StackedWindow{.begin = 0, .n = n});
    TRY_ASSIGN(windows_, device.create_buffer(windows.size() * sizeof(StackedWindow), MemoryKind::kDeviceLocal,
                                              "rows of products"));
    TRY(device.uploader().upload(windows_, 0, std::as_bytes(std::span(windows))));
    TRY(device.uploader().finish());
    TRY_ASSIGN(row_count_, device.create_buffer(256, MemoryKind::kDeviceLocal, "rows of products"));
    TRY(self_test::make(device, a, uint64_t{kRows} * kSide * 4, MemoryKind::kHostUpload));
    TRY(self_test::make(device, b, uint64_t{kSide} * kSide * 2, MemoryKind::kHostUpload));
    TRY(self_test::make(device, more_b, uint64_t{kSide} * kSide * 2, MemoryKind::kHostUpload));
    self_test::fill_random(more_b.mapped(), matrix_type_, random);
    self_test::fill_random(a.mapped(), ScalarType::kF32, random);
    self_test::fill_random(b.mapped(), matrix_type_, random);
    for (Buffer& result : c)
        TRY(self_test::make(device, result, uint64_t{kRows} * kSide * 4, MemoryKind::kHostReadback));
    self_test::Deviation deviation;
    for (const bool is_transposed : {false, true}) {
        // More k, and columns that the last tile shares with its neighbour.
        for (const auto& [n, more_k] : {std::pair{kTestColumns, 0u}, {kSide, 0u}, {kSide, 48u}, {kTestColumns, 192u}}) {
            const auto record = [&, n = n, more_k = more_k](Recorder& recorder, bool by_warpgroup) {
                has_warpgroups_ = by_warpgroup;
                recorder.fill(row_count_, 0, sizeof(uint32_t), ~0u);
                recorder.barrier();
                product(recorder, {.a = {a.address(), kSide},
                                   .b = {b.address(), kSide, matrix_type_},
                                   .c = {c[by_warpgroup].address(), padded(n)},
                                   .b_is_n_major = is_transposed,
                                   .m = kTestRows,
                                   .n = n,
                                   .k = kSide,
                                   .is_padded = true,
                                   .more_a = {a.address(), kSide},
                                   .more_b = {more_b.address(), is_transposed ? kSide : padded(more_k), matrix_type_},
                                   .more_k = more_k});
                barrier(recorder);
                return cache_.status();
            };
            TRY(self_test::compare_ways(device, c, {kTestRows, n, padded(n)}, record, deviation));
        }
    }
    // Operands of 8 or 11 bits, as in gives_the_same_by().
    has_warpgroups_ = deviation.failure.empty() && deviation.error < (matrix_type_ == ScalarType::kBf16 ? 4e-3 : 5e-4);
    if (!has_warpgroups_) self_test::tell_left_out("products of training by warpgroups", device, deviation);
    cache_.forget_failures();
    return ok_status();
}

}  // namespace lorad::gpu
