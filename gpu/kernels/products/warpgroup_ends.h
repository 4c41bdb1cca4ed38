// What a program of warpgroup_text.cpp makes of its sums: y as it is, the activation of gates and ups in fragments, or
// the greatest of each row. Internal to it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/gated_lora_text.h"
#include "gpu/kernels/products/matmul.params.h"
#include "gpu/kernels/products/warpgroup_text.h"
#include "gpu/kernels/sampling/sample_argmax.params.h"
#include "gpu/kernels/step_state.h"

namespace lorad::gpu {

// What a store of several words takes together.
static_assert(offsetof(SamplePart, index) == 0 && offsetof(SamplePart, top) == 4 && offsetof(SamplePart, sum) == 8 &&
              offsetof(SamplePart, finite) == 12 && sizeof(SamplePart) == kSamplePartBytes);

// Registers, which the writer of the products declares: %sum are a thread's sums; %n0, %row0, %tile, %split say whose
// they are; %first, %second, %next, %at, %wide, %is are free between lines.
class WarpgroupEnds : protected GatedLora {
  protected:
    explicit WarpgroupEnds(const WarpgroupProgram& program) : p_(program), t_(program.tile) {}

    uint32_t n_parts() const { return t_.columns / t_.part; }
    uint32_t sums() const { return t_.part / 2; }  // of a thread for each part
    uint32_t y_columns() const { return p_.gated_rows > 0 ? t_.columns / 2 : t_.columns; }

    // A thread has of each 8 columns two neighbouring ones, of row lane / 4 of its warp's 16 and of the row 8 behind.
    void store_sums() {
        line("ld.param.u64 %y, [params+{}]; mul.wide.u32 %wide, %split, %split_stride; shr.u32 %first, %lane, 2; "
             "mad.lo.u32 %first, %warp, 16, %first;",
             MATMUL_PARAM(y));
        line("add.u32 %first, %first, %row0; mul.wide.u32 %at, %first, %y_stride; add.u64 %at, %at, %wide;");
        line("and.b32 %first, %lane, 3; shl.b32 %first, %first, 1; add.u32 %first, %first, %n0; cvt.u64.u32 %wide, "
             "%first; add.u64 %at, %at, %wide;");
        line("shl.b64 %at, %at, 2; add.u64 %y, %y, %at; mul.wide.u32 %wide, %y_stride, 32; add.u64 %y8, %y, %wide;");
        for (uint32_t i = 0; i < n_parts() * sums(); i += 4) {
            const uint32_t offset = i / 4 * 8 * 4;
            line("st.global.v2.f32 [%y+{}], {{%sum{}, %sum{}}};", offset, i, i + 1);
            line("st.global.v2.f32 [%y8+{}], {{%sum{}, %sum{}}};", offset, i + 2, i + 3);
        }
    }

