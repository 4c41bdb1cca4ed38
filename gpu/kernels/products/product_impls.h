// What an implementation of products says of itself, and what implementations share. Each is a file of its own;
// matmul_variants.h lists them. Internal to products; docs/EXTENDING.md says how to add one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpu/command.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/products/product_arguments.h"

namespace lorad::gpu {

// A device, as implementations ask about it.
class ImplFacts : public Planner {
  public:
    explicit ImplFacts(const KernelFacts& facts) : Planner(facts) {}
    using Planner::capabilities;
    using Planner::ladder;
    using Planner::options;
    using Planner::threads;
    const KernelFacts& facts() const { return facts_; }
    const MeasuredProducts& measured() const { return facts_.measured; }
    uint32_t units() const { return multiprocessors(capabilities()); }
};

// And as they record for it.
class ImplRecorder : public ImplFacts {
  public:
    ImplRecorder(const KernelFacts& facts, KernelCache& cache, Recorder& recorder)
        : ImplFacts(facts), cache_(cache), recorder_(recorder) {}

    struct Grid {
        uint32_t x = 1, y = 1, z = 1;
    };
    // subgroup_size: the required one; 0: any. Records nothing if the kernel cannot be made, which the cache tells.
    template <typename Constants, typename Params>
    void dispatch(const DispatchInfo& info, const Constants& constants, uint32_t subgroup_size, const Params& params,
                  const Grid& grid) const {
        const Kernel* kernel = cache_.find_or_make(info.name, words_of(constants), subgroup_size);
        if (kernel != nullptr) recorder_.dispatch(*kernel, params, grid.x, grid.y, grid.z, info);
    }

  private:
    KernelCache& cache_;
    Recorder& recorder_;
};

template <typename Enum>
constexpr uint32_t bit_of(Enum value) {
    return 1u << static_cast<uint32_t>(value);
}

// The forms that an implementation supports, whatever the device.
struct ImplForms {
    uint32_t results = bit_of(ProductResult::kSums);  // bits by ProductResult
    uint32_t adapters = bit_of(AdapterForm::kApart);  // bits by AdapterForm
    bool reads_plain = true, reads_packed = false;
    bool reads_16_bits = false;    // x is of the weights' type, which has 16 bits
    bool needs_fragments = false;  // x has to be in fragments
    bool deferred_norms = false;   // it can apply the factor of Product::norm_is_deferred
    bool n_major = false;          // it can read w as Product::is_n_major says, beside rows of n
};

struct ProductImpl {
    MatmulVariant variant;
    const char* name;  // for people
    ImplForms forms;
    // Why the implementation is not for this product, whose forms it has: what the device's ladder or the options lack,
    // or the measured rule by which another implementation is faster, with its number beside it. Null: it is for it.
    const char* (*refusal)(const ImplFacts& on, const Product& product);
    // Plans the product, even if refusal() has a reason; nullopt: it has no tile that fits.
    std::optional<MatmulPlan> (*plan)(const ImplFacts& on, const Product& product);
    const char* (*module)(const MatmulPlan& plan);  // the name of the kernel's module
    // One dispatch, of a plan that plan() or candidates() made.
    void (*record)(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments);
    std::string (*describe)(const MatmulPlan& plan) = nullptr;  // the tile, for people; null: the module's name
    // Plans that could serve, which benchmarks compare; null: none.
    void (*candidates)(const ImplFacts& on, const Product& product, std::vector<MatmulPlan>& all) = nullptr;
};

const ProductImpl& impl_of(MatmulVariant variant);  // every variant has one
// Whether the implementation has the product's forms and no reason against it.
bool takes(const ProductImpl& impl, const ImplFacts& on, const Product& product);

// What all plans take from the product: sizes, types, forms. x is of the weights' type if the implementation reads 16
// bits, else f32.
MatmulPlan plan_for(MatmulVariant variant, const Product& product);
// Of the implementations that read x in whichever type the device's other kernels write it.
MatmulPlan portable_plan_for(MatmulVariant variant, const ImplFacts& on, const Product& product);

// Serves ProductImpl::candidates: the plan of a tile with each number of splits that makes a difference, step_k
// elements at least, and gives no more workgroups than a few rounds have room for.
void add_splits(const ImplFacts& on, const Product& product, const MatmulPlan& of_tile, uint32_t step_k,
                std::vector<MatmulPlan>& all);

// Rules that several implementations share, with the file that has each.
bool is_one_row_alone(const ImplFacts& on, const Product& product);   // matmul_gemv.cpp: kGemv is faster
bool is_for_matrices2(const ImplFacts& on, const Product& product);   // matmul_coopmat2.cpp: kCoopmat2 is requested
bool is_for_warpgroups(const ImplFacts& on, const Product& product);  // matmul_warpgroup.cpp: rows and ladder
// Products by warpgroups add no long runs' adapters themselves; up to some ranks they are faster all the same, with
// consumers that add them, than products by matrices that do (matmul_warpgroup.cpp).
bool consumers_add_runs_faster(const ImplFacts& on, const Product& product);
const char* portable_refusal(const ImplFacts& on,
                             const Product& product);  // matmul.cpp: of all portable implementations
// The fastest form of a product, of which another number of rows may have been measured; of any portable
// implementation.
std::optional<MatmulPlan> plan_as_measured(const ImplFacts& on, const Product& product,
                                           const MeasuredProduct& measured);  // matmul_registers.cpp
// matmul_registers.cpp: whether blocks in registers are for such weights, and whether these have short sums.
bool is_for_registers(const ImplFacts& on, const Product& product);
bool has_short_sums(const ImplFacts& on, const Product& product);
bool may_gate(const ImplFacts& on, const Product& product);         // matmul_coopmat.cpp: by options and sizes
bool can_read_bricks(const ImplFacts& on, const Product& product);  // matmul_packed.cpp
// matmul_packed_rows.cpp: of all programs in text that read packed weights.
const char* packed_program_refusal(const ImplFacts& on, const Product& product);
// Whether a plain copy of the packed matrix, made in front of the product, is faster than reading it as it is
// (matmul.cpp).
bool is_better_unpacked(const ImplFacts& on, const Product& product);

}  // namespace lorad::gpu
