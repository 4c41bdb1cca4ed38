// Products on a software device whose subgroups have 8 lanes (matmul_unrolled.comp): all of a split's k is in the
// program.
#include <algorithm>
#include <bit>

#include "gpu/kernels/products/matmul_unrolled.params.h"
#include "gpu/kernels/products/product_impls.h"

namespace lorad::gpu::unrolled_impl {
namespace {

constexpr uint32_t kLanes = 8, kColumns = 4;  // of a workgroup, which is one subgroup
constexpr uint32_t kFewRows = 2, kManyRows = 4;
// Elements of k in one program. The driver compiles 1,000 in a second, and longer ones in more than proportion: a
// product that may be split has at most the first, others the second.
constexpr uint32_t kSplitElements = 768, kWholeElements = 2048;

// The digits in base 8 of numbers below `count`, as an odd number, so that few programs serve all sizes.
uint32_t digits_of(uint32_t count) {
    return std::max(ceil_div(static_cast<uint32_t>(std::bit_width(count - 1)), 3u), 1u) | 1;
}

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
    plan.row_tile = product.rows <= kFewRows ? kFewRows : kManyRows;
    plan.column_tile = kColumns;
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
    const Constants constants{.threads = kLanes,
                              .weight_type = static_cast<uint32_t>(plan.weight_type),
                              .row_tile = plan.row_tile,
                              .column_tile = plan.column_tile,
                              .steps = plan.k_per_split / kLanes,
                              .row_digits = digits_of(row_groups),
                              .column_digits = std::max(digits_of(column_groups), 5u),
                              .split_digits = digits_of(plan.n_splits)};
    to.dispatch(product_info(module(plan), params, plan), constants, kLanes,
                MatmulUnrolledParams{.product = params, .digits = {0, 1, 2, 3, 4, 5, 6, 7}},
                {row_groups, column_groups, plan.n_splits});
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
