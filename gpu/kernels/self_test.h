// What the tests of kernels at start-up share: random data, running a recording, how far results are off. Internal to
// gpu/kernels, but for fill_random, which model/exec/executor_trials.cpp takes for its trial, and to_fragments, which
// the tests take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/command.h"
#include "gpu/device.h"
#include "gpu/kernels/kernels.h"
#include "proto/base/result.h"

namespace lorad::gpu {
struct ProductForm;
}

namespace lorad::gpu::self_test {

// The small product of product_self_test.cpp, which a device's tiles must fit.
constexpr uint32_t kTestProductN = 512, kTestProductK = 512;

// Magnitudes of one eighth to just below two, any sign and mantissa.
void fill_random(std::span<std::byte> bytes, ScalarType type, std::mt19937& random);
// Rows of a 16-bit type as a product reads them in fragments (activation_fragments.h); whole fragments of both.
void to_fragments(std::span<const std::byte> rows, std::span<std::byte> fragments, uint32_t stride, uint32_t order);
Status make(Device& device, Buffer& buffer, uint64_t n_bytes, MemoryKind kind);
Status submit_and_wait(Device& device, Recorder recorder);

// How far a kernel's results are off.
struct Deviation {
    // the largest norm of a difference over the norm of the reference; infinite where there was a failure
    double error = 0;
    std::string failure;  // why there are no results

    void add(const Result<std::vector<float>>& got, const std::vector<float>& want);
    // "relative error 1.0e-01", or the failure.
    std::string text() const;
};

// Rows of f32.
struct ResultRows {
    uint32_t rows, columns, stride;
};
// Adds how far what `record` writes to c[true] is from what it writes to c[false], memory that the host reads. `record`
// says which of its kernels could not be made. An error: the device is lost.
Status compare_ways(Device& device, const Buffer (&c)[2], const ResultRows& shape,
                    const std::function<Status(Recorder&, bool way)>& record, Deviation& deviation);

// Leaves out of `forms` those that do not compute what matmul_tiled does, of weights of this type, with a warning, and
// those for which there is no time.
Status keep_forms_that_work(Device& device, KernelSet& kernels, ScalarType type, std::vector<ProductForm>& forms,
                            const std::function<bool()>& has_time);

// A warning.
void tell_left_out(std::string_view kernel, const Device& device, const Deviation& deviation);
// The same of a kernel that fills matrices by lanes. Nothing is wrong with a device whose lanes have other elements of
// a matrix, which is said for debugging alone; with one of NVIDIA's, which knows its multiprocessors, there is. Returns
// true if it was a warning.
bool tell_left_out_by_lanes(std::string_view kernel, const Device& device, const Deviation& deviation);

}  // namespace lorad::gpu::self_test
