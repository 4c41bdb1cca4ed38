#include "gpu/kernels/persistent/decode_bricks_text.h"

#include <bit>

#include "gpu/kernels/persistent/decode_bricks_phase.h"
#include "proto/base/check.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kThreads = kDecodeBricksWarps * 32;

#define DECODE_BRICKS_PARAM(member) offsetof(DecodeBricksParams, member)

// Registers: %t and %g are a lane's place in a matrix of 16x8. In the ends of products a thread has one number of each
// kThreads, in turns: of the workgroup's local band %lb, row %row of x and row %col of w. %s is its sum.
class BricksWriter : TextWriter {
  public:
    explicit BricksWriter(const DecodeBricksProgram& program) : p_(program) { CHECK(p_.can_be()); }

    std::string write() {
        const uint32_t hidden_bands = p_.hidden / kBrickRows;
        BrickPhaseWriter o(p_, {.name = "o",
                                .format = p_.o,
                                .k = p_.q,
                                .bands = hidden_bands,
                                .w = DECODE_BRICKS_PARAM(o),
                                .x = DECODE_BRICKS_PARAM(attention),
                                .x_in_fragments = false,
                                .x_changes = false});
        BrickPhaseWriter gate(p_, {.name = "gate",
                                   .format = p_.gate_up,
                                   .k = p_.hidden,
                                   .bands = p_.ffn / kBrickRows,
                                   .w = DECODE_BRICKS_PARAM(gate),
                                   .w_up = DECODE_BRICKS_PARAM(up),
                                   .x = DECODE_BRICKS_PARAM(xn)});
        BrickPhaseWriter down(p_, {.name = "down",
                                   .format = p_.down,
                                   .k = p_.ffn,
                                   .bands = hidden_bands,
                                   .w = DECODE_BRICKS_PARAM(down),
                                   .x = DECODE_BRICKS_PARAM(act)});
        declare();
        begin();
        text_ += o.begin();
        begin_residual();
        begin_rows();
        text_ += o.multiply_all();
        text_ += gate.begin();
        line("bar.sync 0;");
        end_residual(o, "o");
        grid_barrier("o");
        find_norm("gate", false);
        text_ += gate.multiply_all();
        text_ += down.begin();
        line("bar.sync 0;");
        end_gated(gate);
        grid_barrier("gate");
        text_ += down.multiply_all();
        uint32_t scopes = 4;
        if (p_.qkv_rows() == 0) {
            line("bar.sync 0;");
            end_residual(down, "down");
        } else {
            scopes += end_down_and_qkv(down);
        }
        line("cp.async.wait_group 0; setp.ne.u32 %is, %part, 0; @%is bra done; setp.ne.u32 %is, %thread, 0; @%is bra "
             "done; st.relaxed.gpu.global.u32 [%sync], %target;");
        line("done: ret;");
        for (uint32_t i = 0; i < scopes; ++i) line("}}");
        return std::move(text_);
    }

  private:
    // Numbers of the residual stream that a workgroup has, by threads.
    uint32_t residual_turns() const {
        return ceil_div(ceil_div(p_.hidden / kBrickRows, p_.workgroups) * kBrickRows * p_.sum_rows(), kThreads);
    }

    // Returns the scopes that are open.
    uint32_t end_down_and_qkv(BrickPhaseWriter& down) {
        uint32_t scopes = 0, bands = 0;
        bool is_first = true;
        for (uint32_t i = 0; i < kDecodeBricksParts; ++i) {
            const DecodeBricksPart& part = p_.qkv[i];
            if (part.n == 0) continue;
            const std::string name = lorad::format("qkv{}", i);
            BrickPhaseWriter product(p_, {.name = name.c_str(),
                                          .format = part.format,
                                          .k = p_.hidden,
                                          .bands = part.n / kBrickRows,
                                          .first = bands % p_.workgroups,
                                          .w = DECODE_BRICKS_PARAM(qkv) + i * sizeof(uint64_t),
                                          .x = DECODE_BRICKS_PARAM(xn)});
            text_ += product.begin();
            ++scopes;
            if (is_first) {
                line("bar.sync 0;");
                end_residual(down, "down");
                grid_barrier("down");
                find_norm("qkv", true);
            }
            text_ += product.multiply_all();
            line("bar.sync 0;");
            end_sums(product, name.c_str(), part);
            is_first = false;
            bands += part.n / kBrickRows;
        }
        return scopes;
    }

