// What products without matrix units took on this device, as a start has measured it (product_timing.h), and which form
// of them follows from that. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/kernels/products/product.h"
#include "gpu/kernels/scalar_type.h"

namespace lorad::gpu {

// How a product is computed: blocks of y in registers, or matmul_tiled.
struct ProductForm {
    uint32_t tile = 0;       // of kRegisterTiles; kTiledForm: matmul_tiled
    uint32_t short_sum = 0;  // MatmulPlan::short_sum
    int32_t cut = 0;         // k in 2^cut times as many parts as the table would cut it into

    bool operator==(const ProductForm&) const = default;
};
inline constexpr uint32_t kTiledForm = 255;

struct MeasuredForm {
    ProductForm form;
    double us = 0;  // the middle one of several times
};

// One product with so many rows.
struct MeasuredProduct {
    uint32_t n = 0, k = 0;
    ScalarType type = ScalarType::kF16;
    uint32_t rows = 0, max_splits = 1;
    std::vector<MeasuredForm> forms = {};  // the table's first

    // The fastest form, if it is so much faster than the table's that it is no accident; else null.
    const MeasuredForm* better() const;
    // As it was measured: any of its rows are in the same class.
    Product product() const;
};

// The rows with which a product of so many rows is measured: 8 for up to 16, 64 for up to 128, 512 for more.
uint32_t measured_rows(uint32_t rows);
inline constexpr uint32_t kMeasuredRows[] = {8, 64, 512};

class MeasuredProducts {
  public:
    void add(MeasuredProduct product) { all_.push_back(std::move(product)); }
    const std::vector<MeasuredProduct>& all() const { return all_; }
    // What such a product's plan goes by; null: by the table, as nothing was measured, or nothing better found.
    const MeasuredProduct* find(const Product& product) const;

    // One line, of which parse() makes the same again. nullopt: it is none.
    std::string text() const;
    static std::optional<MeasuredProducts> parse(std::string_view text);

  private:
    std::vector<MeasuredProduct> all_;
};

// kRemembered: as an earlier start with the same device, driver, build and products has measured it, or else measured,
// but not on a software device. kAlways: measured again, there as well. kOff: by the table.
enum class Tuning : uint8_t { kRemembered, kAlways, kOff };

struct TuningOptions {
    Tuning when = Tuning::kRemembered;
    // Of plain weights, rows of kMeasuredRows; those that matter most first.
    std::vector<Product> products = {};
    // When it is over nothing more is begun; what was not measured goes by the table.
    std::chrono::milliseconds time_max{3000};
    // Blocks in registers have as many tiles alone, the first of kRegisterTiles that the device takes: for tests, as
    // software compiles each for long.
    uint32_t tiles_max = kTiledForm;
};

// Begins the keys of a StartRecord whose values MeasuredProducts::text() has written.
inline constexpr std::string_view kMeasuredKey = "products-";

// For people: "blocks in registers 16x128 (each 8x4, 64 threads, short sums of 16)".
std::string describe(const ProductForm& form);
// "37888x3584 f16, 8 rows"
std::string describe(const MeasuredProduct& product);
// "..., 93 us; the table's: ..., 112 us"; empty where the table's is kept.
std::string describe_better(const MeasuredProduct& product);

}  // namespace lorad::gpu
