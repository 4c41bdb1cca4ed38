#include "gpu/kernels/products/warpgroup_direct_text.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "gpu/kernels/products/matmul.params.h"
#include "gpu/kernels/products/warpgroup_writer.h"
#include "proto/base/check.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kSets = 2;                // steps of w in registers
constexpr uint32_t kSlots = 3;               // steps of x in shared memory
constexpr uint32_t kPieces = kDirectK / 32;  // of a step: two loads of 16 bytes, two matrix products
constexpr uint32_t kChunks = kDirectK / 8;   // of 16 bytes in a row of a step

class DirectWriter : WarpgroupWriter {
  public:
    explicit DirectWriter(const DirectProgram& program) : p_(program) {
        CHECK(p_.column_blocks >= 1 && p_.column_blocks <= kDirectColumnBlocksMax && p_.row_blocks >= 1 &&
              rows() <= kDirectRowsMax && p_.stride % kDirectK == 0);
    }

    std::string write() {
        declare();
        point_at_w();
        point_at_x();
        begin();
        loop();
        store_sums();
        line("done: ret;");
        line("}}");
        return std::move(text_);
    }

  private:
    uint32_t rows() const { return 16 * p_.row_blocks; }
    uint32_t columns() const { return kDirectColumnBlock * p_.column_blocks; }
    uint32_t sums() const { return rows() / 2; }  // of a thread
    uint32_t slot_bytes() const { return rows() * kDirectK * 2; }
    uint32_t ring_bytes() const { return kSlots * slot_bytes(); }
    // threads that fetch x
    uint32_t loaders() const { return std::min(std::bit_floor(p_.threads()), rows() * kChunks); }
    // that all of them fetch with one load each
    uint32_t load_rows() const { return loaders() / kChunks; }
    uint64_t row_bytes() const { return uint64_t{p_.stride} * 2; }

    void declare() {
        begin_entry(p_.threads(), sizeof(MatmulDirectParams));
        line(".minnctapersm 1");
        line("{{");
        line(".shared .align 1024 .b8 ring[{}];", ring_bytes());
        line(".reg .pred %is, %loads, %has;");
        line(".reg .b32 %thread, %warp, %t, %g, %column, %split, %begin, %steps, %step, %first, %second, %next, %k, "
             "%k_step, %k_last, %into, %slot_in, %slot_out;");
        line(".reg .b32 %y_stride, %split_stride, %k_per_split, %zero;");
        line(".reg .b64 %w, %w_next, %at, %at_next, %x, %y, %y1, %to_row, %to_rows, %wide, %matrix, %slot;");
        line(".reg .f32 %sum<{}>;", sums());
        line(".reg .b32 %held<{}>, %a<8>;", kSets * kPieces * 8);
        line("mov.u32 %thread, %tid.x; shr.u32 %warp, %thread, 5; and.b32 %t, %thread, 3; shr.u32 %g, %thread, 2; "
             "and.b32 %g, %g, 7;");
        line("ld.param.u32 %y_stride, [params+{}]; ld.param.u32 %split_stride, [params+{}]; ld.param.u32 %k_per_split, "
             "[params+{}];",
             MATMUL_PARAM(y_stride), MATMUL_PARAM(split_stride), MATMUL_PARAM(k_per_split));
        line("ld.param.u32 %zero, [params+{}];", MATMUL_PARAM(pad));  // to the compiler any number
        line("mov.u32 %split, %ctaid.y; mul.lo.u32 %begin, %split, %k_per_split; add.u32 %steps, %begin, %k_per_split; "
             "min.u32 %steps, %steps, {};",
             p_.stride);
        line("sub.u32 %steps, %steps, %begin; shr.u32 %steps, %steps, {};", std::countr_zero(kDirectK));
    }

