// A device that was opened to compile kernels alone: nothing of it runs, and it says so.
#include <array>
#include <cstring>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "proto/base/format.h"
#include "tests/gpu/gpu_fixture.h"

namespace lorad::gpu::compile_only_test {
namespace {

using ::testing::HasSubstr;
using testing::must;

std::unique_ptr<Device> open(uint64_t memory_bytes = 0) {
    return must(Device::create({.validation = true, .compile_only = true, .pretended_memory_bytes = memory_bytes}));
}

TEST(CompileOnly, SubmittingIsRefusedByName) {
    const auto device = open();
    EXPECT_TRUE(device->capabilities().compiles_only);
    const CommandBuffer recording = must(must(Recorder::begin(*device)).end());
    const CommandBuffer* const list[] = {&recording};
    const auto submitted = device->compute_queue().submit(list);
    ASSERT_FALSE(submitted.ok());
    EXPECT_THAT(submitted.error().message, HasSubstr("was opened to compile kernels: nothing runs on it"));
    EXPECT_EQ(device->validation_message_count(), 0u);
}

TEST(CompileOnly, BuffersOfAnySizeAreAddressesApartAndTheHostsCanBeWritten) {
    const auto device = open();
    const Buffer large = must(device->create_buffer(uint64_t{1} << 30, MemoryKind::kDeviceLocal, "large"));
    const Buffer other = must(device->create_buffer(256, MemoryKind::kDeviceLocal, "other"));
    EXPECT_TRUE(other.address() >= large.address() + large.size() || large.address() >= other.address() + other.size());
    const Buffer host = must(device->create_buffer(4096, MemoryKind::kHostUpload, "host"));
    std::memset(host.mapped().data(), 1, host.size());
    const std::byte bytes[16] = {};
    EXPECT_TRUE(device->uploader().upload(large, 0, bytes).ok());
    EXPECT_TRUE(device->uploader().finish().ok());
}

TEST(CompileOnly, MemoryIsAsLargeAsItPretends) {
    const auto device = open(uint64_t{1} << 20);
    EXPECT_EQ(device->free_bytes_estimate(), uint64_t{1} << 20);
    const auto refused = device->create_buffer(uint64_t{2} << 20, MemoryKind::kDeviceLocal, "too large");
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
}

TEST(CompileOnly, RecordingsCountWhatTheyWouldDoWithAKernel) {
    const auto device = open();
    const auto kernels = must(KernelSet::create(*device, {}));
    Recorder recorder = must(Recorder::begin(*device));
    for (const uint64_t n_bytes : {4096, 65536}) kernels->rows.copy_words(recorder, 1 << 20, 2 << 20, n_bytes);
    const CommandBuffer recording = must(std::move(recorder).end());
    EXPECT_EQ(recording.n_dispatches(), 2u);
    uint64_t n_dispatches = 0;
    for (const KernelReport& report : kernels->reports()) {
        EXPECT_EQ(report.module, "copy_words");
        EXPECT_EQ(report.refusal, "");
        EXPECT_FALSE(report.use.name.empty());
        n_dispatches += report.use.n_dispatches;
    }
    EXPECT_EQ(n_dispatches, 2u);
}

// A fault in the rules of the ladder would be a rung that is climbed although something is missing, or the other way
// round.
TEST(Rungs, SayWhatIsMissingWhereTheLadderEnds) {
    DeviceCapabilities caps;
    caps.subgroup_size = caps.subgroup_size_min = caps.subgroup_size_max = 64;
    caps.shared_memory_bytes = 64 << 10;
    caps.max_workgroup_invocations = 1024;
    caps.max_workgroup_subgroups = 16;
    caps.float16 = caps.int16 = caps.subgroup_vote = caps.coopmat_f16 = true;
    caps.no_bfloat16_coopmat = "VK_KHR_shader_bfloat16";
    const KernelLadder ladder = ladder_of(caps, KernelPath::kAuto);
    ASSERT_EQ(ladder.has(ScalarType::kF16), has_kernel_module("matmul_coopmat_f16"));
    std::map<std::string, std::string> missing;
    for (const Rung& rung : rungs_of(caps, KernelPath::kAuto))
        missing[rung.part + ", " + rung.name] = format("{}", fmt::join(rung.missing, "; "));
    EXPECT_EQ(missing.at("products (f16 weights), KHR cooperative matrices").empty(), ladder.has(ScalarType::kF16));
    EXPECT_THAT(missing.at("products (bf16 weights), KHR cooperative matrices"), HasSubstr("VK_KHR_shader_bfloat16"));
    EXPECT_THAT(missing.at("activations in blocks (f16 weights), KHR cooperative matrices"),
                HasSubstr("subgroups of 32, not 64"));
    EXPECT_THAT(missing.at("attention of prompts, KHR cooperative matrices"),
                HasSubstr("subgroups of 32, not 64 to 64"));
    EXPECT_THAT(missing.at("products (f16 weights), warpgroups"), HasSubstr("H100"));

    // Recurrences in blocks need nothing that a device may lack.
    const auto is_of_every_device = [](const Rung& rung) { return rung.part == "recurrences of prompts"; };
    EXPECT_EQ(missing.at("recurrences of prompts, rows in blocks of 8"), "");
    for (const Rung& rung : rungs_of(caps, KernelPath::kPortable)) {
        if (is_of_every_device(rung) || rung.part.starts_with("products without matrices")) continue;
        EXPECT_THAT(rung.missing, ::testing::Contains("a kernel path above portable, which was asked for"));
    }
    caps.coopmat_f16 = false;
    caps.no_coopmat_f16 = "";
    for (const Rung& rung : rungs_of(caps, KernelPath::kAuto))
        EXPECT_EQ(rung.missing.empty(), is_of_every_device(rung)) << rung.part << ", " << rung.name;
    EXPECT_EQ(ladder_of(caps, KernelPath::kAuto), KernelLadder().add(RungId::kDeltaBlocks));
    EXPECT_EQ(ladder_of(caps, KernelPath::kAuto, std::array{std::string("delta_step")}), KernelLadder());
}

}  // namespace
}  // namespace lorad::gpu::compile_only_test
