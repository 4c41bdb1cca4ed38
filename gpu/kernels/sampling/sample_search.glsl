// Searches in one row of logits by one workgroup: the key up to which tokens are kept, and the token in which a running
// sum passes a value. No sorting: keys are counted into bins by their leading bits, then those of one bin by their next
// bits, and so on.
// All sums are of whole numbers, so nothing depends on the order in which the atomics or threads come.
//
// Whoever includes this defines before:
//   const uint kKeyBits;                           of a key, at most 32
//   bool counts(uint id, float logit, out uint key, out uint64_t weight);   whether find_cut sees the token; weights
//       below 2^41
//   uint64_t measure_at(uint id, float logit);     what pick_token sums up, below 2^41
//   vec4 row4(uint chunk); float row1(uint id);    logits 4 * chunk .. + 3, and one
// and the globals row_logits (address) and row_vocab.

const uint kBinBits = 10;
const uint kBins = 1u << kBinBits;
const uint kNoBin = 0xffffffffu;
const uint kPieceBits = 22;  // of a 64-bit sum over a subgroup, which is made of three 32-bit sums
const uint kPieceMask = (1u << kPieceBits) - 1;

shared uint bin_count[kBins], bin_low[kBins], bin_high[kBins];
shared uint64_t group_sums[kMaxSubgroups];

struct Cut {
    uint bin;               // kNoBin: the sum is never reached
    uint key;               // smaller ones are all kept
    uint count;             // of tokens with this key
    uint64_t count_below;   // of tokens with smaller keys
    uint64_t weight_below;
    uint64_t target;        // that was reached
};
shared Cut found_cut;
shared uint found_token;

uint n_threads() { return gl_NumSubgroups * gl_SubgroupSize; }
uint thread_index() { return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID; }

uint64_t subgroup_sum(uint64_t value) {
    uint low = subgroupAdd(uint(value) & kPieceMask);
    uint middle = subgroupAdd(uint(value >> kPieceBits) & kPieceMask);
    uint high = subgroupAdd(uint(value >> (2 * kPieceBits)));
    return uint64_t(low) + (uint64_t(middle) << kPieceBits) + (uint64_t(high) << (2 * kPieceBits));
}

uint64_t subgroup_sum_before(uint64_t value) {
    uint low = subgroupExclusiveAdd(uint(value) & kPieceMask);
    uint middle = subgroupExclusiveAdd(uint(value >> kPieceBits) & kPieceMask);
    uint high = subgroupExclusiveAdd(uint(value >> (2 * kPieceBits)));
    return uint64_t(low) + (uint64_t(middle) << kPieceBits) + (uint64_t(high) << (2 * kPieceBits));
}

// Sums the values of the threads before this one; all threads call it.
uint64_t sum_before(uint64_t value, out uint64_t total) {
    uint64_t sum = subgroup_sum(value);
    barrier();
    if (subgroupElect()) group_sums[gl_SubgroupID] = sum;
    barrier();
    uint64_t before = subgroup_sum_before(value);
    total = 0;
    for (uint i = 0; i < gl_NumSubgroups; i++) {
        if (i == gl_SubgroupID) before += total;
        total += group_sums[i];
    }
    return before;
}

uint64_t sum_of_all(uint64_t value) {
    uint64_t total;
    sum_before(value, total);
    return total;
}

void count_key(uint bin, uint64_t weight) {
    atomicAdd(bin_count[bin], 1);
    uint low = uint(weight);
    uint high = uint(weight >> 32);
    if (low != 0) {
        uint before = atomicAdd(bin_low[bin], low);
        if (before + low < before) high++;
    }
    if (high != 0) atomicAdd(bin_high[bin], high);
}

