#include "model/quant/ggml_blocks.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/files/safetensors.h"
#include "tests/support/source_dir.h"

namespace lorad::model::ggml_blocks_test {
namespace {

// The blocks and their numbers by the `gguf` package of Python: tests/goldens/quantized/make_blocks.py.
TEST(GgmlBlocks, HaveTheBitsOfTheReference) {
    const auto files =
        TensorFiles::map(lorad::testing::source_dir() / "tests/goldens/quantized/blocks.safetensors", ErrorCode::kIo);
    ASSERT_TRUE(files.ok()) << files.error().message;
    uint32_t n_types = 0;
    for (uint32_t number = 0; number < 64; ++number) {
        const GgmlTypeInfo* info = ggml_type_info(number);
        if (info == nullptr || !info->is_read) continue;
        ++n_types;
        const std::string name(info->name);
        const Tensor* blocks = files->find(name + ".blocks");
        const Tensor* values = files->find(name + ".values");
        ASSERT_TRUE(blocks != nullptr && values != nullptr) << name;
        ASSERT_EQ(blocks->shape[1], info->block_bytes) << name;
        ASSERT_EQ(values->shape[1], info->block_numbers) << name;
        std::vector<float> ours(values->n_elements());
        decode_ggml(static_cast<GgmlType>(number), blocks->data, ours);
        for (size_t i = 0; i < ours.size(); ++i) {
            const std::byte* expected = values->data.data() + i * sizeof(float);
            ASSERT_EQ(std::memcmp(&ours[i], expected, sizeof(float)), 0)
                << name << " block " << i / info->block_numbers << " number " << i % info->block_numbers << ": "
                << widen(DType::kF32, expected) << ", found " << ours[i];
        }
    }
    EXPECT_EQ(n_types, 15u);
}

TEST(GgmlTypes, AreKnownByNumberAndName) {
    EXPECT_EQ(name_of(GgmlType::kIQ4_XS), "IQ4_XS");
    EXPECT_EQ(info_of(GgmlType::kQ6_K).block_bytes, 210u);
    EXPECT_FALSE(ggml_type_info(10)->is_read);  // Q2_K
    EXPECT_EQ(ggml_type_info(4)->block_bytes, 0u);
    EXPECT_EQ(ggml_type_info(250), nullptr);
    EXPECT_THAT(readable_ggml_types(),
                ::testing::AllOf(::testing::HasSubstr("Q4_K"), ::testing::Not(::testing::HasSubstr("Q2_K"))));
}

}  // namespace
}  // namespace lorad::model::ggml_blocks_test
