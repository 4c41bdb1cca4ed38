// A checked adapter in the layout that the LoRA kernels read, at its true ranks: first in host memory, then on the
// device.
//
//   image: | A of module | B of module | A of the next | ...        every piece begins at a multiple of 256 bytes
//   A [rank][k rounded up to 64]     B [n][rank rounded up to 8]    padding zero, the file's type kept
//
// Fused names (qkv_proj) become modules that share one A and address row ranges of one B. Where A and B of a module
// have different types both are widened to f32, which is exact. Vectors (magnitudes, biases, norms) are f32, padded to
// 64; tables of the embedding and the output layer are [vocab rounded up to 64][hidden rounded up to 64]. All layouts:
// model/weights/lora_table.h.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "adapters/plan/check.h"
#include "adapters/pool/weight_store.h"
#include "model/weights/lora_table.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// One adapter in the RAM tier: all that place() needs, in one piece of host memory. Immutable; read by any thread.
struct PackedImage {
    // Addresses in `view` are byte offsets into the image plus kBase, so that 0 still means "none".
    static constexpr uint64_t kBase = 256;

    struct Free {
        void operator()(std::byte* begin) const { std::free(begin); }
    };
    std::unique_ptr<std::byte[], Free> bytes;
    uint64_t n_bytes = 0;          // on the host and on the device
    std::vector<uint64_t> pieces;  // the first byte of each matrix, ascending: blocks may end before any of them
    model::AdapterView view;       // gains hold the magnitudes

    std::span<const std::byte> span() const { return {bytes.get(), n_bytes}; }
};

struct PlacedAdapter {
    std::vector<std::unique_ptr<WeightBlock>> blocks;  // one, unless it is larger than the store's largest
    model::AdapterView view;                           // with addresses on the device
    uint64_t device_bytes = 0;
};

// Bytes of the image, on the host and on the device. Cheap: nothing is packed.
uint64_t packed_bytes(const CheckedAdapter& adapter);

// kOutOfMemory if the host has not that many bytes.
Result<PackedImage> pack(const CheckedAdapter& adapter);

// Allocates, uploads, and returns when everything has arrived. On an error nothing is left allocated.
Result<PlacedAdapter> place(const PackedImage& image, WeightStore& store);

}  // namespace lorad::adapters
