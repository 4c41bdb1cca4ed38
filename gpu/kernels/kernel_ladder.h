// Which rungs above the portable kernels a device climbs (rungs.h). Chosen by capability, then shown by small tests at
// start-up (ladder_tests.h).
#pragma once

#include <bitset>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/kernel_options.h"
#include "gpu/kernels/rungs.h"
#include "gpu/kernels/scalar_type.h"

namespace lorad::gpu {

// A switch for each rung; of rungs for each type of weights, for each of those. f32 is always portable.
class KernelLadder {
  public:
    // Whether the device has the rung for these weights, and those that it stands on.
    bool has(RungId rung, ScalarType type) const;
    bool has(RungId rung) const;  // of a rung for each type, for any of them
    bool has(ScalarType type) const { return has(RungId::kMatrices, type); }
    KernelPath path() const;  // the highest rung of any type

    KernelLadder& add(RungId rung, ScalarType type = ScalarType::kF32);  // kF32: of a rung for all types
    KernelLadder& drop(RungId rung, ScalarType type);
    KernelLadder& drop(RungId rung);  // for all types

    // A digit for each switch, and a ladder of those; nullopt where they are none.
    std::string digits() const { return switches_.to_string(); }
    static std::optional<KernelLadder> of_digits(std::string_view digits);
    bool is_within(const KernelLadder& other) const { return (switches_ & ~other.switches_).none(); }
    bool operator==(const KernelLadder&) const = default;

  private:
    static constexpr uint32_t kTypes = 3;
    static uint32_t at(RungId rung, ScalarType type) {
        return static_cast<uint32_t>(rung) * kTypes + static_cast<uint32_t>(type);
    }
    std::bitset<kTypes * kRungs> switches_;
};

// A way of computing a part of a step that is faster than the portable one, and what keeps a device from it.
struct Rung {
    std::string part;  // "products (f16 weights)"
    std::string name;  // "KHR cooperative matrices"
    std::string gain;  // what it is for, for people
    // features, modules, wishes; empty: the device has it, and a test at the start shows whether it works
    std::vector<std::string> missing;
};

// "warpgroup"
const char* path_name(KernelPath path);

// By capability and by what the shader compiler could build, no higher than `path`; kAuto takes
// warpgroups, else kCoopmat, for products, not kCoopmat2, which is slower; but for attention what that has, which
// kCoopmat leaves out. No rung needs a module of left_out.
// Runs nothing.
KernelLadder ladder_of(const DeviceCapabilities& capabilities, KernelPath path,
                       std::span<const std::string> left_out = {});
// All rungs, in the order of the parts of a step.
std::vector<Rung> rungs_of(const DeviceCapabilities& capabilities, KernelPath path,
                           std::span<const std::string> left_out = {});

}  // namespace lorad::gpu
