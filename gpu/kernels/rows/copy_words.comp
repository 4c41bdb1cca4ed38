// copy_words: to[i] = from[i], words of 16 bytes. For the little that goes between host and device in each step: a copy
// of the queue's own makes what is before and behind it wait longer than a dispatch does (docs/PERFORMANCE.md).
// grid (ceil(n / workgroup size))
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/rows/copy_words.params.h"

layout(push_constant, scalar) uniform Push { CopyWordsParams p; };

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i < p.n_words) Uvec4Ref(p.to + uint64_t(i) * 16).v = Uvec4Ref(p.from + uint64_t(i) * 16).v;
}