    void declare() {
        begin_entry(kThreads, sizeof(DecodeBricksParams));
        line(".minnctapersm {}", kDecodeBricksWorkgroups);
        line("{{");
        line(".shared .align 128 .b8 slots[{}];", kDecodeBricksWarps * p_.ring_bytes());
        if (p_.partials_are_shared()) line(".shared .align 128 .b8 partials[{}];", p_.partials_bytes());
        line(".shared .align 16 .b8 inverses[{0}]; .shared .align 16 .b8 factors[{0}];", kDecodeRowsMax * 4);
        line(".reg .pred %is, %has_x, %store0, %store1, %valid;");
        line(".reg .b32 %thread, %warp, %lane, %t, %g, %part, %n_rows, %row, %col, %lb, %column, %i, %j, %n, %at;");
        line(".reg .b32 %ring, %ring_end, %slot, %target, %seen, %polls, %polls_max;");
        line(".reg .b64 %policy, %ptr, %wide, %sync, %arrivals, %out;");
        line(".reg .{} %partials_at; .reg .b64 %own_partials;", p_.partials_are_shared() ? "b32" : "b64");
        line(".reg .f32 %s, %v, %v0, %v1, %v2, %v3, %f, %stream<{0}>, %bias_o<{0}>, %bias_down<{0}>, %gamma_o<{0}>, "
             "%gamma_down<{0}>;",
             residual_turns());
        line(".reg .b16 %h;");
        for (const char* name : {"o", "gate", "down", "qkv0", "qkv1", "qkv2"})
            line(".reg .b32 %count_{0}, %bricks_{0}, %warps_{0}, %index_{0};", name);
    }

    void begin() {
        line("mov.u32 %thread, %tid.x; shr.u32 %warp, %thread, 5; and.b32 %lane, %thread, 31; and.b32 %t, %lane, 3; "
             "shr.u32 %g, %lane, 2; mov.u32 %part, %ctaid.x; createpolicy.fractional.L2::evict_first.b64 %policy, "
             "1.0;");
        line("mov.u32 %ring, slots; mad.lo.u32 %ring, %warp, {}, %ring;", p_.ring_bytes());
    }

    // Behind the first copies of weights: what the rows and the grid barriers need.
    void begin_rows() {
        line("ld.param.u64 %sync, [params+{}]; ld.param.u32 %polls_max, [params+{}]; add.u64 %arrivals, %sync, {};",
             DECODE_BRICKS_PARAM(sync), DECODE_BRICKS_PARAM(max_polls), offsetof(GridBarrierSync, arrivals));
        line("ld.relaxed.gpu.global.u32 %target, [%sync]; ld.relaxed.gpu.global.u32 %seen, [%sync+{}]; setp.ne.u32 "
             "%is, %seen, 0; @%is mov.u32 %polls_max, 0;",
             offsetof(GridBarrierSync, has_given_up));
        line("setp.lt.u32 %has_x, %g, %n_rows; shl.b32 %i, %t, 1; setp.lt.u32 %store0, %i, %n_rows; add.u32 %i, %i, 1; "
             "setp.lt.u32 %store1, %i, %n_rows;");
        // This lane's part of a partial sum, [row of x][16].
        line("mul.lo.u32 %i, %t, {}; mad.lo.u32 %i, %g, 4, %i;", 2 * kBrickRows * 4);
        if (p_.partials_are_shared()) {
            line("mov.u32 %partials_at, partials; add.u32 %partials_at, %partials_at, %i;");
        } else {
            line("mul.wide.u32 %wide, %part, {}; add.u64 %own_partials, %sync, %wide; add.u64 %own_partials, "
                 "%own_partials, {}; "
                 "cvt.u64.u32 %wide, %i; add.u64 %partials_at, %own_partials, %wide;",
                 round_up(p_.partials_bytes(), 128u), sizeof(GridBarrierSync) + p_.square_bytes());
        }
        line("setp.ge.u32 %is, %thread, {}; @%is bra has_inverses;", kDecodeRowsMax);
        line("ld.param.u64 %ptr, [params+{}]; mul.wide.u32 %wide, %thread, 4; add.u64 %ptr, %ptr, %wide; ld.global.f32 "
             "%f, [%ptr]; mov.u32 %at, inverses; mad.lo.u32 %at, %thread, 4, %at; st.shared.f32 [%at], %f;",
             DECODE_BRICKS_PARAM(norms));
        line("has_inverses:");  // a barrier follows before anybody reads it
    }

