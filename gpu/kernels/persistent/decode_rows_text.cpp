#include "gpu/kernels/persistent/decode_rows_text.h"

#include <cstddef>
#include <utility>

#include "gpu/kernels/persistent/decode_rows_ends.h"
#include "proto/base/check.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kStepBytes = kDecodeRowsK * 2;                // of a row
constexpr uint32_t kChunkBytes = kStepBytes / kDecodeRowsWarps;  // of a warp: 64 elements of k, a line of memory
constexpr uint32_t kTileRows = 16;                               // of w in a slot
constexpr uint32_t kSlotBytes = kTileRows * kChunkBytes;
constexpr uint32_t kRingBytes = kDecodeRowsSlots * kSlotBytes;  // of a warp
// slots that are taken into registers before a grid barrier is over
constexpr uint32_t kHeld = 2;
constexpr uint32_t kAheadX = 4;  // steps of down's x in registers
constexpr uint32_t kNotHeld = UINT32_MAX;
static_assert(kHeld <= kAheadX);  // down has the first steps apart

// Registers: %t and %g are a lane's place in a matrix of 16x8 (PTX ISA, "mma.m16n8k16"): it has words of rows g and g +
// 8 of w and of row g of x, and sums of rows 2t and 2t + 1.
class RowsWriter : DecodeRowsEnds {
  public:
    explicit RowsWriter(const DecodeRowsProgram& program) : DecodeRowsEnds(program) { CHECK(p_.can_be()); }

    std::string write() {
        declare();
        begin();
        o();
        grid_barrier("o", [&] { hold(kHeld, [&](uint32_t i) { load_gate(i + kDecodeRowsSlots); }); });
        load_normed("gate", false);
        gate_up();
        point_at_qkv();
        grid_barrier("gate", [&] {
            line("@%idle bra held_down;");
            hold(kHeld,
                 [&](uint32_t i) { load_columns("d", i + kDecodeRowsSlots, (i + kDecodeRowsSlots) / p_.blocks()); });
            line("held_down:");
        });
        down();
        line("@%no_qkv bra finished;");
        grid_barrier("down", [&] {
            line("setp.gt.u32 %more, %count, 1; setp.eq.u32 %is, %count, 0; @%is bra held_qkv;");
            hold(kHeld, [&](uint32_t i) {
                load_qkv(i + kDecodeRowsSlots, i + kDecodeRowsSlots < steps(p_.hidden) ? "" : "@%more ");
            });
            line("held_qkv:");
        });
        load_normed("qkv", true);
        qkv();
        line("finished: cp.async.wait_group 0;");
        line("setp.ne.u32 %is, %part, 0; @%is bra done; setp.ne.u32 %is, %thread, 0; @%is bra done; "
             "st.relaxed.gpu.global.u32 [%sync], %target;");
        line("done: ret;");
        line("}}");
        return std::move(text_);
    }

  private:
    const char* type() const { return p_.type == ScalarType::kBf16 ? "bf16" : "f16"; }
    static uint32_t steps(uint32_t k) { return k / kDecodeRowsK; }
    uint32_t o_slots() const { return steps(p_.q) * p_.blocks(); }
    uint32_t down_slots() const { return steps(p_.ffn) * p_.blocks(); }

    void declare() {
        begin_entry(kDecodeRowsThreads, sizeof(DecodeRowsParams));
        line(".minnctapersm 1");
        line("{{");
        line(".shared .align 128 .b8 slots[{}];", kDecodeRowsWarps * kRingBytes);
        line(".shared .align 128 .b8 sums[{}];", kDecodeRowsSumBytes);
        line(".shared .align 16 .b8 inverses[32];");
        line(".shared .align 16 .b8 factors[32];");
        line(".reg .pred %is, %first_lane, %valid, %valid0, %valid1, %store0, %store1, %no_qkv, %idle, %more;");
        line(".reg .b32 %thread, %warp, %lane, %t, %g, %part, %row, %n_rows, %column, %entry, %first, %count, %n, %i, "
             "%j;");
        line(".reg .b32 %slot, %ring, %ring_end, %read_at, %write_at, %into, %at, %other, %from, %to, %tile_to, %turn, "
             "%target, %seen, %polls, %polls_max;");
        line(".reg .b64 %policy, %in_row, %in_line, %x_at, %ptr, %wide, %out, %sync, %arrivals, %stream_at, %xn_at, "
             "%squares_at;");
        line(".reg .b64 %o<8>, %d<8>, %gate, %up, %q<4>;");
        line(".reg .f32 %a<8>, %b<8>, %v<8>, %s, %s0, %s1, %stream0, %stream1, %f, %f0, %f1, %gamma_post, %gamma_next, "
             "%bias_o, %bias_down, %g_sum, %u_sum, %e;");
        line(".reg .b32 %w<16>, %p<{}>, %x<{}>;", kHeld * 16, steps(std::max(p_.hidden, p_.q)) * 8);
        line(".reg .b16 %h;");
    }

