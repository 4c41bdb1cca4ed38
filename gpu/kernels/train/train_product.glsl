// Finds the product that a workgroup works on, and loads an element by its number. Needs common.glsl,
// train_product.params.h and the push constants p.
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer ProductItemRef { TrainProductItem v; };

TrainProductItem workgroup_product() {
    if (p.items == 0) {
        if (p.k_per_split == 0) return TrainProductItem(0, 0, 0, p.m, p.n, p.k, 0);
        const uint begin = gl_WorkGroupID.z * p.k_per_split;
        return TrainProductItem(uint64_t(begin) * p.a_l, uint64_t(begin) * p.b_l, uint64_t(gl_WorkGroupID.z) * p.c_split, p.m, p.n, min(p.k_per_split, p.k - begin), 0);
    }
    return ProductItemRef(p.items + uint64_t(gl_WorkGroupID.z) * 40).v;
}

float load_at(uint64_t base, uint64_t index, const uint type) {
    if (type == 0) return FloatRef(base + index * 4).v;
    vec2 pair = unpack_pair(UintRef(base + (index >> 1) * 4).v, type);
    return (uint(index) & 1u) == 0 ? pair.x : pair.y;
}

void store_product(uint64_t index, float sum, const uint adds) {
    FloatRef c = FloatRef(p.c + index * 4);
    c.v = adds != 0 ? fma(p.alpha, sum, c.v) : p.alpha * sum;
}
