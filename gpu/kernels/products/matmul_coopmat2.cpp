// Many rows by NV cooperative matrices 2, on request alone (RungId::kMatrices2).
#include <array>

#include "gpu/kernels/products/product_impls.h"
#include "proto/base/format.h"

namespace lorad::gpu::coopmat2_impl {
namespace {

constexpr uint32_t kRowsMin = 1536;  // below, splits of k matter more than the larger tile

struct Tile {
    uint32_t rows, columns, k, threads;
};
constexpr std::array kTiles = {Tile{128, 256, 64, 256}, Tile{128, 128, 64, 256}};

const char* refusal(const ImplFacts& on, const Product& product) {
    return is_for_matrices2(on, product) ? nullptr
                                         : "nobody asked for it, rows are few, or no tile divides the columns";
}

std::optional<MatmulPlan> plan(const ImplFacts&, const Product& product) {
    MatmulPlan plan = plan_for(MatmulVariant::kCoopmat2, product);
    plan.tile = padded(product.n) % kTiles[0].columns == 0 ? 0 : 1;
    plan.row_tile = kTiles[plan.tile].rows;
    plan.column_tile = kTiles[plan.tile].columns;
    plan.k_per_split = product.stride();
    return plan;
}

const char* module(const MatmulPlan& plan) {
    return plan.weight_type == ScalarType::kBf16 ? "matmul_coopmat2_bf16" : "matmul_coopmat2_f16";
}

std::string describe_tile(const MatmulPlan& plan) {
    const Tile& tile = kTiles[plan.tile];
    return lorad::format("coopmat2 {}x{}x{} thr{}", tile.rows, tile.columns, tile.k, tile.threads);
}

struct Constants {
    uint32_t threads, rows, columns, k, stride;
};

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& params = arguments.product;
    const Tile& tile = kTiles[plan.tile];
    const Constants constants{
        .threads = tile.threads, .rows = tile.rows, .columns = tile.columns, .k = tile.k, .stride = params.w_stride};
    to.dispatch(product_info(module(plan), params, plan), constants, to.capabilities().subgroup_size, params,
                {ceil_div(plan.rows, plan.row_tile), ceil_div(params.n, tile.columns), 1});
}

void candidates(const ImplFacts& on, const Product& product, std::vector<MatmulPlan>& all) {
    constexpr uint32_t kSweptRowsMin = 512;
    if (product.rows < kSweptRowsMin || !on.ladder().has(RungId::kMatrices2, product.type)) return;
    MatmulPlan of_tile = *plan(on, product);
    for (of_tile.tile = 0; of_tile.tile < kTiles.size(); ++of_tile.tile) {
        const Tile& tile = kTiles[of_tile.tile];
        if (padded(product.n) % tile.columns != 0 || product.stride() % tile.k != 0) continue;
        of_tile.row_tile = tile.rows;
        of_tile.column_tile = tile.columns;
        all.push_back(of_tile);
    }
}

}  // namespace
}  // namespace lorad::gpu::coopmat2_impl

namespace lorad::gpu {

bool is_for_matrices2(const ImplFacts& on, const Product& product) {
    return product.rows >= coopmat2_impl::kRowsMin && padded(product.n) % coopmat2_impl::kTiles.back().columns == 0 &&
           on.ladder().has(RungId::kMatrices2, product.type) && !on.options().batch_invariant;
}

const ProductImpl kCoopmat2Impl{.variant = MatmulVariant::kCoopmat2,
                                .name = "NV matrices 2",
                                .forms = {.reads_16_bits = true},
                                .refusal = coopmat2_impl::refusal,
                                .plan = coopmat2_impl::plan,
                                .module = coopmat2_impl::module,
                                .record = coopmat2_impl::record,
                                .describe = coopmat2_impl::describe_tile,
                                .candidates = coopmat2_impl::candidates};

}  // namespace lorad::gpu
