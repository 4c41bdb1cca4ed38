// The device that tests run on: one per process, with validation on.
#pragma once

#include "gpu/device.h"

namespace lorad::testing {

// Made on first use and never destroyed. Aborts with the reason if there is none: a machine without any Vulkan device
// (lavapipe at least) cannot run these tests. When the program ends, a test environment fails if validation said anything.
gpu::Device& test_device();

}  // namespace lorad::testing
