#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kJoinThreads = 256;
constexpr uint32_t kJoinsOfAUnit = 8;  // as many as a multiprocessor is expected to run side by side

}  // namespace

void LoraKernels::lora_join(Recorder& recorder, const LoraJoinParams& params, ScalarType weight_type) {
    CHECK(weight_type != ScalarType::kF32);
    struct Constants {
        uint32_t threads, type;
    };
    const Kernel* k = kernel(
        "lora_join", Constants{.threads = threads(kJoinThreads, 32), .type = static_cast<uint32_t>(weight_type)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, kJoinsOfAUnit * multiprocessors(capabilities()), 1, 1, {"lora_join", 0, 0});
}

}  // namespace lorad::gpu