    // ---- Numbers of an end ----

    // Of turn `turn`: %row, %col, %lb of `count` bands, each with gates and ups where `pairs`. A warp without numbers
    // goes to `skip`.
    void find_number(uint32_t turn, const char* count, bool pairs, const std::string& skip) {
        const uint32_t of_band = kBrickRows * p_.sum_rows();
        line("add.u32 %i, %thread, {}; shr.u32 %lb, %i, {}; and.b32 %i, %i, {}; shr.u32 %row, %i, 4; and.b32 %col, %i, "
             "15;",
             turn * kThreads, std::countr_zero(of_band), of_band - 1);
        if (pairs) line("shl.b32 %lb, %lb, 1;");
        line("setp.ge.u32 %is, %lb, %count_{}; @%is bra {};", count, skip);
        line("setp.lt.u32 %valid, %row, %n_rows;");
    }
    // %column: the column of the sums, of local band or pair %n.
    void find_column(const char* index) {
        line("mad.lo.u32 %column, %n, {}, %index_{}; mad.lo.u32 %column, %column, {}, %col;", p_.workgroups, index,
             kBrickRows);
    }
    // %out: column %column of row %row in kBandFragments.
    void point_at_fragment(size_t param) {
        line("shr.u32 %i, %column, 7; mul.lo.u32 %i, %i, {}; shr.u32 %j, %column, 3; and.b32 %j, %j, 3; mad.lo.u32 %i, "
             "%j, 512, %i; shr.u32 %j, %column, 5; and.b32 %j, %j, 3; mad.lo.u32 %j, %row, 4, %j; mad.lo.u32 %i, %j, "
             "16, %i; and.b32 %j, %column, 7; mad.lo.u32 %i, %j, 2, %i; ld.param.u64 %out, [params+{}]; cvt.u64.u32 "
             "%wide, %i; add.u64 %out, %out, %wide;",
             kBandFragmentBytes, param);
    }

    // ---- Ends ----

    // What the ends of o and down need to registers: the residual stream, which stays there until it is written behind
    // down, biases, and the gains of the norms that follow.
    void begin_residual() {
        line("ld.param.u64 %ptr, [params+{}]; ld.global.u32 %n_rows, [%ptr];", DECODE_BRICKS_PARAM(n_rows));
        for (uint32_t turn = 0; turn < residual_turns(); ++turn) {
            const std::string skip = lorad::format("no_stream_{}", turn);
            for (const char* of : {"stream", "bias_o", "bias_down", "gamma_o", "gamma_down"})
                line("mov.f32 %{}{}, 0f00000000;", of, turn);
            find_number(turn, "o", false, skip);
            line("mov.u32 %n, %lb;");
            find_column("o");
            point_at_stream();
            line("@%valid ld.global.f32 %stream{}, [%out]; mul.wide.u32 %wide, %column, 4;", turn);
            load_of_column("bias_o", turn, DECODE_BRICKS_PARAM(o_bias));
            load_of_column("gamma_o", turn, DECODE_BRICKS_PARAM(post_attention_norm));
            load_of_column("bias_down", turn, DECODE_BRICKS_PARAM(down_bias));
            load_of_column("gamma_down", turn, DECODE_BRICKS_PARAM(next_norm));
            line("{}:", skip);
        }
    }
    void point_at_stream() {
        line("mad.lo.u32 %i, %row, {}, %column; ld.param.u64 %out, [params+{}]; mul.wide.u32 %wide, %i, 4; add.u64 "
             "%out, %out, %wide;",
             p_.hidden, DECODE_BRICKS_PARAM(stream));
    }
    // %wide: bytes up to the column.
    void load_of_column(const char* into, uint32_t turn, size_t param) {
        line("ld.param.u64 %ptr, [params+{0}]; setp.ne.u64 %is, %ptr, 0; add.u64 %ptr, %ptr, %wide; @%is "
             "ld.global.nc.f32 %{1}{2}, [%ptr];",
             param, into, turn);
    }

