#include "gpu/kernels/decode_rows_text.h"

#include <bit>
#include <cstddef>
#include <utility>

#include "gpu/kernels/deferred_norm.h"
#include "gpu/kernels/warpgroup_writer.h"
#include "proto/base/check.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kWarps = kDecodeRowsThreads / 32;
constexpr uint32_t kStepBytes = kDecodeRowsK * 2;      // of a row
constexpr uint32_t kChunkBytes = kStepBytes / kWarps;  // of a warp: 64 elements of k, a line of memory
constexpr uint32_t kTileRows = 16;                     // of w in a slot
constexpr uint32_t kSlotBytes = kTileRows * kChunkBytes;
constexpr uint32_t kRingBytes = kDecodeRowsSlots * kSlotBytes;  // of a warp
// [warp][component][lane] f32: eight components of o and down, or, in two places in turns, four of other tiles.
constexpr uint32_t kSumBytes = kWarps * 8 * 128;
constexpr uint32_t kHeld = 2;    // slots that are taken into registers before a meeting is over
constexpr uint32_t kAheadX = 4;  // steps of down's x in registers
constexpr uint32_t kNotHeld = UINT32_MAX;
static_assert(kHeld <= kAheadX);  // down has the first steps apart

#define PARAM(member) offsetof(DecodeRowsParams, member)

// Registers: %t and %g are a lane's place in a matrix of 16x8 (PTX ISA, "mma.m16n8k16"): it has words of rows g and g + 8 of w and of row g of x, and sums of rows 2t and 2t + 1.
class RowsWriter : WarpgroupWriter {
  public:
    explicit RowsWriter(const DecodeRowsProgram& program) : p_(program) { CHECK(p_.can_be()); }

    std::string write() {
        declare();
        begin();
        o();
        meet("o", [&] { hold(kHeld, [&](uint32_t i) { load_gate(i + kDecodeRowsSlots); }); });
        find_norm();
        load_x(PARAM(xn), p_.hidden);
        norm("gate", false);
        gate_up();
        point_at_qkv();
        meet("gate", [&] {
            line("@%idle bra held_down;");
            hold(kHeld, [&](uint32_t i) { load_columns("d", i + kDecodeRowsSlots, (i + kDecodeRowsSlots) / p_.blocks()); });
            line("held_down:");
        });
        down();
        line("@%no_qkv bra finished;");
        meet("down", [&] {
            line("setp.gt.u32 %more, %count, 1; setp.eq.u32 %is, %count, 0; @%is bra held_qkv;");
            hold(kHeld, [&](uint32_t i) { load_qkv(i + kDecodeRowsSlots, i + kDecodeRowsSlots < steps(p_.hidden) ? "" : "@%more "); });
            line("held_qkv:");
        });
        find_norm();
        load_x(PARAM(xn), p_.hidden);
        norm("qkv", true);
        qkv();
        line("finished: cp.async.wait_group 0;");
        line("setp.ne.u32 %is, %part, 0; @%is bra done; setp.ne.u32 %is, %thread, 0; @%is bra done; st.relaxed.gpu.global.u32 [%sync], %target;");
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
        line(".shared .align 128 .b8 slots[{}];", kWarps * kRingBytes);
        line(".shared .align 128 .b8 sums[{}];", kSumBytes);
        line(".shared .align 16 .b8 inverses[32];");
        line(".shared .align 16 .b8 factors[32];");
        line(".reg .pred %is, %first_lane, %valid, %valid0, %valid1, %store0, %store1, %no_qkv, %idle, %more;");
        line(".reg .b32 %thread, %warp, %lane, %t, %g, %part, %row, %n_rows, %column, %entry, %first, %count, %n, %i, %j;");
        line(".reg .b32 %slot, %ring, %ring_end, %read_at, %write_at, %into, %at, %other, %from, %to, %tile_to, %turn, %target, %seen, %polls, %polls_max;");
        line(".reg .b64 %policy, %in_row, %in_line, %x_at, %ptr, %wide, %out, %sync, %arrivals, %stream_at, %xn_at, %squares_at;");
        line(".reg .b64 %o<8>, %d<8>, %gate, %up, %q<4>;");
        line(".reg .f32 %a<8>, %b<8>, %v<8>, %s, %s0, %s1, %stream0, %stream1, %f, %f0, %f1, %gamma_post, %gamma_next, %bias_o, %bias_down, %g_sum, %u_sum, %e;");
        line(".reg .b32 %w<16>, %p<{}>, %x<{}>;", kHeld * 16, steps(std::max(p_.hidden, p_.q)) * 8);
        line(".reg .b16 %h;");
    }

