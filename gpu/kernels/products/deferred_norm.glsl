// The factors of a deferred norm's rows (deferred_norm.h) for the product that reads its result, as a matrix to
// multiply accumulators by: a row of x is a column of these.
// After common.glsl; in matmul_coopmat.comp, whose `stage` it borrows before the first step. NORM_TILES:
// matmul_residual's tiles of columns, each with its sums of squares.
const uint kNormTeam = NORM_ROWS / 4;  // threads for a tile, four rows each
const uint kNormTilesAtOnce = THREADS / kNormTeam;
const uint kNormLoads = (NORM_TILES + kNormTilesAtOnce - 1) / kNormTilesAtOnce;

shared float row_factors[16 * 16];  // [row][16]
vec4 norm_squares[kNormLoads];
float norm_scale;

// Comes in front of the first words of w, or the squares would arrive behind these.
void ask_for_squares() {
    const uint thread = gl_LocalInvocationIndex, team = thread / kNormTeam, quad = thread % kNormTeam;
    [[unroll]] for (uint i = 0; i < kNormLoads; ++i)
        norm_squares[i] = Vec4Ref(p.norms + kDeferredSquares + 4 * (min(team + i * kNormTilesAtOnce, NORM_TILES - 1) * NORM_ROWS + quad * 4)).v;
    norm_scale = FloatRef(p.norms + kDeferredScale + min(thread, NORM_ROWS - 1) * 4).v;
}

// All threads; a barrier is to follow before the factors are read. One workgroup tells the inverses for the norm that
// is next.
void find_row_factors(const bool tells) {
    const uint thread = gl_LocalInvocationIndex, team = thread / kNormTeam;
    vec4 sum = vec4(0.0);
    [[unroll]] for (uint i = 0; i < kNormLoads; ++i) sum += team + i * kNormTilesAtOnce < NORM_TILES ? norm_squares[i] : vec4(0.0);
    stage[thread] = floatBitsToUint(sum);
    barrier();
    if (thread >= NORM_ROWS) return;
    float squares = 0.0;
    [[unroll]] for (uint i = 0; i < kNormTilesAtOnce; ++i) squares += uintBitsToFloat(stage[i * kNormTeam + thread / 4][thread % 4]);
    const float inverse = inversesqrt(squares / float(p.hidden) + p.eps);
    [[unroll]] for (uint i = 0; i < 16; ++i) row_factors[thread * 16 + i] = inverse / norm_scale;
    if (tells) FloatRef(p.norms + kDeferredInverse + thread * 4).v = inverse;
}

coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> row_factor_matrix() {
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> factors;
    coopMatLoad(factors, row_factors, 0, 16, gl_CooperativeMatrixLayoutColumnMajor);
    return factors;
}