    void end_residual(BrickPhaseWriter& product, const char* name) {
        const bool is_o = name[0] == 'o';
        for (uint32_t turn = 0; turn < residual_turns(); ++turn) {
            const std::string skip = lorad::format("ended_{}_{}", name, turn);
            find_number(turn, name, false, skip);
            line("mov.u32 %n, %lb;");
            find_column(name);
            line("mov.f32 %s, %bias_{}{};", name, turn);
            text_ += product.add_partials();
            line("add.f32 %stream{0}, %stream{0}, %s;", turn);
            if (!is_o) {
                point_at_stream();
                line("@%valid st.global.f32 [%out], %stream{};", turn);
            }
            if (is_o || p_.qkv_rows() > 0) write_normed(name, turn);
            line("{}:", skip);
        }
    }
    // xn, by a 16th of the inverse of the norm before, and the squares of each row's 16 columns.
    void write_normed(const char* name, uint32_t turn) {
        line("mov.u32 %at, inverses; mad.lo.u32 %at, %row, 4, %at; ld.shared.f32 %f, [%at]; mul.f32 %f, %f, "
             "0f3d800000; mul.f32 %v1, %gamma_{0}{1}, %stream{1}; mul.f32 %v1, %v1, %f;",
             name, turn);
        point_at_fragment(DECODE_BRICKS_PARAM(xn));
        store_16(p_.type, "%v1", "%out", 0, "%valid", true);
        line("mul.f32 %v0, %stream{0}, %stream{0};", turn);
        for (const uint32_t lanes : {1u, 2u, 4u, 8u})
            line("shfl.sync.bfly.b32 %v1, %v0, {}, 31, 0xffffffff; add.f32 %v0, %v0, %v1;", lanes);
        line("shr.u32 %column, %column, 4; mad.lo.u32 %i, %row, {}, %column; mul.wide.u32 %wide, %i, 4; add.u64 %out, "
             "%sync, %wide; setp.eq.and.u32 %is, %col, 0, %valid; @%is st.global.f32 [%out+{}], %v0;",
             p_.square_entries(), sizeof(GridBarrierSync));
    }

    void end_gated(BrickPhaseWriter& product) {
        const uint32_t numbers = ceil_div(p_.ffn / kBrickRows, p_.workgroups) * kBrickRows * p_.sum_rows();
        for (uint32_t turn = 0; turn < ceil_div(numbers, kThreads); ++turn) {
            const std::string skip = lorad::format("gated_{}", turn);
            find_number(turn, "gate", true, skip);
            line("mov.u32 %at, factors; mad.lo.u32 %at, %row, 4, %at; ld.shared.f32 %f, [%at]; mov.f32 %s, "
                 "0f00000000;");
            text_ += product.add_partials();
            line("mov.f32 %v0, %s; mov.f32 %s, 0f00000000; add.u32 %lb, %lb, 1;");
            text_ += product.add_partials();
            line("mul.f32 %v0, %v0, %f; mul.f32 %s, %s, %f; mul.f32 %v1, %v0, 0fbfb8aa3b; ex2.approx.f32 %v1, %v1; "
                 "add.f32 %v1, %v1, 0f3f800000; div.full.f32 %v0, %v0, %v1; mul.f32 %s, %s, %v0;");
            line("shr.u32 %n, %lb, 1;");
            find_column("gate");
            point_at_fragment(DECODE_BRICKS_PARAM(act));
            store_16(p_.type, "%s", "%out", 0, "%valid", false);
            line("{}:", skip);
        }
    }