    // A thread's rows of w are two neighbouring ones, whose sums it stores together. Warps that have none load the same
    // words in each step, which the cache has:
    // of another workgroup's rows, or of the matrix' last ones.
    void point_at_w() {
        line("mov.u32 %column, %ctaid.z; mul.lo.u32 %column, %column, {}; mad.lo.u32 %column, %warp, 16, %column; "
             "mad.lo.u32 %column, %g, 2, %column;",
             columns());
        line("setp.lt.u32 %has, %warp, {}; setp.lt.and.u32 %has, %column, %y_stride, %has; selp.u32 %k_step, {}, 0, "
             "%has;",
             p_.column_blocks, kDirectK * 2);
        line("sub.u32 %first, %y_stride, 2; min.u32 %first, %first, %column;");
        line("ld.param.u64 %w, [params+{}]; mul.wide.u32 %wide, %first, {}; add.u64 %w, %w, %wide; mul.wide.u32 "
             "%wide, %begin, 2; add.u64 %w, %w, %wide;",
             MATMUL_PARAM(w), row_bytes());
        line("mul.wide.u32 %wide, %t, 16; add.u64 %w, %w, %wide; add.u64 %w_next, %w, {};", row_bytes());
        line("sub.u32 %k_last, %steps, 1; mul.lo.u32 %k_last, %k_last, {}; mov.u32 %k, 0;", kDirectK * 2);
    }

    // %x: this thread's first chunk. %into: where it goes in the first slot.
    void point_at_x() {
        line("shr.u32 %first, %thread, {}; and.b32 %second, %thread, {}; setp.lt.u32 %loads, %thread, {};",
             std::countr_zero(kChunks), kChunks - 1, loaders());
        line("ld.param.u64 %x, [params+{}]; mul.wide.u32 %wide, %first, {}; add.u64 %x, %x, %wide; mul.wide.u32 "
             "%wide, %begin, 2; add.u64 %x, %x, %wide;",
             MATMUL_PARAM(x), row_bytes());
        line("mul.wide.u32 %wide, %second, 16; add.u64 %x, %x, %wide;");
        line("xor.b32 %into, %first, %second; and.b32 %into, %into, 7; shl.b32 %into, %into, 4; mad.lo.u32 %into, "
             "%first, {}, %into;",
             kSwizzledRowBytes);
        line("shr.u32 %next, %second, 3; mad.lo.u32 %into, %next, {}, %into; mov.u32 %next, ring; add.u32 %into, "
             "%into, %next;",
             rows() * kSwizzledRowBytes);
        line("shr.u32 %next, %next, 4; cvt.u64.u32 %matrix, %next; or.b64 %matrix, %matrix, {};", kSwizzledDescriptor);
    }

    // %at, %at_next: in both rows the step to load next, or the last one: loads without a condition.
    void point_at_step() { line("cvt.u64.u32 %wide, %k; add.u64 %at, %w, %wide; add.u64 %at_next, %w_next, %wide;"); }
    void next_step() { line("add.u32 %k, %k, %k_step; min.u32 %k, %k, %k_last;"); }

    // A piece is 64 bytes of a row, of four threads; all 256 bytes of a step are loaded at once.
    void load_w(uint32_t set, uint32_t piece) {
        const uint32_t r = (set * kPieces + piece) * 8;
        line("ld.global.L2::256B.v4.b32 {{%held{}, %held{}, %held{}, %held{}}}, [%at+{}];", r, r + 1, r + 2, r + 3,
             piece * 64);
        line("ld.global.L2::256B.v4.b32 {{%held{}, %held{}, %held{}, %held{}}}, [%at_next+{}];", r + 4, r + 5, r + 6,
             r + 7, piece * 64);
    }

    // Loads the step that %x is at, and moves %x on.
    void load_x() {
        for (uint32_t row = 0; row < rows(); row += load_rows()) {
            line("cp.async.cg.shared.global [%first+{}], [%x+{}], 16;", row * kSwizzledRowBytes, row * row_bytes());
        }
        line("add.u64 %x, %x, {};", kDirectK * 2);
    }

