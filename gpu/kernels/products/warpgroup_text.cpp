#include "gpu/kernels/products/warpgroup_text.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/gated_lora_text.h"
#include "gpu/kernels/products/matmul.params.h"
#include "gpu/kernels/products/warpgroup_ends.h"
#include "gpu/kernels/step_state.h"
#include "proto/base/check.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kXSets = 2;  // steps of x in registers

// What loads and stores of several words take together.
static_assert(offsetof(StackedWindow, begin) == 0 && offsetof(StackedWindow, n) == 4);

// The program, line by line. Registers: see declare().
class Writer : WarpgroupEnds {
  public:
    explicit Writer(const WarpgroupProgram& program) : WarpgroupEnds(program) {
        CHECK(t_.columns % t_.part == 0 && t_.part % 8 == 0 && t_.part <= 256 && p_.stride % t_.k == 0 &&
              t_.slots > (t_.overlaps ? 2 : 0));
        CHECK(p_.gated_rows == 0 ||
              (p_.gated_rows % 16 == 0 && t_.may_gate() && (load_rows() == 8 || load_rows() % 16 == 0)));
        // The distance from a thread's first row of w to its last, which its loads have as a literal.
        CHECK((uint64_t{p_.gated_rows} + t_.columns) * std::max(row_bytes(), stacked_bytes()) < uint64_t{1} << 31);
        CHECK(!p_.adds_lora || (p_.gated_rows > 0 && t_.rows() == kGatedLoraRows && t_.k == 128 && !t_.overlaps &&
                                !p_.persistent && !stacks()));
        CHECK(!p_.argmax || (p_.gated_rows == 0 && !stacks()));
        CHECK(!is_transposed() ||
              (p_.gated_rows == 0 && can_read_n_major(t_) && p_.w_columns % t_.part == 0 &&
               p_.w_columns >= t_.columns && load_rows() * row_bytes() * n_loads() < uint64_t{1} << 31));
        CHECK(!stacks() ||
              (t_.rows() == kStackedTileRows && t_.k == kStackedStep && p_.stacked_columns % kStackedStep == 0));
    }

    std::string write() {
        declare();
        find_place();
        line("tile:");
        point_at_w();
        point_at_x();
        begin_sums();
        loop();
        line("store:");
        if (p_.adds_lora) prefetch_pages(offsetof(GatedLoraParams, prefetch));
        // the next tile's parts go where others may still read
        if (t_.overlaps) line("wgmma.wait_group.sync.aligned 0;{}", p_.persistent ? " bar.sync 0;" : "");
        if (p_.adds_lora) expand();
        if (p_.gated_rows > 0)
            store_gated();
        else if (p_.argmax)
            store_best();
        else
            store_sums();
        if (p_.persistent) line("add.u32 %tile, %tile, 1; setp.lt.u32 %is, %tile, %end_tile; @%is bra tile;");
        line("done: ret;");
        line("}}");
        return std::move(text_);
    }

  private:
    uint32_t slot_bytes() const { return t_.part * t_.k * 2; }
    uint32_t k16s() const { return t_.k / 16; }          // matrix products along k in a step
    uint32_t x_registers() const { return 4 * k16s(); }  // of a thread for a step: an A matrix of 64x16 each
    uint32_t chunks() const { return t_.k / 8; }         // of 16 bytes in a row of a step, one for a thread
    uint32_t ring_bytes() const { return t_.slots * slot_bytes(); }
    uint32_t load_rows() const { return t_.threads() / chunks(); }  // that all threads fetch with one load each
    uint32_t n_loads() const { return ceil_div(t_.part, load_rows()); }
    uint32_t last_load_rows() const { return t_.part - (n_loads() - 1) * load_rows(); }
    bool last_load_is_partial() const { return last_load_rows() < load_rows(); }
    // Parts that are loaded before the one that is multiplied. A slot is free when all threads are known to be done
    // with it: behind a product or, if that is not waited for, at the barrier in front of the next but one.
    uint32_t ahead() const { return t_.overlaps ? t_.slots - 2 : t_.slots; }
    bool is_transposed() const { return p_.w_columns > 0; }
    uint64_t row_bytes() const { return uint64_t{is_transposed() ? p_.w_columns : p_.stride} * 2; }
    bool stacks() const { return p_.stacked_columns > 0; }
    // of a row of what is stacked
    uint64_t stacked_bytes() const { return is_transposed() ? row_bytes() : uint64_t{p_.stacked_columns} * 2; }
    const char* all_steps() const { return stacks() ? "%all" : "%steps"; }

