#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void RowKernels::copy_words(Recorder& recorder, DeviceAddress from, DeviceAddress to, uint64_t n_bytes) {
    CHECK(n_bytes > 0 && n_bytes % 16 == 0 && n_bytes / 16 <= UINT32_MAX);
    const auto n_words = static_cast<uint32_t>(n_bytes / 16);
    const uint32_t size = threads(256, 32);
    const Kernel* k = kernel("copy_words", WorkgroupConstants{.threads = size});
    if (k == nullptr) return;
    recorder.dispatch(*k, CopyWordsParams{.from = from, .to = to, .n_words = n_words, .pad = 0},
                      ceil_div(n_words, size), 1, 1, {"copy_words", n_bytes * 2, 0});
}

}  // namespace lorad::gpu