    void begin() {
        for (uint32_t i = 0; i < sums(); ++i) line("mov.f32 %sum{}, 0f00000000;", i);
        for (uint32_t set = 0; set < kSets; ++set) {
            point_at_step();
            for (uint32_t piece = 0; piece < kPieces; ++piece) load_w(set, piece);
            next_step();
        }
        for (uint32_t slot = 0; slot + 1 < kSlots; ++slot) {
            line("setp.le.u32 %is, %steps, {0}; @%is bra begun{0}; @!%loads bra begun{0}; add.u32 %first, %into, {1};",
                 slot, slot * slot_bytes());
            load_x();
            line("begun{}: cp.async.commit_group;", slot);
        }
        line("mov.u32 %step, 0; mov.u32 %slot_out, 0; mov.u32 %slot_in, {};", (kSlots - 1) * slot_bytes());
    }

    void loop() {
        line("loop:");
        for (uint32_t set = 0; set < kSets; ++set) {
            // This step's x is there for all threads, and all are done with that of the step before, in whose slot the
            // next but one goes.
            line("cp.async.wait_group {}; bar.sync 0;", kSlots - 2);
            line("add.u32 %next, %step, {}; setp.ge.u32 %is, %next, %steps; @%is bra none{}; @!%loads bra none{}; "
                 "add.u32 %first, %into, %slot_in;",
                 kSlots - 1, set, set);
            load_x();
            line("none{}: cp.async.commit_group;", set);
            line("shr.u32 %first, %slot_out, 4; cvt.u64.u32 %wide, %first; add.u64 %slot, %matrix, %wide;");
            advance("%slot_in", slot_bytes(), ring_bytes());
            advance("%slot_out", slot_bytes(), ring_bytes());
            point_at_step();
            for (uint32_t piece = 0; piece < kPieces; ++piece) {
                take(set, piece);
                load_w(set, piece);
                multiply(piece);
            }
            next_step();
            line("add.u32 %step, %step, 1; setp.ge.u32 %is, %step, %steps; @%is bra store;");
        }
        line("bra loop;");
    }

    // Copies to the registers of two A matrices, which have words of both rows in turns. It is an operation that the
    // compiler cannot drop; otherwise the copy would be made at the loads, and wait for them there.
    void take(uint32_t set, uint32_t piece) {
        const uint32_t r = (set * kPieces + piece) * 8;
        for (uint32_t i = 0; i < 8; ++i) line("or.b32 %a{}, %held{}, %zero;", i, r + i / 2 + i % 2 * 4);
    }

    void multiply(uint32_t piece) {
        line("wgmma.fence.sync.aligned;");
        for (uint32_t half = 0; half < 2; ++half) {
            line("add.u64 %wide, %slot, {};", swizzled_offset(2 * piece + half, rows()));
            multiply_16(rows(), p_.type, 0, four("%a", 4 * half), "%wide");
        }
        line("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
    }

    // A thread has of each 8 rows of x two neighbouring ones, each of both of its columns.
    void store_sums() {
        line("store:");
        prefetch_pages(offsetof(MatmulDirectParams, prefetch));
        line("@!%has bra done; ld.param.u64 %y, [params+{}]; mul.wide.u32 %at, %split, %split_stride; shl.b32 %first, "
             "%t, 1;",
             MATMUL_PARAM(y));
        line("mul.wide.u32 %wide, %first, %y_stride; add.u64 %at, %at, %wide; cvt.u64.u32 %wide, %column; add.u64 %at, "
             "%at, %wide; shl.b64 %at, %at, 2;");
        line("add.u64 %y, %y, %at; mul.wide.u32 %to_row, %y_stride, 4; mul.wide.u32 %to_rows, %y_stride, 32;");
        for (uint32_t i = 0; i < sums(); i += 4) {
            line("st.global.v2.f32 [%y], {{%sum{}, %sum{}}}; add.u64 %y1, %y, %to_row; st.global.v2.f32 [%y1], "
                 "{{%sum{}, %sum{}}}; add.u64 %y, %y, %to_rows;",
                 i, i + 2, i + 1, i + 3);
        }
    }

    const DirectProgram& p_;
};

}  // namespace

std::string warpgroup_direct_text(const DirectProgram& program) { return DirectWriter(program).write(); }

}  // namespace lorad::gpu
