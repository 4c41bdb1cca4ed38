// Host to device copies through a ring of staging memory, on the transfer queue when the device has one, so that
// decoding goes on meanwhile. On a device whose memory is the host's (DeviceCapabilities::unified_memory) the host
// writes into the buffers instead. Either way nothing that is submitted may still read what is overwritten.
// Thread-safe; calls from several threads take turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/buffer.h"
#include "proto/base/result.h"

namespace lorad::gpu {

struct UploaderImpl;

class Uploader {
  public:
    explicit Uploader(UploaderImpl* impl) : impl_(impl) {}

    // Copies the bytes into staging now (the span may die on return) and to the device soon.
    Status upload(const Buffer& to, uint64_t to_offset, std::span<const std::byte> bytes);
    // The same as upload, for rows: n_rows rows of row_bytes each, to_stride apart in the buffer (to_stride >=
    // row_bytes); the gap bytes are not written.
    Status upload_rows(const Buffer& to, uint64_t to_offset, uint64_t to_stride, std::span<const std::byte> bytes,
                       uint64_t row_bytes, uint64_t n_rows);
    Status fill_zero(const Buffer& to, uint64_t to_offset, uint64_t size_bytes);  // size a multiple of 4

    // Submits what is pending and returns the timeline value that says it has arrived (for Queue::submit_after_upload).
    Result<uint64_t> flush();
    Status wait(uint64_t value);
    // flush + wait.
    Status finish();

  private:
    UploaderImpl* impl_;
};

}  // namespace lorad::gpu
