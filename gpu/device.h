// A Vulkan device chosen with a reason, its capabilities, and everything that is created from it.
// No Vulkan type appears here: gpu/vk.h is the only header that includes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gpu/buffer.h"
#include "proto/base/result.h"

namespace lorad::gpu {

// The abilities of a device; filled for rejected devices too, as far as they could be read.
struct DeviceCapabilities {
    std::string name;
    std::string driver;       // driver name and version, as text
    std::string api_version;  // "1.4.312"
    bool is_cpu = false;      // lavapipe and the like
    // few threads for a workgroup, no work shared out to fill the device: is_cpu, unless DeviceOptions says otherwise
    bool small_workgroups = false;
    uint64_t device_local_bytes = 0;
    uint64_t device_local_free_bytes = 0;  // VK_EXT_memory_budget where present, else device_local_bytes
    uint64_t max_allocation_bytes = 0;     // the largest buffer that create_buffer can make
    uint32_t subgroup_size = 0;
    uint32_t subgroup_size_min = 0, subgroup_size_max = 0;
    uint32_t shared_memory_bytes = 0;
    uint32_t max_workgroup_invocations = 0;
    uint32_t max_workgroup_subgroups = 0;  // where a kernel asks for a subgroup size
    uint32_t max_push_constant_bytes = 0;
    uint32_t n_compute_units_hint = 0;  // multiprocessors where the driver tells, else 0
    bool has_transfer_queue = false;
    // the host writes uploads into the device's memory, which is its own: without staging, and without copies
    bool unified_memory = false;
    bool subgroup_vote = false;
    bool subgroup_ballot = false;
    bool kernel_statistics = false;  // VK_KHR_pipeline_executable_properties
    bool compiles_only = false;      // opened with DeviceOptions::compile_only: nothing can be submitted
    // a shader can tell which one it runs on: VK_NV_shader_sm_builtins, and subgroup_ballot
    bool multiprocessor_ids = false;
    bool int64_atomics = false;     // shaderBufferInt64Atomics
    bool float16 = false;           // shaderFloat16 and 16-bit storage
    bool int16 = false;             // shaderInt16
    bool bfloat16_coopmat = false;  // VK_KHR_shader_bfloat16 with cooperative matrix, f32 accumulation
    // VK_KHR_cooperative_matrix 16x16x16 f16 x f16 -> f32, subgroup scope, listed or by flexible dimensions
    bool coopmat_f16 = false;
    std::string no_coopmat_f16, no_bfloat16_coopmat;  // why not, where a driver's list or a quirk says so
    bool coopmat_f16_16x8 = false;                    // the same with 16x8x16
    bool coopmat2 = false;  // VK_NV_cooperative_matrix2 with workgroup scope and tensor addressing
    bool coopmat2_bfloat16 = false;
    // kernels from text (gpu/pipeline.h), and the device is one whose warpgroups multiply: VK_NVX_binary_import on
    // GH100
    bool warpgroup_matrices = false;
    // Reductions, conversions between uses and operations on each element, of VK_NV_cooperative_matrix2; with
    // coopmat_f16.
    bool matrix_functions = false;
};

class StartRecord;

// One line of `lorad devices`.
struct DeviceReport {
    DeviceCapabilities capabilities;
    bool usable = false;
    bool chosen = false;
    std::string reason;  // why rejected or why not chosen; why chosen
    // with DeviceOptions::lists_records: what earlier starts of this build have put there
    std::shared_ptr<const StartRecord> record = nullptr;
};

struct DeviceOptions {
    int device_index = -1;    // -1: the best usable device; else this one or an error
    bool validation = false;  // core + synchronisation validation; every message is counted and logged
    // Where compiled pipelines are kept; beside it, with .start behind its name, the StartRecord. A stale or foreign
    // file is ignored.
    std::filesystem::path pipeline_cache;
    // Without the former: the folder in which these files have a name of the device. Empty: nothing is kept.
    std::filesystem::path cache_folder;
    bool lists_records = false;  // list_devices() reads StartRecords
    bool repeats_tests = false;  // also those at the start of which the StartRecord has the results
    // What is submitted at once is expected to take no longer: longer work is cut into several submissions. 0: no
    // bound.
    std::chrono::microseconds submission_max = std::chrono::milliseconds(500);
    double slowness = 1;          // for tests: the device is taken to be so many times as slow when work is cut
    bool stages_uploads = false;  // for tests: also where the host could write into the device's memory
    bool gpu_workgroups = false;  // on a software device, too: tests reach what many subgroups do together, slowly
    // all kernels read their parameters from a buffer, not only those that gain by it where a device does: for tests
    bool params_in_buffer = false;
    // each kernel that is made says in the log what the driver tells of it: registers, spills
    bool kernel_statistics = false;
    // Kernels are made and recordings count what they would do, but there is no memory and no queue behind it: buffers
    // are addresses, uploads go nowhere, and what is submitted is refused. Also a device without hardware opens so
    // (RADV_FORCE_FAMILY), on which nothing else works.
    bool compile_only = false;
    uint64_t pretended_memory_bytes = 0;  // of a device that only compiles; 0: 1 TiB, so that every model fits
};

// Every physical device with its verdict. Needs no Device. An error only if there is no Vulkan at all.
Result<std::vector<DeviceReport>> list_devices(const DeviceOptions& options);

class Queue;
class Kernel;
class Uploader;
struct DeviceImpl;

// Owns instance, logical device, queues, memory slabs and the pipeline cache. Outlives everything made from it.
// Thread-safe: create_buffer, uploader(), compute_queue().
class Device {
  public:
    static Result<std::unique_ptr<Device>> create(const DeviceOptions& options);
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    const DeviceCapabilities& capabilities() const;

    // Sub-allocates from slabs below the device's allocation limit. size > 0; 256-byte aligned address.
    // kOutOfMemory names the requested bytes and the free bytes.
    Result<Buffer> create_buffer(uint64_t size_bytes, MemoryKind kind, const char* name);

    Queue& compute_queue();  // where steps run
    Uploader& uploader();    // host -> device copies, on the transfer queue when there is one

    uint64_t allocated_bytes() const;      // device-local bytes handed out
    uint64_t reserved_bytes() const;       // taken from the device in slabs, host memory included
    uint64_t free_bytes_estimate() const;  // what could still be allocated device-local
    uint64_t validation_message_count() const;
    bool validation_active() const;  // it was requested, and the layer is installed
    // Writes what the next start takes over: the pipeline cache and the StartRecord. What has not changed is not
    // written again. Any thread.
    void save_caches() const;
    // What earlier starts have found out, and this one; repeats_tests(): their tests are run all the same.
    StartRecord& start_record() const;
    bool repeats_tests() const;
    std::chrono::microseconds submission_max() const;  // DeviceOptions::submission_max
    uint64_t n_submissions() const;                    // to the compute queue, counting each part of what was cut
    void wait_idle();  // until no queue has work, also after a failed wait: before buffers in use are given up

    DeviceImpl& impl() { return *impl_; }  // gpu/*.cpp only

  private:
    explicit Device(std::unique_ptr<DeviceImpl> impl);
    std::unique_ptr<DeviceImpl> impl_;
};

}  // namespace lorad::gpu
