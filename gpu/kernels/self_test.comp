// Shows that a device multiplies, counts and reads through addresses as every kernel relies on.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/self_test.params.h"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint kMode = kSelfTestScale;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words {
    uint word[];
};
layout(push_constant, scalar) uniform Push {
    SelfTestParams p;
};

void main() {
    Words to = Words(p.to);
    const uint i = gl_GlobalInvocationID.x;
    if (kMode == kSelfTestCount) {
        atomicAdd(to.word[0], 1u);
    } else if (i < p.n) {
        to.word[i] = Words(p.from).word[i] * p.factor + p.summand;
    }
}
