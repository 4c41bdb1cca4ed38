#include "gpu/kernels/products/packed/packed_warpgroup_text.h"

#include <utility>

#include "gpu/kernels/products/packed/packed_deal_text.h"
#include "gpu/kernels/products/packed/packed_rows_text.h"
#include "proto/base/check.h"

namespace lorad::gpu {
namespace {

// Matrices in shared memory without a swizzle (PTX ISA, "Matrix Descriptor Format"), in units of 16 bytes: cores of 8
// rows of 8 elements of k, one behind the other along k, eight rows of a slot behind those before.
constexpr uint32_t kCoreBytes = 128;
constexpr uint32_t kBlockBytes = kXStepColumns / 8 * kCoreBytes;  // 8 rows of a slot
static_assert(kMatrixFragmentBytes == kMatrixFragmentRows / 8 * kBlockBytes);
constexpr uint64_t kDescriptor = uint64_t{kBlockBytes / 16} << 32 | uint64_t{kCoreBytes / 16} << 16;
constexpr uint32_t kStepMatrices = kXStepColumns / 16, kUnitSteps = kPackedUnitColumns / kXStepColumns;
constexpr uint32_t kNoPlane = 2;
constexpr uint32_t kXSlots = 4;
constexpr uint32_t kSendLag = 1;  // steps between one and the one behind which its slot is filled again

bool is_pair(WeightFormat format) { return brick_columns(number_of(format)) != kPackedUnitColumns; }

// Addresses in shared memory have 32 bits. A unit is what is dealt, the columns of a brick or of two. A step is the 64
// columns of a slot of x.
class PackedWarpgroupWriter final : PackedDealWriter {
  public:
    explicit PackedWarpgroupWriter(const PackedWarpgroupProgram& program)
        : PackedDealWriter(program.format, program.type, program.stride / kPackedUnitColumns,
                           "ld.global.nc.L1::no_allocate", is_pair(program.format)),
          p_(program) {
        CHECK(has_packed_rows(p_.format) && p_.stride % kPackedUnitColumns == 0 && p_.rows() <= kMatrixFragmentRows &&
              p_.warps % 4 == 0);
    }

    std::string write() {
        declare();
        begin();
        line("next_unit:");
        point_at_next();
        multiply_unit();
        line("add.u32 %in_band, %in_band, 1; sub.u32 %bricks, %bricks, 1; setp.eq.u32 %tile_ends, %in_band, {}; "
             "setp.eq.u32 %range_ends, %bricks, 0; or.pred %is, %tile_ends, %range_ends; @!%is bra next_unit;",
             tile_bricks_);
        end_band();
        line("@!%range_ends bra next_unit;");
        line("ret;");
        line("}}");
        return std::move(text_);
    }

  private:
    uint32_t unit_bytes() const { return brick_bytes(format_number()) * (is_pair(p_.format) ? 2 : 1); }
    uint32_t band_bytes() const { return tile_bricks_ * unit_bytes(); }
    uint32_t sums() const { return p_.rows() / 2; }  // of a thread
    uint32_t blocks() const { return p_.rows() / 8; }
    uint32_t slot_bytes() const { return blocks() * kBlockBytes; }
    uint32_t ring_bytes() const { return kXSlots * slot_bytes(); }

    void declare() {
        begin_entry(p_.warps * 32, sizeof(PackedParams));
        line(".minnctapersm 1");
        line("{{");
        line(".shared .align 128 .b8 ring[{}];", ring_bytes());
        line(".shared .align 8 .b8 barriers[{}];", kXSlots * 16);  // those of full slots, then of empty ones
        line(".reg .pred %is, %tile_ends, %range_ends, %is_first;");
        line(".reg .b32 %thread, %warp, %lane, %t, %g, %range, %ranges, %units, %unit, %i, %j, %n_rows, %n_left, "
             "%row0, %tile, %band, %in_band, %bricks, %split, %splits, %from_tile, %from_in_band, %last_band;");
        line(".reg .b32 %y_stride, %split_stride, %lane_high, %lane_record, %lane_second;");
        line(".reg .b32 %barriers, %ring, %full, %phase, %step, %all_steps, %first_step, %sent, %into;");
        line(".reg .b64 %from, %codes_at, %high_at, %record_at, %second_at, %ptr, %wide, %y, %y_at, %split_bytes, %w, "
             "%x, %matrix, %matrix_at, %matrices, %state;");
        line(".reg .f32 %sum<{}>;", sums());
        declare_codes(kStepMatrices);
    }

