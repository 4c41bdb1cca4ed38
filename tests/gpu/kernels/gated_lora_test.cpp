// Gate and up of few rows with each row's own adapter in their product: the text of the program everywhere, its results
// where the device takes it.
#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "gpu/kernels/persistent/grid_barrier.h"
#include "gpu/kernels/products/gated_lora.params.h"
#include "gpu/kernels/products/warpgroup_text.h"
#include "tests/gpu/kernels/warpgroup_fixture.h"

namespace lorad::gpu::testing::gated_lora_test {
namespace {

WarpgroupTile few_rows_tile() {
    for (const WarpgroupTile& tile : kWarpgroupTiles) {
        if (tile.columns == 96) return tile;
    }
    return {};
}

// What an assembler would say first, and the loads that the sizes ask for.
TEST(GatedLoraText, HasEveryLabelOnceAndAsksForAllOfAAndB) {
    for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16}) {
        for (const auto& [stride, ffn, pieces] :
             {std::tuple{3584u, 18944u, 1u}, {1536u, 8960u, 2u}, {640u, 18944u, 1u}}) {
            const std::string text = warpgroup_text({.tile = few_rows_tile(),
                                                     .type = type,
                                                     .stride = stride,
                                                     .gated_rows = ffn,
                                                     .y_order = kRowFragments,
                                                     .units = 132,
                                                     .adds_lora = true});
            std::map<std::string, int> labels;
            std::set<std::string> targets;
            const std::regex label("(^|\\n| )([a-z_0-9]+):"), target("bra ([a-z_0-9]+);");
            for (std::sregex_iterator i(text.begin(), text.end(), label), end; i != end; ++i) ++labels[(*i)[2]];
            for (std::sregex_iterator i(text.begin(), text.end(), target), end; i != end; ++i) targets.insert((*i)[1]);
            EXPECT_GE(targets.size(), 8u);
            for (const auto& [name, n] : labels) EXPECT_EQ(n, 1) << name;
            for (const std::string& name : targets) EXPECT_TRUE(labels.contains(name)) << name;
            EXPECT_EQ(count(text, "{"), count(text, "}"));
            // In each of two steps two of A for each piece; each of a thread's 48 sums has 16 ranks of B in two words.
            EXPECT_EQ(count(text, "[%a_at"), 2u * 2 * pieces);
            EXPECT_EQ(count(text, "[%b_at];"), 2u * 48);
            EXPECT_EQ(count(text, "prefetch.global.L2"), 1u);
            EXPECT_EQ(count(text, "red.relaxed.gpu.global.add"), 2u)
                << "told once, in the one or the other of two steps";
            EXPECT_EQ(count(text, "st.global.b32 [%row"), 12u) << "y in rows, a pair of columns at a time";
        }
    }
}

class GatedLora : public WarpgroupTest {
  protected:
    struct Case {
        Type type;
        uint32_t ffn, k, n_rows, bucket;
    };

    static Product product(ScalarType type, uint32_t ffn, uint32_t k, uint32_t rows) {
        return {.n = 2 * ffn,
                .k = k,
                .type = type,
                .rows = rows,
                .may_be_in_fragments = true,
                .adapters = AdapterForm::kInside,
                .result = ProductResult::kGated};
    }