    // The SamplePart of this tile, of each of a thread's two rows; the four lanes of a row join theirs.
    void store_best() {
        const uint32_t n_sums = n_parts() * sums();
        const auto column = [](uint32_t sum) { return sum / 4 * 8 + sum % 2; };  // behind the thread's first one
        const auto row = [](uint32_t sum) { return sum / 2 % 2; };
        line("and.b32 %second, %lane, 3; shl.b32 %second, %second, 1; add.u32 %second, %second, %n0;");
        // Zero times a sum is zero, or NaN if it is not finite.
        line("mov.f32 %check0, 0f00000000; mov.f32 %check1, 0f00000000;");
        for (uint32_t i = 0; i < n_sums; ++i) line("fma.rn.f32 %check{0}, %sum{1}, 0f00000000, %check{0};", row(i), i);
        // Columns that the neighbour of a tile that was moved back has, too, and such as there are not.
        line("ld.param.u32 %to, [params+{}]; sub.u32 %to, %to, %second; mul.lo.u32 %from, %tile, {}; sub.u32 %from, "
             "%from, %second;",
             MATMUL_PARAM(n), t_.columns);
        line("setp.le.s32 %is, %from, 0; setp.gt.and.s32 %is, %to, {}, %is; @%is bra all_count;", column(n_sums - 1));
        for (uint32_t i = 0; i < n_sums; ++i)
            line("setp.le.s32 %is, %from, {0}; setp.gt.and.s32 %is, %to, {0}, %is; @!%is mov.f32 %sum{1}, 0fFF800000;",
                 column(i), i);
        line("all_count:");
        for (uint32_t r = 0; r < 2; ++r) line("mov.f32 %top{0}, 0fFF800000; mov.u32 %best{0}, 0;", r);
        for (uint32_t i = 0; i < n_sums; ++i)
            line("setp.gt.f32 %is, %sum{0}, %top{1}; @%is mov.f32 %top{1}, %sum{0}; @%is mov.u32 %best{1}, {2};", i,
                 row(i), column(i));
        for (uint32_t r = 0; r < 2; ++r) {
            line("add.u32 %best{0}, %best{0}, %second;", r);
            for (const uint32_t lanes : {1u, 2u}) {
                line("shfl.sync.bfly.b32 %other, %top{0}, {1}, 31, 0xffffffff; shfl.sync.bfly.b32 %their, %best{0}, "
                     "{1}, 31, 0xffffffff;",
                     r, lanes);
                line("setp.gt.f32 %is, %other, %top{0}; @%is mov.f32 %top{0}, %other; @%is mov.u32 %best{0}, %their;",
                     r);
                line("setp.eq.f32 %is, %other, %top{0}; setp.lt.and.u32 %is, %their, %best{0}, %is; @%is mov.u32 "
                     "%best{0}, %their;",
                     r);
            }
        }
        // If nothing is above minus infinity, the sum is zero.
        for (uint32_t r = 0; r < 2; ++r)
            line("setp.eq.f32 %is, %top{0}, 0fFF800000; selp.f32 %act{0}, 0f00000000, %top{0}, %is; mov.f32 %total{0}, "
                 "0f00000000;",
                 r);
        for (uint32_t i = 0; i < n_sums; ++i) {
            line("sub.f32 %e, %sum{0}, %act{1}; mul.f32 %e, %e, 0f3FB8AA3B; ex2.approx.f32 %e, %e; add.f32 %total{1}, "
                 "%total{1}, %e;",
                 i, row(i));
        }
        line("ld.param.u64 %at, [params+{}]; ld.global.u32 %first, [%at]; ld.param.u64 %y, [params+{}]; ld.param.u32 "
             "%to, [params+{}];",
             MATMUL_PARAM(n_rows), offsetof(MatmulArgmaxParams, partials), offsetof(MatmulArgmaxParams, n_parts));
        line("shr.u32 %next, %lane, 2; mad.lo.u32 %next, %warp, 16, %next; add.u32 %next, %next, %row0; and.b32 %from, "
             "%lane, 3;");
        for (uint32_t r = 0; r < 2; ++r) {
            for (const uint32_t lanes : {1u, 2u}) {
                line("shfl.sync.bfly.b32 %e, %total{0}, {1}, 31, 0xffffffff; add.f32 %total{0}, %total{0}, %e; "
                     "shfl.sync.bfly.b32 %e, %check{0}, {1}, 31, 0xffffffff; add.f32 %check{0}, %check{0}, %e;",
                     r, lanes);
            }
            line("setp.eq.f32 %is, %check{}, 0f00000000; selp.u32 %their, 1, 0, %is;", r);
            line("setp.eq.u32 %is, %from, 0; setp.lt.and.u32 %is, %next, %first, %is; mad.lo.u32 %second, %next, %to, "
                 "%tile; mul.wide.u32 %wide, %second, {}; add.u64 %at, %y, %wide;",
                 kSamplePartBytes);
            line("@%is st.global.v4.b32 [%at], {{%best{0}, %top{0}, %total{0}, %their}}; add.u32 %next, %next, 8;", r);
        }
    }

    // A thread has four pairs of each 16 columns: of row lane / 4 and the row 8 behind it in the first eight columns
    // (words 0 and 1), then in the others.
    void store_gated() {
        if (p_.y_order == kRowFragments)
            point_at_row_fragments();
        else
            point_at_fragments();
        if (p_.adds_lora) point_at_rows();
        for (uint32_t i = 0; i < y_columns() / 16; ++i) {
            for (uint32_t word = 0; word < 4; ++word) {
                // four sums for eight columns, then those of their ups
                const uint32_t gates = i * 16 + word / 2 * 8 + word % 2 * 2;
                for (uint32_t e = 0; e < 2; ++e) gate(e, gates + e, gates + 4 + e);
                line("cvt.rn.{}x2.f32 %word{}, %act1, %act0;", p_.type == ScalarType::kBf16 ? "bf16" : "f16", word);
                if (p_.adds_lora)
                    line("@%in_rows st.global.b32 [%{}+{}], %word{};", word % 2 == 0 ? "row" : "row8",
                         i * 32 + word / 2 * 16, word);
            }
            if (p_.y_order == kFragmentsByRows) {
                line("st.global.v4.b32 [%y+{}], {{%word0, %word1, %word2, %word3}};", i * kFragmentBytes);
            } else if (p_.y_order == kFragmentsByColumns) {
                line("st.global.v4.b32 [%y+{}], {{%word0, %word2, %word1, %word3}};", i * kFragmentBytes);
            } else {
                line("st.global.v2.b32 [%{}+{}], {{%word0, %word2}};", i % 2 == 0 ? "y" : "at", i / 2 * 64);
                line("st.global.v2.b32 [%{}+{}], {{%word1, %word3}};", i % 2 == 0 ? "y8" : "wide", i / 2 * 64);
            }
        }
    }

