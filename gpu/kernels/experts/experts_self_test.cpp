// At start-up, of models with experts: a small product of experts on matrices by each tile, of plain weights and each
// of the model's packed formats, against the portable one.
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/ladder_tests.h"
#include "gpu/kernels/random_bricks.h"
#include "gpu/kernels/self_test.h"
#include "proto/base/format.h"

namespace lorad::gpu {

using namespace self_test;

namespace experts_test {

// The last workgroup of columns is moved back; k is two steps and more of every tile.
constexpr uint32_t kExperts = 3, kN = 176, kK = 256, kPairs = 70, kRowsOfX = kPairs / 2;
constexpr uint32_t kOfFirst = 65, kLastExpert = kExperts - 1;  // pairs of expert 0; the others are of the last
constexpr RouterShape kShape{.experts = kExperts, .top = 2};

struct ExpertProduct {
    WeightKind weights;
    Buffer w, x, y, sorted, tiles, n_tiles;

    DeviceAddress matrix() const { return w.address() + (is_packed(weights.format) ? kPartAlign : 0); }

    static Result<ExpertProduct> create(Device& device, WeightKind weights) {
        const ScalarType type = weights.type;
        ExpertProduct test{.weights = weights, .w = {}, .x = {}, .y = {}, .sorted = {}, .tiles = {}, .n_tiles = {}};
        TRY(make(device, test.w, kPartAlign + bytes_of(weights.format, uint64_t{kExperts} * kN, kK),
                 MemoryKind::kHostUpload));
        TRY(make(device, test.x, uint64_t{kRowsOfX} * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.y, uint64_t{kPairs} * kN * 4, MemoryKind::kHostReadback));
        TRY(make(device, test.sorted, kPairs * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.tiles, kPairs * sizeof(ExpertTile), MemoryKind::kHostUpload));
        TRY(make(device, test.n_tiles, 16, MemoryKind::kHostUpload));
        std::mt19937 random(81);
        if (is_packed(weights.format))
            fill_part(weights.format, test.w.mapped(), random);
        else
            fill_random(test.w.mapped(), type, random);
        fill_random(test.x.mapped(), type, random);
        auto* pairs = reinterpret_cast<uint32_t*>(test.sorted.mapped().data());
        for (uint32_t i = 0; i < kPairs; ++i) pairs[i] = i * 3 % kPairs;
        return test;
    }

    Result<std::vector<float>> run(Device& device, KernelSet& kernels, const ExpertPlan& plan) {
        std::vector<ExpertTile> list;
        for (const uint32_t expert : {0u, kLastExpert}) {
            const uint32_t end = expert == 0 ? kOfFirst : kPairs;
            for (uint32_t begin = expert == 0 ? 0 : kOfFirst; begin < end; begin += plan.tile_rows)
                list.push_back({expert, begin, std::min(plan.tile_rows, end - begin), 0});
        }
        std::memcpy(tiles.mapped().data(), list.data(), list.size() * sizeof(ExpertTile));
        const auto n = static_cast<uint32_t>(list.size());
        std::memcpy(n_tiles.mapped().data(), &n, sizeof n);
        std::memset(y.mapped().data(), 0xff, y.size());
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        kernels.experts.product(recorder,
                                {.sorted = sorted.address(),
                                 .n_tiles = n_tiles.address(),
                                 .tiles = tiles.address(),
                                 .w = matrix(),
                                 .x = x.address(),
                                 .y = y.address(),
                                 .bias = 0,
                                 .n = kN,
                                 .w_stride = kK,
                                 .y_stride = kN,
                                 .pairs_per_row = 2,
                                 .alpha = 0,
                                 .limit = 0},
                                kShape, plan, weights, kRowsOfX);
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        const auto* values = reinterpret_cast<const float*>(y.mapped().data());
        return std::vector<float>(values, values + size_t{kPairs} * kN);
    }
};

}  // namespace experts_test

namespace {

Status test_matrices(LadderTests& tests, WeightKind weights) {
    using namespace experts_test;
    KernelSet& kernels = tests.kernels();
    TRY_ASSIGN(ExpertProduct test, ExpertProduct::create(tests.device(), weights));
    TRY_ASSIGN(
        const std::vector<float> want,
        test.run(tests.device(), kernels, {.tile_rows = kExpertTileRows, .on_matrices = false, .can_gate = false}));
    const ExpertMatrices matrices{kN, kN, kK, kK, weights, weights};
    // The same products in f32, added in another order. Packed weights are rounded to the type, each by half a unit of
    // its last place, and their errors fall out as the summands do.
    const bool is_f16 = weights.type == ScalarType::kF16;
    const double tolerance = is_packed(weights.format) ? std::ldexp(1.0, is_f16 ? -11 : -8) : 1e-4;
    for (const uint32_t rows : kernels.experts.matrix_tiles(matrices)) {
        Deviation deviation;
        deviation.add(test.run(tests.device(), kernels, {.tile_rows = rows, .on_matrices = true, .can_gate = false}),
                      want);
        if (deviation.error <= tolerance) continue;
        tests.options().left_out.emplace_back(ExpertPlanner::matrix_module(weights));
        tests.tell_left_out(lorad::format("expert_matrix of {} by {} rows", name_of(weights.format), rows), deviation);
        return ok_status();
    }
    return ok_status();
}

}  // namespace

Status test_experts(LadderTests& tests, ScalarType type) {
    if (!tests.options().has_experts || !tests.kernels().experts.has_matrices(type)) return ok_status();
    return test_matrices(tests, type);
}

Status test_packed_experts(LadderTests& tests, ScalarType type) {
    if (!tests.options().has_experts) return ok_status();
    for (uint32_t format = kWeightsQ8_0; format < kWeightFormats; ++format) {
        const WeightKind weights(static_cast<WeightFormat>(format), type);
        const bool is_asked = (tests.options().packed_formats >> format & 1u) != 0;
        if (is_asked && tests.kernels().experts.has_matrices(weights)) TRY(test_matrices(tests, weights));
    }
    return ok_status();
}

}  // namespace lorad::gpu
