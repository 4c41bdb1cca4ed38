// What the products of decode_rows_text.cpp end in: sums of all warps, the residual stream, norms, and the grid
// barriers of workgroups between them. Internal to it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "gpu/kernels/persistent/decode_rows_text.h"
#include "gpu/kernels/persistent/grid_barrier.h"
#include "gpu/kernels/products/warpgroup_writer.h"

namespace lorad::gpu {

constexpr uint32_t kDecodeRowsWarps = kDecodeRowsThreads / 32;
// [warp][component][lane] f32: eight components of o and down, or, in two places in turns, four of other tiles.
constexpr uint32_t kDecodeRowsSumBytes = kDecodeRowsWarps * 8 * 128;

#define DECODE_ROWS_PARAM(member) offsetof(DecodeRowsParams, member)

// Registers, which the writer of the products declares: %a and %b are a lane's sums, in two halves; %s, %s0, %s1, %f,
// %v what is worked on; %i, %j, %at, %ptr, %wide are free between lines. A warp adds up components 2w and 2w + 1 of o
// and down, of %column and rows 2t and 2t + 1.
class DecodeRowsEnds : protected TextWriter {
  protected:
    explicit DecodeRowsEnds(const DecodeRowsProgram& program) : p_(program) {}

    void share_sums(uint32_t n, const char* to) {
        for (uint32_t i = 0; i < n; ++i)
            line("add.f32 %v0, %a{0}, %b{0}; st.shared.f32 [{1}+{2}], %v0;", i, to, i * 128);
        line("bar.sync 0;");
    }
    // To one of two places in turns, so that one barrier for each will do: who is a tile ahead waits for the others
    // before it writes to the same again.
    void share_tile_sums() {
        line("add.u32 %at, %tile_to, %turn;");
        share_sums(4, "%at");
        line("add.u32 %j, %from, %turn; xor.b32 %turn, %turn, {};", kDecodeRowsSumBytes / 2);
    }
    // The warps' sums of a component.
    void add_up(const char* into, const char* base, const char* component, uint32_t warp_bytes) {
        line("mad.lo.u32 %at, {}, 128, {};", component, base);
        for (uint32_t w = 0; w < kDecodeRowsWarps; ++w) line("ld.shared.f32 %v{}, [%at+{}];", w, w * warp_bytes);
        line("add.f32 %v0, %v0, %v1; add.f32 %v2, %v2, %v3; add.f32 {}, %v0, %v2;", into);
    }
    void add_up_tile(const char* into, const char* component) {
        add_up(into, "%j", component, kDecodeRowsSumBytes / 2 / kDecodeRowsWarps);
    }

    void residual(const char* name, const char* norm, bool is_first) {
        share_sums(4 * p_.blocks(), "%to");
        line("setp.ge.u32 %is, %warp, {}; @%is bra end_{};", 2 * p_.blocks(), name);
        line("shl.b32 %i, %warp, 1;");
        add_up("%s0", "%from", "%i", kDecodeRowsSumBytes / kDecodeRowsWarps);
        line("add.u32 %i, %i, 1;");
        add_up("%s1", "%from", "%i", kDecodeRowsSumBytes / kDecodeRowsWarps);
        line("add.f32 %s0, %s0, %bias_{0}; add.f32 %s1, %s1, %bias_{0}; add.f32 %stream0, %stream0, %s0; add.f32 "
             "%stream1, %stream1, %s1;",
             name);
        if (!is_first)
            line("@%store0 st.global.f32 [%stream_at], %stream0; @%store1 st.global.f32 [%stream_at+{}], %stream1;",
                 p_.hidden * 4);
        // a 16th
        line("mov.u32 %at, inverses; mad.lo.u32 %at, %t, 8, %at; ld.shared.f32 %f0, [%at]; ld.shared.f32 %f1, [%at+4]; "
             "mul.f32 %f0, %f0, 0f3d800000; mul.f32 %f1, %f1, 0f3d800000;");
        line("mul.f32 %s0, %stream0, %gamma_{0}; mul.f32 %s1, %stream1, %gamma_{0}; mul.f32 %s0, %s0, %f0; mul.f32 "
             "%s1, %s1, %f1;",
             norm);
        store_16(p_.type, "%s0", "%xn_at", 0, "%store0", true);
        store_16(p_.type, "%s1", "%xn_at", p_.hidden * 2, "%store1", true);
        line("mul.f32 %s0, %stream0, %stream0; mul.f32 %s1, %stream1, %stream1; @!%valid mov.f32 %s0, 0f00000000; "
             "@!%valid mov.f32 %s1, 0f00000000;");
        for (const uint32_t lanes : {4u, 8u, 16u}) {
            line("shfl.sync.bfly.b32 %v0, %s0, {0}, 31, 0xffffffff; shfl.sync.bfly.b32 %v1, %s1, {0}, 31, 0xffffffff; "
                 "add.f32 %s0, %s0, %v0; add.f32 %s1, %s1, %v1;",
                 lanes);
        }
        line("setp.eq.u32 %is, %g, 0; @%is st.global.f32 [%squares_at], %s0; @%is st.global.f32 [%squares_at+{}], %s1;",
             p_.square_entries() * 4);
        line("end_{}:", name);
    }

