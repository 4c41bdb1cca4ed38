// The adapters' part of a gated product by warpgroups, in steps of up to 64 rows: y = x w^T + scale (x A^T) B^T for the
// A and B of each row's own adapter.
// Internal to warpgroup_text.cpp.
//
// The shrink runs beside the product's first steps. A workgroup's pieces of work are 8 ranks of one module of one row;
// a thread loads every 16th 16 bytes of one rank, a step ahead. The workgroup counts itself in memory (GridBarrierSync)
// and waits behind its last step for all others. They have usually arrived, as all workgroups run at once. Then each
// thread adds B low to its own sums, B straight from memory into the registers that x had. Before that the pages of the
// next product's weights are prefetched (prefetch_pages.h).
#pragma once

#include <cstddef>
#include <string>

#include "gpu/kernels/persistent/grid_barrier.h"
#include "gpu/kernels/products/gated_lora.params.h"
#include "gpu/kernels/products/warpgroup_text.h"
#include "gpu/kernels/products/warpgroup_writer.h"
#include "gpu/kernels/step_state.h"
#include "proto/base/check.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

#define GATED_LORA_PARAM(member) offsetof(GatedLoraParams, member)
static_assert(GATED_LORA_PARAM(product) == 0);

// A row's gates or ups, in shared memory.
struct SharedModule {
    uint64_t b;  // address
    float scale;
    uint32_t row_bytes;  // of B
};
// What loads and stores of several words take together.
static_assert(offsetof(SharedModule, row_bytes) == offsetof(SharedModule, scale) + 4);
static_assert(offsetof(LoraModule, b) == offsetof(LoraModule, a) + 8 &&
              offsetof(LoraModule, scale) == offsetof(LoraModule, rank) + 4);

class GatedLora : protected WarpgroupWriter {
  protected:
    struct LoraWork {
        ScalarType type = ScalarType::kF16;
        uint32_t stride = 0;      // of x and A
        uint32_t row_blocks = 0;  // of 16 rows
        uint32_t workgroups = 0;
        uint32_t columns = 0;  // of y for a workgroup
    };

    void declare_lora(const LoraWork& work) {
        l_ = work;
        CHECK(n_steps() >= kGatedLoraStepsMin && l_.columns % kRoundColumns == 0);
        line(".shared .align 16 .b8 modules[{}];", kGatedLoraRows * 2 * kModuleBytes);
        line(".reg .pred %holds, %in_rows;");
        line(".reg .b32 %n_rows, %slot_stride, %owner, %m_rank, %m_scale, %m_row, %m_idx, %rank, %bits, %piece, "
             "%target, %polls, %polls_max, %seen, %entry;");
        line(".reg .b64 %table, %rows_at, %m_a, %m_b, %w_all, %sync, %row, %row8, %b_at, %a_at<{0}>, %xr_at<{0}>, "
             "%b<4>;",
             n_pieces());
        line(".reg .b32 %av<{0}>, %xv<{0}>, %b_row<4>, %past;", n_pieces() * kAhead * 4);
        line(".reg .f32 %dot<{}>, %low<{}>, %p0, %p1, %q0, %q1, %scale;", n_pieces(), kGatedLoraRanks);
        line(".reg .b16 %h<2>;");
    }