    void declare() {
        begin_entry(t_.threads(), p_.adds_lora ? sizeof(GatedLoraParams)
                                  : p_.argmax  ? sizeof(MatmulArgmaxParams)
                                  : stacks()   ? sizeof(MatmulStackedParams)
                                               : sizeof(MatmulParams));
        // or it would have registers of which so many workgroups have none
        if (p_.adds_lora || p_.argmax) line(".minnctapersm {}", t_.at_once);
        line("{{");
        line(".shared .align 1024 .b8 ring[{}];", ring_bytes());
        line(".reg .pred %is{};", last_load_is_partial() ? ", %last" : "");
        line(".reg .b32 %thread, %warp, %lane, %split, %tile, %end_tile, %n0, %row0, %begin, %steps, %step, %parts, "
             "%done, %next, %first, %second, %zero, %used;");
        line(".reg .b32 %ring, %into, %slot_in, %slot_out, %y_stride, %split_stride, %k_per_split;");
        line(".reg .b64 %w, %x, %y, %y8, %at, %matrix, %slot, %wide;");
        line(".reg .f32 %sum<{}>, %act<2>, %e;", n_parts() * sums());
        line(".reg .b32 %x<{}>, %word<4>;", kXSets * x_registers());
        if (p_.adds_lora) {
            declare_lora({.type = p_.type,
                          .stride = p_.stride,
                          .row_blocks = p_.row_blocks > 0 ? p_.row_blocks : t_.rows() / kFragmentRows,
                          .workgroups = ceil_div(2 * p_.gated_rows, t_.columns),
                          .columns = y_columns()});
        }
        if (p_.argmax) line(".reg .b32 %from, %to, %best<2>, %their; .reg .f32 %top<2>, %total<2>, %check<2>, %other;");
        if (stacks())
            line(".reg .pred %stacked; .reg .b32 %window, %more, %all, %asked; .reg .b64 %stacked_w, %stacked_x;");
        line("mov.u32 %thread, %tid.x; shr.u32 %warp, %thread, 5; and.b32 %lane, %thread, 31;");
        line("ld.param.u32 %y_stride, [params+{}]; ld.param.u32 %split_stride, [params+{}]; ld.param.u32 %k_per_split, "
             "[params+{}];",
             MATMUL_PARAM(y_stride), MATMUL_PARAM(split_stride), MATMUL_PARAM(k_per_split));
        line("ld.param.u32 %zero, [params+{}];", MATMUL_PARAM(pad));  // to the compiler any number
    }

    // This workgroup's rows, split and first tile.
    void find_place() {
        line("mov.u32 %split, %ctaid.y; mov.u32 %tile, %ctaid.z; mov.u32 %row0, %ctaid.x; mul.lo.u32 %row0, %row0, {};",
             t_.rows());
        // The first rows are always there.
        line("setp.eq.u32 %is, %row0, 0; @%is bra has_rows;");
        line("ld.param.u64 %at, [params+{}]; ld.global.u32 %first, [%at]; setp.ge.u32 %is, %row0, %first; @%is bra "
             "done;",
             MATMUL_PARAM(n_rows));
        line("has_rows:");
        if (p_.units > 0) find_own_place();
        if (p_.persistent) take_tiles();
        line("mul.lo.u32 %begin, %split, %k_per_split; add.u32 %steps, %begin, %k_per_split; min.u32 %steps, %steps, "
             "{};",
             p_.stride);
        line("sub.u32 %steps, %steps, %begin; shr.u32 %steps, %steps, {};", t_.k == 128 ? 7 : 6);
        if (stacks()) find_window();
        line("mul.lo.u32 %parts, {}, {};", all_steps(), n_parts());
    }

    // %window, %more: the steps of what is stacked that these rows have, behind the last split's own.
    void find_window() {
        line("mov.u32 %window, 0; mov.u32 %more, 0; mov.u32 %first, %nctaid.y; sub.u32 %first, %first, 1; setp.ne.u32 "
             "%is, %first, %split; @%is bra has_window;");
        line("ld.param.u64 %at, [params+{}]; div.u32 %first, %row0, {}; mul.wide.u32 %wide, %first, {};",
             offsetof(MatmulStackedParams, windows), kStackedTileRows, sizeof(StackedWindow));
        line("add.u64 %at, %at, %wide; ld.global.v2.u32 {{%window, %more}}, [%at];");
        line("has_window: add.u32 %all, %steps, %more;");
    }

