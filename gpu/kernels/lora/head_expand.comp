// head_expand: logits[i][n] += sum_u use_u.scale * (head_scale_u * sum_r B_u[n][r] * low[i][u][r] + head_bias_u[n])
//   B    [vocab][rank rounded up to 8]  each adapter's own type
//   low  [i][kStepUsesMax][kMaxRank]       f32, by head_rows
// grid (ceil(vocab / 4 / workgroup), logit rows); four logits per thread. Rows without these extras are not touched.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/lora/extras.params.h"
#include "gpu/kernels/lora/extras.glsl"

layout(push_constant, scalar) uniform Push { HeadExtrasParams p; };

void main() {
    uint i = gl_WorkGroupID.y;
    uint n = gl_GlobalInvocationID.x * 4;
    if (i >= UintRef(p.step + 4).v || n >= p.vocab) return;  // StepHeader.n_logit_rows
    StepRow row = step_row(p.step, LogitRowRef(p.logit_rows + uint64_t(i) * 8).v.row).v;
    vec4 sum = vec4(0.0);
    bool changes = false;
    for (uint u = 0; u < row.n_uses; u++) {
        StepUse use = row_use(p.uses, row, u);
        ExtrasRef e = slot_extras(p.extras, use.slot);
        if (e.v.head_rank != 0) {
            uint64_t low = p.low + uint64_t(i * kStepUsesMax + u) * (kMaxRank * 4);
            vec4 delta = low_rank_product(e.v.head_b, e.v.head_lora_type, e.v.head_rank, n, p.vocab, low, 0);
            sum = fma(delta, vec4(use.scale * e.v.head_scale), sum);
            changes = true;
        }
        if (e.v.head_bias != 0) {
            for (uint c = 0; c < 4; c++) {
                if (n + c < p.vocab) sum[c] = fma(use.scale, FloatRef(e.v.head_bias + uint64_t(n + c) * 4).v, sum[c]);
            }
            changes = true;
        }
    }
    if (!changes) return;
    uint64_t logits = p.logits + uint64_t(i) * p.logits_stride * 4;
    store4(logits, n / 4, load4(logits, n / 4, 0) + sum, 0);
}