    void end_sums(BrickPhaseWriter& product, const char* name, const DecodeBricksPart& part) {
        const uint32_t numbers = ceil_div(part.n / kBrickRows, p_.workgroups) * kBrickRows * p_.sum_rows();
        for (uint32_t turn = 0; turn < ceil_div(numbers, kThreads); ++turn) {
            const std::string skip = lorad::format("summed_{}_{}", name, turn);
            find_number(turn, name, false, skip);
            line("mov.u32 %at, factors; mad.lo.u32 %at, %row, 4, %at; ld.shared.f32 %f, [%at]; mov.f32 %s, "
                 "0f00000000;");
            text_ += product.add_partials();
            line("mul.f32 %s, %s, %f; mov.u32 %n, %lb;");
            find_column(name);
            line("add.u32 %column, %column, {}; ld.param.u32 %i, [params+{}]; mad.lo.u32 %i, %row, %i, %column; "
                 "mul.wide.u32 %wide, %i, 4; ld.param.u64 %out, [params+{}]; add.u64 %out, %out, %wide; @%valid "
                 "st.global.f32 [%out], %s;",
                 part.row_begin, DECODE_BRICKS_PARAM(y_stride), DECODE_BRICKS_PARAM(y));
            line("{}:", skip);
        }
        line("bar.sync 0;");  // before partial sums are written again
    }

    // ---- Between products ----

    // All workgroups have written what they have to before any goes on.
    void grid_barrier(const char* name) {
        line("bar.sync 0; add.u32 %target, %target, {}; setp.ne.u32 %is, %thread, 0; @%is bra met_{};", p_.workgroups,
             name);
        line("fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%arrivals], 1; mov.u32 %polls, 0;");
        poll_arrivals(name, "%arrivals", "%i", "%ptr", DECODE_BRICKS_PARAM(given_up));
        line("met_{}: bar.sync 0;", name);
    }

    // The factors that a norm deferred, of each row by one warp. tells: the first workgroup writes the inverses that
    // the next layer begins with.
    void find_norm(const char* name, bool tells) {
        static_assert(kDecodeRowsMax <= kDecodeBricksWarps);
        const std::string skip = lorad::format("normed_{}", name);
        line("mov.u32 %row, %warp; setp.ge.u32 %is, %row, %n_rows; @%is bra {};", skip);
        line("mul.lo.u32 %i, %row, {}; mad.lo.u32 %i, %lane, 4, %i; mul.wide.u32 %wide, %i, 4; add.u64 %ptr, "
             "%sync, %wide; mov.f32 %s, 0f00000000;",
             p_.square_entries());
        for (uint32_t i = 0; i < p_.square_entries() / 128; ++i)
            line("ld.global.cg.v4.f32 {{%v0, %v1, %v2, %v3}}, [%ptr+{}]; add.f32 %v0, %v0, %v1; add.f32 %v2, %v2, "
                 "%v3; add.f32 %v0, %v0, %v2; add.f32 %s, %s, %v0;",
                 sizeof(GridBarrierSync) + i * 512);
        for (const uint32_t lanes : {1u, 2u, 4u, 8u, 16u})
            line("shfl.sync.bfly.b32 %v0, %s, {}, 31, 0xffffffff; add.f32 %s, %s, %v0;", lanes);
        line("setp.ne.u32 %is, %lane, 0; @%is bra {};", skip);
        line("ld.param.f32 %v0, [params+{}]; fma.rn.f32 %s, %s, 0f{:08x}, %v0; rsqrt.approx.f32 %s, %s;",
             DECODE_BRICKS_PARAM(eps), std::bit_cast<uint32_t>(1.0f / static_cast<float>(p_.hidden)));
        line("mov.u32 %at, inverses; mad.lo.u32 %at, %row, 4, %at; ld.shared.f32 %v0, [%at]; st.shared.f32 [%at], "
             "%s; mul.f32 %v1, %s, 0f41800000; div.rn.f32 %v1, %v1, %v0; mov.u32 %at, factors; mad.lo.u32 %at, "
             "%row, 4, %at; st.shared.f32 [%at], %v1;");
        if (tells)
            line("setp.ne.u32 %is, %part, 0; @%is bra {}; ld.param.u64 %ptr, [params+{}]; mul.wide.u32 %wide, "
                 "%row, 4; add.u64 %ptr, %ptr, %wide; st.global.f32 [%ptr], %s;",
                 skip, DECODE_BRICKS_PARAM(norms));
        line("{}:", skip);
    }

    const DecodeBricksProgram& p_;
};

}  // namespace

std::string decode_bricks_text(const DecodeBricksProgram& program) { return BricksWriter(program).write(); }

}  // namespace lorad::gpu
