// Attention of a tile of queries, or their gradients, a part of train_flash.comp.
const uint kStep = 32;  // keys at a time
const uint kLoads = 2 * kStep * kWords / kThreads;
const uint kValuesAt = kStep * kLine;
const float kUnseen = -1e30, kLeast = -1e20;

uvec4 held[kLoads];

void fetch(uint token0) {
    const uint kv_column = head / kGroup * kHeadDim;
    [[unroll]] for (uint i = 0; i < kLoads; i++) {
        const uint at = i * kThreads + gl_LocalInvocationIndex, line = at / kWords;
        held[i] = word_of(p.heads, p.heads_stride, (line < kStep ? p.k_begin : p.v_begin) + kv_column, token0 + line % kStep, at % kWords);
    }
}

void put() {
    [[unroll]] for (uint i = 0; i < kLoads; i++) {
        const uint at = i * kThreads + gl_LocalInvocationIndex;
        stage[at / kWords * kLine + at % kWords] = held[i];
    }
}

// The tile's rows in shared memory.
void put_rows(uint64_t base, uint stride) {
    [[unroll]] for (uint i = 0; i < kLoads; i++) {
        const uint at = i * kThreads + gl_LocalInvocationIndex;
        stage[at / kWords * kLine + at % kWords] = word_of(base, stride, head * kHeadDim, tile.begin + at / kWords, at % kWords);
    }
}

void rows() {
    find_place(p.n_tiles - 1 - gl_WorkGroupID.y);  // those with the most keys first
    const uint first = tile.begin, last = min(first + kRows, tile.n_tokens) - 1;
    const float scale = p.scale * kLog2E;
    MATRIX_A query[kMats], dout[kMats];
    MATRIX acc[kMats];
    put_rows(p.heads, p.heads_stride);
    barrier();
    [[unroll]] for (uint m = 0; m < kMats; m++) coopMatLoad(query[m], stage, row0 * kLine + m * 2, kLine, gl_CooperativeMatrixLayoutRowMajor);
    barrier();
    if (kBackward != 0) {
        put_rows(p.dout, p.o_stride);
        barrier();
        [[unroll]] for (uint m = 0; m < kMats; m++) coopMatLoad(dout[m], stage, row0 * kLine + m * 2, kLine, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
    }
    [[unroll]] for (uint m = 0; m < kMats; m++) acc[m] = MATRIX(0.0);
    // Two numbers for rows g and g + 8. Forward: greatest scores times scale, and this lane's part of the sums;
    // backward: lse and dots.
    float top[2], total[2];
    [[unroll]] for (uint r = 0; r < 2; r++) {
        top[r] = kBackward == 0 ? kLeast : of_row(p.lse, gl_NumWorkGroups.x, first + row0 + r * 8 + g);
        total[r] = kBackward == 0 ? 0.0 : of_row(p.dots, gl_NumWorkGroups.x, first + row0 + r * 8 + g);
    }
    const uint begin = p.window != 0 && first + 1 > p.window ? (first + 1 - p.window) / kStep * kStep : 0;
    fetch(begin);
    for (uint token0 = begin; token0 <= last; token0 += kStep) {
        put();
        barrier();
        fetch(min(token0 + kStep, last));  // of the last step again, from some token on
        MATRIX score[2], dp[2];
        [[unroll]] for (uint n = 0; n < 2; n++) score[n] = dp[n] = MATRIX(0.0);
        [[unroll]] for (uint m = 0; m < kMats; m++) {
            [[unroll]] for (uint n = 0; n < 2; n++) {
                MATRIX_B key;
                coopMatLoad(key, stage, n * 16 * kLine + m * 2, kLine, gl_CooperativeMatrixLayoutColumnMajor);
                score[n] = coopMatMulAdd(query[m], key, score[n]);
                if (kBackward != 0) {
                    MATRIX_B value;
                    coopMatLoad(value, stage, kValuesAt + n * 16 * kLine + m * 2, kLine, gl_CooperativeMatrixLayoutColumnMajor);
                    dp[n] = coopMatMulAdd(dout[m], value, dp[n]);
                }
            }
        }
        if (token0 + kStep > first || p.window != 0) {
            [[unroll]] for (uint n = 0; n < 2; n++) {
                [[unroll]] for (uint e = 0; e < 8; e++) {
                    const bool seen = is_seen(token0 + n * 16 + t2 + column_of(e), first + row0 + g + row_of(e) * 8);
                    score[n][e] = seen ? score[n][e] : kUnseen;
                }
            }
        }
        MATRIX_A weight[2];
        if (kBackward == 0) {
            float most[2];
            [[unroll]] for (uint r = 0; r < 2; r++) {
                most[r] = kUnseen;
                [[unroll]] for (uint n = 0; n < 2; n++) {
                    [[unroll]] for (uint e = 0; e < 4; e++) most[r] = max(most[r], score[n][r * 4 + e]);
                }
                most[r] = max(most[r], subgroupShuffleXor(most[r], 1));
                most[r] = max(top[r], max(most[r], subgroupShuffleXor(most[r], 2)) * scale);
            }
            MATRIX fades;
            [[unroll]] for (uint r = 0; r < 2; r++) {
                const float fade = exp2(top[r] - most[r]);
                top[r] = most[r];
                total[r] *= fade;
                [[unroll]] for (uint e = 0; e < 4; e++) fades[r * 4 + e] = fade;
            }
            [[unroll]] for (uint m = 0; m < kMats; m++) acc[m] = acc[m] * fades;
            [[unroll]] for (uint n = 0; n < 2; n++) {
                [[unroll]] for (uint e = 0; e < 8; e++) {
                    const float w = exp2(fma(score[n][e], scale, -top[row_of(e)]));
                    total[row_of(e)] += w;
                    weight[n][e] = ROUNDED(w);
                }
            }
        } else {
            [[unroll]] for (uint n = 0; n < 2; n++) {
                [[unroll]] for (uint e = 0; e < 8; e++) {
                    const float w = exp2(fma(score[n][e], scale, -top[row_of(e)]));
                    const float dscore = w * (dp[n][e] - total[row_of(e)]);
                    weight[n][e] = ROUNDED(dscore);
                }
            }
        }
        const uint from = kBackward == 0 ? kValuesAt : 0;
        [[unroll]] for (uint n = 0; n < 2; n++) {
            [[unroll]] for (uint m = 0; m < kMats; m++) {
                MATRIX_B value;
                coopMatLoad(value, stage, from + n * 16 * kLine + m * 2, kLine, gl_CooperativeMatrixLayoutRowMajor);
                acc[m] = coopMatMulAdd(weight[n], value, acc[m]);
            }
        }
        barrier();
    }
    float factor[2];
    [[unroll]] for (uint r = 0; r < 2; r++) {
        if (kBackward != 0) {
            factor[r] = p.scale;
            continue;
        }
        total[r] += subgroupShuffleXor(total[r], 1);
        total[r] += subgroupShuffleXor(total[r], 2);
        factor[r] = 1.0 / total[r];
        const uint token = first + row0 + r * 8 + g;
        if (t2 == 0 && token <= last) FloatRef(p.lse + (row_at(token) * gl_NumWorkGroups.x + head) * 4).v = top[r] + log2(total[r]);
    }
    if (kBackward == 0) {
        STORE_SUMS(acc, p.o, p.o_stride, first, factor)
    } else {
        STORE_SUMS(acc, p.dq, p.dq_stride, first, factor)
    }
}
