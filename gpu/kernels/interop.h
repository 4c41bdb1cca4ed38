// Lets C++ and GLSL read the same struct definitions: scalar layout, fixed-width types, 64-bit addresses. A shader
// includes this file (through step_state.h or common.glsl) before anything else.
#ifdef __cplusplus
#pragma once
#endif
#ifndef LORAD_GPU_KERNELS_INTEROP_H
#define LORAD_GPU_KERNELS_INTEROP_H

#ifdef __cplusplus
#include <cstdint>
#define INTEROP_BEGIN namespace lorad::gpu {
#define INTEROP_END }
#define INTEROP_CONST inline constexpr uint32_t
#define INTEROP_SIZE(type, bytes) static_assert(sizeof(type) == (bytes))
#else
#extension GL_EXT_shader_explicit_arithmetic_types_int32 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#define INTEROP_BEGIN
#define INTEROP_END
#define INTEROP_CONST const uint
#define INTEROP_SIZE(type, bytes)
#endif

#endif
