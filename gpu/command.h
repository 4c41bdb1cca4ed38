// Recorded work. A CommandBuffer is recorded once and submitted any number of times: everything that varies between
// steps lives in device memory (gpu/kernels/step_state.h), nothing in the recording.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "gpu/buffer.h"
#include "proto/base/result.h"

namespace lorad::gpu {

class Device;
class Kernel;
struct CommandBufferImpl;

// A finished recording. Not destroyed while a submission of it is pending.
class CommandBuffer {
  public:
    explicit CommandBuffer(std::unique_ptr<CommandBufferImpl> impl);
    ~CommandBuffer();
    CommandBuffer(CommandBuffer&&) noexcept;
    CommandBuffer& operator=(CommandBuffer&&) noexcept;

    uint32_t n_dispatches() const;
    // A part of it is longer than a submission may be, now that it is known how slow the device is, or the device is so
    // fast that it no longer needs the cuts and timers that it has: it should be recorded again. Any thread.
    bool wants_cuts() const;
    CommandBufferImpl& impl() const { return *impl_; }  // gpu/*.cpp only

  private:
    std::unique_ptr<CommandBufferImpl> impl_;
};

// Describes a dispatch to the profiler, and to who cuts long work into submissions: name, bytes it must move, FLOPs it
// must do. Zero where unknown.
struct DispatchInfo {
    const char* name = "";
    uint64_t bytes = 0;
    uint64_t flops = 0;
    // Where the work depends on what is in the step, the most that it may be: long work is cut by it.
    uint64_t flops_most = 0;
};

struct RecorderOptions {
    bool timestamps = false;  // one timestamp pair per dispatch, read by gpu/profiler.h; forces a barrier after each
    bool span_timestamps = false;  // instead: one pair around all of it, read as one dispatch named "recording"
    // no barrier at its end: what is submitted behind it needs nothing of it, touches nothing that it uses, and ends
    // with one
    bool ends_open = false;
};

// Records one command buffer. What would take the device longer than DeviceOptions::submission_max, by what is known of
// it, is cut into several submissions, between dispatches and, where its workgroups are independent, within one: with
// the same results. Recordings with timestamps of each dispatch are not cut. Engine thread only.
class Recorder {
  public:
    static Result<Recorder> begin(Device& device, const RecorderOptions& options = {});
    Recorder(Recorder&&) noexcept;
    ~Recorder();

    // Params: the struct of the kernel's push constants (at most 128 bytes), shared with the shader; or, if the kernel
    // reads them from a buffer, a copy there. A program from text may have up to 256 bytes.
    template <typename Params>
    void dispatch(const Kernel& kernel, const Params& params, uint32_t x, uint32_t y, uint32_t z,
                  const DispatchInfo& info) {
        static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= 256);
        dispatch_raw(kernel, std::as_bytes(std::span(&params, 1)), x, y, z, info);
    }
    // Grid read from three u32 at buffer+offset when the work executes.
    template <typename Params>
    void dispatch_indirect(const Kernel& kernel, const Params& params, const Buffer& grid, uint64_t grid_offset,
                           const DispatchInfo& info) {
        static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= 128);
        dispatch_indirect_raw(kernel, std::as_bytes(std::span(&params, 1)), grid, grid_offset, info);
    }

    // Everything before is visible to everything after, dispatches, copies and fills alike; but for the grids of
    // dispatch_indirect: one that a dispatch of this same recording wrote needs barrier_before_indirect() instead.
    // (Grids written by a copy or fill, or by an earlier recording, need nothing more.)
    void barrier();
    void barrier_before_indirect();  // as barrier(), for grids too; costs more
    void copy(const Buffer& from, uint64_t from_offset, const Buffer& to, uint64_t to_offset, uint64_t size_bytes);
    void fill(const Buffer& buffer, uint64_t offset, uint64_t size_bytes, uint32_t word);

    // Cuts long work into parts, each in a submission of its own. The code that records it calls cut() where it may be
    // cut, repeats the same calls for each part, and asks in_parts() only for where cuts lie. Between begin_part() and
    // end_part() only the calls behind `from` and before `to` of their cuts are recorded.
    void begin_part(uint32_t from, uint32_t to);
    // Returns the share of time of each stretch between the cuts, recorded or not, estimated from the dispatches.
    std::vector<double> end_part();
    void cut();
    bool in_parts() const;

    Result<CommandBuffer> end() &&;

  private:
    explicit Recorder(std::unique_ptr<CommandBufferImpl> impl);
    bool leaves_out() const;  // what is called now
    void dispatch_raw(const Kernel&, std::span<const std::byte>, uint32_t, uint32_t, uint32_t, const DispatchInfo&);
    void dispatch_indirect_raw(const Kernel&, std::span<const std::byte>, const Buffer&, uint64_t, const DispatchInfo&);
    std::unique_ptr<CommandBufferImpl> impl_;
};

}  // namespace lorad::gpu