    void begin() {
        line("mov.u32 %thread, %tid.x; shr.u32 %warp, %thread, 5; and.b32 %lane, %thread, 31; and.b32 %t, %lane, 3; "
             "shr.u32 %g, %lane, 2; mov.u32 %part, %ctaid.x;");
        line("setp.eq.u32 %first_lane, %lane, 0; setp.ge.u32 %idle, %part, {}; "
             "createpolicy.fractional.L2::evict_first.b64 %policy, 1.0;",
             p_.parts());
        // this lane's first words of a step
        line("mul.wide.u32 %in_row, %warp, {}; mul.wide.u32 %wide, %t, 16; add.u64 %in_row, %in_row, %wide;",
             kChunkBytes);
        line("mov.u32 %i, sums; mad.lo.u32 %from, %lane, 4, %i; mad.lo.u32 %to, %warp, {}, %from; mad.lo.u32 %tile_to, "
             "%warp, {}, %from; mov.u32 %turn, 0;",
             kDecodeRowsSumBytes / kDecodeRowsWarps, kDecodeRowsSumBytes / 2 / kDecodeRowsWarps);
        // A slot: [row][eight chunks of 16 bytes], those of odd rows with their halves exchanged, so that two rows'
        // words are in different banks.
        line("mov.u32 %ring, slots; mad.lo.u32 %ring, %warp, {}, %ring; mov.u32 %slot, %ring; add.u32 %ring_end, "
             "%ring, {};",
             kRingBytes, kRingBytes);
        line("and.b32 %i, %g, 1; shl.b32 %i, %i, 6; shl.b32 %read_at, %t, 4; xor.b32 %read_at, %read_at, %i; "
             "mad.lo.u32 %read_at, %g, {}, %read_at;",
             kChunkBytes);
        // It is written by eight lanes for each row, four rows at once.
        line("shr.u32 %row, %lane, 3; and.b32 %i, %lane, 7; and.b32 %j, %row, 1; shl.b32 %j, %j, 2; xor.b32 %write_at, "
             "%i, %j; shl.b32 %write_at, %write_at, 4; mad.lo.u32 %write_at, %row, {}, %write_at;",
             kChunkBytes);
        line("mul.wide.u32 %in_line, %warp, {}; mul.wide.u32 %wide, %i, 16; add.u64 %in_line, %in_line, %wide;",
             kChunkBytes);
        line("ld.param.u64 %sync, [params+{}]; ld.param.u32 %polls_max, [params+{}]; add.u64 %arrivals, %sync, {};",
             DECODE_ROWS_PARAM(sync), DECODE_ROWS_PARAM(max_polls), offsetof(GridBarrierSync, arrivals));
        load_x(DECODE_ROWS_PARAM(attention), p_.q);
        line("ld.relaxed.gpu.global.u32 %target, [%sync]; ld.relaxed.gpu.global.u32 %seen, [%sync+{}]; setp.ne.u32 "
             "%is, %seen, 0; @%is mov.u32 %polls_max, 0;",
             offsetof(GridBarrierSync, has_given_up));
        line("ld.param.u64 %ptr, [params+{}]; ld.global.u32 %n_rows, [%ptr]; shl.b32 %row, %t, 1; setp.lt.u32 %valid0, "
             "%row, %n_rows; add.u32 %i, %row, 1; setp.lt.u32 %valid1, %i, %n_rows;",
             DECODE_ROWS_PARAM(n_rows));
        point_at_columns();
        line("setp.ge.u32 %is, %thread, 8; @%is bra told;");
        line("ld.param.u64 %ptr, [params+{}]; mul.wide.u32 %wide, %thread, 4; add.u64 %ptr, %ptr, %wide; ld.global.f32 "
             "%s, [%ptr]; mov.u32 %at, inverses; mad.lo.u32 %at, %thread, 4, %at; st.shared.f32 [%at], %s;",
             DECODE_ROWS_PARAM(norms));
        line("told:");  // a barrier follows before anybody reads it
        point_at_matrices();
    }