// Where tokens, counted from the least key on, first reach `target`, in number or in weight (> 0); `share` instead: a
// target that is this share of the weight of all.
Cut find_cut(bool by_weight, uint64_t target, uint share) {
    Cut cut = Cut(kNoBin, 0, 0, 0, 0, 0);
    uint upper_shift = kKeyBits;
    for (uint level = 0; upper_shift > 0; level++) {
        uint shift = upper_shift > kBinBits ? upper_shift - kBinBits : 0;
        barrier();
        for (uint i = thread_index(); i < kBins; i += n_threads()) bin_count[i] = bin_low[i] = bin_high[i] = 0;
        if (thread_index() == 0) found_cut = Cut(kNoBin, 0, 0, 0, 0, 0);
        barrier();
        for (uint chunk = thread_index(); chunk * 4 < row_vocab; chunk += n_threads()) {
            vec4 v = row4(chunk);
            for (uint e = 0; e < 4; e++) {
                uint id = chunk * 4 + e;
                if (id >= row_vocab) break;
                uint key;
                uint64_t weight;
                if (!counts(id, v[e], key, weight) || (level > 0 && key >> upper_shift != cut.key)) continue;
                count_key(level > 0 ? (key >> shift) & ((1u << (upper_shift - shift)) - 1) : key >> shift, weight);
            }
        }
        barrier();
        // Each thread has neighbouring bins.
        uint n_own = (kBins + n_threads() - 1) / n_threads();
        uint begin = min(thread_index() * n_own, kBins);
        uint end = min(begin + n_own, kBins);
        uint64_t count = 0, weight = 0;
        for (uint bin = begin; bin < end; bin++) {
            count += bin_count[bin];
            weight += (uint64_t(bin_high[bin]) << 32) + bin_low[bin];
        }
        uint64_t total_count, total_weight;
        uint64_t count_before = sum_before(count, total_count) + cut.count_below;
        uint64_t weight_before = sum_before(weight, total_weight) + cut.weight_below;
        if (level == 0 && share != 0) target = share_of(total_weight, share);
        for (uint bin = begin; bin < end; bin++) {
            uint64_t bin_weight = (uint64_t(bin_high[bin]) << 32) + bin_low[bin];
            uint64_t before = by_weight ? weight_before : count_before;
            uint64_t own = by_weight ? bin_weight : uint64_t(bin_count[bin]);
            if (before < target && target <= before + own) {
                found_cut = Cut(bin, (cut.key << (upper_shift - shift)) | bin, bin_count[bin], count_before,
                                weight_before, target);
            }
            count_before += bin_count[bin];
            weight_before += bin_weight;
        }
        barrier();
        cut = found_cut;
        if (cut.bin == kNoBin) break;
        upper_shift = shift;
    }
    return cut;
}

uint64_t measure4(uint chunk) {
    vec4 v = row4(chunk);
    uint64_t sum = 0;
    for (uint e = 0; e < 4; e++) {
        uint id = chunk * 4 + e;
        if (id < row_vocab) sum += measure_at(id, v[e]);
    }
    return sum;
}

// The token in which the sum of measure_at() over the ids passes `rank`; with `bits` instead that which has this share
// of the total, in 2^-64. kNoBin if the total is not that large.
uint pick_token(uint64_t rank, bool by_bits, uint64_t bits) {
    // A stretch of the row for each subgroup.
    uint n_chunks = (row_vocab + 3) / 4;
    uint length = (n_chunks + gl_NumSubgroups - 1) / gl_NumSubgroups;
    uint begin = min(gl_SubgroupID * length, n_chunks);
    uint end = min(begin + length, n_chunks);
    uint64_t sum = 0;
    for (uint chunk = begin + gl_SubgroupInvocationID; chunk < end; chunk += gl_SubgroupSize) sum += measure4(chunk);
    sum = subgroup_sum(sum);
    barrier();
    if (subgroupElect()) group_sums[gl_SubgroupID] = sum;
    if (thread_index() == 0) found_token = kNoBin;
    barrier();
    uint64_t total = 0;
    for (uint i = 0; i < gl_NumSubgroups; i++) total += group_sums[i];
    if (by_bits) rank = mul_high_64(bits, total);
    if (rank >= total) return kNoBin;
    uint stretch = 0;
    while (rank >= group_sums[stretch]) rank -= group_sums[stretch++];
    // Each thread has a part of that stretch.
    begin = min(stretch * length, n_chunks);
    end = min(begin + length, n_chunks);
    uint part = (length + n_threads() - 1) / n_threads();
    begin = min(begin + thread_index() * part, end);
    end = min(begin + part, end);
    sum = 0;
    for (uint chunk = begin; chunk < end; chunk++) sum += measure4(chunk);
    uint64_t unused;
    uint64_t before = sum_before(sum, unused);
    if (before <= rank && rank < before + sum) {
        for (uint id = begin * 4; id < end * 4; id++) {
            before += measure_at(id, row1(id));
            if (rank < before) {
                found_token = id;
                break;
            }
        }
    }
    barrier();
    return found_token;
}
