// Compiles if the shader compiler knows NV cooperative matrices 2 (workgroup scope, tensor layouts).
#version 450
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 128) in;
layout(set = 0, binding = 0) buffer Data { float16_t data[]; };
void main() {
    tensorLayoutNV<2, gl_CooperativeMatrixClampModeConstantNV> layout2 =
        createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
    layout2 = setTensorLayoutDimensionNV(layout2, 64, 64);
    coopmat<float16_t, gl_ScopeWorkgroup, 64, 32, gl_MatrixUseA> a;
    coopMatLoadTensorNV(a, data, 0, sliceTensorLayoutNV(layout2, 0, 64, 0, 32));
    coopMatStoreTensorNV(a, data, 4096, sliceTensorLayoutNV(layout2, 0, 64, 0, 32));
}