    void begin() {
        line("mov.u32 %thread, %tid.x; shr.u32 %warp, %thread, 5; and.b32 %lane, %thread, 31; and.b32 %t, %lane, 3; "
             "shr.u32 %g, %lane, 2;");
        // The first rows are always there.
        line("mov.u32 %row0, %ctaid.y; mul.lo.u32 %row0, %row0, {}; setp.eq.u32 %is, %row0, 0; @%is bra has_rows;",
             kMatrixFragmentRows);
        line(
            "ld.param.u64 %ptr, [params+{}]; ld.global.u32 %n_rows, [%ptr]; setp.ge.u32 %is, %row0, %n_rows; @%is ret;",
            MATMUL_PARAM(n_rows));
        line("has_rows:");
        line("mov.u32 %range, %ctaid.x; ld.param.u32 %ranges, [params+{}];", PACKED_PARAM(deal.ranges));
        take_range("%range", "%tile");
        line(
            "mov.u32 %from_tile, %tile; mov.u32 %from_in_band, %in_band; ld.param.u32 %last_band, [params+{}]; shr.u32 "
            "%last_band, %last_band, 4; sub.u32 %last_band, %last_band, 1; ld.param.u64 %w, [params+{}];",
            MATMUL_PARAM(n), MATMUL_PARAM(w));
        place_lane();
        point_at_unit();
        for (uint32_t half = 0; half < 2; ++half) fetch_codes(half);
        fetch_records();
        begin_x();
        line("ld.param.u64 %ptr, [params+{}]; ld.global.u32 %n_rows, [%ptr];", MATMUL_PARAM(n_rows));
        start_codes();
        // y, of rows 2t and 2t + 1 of x and row g of w
        load_y();
        line("mad.lo.u32 %j, %t, 2, %row0; mad.lo.u32 %i, %j, %y_stride, %g; mul.wide.u32 %wide, %i, 4; add.u64 %y, "
             "%y, %wide;");
        line("sub.u32 %n_rows, %n_rows, %j;");
        find_split("%range", "%tile");
        clear_sums();
    }

    // %from: unit %from_in_band of this warp's band of tile %from_tile, or of the last band.
    void point_at_unit() {
        line("mad.lo.u32 %i, %from_tile, {0}, %warp; min.u32 %i, %i, %last_band; mul.wide.u32 %from, %i, {1}; add.u64 "
             "%from, %from, %w; mul.wide.u32 %wide, %from_in_band, {2}; add.u64 %from, %from, %wide;",
             p_.warps, band_bytes(), unit_bytes());
        line("mul.wide.u32 %wide, %lane, 16; add.u64 %codes_at, %from, %wide; cvt.u64.u32 %wide, %lane_high; add.u64 "
             "%high_at, %from, %wide; cvt.u64.u32 %wide, %lane_record; add.u64 %record_at, %from, %wide; cvt.u64.u32 "
             "%wide, %lane_second; add.u64 %second_at, %from, %wide;");
    }

    // To the unit behind the one in registers, or, behind the range's last one, to that again.
    void point_at_next() {
        line("setp.eq.u32 %is, %bricks, 1; @%is bra pointed; add.u32 %from_in_band, %from_in_band, 1; setp.eq.u32 %is, "
             "%from_in_band, {}; @%is mov.u32 %from_in_band, 0; @%is add.u32 %from_tile, %from_tile, 1;",
             tile_bricks_);
        point_at_unit();
        line("pointed:");
    }

    // The barriers, and the first steps of x, each sent by a warp.
    void begin_x() {
        line("mov.u32 %barriers, barriers; mov.u32 %ring, ring; mov.u32 %full, barriers; mov.u32 %phase, 0; mov.u32 "
             "%step, 0; setp.ne.u32 %is, %thread, 0; @%is bra "
             "has_barriers;");
        for (uint32_t i = 0; i < kXSlots; ++i)
            line("mbarrier.init.shared.b64 [barriers+{}], 1; mbarrier.init.shared.b64 [barriers+{}], {};", i * 8,
                 (kXSlots + i) * 8, p_.warps);
        line("fence.proxy.async;");
        line("has_barriers: bar.sync 0;");
        line("setp.eq.u32 %is_first, %lane, 0; ld.param.u64 %x, [params+{}]; mad.wide.u32 %x, %row0, {}, %x;",
             MATMUL_PARAM(x), p_.stride * 2);
        line("mul.lo.u32 %all_steps, %bricks, {0}; mul.lo.u32 %first_step, %in_band, {0};", kUnitSteps);
        // The matrix of the first slot.
        line("mov.u32 %i, ring; shr.u32 %i, %i, 4; cvt.u64.u32 %matrix, %i; or.b64 %matrix, %matrix, {}; mov.b64 "
             "%matrix_at, %matrix; add.u64 %matrices, %matrix, {};",
             kDescriptor, ring_bytes() / 16);
        line("mov.u32 %sent, %warp; min.u32 %i, %all_steps, {}; setp.ge.u32 %is, %sent, %i; @%is bra begun;", kXSlots);
        send_step();
        line("begun:");
    }

    // Step %sent of the range.
    void send_step() {
        line("rem.u32 %i, %sent, {}; mad.lo.u32 %into, %i, 8, %barriers; mad.lo.u32 %i, %i, {}, %ring;", kXSlots,
             slot_bytes());
        line("add.u32 %j, %first_step, %sent; rem.u32 %j, %j, {}; mul.wide.u32 %wide, %j, {}; add.u64 %ptr, %x, %wide;",
             p_.stride / kXStepColumns, kMatrixFragmentBytes);
        line("@%is_first mbarrier.arrive.expect_tx.shared.b64 %state, [%into], {0}; @%is_first "
             "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%i], [%ptr], {0}, [%into];",
             slot_bytes());
    }

