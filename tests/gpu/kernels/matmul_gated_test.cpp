#include "gpu/kernels/products/coopmat_tiles.h"
#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::matmul_gated_test {
namespace {

// The product that ends in the activation, against the product and gated_act one after the other.
class MatmulGated : public KernelTest {
  protected:
    struct Case {
        Type type = Type::kF16;
        uint32_t ffn = 0, k = 0, n_rows = 0, bucket = 0;
        Activation activation = Activation::kSilu;
        uint32_t gate_rank = 0, up_rank = 0;     // of the adapter that all rows but the first two have
        std::optional<uint32_t> tile;            // instead of the one that plan() takes
        bool x_in_fragments = false;             // with kFragmentsTile
        uint32_t y_order = kFragmentsByColumns;  // of what is written in fragments
    };

    void SetUp() override {
        KernelTest::SetUp();
        kernels_ = must(KernelSet::create(device(), {.path = KernelPath::kAuto, .gated = GatedProducts::kAlways}));
    }

    void check(const Case& c) {
        const ScalarType type = scalar(c.type);
        if (kernels_->act_type(type) == ScalarType::kF32)
            GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
        const uint32_t n = 2 * c.ffn, stride = padded(c.k);
        const bool adapters = c.gate_rank + c.up_rank > 0;
        Product product{.n = n,
                        .k = c.k,
                        .type = type,
                        .rows = c.bucket,
                        .max_splits = 8,
                        .adapters = adapters ? AdapterForm::kRuns : AdapterForm::kApart};
        const MatmulPlan apart = *kernels_->products.plan(product);
        product.result = ProductResult::kGated;
        product.activation = c.activation;
        std::optional<MatmulPlan> together = kernels_->products.plan(product);
        ASSERT_TRUE(together.has_value());
        if (c.tile) {
            together->tile = *c.tile;
            together->row_tile = kCoopmatTiles[*c.tile].rows;
            together->column_tile = kCoopmatTiles[*c.tile].columns;
        }
        together->x_in_fragments = c.x_in_fragments;
        SCOPED_TRACE(::testing::Message() << "type " << int(c.type) << " rows " << c.n_rows << " ffn " << c.ffn << " k "
                                          << c.k << " tile " << together->row_tile << "x" << together->column_tile);

        const TestModule gate = TestModule::make(c.ffn, 8, c.gate_rank, c.type, 0.7, random_);
        const TestModule up = TestModule::make(c.ffn, 8, c.up_rank, c.type, 0.7, random_);
        std::vector<LoraModule> table(kLoraModules);
        table[kLoraGate] = gate.entry();
        table[kLoraUp] = up.entry();
        std::vector<StepRow> rows(c.bucket);
        for (uint32_t t = 0; t < c.bucket; t++) rows[t].adapter_slot = adapters && t >= 2 ? 0 : kNoSlot;
        const Buffer step = step_state(rows, c.n_rows), table_buffer = input(table);
        const Buffer low = input(reference::random_values(size_t{c.bucket} * 2 * kMaxRank, Type::kF32, random_));
        const Buffer w =
            input(reference::encode(reference::random_values(size_t{n} * c.k, c.type, random_), c.k, stride, c.type));
        auto x_bytes =
            reference::encode(reference::random_values(size_t{c.n_rows} * c.k, c.type, random_), c.k, stride, c.type);
        x_bytes.resize(size_t{c.bucket + kSlackRows} * stride * 2, std::byte{0xff});
        const Buffer x = input(x_bytes),
                     x_fragments = input(c.x_in_fragments ? in_fragments(x_bytes, stride, together->x_order)
                                                          : std::vector<std::byte>());
        const size_t split_stride = size_t{c.bucket + kSlackRows} * n;
        const Buffer y = poisoned((apart.n_splits * split_stride + size_t{kSlackRows} * n) * 4);
        const size_t act_elements = size_t{c.bucket} * c.ffn;
        const Buffer want = poisoned(act_elements * 2), got = poisoned(act_elements * 2);
        const size_t block_bytes = size_t{round_up(c.bucket, kFragmentRows)} * c.ffn * 2;
        const Buffer got_fragments = poisoned(block_bytes), fragments_alone = poisoned(block_bytes);

        ProductArguments sums{.product = {.n_rows = step.address(),
                                          .w = w.address(),
                                          .x = x.address(),
                                          .y = y.address(),
                                          .y_fragments = 0,
                                          .n = n,
                                          .k = c.k,
                                          .w_stride = stride,
                                          .x_stride = stride,
                                          .y_stride = n,
                                          .split_stride = static_cast<uint32_t>(split_stride),
                                          .k_per_split = 0,
                                          .pad = 0},
                              .y_order = c.y_order,
                              .runs = {.step = step.address(),
                                       .lora_layer = table_buffer.address(),
                                       .low = low.address(),
                                       .lora_slot_stride = kLoraModules,
                                       .first_module = kLoraGate,
                                       .n_modules = 2,
                                       .module_end = {c.ffn, n}}};
        GatedActParams act{};
        act.step = step.address();
        act.y = y.address();
        act.act = want.address();
        act.ffn = act.act_stride = c.ffn;
        act.y_stride = n;
        act.split_stride = static_cast<uint32_t>(split_stride);
        ProductArguments gated = sums;
        gated.product.n = gated.product.y_stride = c.ffn;
        gated.product.x = (c.x_in_fragments ? x_fragments : x).address();
        gated.product.y = got.address();
        gated.product.y_fragments = got_fragments.address();
        ProductArguments gated_alone = gated;  // without rows
        gated_alone.product.y = 0;
        gated_alone.product.y_fragments = fragments_alone.address();
        execute([&](Recorder& recorder) {
            kernels_->products.record(recorder, apart, sums);
            kernels_->products.record(recorder, *together, gated);
            kernels_->products.record(recorder, *together, gated_alone);
            recorder.barrier();
            kernels_->rows.gated_act(recorder, act,
                                     {.rows = c.bucket, .n_splits = apart.n_splits, .whole_rows = apart.whole_rows},
                                     c.activation, type);
        });

        auto rows_bytes = content<std::byte>(got, act_elements * 2);
        rows_bytes.resize(block_bytes, std::byte{0xff});
        ASSERT_EQ(content<std::byte>(got_fragments, block_bytes), in_fragments(rows_bytes, c.ffn, c.y_order))
            << "in fragments";
        ASSERT_EQ(content<std::byte>(fragments_alone, block_bytes), in_fragments(rows_bytes, c.ffn, c.y_order))
            << "in fragments alone";
        const std::vector<float> want_act = content(want, act_elements, c.type),
                                 got_act = content(got, act_elements, c.type);
        const double unit = std::ldexp(1.0, c.type == Type::kBf16 ? -7 : -10);  // of rounding to the type
        // Sums of the two may differ by their order; what that is in the result depends on the other factor.
        const double sum_error = sum_tolerance(c.k) * std::sqrt(static_cast<double>(c.k)),
                     factor = 1.1 * std::sqrt(static_cast<double>(c.k));
        for (size_t i = 0; i < act_elements; i++) {
            const size_t t = i / c.ffn;
            if (t >= c.n_rows) {
                ASSERT_TRUE(is_poison(got_act[i])) << "row " << t << " was written";
                continue;
            }
            const double allowed = unit * std::fabs(want_act[i]) + sum_error * factor;
            ASSERT_LE(std::fabs(got_act[i] - want_act[i]), allowed)
                << "row " << t << " column " << i % c.ffn << ": " << got_act[i] << " for " << want_act[i];
        }
    }
};

TEST_F(MatmulGated, EqualsTheProductAndTheActivation) {
    uint32_t turn = 0;
    for (const Type type : {Type::kF16, Type::kBf16}) {
        for (const uint32_t n_rows : {3u, 8u, 16u, 40u, 64u, 90u, 128u, 200u, 500u}) {
            const uint32_t bucket = n_rows < 128 ? n_rows + 3 : n_rows;
            check({.type = type,
                   .ffn = 64 * (1 + ++turn % 5),
                   .k = 64 * (1 + turn % 7),
                   .n_rows = n_rows,
                   .bucket = bucket,
                   .activation = turn % 2 == 0 ? Activation::kSilu : Activation::kGeluTanh});
        }
    }
    // More tiles than run side by side, which workgroups take in turns.
    check({.type = Type::kF16,
           .ffn = 64 * (7 * multiprocessors(device().capabilities()) + 1),
           .k = 256,
           .n_rows = 5,
           .bucket = 6});
    check({.type = Type::kF16, .ffn = 128, .k = 384, .n_rows = 17, .bucket = 24});
    check({.type = Type::kF16, .ffn = 896, .k = 3584, .n_rows = 300, .bucket = 384});
}

TEST_F(MatmulGated, WithAdapters) {
    for (const Type type : {Type::kF16, Type::kBf16}) {
        check({.type = type, .ffn = 320, .k = 128, .n_rows = 140, .bucket = 192, .gate_rank = 16, .up_rank = 5});
        check({.type = type, .ffn = 64, .k = 192, .n_rows = 33, .bucket = 48, .gate_rank = 0, .up_rank = 64});
        check({.type = type, .ffn = 128, .k = 64, .n_rows = 70, .bucket = 96, .gate_rank = 40, .up_rank = 0});
        // More tiles than run side by side, which workgroups take in turns.
        check({.type = type,
               .ffn = 64 * (7 * multiprocessors(device().capabilities()) + 1),
               .k = 128,
               .n_rows = 5,
               .bucket = 6,
               .gate_rank = 16,
               .up_rank = 3});
    }
}

TEST_F(MatmulGated, FromFragments) {
    if (fragment_types().empty()) GTEST_SKIP() << "no products of fragments: " << device().capabilities().name;
    for (const Type type : fragment_types()) {
        check({.type = type,
               .ffn = 320,
               .k = 448,
               .n_rows = 200,
               .bucket = 256,
               .tile = kFragmentsTile,
               .x_in_fragments = true});
        check({.type = type,
               .ffn = 128,
               .k = 64,
               .n_rows = 512,
               .bucket = 512,
               .activation = Activation::kGeluTanh,
               .tile = kFragmentsTile,
               .x_in_fragments = true});
        check({.type = type,
               .ffn = 192,
               .k = 256,
               .n_rows = 140,
               .bucket = 192,
               .gate_rank = 16,
               .up_rank = 5,
               .tile = kFragmentsTile,
               .x_in_fragments = true,
               .y_order = kRowFragments});
    }
}

// Whether a subgroup has gates and ups in matrices of their own or 8 of each in one depends on the tile.
TEST_F(MatmulGated, EveryTileThatCan) {
    if (kernels_->act_type(ScalarType::kF16) == ScalarType::kF32)
        GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    uint32_t n_interleaved = 0, n_apart = 0;
    for (uint32_t tile_idx = 0; tile_idx < kCoopmatTiles.size(); tile_idx++) {
        const CoopmatTile& tile = kCoopmatTiles[tile_idx];
        const uint32_t ffn = 320, k = 256;
        if (!fits(tile, 2 * ffn, k, device().capabilities()) || !gates(tile, device().capabilities().subgroup_size))
            continue;
        (interleaves(tile) ? n_interleaved : n_apart)++;
        check({.type = Type::kF16,
               .ffn = ffn,
               .k = k,
               .n_rows = tile.rows + 3,
               .bucket = 2 * tile.rows,
               .tile = tile_idx});
        check({.type = Type::kBf16,
               .ffn = ffn,
               .k = k,
               .n_rows = tile.rows - 3,
               .bucket = tile.rows,
               .gate_rank = 40,
               .up_rank = 5,
               .tile = tile_idx});
        // More tiles than run side by side, which workgroups take in turns.
        const uint32_t wide = 64 * (tile.columns / 16 * multiprocessors(device().capabilities()) + 1);
        if (tile.whole_k)
            check({.type = Type::kF16, .ffn = wide, .k = 128, .n_rows = 5, .bucket = tile.rows, .tile = tile_idx});
    }
    EXPECT_GE(n_interleaved, 3u);
    EXPECT_GE(n_apart, 3u);
}

TEST_F(MatmulGated, IsPlannedWhereItIsAllowed) {
    const auto is_planned = [](const KernelSet& kernels, uint32_t n) {
        return kernels.products
            .plan({.n = n,
                   .k = 256,
                   .type = ScalarType::kF16,
                   .rows = 512,
                   .max_splits = 8,
                   .result = ProductResult::kGated})
            .has_value();
    };
    const bool has_matrices = kernels_->act_type(ScalarType::kF16) != ScalarType::kF32;
    EXPECT_EQ(is_planned(*kernels_, 512), has_matrices);
    const auto never = must(KernelSet::create(device(), {.path = KernelPath::kAuto, .gated = GatedProducts::kNever}));
    EXPECT_FALSE(is_planned(*never, 512));
    const auto invariant = must(KernelSet::create(
        device(), {.path = KernelPath::kAuto, .batch_invariant = true, .gated = GatedProducts::kAlways}));
    EXPECT_FALSE(is_planned(*invariant, 512));
    EXPECT_FALSE(is_planned(*kernels_, 500)) << "rows of act have padding that it would not write";
    const auto portable =
        must(KernelSet::create(device(), {.path = KernelPath::kPortable, .gated = GatedProducts::kAlways}));
    EXPECT_FALSE(is_planned(*portable, 512));
}

}  // namespace
}  // namespace lorad::gpu::testing::matmul_gated_test
