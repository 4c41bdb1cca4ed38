// The 8-bit KV cache. A plane, K or V of one KV head and block, is
//   i8  [kBlockTokens][D]           value = i8 * top / 127
//   f16 [kBlockTokens][kKvGroups]   top: the greatest magnitude of a token's group of kKvGroupSize values; two to a
//       word
// Where kKeysF16 is set, keys are f16 [kBlockTokens][D] as in a 16-bit cache, and values alone have eight bits.
// kHeadDim, kKvHeads and kKeysF16 are constants of the kernel. Eight-bit and sixteen-bit values travel in 32-bit words,
// so that no feature is needed.
#include "gpu/kernels/attention/kv_format.h"

const uint kKvGroups = (kHeadDim + kKvGroupSize - 1) / kKvGroupSize;
const uint kKvTopWords = (kKvGroups + 1) / 2;  // of one token
const uint kKvPlaneBytes = kBlockTokens * (kHeadDim + kKvTopWords * 4);
const uint kKeyPlaneBytes = kKeysF16 != 0 ? kBlockTokens * kHeadDim * 2 : kKvPlaneBytes;

// plane: 0 keys, 1 values.
bool has_f16(uint plane) { return kKeysF16 != 0 && plane == 0; }
uint64_t kv_plane(uint64_t kv, uint block, uint plane, uint kv_head) {
    uint64_t keys = kv + uint64_t(block) * (kKvHeads * (kKeyPlaneBytes + kKvPlaneBytes));
    return plane == 0 ? keys + kv_head * kKeyPlaneBytes : keys + kKvHeads * kKeyPlaneBytes + kv_head * kKvPlaneBytes;
}
uint64_t kv_values(uint64_t plane, uint token) { return plane + token * kHeadDim; }
uint64_t kv_tops(uint64_t plane, uint token) { return plane + kBlockTokens * kHeadDim + token * kKvTopWords * 4; }

// The factor of a group's values.
float kv_scale(uint64_t tops, uint group) {
    vec2 pair = unpackHalf2x16(UintRef(tops + group / 2 * 4).v);
    return ((group & 1u) == 0 ? pair.x : pair.y) * (1.0 / 127.0);
}

vec4 unpack_i8(uint word) {
    int w = int(word);
    return vec4(bitfieldExtract(w, 0, 8), bitfieldExtract(w, 8, 8), bitfieldExtract(w, 16, 8), bitfieldExtract(w, 24, 8));
}

uint pack_i8(vec4 value) {
    ivec4 i = ivec4(roundEven(clamp(value, -127.0, 127.0)));
    return (uint(i.x) & 0xffu) | (uint(i.y) & 0xffu) << 8 | (uint(i.z) & 0xffu) << 16 | (uint(i.w) & 0xffu) << 24;
}
