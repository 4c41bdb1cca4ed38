#include "adapters/plan/pack.h"

#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/fake_store.h"

namespace lorad::adapters::pack_test {
namespace {

using model::LinearModule;
using namespace lorad::testing;

std::unique_ptr<CheckedAdapter> checked(const std::string& config, const TestTensors& tensors) {
    auto adapter = check_adapter(AdapterFolder(config, tensors).path(), small_config());
    EXPECT_TRUE(adapter.ok()) << (adapter.ok() ? "" : adapter.error().message);
    return std::move(adapter).value();
}

Result<PlacedAdapter> packed_and_placed(const CheckedAdapter& adapter, FakeStore& store) {
    const Result<PackedImage> image = pack(adapter);
    EXPECT_TRUE(image.ok());
    return place(*image, store);
}

float read_element(gpu::DeviceAddress address, uint64_t index, uint32_t type) {
    const auto* base = reinterpret_cast<const std::byte*>(address);
    if (type == 0) {
        float value = 0;
        std::memcpy(&value, base + index * 4, 4);
        return value;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, base + index * 2, 2);
    if (type == 2) return std::bit_cast<float>(uint32_t{bits} << 16);
    if ((bits & 0x7fff) == 0) return 0.0f;
    const float magnitude = std::ldexp(1.0f + static_cast<float>(bits & 0x3ff) / 1024.0f, ((bits >> 10) & 0x1f) - 15);
    return bits & 0x8000 ? -magnitude : magnitude;
}

// The matrices of one module as the kernels read them, against test_value, padding included.
void expect_module(const model::LoraModuleView& view, uint32_t rank, uint32_t n, uint32_t k, uint32_t type,
                   uint64_t seed, uint64_t b_row_begin = 0) {
    ASSERT_EQ(view.rank, rank);
    ASSERT_EQ(view.weight_type, type);
    EXPECT_EQ(view.a % 256, 0u);
    const uint64_t k_stride = (k + 63) / 64 * 64, b_stride = (rank + 7) / 8 * 8;
    for (uint64_t row = 0; row < rank; ++row) {
        for (uint64_t column = 0; column < k_stride; ++column) {
            ASSERT_EQ(read_element(view.a, row * k_stride + column, type),
                      column < k ? test_value(seed, row, column) : 0.0f);
        }
    }
    for (uint64_t row = 0; row < n; ++row) {
        for (uint64_t column = 0; column < b_stride; ++column) {
            ASSERT_EQ(read_element(view.b, row * b_stride + column, type),
                      column < rank ? test_value(seed + 1, b_row_begin + row, column) : 0.0f);
        }
    }
}

TEST(PackAdapter, MatricesHaveTheStridesTheKernelsReadAndZeroPadding) {
    for (const std::string dtype : {"F32", "F16", "BF16"}) {
        const uint32_t type = dtype == "F32" ? 0 : dtype == "F16" ? 1 : 2;
        for (const uint32_t rank : {1u, 3u, 8u, 13u}) {
            TestTensors tensors;
            for (uint32_t layer = 0; layer < 2; ++layer) {
                add_pair(tensors, layer, "self_attn.o_proj", rank, 40, 64, 5 + layer, dtype);
                add_pair(tensors, layer, "mlp.down_proj", rank, 40, 96, 9 + layer, dtype);
            }
            const auto adapter = checked(
                format(R"({{"peft_type":"LORA","r":{},"lora_alpha":6,"target_modules":["o_proj","down_proj"]}})", rank),
                tensors);
            FakeStore store(1);
            const Result<PlacedAdapter> packed = packed_and_placed(*adapter, store);
            ASSERT_TRUE(packed.ok()) << packed.error().message;
            EXPECT_EQ(packed->device_bytes, packed_bytes(*adapter));
            EXPECT_EQ(packed->device_bytes, store.allocated_bytes);
            ASSERT_EQ(packed->view.modules.size(), 14u);
            for (size_t layer = 0; layer < 2; ++layer) {
                expect_module(packed->view.modules[layer * 7 + 3], rank, 40, 64, type, 5 + layer);
                expect_module(packed->view.modules[layer * 7 + 6], rank, 40, 96, type, 9 + layer);
                EXPECT_EQ(packed->view.modules[layer * 7 + 3].scale, static_cast<float>(6.0 / rank));
                for (const size_t absent : {0u, 1u, 2u, 4u, 5u}) {
                    EXPECT_EQ(packed->view.modules[layer * 7 + absent].rank, 0u);
                    EXPECT_EQ(packed->view.modules[layer * 7 + absent].a, 0u);
                }
            }
        }
    }
}

TEST(PackAdapter, FusedModulesShareAAndSplitB) {
    TestTensors tensors;
    for (uint32_t layer = 0; layer < 2; ++layer) add_pair(tensors, layer, "self_attn.qkv_proj", 5, 128, 40, 3, "F16");
    const auto adapter = checked(R"({"peft_type":"LORA","r":5,"target_modules":["qkv_proj"]})", tensors);
    FakeStore store(1);
    const Result<PlacedAdapter> packed = packed_and_placed(*adapter, store);
    ASSERT_TRUE(packed.ok());
    expect_module(packed->view.modules[0], 5, 64, 40, 1, 3, 0);
    expect_module(packed->view.modules[1], 5, 32, 40, 1, 3, 64);
    expect_module(packed->view.modules[2], 5, 32, 40, 1, 3, 96);
    EXPECT_EQ(packed->view.modules[0].a, packed->view.modules[2].a);
    // A [5][64] and B [128][8] in f16, both up to the next 256 bytes, twice.
    EXPECT_EQ(packed->device_bytes, 2u * (768 + 2048));
}

TEST(PackAdapter, MixedTypesOfOneModuleAreWidenedExactly) {
    TestTensors tensors = plain_tensors();
    tensors[lora_name(0, "self_attn.q_proj", 'A')] = matrix(4, 40, 1, "F16");
    tensors[lora_name(0, "self_attn.q_proj", 'B')] = matrix(64, 4, 2, "BF16");
    const auto adapter = checked(kPlainConfig, tensors);
    FakeStore store(1);
    const Result<PlacedAdapter> packed = packed_and_placed(*adapter, store);
    ASSERT_TRUE(packed.ok());
    expect_module(packed->view.modules[0], 4, 64, 40, 0, 1);
}

TEST(PackAdapter, F16SubnormalsAndSignsWidenExactly) {
    TestTensors tensors = plain_tensors();
    TestTensor a = matrix(4, 40, 1, "F16");
    const uint16_t bits[] = {0x0001, 0x83ff, 0x8000, 0x0400, 0x7bff};
    std::memcpy(a.data.data(), bits, sizeof(bits));
    tensors[lora_name(0, "self_attn.q_proj", 'A')] = a;
    const auto adapter = checked(kPlainConfig, tensors);
    FakeStore store(1);
    const Result<PlacedAdapter> packed = packed_and_placed(*adapter, store);
    ASSERT_TRUE(packed.ok());
    const gpu::DeviceAddress address = packed->view.modules[0].a;
    EXPECT_EQ(read_element(address, 0, 0), std::ldexp(1.0f, -24));
    EXPECT_EQ(read_element(address, 1, 0), -std::ldexp(1023.0f, -24));
    EXPECT_EQ(std::bit_cast<uint32_t>(read_element(address, 2, 0)), 0x80000000u);
    EXPECT_EQ(read_element(address, 3, 0), std::ldexp(1.0f, -14));
    EXPECT_EQ(read_element(address, 4, 0), 65504.0f);
}

TEST(PackAdapter, LargeAdaptersGoIntoSeveralBlocks) {
    const auto adapter = checked(kPlainConfig, plain_tensors());
    FakeStore store(1);
    store.block_bytes = 4096;
    const Result<PlacedAdapter> packed = packed_and_placed(*adapter, store);
    ASSERT_TRUE(packed.ok());
    EXPECT_GT(packed->blocks.size(), 1u);
    EXPECT_EQ(packed->device_bytes, packed_bytes(*adapter));
    expect_module(packed->view.modules[0], 4, 64, 40, 0, 1);
    expect_module(packed->view.modules[7 + 2], 4, 32, 40, 0, 13);
}

TEST(PackAdapter, AFailureLeavesNothingAllocated) {
    const auto adapter = checked(kPlainConfig, plain_tensors());
    for (int failing = 1; failing <= 3; ++failing) {  // 10 KiB in 3 blocks
        FakeStore store(1);
        store.block_bytes = 4096;
        store.n_uploads_until_failure = failing;
        EXPECT_FALSE(packed_and_placed(*adapter, store).ok());
        EXPECT_EQ(store.allocated_bytes, 0u);
        EXPECT_EQ(store.n_freed_while_pending, 0u);
    }
    FakeStore store(1);
    store.block_bytes = 4096;
    store.capacity_bytes = 8000;
    const Result<PlacedAdapter> packed = packed_and_placed(*adapter, store);
    ASSERT_FALSE(packed.ok());
    EXPECT_EQ(packed.error().code, ErrorCode::kOutOfMemory);
    EXPECT_EQ(store.allocated_bytes, 0u);
}

}  // namespace
}  // namespace lorad::adapters::pack_test
