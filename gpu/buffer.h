// A range of device-visible memory with its GPU address. Shaders reach it by address, never by descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace lorad::gpu {

using DeviceAddress = uint64_t;  // as in shaders' buffer references; 0 is "none"

enum class MemoryKind {
    kDeviceLocal,   // not mapped for users: Uploader writes it
    kHostUpload,    // host-visible, coherent; CPU writes, GPU reads (or copies from)
    kHostReadback,  // host-visible, coherent, cached where possible; GPU writes, CPU reads
};

struct BufferImpl;

// Move-only. Frees its range on destruction: the GPU must have finished with it.
class Buffer {
  public:
    Buffer();
    explicit Buffer(std::unique_ptr<BufferImpl> impl);
    ~Buffer();
    Buffer(Buffer&&) noexcept;
    Buffer& operator=(Buffer&&) noexcept;

    explicit operator bool() const { return impl_ != nullptr; }
    DeviceAddress address() const;
    uint64_t size() const;
    std::span<std::byte> mapped() const;  // empty for kDeviceLocal

    BufferImpl& impl() const { return *impl_; }  // gpu/*.cpp only

  private:
    std::unique_ptr<BufferImpl> impl_;
};

}  // namespace lorad::gpu
