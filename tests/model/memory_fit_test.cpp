#include "model/exec/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/source_dir.h"

namespace lorad::model::memory_fit_test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGib = uint64_t{1} << 30;

struct Card {
    explicit Card(uint64_t n_gib)
        : config(load_model_config(testing::source_dir() / "tests/portability/models/qwen2.5-7b").value()),
          files(WeightLoader::imagine(config).value()) {
        caps.name = "a card";
        caps.device_local_bytes = caps.device_local_free_bytes = n_gib * kGib;
        caps.max_allocation_bytes = 4 * kGib - 256;
        caps.subgroup_size = caps.subgroup_size_min = caps.subgroup_size_max = 32;
        caps.shared_memory_bytes = 48 << 10;
        caps.max_workgroup_invocations = 1024;
        caps.max_workgroup_subgroups = 32;
        caps.float16 = caps.int16 = caps.subgroup_vote = caps.coopmat_f16 = true;
        options.n_outputs_max = 96;
        options.adapter_bytes = caps.device_local_bytes / 10;
    }
    FitQuestion question() const { return {caps, caps.device_local_free_bytes, config, files}; }

    gpu::DeviceCapabilities caps;
    ModelConfig config;
    TensorFiles files;
    ExecutorOptions options;
};

// 7.6 billion numbers in 16 bits, by hand: 2 x 152064 x 3584 of embedding and output layer, and 28 layers of (3584 +
// 1024) x 3584 + 3584 x 3584 + 3 x 18944 x 3584.
TEST(MemoryFit, AModelOfItsConfigAloneTakesWhatItsMatricesTake) {
    const Card card(24);
    const auto fitted = fit(card.question(), card.options);
    ASSERT_TRUE(fitted.ok()) << fitted.error().message;
    const uint64_t matrices =
        2 * (2 * uint64_t{152064} * 3584 +
             28 * (uint64_t{3584 + 1024} * 3584 + uint64_t{3584} * 3584 + 3 * uint64_t{18944} * 3584));
    EXPECT_GE(fitted->plan.weight_bytes, matrices);
    EXPECT_LT(fitted->plan.weight_bytes, matrices + (4 << 20)) << "norms and biases";
}

TEST(MemoryFit, WhatDoesNotFitIsRefusedWithTheArithmetic) {
    const Card card(8);
    const auto fitted = fit(card.question(), card.options);
    ASSERT_FALSE(fitted.ok());
    EXPECT_EQ(fitted.error().code, ErrorCode::kOutOfMemory);
    for (const char* part :
         {"weights 14.19 GiB", "KV cache of one sequence of", "scratch ", "adapters 0.80 GiB", "of 8.00 GiB free"})
        EXPECT_THAT(fitted.error().message, HasSubstr(part));
}

TEST(MemoryFit, TheFlagsThatAreProposedMakeItFit) {
    for (const uint64_t n_gib : {6, 8, 12, 16}) {
        const Card card(n_gib);
        ASSERT_FALSE(fit(card.question(), card.options).ok() && n_gib < 16) << n_gib;
        const auto savings = savings_that_fit(card.question(), card.options);
        ASSERT_TRUE(savings) << n_gib;
        EXPECT_TRUE(fit(card.question(), savings->options).ok()) << n_gib << ": " << savings->flags;
        if (n_gib == 8) {
            EXPECT_THAT(savings->flags, HasSubstr("--quantize"));
        }
    }
    const Card small(2);
    EXPECT_FALSE(savings_that_fit(small.question(), small.options)) << "a 7B takes more in any form";
}

// A load keeps the keys of such a model in f32 where all else is f32: a plan that counts on f16 would promise twice the
// tokens.
TEST(MemoryFit, SensitiveKeysTakeWhatALoadGivesThem) {
    Card card(48);
    card.options.kernel_path = gpu::KernelPath::kPortable;
    card.options.weight_type = gpu::ScalarType::kF32;
    card.options.n_kv_blocks = 512;
    const auto robust = fit(card.question(), card.options);
    ASSERT_TRUE(robust.ok()) << robust.error().message;
    EXPECT_EQ(robust->plan.kv.type, gpu::KvType::kF16);
    std::vector<LayerFacts> layers;
    for (uint32_t layer = 0; layer < card.config.n_layers; ++layer) {
        layers.push_back(card.config.layer(layer));
        layers.back().attention.sensitive_keys = true;
    }
    card.config.layers = std::move(layers);
    const auto sensitive = fit(card.question(), card.options);
    ASSERT_TRUE(sensitive.ok()) << sensitive.error().message;
    EXPECT_EQ(sensitive->plan.kv.type, gpu::KvType::kF32);
    EXPECT_EQ(sensitive->plan.kv_bytes, 2 * robust->plan.kv_bytes);
    // Half activations keep them in f16, as everything is.
    card.options.weight_type = gpu::ScalarType::kF16;
    card.options.kernel_path = gpu::KernelPath::kAuto;
    const auto halves = fit(card.question(), card.options);
    ASSERT_TRUE(halves.ok()) << halves.error().message;
    EXPECT_EQ(halves->plan.kv.type, gpu::KvType::kF16);
}

TEST(MemoryFit, AConfigOfQuantizedFilesIsRefusedByName) {
    Card card(8);
    card.config.quantization.method = QuantMethod::kGptq;
    const auto files = WeightLoader::imagine(card.config);
    ASSERT_FALSE(files.ok());
    EXPECT_THAT(files.error().message, HasSubstr("quantized"));
}

}  // namespace
}  // namespace lorad::model::memory_fit_test
