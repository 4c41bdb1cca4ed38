// Typed loads and stores by address, and sums over a workgroup. Types: 0 f32, 1 f16, 2 bf16; 16-bit values travel in
// 32-bit words, so that no 16-bit feature is needed. Constant 0 of every kernel is its workgroup size.
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "gpu/kernels/step_state.h"

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer UintRef { uint v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer IntRef { int v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer FloatRef { float v; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Vec2Ref { vec2 v; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Vec4Ref { vec4 v; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Uvec2Ref { uvec2 v; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Uvec4Ref { uvec4 v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer HeaderRef { StepHeader v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer RowRef { StepRow v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer LogitRowRef { LogitRow v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer SegmentRef { LoraSegment v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer UseRef { StepUse v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer TileRef { AttentionTile v; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer ModuleRef { LoraModule v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer ResultRef { SampleResult v; };

uint step_n_rows(uint64_t step) { return UintRef(step).v; }
// The first four fields of a row in one load: .x token, .y position, .z kv_slot, .w block_table.
uvec4 step_row_begin(uint64_t step, uint t) { return Uvec4Ref(step + kHeaderBytes + uint64_t(t) * kRowBytes).v; }
// The last four: .x rope_begin, .yz first_blocks.
uvec4 step_row_end(uint64_t step, uint t) { return Uvec4Ref(step + kHeaderBytes + uint64_t(t) * kRowBytes + (kRowBytes - 16)).v; }
RowRef step_row(uint64_t step, uint t) { return RowRef(step + kHeaderBytes + uint64_t(t) * kRowBytes); }

// Shrink result of low row t and module number `index` of a group of n_modules. (Kernels on matrices write it out:
// glslc does not inline calls there.)
uint64_t low_row(uint64_t low, uint t, uint index, uint n_modules) { return low + uint64_t(t * n_modules + index) * (kMaxRank * 4); }

// With few rows, waiting for their number before anything else is loaded costs more than loading for rows that do not
// exist: the number then decides only what is written.
const uint kFewRows = 128;
// follows_row: the kernel loads from addresses that only a step's rows have.
bool leaves_at_once(const bool follows_row, uint rows_launched, uint t, uint n_rows) { return (follows_row || rows_launched > kFewRows) && t >= n_rows; }

uint bytes_of(uint type) { return type == 0 ? 4 : 2; }

vec2 unpack_pair(uint word, uint type) {
    return type == 1 ? unpackHalf2x16(word)
                     : vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
}

// Round to nearest even; NaN stays NaN.
uint bf16_bits(float value) {
    uint bits = floatBitsToUint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

uint pack_pair(vec2 pair, uint type) {
    return type == 1 ? packHalf2x16(pair) : bf16_bits(pair.x) | (bf16_bits(pair.y) << 16);
}

// The leading bits of v, which the 16-bit type holds exactly; 0 where v would be a subnormal f16. By integers, because
// what a compiler may do to a conversion there and back is not said.
vec4 leading(vec4 v, uint type) {
    vec4 bits = uintBitsToFloat(floatBitsToUint(v) & (type == 1 ? 0xffffe000u : 0xffff0000u));
    return type == 1 ? mix(bits, vec4(0.0), lessThan(abs(v), vec4(6.103515625e-5))) : bits;
}

// Clamps to what the 16-bit type can hold: an infinite part of a value times a zero would be NaN. bf16 holds all.
vec4 bounded(vec4 v, uint type) { return type == 1 ? clamp(v, vec4(-65504.0), vec4(65504.0)) : v; }

// Element `index` of an array of any of the types.
float load1(uint64_t base, uint index, uint type) {
    if (type == 0) return FloatRef(base + uint64_t(index) * 4).v;
    vec2 pair = unpack_pair(UintRef(base + uint64_t(index / 2) * 4).v, type);
    return (index & 1u) == 0 ? pair.x : pair.y;
}

// Elements 4 * chunk .. + 3; the array starts at a multiple of 16 bytes.
vec4 load4(uint64_t base, uint chunk, uint type) {
    if (type == 0) return Vec4Ref(base + uint64_t(chunk) * 16).v;
    uvec2 words = Uvec2Ref(base + uint64_t(chunk) * 8).v;
    return vec4(unpack_pair(words.x, type), unpack_pair(words.y, type));
}

void store4(uint64_t base, uint chunk, vec4 value, uint type) {
    if (type == 0) {
        Vec4Ref(base + uint64_t(chunk) * 16).v = value;
    } else {
        Uvec2Ref(base + uint64_t(chunk) * 8).v = uvec2(pack_pair(value.xy, type), pack_pair(value.zw, type));
    }
}

// Elements 8 * chunk .. + 7.
struct Eight {
    vec4 lo, hi;
};

uvec4 pack8(Eight e, uint type) {
    return uvec4(pack_pair(e.lo.xy, type), pack_pair(e.lo.zw, type), pack_pair(e.hi.xy, type), pack_pair(e.hi.zw, type));
}

Eight unpack8(uvec4 words, uint type) {
    return Eight(vec4(unpack_pair(words.x, type), unpack_pair(words.y, type)),
                 vec4(unpack_pair(words.z, type), unpack_pair(words.w, type)));
}

Eight load8(uint64_t base, uint chunk, uint type) {
    if (type == 0) {
        uint64_t at = base + uint64_t(chunk) * 32;
        return Eight(Vec4Ref(at).v, Vec4Ref(at + 16).v);
    }
    return unpack8(Uvec4Ref(base + uint64_t(chunk) * 16).v, type);
}

// acc + a . b, in this order.
float dot8(Eight a, Eight b, float acc) {
    acc = fma(a.lo.x, b.lo.x, acc);
    acc = fma(a.lo.y, b.lo.y, acc);
    acc = fma(a.lo.z, b.lo.z, acc);
    acc = fma(a.lo.w, b.lo.w, acc);
    acc = fma(a.hi.x, b.hi.x, acc);
    acc = fma(a.hi.y, b.hi.y, acc);
    acc = fma(a.hi.z, b.hi.z, acc);
    return fma(a.hi.w, b.hi.w, acc);
}

float sum_squares4(vec4 v, float acc) {
    acc = fma(v.x, v.x, acc);
    acc = fma(v.y, v.y, acc);
    acc = fma(v.z, v.z, acc);
    return fma(v.w, v.w, acc);
}

// Four f32 at element `index`; aligned: the address is a multiple of 16.
vec4 load4_f32(uint64_t base, uint index, bool aligned) {
    uint64_t at = base + uint64_t(index) * 4;
    if (aligned) return Vec4Ref(at).v;
    return vec4(FloatRef(at).v, FloatRef(at + 4).v, FloatRef(at + 8).v, FloatRef(at + 12).v);
}
