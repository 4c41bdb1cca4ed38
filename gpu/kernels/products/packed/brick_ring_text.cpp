#include "gpu/kernels/products/packed/brick_ring_text.h"

#include "gpu/kernels/products/packed/packed_rows_text.h"
#include "proto/base/check.h"

namespace lorad::gpu {

BrickRingWriter::BrickRingWriter(WeightFormat format, ScalarType type, uint32_t stride, uint32_t slots)
    : PackedDealWriter(format, type, bricks_per_row(number_of(format), stride)), stride_(stride), slots_(slots) {
    CHECK(has_packed_rows(format) && stride % 128 == 0 && slot_bytes() % 16 == 0 && slots > 0);
}

void BrickRingWriter::declare_ring() {
    line(".reg .pred %more, %copies;");
    line(".reg .b32 %to_copy, %into, %lane_codes, %lane_high, %lane_record, %lane_second, %codes_at, %high_at, "
         "%record_at, %second_at;");
    line(".reg .b64 %from;");
    declare_codes();
}

void BrickRingWriter::start_ring() {
    line("mul.lo.u32 %lane_codes, %lane, 16;");
    place_lane();
    start_codes();
}

// The next of the warp's bricks into the next slot, or nothing behind the last.
void BrickRingWriter::copy_brick() {
    const uint32_t pieces = slot_bytes() / 16;
    line("setp.ne.u32 %more, %to_copy, 0; mad.lo.u32 %into, %lane, 16, %slot;");
    for (uint32_t i = 0; i < pieces; i += 32) {
        const bool is_whole = i + 32 <= pieces;
        if (!is_whole) line("setp.lt.and.u32 %copies, %lane, {}, %more;", pieces - i);
        line("@{} cp.async.cg.shared.global.L2::cache_hint [%into+{}], [%from+{}], 16, %policy;",
             is_whole ? "%more" : "%copies", i * 16, i * 16);
    }
    line("cp.async.commit_group; @%more sub.u32 %to_copy, %to_copy, 1; add.u64 %from, %from, {};", slot_bytes());
    follow_copy();
    line("add.u32 %slot, %slot, {}; setp.eq.u32 %is, %slot, %ring_end; selp.b32 %slot, %ring, %slot, %is;",
         slot_bytes());
}

void BrickRingWriter::fill_ring() {
    for (uint32_t i = 0; i < slots_; ++i) copy_brick();
}

void BrickRingWriter::take_brick() {
    line("cp.async.wait_group {}; bar.warp.sync 0xffffffff;", slots_ - 1);
    line("add.u32 %codes_at, %slot, %lane_codes; add.u32 %high_at, %slot, %lane_high; add.u32 %record_at, %slot, "
         "%lane_record; add.u32 %second_at, %slot, %lane_second;");
    for (uint32_t half = 0; half < halves(); ++half) fetch_codes(half);
    fetch_records();
}

void BrickRingWriter::replace_brick() {
    line("bar.warp.sync 0xffffffff;");
    copy_brick();
}

}  // namespace lorad::gpu
