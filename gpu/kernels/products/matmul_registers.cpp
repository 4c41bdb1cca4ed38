// Products without matrix units, of many rows: blocks of y in registers (matmul_registers.comp).
#include <algorithm>

#include "gpu/kernels/products/few_rows/few_row_tiles.h"
#include "gpu/kernels/products/product_impls.h"
#include "gpu/kernels/products/register_tiles.h"
#include "proto/base/format.h"

namespace lorad::gpu::registers_impl {
namespace {

constexpr uint32_t kRegistersSplitsMax = 16;
constexpr uint32_t kStartElements = 48;  // of k, for which a workgroup's start and end take as long
// For a sum of a split to be written and read, half of it in the L2 cache; in the same unit.
constexpr double kSumTime = 1e-2;

MatmulPlan plan_of(const MatmulPlan& of, uint32_t tile, uint32_t k, uint32_t n_splits) {
    MatmulPlan plan = of;
    plan.variant = MatmulVariant::kRegisters;
    plan.tile = tile;
    plan.row_tile = kRegisterTiles[tile].rows();
    plan.column_tile = kRegisterTiles[tile].columns();
    const uint32_t unit = std::max(kRegisterTiles[tile].staged_k(of.short_sum), kWeightAlign);
    plan.k_per_split = round_up(ceil_div(padded(k), n_splits), unit);
    plan.n_splits = ceil_div(padded(k), plan.k_per_split);
    return plan;
}

// What a product is expected to take, in tenths of a nanosecond of an H200. A multiprocessor runs `at_once` workgroups
// side by side; fewer are faster each, but not in proportion.
double time_of(const MatmulPlan& plan, uint32_t n, uint32_t units) {
    const RegisterTile& tile = kRegisterTiles[plan.tile];
    const uint32_t workgroups = ceil_div(padded(n), tile.columns()) * ceil_div(plan.rows, tile.rows()) * plan.n_splits;
    const uint32_t each = ceil_div(workgroups, units), rounds = each / tile.at_once, rest = each % tile.at_once;
    const double alone = 1.0 / (0.6 + 0.4 * tile.at_once);
    const double last = rest == 0 ? 0.0 : std::max(static_cast<double>(rest) / tile.at_once, alone);
    const double multiplying = (rounds + last) * tile.at_once * tile.time * (plan.k_per_split + kStartElements);
    return multiplying + kSumTime * plan.n_splits * plan.rows * n;
}

// With the cut of k that is the fastest.
MatmulPlan best_cut(const MatmulPlan& of, uint32_t tile, uint32_t n, uint32_t k, uint32_t max_splits, uint32_t units) {
    MatmulPlan best = plan_of(of, tile, k, 1);
    for (uint32_t n_splits = 2; n_splits <= std::min(max_splits, kRegistersSplitsMax); ++n_splits) {
        const MatmulPlan plan = plan_of(of, tile, k, n_splits);
        if (plan.n_splits == n_splits && time_of(plan, n, units) < time_of(best, n, units)) best = plan;
    }
    return best;
}

std::vector<MatmulPlan> candidates_of(const MatmulPlan& of, uint32_t n, uint32_t k, uint32_t max_splits,
                                      const DeviceCapabilities& caps) {
    std::vector<MatmulPlan> all;
    for (uint32_t i = 0; i < kRegisterTiles.size(); ++i) {
        const RegisterTile& tile = kRegisterTiles[i];
        if (!fits(tile, of.short_sum, caps)) continue;
        if (tile.rows() >= of.rows * 2 + 8 || (tile.rows() < of.rows && tile.rows() < 64)) continue;
        all.push_back(best_cut(of, i, n, k, max_splits, multiprocessors(caps)));
    }
    return all;
}

const char* refusal(const ImplFacts& on, const Product& product) {
    if (const char* why = portable_refusal(on, product)) return why;
    if (!on.ladder().has(RungId::kRegisters)) return "the device has no kernel by blocks in registers";
    if (on.options().batch_invariant) return "a row's bits would go by the number of rows";
    return is_for_registers(on, product) ? nullptr : "it was measured for plain weights of 16 bits alone";
}

// What the plan has before there is a tile.
MatmulPlan plan_without_tile(const ImplFacts& on, const Product& product, uint32_t short_sum) {
    MatmulPlan plan = portable_plan_for(MatmulVariant::kRegisters, on, product);
    plan.short_sum = short_sum;
    return plan;
}

std::optional<MatmulPlan> plan_by_table(const ImplFacts& on, const Product& product) {
    const uint32_t n = product.n, k = product.k, units = on.units();
    const MatmulPlan of = plan_without_tile(on, product, has_short_sums(on, product) ? kShortSum : 0);
    std::optional<MatmulPlan> best;
    for (uint32_t i = 0; i < kRegisterTiles.size(); ++i) {
        if (!fits(kRegisterTiles[i], of.short_sum, on.capabilities())) continue;
        const MatmulPlan plan = best_cut(of, i, n, k, product.max_splits, units);
        if (!best || time_of(plan, n, units) < time_of(*best, n, units)) best = plan;
    }
    return best;
}

std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    const MeasuredProduct* const measured = on.measured().find(product);
    if (measured == nullptr) return plan_by_table(on, product);
    const std::optional<MatmulPlan> plan = plan_as_measured(on, product, *measured);
    // matmul_tiled comes next.
    return plan && plan->variant == MatmulVariant::kRegisters ? plan : std::nullopt;
}

const char* module(const MatmulPlan& plan) { return plan.short_sum != 0 ? "matmul_registers_f16" : "matmul_registers"; }

std::string describe_tile(const MatmulPlan& plan) {
    const RegisterTile& t = kRegisterTiles[plan.tile];
    return lorad::format("registers {}x{}x{} each {}x{} slices{} buffers{} short{}", t.rows(), t.columns(),
                         t.staged_k(plan.short_sum), t.each_t, t.each_n, t.slices, t.buffers, plan.short_sum) +
           (plan.is_measured ? ", as measured on this device" : "");
}

struct Constants {
    uint32_t threads, weights, act_type, lanes_n, lanes_t, each_n, each_t, slice_k, slices, buffers, group_n;
};
struct ShortConstants {
    Constants constants;
    uint32_t short_sum;
};

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& params = arguments.product;
    const RegisterTile& tile = kRegisterTiles[plan.tile];
    CHECK(fits(tile, plan.short_sum, to.capabilities()));
    const DispatchInfo info = product_info(module(plan), params, plan);
    const Constants constants{.threads = tile.threads(),
                              .weights = plan.weights().constant(),
                              .act_type = static_cast<uint32_t>(plan.act_type),
                              .lanes_n = tile.lanes_n,
                              .lanes_t = tile.lanes_t,
                              .each_n = tile.each_n,
                              .each_t = tile.each_t,
                              .slice_k = tile.slice_k(plan.short_sum),
                              .slices = tile.slices,
                              .buffers = tile.buffers,
                              .group_n = tile.group_n()};
    const ImplRecorder::Grid grid{ceil_div(plan.rows, tile.rows()), ceil_div(padded(params.n), tile.columns()),
                                  plan.n_splits};
    if (plan.short_sum != 0)
        to.dispatch(info, ShortConstants{constants, plan.short_sum}, 0, params, grid);
    else
        to.dispatch(info, constants, 0, params, grid);
}

