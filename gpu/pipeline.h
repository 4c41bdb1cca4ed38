// A compute pipeline made from one SPIR-V module and its specialization constants, or a program in NVIDIA's PTX ISA
// that the driver compiles.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/base/result.h"

namespace lorad::gpu {

class Device;
struct KernelImpl;

struct KernelOptions {
    std::string_view module;              // name given to add_kernel
    std::vector<uint32_t> constants;      // specialization constants 0..n-1, 32 bits each
    uint32_t required_subgroup_size = 0;  // 0: the driver's choice
    bool require_full_subgroups = false;
    // that it reads its parameters from, where the device has them sooner so: gpu/param_memory.h
    bool params_in_buffer = false;
    // Instead of a module and constants, on devices with DeviceCapabilities::warpgroup_matrices: a program, its entry
    // "matmul" with one parameter (the dispatch's params), and its workgroup's threads. Its static shared memory is all
    // that it has; 64 KiB of a multiprocessor's go to such kernels.
    std::string text;
    uint32_t threads = 0;
};

// Numbers that the driver tells of a kernel that it has made; empty where it tells nothing.
struct KernelStatistics {
    uint32_t subgroup_size = 0;                          // 0: not told
    std::vector<std::pair<std::string, double>> values;  // by the driver's own names: "VGPRs" 64

    std::string text() const;  // "VGPRs 64, Spilled VGPRs 0"
    // The number of the first of these names that the driver has.
    std::optional<double> find(std::initializer_list<std::string_view> names) const;
};

// The work that recordings would do with a kernel, counted on a device that only compiles.
struct KernelUse {
    std::string name;  // DispatchInfo::name of the first dispatch; none: it is in no recording
    uint64_t n_dispatches = 0;
    uint64_t n_workgroups_max = 0;
    bool tells_bytes = false;       // some dispatch says what it moves,
    double flops_per_byte_min = 0;  // and of these the one that computes least with it
};

class Kernel {
  public:
    static Result<Kernel> create(Device& device, const KernelOptions& options);
    explicit Kernel(std::unique_ptr<KernelImpl> impl);
    ~Kernel();
    Kernel(Kernel&&) noexcept;
    Kernel& operator=(Kernel&&) noexcept;

    // The driver's numbers; empty without DeviceOptions::kernel_statistics.
    const KernelStatistics& statistics() const;
    KernelUse use() const;  // any thread

    const KernelImpl& impl() const { return *impl_; }  // gpu/*.cpp only

  private:
    std::unique_ptr<KernelImpl> impl_;
};

// True if the module was built into this binary (the shader compiler could compile it).
bool has_kernel_module(std::string_view module);

}  // namespace lorad::gpu
