// The product B A for kDeltaRows rows of a weight matrix and 8 neighbouring columns in each thread, added up in f32 in
// the order of the ranks. Needs common.glsl.
//
// B's part of the rows stands in shared memory, already times the row's factor; A comes through the cache, eight
// columns at a time, each word used for kDeltaRows rows.
const uint kDeltaRows = 8;
const uint kRankTile = 32;   // ranks of B in shared memory at once
const uint kRankStep = 4;    // ranks whose loads of A are in flight together
shared vec4 b_tile[kRankTile][kDeltaRows / 4];
shared float row_factor[kDeltaRows];

// acc[j] += sum_r b_tile[r][j] * a[r] for n_ranks ranks from r0 on; type is a literal, so that no load waits behind a
// branch.
void add_ranks(inout Eight acc[kDeltaRows], uint64_t a, uint row_bytes, uint chunk, uint n_ranks, const uint type) {
    for (uint r = 0; r < n_ranks; r += kRankStep) {
        Eight e[kRankStep];
        [[unroll]] for (uint s = 0; s < kRankStep; s++) {
            e[s] = load8(a + uint64_t(min(r + s, n_ranks - 1)) * row_bytes, chunk, type);
        }
        [[unroll]] for (uint s = 0; s < kRankStep; s++) {
            [[unroll]] for (uint j = 0; j < kDeltaRows; j++) {
                float b = b_tile[r + s][j / 4][j % 4];  // zero behind the rank
                acc[j].lo = fma(e[s].lo, vec4(b), acc[j].lo);
                acc[j].hi = fma(e[s].hi, vec4(b), acc[j].hi);
            }
        }
    }
}

// acc[j] += row_factor[j] * (B A)[row0 + j], columns 8 chunk .. + 7. All threads of the workgroup call it, those with
// `has_column` false without one of their own. Rows from n_rows on get nothing. row_factor is ready and visible.
void add_product(inout Eight acc[kDeltaRows], uint64_t a, uint64_t b, uint rank, uint type, uint row0, uint n_rows, uint stride,
                 uint chunk, bool has_column) {
    uint a_row_bytes = stride * bytes_of(type);
    uint64_t b_row_bytes = uint64_t((rank + 7) / 8 * 8 * bytes_of(type));
    for (uint r0 = 0; r0 < rank; r0 += kRankTile) {
        barrier();  // the tile before has been read
        for (uint i = gl_LocalInvocationIndex; i < kRankTile * kDeltaRows; i += gl_WorkGroupSize.x) {
            uint j = i / kRankTile, r = i % kRankTile;
            bool inside = r0 + r < rank && row0 + j < n_rows;
            b_tile[r][j / 4][j % 4] = inside ? row_factor[j] * load1(b + (row0 + j) * b_row_bytes, r0 + r, type) : 0.0;
        }
        barrier();
        if (!has_column) continue;
        uint n_ranks = min(rank - r0, kRankTile);
        uint64_t a_tile = a + uint64_t(r0) * a_row_bytes;
        if (type == 0) {
            add_ranks(acc, a_tile, a_row_bytes, chunk, n_ranks, 0);
        } else if (type == 1) {
            add_ranks(acc, a_tile, a_row_bytes, chunk, n_ranks, 1);
        } else {
            add_ranks(acc, a_tile, a_row_bytes, chunk, n_ranks, 2);
        }
    }
}