    // Twice, as the grid barriers of both dispatches count in one word.
    void check(const Case& c) {
        SCOPED_TRACE(::testing::Message()
                     << "type " << int(c.type) << " ffn " << c.ffn << " k " << c.k << " rows " << c.n_rows);
        constexpr uint32_t kRanks[] = {16, 8, 12, 1, 16};  // of slots; the last has no up
        constexpr uint32_t kSlots = std::size(kRanks);
        const uint32_t stride = padded(c.k);
        const auto plan = kernels_->products.plan(product(scalar(c.type), c.ffn, c.k, c.bucket));
        ASSERT_TRUE(plan && plan->variant == MatmulVariant::kGatedLora);
        const auto w = reference::random_values(size_t{2 * c.ffn} * c.k, c.type, random_);
        const auto x = reference::random_values(size_t{c.n_rows} * c.k, c.type, random_);
        const auto x_bytes = reference::encode(x, c.k, stride, c.type);
        const Buffer x_rows = input(x_bytes), x_fragments = x_in_fragments(x_bytes, stride, c.bucket, plan->x_order),
                     w_buffer = input(reference::encode(w, c.k, stride, c.type));
        std::vector<std::array<TestModule, 2>> modules(kSlots);
        std::vector<LoraModule> table(kSlots * kLoraModules);
        for (uint32_t slot = 0; slot < kSlots; slot++) {
            for (uint32_t m = 0; m < 2; m++) {
                modules[slot][m] = TestModule::make(c.ffn, c.k, slot + 1 == kSlots && m == 1 ? 0 : kRanks[slot], c.type,
                                                    0.03 + 0.01 * slot, random_);
                table[slot * kLoraModules + kLoraGate + m] = modules[slot][m].entry();
            }
        }
        std::vector<StepRow> rows(c.bucket);
        const auto slot_of = [](uint32_t t) { return t % 7 < kSlots ? t % 7 : kNoSlot; };
        for (uint32_t t = 0; t < c.n_rows; t++) rows[t].adapter_slot = slot_of(t);
        const Buffer step = step_state(rows, c.n_rows), table_buffer = input(table);
        const size_t act_bytes = size_t{kGatedLoraRows} * c.ffn * 2;
        const Buffer y = poisoned(act_bytes), y_fragments = poisoned(act_bytes),
                     low = poisoned(size_t{kGatedLoraRows} * 2 * kGatedLoraRanks * 4),
                     sync = poisoned(sizeof(GridBarrierSync)), given_up = poisoned(16);
        std::memset(sync.mapped().data(), 0, sync.size());
        std::memset(given_up.mapped().data(), 0, given_up.size());
        ProductArguments arguments{.y_order = kRowFragments,
                                   .prefetch = pages_to_prefetch(w_buffer.address(), w_buffer.size()),
                                   .inside = {.x_rows = x_rows.address(),
                                              .lora_layer = table_buffer.address(),
                                              .low = low.address(),
                                              .sync = sync.address(),
                                              .given_up = given_up.address(),
                                              .lora_slot_stride = kLoraModules}};
        MatmulParams& params = arguments.product;
        params.n_rows = step.address();
        params.w = w_buffer.address();
        params.x = x_fragments.address();
        params.y = y.address();
        params.y_fragments = y_fragments.address();
        params.n = params.y_stride = c.ffn;
        params.k = c.k;
        params.w_stride = params.x_stride = stride;
        for (uint32_t turn = 0; turn < 2; turn++) {
            std::memset(y.mapped().data(), 0xff, y.size());
            std::memset(low.mapped().data(), 0xff, low.size());
            execute([&](Recorder& recorder) { kernels_->products.record(recorder, *plan, arguments); });
            EXPECT_EQ(content<uint32_t>(given_up, 1)[0], 0u);
            const auto in_rows = content<uint16_t>(y, act_bytes / 2),
                       blocks = content<uint16_t>(y_fragments, act_bytes / 2);
            for (uint32_t t = turn; t < c.n_rows; t += turn == 0 ? 1 : 9) {
                const auto x_row = reference::to_doubles({&x[size_t{t} * c.k], c.k});
                auto sums = reference::multiply(w, x_row);
                for (uint32_t m = 0; m < 2 && slot_of(t) != kNoSlot; m++) {
                    const TestModule& module = modules[slot_of(t)][m];
                    if (module.pair.rank == 0) continue;
                    const auto delta = reference::multiply(module.b, reference::multiply(module.a, x_row));
                    for (uint32_t f = 0; f < c.ffn; f++) sums[m * c.ffn + f] += module.pair.scale * delta[f];
                }
                for (uint32_t f = 0; f < c.ffn; f++) {
                    const double want = sums[f] / (1.0 + std::exp(-sums[f])) * sums[c.ffn + f];
                    const uint16_t have = in_rows[size_t{t} * c.ffn + f];
                    ASSERT_EQ(have, blocks[fragment_offset(t, f, c.ffn, kRowFragments) / 2])
                        << "row " << t << ", column " << f;
                    ASSERT_NEAR(decode16(have, scalar(c.type)), want,
                                (std::fabs(want) + 0.05 * std::sqrt(c.k)) * (c.type == Type::kBf16 ? 8e-3 : 1e-3))
                        << "turn " << turn << ", row " << t << ", column " << f;
                }
            }
        }
    }
};

// Workgroups with one and with two pieces of the shrink; steps of k that are an odd number, and as few as there may be;
// a last tile that is moved back; rows that fill no block.
TEST_F(GatedLora, EqualsF64ForEachRowsOwnAdapter) {
    for (const Type type : {Type::kF16, Type::kBf16}) {
        check({type, 6208, 640, 64, 64});
        check({type, 18944, 512, 50, 64});
        check({type, 18944, 1100, 33, 48});
        check({type, 6208, 1024, 48, 48});
    }
}

TEST_F(GatedLora, IsNotForProductsWhoseWorkgroupsCannotAllRun) {
    const auto can = [&](uint32_t ffn, uint32_t k, uint32_t rows) {
        return kernels_->products.plan(product(ScalarType::kF16, ffn, k, rows)).has_value();
    };
    EXPECT_TRUE(can(18944, 3584, 64));
    EXPECT_FALSE(can(18944, 3584, 32)) << "by KHR matrices";
    EXPECT_FALSE(can(18944, 3584, 256));
    EXPECT_FALSE(can(14336, 4096, 64)) << "by a tile of 128 columns, which was not measured";
    EXPECT_FALSE(can(28672, 8192, 64)) << "more tiles than run at once";
    EXPECT_FALSE(can(2048, 3584, 64)) << "too few workgroups for the shrink";
    EXPECT_FALSE(can(18944, 384, 64)) << "too few steps";
}

}  // namespace
}  // namespace lorad::gpu::testing::gated_lora_test
