// The implementations of products: their names in plans, the objects that compute them, and the order in which they are
// asked. A new one is a line of each.
#pragma once

#include <array>
#include <cstdint>

namespace lorad::gpu {

struct ProductImpl;  // product_impls.h

// A row of the table of implementations.
enum class MatmulVariant : uint32_t {
    kMatvec,    // portable: one output per group of threads, up to 8 rows at once, weights read once per 8 rows
    kLanes,     // portable, for CPU devices: one output row of w per invocation, no cooperation
    kTiled,     // portable: shared-memory tiles; what others are compared with
    kGemv,      // 16-bit activations: matvec for one row
    kCoopmat,   // 16-bit activations: KHR cooperative matrices, weights streamed once for up to 128 rows
    kCoopmat2,  // 16-bit activations: NV cooperative matrices 2, for many rows
    // 16-bit activations in fragments: matrices of a warpgroup, for 33 to 64 rows and from 128 on (warpgroup_text.h)
    kWarpgroup,
    kPacked,           // packed weights: KHR cooperative matrices filled by lanes, for few rows
    kPackedRows,       // packed weights, up to 8 rows: bricks dealt to all warps of the device (packed_rows_text.h)
    kPackedWarpgroup,  // packed weights, 9 to 128 rows, x in fragments, by warpgroups (packed_warpgroup_text.h)
    // the same as kWarpgroup with w straight in registers, for 33 to 64 rows and one workgroup for each multiprocessor
    // (warpgroup_direct_text.h)
    kWarpgroupDirect,
    kUnrolled,   // portable, for CPU devices whose subgroups have 8 lanes: all of k in the program
    kGatedLora,  // kWarpgroup of gates and ups with shrink and expand in it (gated_lora_text.h)
    kResidual,   // KHR cooperative matrices, up to 16 rows, ends in the residual stream
    kRegisters,  // portable: blocks of y in registers, in f32 or with short sums in f16 (register_tiles.h)
    kRow,        // portable: one row, which may end in the activation or in the residual stream
    kStream,     // portable: up to 8 rows of 16-bit weights, w straight into registers (few_row_tiles.h)
};

// Defined in matmul.cpp and matmul_<name>.cpp.
extern const ProductImpl kMatvecImpl, kLanesImpl, kTiledImpl, kRegistersImpl, kRowImpl, kStreamImpl, kUnrolledImpl,
    kGemvImpl, kCoopmatImpl, kCoopmat2Impl, kPackedImpl, kPackedRowsImpl, kPackedWarpgroupImpl, kResidualImpl,
    kWarpgroupImpl, kDirectImpl, kGatedLoraImpl;

// The first one that takes a product computes it: first implementations for results and adapters that few others have,
// then fast before slow, the portable ones last.
inline constexpr std::array kProductImpls = {
    &kResidualImpl, &kGatedLoraImpl, &kDirectImpl,   &kWarpgroupImpl, &kPackedRowsImpl, &kPackedWarpgroupImpl,
    &kPackedImpl,   &kGemvImpl,      &kCoopmat2Impl, &kCoopmatImpl,   &kUnrolledImpl,   &kLanesImpl,
    &kRowImpl,      &kStreamImpl,    &kMatvecImpl,   &kRegistersImpl, &kTiledImpl,
};

}  // namespace lorad::gpu
