// Up to 8 rows without matrix units, by plain weights of 16 bits (matmul_stream.comp).
#include <algorithm>
#include <cmath>

#include "gpu/kernels/products/few_rows/few_row_tiles.h"
#include "gpu/kernels/products/product_impls.h"
#include "gpu/kernels/products/register_tiles.h"
#include "proto/base/format.h"

namespace lorad::gpu::stream_impl {
namespace {

constexpr uint32_t kStartElements = 450;  // of k, for which a workgroup's start and end take as long
constexpr double kSumTime = 1e-2;         // for a sum of a split to be written and read, in tenths of a nanosecond
constexpr uint32_t kSplitsMax = 16;

const char* refusal(const ImplFacts& on, const Product& product) {
    if (const char* why = portable_refusal(on, product)) return why;
    if (!is_for_registers(on, product)) return "it is for plain weights of 16 bits, where blocks in registers are";
    return measured_rows(product.rows) == kMeasuredRows[0] ? nullptr : "of more rows blocks in registers are faster";
}

std::optional<MatmulPlan> plan_by_table(const ImplFacts& on, const Product& product) {
    if (product.rows > kStreamRowsMax) return std::nullopt;
    const uint32_t short_sum = has_short_sums(on, product) ? kShortSum : 0;
    std::optional<MatmulPlan> best;
    for (uint32_t i = 0; i < kStreamTiles.size(); ++i) {
        if (!fits(kStreamTiles[i], short_sum, on.capabilities())) continue;
        const MatmulPlan plan = stream_plan(on, product, i, short_sum);
        if (!best || stream_time(on, product, plan) < stream_time(on, product, *best)) best = plan;
    }
    return best;
}

std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    const MeasuredProduct* const measured = on.measured().find(product);
    if (measured == nullptr) return plan_by_table(on, product);
    const std::optional<MatmulPlan> plan = plan_as_measured(on, product, *measured);
    return plan && plan->variant == MatmulVariant::kStream ? plan : std::nullopt;
}

const char* module(const MatmulPlan& plan) { return plan.short_sum != 0 ? "matmul_stream_f16" : "matmul_stream"; }

std::string describe_tile(const MatmulPlan& plan) {
    const StreamTile& t = kStreamTiles[plan.tile];
    return lorad::format("through registers {}x{} each {}x{} lanes{} ahead{} short{}", plan.row_tile, t.columns(),
                         plan.row_tile, t.each_n, t.lanes_k, t.slots, plan.short_sum) +
           (plan.is_measured ? ", as measured on this device" : "");
}

struct Constants {
    uint32_t threads, weight_type, act_type, cols, each_n, lanes_k, slots;
};

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const StreamTile& tile = kStreamTiles[plan.tile];
    const MatmulParams& params = arguments.product;
    const Constants constants{.threads = tile.threads,
                              .weight_type = static_cast<uint32_t>(plan.weight_type),
                              .act_type = static_cast<uint32_t>(plan.act_type),
                              .cols = plan.row_tile,
                              .each_n = tile.each_n,
                              .lanes_k = tile.lanes_k,
                              .slots = tile.slots};
    to.dispatch(product_info(module(plan), params, plan), constants, 0, params,
                {ceil_div(plan.rows, plan.row_tile), ceil_div(padded(params.n), tile.columns()), plan.n_splits});
}

void candidates(const ImplFacts& on, const Product& product, std::vector<MatmulPlan>& all) {
    if (portable_refusal(on, product) != nullptr || !is_for_registers(on, product) || product.rows > kStreamRowsMax)
        return;
    const uint32_t short_sum = has_short_sums(on, product) ? kShortSum : 0;
    for (uint32_t i = 0; i < kStreamTiles.size(); ++i) {
        if (!fits(kStreamTiles[i], short_sum, on.capabilities())) continue;
        for (uint32_t n_splits = 1, last = 0; n_splits <= std::min(product.max_splits, kSplitsMax); ++n_splits) {
            const MatmulPlan plan = stream_plan(on, product, i, short_sum, n_splits);
            if (plan.n_splits != last) all.push_back(plan);
            last = plan.n_splits;
        }
    }
}

}  // namespace
}  // namespace lorad::gpu::stream_impl

