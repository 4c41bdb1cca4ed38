// Shared by the kernels for tiles of rows: their part of the context, and where the parts' results go. Include it after
// the constants and push constants.
const uint kPartialBytes = (kHeadDim + 4) * 4;  // max, sum, 0, 0, result

struct Span {
    uint begin, end;  // blocks of the context
};

// Returns this workgroup's split of all blocks that some row of the tile sees; it may be empty.
Span split_span(uint first_position, uint n_rows) {
    const uint window_begin = p.window != 0 && first_position + 1 > p.window ? first_position + 1 - p.window : 0;
    const uint begin = window_begin / kBlockTokens;
    const uint end = (first_position + n_rows + kBlockTokens - 1) / kBlockTokens;
    if (kSplit == 0) return Span(begin, end);
    const uint share = (end - begin + gl_NumWorkGroups.z - 1) / gl_NumWorkGroups.z;
    const uint mine = min(begin + gl_WorkGroupID.z * share, end);
    return Span(mine, min(mine + share, end));
}

// The layout is that of attention.comp.
uint64_t partial_of(uint t, uint head, uint n_heads) {
    return p.partials + ((uint64_t(t) * n_heads + head) * gl_NumWorkGroups.z + gl_WorkGroupID.z) * kPartialBytes;
}

// Clears the padding behind the heads in the rows of y.
void clear_padding(AttentionTile tile, uint head, uint n_heads) {
    if (kSplit != 0 || head != 0) return;
    const uint width = n_heads * kHeadDim / 4;
    const uint64_t y = p.y + uint64_t(tile.row_begin) * p.y_stride * bytes_of(kActType);
    for (uint t = 0; t < tile.n_rows; t++) {
        for (uint i = width + gl_LocalInvocationIndex; i < p.y_stride / 4; i += gl_WorkGroupSize.x)
            store4(y, t * p.y_stride / 4 + i, vec4(0.0), kActType);
    }
}
