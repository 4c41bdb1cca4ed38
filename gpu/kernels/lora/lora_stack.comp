// lora_stack: the B of a step's adapters side by side, and zeros in what low has of adapters that a row does not have
// (StackedGroup, step_state.h):
//   b    [n][columns]  16-bit, TYPE: B's columns, or what they leave, for the rows of their module; else zero
//   low  [t][columns]  16-bit, in fragments by rows; lora_shrink_matrix writes what the rows' own adapters have, and
//       may run beside
// columns: kStackedModuleColumns for each module of the group. grid: any number of workgroups in x, which take words of
// 16 bytes of b, then pieces of 16 columns of low in turns. Moves each adapter's B once from memory, and once or twice
// more from the cache, 2 bytes out for each element of the group's blocks, and of low's in a row tile's window.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/lora/lora_stack.params.h"

layout(constant_id = 1) const uint kType = 1;
layout(push_constant, scalar) uniform Push { LoraStackParams p; };

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer GroupRef { StackedGroup v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer WindowRef { StackedWindow v; };

const uint kAhead = 4;  // rows of b that a thread loads at once

Eight leading8(Eight e) { return Eight(leading(e.lo, kType), leading(e.hi, kType)); }

// Ranks r .. r + 7 of a row of the module's B.
uvec4 words_of(LoraModule m, uint row, uint r, uint part) {
    const uint rank8 = (m.rank + 7) / 8 * 8;
    if (r >= rank8) return uvec4(0);
    const uint64_t b = m.b + uint64_t(row) * rank8 * bytes_of(m.type);
    if (m.type == kType) return part == kStackedBRest ? uvec4(0) : Uvec4Ref(b + r * 2).v;
    // Bounded: what is infinite here would be no number in all rows of a tile, whose low is zero.
    Eight e = load8(b, r / 8, m.type);
    e = Eight(bounded(e.lo, kType), bounded(e.hi, kType));
    const Eight lead = leading8(e);
    return pack8(part == kStackedBRest ? Eight(e.lo - lead.lo, e.hi - lead.hi) : lead, kType);
}

// A thread has one word of 8 columns, of every so manyth row: what it is of is looked up once, and rows do not wait for
// one another.
void stack_b(uint first, uint threads) {
    GroupRef group = GroupRef(p.group);
    const uint n_words = group.v.n_blocks * (kFragmentColumns / 8), columns = p.n_modules * kStackedModuleColumns;
    if (n_words == 0) return;
    const uint word = first % n_words, row_step = threads / n_words;
    const StackedBlock block = group.v.blocks[word / 2];
    const bool is_there = block.slot != kNoSlot;
    const uint m_idx = block.what >> 16 & 255, r = (block.what & 0xffff) + word % 2 * 8, part = block.what >> 24;
    const uint begin = m_idx == 0 ? 0 : p.module_end[m_idx - 1], end = p.module_end[m_idx];
    const LoraModule m = ModuleRef(p.lora_layer + (uint64_t(is_there ? block.slot : 0) * p.lora_slot_stride + p.first_module + m_idx) * 64).v;
    // Threads behind the last whole row of words have none.
    for (uint row = first / n_words < row_step ? first / n_words : p.n; row < p.n; row += kAhead * row_step) {
        uvec4 words[kAhead];
        [[unroll]] for (uint i = 0; i < kAhead; i++) {
            const uint at = row + i * row_step;
            words[i] = is_there && at >= begin && at < end ? words_of(m, at - begin, r, part) : uvec4(0);
        }
        [[unroll]] for (uint i = 0; i < kAhead; i++) {
            if (row + i * row_step < p.n) Uvec4Ref(p.b + (uint64_t(row + i * row_step) * columns + word * 8) * 2).v = words[i];
        }
    }
}

// Another adapter's columns of a row, and those of none.
void clear_low(uint first, uint threads) {
    GroupRef group = GroupRef(p.group);
    const uint n_blocks = group.v.n_blocks, columns = p.n_modules * kStackedModuleColumns;
    const uint n_pieces = step_n_rows(p.step) * n_blocks;
    for (uint i = first; i < n_pieces; i += threads) {
        const uint row = i / n_blocks, block = i % n_blocks, step = block / (kStackedStep / kFragmentColumns);
        const StackedWindow window = WindowRef(p.windows + uint64_t(row / kStackedTileRows) * 8).v;
        if (step < window.begin || step >= window.begin + window.n) continue;
        const uint slot = group.v.blocks[block].slot;
        if (slot != kNoSlot && slot == step_row(p.step, row).v.adapter_slot) continue;
        [[unroll]] for (uint pair = 0; pair < kFragmentColumns / 2; pair++) {
            UintRef(p.low + fragment_offset(row, block * kFragmentColumns + pair * 2, columns, kFragmentsByRows)).v = 0;
        }
    }
}

void main() {
    const uint first = gl_GlobalInvocationID.x, threads = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    stack_b(first, threads);
    clear_low(first, threads);
}
