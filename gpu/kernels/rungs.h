// The rungs of the ladder: ways of computing a part of a step that are faster than the portable one. Each is a row of
// one table (rungs.cpp), which says what it is, what it needs of a device, and which test at the start shows that it
// works. Others need RungId alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/kernel_options.h"
#include "gpu/kernels/scalar_type.h"

namespace lorad::gpu {

class LadderTests;

// In the order of the table.
enum class RungId : uint32_t {
    // For each 16-bit type of weights.
    kMatrices,          // 16-bit activations; products on KHR cooperative matrices, and the matvec that goes with them
    kShrink,            // lora_shrink on matrices
    kGatedAct,          // gated_act with adapters on them
    kGated,             // products that end in the activation
    kAdapters,          // products with the adapters of the rows in their sums
    kGatedAdapters,     // both
    kFragments,         // all four with many rows of x in fragments
    kResidual,          // products that end in the residual stream, and those behind them
    kPacked,            // products that read packed weights
    kExperts,           // experts' products
    kPackedExperts,     // the same of packed weights
    kWarpgroups,        // products of many rows by warpgroups
    kStacked,           // the same with the adapters of the rows as more k
    kDirect,            // the same with w straight in registers, of few rows
    kArgmax,            // the same of the output layer, whose rows' greatest logits they say
    kPackedRows,        // products of up to 8 rows that read packed weights, by a program
    kPackedWarpgroups,  // the same of 9 to 128 rows on warpgroups
    kMatrices2,         // NV cooperative matrices 2 for many rows
    // For all types.
    kTileStaged,  // attention of neighbouring rows, by TileAttention
    kTileRegisters,
    kTileWorkgroup,
    // Attention of single rows, the query heads of a KV head together, with functions of NV matrices 2; and from the
    // sums of the product before.
    kAttentionGroup,
    kAttentionFromQkv,
    // Products without matrices: blocks of y in registers, and short sums in f16 (matmul_registers.comp).
    kRegisters,
    kShortSums,
    kDeltaBlocks,  // recurrences take rows of prompts in blocks; on every path
    kCount,
};
inline constexpr uint32_t kRungs = static_cast<uint32_t>(RungId::kCount);
constexpr RungId tile_rung(TileAttention kind) {
    return kind == TileAttention::kRegisters   ? RungId::kTileRegisters
           : kind == TileAttention::kWorkgroup ? RungId::kTileWorkgroup
                                               : RungId::kTileStaged;
}

// A device, and how far up it is asked to go.
struct RungQuestion {
    const DeviceCapabilities& caps;
    KernelPath path = KernelPath::kAuto;
    std::span<const std::string> left_out = {};  // modules that no rung may need
    bool is_left_out(std::string_view module) const;
};

// What a device lacks, in words, each once.
class Missing {
  public:
    void want(bool is_there, std::string what);
    bool is_nothing() const { return all_.empty(); }
    std::vector<std::string> take() { return std::move(all_); }

  private:
    std::vector<std::string> all_;
};

using DeviceNeed = void(const RungQuestion& question, ScalarType type, Missing& missing);

// One thing that a rung needs.
struct Need {
    enum class Kind : uint32_t {
        kNothing,
        kDevice,   // what a function asks of capabilities and path
        kModule,   // a kernel that the shader compiler could make; of a rung for each type, its name without "_f16"
        kProgram,  // a program in text, which is there unless it is left out
        kOn,       // a rung below, without which this one is never used
        kWith,     // a rung without which this one is not offered, though it may be used alone
    };
    Kind kind = Kind::kNothing;
    DeviceNeed* device = nullptr;
    // The module's; of kOn the words that are shown if that rung is missing, null: all that that rung lacks.
    const char* name = nullptr;
    RungId rung = RungId::kCount;
};
// Compares what the rung computes with what the portable kernels make of it, and takes it from the ladder if they
// differ. An error: the device is lost, or has no memory for the test.
using RungTest = Status(LadderTests& tests, ScalarType type);

struct RungRow {
    RungId id;
    bool has_types;    // one rung for each 16-bit type of weights
    const char* part;  // "products"
    const char* name;  // "KHR cooperative matrices"
    const char* gain;  // what it is for, for people
    Need needs[12];    // in the order in which people are told what is missing
    // Called once for all rungs that have the same one, if the device has any of them; for each type if they have
    // types. Null: too like another rung to be wrong alone.
    RungTest* test = nullptr;
    const char* small_name = nullptr;  // on devices with small workgroups
    bool is_beside_matrices = true;    // false: offered only where f16 has no matrices
    bool has_switch = true;            // false: who uses it asks its own planner, which knows what is left out

    std::string part_of(ScalarType type) const;  // "products (f16 weights)"
    std::string module_of(const Need& need, ScalarType type) const;
};

std::span<const RungRow> rung_rows();
const RungRow& row_of(RungId id);

// The tests, each in its own *_self_test.cpp.
RungTest test_products, test_shrink, test_gated_act, test_residual, test_packed, test_packed_rows,
    test_packed_warpgroups, test_experts, test_packed_experts, test_attention, test_attention_from_qkv, test_registers,
    test_recurrences;

}  // namespace lorad::gpu