    // Comes behind the first loads of w and x.
    void begin_lora() {
        line("ld.param.u64 %rows_at, [params+{}]; ld.global.u32 %n_rows, [%rows_at]; ld.param.u64 %table, [params+{}]; "
             "ld.param.u32 %slot_stride, [params+{}]; ld.param.u64 %w_all, [params+{}];",
             MATMUL_PARAM(n_rows), GATED_LORA_PARAM(lora_layer), GATED_LORA_PARAM(lora_slot_stride), MATMUL_PARAM(w));
        line("ld.param.u64 %at, [params+{}]; ld.relaxed.gpu.global.u32 %target, [%at]; mov.u32 %first, %nctaid.z; "
             "add.u32 %target, %target, %first;",
             GATED_LORA_PARAM(sync));
        // Threads go by row and module.
        line("shr.u32 %m_row, %thread, 1; and.b32 %m_idx, %thread, 1;");
        find_module();
        line("add.u32 %first, %m_rank, 7; shr.u32 %first, %first, 3; shl.b32 %first, %first, 4; mov.u32 %entry, "
             "modules; mad.lo.u32 %entry, %thread, {}, %entry;",
             kModuleBytes);
        line("st.shared.u64 [%entry+{}], %m_b; st.shared.v2.b32 [%entry+{}], {{%m_scale, %first}};",
             offsetof(SharedModule, b), offsetof(SharedModule, scale));
        for (uint32_t i = 0; i < n_pieces(); ++i) {
            find_piece(i);
            line("shr.u32 %m_row, %piece, 2; shr.u32 %m_idx, %piece, 1; and.b32 %m_idx, %m_idx, 1; and.b32 %first, "
                 "%piece, 1; shr.u32 %rank, %thread, 4; mad.lo.u32 %rank, %first, 8, %rank;");
            find_module();
            line("setp.lt.u32 %holds, %rank, %m_rank; @!%holds mov.u64 %m_a, %w_all; selp.u32 %rank, %rank, 0, %holds; "
                 "selp.f32 %dot{}, 0f00000000, 0fff800000, %holds;",
                 i);
            line("and.b32 %first, %thread, 15; mul.wide.u32 %wide, %rank, {1}; add.u64 %a_at{0}, %m_a, %wide; "
                 "mul.wide.u32 %wide, %first, 16; add.u64 %a_at{0}, %a_at{0}, %wide;",
                 i, l_.stride * 2);
            line("sub.u32 %second, %n_rows, 1; min.u32 %second, %second, %m_row; ld.param.u64 %xr_at{0}, [params+{1}]; "
                 "add.u64 %xr_at{0}, %xr_at{0}, %wide; mul.wide.u32 %wide, %second, {2}; add.u64 %xr_at{0}, %xr_at{0}, "
                 "%wide;",
                 i, GATED_LORA_PARAM(x_rows), l_.stride * 2);
        }
    }

    // In front of a step's product: uses the shrink's loads of the step before. set: of the program's text.
    void use_shrink(uint32_t set) {
        line("setp.eq.u32 %is, %step, 0; setp.gt.or.u32 %is, %step, {}, %is; @%is bra shrunk{};", n_shrink_steps() + 1,
             set);
        line("setp.eq.u32 %is, %step, {}; @%is bra tell{};", n_shrink_steps() + 1, set);
        for (uint32_t i = 0; i < n_pieces(); ++i) {
            for (uint32_t word = 0; word < kAhead * 4; ++word) {
                const uint32_t r = i * kAhead * 4 + word;
                unpack("%p", lorad::format("%av{}", r));
                unpack("%q", lorad::format("%xv{}", r));
                line("fma.rn.f32 %dot{0}, %p0, %q0, %dot{0}; fma.rn.f32 %dot{0}, %p1, %q1, %dot{0};", i);
            }
        }
        line("setp.ne.u32 %is, %step, {}; @%is bra shrunk{};", n_shrink_steps(), set);
        for (uint32_t i = 0; i < n_pieces(); ++i) {
            for (const uint32_t lanes : {8u, 4u, 2u, 1u})
                line("shfl.sync.bfly.b32 %p0, %dot{0}, {1}, 31, 0xffffffff; add.f32 %dot{0}, %dot{0}, %p0;", i, lanes);
            // For ranks that do not exist the sum is minus infinity.
            line("setp.eq.f32 %is, %dot{0}, 0fff800000; selp.f32 %dot{0}, 0f00000000, %dot{0}, %is;", i);
            find_piece(i);
            line("and.b32 %first, %thread, 15; setp.eq.u32 %is, %first, 0; setp.lt.and.u32 %is, %piece, {}, %is; "
                 "shr.u32 %first, %thread, 4; mad.lo.u32 %first, %piece, 8, %first; mul.wide.u32 %wide, %first, 4;",
                 4 * rows());
            line("ld.param.u64 %at, [params+{}]; add.u64 %at, %at, %wide; @%is st.global.f32 [%at], %dot{};",
                 GATED_LORA_PARAM(low), i);
        }
        line("bra shrunk{};", set);
        // The label is reached behind the next step's barrier.
        line("tell{0}: setp.ne.u32 %is, %thread, 0; @%is bra shrunk{0}; fence.acq_rel.gpu; ld.param.u64 %at, "
             "[params+{1}]; red.relaxed.gpu.global.add.u32 [%at+{2}], 1;",
             set, GATED_LORA_PARAM(sync), offsetof(GridBarrierSync, arrivals));
        line("shrunk{}:", set);
    }

