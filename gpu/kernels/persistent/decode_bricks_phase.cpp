#include "gpu/kernels/persistent/decode_bricks_phase.h"

namespace lorad::gpu {

std::string BrickPhaseWriter::begin() {
    const char* name = phase_.name;
    line("{{");
    line(".reg .b32 %bricks, %band, %in_band, %copy_band, %copy_in_band;");
    line(".reg .pred %band_ends, %range_ends, %wraps;");
    declare_rows();
    line("add.u32 %index_{0}, %part, {1}; setp.ge.u32 %is, %index_{0}, {2}; @%is sub.u32 %index_{0}, %index_{0}, {2};",
         name, p_.workgroups - phase_.first % p_.workgroups, p_.workgroups);
    line("sub.u32 %count_{0}, {1}, %index_{0}; div.u32 %count_{0}, %count_{0}, {2};", name,
         phase_.bands + p_.workgroups - 1, p_.workgroups);
    if (matrices() == 2) line("shl.b32 %count_{0}, %count_{0}, 1;", name);
    line("mul.lo.u32 %bricks_{0}, %count_{0}, {1};", name, bricks());
    line("min.u32 %warps_{0}, %bricks_{0}, {1}; max.u32 %n, %warps_{0}, 1; mul.lo.u32 %i, %warp, %bricks_{0}; div.u32 "
         "%i, %i, %n; add.u32 %j, %warp, 1; mul.lo.u32 %j, %j, %bricks_{0}; div.u32 %j, %j, %n; sub.u32 %bricks, %j, "
         "%i; setp.ge.u32 %is, %warp, %warps_{0}; @%is mov.u32 %bricks, 0; mov.u32 %to_copy, %bricks;",
         name, kDecodeBricksWarps);
    line("div.u32 %band, %i, {0}; mul.lo.u32 %j, %band, {0}; sub.u32 %in_band, %i, %j; mov.u32 %copy_band, %band; "
         "mov.u32 %copy_in_band, %in_band; mov.u32 %next_in_band, %in_band;",
         bricks());
    point_at_band();
    line("mul.wide.u32 %wide, %in_band, {0}; add.u64 %from, %from, %wide; mov.u32 %slot, %ring; add.u32 %ring_end, "
         "%ring, {1};",
         slot_bytes(), p_.ring_bytes() / slot_bytes() * slot_bytes());
    fill_ring();
    return take();
}

// %from: this lane's first words of band %copy_band.
void BrickPhaseWriter::point_at_band() {
    line("ld.param.u64 %from, [params+{}]; mul.wide.u32 %wide, %lane, 16;", phase_.w);
    if (matrices() == 2) {
        line("ld.param.u64 %ptr, [params+{}]; and.b32 %j, %copy_band, 1; setp.ne.u32 %is, %j, 0; @%is mov.u64 %from, "
             "%ptr; shr.u32 %j, %copy_band, 1;",
             phase_.w_up);
    } else {
        line("mov.u32 %j, %copy_band;");
    }
    line("add.u64 %from, %from, %wide; mad.lo.u32 %j, %j, {}, %index_{}; mul.wide.u32 %wide, %j, {}; add.u64 %from, "
         "%from, %wide;",
         p_.workgroups, phase_.name, bricks() * slot_bytes());
}

// A workgroup's bands do not lie one behind the other.
void BrickPhaseWriter::follow_copy() {
    line(
        "add.u32 %copy_in_band, %copy_in_band, 1; setp.eq.u32 %wraps, %copy_in_band, {}; @!%wraps bra same_band_{}_{};",
        bricks(), phase_.name, n_copies_);
    line("mov.u32 %copy_in_band, 0; add.u32 %copy_band, %copy_band, 1;");
    point_at_band();
    line("same_band_{}_{}:", phase_.name, n_copies_++);
}

std::string BrickPhaseWriter::multiply_all() {
    const char* name = phase_.name;
    line("setp.eq.u32 %is, %bricks, 0; @%is bra multiplied_{};", name);
    start_rows();
    point_at_x(phase_.x);
    line("next_brick_{}:", name);
    fetch();
    multiply(lorad::format("taken_{}", name).c_str());
    line(
        "taken_{0}: add.u32 %in_band, %in_band, 1; sub.u32 %bricks, %bricks, 1; setp.eq.u32 %band_ends, %in_band, {1}; "
        "setp.eq.u32 %range_ends, %bricks, 0; or.pred %is, %band_ends, %range_ends; @!%is bra next_brick_{0};",
        name, bricks());
    end_band();
    line("@!%range_ends bra next_brick_{};", name);
    line("multiplied_{}:", name);
    return take();
}

void BrickPhaseWriter::end_band() {
    const bool are_shared = p_.partials_are_shared();
    add_sums();
    line("add.u32 %i, %band, %warp;");
    if (are_shared)
        line("mad.lo.u32 %i, %i, {}, %partials_at;", p_.partial_bytes());
    else
        line("mul.wide.u32 %wide, %i, {}; add.u64 %ptr, %partials_at, %wide;", p_.partial_bytes());
    const char* store = are_shared ? "st.shared.f32" : "st.global.f32";
    const char* at = are_shared ? "%i" : "%ptr";
    line("@%store0 {0} [{1}], %d0; @%store0 {0} [{1}+32], %d2; @%store1 {0} [{1}+64], %d1; @%store1 {0} [{1}+96], %d3;",
         store, at);
    clear_sums();
    line("@%band_ends add.u32 %band, %band, 1; @%band_ends mov.u32 %in_band, 0;");
}

// The warps that have some of the band: the one with its first brick to the one with its last.
std::string BrickPhaseWriter::add_partials() {
    const char* name = phase_.name;
    line("mul.lo.u32 %i, %lb, {0}; add.u32 %j, %i, {0}; add.u32 %i, %i, 1; mul.lo.u32 %i, %i, %warps_{1}; sub.u32 %i, "
         "%i, 1; div.u32 %i, %i, %bricks_{1}; mul.lo.u32 %j, %j, %warps_{1}; sub.u32 %j, %j, 1; div.u32 %j, %j, "
         "%bricks_{1};",
         bricks(), name);
    line("sub.u32 %j, %j, %i; add.u32 %i, %i, %lb; mul.lo.u32 %n, %row, {}; add.u32 %n, %n, %col;", kBrickRows);
    if (p_.partials_are_shared())
        line("mov.u32 %at, partials; mad.lo.u32 %at, %n, 4, %at; mad.lo.u32 %at, %i, {}, %at;", p_.partial_bytes());
    else
        line("mul.wide.u32 %wide, %n, 4; add.u64 %ptr, %own_partials, %wide; mul.wide.u32 %wide, %i, {}; add.u64 %ptr, "
             "%ptr, %wide;",
             p_.partial_bytes());
    line("more_{}_{}:", name, n_sums_);
    if (p_.partials_are_shared())
        line("ld.shared.f32 %v, [%at]; add.u32 %at, %at, {};", p_.partial_bytes());
    else
        line("ld.global.f32 %v, [%ptr]; add.u64 %ptr, %ptr, {};", p_.partial_bytes());
    line("add.f32 %s, %s, %v; setp.eq.u32 %is, %j, 0; sub.u32 %j, %j, 1; @!%is bra more_{}_{};", name, n_sums_);
    ++n_sums_;
    return take();
}

}  // namespace lorad::gpu
