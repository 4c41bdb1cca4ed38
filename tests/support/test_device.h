// The device that tests run on: one per process, with validation on.
#pragma once

#include <memory>

#include "gpu/device.h"

namespace lorad::testing {

// A device with validation on. With LORAD_LOWER_TO=PROFILE it is one that the layer of
// tests/vulkan_layer/lower_layer.cpp has lowered, with workgroups as on a GPU, and the program aborts if it is not.
// With LORAD_TEST_SUBGROUPS=N its workgroups are as large as on a GPU: tests/CMakeLists.txt sets it beside what makes
// lavapipe take another width; and all kernels have their parameters from a buffer, as single operations have on
// NVIDIA's. Then a software device that has not subgroups of N aborts, and on any other the program ends. Aborts if
// there is no device.
std::unique_ptr<gpu::Device> make_test_device();

// Made on first use and never destroyed. Aborts with the reason if there is none: a machine without any Vulkan device
// (lavapipe at least) cannot run these tests. When the program ends, a test environment fails if validation said
// anything.
gpu::Device& test_device();

}  // namespace lorad::testing
