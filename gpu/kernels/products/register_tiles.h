// Tiles of matmul_registers.comp: which there are, which a device takes, and which one a product takes. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/tuning/measured_products.h"

namespace lorad::gpu {

struct RegisterTile {
    uint32_t lanes_n, lanes_t, each_n, each_t;  // threads along columns and rows of y, and what each has of them
    uint32_t words;                             // of 16 bytes that a slice has of a row at once
    uint32_t slices, buffers;
    // On an H200: workgroups side by side on a multiprocessor, for their registers; and what a workgroup takes there
    // for an element of k, in tenths of a nanosecond.
    uint32_t at_once, time;

    constexpr uint32_t columns() const { return lanes_n * each_n; }
    constexpr uint32_t rows() const { return lanes_t * each_t; }
    constexpr uint32_t threads() const { return lanes_n * lanes_t * slices; }
    // Of 32 neighbouring threads, those along n: 8 with 4 along t, where there are as many.
    constexpr uint32_t group_n() const { return lanes_t >= 4 ? 8 : 32 / lanes_t; }
    // short_sum, here and below: MatmulPlan::short_sum; with short sums x and w are f16 in shared memory.
    // Elements of k that a slice has of a row at once.
    constexpr uint32_t slice_k(uint32_t short_sum) const { return words * (short_sum != 0 ? 8 : 4); }
    // Elements of k in shared memory at once.
    constexpr uint32_t staged_k(uint32_t short_sum) const { return slice_k(short_sum) * slices; }
    constexpr uint32_t shared_bytes(uint32_t short_sum) const {
        const uint32_t scales = short_sum != 0 ? buffers * slices * (slice_k(short_sum) / short_sum) * rows() * 4 : 0;
        return buffers * slices * (columns() + rows()) * words * 16 + scales;
    }
    constexpr bool is_valid(uint32_t short_sum) const {
        // Slices join through the memory of the tiles.
        const bool joins =
            slices == 1 || columns() * rows() * 4 <= buffers * slices * (columns() + rows()) * words * 16;
        return joins && (short_sum == 0 || slice_k(short_sum) % short_sum == 0);
    }
};

// By rows. Those without slices have the same bits for a row.
inline constexpr std::array kRegisterTiles = {
    RegisterTile{32, 1, 4, 8, 4, 2, 1, 4, 105}, RegisterTile{32, 2, 4, 8, 4, 2, 1, 2, 150},
    RegisterTile{16, 4, 8, 8, 4, 2, 1, 2, 240}, RegisterTile{32, 4, 4, 8, 4, 1, 1, 3, 245},
    RegisterTile{16, 8, 8, 8, 4, 1, 2, 2, 420}, RegisterTile{16, 16, 4, 4, 4, 1, 2, 2, 260},
};

// Elements of k that f16 adds, half of them each half of a pair. 32 are no faster.
inline constexpr uint32_t kShortSum = 16;

class ImplFacts;

// A measured form as a plan; nullopt: the device does not take it.
std::optional<MatmulPlan> plan_of_form(const ImplFacts& on, const Product& product, const ProductForm& form);
// What the plan is expected to take, in the table's unit; of tiles in shared memory in one of their own.
double expected_time(const ImplFacts& on, const Product& product, const MatmulPlan& plan);

bool fits(const RegisterTile& tile, uint32_t short_sum, const DeviceCapabilities& caps);

}  // namespace lorad::gpu