    // Loads the next step's part.
    void load_shrink() {
        line("setp.lt.u32 %is, %step, {};", n_shrink_steps());
        for (uint32_t c = 0; c < kAhead; ++c) {
            if (c > 0 && n_steps() % kAhead != 0) line("setp.lt.u32 %is, %step, {};", n_steps() / kAhead);
            for (uint32_t i = 0; i < n_pieces(); ++i) {
                const uint32_t r = (i * kAhead + c) * 4;
                if (c > 0 && n_steps() % kAhead != 0)
                    line("@!%is mov.b32 %av{0}, 0; @!%is mov.b32 %av{1}, 0; @!%is mov.b32 %av{2}, 0; @!%is mov.b32 "
                         "%av{3}, 0;",
                         r, r + 1, r + 2, r + 3);
                line("@%is ld.global.v4.b32 {{%av{0}, %av{1}, %av{2}, %av{3}}}, [%a_at{4}+{5}]; @%is ld.global.v4.b32 "
                     "{{%xv{0}, %xv{1}, %xv{2}, %xv{3}}}, [%xr_at{4}+{5}];",
                     r, r + 1, r + 2, r + 3, i, c * kChunkBytes);
            }
        }
        for (uint32_t i = 0; i < n_pieces(); ++i)
            line("add.u64 %a_at{0}, %a_at{0}, {1}; add.u64 %xr_at{0}, %xr_at{0}, {1};", i, kAhead * kChunkBytes);
    }

