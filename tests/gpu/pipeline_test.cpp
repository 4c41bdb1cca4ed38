#include "gpu/pipeline.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <unistd.h>

#include "gpu/facts/workgroup_use.h"
#include "gpu/kernel_modules.h"
#include "gpu/kernels/self_test.params.h"
#include "gpu/param_spirv.h"
#include "proto/base/digest.h"
#include "proto/base/version.h"
#include "tests/gpu/gpu_fixture.h"

namespace lorad::gpu::testing::pipeline_test {
namespace {

using ::testing::HasSubstr;

class PipelineTest : public GpuTest {};

TEST_F(PipelineTest, AModuleThatIsNotInTheBuildIsNamed) {
    EXPECT_FALSE(has_kernel_module("no_such_kernel"));
    EXPECT_TRUE(has_kernel_module("self_test"));
    const auto kernel = Kernel::create(device(), {.module = "no_such_kernel"});
    ASSERT_FALSE(kernel.ok());
    EXPECT_THAT(kernel.error().message, HasSubstr("no_such_kernel"));
}

TEST_F(PipelineTest, ASubgroupSizeThatTheDeviceLacksIsRefused) {
    const auto kernel =
        Kernel::create(device(), {.module = "self_test", .constants = {64, 0}, .required_subgroup_size = 4096});
    ASSERT_FALSE(kernel.ok());
    EXPECT_THAT(kernel.error().message, HasSubstr("4096"));
}

TEST_F(PipelineTest, SubgroupRequirementsThatTheDeviceMeetsAreTaken) {
    const uint32_t size = device().capabilities().subgroup_size;
    const auto kernel = Kernel::create(device(), {.module = "self_test",
                                                  .constants = {size * 2, 0},
                                                  .required_subgroup_size = size,
                                                  .require_full_subgroups = true});
    EXPECT_TRUE(kernel.ok());
}

TEST_F(PipelineTest, StatisticsAreToldToThoseWhoAskWhereTheDriverHasThem) {
    auto own = must(Device::create({.validation = true, .kernel_statistics = true}));
    const Kernel counted = must(Kernel::create(*own, {.module = "self_test", .constants = {64, kSelfTestCount}}));
    EXPECT_EQ(own->validation_message_count(), 0u);
    if (own->capabilities().kernel_statistics) {
        EXPECT_THAT(counted.statistics().text(), ::testing::ContainsRegex("[A-Za-z] [0-9]"));
    } else {
        EXPECT_EQ(counted.statistics().text(), "");
    }
    const Kernel plain = must(Kernel::create(device(), {.module = "self_test", .constants = {64, kSelfTestCount}}));
    EXPECT_EQ(plain.statistics().text(), "") << "nobody asked";
}

// As the specification has the words, by itself: no push constant is left, and what was one has set 0 and binding 0.
TEST(ParamsInBuffer, EveryModulesPushConstantsBecomeTheBufferOfTheFirstSet) {
    constexpr uint32_t kOpTypePointer = 32, kOpVariable = 59, kOpDecorate = 71, kPushConstant = 9, kUniform = 2,
                       kBinding = 33, kDescriptorSet = 34;
    struct Found {
        uint32_t n_instructions = 0, n_push = 0, n_uniform = 0, variable = 0;
        std::vector<std::vector<uint32_t>> places;  // decorations of set and binding
    };
    const auto look_at = [](std::span<const uint32_t> words) {
        Found found;
        for (size_t i = 5; i < words.size(); i += words[i] >> 16, ++found.n_instructions) {
            const uint32_t op = words[i] & 0xffff, storage = op == kOpTypePointer ? words[i + 2]
                                                             : op == kOpVariable  ? words[i + 3]
                                                                                  : 0;
            found.n_push += storage == kPushConstant;
            found.n_uniform += storage == kUniform;
            if (op == kOpVariable && (storage == kPushConstant || storage == kUniform)) found.variable = words[i + 2];
            if (op == kOpDecorate && (words[i + 2] == kBinding || words[i + 2] == kDescriptorSet))
                found.places.push_back({words[i + 1], words[i + 2], words[i + 3]});
        }
        return found;
    };
    uint32_t n_with_params = 0;
    for (const std::string_view name : kernel_names()) {
        SCOPED_TRACE(name);
        const Found before = look_at(kernel_spirv(name)), after = look_at(with_params_in_buffer(kernel_spirv(name)));
        if (before.n_push == 0) continue;
        ++n_with_params;
        EXPECT_EQ(before.n_uniform, 0u);
        EXPECT_EQ(after.n_push, 0u);
        EXPECT_EQ(after.n_uniform, before.n_push);
        EXPECT_EQ(after.variable, before.variable);
        EXPECT_EQ(after.n_instructions, before.n_instructions + 2);
        EXPECT_THAT(after.places, ::testing::UnorderedElementsAre(std::vector{before.variable, kDescriptorSet, 0u},
                                                                  std::vector{before.variable, kBinding, 0u}));
    }
    EXPECT_GT(n_with_params, 40u);
}

// Those that wait for one another, or for the last one, have atomics; those that are told how many there are read it.
TEST(WorkgroupUses, AreTheOnesThatTheShadersHave) {
    const auto use = [](std::string_view module) { return workgroup_use(kernel_spirv(module)); };
    for (const char* module : {"self_test", "lora_vector_shared", "decode_layers"})
        EXPECT_TRUE(use(module).has_atomics) << module;
    for (const char* module : {"attention", "attention_lanes", "qkv_post", "add_norm"}) {
        EXPECT_TRUE(use(module).counts) << module;
        EXPECT_FALSE(use(module).has_atomics) << module;
    }
    for (const char* module : {"matmul_tiled", "matmul_registers", "matmul_registers_f16", "unpack_weights"}) {
        ASSERT_TRUE(has_kernel_module(module)) << module;
        EXPECT_FALSE(use(module).counts || use(module).has_atomics) << module;
    }
}

class PipelineCacheTest : public GpuTest {
  protected:
    PipelineCacheTest()
        : folder_(std::filesystem::temp_directory_path() / ("lorad_cache_test_" + std::to_string(getpid()))),
          file_(folder_ / "below" / "pipelines") {}
    ~PipelineCacheTest() override { std::filesystem::remove_all(folder_); }

