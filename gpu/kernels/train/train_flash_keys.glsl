// Gradients of a tile of keys and values, a part of train_flash.comp.
const uint kQueryStep = 16;  // queries at a time
const uint kQueryLoads = 2 * kQueryStep * kWords / kThreads;
const uint kRowLoads = kRows * kWords / kThreads;
const uint kTileValuesAt = kRows * kLine, kQueriesAt = 2 * kRows * kLine, kDoutAt = kQueriesAt + kQueryStep * kLine;

shared float query_lse[kQueryStep], query_dots[kQueryStep];
uvec4 held_queries[kQueryLoads];
float held_number;

void fetch_queries(uint token0) {
    [[unroll]] for (uint i = 0; i < kQueryLoads; i++) {
        const uint at = i * kThreads + gl_LocalInvocationIndex, line = at / kWords, token = token0 + line % kQueryStep;
        if (line < kQueryStep) held_queries[i] = word_of(p.heads, p.heads_stride, head * kHeadDim, token, at % kWords);
        else held_queries[i] = word_of(p.dout, p.o_stride, head * kHeadDim, token, at % kWords);
    }
    if (gl_LocalInvocationIndex < 2 * kQueryStep) {
        held_number = of_row(gl_LocalInvocationIndex < kQueryStep ? p.lse : p.dots, gl_NumWorkGroups.x, token0 + gl_LocalInvocationIndex % kQueryStep);
    }
}

void put_queries() {
    [[unroll]] for (uint i = 0; i < kQueryLoads; i++) {
        const uint at = i * kThreads + gl_LocalInvocationIndex;
        stage[kQueriesAt + at / kWords * kLine + at % kWords] = held_queries[i];
    }
    if (gl_LocalInvocationIndex < kQueryStep) query_lse[gl_LocalInvocationIndex] = held_number;
    else if (gl_LocalInvocationIndex < 2 * kQueryStep) query_dots[gl_LocalInvocationIndex - kQueryStep] = held_number;
}

void keys() {
    find_place(gl_WorkGroupID.y);
    const uint first = tile.begin, kv_column = head / kGroup * kHeadDim;
    const float scale = p.scale * kLog2E;
    [[unroll]] for (uint i = 0; i < kRowLoads; i++) {
        const uint at = i * kThreads + gl_LocalInvocationIndex, line = at / kWords, word = at % kWords;
        stage[line * kLine + word] = word_of(p.heads, p.heads_stride, p.k_begin + kv_column, first + line, word);
        stage[kTileValuesAt + line * kLine + word] = word_of(p.heads, p.heads_stride, p.v_begin + kv_column, first + line, word);
    }
    MATRIX dk[kMats], dv[kMats];
    [[unroll]] for (uint m = 0; m < kMats; m++) dk[m] = dv[m] = MATRIX(0.0);
    // Queries from the first key on, up to the last one that sees the last key.
    const uint end = p.window == 0 ? tile.n_tokens : min(tile.n_tokens, first + kRows + p.window);
    fetch_queries(first);
    for (uint token0 = first; token0 < end; token0 += kQueryStep) {
        put_queries();
        barrier();
        fetch_queries(min(token0 + kQueryStep, end));
        MATRIX score = MATRIX(0.0), dp = MATRIX(0.0);
        [[unroll]] for (uint m = 0; m < kMats; m++) {
            MATRIX_A key, value;
            MATRIX_B query, dout;
            coopMatLoad(key, stage, row0 * kLine + m * 2, kLine, gl_CooperativeMatrixLayoutRowMajor);
            coopMatLoad(query, stage, kQueriesAt + m * 2, kLine, gl_CooperativeMatrixLayoutColumnMajor);
            score = coopMatMulAdd(key, query, score);
            coopMatLoad(value, stage, kTileValuesAt + row0 * kLine + m * 2, kLine, gl_CooperativeMatrixLayoutRowMajor);
            coopMatLoad(dout, stage, kDoutAt + m * 2, kLine, gl_CooperativeMatrixLayoutColumnMajor);
            dp = coopMatMulAdd(value, dout, dp);
        }
        const bool is_masked = token0 < first + kRows || token0 + kQueryStep > tile.n_tokens || p.window != 0;
        MATRIX_A weight, dweight;
        [[unroll]] for (uint e = 0; e < 8; e++) {
            const uint column = t2 + column_of(e), query = token0 + column, key = first + row0 + g + row_of(e) * 8;
            float w = exp2(fma(score[e], scale, -query_lse[column]));
            if (is_masked && !(query < tile.n_tokens && is_seen(key, query))) w = 0.0;
            weight[e] = ROUNDED(w);
            const float dscore = w * (dp[e] - query_dots[column]);
            dweight[e] = ROUNDED(dscore);
        }
        [[unroll]] for (uint m = 0; m < kMats; m++) {
            MATRIX_B dout, query;
            coopMatLoad(dout, stage, kDoutAt + m * 2, kLine, gl_CooperativeMatrixLayoutRowMajor);
            dv[m] = coopMatMulAdd(weight, dout, dv[m]);
            coopMatLoad(query, stage, kQueriesAt + m * 2, kLine, gl_CooperativeMatrixLayoutRowMajor);
            dk[m] = coopMatMulAdd(dweight, query, dk[m]);
        }
        barrier();
    }
    const float scales[2] = {p.scale, p.scale}, ones[2] = {1.0, 1.0};
    STORE_SUMS(dk, p.dk, p.o_stride, first, scales)
    STORE_SUMS(dv, p.dv, p.o_stride, first, ones)
}