    void begin() {
        line("mov.u32 %thread, %tid.x; shr.u32 %warp, %thread, 5; and.b32 %lane, %thread, 31; and.b32 %t, %lane, 3; shr.u32 %g, %lane, 2; mov.u32 %part, %ctaid.x;");
        line("setp.eq.u32 %first_lane, %lane, 0; setp.ge.u32 %idle, %part, {}; createpolicy.fractional.L2::evict_first.b64 %policy, 1.0;", p_.parts());
        line("mul.wide.u32 %in_row, %warp, {}; mul.wide.u32 %wide, %t, 16; add.u64 %in_row, %in_row, %wide;", kChunkBytes);  // this lane's first words of a step
        line("mov.u32 %i, sums; mad.lo.u32 %from, %lane, 4, %i; mad.lo.u32 %to, %warp, {}, %from; mad.lo.u32 %tile_to, %warp, {}, %from; mov.u32 %turn, 0;", kSumBytes / kWarps, kSumBytes / 2 / kWarps);
        // A slot: [row][eight chunks of 16 bytes], those of odd rows with their halves exchanged, so that two rows' words are in different banks.
        line("mov.u32 %ring, slots; mad.lo.u32 %ring, %warp, {}, %ring; mov.u32 %slot, %ring; add.u32 %ring_end, %ring, {};", kRingBytes, kRingBytes);
        line("and.b32 %i, %g, 1; shl.b32 %i, %i, 6; shl.b32 %read_at, %t, 4; xor.b32 %read_at, %read_at, %i; mad.lo.u32 %read_at, %g, {}, %read_at;", kChunkBytes);
        // It is written by eight lanes for each row, four rows at once.
        line("shr.u32 %row, %lane, 3; and.b32 %i, %lane, 7; and.b32 %j, %row, 1; shl.b32 %j, %j, 2; xor.b32 %write_at, %i, %j; shl.b32 %write_at, %write_at, 4; mad.lo.u32 %write_at, %row, {}, %write_at;", kChunkBytes);
        line("mul.wide.u32 %in_line, %warp, {}; mul.wide.u32 %wide, %i, 16; add.u64 %in_line, %in_line, %wide;", kChunkBytes);
        line("ld.param.u64 %sync, [params+{}]; ld.param.u32 %polls_max, [params+{}]; add.u64 %arrivals, %sync, {};", PARAM(sync), PARAM(max_polls), offsetof(DecodeRowsSync, arrivals));
        load_x(PARAM(attention), p_.q);
        line("ld.relaxed.gpu.global.u32 %target, [%sync]; ld.relaxed.gpu.global.u32 %seen, [%sync+{}]; setp.ne.u32 %is, %seen, 0; @%is mov.u32 %polls_max, 0;", offsetof(DecodeRowsSync, has_given_up));
        line("ld.param.u64 %ptr, [params+{}]; ld.global.u32 %n_rows, [%ptr]; shl.b32 %row, %t, 1; setp.lt.u32 %valid0, %row, %n_rows; add.u32 %i, %row, 1; setp.lt.u32 %valid1, %i, %n_rows;", PARAM(n_rows));
        point_at_columns();
        line("setp.ge.u32 %is, %thread, 8; @%is bra told;");
        line("ld.param.u64 %ptr, [params+{}]; mul.wide.u32 %wide, %thread, 4; add.u64 %ptr, %ptr, %wide; ld.global.f32 %s, [%ptr]; mov.u32 %at, inverses; mad.lo.u32 %at, %thread, 4, %at; st.shared.f32 [%at], %s;",
             PARAM(norms));
        line("told:");  // a barrier follows before anybody reads it
        point_at_matrices();
    }

