// Chooses a step's sequences: a function of the seed and the step alone, so that it needs no saved state.
#pragma once

#include <cstdint>
#include <vector>

namespace lorad::server::training {

// A permutation of 0..n-1 that is computed element by element: a cipher of four Feistel rounds over the next power of
// four, walked until it falls below n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). `key`: of the
// seed and the epoch.
uint64_t permuted(uint64_t index, uint64_t n, uint64_t key);

// The stream of sequences: each epoch has every one of `n_sequences` once, in an order of its own, or in the file's.
// Steps take `batch_size` of it, one behind the other, across the ends of epochs.
struct SampleOrder {
    uint64_t n_sequences = 0;
    uint32_t batch_size = 1;
    uint64_t seed = 0;
    bool shuffle = true;
    uint64_t n_samples = 0;  // in the whole run; the last step may have fewer than batch_size

    uint64_t n_steps() const { return (n_samples + batch_size - 1) / batch_size; }
    uint64_t sequence_at(uint64_t sample) const;
    // The sequences of the step; steps count from 0.
    std::vector<uint64_t> batch(uint64_t step) const;
    // Samples before the step, in epochs.
    double epoch_at(uint64_t step) const {
        return static_cast<double>(step) * batch_size / static_cast<double>(n_sequences);
    }
    // Returns true if an epoch ends within the step or with it.
    bool ends_epoch(uint64_t step) const;
};

}  // namespace lorad::server::training
