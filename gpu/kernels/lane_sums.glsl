// Sums over the eight lanes of a software device's subgroup. There are no loops in them: of loops in loops the driver
// makes arrays in memory.
#extension GL_KHR_shader_subgroup_shuffle : require

bool lane_bit(const uint bit) { return (gl_SubgroupInvocationID & (1u << bit)) != 0; }

// Of two numbers of each lane one is added to the other lane's, whose number differs in `bit`: lanes with the bit keep
// the second.
float exchanged(float first, float second, const uint bit) {
    const float own = lane_bit(bit) ? second : first, other = lane_bit(bit) ? first : second;
    return own + subgroupShuffleXor(other, 1u << bit);
}

// Lane l has the sum of all lanes' number l.
float lane_sums(float n[8]) {
    const float a = exchanged(exchanged(n[0], n[1], 0), exchanged(n[2], n[3], 0), 1);
    const float b = exchanged(exchanged(n[4], n[5], 0), exchanged(n[6], n[7], 0), 1);
    return exchanged(a, b, 2);
}
