#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kStackThreads = 256;
constexpr uint32_t kStacksPerUnit = 8;  // as many as a multiprocessor is expected to run side by side

}  // namespace

void LoraKernels::lora_stack(Recorder& recorder, const LoraStackParams& params, ScalarType weight_type) {
    CHECK(weight_type != ScalarType::kF32);
    struct Constants {
        uint32_t threads, type;
    };
    const Kernel* k = kernel(
        "lora_stack", Constants{.threads = threads(kStackThreads, 32), .type = static_cast<uint32_t>(weight_type)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, kStacksPerUnit * multiprocessors(capabilities()), 1, 1, {"lora_stack", 0, 0});
}

}  // namespace lorad::gpu