    // %x: all of k, of this lane's row.
    void load_x(size_t param, uint32_t k) {
        line("ld.param.u64 %x_at, [params+{}]; mul.wide.u32 %wide, %g, {}; add.u64 %x_at, %x_at, %wide; add.u64 %x_at, "
             "%x_at, %in_row;",
             param, k * 2);
        for (uint32_t s = 0; s < steps(k); ++s) load_x_step(s, s);
    }
    // xn, and the factors that the norm deferred.
    void load_normed(const char* name, bool tells) {
        find_norm();
        load_x(DECODE_ROWS_PARAM(xn), p_.hidden);
        norm(name, tells);
    }
    void load_x_step(uint32_t set, uint32_t from_here) {
        for (uint32_t c = 0; c < 2; ++c) {
            const uint32_t r = set * 8 + c * 4;
            line("ld.global.cg.v4.b32 {{%x{}, %x{}, %x{}, %x{}}}, [%x_at+{}];", r, r + 1, r + 2, r + 3,
                 from_here * kStepBytes + c * 64);
        }
    }

    // What the end of o and down wants, of column %column: warp w has, of block w / 2, eight columns, a lane one of
    // them and two rows.
    void point_at_columns() {
        line("shr.u32 %i, %warp, 1; and.b32 %j, %warp, 1; mad.lo.u32 %n, %j, 8, %g;");
        line("setp.lt.u32 %valid, %n, {}; setp.lt.and.u32 %valid, %i, {}, %valid;", p_.block_rows(), p_.blocks());
        line("mul.lo.u32 %column, %part, {}; mad.lo.u32 %column, %i, {}, %column; add.u32 %column, %column, %n; "
             "setp.lt.and.u32 %valid, %column, {}, %valid;",
             p_.blocks() * p_.block_rows(), p_.block_rows(), p_.hidden);
        line("and.pred %store0, %valid, %valid0; and.pred %store1, %valid, %valid1;");
        line("mul.wide.u32 %wide, %column, 4;");
        const auto vector = [&](const char* name, size_t param) {
            line("mov.f32 {0}, 0f00000000; ld.param.u64 %ptr, [params+{1}]; setp.ne.and.u64 %is, %ptr, 0, %valid; "
                 "add.u64 %ptr, %ptr, %wide; @%is ld.global.f32 {0}, [%ptr];",
                 name, param);
        };
        vector("%gamma_post", DECODE_ROWS_PARAM(post_attention_norm));
        vector("%gamma_next", DECODE_ROWS_PARAM(next_norm));
        vector("%bias_o", DECODE_ROWS_PARAM(o_bias));
        vector("%bias_down", DECODE_ROWS_PARAM(down_bias));
        line("mad.lo.u32 %i, %row, {}, %column; mul.wide.u32 %wide, %i, 4; ld.param.u64 %stream_at, [params+{}]; "
             "add.u64 %stream_at, %stream_at, %wide;",
             p_.hidden, DECODE_ROWS_PARAM(stream));
        line("mov.f32 %stream0, 0f00000000; mov.f32 %stream1, 0f00000000; @%store0 ld.global.f32 %stream0, "
             "[%stream_at]; @%store1 ld.global.f32 %stream1, [%stream_at+{}];",
             p_.hidden * 4);
        line("mul.wide.u32 %wide, %i, 2; ld.param.u64 %xn_at, [params+{}]; add.u64 %xn_at, %xn_at, %wide;",
             DECODE_ROWS_PARAM(xn));
        // Squares: [row][entry]
        line("mad.lo.u32 %entry, %part, {}, %warp; mad.lo.u32 %i, %row, {}, %entry; mul.wide.u32 %wide, %i, 4; add.u64 "
             "%squares_at, %sync, %wide; add.u64 %squares_at, %squares_at, {};",
             2 * p_.blocks(), p_.square_entries(), sizeof(GridBarrierSync));
    }

