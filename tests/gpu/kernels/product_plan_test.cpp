// How products are computed on devices that need not be there: the plans of the sizes of five models, for all numbers
// of rows, on each kind of device. A change of a plan is a change of a digest here; a few plans stand in full.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "proto/base/format.h"
#include "tests/support/planned_devices.h"

namespace lorad::gpu::product_plan_test {
namespace {

using lorad::testing::PlannedDevice;
using lorad::testing::text_of;

struct Size {
    uint32_t n, k;
};
// q, k and v; o; gate and up; down; the output layer
struct ModelSizes {
    const char* name;
    std::array<Size, 5> sizes;
};
constexpr std::array kModels = {
    ModelSizes{"0.5b", {{{1152, 896}, {896, 896}, {9728, 896}, {896, 4864}, {151936, 896}}}},
    ModelSizes{"1.5b", {{{2048, 1536}, {1536, 1536}, {17920, 1536}, {1536, 8960}, {151936, 1536}}}},
    ModelSizes{"7b", {{{4608, 3584}, {3584, 3584}, {37888, 3584}, {3584, 18944}, {152064, 3584}}}},
    ModelSizes{"gemma2-2b", {{{4096, 2304}, {2304, 2048}, {18432, 2304}, {2304, 9216}, {256000, 2304}}}},
    ModelSizes{"odd", {{{446, 250}, {250, 250}, {1000, 250}, {250, 500}, {1003, 250}}}},
};
constexpr std::array kRows = {1u,  2u,  3u,  4u,  6u,   8u,   12u,  16u,  17u,  24u,   32u,   33u,
                              48u, 64u, 65u, 96u, 127u, 128u, 192u, 256u, 512u, 1024u, 1536u, 2048u};
constexpr std::array kTypes = {ScalarType::kF32, ScalarType::kF16, ScalarType::kBf16};

class Texts {
  public:
    explicit Texts(const PlannedDevice& on) : products_(on.facts) {}

    // Adapters that no implementation adds are left to who reads the sums.
    std::string sums() const {
        return each([&](const Product& of) {
            std::string text;
            for (const bool in_fragments : {false, true}) {
                for (const AdapterForm adapters : {AdapterForm::kApart, AdapterForm::kRuns}) {
                    for (const bool leaves_room : {false, true}) {
                        Product product = of;
                        product.may_be_in_fragments = in_fragments;
                        product.adapters = adapters;
                        product.leaves_room = leaves_room;
                        auto plan = products_.plan(product);
                        if (!plan) {
                            product.adapters = AdapterForm::kApart;
                            plan = products_.plan(product);
                        }
                        text += text_of(plan) + "\n";
                    }
                }
            }
            return text;
        });
    }
    std::string gated() const {
        return each([&](Product product) {
            std::string text;
            product.n = product.n / 2 * 2;
            product.result = ProductResult::kGated;
            for (const bool in_fragments : {false, true}) {
                product.may_be_in_fragments = in_fragments;
                for (const AdapterForm adapters :
                     {AdapterForm::kApart, AdapterForm::kRuns, AdapterForm::kStacked, AdapterForm::kInside}) {
                    product.adapters = adapters;
                    text += text_of(products_.plan(product)) + "\n";
                }
            }
            return text;
        });
    }
    // Forms that only some products have.
    std::string others() const {
        return each([&](const Product& of) {
            std::string text;
            const auto add = [&](auto set) {
                Product product = of;
                product.may_be_in_fragments = true;
                set(product);
                text += text_of(products_.plan(product)) + "\n";
            };
            add([](Product& p) { p.result = ProductResult::kResidual; });
            add([](Product& p) { p.norm_is_deferred = true; });
            add([](Product& p) { p.adapters = AdapterForm::kStacked; });
            add([](Product& p) {
                p.n = p.n / 2 * 2;
                p.norm_is_deferred = true;
                p.result = ProductResult::kGated;
            });
            add([](Product& p) { p.adapters = AdapterForm::kRuns; });
            add([](Product& p) {
                p.adapters = AdapterForm::kRuns;
                p.rank_max = 16;
            });
            if (of.max_splits == 1) add([](Product& p) { p.result = ProductResult::kGreatest; });
            return text;
        });
    }
    std::string packed() const {
        return each([&](const Product& of) {
            std::string text;
            for (const uint32_t format : {kWeightsQ8_0, kWeightsQ4_K}) {
                for (const uint32_t align : {of.n, 16u, 2u}) {
                    for (const bool may_unpack : {false, true}) {
                        Product product = of;
                        product.formats = 1u << format;
                        product.align = align;
                        product.may_unpack = may_unpack;
                        product.may_be_in_fragments = product.leaves_room = true;
                        text += text_of(products_.plan(product)) + "\n";
                    }
                }
            }
            return text;
        });
    }
    std::string training() const {
        return each([&](const Product& of) {
            std::string text;
            if (of.type == ScalarType::kF32 || of.rows < 64) return text;
            for (const bool is_n_major : {false, true}) {
                Product product = of;
                product.is_n_major = is_n_major;
                text += text_of(products_.plan_by(MatmulVariant::kWarpgroup, product)) + "\n";
            }
            return text;
        });
    }

