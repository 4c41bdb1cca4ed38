// Shows that a device computes, counts and reads addresses as every kernel relies on; see gpu/self_test.h.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "gpu/kernels/self_test.params.h"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint MODE = 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words {
    uint word[];
};
layout(push_constant, scalar) uniform Push {
    SelfTestParams p;
};

void main() {
    Words from = Words(p.from);
    Words to = Words(p.to);
    const uint i = gl_GlobalInvocationID.x;
    if (MODE == SELF_TEST_COUNT) {
        atomicAdd(to.word[0], 1);
    } else if (i < p.n) {
        to.word[i] = from.word[i] * p.factor + p.summand;
    }
}
