// conv_state: keeps the last taps - 1 inputs of a causal convolution of each run of rows for the step that goes on with
// its sequence
//   state[to][i][ch] = input of the run's row n_rows - (taps - 1) + i; rows before its first are those of state[from],
//       or zeros
// The input of channel ch is m[t][ch], or with a factor m[t][ch] * m[t][factor + ch].
// Likewise for the states on its way that are saved. In place where from = to: the last that is written, by a thread
// that has read all of its channel. grid (ceil(channels / workgroup), runs)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/mixers/conv_state.params.h"
#include "gpu/kernels/mixers/state_runs.glsl"

layout(constant_id = 1) const uint kTaps = 4;
layout(constant_id = 2) const uint kHasFactor = 0;
layout(push_constant, scalar) uniform Push { ConvStateParams p; };

const uint kKept = kTaps - 1;

// The inputs before the end of the run's first n_rows rows.
void keep(StateRun run, uint channel, uint n_rows, uint to) {
    float kept[kKept];
    for (uint i = 0; i < kKept; i++) {
        kept[i] = 0.0;
        const uint back = kKept - i;  // rows before the end
        if (back <= n_rows) {
            const uint64_t row = p.m + uint64_t(run.row_begin + n_rows - back) * p.m_stride * 4;
            kept[i] = FloatRef(row + channel * 4).v;
            if (kHasFactor != 0) kept[i] *= FloatRef(row + (p.factor + channel) * 4).v;
        } else if (run.from != kNoState) {
            kept[i] = FloatRef(p.state + (uint64_t(run.from) * p.slot_stride + (i + n_rows) * p.channels + channel) * 4).v;
        }
    }
    for (uint i = 0; i < kKept; i++) FloatRef(p.state + (uint64_t(to) * p.slot_stride + i * p.channels + channel) * 4).v = kept[i];
}

void main() {
    const uint channel = gl_GlobalInvocationID.x;
    if (gl_WorkGroupID.y >= HeaderRef(p.step).v.n_state_runs || channel >= p.channels) return;
    const StateRun run = run_at(p.runs, gl_WorkGroupID.y);
    for (uint save = 0; save < kStateSaves; save++) {
        if (run.saves[save].n_rows != 0) keep(run, channel, run.saves[save].n_rows, run.saves[save].to);
    }
    keep(run, channel, run.n_rows, run.to);
}
