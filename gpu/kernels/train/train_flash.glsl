// The parts that attention of training on matrices in registers shares (train_flash.comp). Each lane works on its own
// elements of KHR matrices. Which elements those are is up to the implementation; this assumes what NVIDIA's devices do
// (row_of, column_of), so a test at start-up has to show it. Subgroups of 32.
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kHeadDim = 64;
layout(constant_id = 2) const uint kGroup = 1;  // query heads of a KV head
layout(constant_id = 3) const uint kBackward = 0;  // 0 forward, 1 queries, 2 keys
layout(push_constant, scalar) uniform Push { TrainFlashParams p; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer FlashTileRef { TrainFlashTile v; };

#define MATRIX coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define MATRIX_A coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MATRIX_B coopmat<ELEMENT, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>

const uint kThreads = 128, kRows = kFlashRows;  // of a workgroup; a subgroup has 16 rows
const uint kMats = kHeadDim / 16;
const uint kWords = kHeadDim / 8;   // of 16 bytes, of a head of a row
const uint kLine = kWords + 1;      // of them in shared memory: eight rows fall into different banks
const float kLog2E = 1.4426950408889634;

TrainFlashTile tile;
uint head, g, t2, row0;

void find_place(uint tile_idx) {
    tile = FlashTileRef(p.tiles + uint64_t(tile_idx) * 16).v;
    head = gl_WorkGroupID.x;
    row0 = gl_SubgroupID * 16;
    g = gl_SubgroupInvocationID / 4;
    t2 = gl_SubgroupInvocationID % 4 * 2;
}

// Element e of eight of a matrix of sums, or of an A matrix, lies in row g or g + 8, columns t2, t2 + 1, t2 + 8 and t2
// + 9.
uint row_of(uint e) { return e / 4; }
uint column_of(uint e) { return e % 2 + e / 2 % 2 * 8; }

// Rows of memory by their token in the sequence; beyond its end the last one.
uint64_t row_at(uint token) { return uint64_t(tile.first_row + min(token, tile.n_tokens - 1)); }
uvec4 word_of(uint64_t base, uint stride, uint column, uint token, uint word) { return Uvec4Ref(base + (row_at(token) * stride + column + word * 8) * 2).v; }
float of_row(uint64_t base, uint n_heads, uint token) { return FloatRef(base + (row_at(token) * n_heads + head) * 4).v; }

bool is_seen(uint key, uint query) { return key <= query && (p.window == 0 || key + p.window > query); }

// The subgroup's 16 rows of sums, each times the factor of its row, to columns of the head.
#define STORE_SUMS(sums, to, stride, first_token, factors)                                                                              \
    [[unroll]] for (uint m = 0; m < kMats; m++) {                                                                                       \
        MATRIX result = sums[m];                                                                                                        \
        [[unroll]] for (uint e = 0; e < 8; e += 2) {                                                                                    \
            const uint token = first_token + row0 + row_of(e) * 8 + g;                                                                  \
            if (token < tile.n_tokens)                                                                                                  \
                Vec2Ref(to + (row_at(token) * stride + head * kHeadDim + m * 16 + t2 + column_of(e)) * 4).v = vec2(result[e], result[e + 1]) * factors[row_of(e)]; \
        }                                                                                                                               \
    }
