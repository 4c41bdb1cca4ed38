// The walk over the implementations of products.
#include "gpu/kernels/products/product_impls.h"

#include <algorithm>
#include <bit>

#include "gpu/kernels/products/products.h"
#include "gpu/kernels/products/register_tiles.h"
#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

// Returns true if the implementation computes such results, adds adapters in this form and reads such weights on any
// device.
bool has_forms(const ImplForms& forms, const Product& product) {
    return (forms.results & bit_of(product.result)) != 0 && (forms.adapters & bit_of(product.adapters)) != 0 &&
           (product.is_packed() ? forms.reads_packed : forms.reads_plain);
}

// Why an implementation with the product's forms is not for it, or null.
const char* refusal_of(const ProductImpl& impl, const ImplFacts& on, const Product& product) {
    if (product.norm_is_deferred && !impl.forms.deferred_norms) return "it does not apply deferred norms";
    if (product.is_n_major && !impl.forms.n_major) return "it reads w by rows of n";
    if (impl.forms.needs_fragments && !product.may_be_in_fragments) return "it reads x in blocks";
    return impl.refusal(on, product);
}

// As of the plain copy.
Product unpacked(Product product) {
    product.formats = 0;
    return product;
}

}  // namespace

bool takes(const ProductImpl& impl, const ImplFacts& on, const Product& product) {
    return has_forms(impl.forms, product) && refusal_of(impl, on, product) == nullptr;
}

const ProductImpl& impl_of(MatmulVariant variant) {
    const auto* found = std::ranges::find(kProductImpls, variant, &ProductImpl::variant);
    CHECK(found != kProductImpls.end());
    return **found;
}

MatmulPlan plan_for(MatmulVariant variant, const Product& product) {
    MatmulPlan plan;
    plan.variant = variant;
    plan.rows = product.rows;
    plan.weight_type = product.type;
    if (impl_of(variant).forms.reads_16_bits) plan.act_type = product.type;
    if (product.is_packed()) plan.packed = static_cast<WeightFormat>(std::countr_zero(product.formats));
    plan.adapters = product.adapters;
    plan.result = product.result;
    plan.activation = product.activation;
    plan.norm_is_deferred = product.norm_is_deferred;
    plan.is_n_major = product.is_n_major;
    return plan;
}

MatmulPlan portable_plan_for(MatmulVariant variant, const ImplFacts& on, const Product& product) {
    MatmulPlan plan = plan_for(variant, product);
    plan.act_type = on.act_type(product.type);
    return plan;
}

void add_splits(const ImplFacts& on, const Product& product, const MatmulPlan& of_tile, uint32_t step_k,
                std::vector<MatmulPlan>& all) {
    constexpr uint32_t kWorkgroupsPerUnit = 9;
    const uint32_t unit = std::max(step_k, kWeightAlign), steps = product.stride() / unit;
    const uint32_t tiles = ceil_div(product.rows, of_tile.row_tile) * ceil_div(product.n, of_tile.column_tile);
    for (uint32_t n_splits = 1; n_splits <= std::min(product.max_splits, steps); ++n_splits) {
        const uint32_t split_steps = ceil_div(steps, n_splits);
        if (ceil_div(steps, split_steps) != n_splits) continue;
        if (n_splits > 1 && tiles * n_splits > on.units() * kWorkgroupsPerUnit) continue;
        all.push_back(of_tile);
        all.back().n_splits = n_splits;
        all.back().k_per_split = split_steps * unit;
    }
}

std::optional<MatmulPlan> ProductPlanner::plan(const Product& product) const {
    const ImplFacts on(facts_);
    if (product.is_packed() && is_better_unpacked(on, product)) {
        std::optional<MatmulPlan> of_copy = plan(unpacked(product));
        if (of_copy) of_copy->unpacks = true;
        return of_copy;
    }
    for (const ProductImpl* impl : kProductImpls) {
        if (!takes(*impl, on, product)) continue;
        if (const std::optional<MatmulPlan> plan = impl->plan(on, product)) return plan;
    }
    return std::nullopt;
}

std::optional<MatmulPlan> ProductPlanner::plan_by(MatmulVariant variant, const Product& product) const {
    return impl_of(variant).plan(ImplFacts(facts_), product);
}

std::optional<MatmulPlan> ProductPlanner::plan_by_form(const Product& product, const ProductForm& form) const {
    return plan_of_form(ImplFacts(facts_), product, form);
}

double ProductPlanner::expected_time(const Product& product, const MatmulPlan& plan) const {
    return gpu::expected_time(ImplFacts(facts_), product, plan);
}

std::vector<MatmulPlan> ProductPlanner::candidates(const Product& product) const {
    const ImplFacts on(facts_);
    std::vector<MatmulPlan> all;
    for (const ProductImpl* impl : kProductImpls) {
        if (impl->candidates != nullptr && has_forms(impl->forms, product)) impl->candidates(on, product, all);
    }
    return all;
}

std::string ProductPlanner::explain(const Product& product) const {
    const ImplFacts on(facts_);
    if (product.is_packed() && is_better_unpacked(on, product))
        return "unpacked: a plain copy in front of the product is faster\n" + explain(unpacked(product));
    std::string text;
    for (const ProductImpl* impl : kProductImpls) {
        if (!has_forms(impl->forms, product)) continue;
        const char* refusal = refusal_of(*impl, on, product);
        const std::optional<MatmulPlan> plan = refusal == nullptr ? impl->plan(on, product) : std::nullopt;
        if (plan) return text + lorad::format("{}: {}\n", impl->name, describe(*plan));
        text += lorad::format(
            "{}: not, as {}\n", impl->name,
            refusal != nullptr ? refusal : "none of its tiles fits, or others were measured to be faster");
    }
    return text + "no implementation takes it\n";
}

void ProductKernels::record(Recorder& recorder, const MatmulPlan& plan, const ProductArguments& arguments) {
    ProductArguments all = arguments;
    CHECK(plan.k_per_split % kWeightAlign == 0 && all.product.w_stride % kWeightAlign == 0 &&
          all.product.x_stride % kWeightAlign == 0 &&
          (plan.is_n_major || all.product.x_stride == all.product.w_stride));
    all.product.k_per_split = plan.k_per_split;
    all.product.pad = 0;
    impl_of(plan.variant).record(ImplRecorder(facts_, cache_, recorder), plan, all);
}

const char* variant_name(const MatmulPlan& plan) { return impl_of(plan.variant).module(plan); }

std::string describe(const MatmulPlan& plan) {
    const ProductImpl& impl = impl_of(plan.variant);
    return impl.describe != nullptr ? impl.describe(plan) : impl.module(plan);
}

}  // namespace lorad::gpu