    // All workgroups have written what they have to before any goes on. The weights of what is next are on their way
    // meanwhile.
    template <typename Hold>
    void grid_barrier(const char* name, const Hold& hold_next) {
        line("bar.sync 0; add.u32 %target, %target, {}; setp.ne.u32 %is, %thread, 0; @%is bra said_{};", p_.workgroups,
             name);
        line("fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%arrivals], 1;");
        line("said_{}:", name);
        hold_next();
        line("setp.ne.u32 %is, %thread, 0; @%is bra met_{}; mov.u32 %polls, 0;", name);
        poll_arrivals(name, "%arrivals", "%i", "%ptr", DECODE_ROWS_PARAM(given_up));
        line("met_{}: bar.sync 0;", name);
    }

    // Two rows' squares for each warp.
    void find_norm() {
        const uint32_t loads = p_.square_entries() / 128, entries = round_up(p_.parts() * 2 * p_.blocks(), 4u);
        line("mul.lo.u32 %i, %warp, {}; mul.wide.u32 %wide, %i, 4; add.u64 %ptr, %sync, %wide; mul.wide.u32 %wide, "
             "%lane, 16; add.u64 %ptr, %ptr, %wide; add.u64 %ptr, %ptr, {}; shl.b32 %j, %lane, 2;",
             2 * p_.square_entries(), sizeof(GridBarrierSync));
        line("mov.f32 %s0, 0f00000000; mov.f32 %s1, 0f00000000;");
        for (uint32_t i = 0; i < loads; ++i) {
            for (uint32_t r = 0; r < 8; ++r) line("mov.f32 %v{}, 0f00000000;", r);
            line("add.u32 %i, %j, {}; setp.lt.u32 %is, %i, {};", i * 128, entries);
            line("@%is ld.global.cg.v4.f32 {{%v0, %v1, %v2, %v3}}, [%ptr+{}]; @%is ld.global.cg.v4.f32 {{%v4, %v5, "
                 "%v6, %v7}}, [%ptr+{}];",
                 i * 512, i * 512 + p_.square_entries() * 4);
            line("add.f32 %v0, %v0, %v1; add.f32 %v2, %v2, %v3; add.f32 %v4, %v4, %v5; add.f32 %v6, %v6, %v7; add.f32 "
                 "%v0, %v0, %v2; add.f32 %v4, %v4, %v6; add.f32 %s0, %s0, %v0; add.f32 %s1, %s1, %v4;");
        }
    }

    // Behind the loads of x. The first workgroup tells the inverses that the next layer begins with.
    void norm(const char* name, bool tells) {
        for (const uint32_t lanes : {1u, 2u, 4u, 8u, 16u}) {
            line("shfl.sync.bfly.b32 %v0, %s0, {0}, 31, 0xffffffff; shfl.sync.bfly.b32 %v1, %s1, {0}, 31, 0xffffffff; "
                 "add.f32 %s0, %s0, %v0; add.f32 %s1, %s1, %v1;",
                 lanes);
        }
        line("ld.param.f32 %e, [params+{}]; fma.rn.f32 %s0, %s0, 0f{:08x}, %e; fma.rn.f32 %s1, %s1, 0f{:08x}, %e; "
             "rsqrt.approx.f32 %s0, %s0; rsqrt.approx.f32 %s1, %s1;",
             DECODE_ROWS_PARAM(eps), std::bit_cast<uint32_t>(1.0f / static_cast<float>(p_.hidden)),
             std::bit_cast<uint32_t>(1.0f / static_cast<float>(p_.hidden)));
        line("@!%first_lane bra normed_{};", name);
        line("mov.u32 %at, inverses; mad.lo.u32 %at, %warp, 8, %at; ld.shared.f32 %v0, [%at]; ld.shared.f32 %v1, "
             "[%at+4]; st.shared.f32 [%at], %s0; st.shared.f32 [%at+4], %s1;");
        line("mul.f32 %v2, %s0, 0f41800000; mul.f32 %v3, %s1, 0f41800000; div.rn.f32 %v2, %v2, %v0; div.rn.f32 %v3, "
             "%v3, %v1;");
        line("mov.u32 %at, factors; mad.lo.u32 %at, %warp, 8, %at; st.shared.f32 [%at], %v2; st.shared.f32 [%at+4], "
             "%v3;");
        if (tells) {
            line("setp.ne.u32 %is, %part, 0; @%is bra normed_{0}; ld.param.u64 %ptr, [params+{1}]; mul.wide.u32 %wide, "
                 "%warp, 8; add.u64 %ptr, %ptr, %wide; st.global.f32 [%ptr], %s0; st.global.f32 [%ptr+4], %s1;",
                 name, DECODE_ROWS_PARAM(norms));
        }
        line("normed_{}:", name);
    }

    const DecodeRowsProgram& p_;
};

}  // namespace lorad::gpu