    // %x: all of k, of this lane's row.
    void load_x(size_t param, uint32_t k) {
        line("ld.param.u64 %x_at, [params+{}]; mul.wide.u32 %wide, %g, {}; add.u64 %x_at, %x_at, %wide; add.u64 %x_at, %x_at, %in_row;", param, k * 2);
        for (uint32_t s = 0; s < steps(k); s++) load_step_of_x(s, s);
    }
    void load_step_of_x(uint32_t set, uint32_t from_here) {
        for (uint32_t c = 0; c < 2; c++) {
            const uint32_t r = set * 8 + c * 4;
            line("ld.global.cg.v4.b32 {{%x{}, %x{}, %x{}, %x{}}}, [%x_at+{}];", r, r + 1, r + 2, r + 3, from_here * kStepBytes + c * 64);
        }
    }

    // What the end of o and down wants, of column %column: warp w has, of block w / 2, eight columns, a lane one of them and two rows.
    void point_at_columns() {
        line("shr.u32 %i, %warp, 1; and.b32 %j, %warp, 1; mad.lo.u32 %n, %j, 8, %g;");
        line("setp.lt.u32 %valid, %n, {}; setp.lt.and.u32 %valid, %i, {}, %valid;", p_.block_rows(), p_.blocks());
        line("mul.lo.u32 %column, %part, {}; mad.lo.u32 %column, %i, {}, %column; add.u32 %column, %column, %n; setp.lt.and.u32 %valid, %column, {}, %valid;", p_.blocks() * p_.block_rows(),
             p_.block_rows(), p_.hidden);
        line("and.pred %store0, %valid, %valid0; and.pred %store1, %valid, %valid1;");
        line("mul.wide.u32 %wide, %column, 4;");
        const auto vector = [&](const char* name, size_t param) {
            line("mov.f32 {0}, 0f00000000; ld.param.u64 %ptr, [params+{1}]; setp.ne.and.u64 %is, %ptr, 0, %valid; add.u64 %ptr, %ptr, %wide; @%is ld.global.f32 {0}, [%ptr];", name, param);
        };
        vector("%gamma_post", PARAM(post_attention_norm));
        vector("%gamma_next", PARAM(next_norm));
        vector("%bias_o", PARAM(o_bias));
        vector("%bias_down", PARAM(down_bias));
        line("mad.lo.u32 %i, %row, {}, %column; mul.wide.u32 %wide, %i, 4; ld.param.u64 %stream_at, [params+{}]; add.u64 %stream_at, %stream_at, %wide;", p_.hidden, PARAM(stream));
        line("mov.f32 %stream0, 0f00000000; mov.f32 %stream1, 0f00000000; @%store0 ld.global.f32 %stream0, [%stream_at]; @%store1 ld.global.f32 %stream1, [%stream_at+{}];", p_.hidden * 4);
        line("mul.wide.u32 %wide, %i, 2; ld.param.u64 %xn_at, [params+{}]; add.u64 %xn_at, %xn_at, %wide;", PARAM(xn));
        // Squares: [row][entry]
        line("mad.lo.u32 %entry, %part, {}, %warp; mad.lo.u32 %i, %row, {}, %entry; mul.wide.u32 %wide, %i, 4; add.u64 %squares_at, %sync, %wide; add.u64 %squares_at, %squares_at, {};",
             2 * p_.blocks(), p_.square_entries(), sizeof(DecodeRowsSync));
    }

