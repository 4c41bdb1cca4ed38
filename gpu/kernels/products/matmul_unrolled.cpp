// Products on a software device whose subgroups have 8 lanes (matmul_unrolled.comp): all of a split's k is in the
// program.
#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>

#include "gpu/kernels/products/matmul_unrolled.params.h"
#include "gpu/kernels/products/product_impls.h"

namespace lorad::gpu::unrolled_impl {
namespace {

constexpr uint32_t kLanes = 8, kSubgroups = 8;  // of a subgroup, and of a workgroup

// Rows of x and of w that a subgroup takes: sums and x of a step fit the 32 registers that some processors have.
struct Tile {
    uint32_t rows, columns;
};
constexpr Tile kFewRows{2, 8}, kManyRows{4, 4};
static_assert(kWeightAlign % (kFewRows.columns * kSubgroups) == 0 &&
              kWeightAlign % (kManyRows.columns * kSubgroups) == 0);

const Tile& tile_of(uint32_t rows) { return rows <= kFewRows.rows ? kFewRows : kManyRows; }

// Elements of k in one program. The driver compiles 1,000 in a second, and longer ones in more than proportion: a
// product that may be split has at most the first, others the second.
constexpr uint32_t kSplitElements = 768, kWholeElements = 2048;

// The digits in base 16 of numbers below `count`.
uint32_t digits_of(uint32_t count) { return ceil_div(static_cast<uint32_t>(std::bit_width(count - 1)), 4u); }

// The fewest equal splits of so many units that have at most `most` each; 0: there are none.
uint32_t equal_splits(uint32_t units, uint32_t most, uint32_t max_splits) {
    for (uint32_t n = ceil_div(units, most); n <= max_splits; ++n) {
        if (units % n == 0) return n;
    }
    return 0;
}

const char* refusal(const ImplFacts& on, const Product& product) {
    const DeviceCapabilities& caps = on.capabilities();
    if (on.ladder().has(product.type)) return "cooperative matrices are faster";
    if (!caps.small_workgroups || caps.subgroup_size != kLanes) return "it is for subgroups of 8 in small workgroups";
    const bool has_type = product.type == ScalarType::kF32 || (caps.float16 && caps.int16);
    return has_type ? nullptr : "the device lacks shaderFloat16 or shaderInt16";
}

// nullopt if equal pieces do not divide a long k.
std::optional<MatmulPlan> plan(const ImplFacts&, const Product& product) {
    const uint32_t units = product.stride() / kWeightAlign;
    uint32_t n_splits = equal_splits(units, kSplitElements / kWeightAlign, product.max_splits);
    if (n_splits == 0) n_splits = equal_splits(units, kWholeElements / kWeightAlign, product.max_splits);
    if (n_splits == 0) return std::nullopt;
    MatmulPlan plan = plan_for(MatmulVariant::kUnrolled, product);
    plan.row_tile = tile_of(product.rows).rows;
    plan.column_tile = tile_of(product.rows).columns;
    plan.n_splits = n_splits;
    plan.k_per_split = units / n_splits * kWeightAlign;
    return plan;
}

const char* module(const MatmulPlan& plan) {
    return plan.weight_type == ScalarType::kF32 ? "matmul_unrolled" : "matmul_unrolled_16";
}

struct Constants {
    uint32_t threads, weight_type, row_tile, column_tile, steps, row_digits, column_digits, split_digits;
};

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& params = arguments.product;
    CHECK(plan.n_splits * plan.k_per_split == params.w_stride);
    const uint32_t row_groups = ceil_div(plan.rows, plan.row_tile), column_groups = padded(params.n) / plan.column_tile;
    // So that few programs serve all sizes, numbers have more digits than some need.
    const bool are_few = plan.row_tile == kFewRows.rows;
    const Constants constants{.threads = kLanes * kSubgroups,
                              .weight_type = static_cast<uint32_t>(plan.weight_type),
                              .row_tile = plan.row_tile,
                              .column_tile = plan.column_tile,
                              .steps = plan.k_per_split / kLanes,
                              .row_digits = std::max(digits_of(row_groups), are_few ? 0u : 1u),
                              .column_digits = std::max(digits_of(column_groups), 3u),
                              .split_digits = digits_of(plan.n_splits)};
    MatmulUnrolledParams unrolled{.n_rows = params.n_rows,
                                  .w = params.w,
                                  .x = params.x,
                                  .y = params.y,
                                  .w_stride = params.w_stride,
                                  .x_stride = params.x_stride,
                                  .y_stride = params.y_stride,
                                  .split_stride = params.split_stride};
    std::iota(std::begin(unrolled.digits), std::end(unrolled.digits), 0u);
    to.dispatch(product_info(module(plan), params, plan), constants, kLanes, unrolled,
                {row_groups, column_groups / kSubgroups, plan.n_splits});
}

}  // namespace
}  // namespace lorad::gpu::unrolled_impl

namespace lorad::gpu {

const ProductImpl kUnrolledImpl{.variant = MatmulVariant::kUnrolled,
                                .name = "unrolled",
                                .forms = {},
                                .refusal = unrolled_impl::refusal,
                                .plan = unrolled_impl::plan,
                                .module = unrolled_impl::module,
                                .record = unrolled_impl::record};

}  // namespace lorad::gpu
