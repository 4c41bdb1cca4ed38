// What lies between the attentions of two layers, for up to eight rows without adapters, in one dispatch: o, gate and
// up with the activation, down, and q, k and v of the layer behind, with the norms between them deferred as
// deferred_norm.h has it. A program in NVIDIA's PTX ISA, as warpgroup_text.h, because shaders have no copies from
// memory to shared memory, and their compilers do not keep loads where they are written (docs/PERFORMANCE.md, "A few
// rows in one dispatch a layer").
//
// One workgroup of four warps for each multiprocessor, all of them at work at once. Each has its share of the rows of
// every matrix, and has three grid barriers, by a counter, when all have written what the next product reads. Each
// warp has 64 of every 256 elements of k: its words of 16 rows of w come by cp.async into a ring of its own in shared
// memory, always five slots ahead, also across products and grid barriers, so memory does not rest meanwhile; its x
// stays in registers (of down, whose x is long, a few steps of it). The warps' sums meet in shared memory in a fixed
// order. w leaves the L2 cache first, x stays in it.
// Nobody waits for ever: after max_polls questions a workgroup says so in given_up and goes on with what there is, and
// from then on nobody waits at all.
// Grid: (workgroups). Parameters: DecodeRowsParams. Moves every weight from memory once; tiles of less than 16 rows ask
// for their last one again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "gpu/kernels/persistent/decode_rows.params.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

constexpr uint32_t kDecodeRowsThreads = 128;
constexpr uint32_t kDecodeRowsK = 256;           // elements of k of a step
constexpr uint32_t kDecodeRowsSlots = 5;         // of a warp's ring
constexpr uint32_t kDecodeRowsHiddenMax = 4096;  // x in registers

// What a program is made for, beside the type, which is in the module's name.
struct DecodeRowsConstants {
    uint32_t threads, hidden, q, ffn, qkv, workgroups;
};

struct DecodeRowsProgram : DecodeRowsShape {
    uint32_t workgroups = 0;  // all at work at once

    // Columns of o and down that a workgroup has, in one block of up to 16 or two.
    constexpr uint32_t columns() const { return round_up(ceil_div(hidden, workgroups), 2u); }
    constexpr uint32_t blocks() const { return ceil_div(columns(), 16u); }
    constexpr uint32_t block_rows() const { return round_up(ceil_div(columns(), blocks()), 2u); }
    constexpr uint32_t parts() const { return ceil_div(hidden, blocks() * block_rows()); }  // workgroups that have any
    // Of q, k and v together: columns of a tile, of which they are whole ones.
    constexpr uint32_t qkv_rows() const {
        const uint32_t passes = ceil_div(qkv, workgroups * 16);
        uint32_t rows = round_up(ceil_div(qkv, workgroups * passes), 2u);
        while (rows < 16 && qkv % rows != 0) rows += 2;
        return rows;
    }
    // of a row: sums of squares of eight columns each
    constexpr uint32_t square_entries() const { return round_up(parts() * 2 * blocks(), 128u); }

    // Whether there is such a program: whole steps and tiles, none of which is shorter than a ring, and gates for
    // everybody.
    constexpr bool can_be() const {
        const auto steps = [](uint32_t k) { return k % kDecodeRowsK == 0 ? k / kDecodeRowsK : 0; };
        return workgroups > 0 && std::max(hidden, q) <= kDecodeRowsHiddenMax && steps(hidden) >= kDecodeRowsSlots &&
               steps(q) * blocks() >= kDecodeRowsSlots && blocks() <= 2 && steps(ffn) >= 3 * kDecodeRowsSlots &&
               ffn / 8 >= 2 * workgroups && qkv > 0 && qkv % qkv_rows() == 0;
    }
};

// Entry: "matmul". Only of programs that can_be().
std::string decode_rows_text(const DecodeRowsProgram& program);

}  // namespace lorad::gpu
