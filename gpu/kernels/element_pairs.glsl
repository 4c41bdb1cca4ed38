// Two elements of a matrix from 32 bits of memory, for kernels that fill matrices by lanes; bf16 with BF16, else f16.
#ifdef BF16
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#define PAIR bf16vec2
PAIR pair_of(uint bits) { return uintBitsToBFloat16EXT(unpack16(bits)); }
#else
#define PAIR f16vec2
PAIR pair_of(uint bits) { return unpackFloat2x16(bits); }
#endif