    // The same as own_place() of matmul_coopmat.comp: place i of n is unit i % units in round i / units; the rounds of
    // a unit are neighbours.
    void find_own_place() {
        // i, n
        line("mov.u32 %first, %nctaid.y; mov.u32 %second, %nctaid.z; mad.lo.u32 %next, %tile, %first, %split; "
             "mul.lo.u32 %second, %second, %first;");
        line("add.u32 %done, %second, {0}; div.u32 %done, %done, {1}; sub.u32 %step, %done, 1; mul.lo.u32 %step, "
             "%step, {1}; sub.u32 %step, %second, %step;",
             p_.units - 1, p_.units);  // rounds, units in the last one
        // round, unit
        line("div.u32 %second, %next, {0}; mul.lo.u32 %tile, %second, {0}; sub.u32 %tile, %next, %tile;", p_.units);
        line("max.u32 %next, %tile, %step; sub.u32 %next, %next, %step; mad.lo.u32 %second, %tile, %done, %second; "
             "sub.u32 %second, %second, %next;");
        line("div.u32 %tile, %second, %first; mul.lo.u32 %split, %tile, %first; sub.u32 %split, %second, %split;");
    }

    // The tiles from %tile to %end_tile, of all a share as large as that of %tile's neighbours.
    void take_tiles() {
        line("ld.param.u32 %first, [params+{}]; add.u32 %first, %first, {}; div.u32 %first, %first, {};",
             MATMUL_PARAM(n), y_columns() - 1, y_columns());
        line("mov.u32 %second, %nctaid.z; mad.lo.u32 %end_tile, %tile, %first, %first; div.u32 %end_tile, %end_tile, "
             "%second;");
        line("mul.lo.u32 %tile, %tile, %first; div.u32 %tile, %tile, %second;");
    }

    // %n0: the tile's first column of y. %w: this thread's first chunk of the first part. %into: where it goes in the
    // first slot.
    void point_at_w() {
        // The last tile is moved back into the matrix; what it shares with its neighbour is written twice, with the
        // same bits.
        line("mul.lo.u32 %n0, %tile, {0}; sub.u32 %first, %y_stride, {0}; min.u32 %n0, %n0, %first;", y_columns());
        // row and chunk
        line("shr.u32 %first, %thread, {}; and.b32 %second, %thread, {};", t_.k == 128 ? 4 : 3, chunks() - 1);
        if (last_load_is_partial()) line("setp.lt.u32 %last, %first, {};", last_load_rows());
        // %next: the row of w, from the tile's first one, of this thread's row of a part, as row_of() has it.
        if (p_.gated_rows > 0 && load_rows() > 8) {
            line("shr.u32 %next, %first, 4; shl.b32 %next, %next, 3; and.b32 %done, %first, 7; add.u32 %next, %next, "
                 "%done;");
            line("and.b32 %done, %first, 8; setp.eq.u32 %is, %done, 0; selp.u32 %done, 0, {}, %is; add.u32 %next, "
                 "%next, %done;",
                 p_.gated_rows);
        } else {
            line("mov.u32 %next, %first;");
        }
        // If w's rows are those of k, this thread's row is counted from the split's first one.
        line("ld.param.u64 %w, [params+{}]; add.u32 %next, {}, %next; mul.wide.u32 %wide, %next, {}; add.u64 %w, %w, "
             "%wide;",
             MATMUL_PARAM(w), is_transposed() ? "%begin" : "%n0", row_bytes());
        if (stacks())
            line("ld.param.u64 %stacked_w, [params+{}]; mul.wide.u32 %wide, {}, {}; add.u64 %stacked_w, %stacked_w, "
                 "%wide;",
                 offsetof(MatmulStackedParams, b), is_transposed() ? "%first" : "%next", stacked_bytes());
        line("shl.b32 %next, %second, 4; cvt.u64.u32 %wide, %next; add.u64 %w, %w, %wide;");
        if (stacks())
            line("add.u64 %stacked_w, %stacked_w, %wide; mul.wide.u32 %wide, %window, {}; add.u64 %stacked_w, "
                 "%stacked_w, "
                 "%wide;",
                 is_transposed() ? t_.k * stacked_bytes() : t_.k * 2);
        line("mul.wide.u32 %wide, {}, 2; add.u64 %w, %w, %wide;{}", is_transposed() ? "%n0" : "%begin",
             stacks() && is_transposed() ? " add.u64 %stacked_w, %stacked_w, %wide;" : "");
        line("xor.b32 %next, %first, %second; and.b32 %next, %next, 7; shl.b32 %next, %next, 4; shl.b32 %into, %first, "
             "7; add.u32 %into, %into, %next;");
        if (t_.k == 128)
            line("shr.u32 %next, %second, 3; mul.lo.u32 %next, %next, {}; add.u32 %into, %into, %next;",
                 t_.part * kSwizzledRowBytes);
        line("mov.u32 %ring, ring; add.u32 %into, %into, %ring;");
        line("shr.u32 %next, %ring, 4; cvt.u64.u32 %matrix, %next; or.b64 %matrix, %matrix, {};", kSwizzledDescriptor);
    }

