// What lies between the attentions of two layers whose matrices are packed (weight_format.h), for up to eight rows
// without adapters, in one dispatch: o, gate and up with the activation, down, and q, k and v of the layer behind, with
// the norms between them deferred as deferred_norm.h has it. A program in NVIDIA's PTX ISA; decode_rows_text.h is the
// same for matrices of 16 bits.
//
// Two workgroups of eight warps for each multiprocessor, all of them at work at once. The bands of a matrix, 16 rows of
// w each, are dealt to the workgroups, so that all of a band's sums meet in one of them; of a gate's band also its
// up's. A workgroup's bricks are dealt to its warps in equal ranges, each warp with a ring of its own
// (brick_ring_text.h). The warps' partial sums of a band meet in shared memory, or in global memory where it has no
// room for them, and are added in a fixed order. Behind its last brick of a product a warp asks for the first ones of
// the next product, so memory does not rest while workgroups wait for one another at a grid barrier.
// Nobody waits for ever: after max_polls questions a workgroup says so in given_up and goes on with what there is, and
// from then on nobody waits at all.
// Grid: (workgroups). Parameters: DecodeBricksParams. Bytes: each brick from memory once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "gpu/kernels/persistent/decode_bricks.params.h"
#include "gpu/kernels/persistent/grid_barrier.h"
#include "gpu/kernels/products/packed/packed_rows_text.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

constexpr uint32_t kDecodeBricksWarps = 8;       // of a workgroup
constexpr uint32_t kDecodeBricksWorkgroups = 2;  // of a multiprocessor
constexpr uint32_t kDecodeBricksShared = shared_of_workgroup(kDecodeBricksWorkgroups);
constexpr uint32_t kDecodeBricksHiddenMax = 8192;
static_assert(kDecodeRowsMax == kPackedRowsMax);  // rows of x in its fragments

constexpr uint32_t kDecodeBricksRingMin = round_up(largest_brick(), 128u);  // of a warp
static_assert(kDecodeBricksWarps * kDecodeBricksRingMin + 128 <= kDecodeBricksShared);

// A program's constants, as the cache of kernels knows it by; the type is in the module's name.
struct DecodeBricksConstants {
    uint32_t threads, workgroups, rows, hidden, q, ffn, o, gate_up, down;
    std::array<uint32_t, kDecodeBricksParts> qkv_formats, qkv_rows;
};

struct DecodeBricksProgram : DecodeBricksShape {
    uint32_t workgroups = 0;  // all at work at once, kDecodeBricksWorkgroups for each multiprocessor

    // Rows that sums are kept of.
    constexpr uint32_t sum_rows() const { return rows <= 2 ? 2 : rows <= 4 ? 4 : kDecodeRowsMax; }
    // Of a workgroup: the most bands of a product, of gates with their ups.
    constexpr uint32_t bands_max() const {
        const auto own = [&](uint32_t n) { return ceil_div(n / kBrickRows, workgroups); };
        uint32_t most = std::max(own(hidden), 2 * own(ffn));
        for (const DecodeBricksPart& part : qkv) most = std::max(most, own(part.n));
        return most;
    }
    // A partial sum is what one warp has of a band: [sum_rows()][16] f32, rows of x by rows of w.
    constexpr uint32_t partials() const { return bands_max() + kDecodeBricksWarps - 1; }
    constexpr uint32_t partial_bytes() const { return sum_rows() * kBrickRows * 4; }
    constexpr uint32_t partials_bytes() const { return partials() * partial_bytes(); }
    // Without room in shared memory beside each warp's largest brick, they are in global memory, behind the squares.
    constexpr bool partials_are_shared() const {
        return round_up(partials_bytes(), 128u) + 128 + kDecodeBricksWarps * kDecodeBricksRingMin <=
               kDecodeBricksShared;
    }
    constexpr uint32_t ring_bytes() const {  // of a warp
        return (kDecodeBricksShared - 128 - (partials_are_shared() ? round_up(partials_bytes(), 128u) : 0)) /
               kDecodeBricksWarps / 128 * 128;
    }
    // Of a row: squares of the residual stream, one for each band.
    constexpr uint32_t square_entries() const { return round_up(hidden / kBrickRows, 128u); }
    constexpr uint64_t square_bytes() const { return uint64_t{square_entries()} * kDecodeRowsMax * 4; }
    constexpr uint64_t sync_bytes() const {
        return sizeof(GridBarrierSync) + square_bytes() +
               (partials_are_shared() ? 0 : uint64_t{workgroups} * round_up(partials_bytes(), 128u));
    }

    // Whether there is such a program: formats that programs read, whole bands and halves of bricks.
    constexpr bool can_be() const {
        const auto fits = [](uint32_t n) { return n > 0 && n % 128 == 0; };
        if (workgroups == 0 || rows == 0 || rows > kDecodeRowsMax || !fits(hidden) || !fits(q) || !fits(ffn) ||
            hidden > kDecodeBricksHiddenMax || !has_packed_rows(o) || !has_packed_rows(gate_up) ||
            !has_packed_rows(down))
            return false;
        uint32_t row = 0;  // parts lie one behind the other
        return std::ranges::all_of(qkv, [&](const DecodeBricksPart& part) {
            const bool is_next = part.n == 0 || part.row_begin == row;
            row += part.n;
            return is_next && part.n % kBrickRows == 0 && (part.n == 0 || has_packed_rows(part.format));
        });
    }
};

// Entry: "matmul". Only of programs that can_be().
std::string decode_bricks_text(const DecodeBricksProgram& program);

}  // namespace lorad::gpu
