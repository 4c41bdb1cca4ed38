// At start-up, of models with experts: a small product of experts on matrices by each tile, against the portable one.
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/ladder_tests.h"
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
    Buffer w, x, y, sorted, tiles, n_tiles;

    static Result<ExpertProduct> create(Device& device, ScalarType type) {
        ExpertProduct test;
        TRY(make(device, test.w, uint64_t{kExperts} * kN * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.x, uint64_t{kRowsOfX} * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.y, uint64_t{kPairs} * kN * 4, MemoryKind::kHostReadback));
        TRY(make(device, test.sorted, kPairs * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.tiles, kPairs * sizeof(ExpertTile), MemoryKind::kHostUpload));
        TRY(make(device, test.n_tiles, 16, MemoryKind::kHostUpload));
        std::mt19937 random(81);
        fill_random(test.w.mapped(), type, random);
        fill_random(test.x.mapped(), type, random);
        auto* pairs = reinterpret_cast<uint32_t*>(test.sorted.mapped().data());
        for (uint32_t i = 0; i < kPairs; ++i) pairs[i] = i * 3 % kPairs;
        return test;
    }

    Result<std::vector<float>> run(Device& device, KernelSet& kernels, const ExpertPlan& plan, ScalarType type) {
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
                                 .w = w.address(),
                                 .x = x.address(),
                                 .y = y.address(),
                                 .bias = 0,
                                 .n = kN,
                                 .w_stride = kK,
                                 .y_stride = kN,
                                 .pairs_of_a_row = 2,
                                 .alpha = 0,
                                 .limit = 0},
                                kShape, plan, type, kRowsOfX);
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        const auto* values = reinterpret_cast<const float*>(y.mapped().data());
        return std::vector<float>(values, values + size_t{kPairs} * kN);
    }
};

}  // namespace experts_test

Status LadderTests::experts(ScalarType type) {
    using namespace experts_test;
    TRY_ASSIGN(ExpertProduct test, ExpertProduct::create(device_, type));
    TRY_ASSIGN(
        const std::vector<float> want,
        test.run(device_, kernels_, {.tile_rows = kExpertTileRows, .on_matrices = false, .can_gate = false}, type));
    const ExpertMatrices matrices{kN, kN, kK, kK, type};
    for (const uint32_t rows : kernels_.experts.matrix_tiles(matrices)) {
        Deviation deviation;
        deviation.add(test.run(device_, kernels_, {.tile_rows = rows, .on_matrices = true, .can_gate = false}, type),
                      want);
        if (deviation.error <= 1e-4) continue;  // the same products in f32, added in another order
        facts_.options.left_out.emplace_back(ExpertPlanner::matrix_module(type));
        tell_left_out(lorad::format("expert_matrix by {} rows", rows), device_, deviation);
        return ok_status();
    }
    return ok_status();
}

}  // namespace lorad::gpu
