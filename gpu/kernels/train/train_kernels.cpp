// What a device has of the kernels of training: rungs, their first test, memory. The kernels are in train_products.cpp,
// train_warpgroup.cpp, train_flash.cpp and train_rows.cpp.
#include "gpu/kernels/train/train_kernels.h"

#include <random>

#include "gpu/kernels/launch.h"
#include "gpu/kernels/self_test.h"
#include "gpu/pipeline.h"
#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kTestSeed = 55;

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

}  // namespace lorad::gpu