    // Where this lane's 16 bytes of a row in the first step lie. %n: the row.
    void point_at(const std::string& into, size_t param, uint32_t k) {
        line("ld.param.u64 %ptr, [params+{0}]; mul.wide.u32 %wide, %n, {1}; add.u64 {2}, %ptr, %wide; add.u64 {2}, "
             "{2}, %in_line;",
             param, k * 2, into);
    }
    // Of four rows at once: rows of a tile that are none are its last one.
    // %first: the tile's first row
    void point_at_rows(const std::string& into, uint32_t rows, uint32_t all, size_t param, uint32_t k) {
        for (uint32_t i = 0; i < 4; ++i) {
            line("shr.u32 %n, %lane, 3; add.u32 %n, %n, {}; min.u32 %n, %n, {}; add.u32 %n, %n, %first; min.u32 %n, "
                 "%n, {};",
                 4 * i, rows - 1, all - 1);
            point_at(lorad::format("{}{}", into, i), param, k);
        }
    }
    void point_at_matrices() {
        const auto columns = [&](const char* name, size_t param, uint32_t k) {
            for (uint32_t b = 0; b < p_.blocks(); ++b) {
                line("mul.lo.u32 %first, %part, {}; add.u32 %first, %first, {};", p_.blocks() * p_.block_rows(),
                     b * p_.block_rows());
                point_at_rows(lorad::format("%{}", name), p_.block_rows(), p_.hidden, param, k);
                if (b == 0 && p_.blocks() > 1) {
                    // the first block's are the last four
                    for (uint32_t i = 0; i < 4; ++i) line("mov.u64 %{0}{1}, %{0}{2};", name, 4 + i, i);
                }
            }
        };
        columns("o", DECODE_ROWS_PARAM(o), p_.q);
        columns("d", DECODE_ROWS_PARAM(down), p_.ffn);
        tiles(p_.ffn / 8);
        line("shr.u32 %n, %lane, 3; mad.lo.u32 %n, %first, 8, %n;");
        point_at("%gate", DECODE_ROWS_PARAM(gate_up), p_.hidden);
        line("add.u64 %up, %gate, {};", uint64_t{p_.ffn} * p_.hidden * 2);
        line("ld.param.u64 %ptr, [params+{}]; setp.eq.u64 %no_qkv, %ptr, 0;", DECODE_ROWS_PARAM(qkv));
    }
    // Without them its words are those of down again, which are not used.
    void point_at_qkv() {
        tiles(ceil_div(p_.qkv, p_.qkv_rows()));
        line("mov.u32 %j, %first; mul.lo.u32 %first, %first, {};", p_.qkv_rows());
        point_at_rows("%q", p_.qkv_rows(), p_.qkv, DECODE_ROWS_PARAM(qkv), p_.hidden);
        line("mov.u32 %first, %j;");
        for (uint32_t i = 0; i < 4; ++i) line("@%no_qkv mov.u64 %q{0}, %d{0};", i);
    }

    // %first, %count: the tiles of this workgroup, neighbours.
    void tiles(uint32_t all) {
        line("mul.lo.u32 %first, %part, {0}; div.u32 %first, %first, {1}; add.u32 %count, %part, 1; mul.lo.u32 %count, "
             "%count, {0}; div.u32 %count, %count, {1}; sub.u32 %count, %count, %first;",
             all, p_.workgroups);
    }

    // ---- Weights ----

