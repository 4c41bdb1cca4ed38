#include "gpu/kernels/tuning/measured_products.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "gpu/kernels/products/few_rows/few_row_tiles.h"
#include "gpu/kernels/products/register_tiles.h"
#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

// Other forms are taken where they take at most this share of the table's time: less is within what a device's clock
// changes by.
constexpr double kFaster = 0.95;
constexpr uint32_t kFewRows = 16, kSomeRows = 128;
constexpr int32_t kCutMax = 1;

static_assert(kStreamForm >= kRegisterTiles.size());

bool is_form(const ProductForm& form) {
    if (form.cut < -kCutMax || form.cut > kCutMax) return false;
    if (form.tile == kTiledForm) return form.short_sum == 0 && form.cut == 0;
    const bool is_tile = form.tile < kRegisterTiles.size() ||
                         (form.tile >= kStreamForm && form.tile - kStreamForm < kStreamTiles.size());
    return is_tile && (form.short_sum == 0 || form.short_sum == kShortSum);
}

// Reads what text() writes, piece by piece. After a failure nothing more is read.
class Reader {
  public:
    explicit Reader(std::string_view rest) : rest_(rest) {}

    template <typename Number>
    Number number() {
        Number value{};
        const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
        if (error != std::errc()) {
            fail();
            return {};
        }
        rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
        return value;
    }
    bool takes(std::string_view what) {
        if (!rest_.starts_with(what)) return false;
        rest_.remove_prefix(what.size());
        return true;
    }
    void expect(std::string_view what) {
        if (!takes(what)) fail();
    }
    void fail() {
        has_failed_ = true;
        rest_ = {};
    }
    bool has_failed() const { return has_failed_; }
    bool is_at_end() const { return rest_.empty(); }

  private:
    std::string_view rest_;
    bool has_failed_ = false;
};

const char* name_of(ScalarType type) { return type == ScalarType::kF16 ? "f16" : "bf16"; }

MeasuredProduct read_product(Reader& from) {
    MeasuredProduct product;
    product.n = from.number<uint32_t>();
    from.expect("x");
    product.k = from.number<uint32_t>();
    product.type = from.takes(" bf16 ") ? ScalarType::kBf16 : ScalarType::kF16;
    if (product.type == ScalarType::kF16) from.expect(" f16 ");
    product.rows = from.number<uint32_t>();
    from.expect("/");
    product.max_splits = from.number<uint32_t>();
    from.expect(":");
    while (from.takes(" ")) {
        MeasuredForm measured;
        measured.form.tile = from.number<uint32_t>();
        from.expect("/");
        measured.form.short_sum = from.number<uint32_t>();
        from.expect("/");
        measured.form.cut = from.number<int32_t>();
        from.expect("=");
        measured.us = from.number<double>();
        if (!is_form(measured.form) || !std::isfinite(measured.us) || !(measured.us > 0)) from.fail();
        product.forms.push_back(measured);
    }
    const bool is_product = product.n > 0 && product.k > 0 && product.max_splits > 0 && !product.forms.empty() &&
                            std::ranges::find(kMeasuredRows, product.rows) != std::end(kMeasuredRows);
    if (!is_product) from.fail();
    return product;
}

}  // namespace

uint32_t measured_rows(uint32_t rows) {
    return rows <= kFewRows ? kMeasuredRows[0] : rows <= kSomeRows ? kMeasuredRows[1] : kMeasuredRows[2];
}

const MeasuredForm* MeasuredProduct::better() const {
    if (forms.empty()) return nullptr;
    const MeasuredForm& best = *std::ranges::min_element(forms, {}, &MeasuredForm::us);
    return best.us <= kFaster * forms.front().us ? &best : nullptr;
}

Product MeasuredProduct::product() const {
    return {.n = n, .k = k, .type = type, .rows = rows, .max_splits = max_splits};
}

const MeasuredProduct* MeasuredProducts::find(const Product& product) const {
    if (product.is_packed()) return nullptr;
    const auto found = std::ranges::find_if(all_, [&](const MeasuredProduct& measured) {
        return measured.n == product.n && measured.k == product.k && measured.type == product.type &&
               measured.max_splits == product.max_splits && measured.rows == measured_rows(product.rows);
    });
    return found != all_.end() && found->better() != nullptr ? &*found : nullptr;
}

std::string MeasuredProducts::text() const {
    std::string text;
    for (const MeasuredProduct& product : all_) {
        text += lorad::format("{}{}x{} {} {}/{}:", text.empty() ? "" : ";", product.n, product.k, name_of(product.type),
                              product.rows, product.max_splits);
        for (const MeasuredForm& measured : product.forms)
            text += lorad::format(" {}/{}/{}={:.3f}", measured.form.tile, measured.form.short_sum, measured.form.cut,
                                  measured.us);
    }
    return text.empty() ? "none" : text;
}

std::optional<MeasuredProducts> MeasuredProducts::parse(std::string_view text) {
    MeasuredProducts all;
    if (text == "none") return all;
    Reader from(text);
    do {
        all.add(read_product(from));
    } while (from.takes(";"));
    if (from.has_failed() || !from.is_at_end()) return std::nullopt;
    return all;
}

std::string describe(const ProductForm& form) {
    if (form.tile == kTiledForm) return "tiles in shared memory";
    const std::string sums = form.short_sum != 0 ? lorad::format("short sums of {}", form.short_sum) : "f32";
    std::string text;
    if (form.tile >= kStreamForm) {
        const StreamTile& t = kStreamTiles[form.tile - kStreamForm];
        text = lorad::format("through registers {} columns (each {}, {} ahead, {} threads, {})", t.columns(), t.each_n,
                             t.slots, t.threads, sums);
    } else {
        const RegisterTile& t = kRegisterTiles[form.tile];
        text = lorad::format("blocks in registers {}x{} (each {}x{}, {} threads, {})", t.rows(), t.columns(), t.each_t,
                             t.each_n, t.threads(), sums);
    }
    if (form.cut != 0) text += form.cut > 0 ? ", k in twice as many parts" : ", k in half as many parts";
    return text;
}

std::string describe(const MeasuredProduct& product) {
    return lorad::format("{}x{} {}, {} rows", product.n, product.k, name_of(product.type), product.rows);
}

std::string describe_better(const MeasuredProduct& product) {
    const MeasuredForm* const better = product.better();
    if (better == nullptr) return {};
    return lorad::format("{}, {:.0f} us; the table's: {}, {:.0f} us", describe(better->form), better->us,
                         describe(product.forms.front().form), product.forms.front().us);
}

}  // namespace lorad::gpu
