// Which form of products without matrix units is the fastest on this device: measured at the first start on it, for the
// model's own products, and remembered. kRegisterTiles was measured on one kind of device alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/command.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/tuning/measured_products.h"
#include "proto/base/result.h"

namespace lorad::gpu {

class KernelSet;

// Serves KernelSet::tune().
class ProductTiming {
  public:
    // `facts` are those of `kernels`.
    ProductTiming(Device& device, KernelSet& kernels, KernelFacts& facts)
        : device_(device), kernels_(kernels), facts_(facts) {}

    // Does nothing where there is nothing to choose: beside matrix units, with batch_invariant, on software devices.
    // An error: the device is lost. Where memory is short, or the device has no timestamps, products go by the table.
    Status run(const TuningOptions& options);

  private:
    struct Candidate {
        ProductForm form;
        MatmulPlan plan;
        double expected = 0;  // in the table's unit
        std::unique_ptr<CommandBuffer> recording = nullptr;
        std::vector<double> times = {};
    };
    struct Operands {
        Buffer count, w, x, y;
        uint64_t w_bytes = 0;  // of one copy of the matrix
        uint32_t n_copies = 1;
    };

    bool has_choice(const TuningOptions& options) const;
    std::string record_key(const TuningOptions& options) const;
    bool take_earlier(const std::string& key);
    bool can_take(const MeasuredProducts& measured) const;
    Result<MeasuredProducts> measure(const TuningOptions& options);
    Result<const std::vector<ProductForm>*> forms_of(ScalarType type);
    void make_kernels(ScalarType type, std::vector<ProductForm>& forms);
    // Without forms: there was no choice, or no time for it.
    Result<MeasuredProduct> measure(const Product& product);
    std::vector<Candidate> candidates_of(const Product& product, const ProductForm& table,
                                         const std::vector<ProductForm>& forms) const;
    std::optional<Candidate> candidate_of(const Product& product, const ProductForm& form) const;
    std::vector<Candidate> cuts_of(const Product& product, const std::vector<Candidate>& all) const;
    Result<Operands> make_operands(const Product& product, uint32_t n_splits);
    Result<bool> take_first_turn(const Product& product, const Operands& on, std::vector<Candidate>& all);
    Status record(const Product& product, const Operands& on, uint32_t copy, Candidate& candidate);
    Status time_once(std::span<Candidate> some);
    double seconds_left() const;
    void tell(const MeasuredProducts& measured) const;

    Device& device_;
    KernelSet& kernels_;
    KernelFacts& facts_;
    std::chrono::steady_clock::time_point begin_ = {}, end_ = {};
    uint32_t tiles_max_ = 0;
    std::optional<std::vector<ProductForm>> forms_[3] = {};  // by ScalarType, those that passed their test
};

}  // namespace lorad::gpu
