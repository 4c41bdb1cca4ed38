#include "gpu/buffer.h"

#include "gpu/memory_pool.h"

namespace lorad::gpu {

Buffer::Buffer() = default;
Buffer::Buffer(std::unique_ptr<BufferImpl> impl) : impl_(std::move(impl)) {}
Buffer::~Buffer() {
    if (impl_) impl_->pool->release(*impl_);
}
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(Buffer&& other) noexcept {
    if (this != &other) {
        if (impl_) impl_->pool->release(*impl_);
        impl_ = std::move(other.impl_);
    }
    return *this;
}

DeviceAddress Buffer::address() const { return impl_ ? impl_->slab->address + impl_->offset : 0; }
uint64_t Buffer::size() const { return impl_ ? impl_->size : 0; }
std::span<std::byte> Buffer::mapped() const {
    if (!impl_ || impl_->slab->mapped == nullptr || impl_->kind == MemoryKind::kDeviceLocal) return {};
    return {impl_->slab->mapped + impl_->offset, impl_->size};
}

}  // namespace lorad::gpu
