// The pipelines of a set of kernels: made on first use, one for each module and its constants. Any thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "gpu/device.h"
#include "gpu/pipeline.h"
#include "proto/base/result.h"

namespace lorad::gpu {

// A requested kernel.
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

    // Null after a failure, which status() tells. constants: the words of a struct (words_of) of specialization
    // constants, of which the first is the workgroup's size. subgroup_size: the required one; 0: any.
    const Kernel* find_or_make(const char* module, std::span<const uint32_t> constants, uint32_t subgroup_size = 0);

    // Says why a kernel could not be made in this thread since the last call. kKernelRefused: the driver will not take
    // it; kOutOfMemory: it may be made the next time.
    Status status();
    // Modules of kernels that could not be made, for this reason.
    std::vector<std::string> failures(ErrorCode code) const;
    void forget_failures();
    std::vector<KernelReport> reports() const;
    // For tests: from now on these modules are not made, as if the driver refused them.
    void refuse(std::vector<std::string> modules);

  private:
    struct Impl;
    Result<Kernel> make(const char* module, std::span<const uint32_t> constants, uint32_t subgroup_size) const;

    Device& device_;
    std::vector<std::string> refused_;  // set before several threads record
    std::unique_ptr<Impl> impl_;
};

// The constants of a module that has no others.
struct WorkgroupConstants {
    uint32_t threads;
};
// A module's specialization constants as a struct: u32 in the order of their numbers, the workgroup's size first. A
// module that has some more than another one has a struct whose first member is the other's.
template <typename Constants>
std::vector<uint32_t> words_of(const Constants& constants) {
    static_assert(std::is_aggregate_v<Constants> && sizeof(Constants) % sizeof(uint32_t) == 0);
    const auto words = std::bit_cast<std::array<uint32_t, sizeof(Constants) / sizeof(uint32_t)>>(constants);
    return {words.begin(), words.end()};
}
// And back, of a program that is made for them. Constants: as many as the struct has.
template <typename Constants>
Constants constants_from(const std::vector<uint32_t>& words) {
    std::array<uint32_t, sizeof(Constants) / sizeof(uint32_t)> all{};
    CHECK(words.size() == all.size());
    std::copy(words.begin(), words.end(), all.begin());
    return std::bit_cast<Constants>(all);
}

// The base of a family that records dispatches.
class KernelRecorder {
  protected:
    explicit KernelRecorder(KernelCache& cache) : cache_(cache) {}
    // The only way to a kernel: constants have names.
    template <typename Constants>
        requires std::is_aggregate_v<Constants>
    const Kernel* kernel(const char* module, const Constants& constants, uint32_t subgroup_size = 0) {
        return cache_.find_or_make(module, words_of(constants), subgroup_size);
    }

    KernelCache& cache_;
};

}  // namespace lorad::gpu
