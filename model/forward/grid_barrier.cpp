#include "model/forward/grid_barrier.h"

#include <vector>

#include "gpu/upload.h"

namespace lorad::model {

Result<std::unique_ptr<GridBarrier>> GridBarrier::create(gpu::Device& device, uint64_t sync_bytes, const char* name) {
    auto made = std::make_unique<GridBarrier>();
    const std::vector<std::byte> silence(sync_bytes);
    TRY_ASSIGN(made->sync_, device.create_buffer(silence.size(), gpu::MemoryKind::kDeviceLocal, name));
    TRY_ASSIGN(made->given_up_, GivenUp::create(device, name));
    TRY(device.uploader().upload(made->sync_, 0, silence));
    return made;
}

}  // namespace lorad::model
