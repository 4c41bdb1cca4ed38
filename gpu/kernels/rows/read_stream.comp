// read_stream: reads n_words 16-byte words once and tells whether one of them is `wanted` four times. It measures the
// memory throughput of a kernel that does nothing else; benchmarks divide by it.
// grid (any); neighbouring threads read neighbouring words, kLoads of them in flight.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/rows/read_stream.params.h"

layout(constant_id = 1) const uint kLoads = 8;
layout(push_constant, scalar) uniform Push { ReadStreamParams p; };

void main() {
    uint tile = gl_WorkGroupSize.x * kLoads;
    uint word = gl_WorkGroupID.x * tile + gl_LocalInvocationIndex;
    bool found = false;
    for (; word + (kLoads - 1) * gl_WorkGroupSize.x < p.n_words; word += gl_NumWorkGroups.x * tile) {
        uvec4 v[kLoads];
        [[unroll]] for (uint i = 0; i < kLoads; i++) v[i] = Uvec4Ref(p.from + uint64_t(word + i * gl_WorkGroupSize.x) * 16).v;
        [[unroll]] for (uint i = 0; i < kLoads; i++) found = found || all(equal(v[i], uvec4(p.wanted)));
    }
    // The last tile, where it is not whole.
    for (; word < p.n_words; word += gl_WorkGroupSize.x) {
        found = found || all(equal(Uvec4Ref(p.from + uint64_t(word) * 16).v, uvec4(p.wanted)));
    }
    if (found) UintRef(p.to).v = 1;
}