  private:
    // %y: this lane's 16 bytes of the first block.
    void point_at_fragments() {
        line("ld.param.u64 %y, [params+{}]; shr.u32 %first, %row0, 4; add.u32 %first, %first, %warp; shr.u32 %second, "
             "%y_stride, 4;",
             MATMUL_PARAM(y_fragments));
        line("mul.lo.u32 %first, %first, %second; shr.u32 %second, %n0, 4; add.u32 %first, %first, %second; "
             "mul.wide.u32 %wide, %first, {};",
             kFragmentBytes);
        line("add.u64 %y, %y, %wide; mul.wide.u32 %wide, %lane, 16; add.u64 %y, %y, %wide;");
    }

    // A pair of eights of columns is half of a lane's 16 bytes, and a tile's first pair may be a block's second one.
    // %y, %at: in the first block of the row, for pairs of an even and of an odd number; %y8, %wide: of the row 8
    // behind.
    void point_at_row_fragments() {
        line("ld.param.u64 %y, [params+{}]; shr.u32 %first, %lane, 2; mad.lo.u32 %first, %warp, 16, %first; add.u32 "
             "%first, %first, %row0;",
             MATMUL_PARAM(y_fragments));
        line("mul.wide.u32 %wide, %first, %y_stride; shl.b64 %wide, %wide, 1; add.u64 %y, %y, %wide;");
        line("shr.u32 %first, %n0, 5; mul.wide.u32 %wide, %first, 64; add.u64 %y, %y, %wide;");
        line("and.b32 %first, %lane, 3; mul.wide.u32 %wide, %first, 16; add.u64 %y, %y, %wide;");
        line("shr.u32 %first, %n0, 4; and.b32 %first, %first, 1; setp.eq.u32 %is, %first, 0;");
        line("selp.u64 %at, 8, 64, %is; add.u64 %at, %at, %y; selp.u64 %wide, 0, 8, %is; add.u64 %y, %y, %wide;");
        line("mul.wide.u32 %wide, %y_stride, 16; add.u64 %y8, %y, %wide; add.u64 %wide, %at, %wide;");
    }

    // %row, %row8: this lane's pair of the first eight columns in y, of row lane / 4 and of the row 8 behind. Down's
    // shrink reads them there.
    void point_at_rows() {
        line("ld.param.u64 %row, [params+{}]; setp.ne.u64 %in_rows, %row, 0; shr.u32 %first, %lane, 2; mad.lo.u32 "
             "%first, %warp, 16, %first; mul.wide.u32 %row8, %first, %y_stride; shl.b64 %row8, %row8, 1; add.u64 %row, "
             "%row, %row8;",
             MATMUL_PARAM(y));
        line("and.b32 %first, %lane, 3; mad.lo.u32 %first, %first, 2, %n0; mul.wide.u32 %row8, %first, 2; add.u64 "
             "%row, %row, %row8; mul.wide.u32 %row8, %y_stride, 16; add.u64 %row8, %row8, %row;");
    }

    // silu(gate) * up: gate / (1 + 2^(-gate log2 e)) * up
    void gate(uint32_t into, uint32_t gate_sum, uint32_t up_sum) {
        line("mul.f32 %e, %sum{}, 0fBFB8AA3B; ex2.approx.f32 %e, %e; add.f32 %e, %e, 0f3F800000;", gate_sum);
        line("div.full.f32 %e, %sum{}, %e; mul.f32 %act{}, %e, %sum{};", gate_sum, into, up_sum);
    }

  protected:
    const WarpgroupProgram& p_;
    const WarpgroupTile& t_;
};

}  // namespace lorad::gpu
