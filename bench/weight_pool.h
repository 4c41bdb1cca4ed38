// Random data in device memory, far more than any cache holds, handed out piece by piece; and the bandwidth of reading
// it.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "bench/bench_util.h"
#include "gpu/device.h"
#include "gpu/kernels/kernels.h"

namespace lorad::bench {

class Results;

// One block of random values, repeated over slabs. Never zero. One thread.
class WeightPool {
  public:
    WeightPool(gpu::Device& device, gpu::ScalarType type, double gib);

    // 16-bit values of magnitude 1/32 to 1/4; as f32 words they are small numbers too, which is all that timing needs.
    uint16_t random_value(uint32_t bits) const;
    // The address of the next so many bytes; begins again at the front when all were handed out.
    uint64_t next(uint64_t bytes);
    // Fills a buffer with the block, again and again. The uploader is not waited for.
    void copy_to(gpu::Device& device, const gpu::Buffer& to) const;
    void rewind() { slab_ = at_ = 0; }
    uint64_t first() const { return slabs_[0].address(); }
    uint64_t slab_bytes() const { return slabs_[0].size(); }
    size_t n_slabs() const { return slabs_.size(); }
    // Of the first matrix after rewind().
    float value(uint64_t element) const;

  private:
    gpu::ScalarType type_;
    std::vector<uint16_t> block_;
    std::vector<gpu::Buffer> slabs_;
    size_t slab_ = 0;
    uint64_t at_ = 0;
};

// A GPU that had nothing to do comes back to its clock over seconds of work (an H200 from 345 MHz: about five). Reads
// until that gets no faster; what is measured right after is measured at full clock.
void wait_for_clock(gpu::Device& device, gpu::KernelSet& kernels, WeightPool& pool);
void wait_for_clock(gpu::Device& device);

// GB/s at which some kernel reads all of a slab at a time: the best of kernels that only read, and of a matrix times
// one row.
// Adds its samples as a row "ceiling", with the rate of reading for 20 ms beside it.
double measure_ceiling(gpu::Device& device, gpu::KernelSet& kernels, WeightPool& pool, Results& results);
// The same on a device of its own, gone when this returns.
double measure_ceiling(const struct CommonOptions& common, Results& results);
double pool_gib(const struct CommonOptions& common, const gpu::Device& device);

// Runs a recording and waits for its end.
void run_and_wait(gpu::Device& device, const gpu::CommandBuffer& recording);
// Runs a recording made with span timestamps and waits: microseconds on the device's clock.
double run_span_us(gpu::Device& device, const gpu::CommandBuffer& recording);

}  // namespace lorad::bench