    // Codes and records of the next unit come when this one's are used for the last time.
    void multiply_unit() {
        const uint32_t plane_steps = 2 / planes();
        for (uint32_t half = 0; half < 2; ++half) {
            for (uint32_t r = 0; r < 2; ++r) find_scales(half, r);
            if (half == 1) fetch_records();
            for (uint32_t step = 0; step < 2; ++step)
                multiply_step(half, step, (step + 1) % plane_steps == 0 ? step / plane_steps : kNoPlane);
        }
    }

    // Four matrices: those of elements that are made work while others are made. fetched: the plane of codes that is
    // used up then.
    void multiply_step(uint32_t half, uint32_t step, uint32_t fetched) {
        wait_for("full", "%full", "%phase");
        for (uint32_t m = 0; m < kStepMatrices; ++m) {
            for (uint32_t r = 0; r < 2; ++r) make_elements(half, r, step * kStepMatrices + m, m);
            arrange_elements(m);
            line("wgmma.fence.sync.aligned; add.u64 %wide, %matrix_at, {};", m * 2 * kCoreBytes / 16);
            multiply_16(p_.rows(), p_.type, 0,
                        lorad::format("%a{}, %a{}, %a{}, %a{}", m * 4, m * 4 + 2, m * 4 + 1, m * 4 + 3), "%wide");
            line("wgmma.commit_group.sync.aligned;");
        }
        if (fetched != kNoPlane) fetch_plane(half, fetched);
        line("wgmma.wait_group.sync.aligned 0;");
        release_step();
        line("add.u64 %matrix_at, %matrix_at, {}; setp.eq.u64 %is, %matrix_at, %matrices; @%is mov.b64 %matrix_at, "
             "%matrix; add.u32 %full, %full, 8; @%is sub.u32 %full, %full, {}; @%is xor.b32 %phase, %phase, 1;",
             slot_bytes() / 16, kXSlots * 8);
    }

    void wait_for(const char* name, const char* barrier, const char* phase) {
        line("{0}_{1}: mbarrier.try_wait.parity.shared.b64 %is, [{2}], {3}; @!%is bra {0}_{1};", name, n_places_++,
             barrier, phase);
    }

    // This warp is done with step %step. The warp whose turn it is fills the slot of an earlier one, which others have
    // mostly done with.
    void release_step() {
        const uint32_t place = n_places_++;
        line("@%is_first mbarrier.arrive.shared.b64 %state, [%full+{}]; rem.u32 %i, %step, {}; setp.ne.u32 %is, %i, "
             "%warp; @%is bra released_{};",
             kXSlots * 8, p_.warps, place);
        line("setp.lt.u32 %is, %step, {}; @%is bra released_{}; sub.u32 %i, %step, {}; add.u32 %sent, %i, {}; "
             "setp.ge.u32 %is, %sent, %all_steps; @%is bra released_{};",
             kSendLag, place, kSendLag, kXSlots, place);
        line("div.u32 %j, %i, {}; and.b32 %j, %j, 1; rem.u32 %i, %i, {}; mad.lo.u32 %into, %i, 8, %barriers;", kXSlots,
             kXSlots);
        wait_for("empty", lorad::format("%into+{}", kXSlots * 8).c_str(), "%j");
        send_step();
        line("released_{}: add.u32 %step, %step, 1;", place);
    }

    void clear_sums() {
        for (uint32_t i = 0; i < sums(); ++i) line("mov.f32 %sum{}, 0f00000000;", i);
    }

    // Sums of each 8 rows of x: 0 and 1 of rows 2t and 2t + 1 and row g of w, 2 and 3 of row g + 8.
    void store() {
        line("mov.b64 %ptr, %y_at; mul.wide.u32 %wide, %y_stride, 4;");
        for (uint32_t block = 0; block < blocks(); ++block) {
            for (uint32_t row = 0; row < 2; ++row) {
                const uint32_t sum = block * 4 + row;
                line("setp.gt.s32 %is, %n_left, {0}; @%is st.global.f32 [%ptr], %sum{1}; @%is st.global.f32 [%ptr+32], "
                     "%sum{2}; add.u64 %ptr, %ptr, %wide;",
                     block * 8 + row, sum, sum + 2);
            }
            if (block + 1 < blocks()) line("mad.wide.u32 %ptr, %y_stride, {}, %ptr;", 6 * 4);
        }
    }

    void end_band() {
        line("mad.lo.u32 %band, %tile, {}, %warp; setp.le.u32 %is, %band, %last_band; selp.b32 %n_left, %n_rows, 0, "
             "%is;",
             p_.warps);
        end_tile("%tile", "%band", "%tile_ends", [this] { store(); }, [this] { clear_sums(); });
    }

    const PackedWarpgroupProgram p_;
    uint32_t n_places_ = 0;
};

}  // namespace

std::string packed_warpgroup_text(const PackedWarpgroupProgram& program) {
    return PackedWarpgroupWriter(program).write();
}

}  // namespace lorad::gpu
