#include "adapters/pool/weight_store.h"

#include <algorithm>

#include "gpu/upload.h"
#include "proto/base/mutex.h"

namespace lorad::adapters {

namespace {

class DeviceBlock final : public WeightBlock {
  public:
    explicit DeviceBlock(gpu::Buffer buffer) : buffer_(std::move(buffer)) {}
    gpu::DeviceAddress address() const override { return buffer_.address(); }
    uint64_t size() const override { return buffer_.size(); }
    const gpu::Buffer& buffer() const { return buffer_; }

  private:
    gpu::Buffer buffer_;
};

}  // namespace

Status WeightStore::finish_gains(const model::AdapterView&) {
    return make_error(ErrorCode::kAdapterUnsupported, "DoRA is not supported on this device");
}

Result<std::unique_ptr<WeightBlock>> DeviceWeightStore::allocate(uint64_t size_bytes) {
    TRY_ASSIGN(gpu::Buffer buffer, device_.create_buffer(size_bytes, gpu::MemoryKind::kDeviceLocal, "adapter"));
    return std::unique_ptr<WeightBlock>(std::make_unique<DeviceBlock>(std::move(buffer)));
}

uint64_t DeviceWeightStore::block_bytes_max() const { return device_.capabilities().max_allocation_bytes; }

Status DeviceWeightStore::upload(WeightBlock& to, uint64_t to_offset, std::span<const std::byte> bytes) {
    return device_.uploader().upload(static_cast<DeviceBlock&>(to).buffer(), to_offset, bytes);
}

Status DeviceWeightStore::finish() {
    Status arrived = device_.uploader().finish();
    if (!arrived.ok()) device_.wait_idle();  // a copy that was not waited for may still write
    return arrived;
}

Status DeviceWeightStore::finish_gains(const model::AdapterView& adapter) { return executor_.finish_gains(adapter); }

uint32_t DeviceWeightStore::n_slots() const { return executor_.lora_table().n_slots(); }

Status DeviceWeightStore::set_slot(uint32_t slot, const model::AdapterView& adapter) {
    const MutexLock lock(table_mutex_);
    TRY(executor_.lora_table().set(slot, adapter));
    // Steps need no wait here. It keeps copies from being pending when the table is destroyed.
    return finish();
}

}  // namespace lorad::adapters
