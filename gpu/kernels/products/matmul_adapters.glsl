// The adapters' part of matmul_coopmat's sums: y[t][n] += scale * sum_r B[n][r] low[t][m][r], as more k of the same
// product, for each run of the tile's rows that have one adapter. low, and B of another type than the product's, are
// cut into two parts of that type: B low = B1 low1 + B1 low2 + B2 low1. The omitted B2 low2 is below 2^-14 of the whole
// (f16: 2^-20). Moves B's rows of the tile once per run of rows, low once per tile of columns. Meant for long runs:
// each costs barriers.

const uint kPartWords = kWords / 4;     // words of one part: 16 ranks for each 64 elements of k
const uint kPartRanks = kPartWords * 8;

shared uint row_slot[ROWS];
shared uint slots_differ;

Eight bounded8(Eight e) { return Eight(bounded(e.lo, kElementType), bounded(e.hi, kElementType)); }
Eight leading8(Eight e) { return Eight(leading(e.lo, kElementType), leading(e.hi, kElementType)); }

// One module for the rows begin..end of x in the tile and the rows from..to of w in it; that row `from` is `first` of
// the module. All threads.
void add_module(LoraModule m, uint m_idx, uint row0, uint begin, uint end, uint from, uint to, uint first, uint sub_n, uint sub_row) {
    const uint rank8 = (m.rank + 7) / 8 * 8;
    const uint64_t b_row_bytes = uint64_t(rank8 * bytes_of(m.type));
    const uint n_parts = m.type == kElementType ? 2 : 3;  // B1 low1, B1 low2, B2 low1
    for (uint r0 = 0; r0 < rank8; r0 += kPartRanks) {
        barrier();
        for (uint i = gl_LocalInvocationIndex; i < N_TILE * kPartWords; i += THREADS) {
            const uint row = i / kPartWords, word = i % kPartWords, r = r0 + word * 8;
            uvec4 main_part = uvec4(0), rest = uvec4(0);
            if (row >= from && row < to && r < rank8) {
                Eight e = load8(m.b + uint64_t(first + row - from) * b_row_bytes, r / 8, m.type);
                if (n_parts == 3) e = bounded8(e);
                const Eight lead = n_parts == 3 ? leading8(e) : e;
                main_part = pack8(lead, kElementType);
                rest = pack8(Eight(e.lo - lead.lo, e.hi - lead.hi), kElementType);
            }
            const uint at = staged_row(row / kColumns, row % kColumns) * kStride;
            stage[at + word] = main_part;
            stage[at + kPartWords + word] = main_part;
            stage[at + 2 * kPartWords + word] = rest;
        }
        for (uint i = gl_LocalInvocationIndex; i < ROWS * kPartWords; i += THREADS) {
            const uint row = i / kPartWords, word = i % kPartWords, r = r0 + word * 8;
            uvec4 main_part = uvec4(0), rest = uvec4(0);
            if (row >= begin && row < end && r < rank8) {
                Eight e = load8(p.low + uint64_t((row0 + row) * p.n_modules + m_idx) * (kMaxRank * 4), r / 8, 0);
                e = bounded8(Eight(e.lo * m.scale, e.hi * m.scale));
                const Eight lead = leading8(e);
                main_part = pack8(lead, kElementType);
                rest = pack8(Eight(e.lo - lead.lo, e.hi - lead.hi), kElementType);
            }
            const uint at = (N_TILE + row) * kStride;
            stage[at + word] = main_part;
            stage[at + kPartWords + word] = rest;
            stage[at + 2 * kPartWords + word] = main_part;
        }
        barrier();
        for (uint k = 0; k < n_parts * kPartWords / 2; ++k) multiply_16(k, sub_n, sub_row, true);
    }
}

void add_adapters(uint row0, uint n0, uint sub_n, uint sub_row) {
    const uint n_rows = min(step_n_rows(p.step) - row0, ROWS);
    const uint thread = gl_LocalInvocationIndex;
    if (thread == 0) slots_differ = 0;
    for (uint i = thread; i < n_rows; i += THREADS) row_slot[i] = step_row(p.step, row0 + i).v.adapter_slot;
    barrier();
    for (uint i = thread; i < n_rows; i += THREADS) {
        if (row_slot[i] != row_slot[0]) slots_differ = 1;
    }
    barrier();
    for (uint begin = 0, end = 0; begin < n_rows; begin = end) {
        const uint slot = row_slot[begin];
        end = slots_differ == 0 ? n_rows : begin + 1;
        while (end < n_rows && row_slot[end] == slot) end++;
        if (slot == kNoSlot) continue;
        for (uint m_idx = 0; m_idx < p.n_modules; m_idx++) {
#ifdef GATED
            const uint from = m_idx * kColumns, to = from + kColumns, first = n0;
#else
            const uint module_begin = m_idx == 0 ? 0 : p.module_end[m_idx - 1];
            if (module_begin >= n0 + N_TILE || p.module_end[m_idx] <= n0) continue;
            const uint from = max(n0, module_begin) - n0, to = min(n0 + N_TILE, p.module_end[m_idx]) - n0, first = n0 + from - module_begin;
#endif
            const LoraModule m = ModuleRef(p.lora_layer + (uint64_t(slot) * p.lora_slot_stride + p.first_module + m_idx) * 64).v;
            if (m.rank != 0) add_module(m, m_idx, row0, begin, end, from, to, first, sub_n, sub_row);
        }
    }
}