namespace lorad::gpu {

bool fits(const StreamTile& tile, uint32_t short_sum, const DeviceCapabilities& caps) {
    // Whole subgroups, of which no team of lanes along k lies in two.
    return within_limit(caps, tile.threads) == tile.threads &&
           tile.threads % std::max(caps.subgroup_size_max, 1u) == 0 && caps.subgroup_size_min >= tile.lanes_k &&
           tile.shared_bytes(short_sum) <= caps.shared_memory_bytes;
}

MatmulPlan stream_plan(const ImplFacts& on, const Product& product, uint32_t tile, uint32_t short_sum,
                       uint32_t n_splits) {
    MatmulPlan plan = portable_plan_for(MatmulVariant::kStream, on, product);
    plan.tile = tile;
    plan.row_tile = product.rows <= kStreamFewRows ? kStreamFewRows : kStreamRowsMax;
    plan.column_tile = kStreamTiles[tile].columns();
    plan.short_sum = short_sum;
    const uint32_t unit = std::max(kStreamTiles[tile].step_k(), kWeightAlign);
    plan.k_per_split = round_up(ceil_div(padded(product.k), n_splits), unit);
    plan.n_splits = ceil_div(padded(product.k), plan.k_per_split);
    return plan;
}

MatmulPlan stream_plan(const ImplFacts& on, const Product& product, uint32_t tile, uint32_t short_sum) {
    MatmulPlan best = stream_plan(on, product, tile, short_sum, 1);
    for (uint32_t n_splits = 2; n_splits <= std::min(product.max_splits, stream_impl::kSplitsMax); ++n_splits) {
        const MatmulPlan plan = stream_plan(on, product, tile, short_sum, n_splits);
        if (stream_time(on, product, plan) < stream_time(on, product, best)) best = plan;
    }
    return best;
}

std::optional<MatmulPlan> stream_plan_of_form(const ImplFacts& on, const Product& product, const ProductForm& form) {
    const uint32_t tile = form.tile - kStreamForm;
    if (!fits(kStreamTiles[tile], form.short_sum, on.capabilities())) return std::nullopt;
    const MatmulPlan plan = stream_plan(on, product, tile, form.short_sum);
    if (form.cut == 0) return plan;
    const uint32_t wanted = form.cut > 0 ? plan.n_splits << form.cut : std::max(plan.n_splits >> -form.cut, 1u);
    return stream_plan(on, product, tile, form.short_sum,
                       std::min({wanted, product.max_splits, stream_impl::kSplitsMax}));
}

// A multiprocessor runs `at_once` workgroups side by side; fewer are faster each, but not in proportion.
double stream_time(const ImplFacts& on, const Product& product, const MatmulPlan& plan) {
    const StreamTile& tile = kStreamTiles[plan.tile];
    const auto& of = plan.row_tile <= kStreamFewRows ? tile.few : tile.more;
    const uint32_t row_tiles = ceil_div(product.rows, plan.row_tile),
                   workgroups = ceil_div(padded(product.n), tile.columns()) * row_tiles * plan.n_splits;
    const uint32_t each = ceil_div(workgroups, on.units()), rounds = each / of.at_once, rest = each % of.at_once;
    const double busiest = of.at_once * (rounds + std::sqrt(static_cast<double>(rest) / of.at_once));
    return busiest * tile.columns() * of.time / 100 * (plan.k_per_split + stream_impl::kStartElements) +
           stream_impl::kSumTime * plan.n_splits * product.rows * product.n;
}

const ProductImpl kStreamImpl{.variant = MatmulVariant::kStream,
                              .name = "few rows through registers",
                              .forms = {},
                              .refusal = stream_impl::refusal,
                              .plan = stream_impl::plan,
                              .module = stream_impl::module,
                              .record = stream_impl::record,
                              .describe = stream_impl::describe_tile,
                              .candidates = stream_impl::candidates};

}  // namespace lorad::gpu
