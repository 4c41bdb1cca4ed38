// y[split][t][n] = sum over the split's k of x[t][k] * w[n][k] for up to eight rows of x, w a packed part
// (weight_format.h), by a subgroup's matrices. A program in NVIDIA's PTX ISA, as warpgroup_text.h: the bytes of w that
// are on their way bound such a product, and shaders have no copies from memory to shared memory.
//
// Each warp is by itself. The bricks of w, one band of 16 rows behind the other, are dealt to the warps of the whole
// grid in equal ranges, so all end together. A warp's bricks come by cp.async, whole and in order, into a ring in
// shared memory; it takes one into registers, asks for the one that follows in its place, and multiplies. Where a range
// ends within a band, the band's sums are in as many splits as warps have some of it, and the warp with the band's end
// writes zeros to the splits that are left.
// Codes become elements of the A matrix in registers (PTX ISA, "mma.m16n8k16"): lane 4 g + t has of rows g and g + 8
// the columns 32 t .. + 31 of each 128, matrix j of eight the columns 4 j .. + 3 of these. x has the same order, read
// from the caches. Numbers are rounded as in matmul_packed.comp.
// Parameters: PackedParams. Grid: (workgroups). Bytes: the part once, x once for each band from the caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "gpu/kernels/formats/weight_format.h"
#include "gpu/kernels/products/matmul.params.h"
#include "gpu/kernels/products/packed/packed_deal.h"

namespace lorad::gpu {

constexpr uint32_t kPackedRowsMax = 8;  // of x

// A program's constants, as the cache of kernels knows it by.
struct PackedRowsConstants {
    uint32_t threads, weights, stride, slots, workgroups, x_in_fragments;
};

struct PackedRowsProgram {
    WeightFormat format = WeightFormat::kQ8_0;
    ScalarType type = ScalarType::kF16;  // of x
    uint32_t stride = 0;                 // of w and x, elements, a multiple of 128
    uint32_t warps = 4;                  // of a workgroup
    uint32_t slots = 2;                  // bricks of a warp's ring
    uint32_t workgroups = 2;             // of a multiprocessor, which registers are to allow
    bool x_in_fragments = false;         // kBandFragments

    constexpr uint32_t slot_bytes() const { return brick_bytes(number_of(format)); }
    constexpr uint32_t shared_bytes() const { return warps * slots * slot_bytes(); }
};

// The formats that there is a program for. A table of f32 would have to be rounded to f16 before it is scaled, so that
// weights were others than those of the file's library.
constexpr bool has_packed_rows(WeightFormat format) { return is_packed(format) && format != WeightFormat::kTable; }

// Bytes, of the formats that there is a program for.
constexpr uint32_t largest_brick() {
    uint32_t most = 0;
    for (uint32_t format = kWeightsQ8_0; format < kWeightFormats; ++format)
        if (has_packed_rows(static_cast<WeightFormat>(format))) most = std::max(most, brick_bytes(format));
    return most;
}

// The shared memory that a workgroup may ask for, if so many are to work side by side on a multiprocessor. A module
// gets 64 KiB there, of which a workgroup takes 1 KiB more than it asks for.
constexpr uint32_t shared_of_workgroup(uint32_t at_once) { return (64 << 10) / at_once - (1 << 10); }

// Entry: "matmul". Of formats that has_packed_rows().
std::string packed_rows_text(const PackedRowsProgram& program);

}  // namespace lorad::gpu
