// The pipelines of a set of kernels: made on first use, one for each module and its constants. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/pipeline.h"
#include "proto/base/result.h"

namespace lorad::gpu {

// A kernel that somebody asked for.
struct KernelReport {
    std::string module;
    std::vector<uint32_t> constants;
    uint32_t subgroup_size = 0;  // that it requires; 0: any
    std::string refusal;         // why it could not be made; else empty
    KernelStatistics statistics = {};
    KernelUse use = {};
};

class KernelCache {
  public:
    explicit KernelCache(Device& device);
    ~KernelCache();

    // Null after a failure, which status() tells. constants: specialization constants, of which the first is the
    // workgroup's size. subgroup_size: the required one; 0: any.
    const Kernel* find_or_make(const char* module, const std::vector<uint32_t>& constants, uint32_t subgroup_size = 0);

    // What kept a kernel from being made in this thread since the last call. kKernelRefused: the driver will not take
    // it; kOutOfMemory: it may be made the next time.
    Status status();
    // Modules of kernels that could not be made, for this reason.
    std::vector<std::string> failures(ErrorCode code) const;
    void forget_failures();
    std::vector<KernelReport> reports() const;
    // For tests: modules that are not made any more, as if the driver refused them.
    void refuse(std::vector<std::string> modules);

  private:
    struct Impl;
    Result<Kernel> make(const char* module, const std::vector<uint32_t>& constants, uint32_t subgroup_size) const;

    Device& device_;
    std::vector<std::string> refused_;  // set before several threads record
    std::unique_ptr<Impl> impl_;
};

// The base of a family that records dispatches.
class KernelRecorder {
  protected:
    explicit KernelRecorder(KernelCache& cache) : cache_(cache) {}
    const Kernel* kernel(const char* module, const std::vector<uint32_t>& constants, uint32_t subgroup_size = 0) {
        return cache_.find_or_make(module, constants, subgroup_size);
    }

  private:
    KernelCache& cache_;
};

}  // namespace lorad::gpu