  private:
    template <typename Of>
    std::string each(Of of) const {
        std::string all;
        for (const ModelSizes& model : kModels) {
            for (const Size& size : model.sizes) {
                for (const ScalarType type : kTypes) {
                    for (const uint32_t rows : kRows) {
                        for (const uint32_t splits : {1u, 8u, 16u}) {
                            const std::string text =
                                of({.n = size.n, .k = size.k, .type = type, .rows = rows, .max_splits = splits});
                            if (text.empty()) continue;
                            all += lorad::format("{} {} x {} type {} rows {} splits {}\n", model.name, size.n, size.k,
                                                 static_cast<int>(type), rows, splits);
                            all += text;
                        }
                    }
                }
            }
        }
        return all;
    }

    const ProductPlanner products_;
};

TEST(ProductPlan, IsWhatItWas) {
    const lorad::testing::Digests want = {
        {"portable, sums", "9af0e16e78a0b274"},
        {"portable, gated", "8abdd9c206071a90"},
        {"portable, others", "50943194450078ba"},
        {"portable, packed", "da86b1767a503d82"},
        {"portable, training", "c28909045a086752"},
        {"software, sums", "9ce29157f480102c"},
        {"software, gated", "c3de1f7c732d1a2c"},
        {"software, others", "1984099a59c45166"},
        {"software, packed", "1cafb52c94f699b6"},
        {"software, training", "34efae8f18b78ad2"},
        {"coopmat, sums", "b7112ede8e2ac014"},
        {"coopmat, gated", "76d8c0845d29c502"},
        {"coopmat, others", "4142452e5f0e89ee"},
        {"coopmat, packed", "6bb4312a9e362382"},
        {"coopmat, training", "c28909045a086752"},
        {"coopmat2, sums", "3b2463373a5ce144"},
        {"coopmat2, gated", "9feafb844e86b44a"},
        {"coopmat2, others", "c35496ca52f77166"},
        {"coopmat2, packed", "3ca387873e40ad96"},
        {"coopmat2, training", "c28909045a086752"},
        {"warpgroup, sums", "24d8466ae4c94922"},
        {"warpgroup, gated", "e948c31d91191f68"},
        {"warpgroup, others", "5979e7336ad3bfae"},
        {"warpgroup, packed", "7c4015ad4b2f769e"},
        {"warpgroup, training", "c28909045a086752"},
        {"batch invariant, sums", "4c29d6f1f30c6eec"},
        {"batch invariant, gated", "c3de1f7c732d1a2c"},
        {"batch invariant, others", "4f72b45ce79bcfe8"},
        {"batch invariant, packed", "c0f8c30141a03ade"},
        {"batch invariant, training", "c28909045a086752"},
        {"coopmat without gated, fragments and packed, sums", "f8a7880f9394bf54"},
        {"coopmat without gated, fragments and packed, gated", "7195b4d001a790f6"},
        {"coopmat without gated, fragments and packed, others", "e7e8fc9526fc3580"},
        {"coopmat without gated, fragments and packed, packed", "e47922c33878291a"},
        {"coopmat without gated, fragments and packed, training", "c28909045a086752"},
        {"warpgroup without direct, stacked and argmax, sums", "a716690544154898"},
        {"warpgroup without direct, stacked and argmax, gated", "33980e0ff5051864"},
        {"warpgroup without direct, stacked and argmax, others", "76fb504530862f70"},
        {"warpgroup without direct, stacked and argmax, packed", "e2108a70bbe5288a"},
        {"warpgroup without direct, stacked and argmax, training", "c28909045a086752"},
    };
    lorad::testing::Digests got;
    for (const PlannedDevice& on : lorad::testing::planned_devices()) {
        const Texts texts(on);
        for (const auto& [kind, text] : {std::pair{"sums", texts.sums()},
                                         {"gated", texts.gated()},
                                         {"others", texts.others()},
                                         {"packed", texts.packed()},
                                         {"training", texts.training()}}) {
            const std::string group = lorad::format("{}, {}", on.name, kind);
            got[group] = lorad::testing::digest_of(text);
        }
    }
    EXPECT_TRUE(got == want) << lorad::testing::changes(want, got);
}

// The tiles that are expected to be the fastest for a Qwen2.5-7B on an H200 whose matrices were left out.
TEST(ProductPlan, WithoutMatricesWeightsOf16BitsAreByBlocksInRegisters) {
    PlannedDevice on("no matrices", lorad::testing::without_matrices(), KernelPath::kAuto);
    const auto text = [&](Product product, uint32_t rows) {
        product.rows = rows;
        const std::optional<MatmulPlan> plan = ProductPlanner(on.facts).plan(product);
        return plan ? lorad::format("{}, k in {}", describe(*plan), plan->n_splits) : "none";
    };
    const Product gate_up{.n = 37888, .k = 3584, .max_splits = 16}, down{.n = 3584, .k = 18944, .max_splits = 16},
        o{.n = 3584, .k = 3584, .max_splits = 16};
    Product bf16 = down, f32 = down, packed = down;
    bf16.type = ScalarType::kBf16;
    f32.type = ScalarType::kF32;
    packed.formats = 1u << kWeightsQ4_K;
    EXPECT_EQ(text(gate_up, 1), "one row: 256 threads, 8 columns, 2 words at once, k in 1");
    EXPECT_EQ(text(o, 1), "one row: 64 threads, 2 columns, 7 words at once, k in 1");
    EXPECT_EQ(text(gate_up, 4), "through registers 4x64 each 4x4 lanes8 ahead1 short16, k in 1");
    EXPECT_EQ(text(gate_up, 8), "through registers 8x64 each 8x4 lanes8 ahead2 short16, k in 2");
    EXPECT_EQ(text(down, 8), "through registers 8x64 each 8x4 lanes8 ahead2 short16, k in 7");
    EXPECT_EQ(text(o, 8), "through registers 8x64 each 8x4 lanes8 ahead2 short16, k in 7");
    EXPECT_EQ(text(gate_up, 9), "registers 16x128x64 each 8x4 slices2 buffers1 short16, k in 4");
    EXPECT_EQ(text(gate_up, 64), "registers 64x128x32 each 8x8 slices1 buffers2 short16, k in 4");
    EXPECT_EQ(text(down, 512), "registers 64x128x32 each 8x8 slices1 buffers2 short16, k in 7");
    EXPECT_EQ(text(bf16, 6), "through registers 8x64 each 8x4 lanes8 ahead2 short0, k in 7");
    EXPECT_EQ(text(bf16, 512), "registers 64x128x16 each 8x8 slices1 buffers2 short0, k in 7");
    for (const Product& other : {f32, packed}) {
        EXPECT_EQ(text(other, 8), "matmul_matvec, k in 3");
        EXPECT_EQ(text(other, 64), "matmul_tiled, k in 8");
    }
    on.facts.ladder.drop(gpu::RungId::kShortSums);
    EXPECT_EQ(text(down, 8), "through registers 8x64 each 8x4 lanes8 ahead2 short0, k in 7");
    on.facts.options.batch_invariant = true;
    EXPECT_EQ(text(down, 8), "matmul_tiled, k in 8");
}

// Of a Qwen2.5-7B on an H200.
TEST(ProductPlan, SomeStandInFull) {
    const PlannedDevice on("H200", lorad::testing::h200(), KernelPath::kAuto);
    const ProductPlanner products(on.facts);
    const Product qkv{.n = 4608, .k = 3584, .max_splits = 16, .may_be_in_fragments = true};
    const Product gate_up{
        .n = 37888, .k = 3584, .max_splits = 16, .may_be_in_fragments = true, .result = ProductResult::kGated};
    const auto text = [&](Product product, uint32_t rows, AdapterForm adapters = AdapterForm::kApart) {
        product.rows = rows;
        product.adapters = adapters;
        const std::optional<MatmulPlan> plan = products.plan(product);
        return plan ? lorad::format("{}, k in {}", describe(*plan), plan->n_splits) : "none";
    };
    EXPECT_EQ(text(qkv, 1), "matmul_gemv, k in 1");
    EXPECT_EQ(text(qkv, 16), "coopmat 16x64x128 sub4/4, k in 7");
    EXPECT_EQ(text(qkv, 48), "warpgroup direct 48x144, k in 4");
    EXPECT_EQ(text(qkv, 2048), "warpgroup 128x288x64 by 48, 8 slots, k in 1");
    EXPECT_EQ(text(qkv, 2048, AdapterForm::kRuns),
              "coopmat 128x128x64 sub4/2 late x in blocks, 1792 rows whole, k in 5");
    EXPECT_EQ(text(qkv, 2048, AdapterForm::kStacked), "warpgroup 128x288x64 by 48, 8 slots, k in 1");
    EXPECT_EQ(text(qkv, 2048, AdapterForm::kInside), "none") << "of gates and ups alone";
    EXPECT_EQ(text(gate_up, 48), "warpgroup 64x96x128 by 32, 2 slots, k in 1");
    EXPECT_EQ(text(gate_up, 48, AdapterForm::kInside), "warpgroup 64x96x128 by 32, 2 slots, k in 1");
    EXPECT_EQ(text(gate_up, 48, AdapterForm::kStacked), "none") << "of 128 rows and more";
    Product packed = qkv;
    packed.formats = 1u << kWeightsQ4_K;
    packed.align = kBrickRows;
    EXPECT_EQ(text(packed, 9), "packed weights by warpgroups, 16 rows, k in 7");
    EXPECT_EQ(text(packed, 64), "packed weights by warpgroups, 64 rows, k in 7");
    EXPECT_EQ(text(packed, 96), "packed weights by warpgroups, 64 rows, k in 5");
    EXPECT_EQ(text(packed, 128, AdapterForm::kStacked), text(qkv, 128, AdapterForm::kStacked)) << "of a plain copy";
    EXPECT_EQ(text(packed, 129), text(qkv, 129)) << "of a plain copy";
    packed.may_be_in_fragments = false;
    EXPECT_EQ(text(packed, 64), "matmul_packed_f16, k in 4") << "x in rows";
}

TEST(ProductPlan, EachImplementationThatIsNotTakenSaysWhy) {
    const PlannedDevice on("H200", lorad::testing::h200(), KernelPath::kAuto);
    const ProductPlanner products(on.facts);
    EXPECT_EQ(products.explain({.n = 4608, .k = 3584, .rows = 2048}),
              "warpgroups, w in registers: not, as it reads x in blocks\n"
              "warpgroups: not, as it reads x in blocks\n"
              "one row: not, as of several rows matrices are faster\n"
              "NV matrices 2: not, as nobody asked for it, rows are few, or no tile divides the columns\n"
              "KHR matrices: coopmat 128x192x64 sub8/4 late\n");
    const Product stacked{
        .n = 4608, .k = 3584, .rows = 64, .may_be_in_fragments = true, .adapters = AdapterForm::kStacked};
    EXPECT_EQ(products.explain(stacked), "warpgroups: not, as the device has no warpgroups with more k, or no shrink "
                                         "for them\nno implementation takes it\n");
    const Product packed{.n = 4608, .k = 3584, .formats = 1u << kWeightsQ4_K, .align = 4608, .rows = 65};
    EXPECT_THAT(products.explain(packed), ::testing::StartsWith("unpacked: "));
}

}  // namespace
}  // namespace lorad::gpu::product_plan_test