void candidates(const ImplFacts& on, const Product& product, std::vector<MatmulPlan>& all) {
    if (portable_refusal(on, product) != nullptr || !on.ladder().has(RungId::kRegisters)) return;
    for (const uint32_t length : {0u, 16u, 32u}) {
        if (length != 0 && !has_short_sums(on, product)) break;
        const std::vector<MatmulPlan> more = candidates_of(plan_without_tile(on, product, length), product.n, product.k,
                                                           product.max_splits, on.capabilities());
        all.insert(all.end(), more.begin(), more.end());
    }
}

}  // namespace
}  // namespace lorad::gpu::registers_impl

namespace lorad::gpu {

// What was measured to be faster: plain weights of 16 bits.
bool is_for_registers(const ImplFacts& on, const Product& product) {
    return on.ladder().has(RungId::kRegisters) && !on.options().batch_invariant && !product.is_packed() &&
           product.type != ScalarType::kF32;
}

// f16 does not hold all numbers of bf16, but those that packed weights become.
bool has_short_sums(const ImplFacts& on, const Product& product) {
    return on.ladder().has(RungId::kShortSums) && (product.type == ScalarType::kF16 || product.is_packed());
}

bool fits(const RegisterTile& tile, uint32_t short_sum, const DeviceCapabilities& caps) {
    // Lanes of such subgroups have 256 registers, which is not enough for 8 x 8 elements and two slices: radv spills.
    if (caps.subgroup_size_max > 32 && tile.slices > 1 && tile.each_n * tile.each_t >= 64) return false;
    return tile.is_valid(short_sum) && within_limit(caps, tile.threads()) == tile.threads() &&
           tile.shared_bytes(short_sum) <= caps.shared_memory_bytes;
}

// What was measured is of one number of rows. Of others each form is expected to take as many times longer as the table
// says for that form.
std::optional<MatmulPlan> plan_as_measured(const ImplFacts& on, const Product& product,
                                           const MeasuredProduct& measured) {
    std::optional<MatmulPlan> best;
    double best_us = 0;
    for (const MeasuredForm& one : measured.forms) {
        // kStream takes no more rows, and nobody else takes its tiles.
        if (is_stream_form(one.form) && measured_rows(product.rows) != kMeasuredRows[0]) continue;
        const std::optional<MatmulPlan> then = plan_of_form(on, measured.product(), one.form),
                                        now = plan_of_form(on, product, one.form);
        if (!then || !now) continue;
        const double us = one.us * expected_time(on, product, *now) / expected_time(on, measured.product(), *then);
        if (best && us >= best_us) continue;
        best = now;
        best_us = us;
        best->is_measured = one.form != measured.forms.front().form;
    }
    return best ? best : registers_impl::plan_by_table(on, product);
}

std::optional<MatmulPlan> plan_of_form(const ImplFacts& on, const Product& product, const ProductForm& form) {
    if (form.tile == kTiledForm) return kTiledImpl.plan(on, product);
    if (form.short_sum != 0 && !has_short_sums(on, product)) return std::nullopt;
    if (form.tile >= kStreamForm) return stream_plan_of_form(on, product, form);
    if (!fits(kRegisterTiles[form.tile], form.short_sum, on.capabilities())) return std::nullopt;
    const MatmulPlan of = registers_impl::plan_without_tile(on, product, form.short_sum);
    const MatmulPlan plan =
        registers_impl::best_cut(of, form.tile, product.n, product.k, product.max_splits, on.units());
    if (form.cut == 0) return plan;
    const uint32_t wanted = form.cut > 0 ? plan.n_splits << form.cut : std::max(plan.n_splits >> -form.cut, 1u);
    const uint32_t most = std::min(product.max_splits, registers_impl::kRegistersSplitsMax);
    return registers_impl::plan_of(of, form.tile, product.k, std::min(wanted, most));
}

double expected_time(const ImplFacts& on, const Product& product, const MatmulPlan& plan) {
    if (plan.variant == MatmulVariant::kRegisters) return registers_impl::time_of(plan, product.n, on.units());
    if (plan.variant == MatmulVariant::kStream) return stream_time(on, product, plan);
    return static_cast<double>(round_up(product.rows, plan.row_tile)) * product.n * product.k;
}

const ProductImpl kRegistersImpl{.variant = MatmulVariant::kRegisters,
                                 .name = "blocks in registers",
                                 .forms = {.reads_packed = true},
                                 .refusal = registers_impl::refusal,
                                 .plan = registers_impl::plan,
                                 .module = registers_impl::module,
                                 .record = registers_impl::record,
                                 .describe = registers_impl::describe_tile,
                                 .candidates = registers_impl::candidates};

}  // namespace lorad::gpu
