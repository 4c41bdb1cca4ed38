// Writing activations in fragments: see activation_fragments.h. After common.glsl.
#include "gpu/kernels/products/activation_fragments.h"

// Columns 4 * chunk .. + 3 of a row, of a 16-bit type.
void store4_in_fragments(uint64_t fragments, uint row, uint chunk, uint stride, vec4 value, uint type, uint order) {
    const uint64_t first_pair = fragments + fragment_offset(row, chunk * 4, stride, order);
    UintRef(first_pair).v = pack_pair(value.xy, type);
    UintRef(first_pair + fragment_pair_bytes(order)).v = pack_pair(value.zw, type);
}

// Columns 8 * chunk .. + 7, packed.
void store8_in_fragments(uint64_t fragments, uint row, uint chunk, uint stride, uvec4 pairs, uint order) {
    const uint64_t first_pair = fragments + fragment_offset(row, chunk * 8, stride, order);
    [[unroll]] for (uint i = 0; i < 4; ++i) UintRef(first_pair + i * fragment_pair_bytes(order)).v = pairs[i];
}