    // %x: this lane's 16 bytes of the first block.
    void point_at_x() {
        line("ld.param.u64 %x, [params+{}]; shr.u32 %next, %row0, 4;", MATMUL_PARAM(x));
        if (p_.row_blocks > 0 && p_.row_blocks < 4 * t_.groups)
            line("rem.u32 %first, %warp, {}; add.u32 %next, %next, %first;", p_.row_blocks);
        else
            line("add.u32 %next, %next, %warp;");
        line("mul.wide.u32 %wide, %next, {}; add.u64 %x, %x, %wide;", p_.stride / kFragmentColumns * kFragmentBytes);
        line("mul.wide.u32 %wide, %begin, {}; add.u64 %x, %x, %wide; mul.wide.u32 %wide, %lane, 16; add.u64 %x, %x, "
             "%wide;",
             kFragmentBytes / kFragmentColumns);
        if (!stacks()) return;
        line("ld.param.u64 %stacked_x, [params+{}]; add.u64 %stacked_x, %stacked_x, %wide; mul.wide.u32 %wide, %next, "
             "{}; "
             "add.u64 %stacked_x, %stacked_x, %wide;",
             offsetof(MatmulStackedParams, low), p_.stacked_columns / kFragmentColumns * kFragmentBytes);
        line("mul.wide.u32 %wide, %window, {}; add.u64 %stacked_x, %stacked_x, %wide;", k16s() * kFragmentBytes);
    }

    // Loads step %next, or the last one, so that the load needs no condition.
    void load_x(uint32_t set) {
        line("sub.u32 %first, {}, 1; min.u32 %first, %first, %next;", all_steps());
        const char* x = "%x";
        if (stacks()) {
            line("setp.ge.u32 %stacked, %first, %steps; @%stacked sub.u32 %first, %first, %steps; selp.u64 %at, "
                 "%stacked_x, %x, %stacked;");
            x = "%at";
        }
        line("mul.wide.u32 %wide, %first, {}; add.u64 %at, {}, %wide;", k16s() * kFragmentBytes, x);
        line("cvt.u64.u32 %wide, %used; add.u64 %at, %at, %wide;");
        for (uint32_t k = 0; k < k16s(); ++k) {
            const uint32_t r = set * x_registers() + k * 4;
            line("ld.global.v4.b32 {{%x{}, %x{}, %x{}, %x{}}}, [%at+{}];", r, r + 1, r + 2, r + 3, k * kFragmentBytes);
        }
    }

    // The row of w, from the tile's first one, that is in a row of a part: of a gated product eight gates, then the
    // eight ups that belong to them.
    uint64_t row_of(uint32_t part, uint32_t row) const {
        const uint32_t in_tile = part * t_.part + row;
        if (p_.gated_rows == 0) return in_tile;
        return uint64_t{in_tile} / 16 * 8 + in_tile % 8 + (in_tile % 16 < 8 ? 0 : p_.gated_rows);
    }

    // Loads the step that %w is at to the slot %slot_in; the last part moves %w on. The steps of stacked columns follow
    // w's.
    void load_w(uint32_t part) {
        line("add.u32 %second, %into, %slot_in;");
        if (!stacks()) return load_rows_of("%w", part, row_bytes());
        const uint32_t place = n_places_++;
        line("setp.ge.u32 %stacked, %asked, %steps; @%stacked bra stacked{};", place);
        load_rows_of("%w", part, row_bytes());
        line("bra loaded{0}; stacked{0}:", place);
        load_rows_of("%stacked_w", part, stacked_bytes());
        line("loaded{}:{}", place, part + 1 == n_parts() ? " add.u32 %asked, %asked, 1;" : "");
    }

    // Prefetches 256 bytes of a row to the L2 cache in the measured cases: they are two steps', and the output layer
    // and `down` are a few per cent faster.
    void load_rows_of(const char* w, uint32_t part, uint64_t row_bytes) {
        for (uint32_t i = 0; i < n_loads(); ++i) {
            const bool is_partial = last_load_is_partial() && i + 1 == n_loads();
            line("{}cp.async.cg.shared.global{} [%second+{}], [{}+{}], 16;", is_partial ? "@%last " : "",
                 t_.overlaps ? ".L2::256B" : "", i * load_rows() * kSwizzledRowBytes, w,
                 is_transposed() ? i * load_rows() * row_bytes + part * kSwizzledRowBytes
                                 : row_of(part, i * load_rows()) * row_bytes);
        }
        if (part + 1 == n_parts()) line("add.u64 {0}, {0}, {1};", w, is_transposed() ? t_.k * row_bytes : t_.k * 2);
    }

