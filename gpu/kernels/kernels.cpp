#include "gpu/kernels/kernels.h"

#include "gpu/kernels/ladder_tests.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/tuning/product_timing.h"
#include "proto/base/format.h"

namespace lorad::gpu {

uint32_t Planner::threads(uint32_t on_gpu, uint32_t small) const {
    return workgroup_size(capabilities(), on_gpu, small);
}

KernelSet::KernelSet(Device& device, const KernelSetOptions& options)
    : facts_{device.capabilities(), options},
      cache_(device),
      products(facts_, cache_),
      attention(facts_, cache_),
      lora(facts_, cache_),
      rows(facts_, cache_),
      sampling(facts_, cache_),
      persistent(facts_, cache_),
      mixers(facts_, cache_),
      experts(facts_, cache_),
      planner_(facts_),
      wanted_path_(options.path) {}

Result<std::unique_ptr<KernelSet>> KernelSet::create(Device& device, const KernelSetOptions& options) {
    std::unique_ptr<KernelSet> kernels(new KernelSet(device, options));
    TRY(kernels->build_ladder(device));
    kernels->cache_.forget_failures();
    kernels->cache_.refuse(options.refused);
    return kernels;
}

Status KernelSet::tune(Device& device, const TuningOptions& options) {
    TRY(ProductTiming(device, *this, facts_).run(options));
    cache_.forget_failures();
    return ok_status();
}

Status KernelSet::build_ladder(Device& device) {
    facts_.ladder = ladder_of(device.capabilities(), wanted_path_, facts_.options.left_out);
    // A device that only compiles can run no test: it has what its capabilities offer.
    if (!device.capabilities().compiles_only) TRY(LadderTests(device, *this, facts_).run());
    const KernelPath reached = facts_.ladder.path();
    const bool is_f32 = wanted_path_ == KernelPath::kPortableF32 && reached == KernelPath::kPortable;
    facts_.options.path = is_f32 ? KernelPath::kPortableF32 : reached;
    if (wanted_path_ != KernelPath::kAuto && facts_.options.path != wanted_path_) {
        return make_error(
            ErrorCode::kInvalidConfig,
            lorad::format("kernel path {}: not available on {}; the best that works there is {}",
                          path_name(wanted_path_), device.capabilities().name, path_name(facts_.options.path)));
    }
    return ok_status();
}

std::vector<std::string> KernelSet::replaceable_failures(ErrorCode code) const {
    const KernelLadder whole = ladder_of(facts_.capabilities, wanted_path_, facts_.options.left_out);
    std::vector<std::string> found;
    for (const std::string& module : cache_.failures(code)) {
        std::vector<std::string> left_out = facts_.options.left_out;
        left_out.push_back(module);
        if (ladder_of(facts_.capabilities, wanted_path_, left_out) != whole) found.push_back(module);
    }
    return found;
}

}  // namespace lorad::gpu
