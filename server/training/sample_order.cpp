#include "server/training/sample_order.h"

#include <algorithm>

#include "proto/base/check.h"

namespace lorad::server::training {
namespace {

// splitmix64: mixes all bits.
uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

}  // namespace

uint64_t permuted(uint64_t index, uint64_t n, uint64_t key) {
    CHECK(index < n);
    uint32_t half_bits = 1;
    while (half_bits < 31 && (uint64_t{1} << (2 * half_bits)) < n) ++half_bits;
    const uint64_t mask = (uint64_t{1} << half_bits) - 1;
    constexpr int kRounds = 4;
    // The cipher is a permutation of more numbers than n, at most four times as many: following it from one below n
    // leads to one below n again.
    do {
        uint64_t left = index >> half_bits, right = index & mask;
        for (int round = 0; round < kRounds; ++round) {
            const uint64_t next = left ^ (mixed(right ^ mixed(key + static_cast<uint64_t>(round))) & mask);
            left = right;
            right = next;
        }
        index = (left << half_bits) | right;
    } while (index >= n);
    return index;
}

uint64_t SampleOrder::sequence_at(uint64_t sample) const {
    const uint64_t epoch = sample / n_sequences, place = sample % n_sequences;
    return shuffle ? permuted(place, n_sequences, mixed(seed) ^ mixed(~epoch)) : place;
}

std::vector<uint64_t> SampleOrder::batch(uint64_t step) const {
    const uint64_t begin = step * batch_size, end = std::min(begin + batch_size, n_samples);
    std::vector<uint64_t> sequences;
    for (uint64_t sample = begin; sample < end; ++sample) sequences.push_back(sequence_at(sample));
    return sequences;
}

bool SampleOrder::ends_epoch(uint64_t step) const {
    const uint64_t begin = step * batch_size, end = std::min(begin + batch_size, n_samples);
    return begin / n_sequences != end / n_sequences;
}

}  // namespace lorad::server::training
