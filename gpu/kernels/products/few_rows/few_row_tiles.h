// Forms of matmul_row.comp and tiles of matmul_stream.comp: which there are, which a device takes, and which one a
// product takes. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "gpu/device.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/tuning/measured_products.h"

namespace lorad::gpu {

struct RowForm {
    uint32_t threads;
    uint32_t columns;  // rows of w of a workgroup, an even number
    uint32_t unroll;   // words of each that a thread loads at once
};
// For large matrices and for small ones, whose words are all under way at once; by words of a row.
inline constexpr std::array kRowForms = {RowForm{256, 8, 2}, RowForm{128, 8, 2}, RowForm{64, 8, 2},
                                         RowForm{64, 2, 7},  RowForm{64, 2, 4},  RowForm{64, 2, 2}};

struct StreamTile {
    uint32_t threads;
    uint32_t each_n;   // rows of w of a thread
    uint32_t lanes_k;  // neighbouring threads that share a row's k
    uint32_t slots;    // steps of k whose words are under way
    // On an H200, of up to 4 rows of x and of up to 8: workgroups side by side on a multiprocessor, for their
    // registers, and what one takes there for a column and an element of k, in hundredths of a tenth of a nanosecond.
    struct {
        uint32_t at_once, time;
    } few, more;

    constexpr uint32_t columns() const { return threads / lanes_k * each_n; }
    constexpr uint32_t step_k() const { return lanes_k * 16; }
    // Elements of k of each of so many rows that lie in shared memory at once.
    constexpr uint32_t staged_k(uint32_t rows) const { return threads * 16 / rows; }
    constexpr uint32_t shared_bytes(uint32_t short_sum) const {
        const uint32_t elements = 2 * threads * 16;
        return short_sum != 0 ? elements * 2 + elements / 16 * 4 : elements * 4;
    }
};
inline constexpr std::array kStreamTiles = {StreamTile{128, 4, 8, 2, {5, 57}, {3, 66}},
                                            StreamTile{128, 4, 8, 1, {5, 55}, {3, 69}}};
inline constexpr uint32_t kStreamRowsMax = 8, kStreamFewRows = 4;

// ProductForm::tile of the first of these; others follow.
inline constexpr uint32_t kStreamForm = 128;
static_assert(kStreamForm + kStreamTiles.size() <= kTiledForm);
constexpr bool is_stream_form(const ProductForm& form) { return form.tile >= kStreamForm && form.tile != kTiledForm; }

class ImplFacts;

bool fits(const StreamTile& tile, uint32_t short_sum, const DeviceCapabilities& caps);
// The plan of a product by this tile, k cut as is expected to be the fastest.
MatmulPlan stream_plan(const ImplFacts& on, const Product& product, uint32_t tile, uint32_t short_sum);
// The same with k in so many parts.
MatmulPlan stream_plan(const ImplFacts& on, const Product& product, uint32_t tile, uint32_t short_sum,
                       uint32_t n_splits);
// A measured form as a plan; nullopt: the device does not take it.
std::optional<MatmulPlan> stream_plan_of_form(const ImplFacts& on, const Product& product, const ProductForm& form);
// In tenths of a nanosecond of an H200.
double stream_time(const ImplFacts& on, const Product& product, const MatmulPlan& plan);

}  // namespace lorad::gpu