    // Four rows of a slot.
    void load_four(uint32_t four, const std::string& from, uint64_t offset, const char* predicate) {
        line("{}cp.async.cg.shared.global.L2::cache_hint [%into+{}], [{}+{}], 16, %policy;", predicate,
             four * 4 * kChunkBytes, from, offset);
    }
    // Of o or down. position: the slot's number, of which the block follows; step: from where the pointers are.
    void load_columns(const char* name, uint32_t position, uint32_t step, const char* predicate = "") {
        const uint32_t b = position % p_.blocks(), first = p_.blocks() > 1 && b == 0 ? 4 : 0;
        for (uint32_t i = 0; i < ceil_div(p_.block_rows(), 4u); ++i)
            load_four(i, lorad::format("%{}{}", name, first + i), uint64_t{step} * kStepBytes, predicate);
    }
    // A slot of the tile at hand, or of the next one.
    void load_gate(uint32_t position, const char* predicate = "") {
        const uint64_t at = position / steps(p_.hidden) * 8 * p_.hidden * 2 + position % steps(p_.hidden) * kStepBytes;
        for (uint32_t i = 0; i < 4; ++i)
            load_four(i, i < 2 ? "%gate" : "%up", at + i % 2 * 4 * p_.hidden * 2, predicate);
    }
    void load_qkv(uint32_t position, const char* predicate = "") {
        const uint64_t at =
            position / steps(p_.hidden) * p_.qkv_rows() * p_.hidden * 2 + position % steps(p_.hidden) * kStepBytes;
        for (uint32_t i = 0; i < ceil_div(p_.qkv_rows(), 4u); ++i)
            load_four(i, lorad::format("%q{}", i), at, predicate);
    }
    void next_slot() {
        line("add.u32 %slot, %slot, {}; setp.eq.u32 %is, %slot, %ring_end; selp.b32 %slot, %ring, %slot, %is;",
             kSlotBytes);
    }
    template <typename Load>
    void fill_ring(const Load& load) {
        for (uint32_t i = 0; i < kDecodeRowsSlots; ++i) {
            line("add.u32 %into, %slot, %write_at;");
            load(i);
            line("cp.async.commit_group;");
            next_slot();
        }
    }

    // The next slot's words to registers, and what comes into its place.
    template <typename Load>
    void fetch_slot(const char* to, uint32_t r, const Load& load) {
        line("cp.async.wait_group {}; bar.warp.sync 0xffffffff;", kDecodeRowsSlots - 1);
        line("add.u32 %at, %slot, %read_at; xor.b32 %other, %read_at, {0}; add.u32 %other, %slot, %other;",
             kChunkBytes / 2);
        for (uint32_t i = 0; i < 4; ++i) {
            line("ld.shared.v4.b32 {{{0}{1}, {0}{2}, {0}{3}, {0}{4}}}, [{5}+{6}];", to, r + 4 * i, r + 4 * i + 1,
                 r + 4 * i + 2, r + 4 * i + 3, i % 2 == 0 ? "%at" : "%other", i / 2 * 8 * kChunkBytes);
        }
        line("bar.warp.sync 0xffffffff; add.u32 %into, %slot, %write_at;");
        load();
        line("cp.async.commit_group;");
        next_slot();
    }
    // The first slots of what is next to registers, so that more of it is on its way during a grid barrier.
    template <typename Load>
    void hold(uint32_t n, const Load& load) {
        for (uint32_t i = 0; i < n; ++i) fetch_slot("%p", 16 * i, [&] { load(i); });
    }
    // Slot number i since the last grid barrier, its rows by x of eight registers, to the sums of a block.
    template <typename Load>
    void take_slot(uint32_t i, uint32_t block, uint32_t x, const Load& load) {
        const bool is_held = i < kHeld;
        if (!is_held) fetch_slot("%w", 0, load);
        const char* rows = is_held ? "%p" : "%w";
        const uint32_t w = is_held ? 16 * i : 0;
        for (uint32_t half = 0; half < 2; ++half) {
            mma("%a", block * 4, rows, w + 2 * half, x + 2 * half);
            mma("%b", block * 4, rows, w + 4 + 2 * half, x + 4 + 2 * half);
        }
    }
    // w: of row g, eight words further of row g + 8.
    void mma(const char* sums, uint32_t s, const char* rows, uint32_t w, uint32_t x) {
        line("mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32 {{{1}{2}, {1}{3}, {1}{4}, {1}{5}}}, {{{10}{6}, "
             "{10}{7}, {10}{8}, {10}{9}}}, {{%x{11}, %x{12}}}, {{{1}{2}, {1}{3}, {1}{4}, {1}{5}}};",
             type(), sums, s, s + 1, s + 2, s + 3, w, w + 8, w + 1, w + 9, rows, x, x + 1);
    }

