// expert_group: puts the pairs of a step in the order of their experts, those of one in their own order, and cuts them
// into tiles
// grid (experts); a workgroup places the pairs of one expert. Where they go follows from the counts alone, so nobody
// waits for anybody.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/experts/expert_route.params.h"

layout(push_constant, scalar) uniform Push { ExpertGroupParams p; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer ExpertTileRef { ExpertTile v; };

const uint kThreads = gl_WorkGroupSize.x;
const uint kMinSubgroup = 4;
const uint kSubgroupsMax = (kThreads + kMinSubgroup - 1) / kMinSubgroup;
shared uint found[kSubgroupsMax];  // pairs of the expert in each subgroup's share
shared uvec2 in_front[kSubgroupsMax];

void main() {
    const uint expert = gl_WorkGroupID.x, thread = gl_LocalInvocationIndex;
    const uint n_pairs = step_n_rows(p.step) * p.top;
    // Pairs and tiles of the experts in front of this one.
    uvec2 own = uvec2(0);
    for (uint e = thread; e < expert; e += kThreads) {
        const uint n = UintRef(p.counts + e * 4).v;
        own += uvec2(n, (n + p.tile_rows - 1) / p.tile_rows);
    }
    own = subgroupAdd(own);
    if (subgroupElect()) in_front[gl_SubgroupID] = own;
    barrier();
    uint begin = 0, tile = 0;
    for (uint s = 0; s < gl_NumSubgroups; s++) {
        begin += in_front[s].x;
        tile += in_front[s].y;
    }
    const uint n_own = UintRef(p.counts + expert * 4).v;
    const uint n_tiles = (n_own + p.tile_rows - 1) / p.tile_rows;
    for (uint i = thread; i < n_tiles; i += kThreads) {
        ExpertTileRef(p.tiles + uint64_t(tile + i) * 16).v = ExpertTile(expert, begin + i * p.tile_rows, min(p.tile_rows, n_own - i * p.tile_rows), 0);
    }
    if (expert + 1 == gl_NumWorkGroups.x && thread == 0) UintRef(p.n_tiles).v = tile + n_tiles;
    if (n_own == 0) return;
    for (uint first = 0; first < n_pairs; first += kThreads) {
        const uint pair = first + thread;
        const bool is_own = pair < n_pairs && UintRef(p.chosen + uint64_t(pair) * 4).v == expert;
        const uvec4 votes = subgroupBallot(is_own);
        if (subgroupElect()) found[gl_SubgroupID] = subgroupBallotBitCount(votes);
        barrier();
        uint before = begin + subgroupBallotExclusiveBitCount(votes), all = 0;
        for (uint s = 0; s < gl_NumSubgroups; s++) {
            if (s < gl_SubgroupID) before += found[s];
            all += found[s];
        }
        if (is_own) UintRef(p.sorted + uint64_t(before) * 4).v = pair;
        begin += all;
        barrier();  // before the next counts
    }
}
