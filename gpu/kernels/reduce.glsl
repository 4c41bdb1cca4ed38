// Sums over a workgroup of any subgroup size, all subgroups full: one shared slot for each subgroup, added in a fixed
// order.
const uint kMaxSubgroups = 256;
shared float reduce_slots[kMaxSubgroups];

// The same value in every thread. All threads must call it; a second call needs a barrier() between.
float workgroup_sum(float value) {
    value = subgroupAdd(value);
    if (gl_NumSubgroups == 1) return value;
    if (subgroupElect()) reduce_slots[gl_SubgroupID] = value;
    barrier();
    // Every subgroup reads each slot once, not every thread: that would be as many reads as there are threads and
    // subgroups.
    float total = 0.0;
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize) total += reduce_slots[i];
    return subgroupAdd(total);
}