    void clear(uint32_t n) {
        for (uint32_t i = 0; i < n; ++i) line("mov.f32 %a{0}, 0f00000000; mov.f32 %b{0}, 0f00000000;", i);
    }

    // ---- The four products ----

    void o() {
        line("@%idle bra no_o;");
        fill_ring([&](uint32_t i) { load_columns("o", i, i / p_.blocks()); });
        clear(4 * p_.blocks());
        for (uint32_t i = 0; i < o_slots(); ++i) {
            take_slot(kNotHeld, i % p_.blocks(), i / p_.blocks() * 8, [&] {
                const uint32_t next = i + kDecodeRowsSlots;
                if (next < o_slots())
                    load_columns("o", next, next / p_.blocks());
                else
                    load_gate(next - o_slots());
            });
        }
        residual("o", "post", true);
        line("bra o_done;");
        line("no_o:");
        fill_ring([&](uint32_t i) { load_gate(i); });
        line("o_done:");
    }

    template <typename Load>
    void tile(bool is_first, const Load& load) {
        clear(4);
        for (uint32_t s = 0; s < steps(p_.hidden); ++s)
            take_slot(is_first ? s : kNotHeld, 0, s * 8, [&] { load(s + kDecodeRowsSlots); });
    }

    void gate_up() {
        tiles(p_.ffn / 8);
        tile(true, [&](uint32_t position) { load_gate(position); });
        line("bra sum_gate;");
        line("pass_gate: setp.ne.u32 %more, %count, 1;");
        tile(false, [&](uint32_t position) {
            if (position < steps(p_.hidden)) {
                load_gate(position);
            } else {
                const uint32_t next = position - steps(p_.hidden);
                load_gate(position, "@%more ");
                load_columns("d", next, next / p_.blocks(), "@!%more ");
            }
        });
        line("sum_gate: add.u64 %gate, %gate, {0}; add.u64 %up, %up, {0};", 8 * p_.hidden * 2);
        share_tile_sums();
        line("setp.ge.u32 %is, %warp, 2; @%is bra kept_gate;");
        add_up_tile("%g_sum", "%warp");
        line("add.u32 %i, %warp, 2;");
        add_up_tile("%u_sum", "%i");
        line("shl.b32 %row, %t, 1; add.u32 %row, %row, %warp; mov.u32 %at, factors; mad.lo.u32 %at, %row, 4, %at; "
             "ld.shared.f32 %f, [%at]; mul.f32 %g_sum, %g_sum, %f; mul.f32 %u_sum, %u_sum, %f;");
        line("mul.f32 %e, %g_sum, 0fbfb8aa3b; ex2.approx.f32 %e, %e; add.f32 %e, %e, 0f3f800000; div.full.f32 %g_sum, "
             "%g_sum, %e; mul.f32 %g_sum, %g_sum, %u_sum;");
        line("setp.lt.u32 %is, %row, %n_rows; shl.b32 %i, %first, 3; add.u32 %i, %i, %g; mad.lo.u32 %i, %row, {}, %i; "
             "mul.wide.u32 %wide, %i, 2; ld.param.u64 %out, [params+{}]; add.u64 %out, %out, %wide;",
             p_.ffn, DECODE_ROWS_PARAM(act));
        store_16(p_.type, "%g_sum", "%out", 0, "%is", false);
        line("kept_gate: add.u32 %first, %first, 1; sub.u32 %count, %count, 1; setp.ne.u32 %is, %count, 0; @%is bra "
             "pass_gate;");
    }