    // Where this lane's 16 bytes of a row in the first step lie. %n: the row.
    void point_at(const std::string& into, size_t param, uint32_t k) {
        line("ld.param.u64 %ptr, [params+{0}]; mul.wide.u32 %wide, %n, {1}; add.u64 {2}, %ptr, %wide; add.u64 {2}, {2}, %in_line;", param, k * 2, into);
    }
    // Of four rows at once: rows of a tile that are none are its last one.
    void point_at_rows(const std::string& into, uint32_t rows, uint32_t all, size_t param, uint32_t k) {  // %first: the tile's first row
        for (uint32_t i = 0; i < 4; i++) {
            line("shr.u32 %n, %lane, 3; add.u32 %n, %n, {}; min.u32 %n, %n, {}; add.u32 %n, %n, %first; min.u32 %n, %n, {};", 4 * i, rows - 1, all - 1);
            point_at(lorad::format("{}{}", into, i), param, k);
        }
    }
    void point_at_matrices() {
        const auto columns = [&](const char* name, size_t param, uint32_t k) {
            for (uint32_t b = 0; b < p_.blocks(); b++) {
                line("mul.lo.u32 %first, %part, {}; add.u32 %first, %first, {};", p_.blocks() * p_.block_rows(), b * p_.block_rows());
                point_at_rows(lorad::format("%{}", name), p_.block_rows(), p_.hidden, param, k);
                if (b == 0 && p_.blocks() > 1) {
                    for (uint32_t i = 0; i < 4; i++) line("mov.u64 %{0}{1}, %{0}{2};", name, 4 + i, i);  // the first block's are the last four
                }
            }
        };
        columns("o", PARAM(o), p_.q);
        columns("d", PARAM(down), p_.ffn);
        tiles(p_.ffn / 8);
        line("shr.u32 %n, %lane, 3; mad.lo.u32 %n, %first, 8, %n;");
        point_at("%gate", PARAM(gate_up), p_.hidden);
        line("add.u64 %up, %gate, {};", uint64_t{p_.ffn} * p_.hidden * 2);
        line("ld.param.u64 %ptr, [params+{}]; setp.eq.u64 %no_qkv, %ptr, 0;", PARAM(qkv));
    }
    // Without them its words are those of down again, which are not used.
    void point_at_qkv() {
        tiles(ceil_div(p_.qkv, p_.qkv_rows()));
        line("mov.u32 %j, %first; mul.lo.u32 %first, %first, {};", p_.qkv_rows());
        point_at_rows("%q", p_.qkv_rows(), p_.qkv, PARAM(qkv), p_.hidden);
        line("mov.u32 %first, %j;");
        for (uint32_t i = 0; i < 4; i++) line("@%no_qkv mov.u64 %q{0}, %d{0};", i);
    }

    // %first, %count: the tiles of this workgroup, neighbours.
    void tiles(uint32_t all) {
        line("mul.lo.u32 %first, %part, {0}; div.u32 %first, %first, {1}; add.u32 %count, %part, 1; mul.lo.u32 %count, %count, {0}; div.u32 %count, %count, {1}; sub.u32 %count, %count, %first;", all,
             p_.workgroups);
    }

    // ---- Weights ----