    // Makes a device with the cache file and a kernel on it; the kernel must work. Saves if asked to.
    void use_cache(bool save) const {
        auto own = must(Device::create({.validation = true, .pipeline_cache = file_}));
        {
            const Kernel kernel =
                must(Kernel::create(*own, {.module = "self_test", .constants = {64, kSelfTestCount}}));
            const Buffer counter = must(own->create_buffer(4, MemoryKind::kHostReadback, "test"));
            auto recorder = must(Recorder::begin(*own));
            recorder.fill(counter, 0, 4, 0);
            recorder.barrier();
            recorder.dispatch(kernel, SelfTestParams{0, counter.address(), 0, 0, 0, 0}, 2, 1, 1, {});
            const CommandBuffer recording = must(std::move(recorder).end());
            const CommandBuffer* once[] = {&recording};
            must(own->compute_queue().wait(must(own->compute_queue().submit(once))));
            uint32_t count = 0;
            std::memcpy(&count, counter.mapped().data(), 4);
            EXPECT_EQ(count, 128u);
        }
        if (save) own->save_caches();
        EXPECT_EQ(own->validation_message_count(), 0u);
    }

    std::vector<char> read() const {
        std::ifstream in(file_, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    }
    void write(const std::vector<char>& bytes) const {
        std::filesystem::create_directories(file_.parent_path());
        std::ofstream(file_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }

    std::filesystem::path folder_, file_;
};

TEST_F(PipelineCacheTest, IsWrittenWholeAndReadAgain) {
    use_cache(true);
    const auto bytes = read();
    EXPECT_GE(bytes.size(), 32u);
    use_cache(true);
    size_t n_files = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(file_.parent_path())) ++n_files;
    EXPECT_EQ(n_files, 2u);  // beside it the StartRecord; no partial file is left behind
}

TEST_F(PipelineCacheTest, ABrokenOrForeignFileIsIgnored) {
    use_cache(true);
    const auto good = read();
    ASSERT_GE(good.size(), 32u);
    const auto line_end = std::ranges::find(good, '\n');
    ASSERT_NE(line_end, good.end());
    const std::string driver_bytes(line_end + 1, good.end());
    // With the line that lorad puts in front.
    const auto file_of = [](const std::string& by, const std::string& bytes) {
        const std::string whole =
            "lorad pipelines 1 " + by + " " + sha256_hex(std::as_bytes(std::span(bytes))) + "\n" + bytes;
        return std::vector<char>(whole.begin(), whole.end());
    };
    EXPECT_EQ(file_of(version(), driver_bytes), good);
    std::string foreign = driver_bytes, other_driver = driver_bytes, damaged(good.begin(), good.end());
    foreign[8] = static_cast<char>(foreign[8] + 1);              // the vendor
    other_driver[20] = static_cast<char>(other_driver[20] + 1);  // the UUID
    damaged.back() = static_cast<char>(damaged.back() + 1);
    const std::pair<std::vector<char>, const char*> faulty[] = {
        {{}, "not a pipeline cache of lorad's"},
        {std::vector<char>(5, 'x'), "not a pipeline cache of lorad's"},
        {std::vector<char>(5000, 'x'), "not a pipeline cache of lorad's"},
        {{driver_bytes.begin(), driver_bytes.end()}, "not a pipeline cache of lorad's"},
        {file_of(version(), foreign), "of another device"},
        {file_of(version(), other_driver), "of another driver version"},
        {file_of(version(), "short"), "no file of one, or too short"},
        {file_of("0.0.1", driver_bytes), "of lorad 0.0.1, not "},
        {{damaged.begin(), damaged.end()}, "damaged"}};
    for (const auto& [bytes, why] : faulty) {
        write(bytes);
        ::testing::internal::CaptureStderr();
        use_cache(false);
        EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(std::string("is ") + why));
        EXPECT_EQ(read(), bytes);
    }
}

TEST_F(PipelineCacheTest, WhatHasNotChangedIsNotWrittenAgain) {
    use_cache(true);
    const auto long_ago = std::filesystem::last_write_time(file_) - std::chrono::hours(1);
    std::filesystem::last_write_time(file_, long_ago);
    use_cache(true);
    EXPECT_EQ(std::filesystem::last_write_time(file_), long_ago);
}

TEST_F(PipelineCacheTest, InAFolderEachDeviceHasItsFile) {
    auto own = must(Device::create({.cache_folder = folder_}));
    own->save_caches();
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    EXPECT_THAT(
        names, ::testing::UnorderedElementsAre(::testing::MatchesRegex("pipelines-[0-9a-f]+-[0-9a-f]+\\.bin"),
                                               ::testing::MatchesRegex("pipelines-[0-9a-f]+-[0-9a-f]+\\.bin\\.start")));
}

TEST_F(PipelineCacheTest, AFileThatCannotBeWrittenIsOnlyAWarning) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "below") << "a file where a folder is needed";
    use_cache(true);
    EXPECT_TRUE(std::filesystem::is_regular_file(folder_ / "below"));
}

TEST_F(PipelineCacheTest, AFolderInItsPlaceIsLeftAlone) {
    std::filesystem::create_directories(file_);
    use_cache(true);
    EXPECT_TRUE(std::filesystem::is_directory(file_));
}

}  // namespace
}  // namespace lorad::gpu::testing::pipeline_test
