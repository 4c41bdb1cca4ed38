// Compiles if the shader compiler knows the bfloat16 type, in buffers and in cooperative matrices.
#version 450
#extension GL_EXT_bfloat16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 32) in;
layout(set = 0, binding = 0) buffer Data { bfloat16_t data[]; };
void main() {
    coopmat<bfloat16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a;
    coopMatLoad(a, data, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
    coopMatStore(a, data, 512, 16, gl_CooperativeMatrixLayoutRowMajor);
    data[gl_GlobalInvocationID.x] = bfloat16_t(float(data[gl_GlobalInvocationID.x]) + 1.0);
}