    // x is not in registers but for some steps ahead: a step asks for what takes the place of the last one's.
    void down() {
        line("@%idle bra no_down;");
        const uint32_t n = steps(p_.ffn), slots = down_slots();
        line("ld.param.u64 %x_at, [params+{}]; mul.wide.u32 %wide, %g, {}; add.u64 %x_at, %x_at, %wide; add.u64 %x_at, "
             "%x_at, %in_row;",
             DECODE_ROWS_PARAM(act), p_.ffn * 2);
        for (uint32_t s = 0; s + 1 < kAheadX; ++s) load_x_step(s, s);
        clear(4 * p_.blocks());
        const auto step = [&](uint32_t s, uint32_t from_here, bool is_first) {
            if (s + kAheadX - 1 < n) load_x_step((s + kAheadX - 1) % kAheadX, from_here + kAheadX - 1);
            for (uint32_t b = 0; b < p_.blocks(); ++b) {
                const uint32_t position = s * p_.blocks() + b, next = position + kDecodeRowsSlots;
                take_slot(is_first && position < kHeld ? position : kNotHeld, b, s % kAheadX * 8, [&] {
                    if (next < slots)
                        load_columns("d", next, next / p_.blocks() - s + from_here);
                    else
                        load_qkv(next - slots);
                });
            }
        };
        const auto move_on = [&] {
            line("add.u64 %x_at, %x_at, {};", kAheadX * kStepBytes);
            for (uint32_t i = 0; i < 4 * p_.blocks(); ++i) line("add.u64 %d{0}, %d{0}, {1};", i, kAheadX * kStepBytes);
        };
        // Groups of steps for which all that is asked for is down's own.
        const uint32_t groups = std::min((n - kAheadX) / kAheadX, (slots - kDecodeRowsSlots) / (kAheadX * p_.blocks()));
        for (uint32_t s = 0; s < kAheadX; ++s) step(s, s, true);
        move_on();
        line("mov.u32 %j, {};", groups - 1);
        line("down_group:");
        for (uint32_t s = 0; s < kAheadX; ++s) step(s, s, false);
        move_on();
        line("sub.u32 %j, %j, 1; setp.ne.u32 %is, %j, 0; @%is bra down_group;");
        for (uint32_t s = groups * kAheadX; s < n; ++s) step(s, s - groups * kAheadX, false);
        residual("down", "next", false);
        line("bra down_done;");
        line("no_down: cp.async.wait_group 0;");
        fill_ring([&](uint32_t i) { load_qkv(i); });
        line("down_done:");
    }

    void qkv() {
        line("setp.eq.u32 %is, %count, 0; @%is bra finished;");
        line("setp.ne.u32 %more, %count, 1;");
        const auto load = [&](uint32_t position) { load_qkv(position, position < steps(p_.hidden) ? "" : "@%more "); };
        tile(true, load);
        line("bra sum_qkv;");
        line("pass_qkv: setp.ne.u32 %more, %count, 1;");
        tile(false, load);
        line("sum_qkv:");
        for (uint32_t i = 0; i < 4; ++i) line("add.u64 %q{0}, %q{0}, {1};", i, p_.qkv_rows() * p_.hidden * 2);
        share_tile_sums();
        add_up_tile("%s", "%warp");
        line("shl.b32 %row, %t, 1; and.b32 %i, %warp, 1; add.u32 %row, %row, %i; mov.u32 %at, factors; mad.lo.u32 %at, "
             "%row, 4, %at; ld.shared.f32 %f, [%at]; mul.f32 %s, %s, %f;");
        line("shr.u32 %i, %warp, 1; mad.lo.u32 %i, %i, 8, %g; setp.lt.u32 %is, %i, {0}; mad.lo.u32 %i, %first, {0}, "
             "%i; setp.lt.and.u32 %is, %i, {1}, %is; setp.lt.and.u32 %is, %row, %n_rows, %is;",
             p_.qkv_rows(), p_.qkv);
        line("mad.lo.u32 %i, %row, {}, %i; mul.wide.u32 %wide, %i, 4; ld.param.u64 %out, [params+{}]; add.u64 %out, "
             "%out, %wide; @%is st.global.f32 [%out], %s;",
             round_up(p_.qkv, 64u), DECODE_ROWS_PARAM(y));
        line("add.u32 %first, %first, 1; sub.u32 %count, %count, 1; setp.ne.u32 %is, %count, 0; @%is bra pass_qkv;");
    }
};

}  // namespace

std::string decode_rows_text(const DecodeRowsProgram& program) { return RowsWriter(program).write(); }

}  // namespace lorad::gpu