    void begin_sums() {
        for (uint32_t i = 0; i < n_parts() * sums(); ++i) line("mov.f32 %sum{}, 0f00000000;", i);
        line("setp.eq.u32 %is, {}, 0; @%is bra store;", all_steps());
        line("mov.u32 %used, 0; mov.u32 %next, 0; mov.u32 %slot_in, 0;{}", stacks() ? " mov.u32 %asked, 0;" : "");
        load_x(0);
        for (uint32_t slot = 0; slot < ahead(); ++slot) {
            line("setp.le.u32 %is, %parts, {0}; @%is bra begun{0};", slot);
            load_w(slot % n_parts());
            line("add.u32 %slot_in, %slot_in, {};", slot_bytes());
            line("begun{}: cp.async.commit_group;", slot);
        }
        if (p_.adds_lora) begin_lora();
        line("mov.u32 %done, 0; mov.u32 %step, 0; mov.u32 %slot_in, {}; mov.u32 %slot_out, 0;",
             ahead() % t_.slots * slot_bytes());
    }

    void loop() {
        line("loop:");
        for (uint32_t set = 0; set < kXSets; ++set) {
            for (uint32_t part = 0; part < n_parts(); ++part) {
                // Behind the barrier all threads see what cp.async has written. (The fence between the generic and the
                // asynchronous proxy would wait for all loads in flight.)
                line("cp.async.wait_group {}; bar.sync 0;", ahead() - 1);
                if (part == 0) use_x(set);
                if (part == 0 && p_.adds_lora) use_shrink(set);
                if (t_.overlaps) load_next(set, part);
                multiply(set, part);
                // A product goes on while the next one's loads begin. They touch nothing that it reads: the other set
                // of x is the step before's.
                if (t_.overlaps) line("wgmma.wait_group.sync.aligned 1;");
                if (part == 0) {
                    line("add.u32 %next, %step, 1;");
                    load_x((set + 1) % kXSets);
                    if (p_.adds_lora) load_shrink();
                }
                if (!t_.overlaps) line("wgmma.wait_group.sync.aligned 0;");
                advance("%slot_out", slot_bytes(), ring_bytes());
                if (!t_.overlaps) {
                    line("bar.sync 0;");
                    load_next(set, part);
                }
                line("add.u32 %done, %done, 1;");
            }
            line("add.u32 %step, %step, 1; setp.ge.u32 %is, %step, {}; @%is bra store;", all_steps());
        }
        line("bra loop;");
    }

    // All threads are done with a slot: the part that is so many ahead goes there.
    void load_next(uint32_t set, uint32_t part) {
        line("add.u32 %next, %done, {}; setp.ge.u32 %is, %next, %parts; @%is bra none{}_{};", ahead(), set, part);
        load_w((part + ahead()) % n_parts());
        line("none{}_{}: cp.async.commit_group;", set, part);
        advance("%slot_in", slot_bytes(), ring_bytes());
    }

    void multiply(uint32_t set, uint32_t part) {
        line("shr.u32 %first, %slot_out, 4; cvt.u64.u32 %wide, %first; add.u64 %slot, %matrix, %wide;");
        line("wgmma.fence.sync.aligned;");
        for (uint32_t k = 0; k < k16s(); ++k) {
            line("add.u64 %at, %slot, {};",
                 is_transposed() ? k * 16 * kSwizzledRowBytes / 16 : swizzled_offset(k, t_.part));
            multiply_16(t_.part, p_.type, part * sums(), four("%x", set * x_registers() + k * 4), "%at",
                        is_transposed());
        }
        line("wgmma.commit_group.sync.aligned;");
    }

    // %used: zero, but to the compiler a number of all of this step's x, and part of the address of the next one's. So
    // the next one's loads stand behind a wait for this one's: one counter counts both, and a wait behind them would be
    // one for them, too. In front of the product, whose registers nobody may touch until it is waited for.
    void use_x(uint32_t set) {
        line("mov.u32 %used, 0;");
        for (uint32_t k = 0; k < k16s(); ++k)
            line("and.b32 %first, %x{}, %zero; or.b32 %used, %used, %first;", set * x_registers() + k * 4 + 3);
    }

    uint32_t n_places_ = 0;  // where load_w() was written
};

}  // namespace

std::string warpgroup_text(const WarpgroupProgram& program) { return Writer(program).write(); }

}  // namespace lorad::gpu
