// The staging ring behind Uploader. Internal to gpu/.
#pragma once

#include <mutex>
#include <vector>

#include "gpu/copy_pool.h"
#include "gpu/device_impl.h"
#include "gpu/upload.h"

namespace lorad::gpu {

struct UploaderImpl {
    explicit UploaderImpl(DeviceImpl& device);
    ~UploaderImpl();
    Status init();

    Timeline& timeline() { return timeline_; }

    // All of these take the mutex for the whole call.
    Status upload_rows(const Buffer& to, uint64_t to_offset, uint64_t to_stride, std::span<const std::byte> bytes,
                       uint64_t row_bytes, uint64_t n_rows);
    Status fill_zero(const Buffer& to, uint64_t to_offset, uint64_t size_bytes);
    Result<uint64_t> flush();
    Status wait(uint64_t value);
    // Returns when what was recorded for this value of the timeline, or before it, has been written or never will be.
    void settle(uint64_t value);

  private:
    struct Chunk {
        Buffer staging;
        VkCommandPool pool = VK_NULL_HANDLE;
        VkCommandBuffer command = VK_NULL_HANDLE;
        uint64_t busy_until = 0;  // timeline value after which it may be written again
    };
    struct Write {
        VkBuffer buffer;
        uint64_t begin, end;
    };

    Status open_chunk();      // makes chunk current_ ready for recording
    Status submit_current();  // and moves on to the next
    void write_rows(std::byte* to, uint64_t to_stride, std::span<const std::byte> bytes, uint64_t row_bytes,
                    uint64_t n_rows);
    void note_write(const Buffer& to, uint64_t offset, uint64_t size);
    Status append(const Buffer& to, std::span<const std::byte> bytes, std::vector<VkBufferCopy>& regions);

    DeviceImpl& device_;
    Timeline timeline_;
    CopyPool copy_pool_;
    std::mutex mutex_;           // guards all below
    std::vector<Chunk> chunks_;  // staging memory comes with the first upload
    uint64_t chunk_bytes_ = 0;
    size_t current_ = 0;
    bool open_ = false;                    // chunk current_ is being recorded
    uint64_t used_ = 0;                    // staging bytes used in it
    std::vector<Write> unordered_writes_;  // recorded since the last barrier, in this or earlier chunks
};

}  // namespace lorad::gpu
