// For tests: a device on which each pipeline is made once.
#pragma once

namespace lorad::gpu {

class Device;

// From here on kernels of the same module, constants and subgroup size share one pipeline, which stays as long as the
// device. For programs that make many executors one after the other: driver and validation take most of the time of
// making one. Called once, before the first kernel.
void keep_kernels(Device& device);

}  // namespace lorad::gpu