    // Behind the last step: adds to %sum, whose first columns are %n0's. The registers %x of two steps are free, and so
    // is the ring of shared memory.
    void expand() {
        // For a row or the row 8 behind it, gates or ups: the address in B of this thread's first column, and the bytes
        // of a row of B.
        line("shr.u32 %first, %lane, 2; mad.lo.u32 %first, %warp, 16, %first; mov.u32 %entry, modules; mad.lo.u32 "
             "%entry, %first, {}, %entry;",
             2 * kModuleBytes);
        line("and.b32 %second, %lane, 3; shl.b32 %second, %second, 1; add.u32 %second, %second, %n0;");
        for (uint32_t own = 0; own < 4; ++own) {
            const uint32_t at = own / 2 * 8 * 2 * kModuleBytes + own % 2 * kModuleBytes;
            line("ld.shared.u64 %b{0}, [%entry+{1}]; ld.shared.u32 %b_row{0}, [%entry+{2}]; mad.wide.u32 %b{0}, "
                 "%second, %b_row{0}, %b{0};",
                 own, at + offsetof(SharedModule, b), at + offsetof(SharedModule, row_bytes));
        }
        for (uint32_t round = 0; round < kRoundsAhead; ++round) load_b(round);
        // All have told.
        line("setp.ne.u32 %is, %thread, 0; @%is bra met_low; mov.u32 %polls, 0; ld.param.u64 %sync, [params+{}]; "
             "ld.param.u32 %polls_max, [params+{}];",
             GATED_LORA_PARAM(sync), GATED_LORA_PARAM(max_polls));
        line("ld.relaxed.gpu.global.u32 %seen, [%sync+{}]; setp.ne.u32 %is, %seen, 0; @%is mov.u32 %polls_max, 0;",
             offsetof(GridBarrierSync, has_given_up));
        poll_arrivals("low", lorad::format("%sync+{}", offsetof(GridBarrierSync, arrivals)).c_str(), "%first", "%at",
                      GATED_LORA_PARAM(given_up));
        line("met_low: bar.sync 0;");
        line("mov.u32 %first, %ctaid.z; or.b32 %first, %first, %thread; setp.eq.u32 %is, %first, 0; ld.param.u64 %at, "
             "[params+{}]; @%is st.relaxed.gpu.global.u32 [%at], %target;",
             GATED_LORA_PARAM(sync));
        // Low to shared memory, times the scale: [row][module], rows a word of 16 bytes further, so that those of a
        // warp are in different banks.
        line("mov.u32 %entry, modules; mad.lo.u32 %entry, %thread, {}, %entry; ld.shared.v2.b32 {{%m_scale, %second}}, "
             "[%entry+{}]; mov.b32 %scale, %m_scale; setp.eq.u32 %is, %second, 0;",
             kModuleBytes, offsetof(SharedModule, scale));
        line("ld.param.u64 %at, [params+{}]; mul.wide.u32 %wide, %thread, {}; add.u64 %at, %at, %wide;",
             GATED_LORA_PARAM(low), kGatedLoraRanks * 4);
        line("shr.u32 %first, %thread, 1; and.b32 %second, %thread, 1; mad.lo.u32 %entry, %first, {}, %ring; "
             "mad.lo.u32 %entry, %second, {}, %entry;",
             kLowRowBytes, kGatedLoraRanks * 4);
        for (uint32_t i = 0; i < kGatedLoraRanks; i += 4)
            line("ld.global.cg.v4.f32 {{%low{}, %low{}, %low{}, %low{}}}, [%at+{}];", i, i + 1, i + 2, i + 3, i * 4);
        for (uint32_t i = 0; i < kGatedLoraRanks; ++i)
            line("mul.f32 %low{0}, %low{0}, %scale; selp.f32 %low{0}, 0f00000000, %low{0}, %is;", i);
        for (uint32_t i = 0; i < kGatedLoraRanks; i += 4)
            line("st.shared.v4.f32 [%entry+{}], {{%low{}, %low{}, %low{}, %low{}}};", i * 4, i, i + 1, i + 2, i + 3);
        line("bar.sync 0; shr.u32 %first, %lane, 2; mad.lo.u32 %first, %warp, 16, %first; mad.lo.u32 %entry, %first, "
             "{}, %ring;",
             kLowRowBytes);
        for (uint32_t round = 0; round < n_rounds(); ++round) {
            if (round % own_rounds() == 0) {
                const uint32_t own = round / own_rounds(),
                               at = own / 2 * 8 * kLowRowBytes + own % 2 * kGatedLoraRanks * 4;
                for (uint32_t i = 0; i < kGatedLoraRanks; i += 4)
                    line("ld.shared.v4.f32 {{%low{}, %low{}, %low{}, %low{}}}, [%entry+{}];", i, i + 1, i + 2, i + 3,
                         at + i * 4);
            }
            add_b(round);
            if (round + kRoundsAhead < n_rounds()) load_b(round + kRoundsAhead);
        }
    }

  private:
    // The number of the workgroup's piece i: [row][module][8 ranks].
    void find_piece(uint32_t i) {
        line("mov.u32 %piece, %ctaid.z; mov.u32 %second, %nctaid.z; mad.lo.u32 %piece, %second, {}, %piece;", i);
    }

    static constexpr uint32_t kModuleBytes = sizeof(SharedModule);
    static constexpr uint32_t kChunkBytes = 256;  // of a row of A or x, for 16 threads
    static constexpr uint32_t kAhead = 2;         // chunks of a thread for each step
    static constexpr uint32_t kLowRowBytes = 2 * kGatedLoraRanks * 4 + 16;
    static constexpr uint32_t kRoundColumns = 16;  // of y, of which a thread has four
    static constexpr uint32_t kRoundsAhead = 2;

    uint32_t rows() const { return kFragmentRows * l_.row_blocks; }
    uint32_t n_pieces() const { return gated_lora_pieces(rows(), l_.workgroups); }
    uint32_t n_steps() const { return l_.stride / (kChunkBytes / 2); }
    uint32_t n_shrink_steps() const { return ceil_div(n_steps(), kAhead); }
    uint32_t own_rounds() const { return l_.columns / kRoundColumns; }
    uint32_t n_rounds() const { return 4 * own_rounds(); }

