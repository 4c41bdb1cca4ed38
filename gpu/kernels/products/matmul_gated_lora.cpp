// The product of gates and ups by warpgroups with the activation, and the shrink and expand of its rows' adapters, in
// it (gated_lora_text.h). Workgroups wait at a barrier of the whole grid.
#include "gpu/kernels/persistent/grid_barrier.h"
#include "gpu/kernels/products/gated_lora.params.h"
#include "gpu/kernels/products/product_impls.h"
#include "gpu/kernels/products/warpgroup_text.h"
#include "gpu/kernels/products/warpgroup_tiles.h"

namespace lorad::gpu::gated_lora_impl {
namespace {

// The only tile that was measured. A thread has 48 sums, and no registers for more where three workgroups share a
// multiprocessor.
constexpr uint32_t kPiecesMax = 2, kColumns = 96, kStep = 128;

const char* refusal(const ImplFacts& on, const Product& product) {
    if (product.rows > kGatedLoraRows) return "it is for up to 64 rows";
    return kWarpgroupImpl.refusal(on, product);
}

std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    std::optional<MatmulPlan> plan = kWarpgroupImpl.plan(on, product);
    if (!plan || product.rows > kGatedLoraRows) return std::nullopt;
    const WarpgroupTile& tile = kWarpgroupTiles[plan->tile];
    const uint32_t units = on.capabilities().n_compute_units_hint, tiles = plan->column_tiles(product.n);
    const bool fits = tile.rows() == kGatedLoraRows && tile.columns == kColumns && tile.k == kStep && !tile.overlaps &&
                      product.stride() >= kGatedLoraStepsMin * tile.k && tiles <= tile.at_once * units &&
                      gated_lora_pieces(kGatedLoraRows, tiles) <= kPiecesMax;
    plan->variant = MatmulVariant::kGatedLora;
    return fits ? plan : std::nullopt;
}

const char* module(const MatmulPlan& plan) {
    return plan.weight_type == ScalarType::kBf16 ? "matmul_warpgroup_gated_lora_bf16"
                                                 : "matmul_warpgroup_gated_lora_f16";
}

std::string describe_tile(const MatmulPlan& plan) { return kWarpgroupImpl.describe(plan); }

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& product = arguments.product;
    const InsideAdapters& inside = arguments.inside;
    CHECK(product.y_fragments != 0);
    MatmulParams whole = product;
    whole.n *= 2;
    CHECK(plan.may_write_fragments(arguments.y_order));
    const WarpgroupConstants constants{.threads = kWarpgroupTiles[plan.tile].threads(),
                                       .tile = plan.tile,
                                       .stride = product.w_stride,
                                       .row_blocks = warpgroup_row_blocks(plan),
                                       .gated_rows = product.n,
                                       .y_order = arguments.y_order,
                                       .units = to.capabilities().n_compute_units_hint,
                                       .persistent = 0,
                                       .stacked_columns = 0,
                                       .w_columns = 0};
    to.dispatch(product_info(module(plan), whole, plan), constants, 0,
                GatedLoraParams{.product = product,
                                .x_rows = inside.x_rows,
                                .lora_layer = inside.lora_layer,
                                .low = inside.low,
                                .sync = inside.sync,
                                .given_up = inside.given_up,
                                .lora_slot_stride = inside.lora_slot_stride,
                                .max_polls = kGridBarrierPollsMax,
                                .prefetch = arguments.prefetch},
                {1, 1, plan.column_tiles(whole.n)});
}

}  // namespace
}  // namespace lorad::gpu::gated_lora_impl

namespace lorad::gpu {

const ProductImpl kGatedLoraImpl{.variant = MatmulVariant::kGatedLora,
                                 .name = "warpgroups with shrink and expand in them",
                                 .forms = {.results = bit_of(ProductResult::kGated),
                                           .adapters = bit_of(AdapterForm::kInside),
                                           .reads_16_bits = true,
                                           .needs_fragments = true},
                                 .refusal = gated_lora_impl::refusal,
                                 .plan = gated_lora_impl::plan,
                                 .module = gated_lora_impl::module,
                                 .record = gated_lora_impl::record,
                                 .describe = gated_lora_impl::describe_tile};

}  // namespace lorad::gpu