    // Four rows of a slot.
    void load_four(uint32_t four, const std::string& from, uint64_t offset, const char* predicate) {
        line("{}cp.async.cg.shared.global.L2::cache_hint [%into+{}], [{}+{}], 16, %policy;", predicate, four * 4 * kChunkBytes, from, offset);
    }
    // Of o or down. position: the slot's number, of which the block follows; step: from where the pointers are.
    void load_columns(const char* name, uint32_t position, uint32_t step, const char* predicate = "") {
        const uint32_t b = position % p_.blocks(), first = p_.blocks() > 1 && b == 0 ? 4 : 0;
        for (uint32_t i = 0; i < ceil_div(p_.block_rows(), 4u); i++) load_four(i, lorad::format("%{}{}", name, first + i), uint64_t{step} * kStepBytes, predicate);
    }
    // A slot of the tile at hand, or of the next one.
    void load_gate(uint32_t position, const char* predicate = "") {
        const uint64_t at = position / steps(p_.hidden) * 8 * p_.hidden * 2 + position % steps(p_.hidden) * kStepBytes;
        for (uint32_t i = 0; i < 4; i++) load_four(i, i < 2 ? "%gate" : "%up", at + i % 2 * 4 * p_.hidden * 2, predicate);
    }
    void load_qkv(uint32_t position, const char* predicate = "") {
        const uint64_t at = position / steps(p_.hidden) * p_.qkv_rows() * p_.hidden * 2 + position % steps(p_.hidden) * kStepBytes;
        for (uint32_t i = 0; i < ceil_div(p_.qkv_rows(), 4u); i++) load_four(i, lorad::format("%q{}", i), at, predicate);
    }
    void next_slot() { line("add.u32 %slot, %slot, {}; setp.eq.u32 %is, %slot, %ring_end; selp.b32 %slot, %ring, %slot, %is;", kSlotBytes); }
    template <typename Load>
    void fill_ring(const Load& load) {
        for (uint32_t i = 0; i < kDecodeRowsSlots; i++) {
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
        line("add.u32 %at, %slot, %read_at; xor.b32 %other, %read_at, {0}; add.u32 %other, %slot, %other;", kChunkBytes / 2);
        for (uint32_t i = 0; i < 4; i++) {
            line("ld.shared.v4.b32 {{{0}{1}, {0}{2}, {0}{3}, {0}{4}}}, [{5}+{6}];", to, r + 4 * i, r + 4 * i + 1, r + 4 * i + 2, r + 4 * i + 3, i % 2 == 0 ? "%at" : "%other", i / 2 * 8 * kChunkBytes);
        }
        line("bar.warp.sync 0xffffffff; add.u32 %into, %slot, %write_at;");
        load();
        line("cp.async.commit_group;");
        next_slot();
    }
    // The first slots of what is next to registers, so that more of it is on its way while workgroups meet.
    template <typename Load>
    void hold(uint32_t n, const Load& load) {
        for (uint32_t i = 0; i < n; i++) fetch_slot("%p", 16 * i, [&] { load(i); });
    }
    // Slot number i since the last meeting, its rows by x of eight registers, to the sums of a block.
    template <typename Load>
    void take_slot(uint32_t i, uint32_t block, uint32_t x, const Load& load) {
        const bool is_held = i < kHeld;
        if (!is_held) fetch_slot("%w", 0, load);
        const char* rows = is_held ? "%p" : "%w";
        const uint32_t w = is_held ? 16 * i : 0;
        for (uint32_t half = 0; half < 2; half++) {
            mma("%a", block * 4, rows, w + 2 * half, x + 2 * half);
            mma("%b", block * 4, rows, w + 4 + 2 * half, x + 4 + 2 * half);
        }
    }
    // w: of row g, eight words further of row g + 8.
    void mma(const char* sums, uint32_t s, const char* rows, uint32_t w, uint32_t x) {
        line("mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32 {{{1}{2}, {1}{3}, {1}{4}, {1}{5}}}, {{{10}{6}, {10}{7}, {10}{8}, {10}{9}}}, {{%x{11}, %x{12}}}, {{{1}{2}, {1}{3}, {1}{4}, {1}{5}}};", type(), sums, s,
             s + 1, s + 2, s + 3, w, w + 8, w + 1, w + 9, rows, x, x + 1);
    }

    void clear(uint32_t n) {
        for (uint32_t i = 0; i < n; i++) line("mov.f32 %a{0}, 0f00000000; mov.f32 %b{0}, 0f00000000;", i);
    }

    // ---- The four products ----

    void o() {
        line("@%idle bra no_o;");
        fill_ring([&](uint32_t i) { load_columns("o", i, i / p_.blocks()); });
        clear(4 * p_.blocks());
        for (uint32_t i = 0; i < o_slots(); i++) {
            take_slot(kNotHeld, i % p_.blocks(), i / p_.blocks() * 8, [&] {
                const uint32_t next = i + kDecodeRowsSlots;
                if (next < o_slots()) load_columns("o", next, next / p_.blocks());
                else load_gate(next - o_slots());
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
        for (uint32_t s = 0; s < steps(p_.hidden); s++) take_slot(is_first ? s : kNotHeld, 0, s * 8, [&] { load(s + kDecodeRowsSlots); });
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
        line("shl.b32 %row, %t, 1; add.u32 %row, %row, %warp; mov.u32 %at, factors; mad.lo.u32 %at, %row, 4, %at; ld.shared.f32 %f, [%at]; mul.f32 %g_sum, %g_sum, %f; mul.f32 %u_sum, %u_sum, %f;");
        line("mul.f32 %e, %g_sum, 0fbfb8aa3b; ex2.approx.f32 %e, %e; add.f32 %e, %e, 0f3f800000; div.full.f32 %g_sum, %g_sum, %e; mul.f32 %g_sum, %g_sum, %u_sum;");
        line("setp.lt.u32 %is, %row, %n_rows; shl.b32 %i, %first, 3; add.u32 %i, %i, %g; mad.lo.u32 %i, %row, {}, %i; mul.wide.u32 %wide, %i, 2; ld.param.u64 %out, [params+{}]; add.u64 %out, %out, %wide;", p_.ffn,
             PARAM(act));
        store_16("%g_sum", "%out", 0, "%is", false);
        line("kept_gate: add.u32 %first, %first, 1; sub.u32 %count, %count, 1; setp.ne.u32 %is, %count, 0; @%is bra pass_gate;");
    }

    // x is not in registers but for some steps ahead: a step asks for what takes the place of the last one's.
    void down() {
        line("@%idle bra no_down;");
        const uint32_t n = steps(p_.ffn), slots = down_slots();
        line("ld.param.u64 %x_at, [params+{}]; mul.wide.u32 %wide, %g, {}; add.u64 %x_at, %x_at, %wide; add.u64 %x_at, %x_at, %in_row;", PARAM(act), p_.ffn * 2);
        for (uint32_t s = 0; s + 1 < kAheadX; s++) load_step_of_x(s, s);
        clear(4 * p_.blocks());
        const auto step = [&](uint32_t s, uint32_t from_here, bool is_first) {
            if (s + kAheadX - 1 < n) load_step_of_x((s + kAheadX - 1) % kAheadX, from_here + kAheadX - 1);
            for (uint32_t b = 0; b < p_.blocks(); b++) {
                const uint32_t position = s * p_.blocks() + b, next = position + kDecodeRowsSlots;
                take_slot(is_first && position < kHeld ? position : kNotHeld, b, s % kAheadX * 8, [&] {
                    if (next < slots) load_columns("d", next, next / p_.blocks() - s + from_here);
                    else load_qkv(next - slots);
                });
            }
        };
        const auto move_on = [&] {
            line("add.u64 %x_at, %x_at, {};", kAheadX * kStepBytes);
            for (uint32_t i = 0; i < 4 * p_.blocks(); i++) line("add.u64 %d{0}, %d{0}, {1};", i, kAheadX * kStepBytes);
        };
        // Groups of steps for which all that is asked for is down's own.
        const uint32_t groups = std::min((n - kAheadX) / kAheadX, (slots - kDecodeRowsSlots) / (kAheadX * p_.blocks()));
        for (uint32_t s = 0; s < kAheadX; s++) step(s, s, true);
        move_on();
        line("mov.u32 %j, {};", groups - 1);
        line("down_group:");
        for (uint32_t s = 0; s < kAheadX; s++) step(s, s, false);
        move_on();
        line("sub.u32 %j, %j, 1; setp.ne.u32 %is, %j, 0; @%is bra down_group;");
        for (uint32_t s = groups * kAheadX; s < n; s++) step(s, s - groups * kAheadX, false);
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
        for (uint32_t i = 0; i < 4; i++) line("add.u64 %q{0}, %q{0}, {1};", i, p_.qkv_rows() * p_.hidden * 2);
        share_tile_sums();
        add_up_tile("%s", "%warp");
        line("shl.b32 %row, %t, 1; and.b32 %i, %warp, 1; add.u32 %row, %row, %i; mov.u32 %at, factors; mad.lo.u32 %at, %row, 4, %at; ld.shared.f32 %f, [%at]; mul.f32 %s, %s, %f;");
        line("shr.u32 %i, %warp, 1; mad.lo.u32 %i, %i, 8, %g; setp.lt.u32 %is, %i, {0}; mad.lo.u32 %i, %first, {0}, %i; setp.lt.and.u32 %is, %i, {1}, %is; setp.lt.and.u32 %is, %row, %n_rows, %is;", p_.qkv_rows(), p_.qkv);
        line("mad.lo.u32 %i, %row, {}, %i; mul.wide.u32 %wide, %i, 4; ld.param.u64 %out, [params+{}]; add.u64 %out, %out, %wide; @%is st.global.f32 [%out], %s;", round_up(p_.qkv, 64u), PARAM(y));
        line("add.u32 %first, %first, 1; sub.u32 %count, %count, 1; setp.ne.u32 %is, %count, 0; @%is bra pass_qkv;");
    }

    // ---- What they end in ----

    void share_sums(uint32_t n, const char* to) {
        for (uint32_t i = 0; i < n; i++) line("add.f32 %v0, %a{0}, %b{0}; st.shared.f32 [{1}+{2}], %v0;", i, to, i * 128);
        line("bar.sync 0;");
    }
    // To one of two places in turns, so that one barrier for each will do: who is a tile ahead waits for the others before it writes to the same again.
    void share_tile_sums() {
        line("add.u32 %at, %tile_to, %turn;");
        share_sums(4, "%at");
        line("add.u32 %j, %from, %turn; xor.b32 %turn, %turn, {};", kSumBytes / 2);
    }
    // The warps' sums of a component.
    void add_up(const char* into, const char* base, const char* component, uint32_t warp_bytes) {
        line("mad.lo.u32 %at, {}, 128, {};", component, base);
        for (uint32_t w = 0; w < kWarps; w++) line("ld.shared.f32 %v{}, [%at+{}];", w, w * warp_bytes);
        line("add.f32 %v0, %v0, %v1; add.f32 %v2, %v2, %v3; add.f32 {}, %v0, %v2;", into);
    }
    void add_up_tile(const char* into, const char* component) { add_up(into, "%j", component, kSumBytes / 2 / kWarps); }

    void residual(const char* name, const char* norm, bool is_first) {
        share_sums(4 * p_.blocks(), "%to");
        line("setp.ge.u32 %is, %warp, {}; @%is bra end_{};", 2 * p_.blocks(), name);
        line("shl.b32 %i, %warp, 1;");
        add_up("%s0", "%from", "%i", kSumBytes / kWarps);
        line("add.u32 %i, %i, 1;");
        add_up("%s1", "%from", "%i", kSumBytes / kWarps);
        line("add.f32 %s0, %s0, %bias_{0}; add.f32 %s1, %s1, %bias_{0}; add.f32 %stream0, %stream0, %s0; add.f32 %stream1, %stream1, %s1;", name);
        if (!is_first) line("@%store0 st.global.f32 [%stream_at], %stream0; @%store1 st.global.f32 [%stream_at+{}], %stream1;", p_.hidden * 4);
        line("mov.u32 %at, inverses; mad.lo.u32 %at, %t, 8, %at; ld.shared.f32 %f0, [%at]; ld.shared.f32 %f1, [%at+4]; mul.f32 %f0, %f0, 0f3d800000; mul.f32 %f1, %f1, 0f3d800000;");  // a 16th
        line("mul.f32 %s0, %stream0, %gamma_{0}; mul.f32 %s1, %stream1, %gamma_{0}; mul.f32 %s0, %s0, %f0; mul.f32 %s1, %s1, %f1;", norm);
        store_16("%s0", "%xn_at", 0, "%store0", true);
        store_16("%s1", "%xn_at", p_.hidden * 2, "%store1", true);
        line("mul.f32 %s0, %stream0, %stream0; mul.f32 %s1, %stream1, %stream1; @!%valid mov.f32 %s0, 0f00000000; @!%valid mov.f32 %s1, 0f00000000;");
        for (const uint32_t lanes : {4u, 8u, 16u}) {
            line("shfl.sync.bfly.b32 %v0, %s0, {0}, 31, 0xffffffff; shfl.sync.bfly.b32 %v1, %s1, {0}, 31, 0xffffffff; add.f32 %s0, %s0, %v0; add.f32 %s1, %s1, %v1;", lanes);
        }
        line("setp.eq.u32 %is, %g, 0; @%is st.global.f32 [%squares_at], %s0; @%is st.global.f32 [%squares_at+{}], %s1;", p_.square_entries() * 4);
        line("end_{}:", name);
    }

    void store_16(const char* value, const char* at, uint32_t offset, const char* predicate, bool bounded) {
        if (p_.type == ScalarType::kF16) {
            if (bounded) line("min.f32 {0}, {0}, 0f477fe000; max.f32 {0}, {0}, 0fc77fe000;", value);
            line("cvt.rn.f16.f32 %h, {};", value);
        } else {
            line("cvt.rn.bf16.f32 %h, {};", value);
        }
        line("@{} st.global.b16 [{}+{}], %h;", predicate, at, offset);
    }

    // All workgroups have written what they have to before any goes on. The weights of what is next are on their way meanwhile.
    template <typename Hold>
    void meet(const char* name, const Hold& hold_next) {
        line("bar.sync 0; add.u32 %target, %target, {}; setp.ne.u32 %is, %thread, 0; @%is bra said_{};", p_.workgroups, name);
        line("fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%arrivals], 1;");
        line("said_{}:", name);
        hold_next();
        line("setp.ne.u32 %is, %thread, 0; @%is bra met_{}; mov.u32 %polls, 0;", name);
        line("poll_{0}: ld.acquire.gpu.global.u32 %seen, [%arrivals]; sub.u32 %seen, %seen, %target; setp.ge.s32 %is, %seen, 0; @%is bra met_{0};", name);
        line("add.u32 %polls, %polls, 1; setp.lt.u32 %is, %polls, %polls_max; @%is bra poll_{};", name);
        line("mov.u32 %polls_max, 0; mov.u32 %i, 1; ld.param.u64 %ptr, [params+{}]; st.global.u32 [%ptr], %i; st.relaxed.gpu.global.u32 [%sync+{}], %i;", PARAM(given_up), offsetof(DecodeRowsSync, has_given_up));
        line("met_{}: bar.sync 0;", name);
    }

    // Two rows' squares for each warp.
    void find_norm() {
        const uint32_t loads = p_.square_entries() / 128, entries = round_up(p_.parts() * 2 * p_.blocks(), 4u);
        line("mul.lo.u32 %i, %warp, {}; mul.wide.u32 %wide, %i, 4; add.u64 %ptr, %sync, %wide; mul.wide.u32 %wide, %lane, 16; add.u64 %ptr, %ptr, %wide; add.u64 %ptr, %ptr, {}; shl.b32 %j, %lane, 2;",
             2 * p_.square_entries(), sizeof(DecodeRowsSync));
        line("mov.f32 %s0, 0f00000000; mov.f32 %s1, 0f00000000;");
        for (uint32_t i = 0; i < loads; i++) {
            for (uint32_t r = 0; r < 8; r++) line("mov.f32 %v{}, 0f00000000;", r);
            line("add.u32 %i, %j, {}; setp.lt.u32 %is, %i, {};", i * 128, entries);
            line("@%is ld.global.cg.v4.f32 {{%v0, %v1, %v2, %v3}}, [%ptr+{}]; @%is ld.global.cg.v4.f32 {{%v4, %v5, %v6, %v7}}, [%ptr+{}];", i * 512, i * 512 + p_.square_entries() * 4);
            line("add.f32 %v0, %v0, %v1; add.f32 %v2, %v2, %v3; add.f32 %v4, %v4, %v5; add.f32 %v6, %v6, %v7; add.f32 %v0, %v0, %v2; add.f32 %v4, %v4, %v6; add.f32 %s0, %s0, %v0; add.f32 %s1, %s1, %v4;");
        }
    }

    // Behind the loads of x. The first workgroup tells the inverses that the next layer begins with.
    void norm(const char* name, bool tells) {
        for (const uint32_t lanes : {1u, 2u, 4u, 8u, 16u}) {
            line("shfl.sync.bfly.b32 %v0, %s0, {0}, 31, 0xffffffff; shfl.sync.bfly.b32 %v1, %s1, {0}, 31, 0xffffffff; add.f32 %s0, %s0, %v0; add.f32 %s1, %s1, %v1;", lanes);
        }
        line("ld.param.f32 %e, [params+{}]; fma.rn.f32 %s0, %s0, 0f{:08x}, %e; fma.rn.f32 %s1, %s1, 0f{:08x}, %e; rsqrt.approx.f32 %s0, %s0; rsqrt.approx.f32 %s1, %s1;", PARAM(eps),
             std::bit_cast<uint32_t>(1.0f / static_cast<float>(p_.hidden)), std::bit_cast<uint32_t>(1.0f / static_cast<float>(p_.hidden)));
        line("@!%first_lane bra normed_{};", name);
        line("mov.u32 %at, inverses; mad.lo.u32 %at, %warp, 8, %at; ld.shared.f32 %v0, [%at]; ld.shared.f32 %v1, [%at+4]; st.shared.f32 [%at], %s0; st.shared.f32 [%at+4], %s1;");
        line("mul.f32 %v2, %s0, 0f41800000; mul.f32 %v3, %s1, 0f41800000; div.rn.f32 %v2, %v2, %v0; div.rn.f32 %v3, %v3, %v1;");
        line("mov.u32 %at, factors; mad.lo.u32 %at, %warp, 8, %at; st.shared.f32 [%at], %v2; st.shared.f32 [%at+4], %v3;");
        if (tells) {
            line("setp.ne.u32 %is, %part, 0; @%is bra normed_{0}; ld.param.u64 %ptr, [params+{1}]; mul.wide.u32 %wide, %warp, 8; add.u64 %ptr, %ptr, %wide; st.global.f32 [%ptr], %s0; st.global.f32 [%ptr+4], %s1;",
                 name, PARAM(norms));
        }
        line("normed_{}:", name);
    }

    const DecodeRowsProgram& p_;
};

}  // namespace

std::string decode_rows_text(const DecodeRowsProgram& program) { return RowsWriter(program).write(); }

}  // namespace lorad::gpu