    // Finds gate (%m_idx 0) or up of row %m_row: %m_a, %m_b, %m_rank, %m_scale. Where there is none, rank and scale are
    // 0 and the addresses any readable ones.
    void find_module() {
        // Does not wait for the number of rows: memory beyond them may be read and holds anything.
        line("min.u32 %first, %m_row, {}; mul.wide.u32 %wide, %first, {}; add.u64 %at, %rows_at, %wide; ld.global.u32 "
             "%owner, [%at+{}]; setp.lt.u32 %is, %m_row, %n_rows; selp.u32 %owner, %owner, {}, %is;",
             rows() - 1, sizeof(StepRow), sizeof(StepHeader) + offsetof(StepRow, adapter_slot), kNoSlot);
        line("setp.ne.u32 %is, %owner, {}; mad.lo.u32 %first, %owner, %slot_stride, %m_idx; add.u32 %first, %first, "
             "{}; mul.wide.u32 %wide, %first, {}; add.u64 %at, %table, %wide;",
             kNoSlot, kLoraGate, sizeof(LoraModule));
        line("mov.u32 %m_rank, 0; @%is ld.global.v2.u64 {{%m_a, %m_b}}, [%at+{}]; @%is ld.global.v2.u32 {{%m_rank, "
             "%m_scale}}, [%at+{}];",
             offsetof(LoraModule, a), offsetof(LoraModule, rank));
        line("setp.eq.u32 %is, %m_rank, 0; @%is mov.u64 %m_a, %w_all; @%is mov.u64 %m_b, %w_all; @%is mov.u32 "
             "%m_scale, 0;");
    }

    // The two elements of a word to f32: to0, to1.
    void unpack(const char* to, const std::string& word) {
        if (l_.type == ScalarType::kBf16)
            line("shl.b32 %bits, {1}, 16; mov.b32 {0}0, %bits; and.b32 %bits, {1}, 0xffff0000; mov.b32 {0}1, %bits;",
                 to, word);
        else
            line("mov.b32 {{%h0, %h1}}, {1}; cvt.f32.f16 {0}0, %h0; cvt.f32.f16 {0}1, %h1;", to, word);
    }

    // A round: of one row's gates or ups four columns, two of each eight.
    void load_b(uint32_t round) {
        const uint32_t own = round / own_rounds(), group = round % own_rounds() * 2, set = round % kRoundsAhead * 32;
        // A row of 8 ranks has no second half: its first one again, times zero.
        line("sub.u32 %past, %b_row{}, 16; min.u32 %past, %past, 16;", own);
        for (uint32_t column = 0; column < 4; ++column) {
            const uint32_t r = set + column * 8;
            line("mad.wide.u32 %b_at, %b_row{0}, {1}, %b{0}; ld.global.v4.b32 {{%x{2}, %x{3}, %x{4}, %x{5}}}, [%b_at];",
                 own, (group + column / 2) * 8 + column % 2, r, r + 1, r + 2, r + 3);
            line("cvt.u64.u32 %wide, %past; add.u64 %b_at, %b_at, %wide; ld.global.v4.b32 {{%x{0}, %x{1}, %x{2}, "
                 "%x{3}}}, [%b_at];",
                 r + 4, r + 5, r + 6, r + 7);
        }
    }
    void add_b(uint32_t round) {
        const uint32_t own = round / own_rounds(), group = round % own_rounds() * 2, set = round % kRoundsAhead * 32;
        for (uint32_t word = 0; word < kGatedLoraRanks / 2; ++word) {
            for (uint32_t column = 0; column < 4; ++column) {
                const uint32_t sum = (group + column / 2) * 8 + own % 2 * 4 + own / 2 * 2 + column % 2;
                unpack("%p", lorad::format("%x{}", set + column * 8 + word));
                line("fma.rn.f32 %sum{0}, %p0, %low{1}, %sum{0}; fma.rn.f32 %sum{0}, %p1, %low{2}, %sum{0};", sum,
                     2 * word, 2 * word + 1);
            }
        }
    }

    LoraWork l_;
};

}  // namespace lorad::gpu
