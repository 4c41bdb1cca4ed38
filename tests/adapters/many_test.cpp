// Thousands of adapters in the store, with room for a few on the device and in host memory; and many that come and go.
//
// LORAD_TEST_ADAPTERS and LORAD_TEST_CYCLES make them long.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>

#include <gtest/gtest.h>

#include "adapters/plan/check.h"
#include "adapters/plan/pack.h"
#include "adapters/pool/registry.h"
#include "proto/base/log.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/fake_store.h"
#include "tests/support/number_from.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"

namespace lorad::adapters::many_test {
namespace {

using namespace lorad::testing;

// What the sanitizers keep of freed memory would count.
constexpr bool kMemoryIsCounted = !lorad::testing::kIsSanitized;

uint64_t resident_bytes() {
    std::ifstream statm("/proc/self/statm");
    uint64_t all = 0, resident = 0;
    statm >> all >> resident;
    return resident * 4096;
}

size_t n_open_files() {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++n;
    return n;
}

struct ManyAdapters : ::testing::Test {
    ManyAdapters() { set_log_level(LogLevel::kError); }
    ~ManyAdapters() override { set_log_level(LogLevel::kInfo); }

    std::unique_ptr<Store> open() const { return *disk_store(*open_file_system(root.path() / "store"), {}); }
    // Another alpha is another content; all share their weights' blob.
    static std::string config(uint32_t i, uint32_t rank = 4) {
        return format(R"({{"peft_type":"LORA","r":{},"lora_alpha":{},"target_modules":["q_proj","v_proj"]}})", rank,
                      i + 1);
    }
    static std::string name_of(uint32_t i) { return format("adapter-{:05}", i); }
    static void upload(Registry& registry, std::string_view text) {
        auto blob = *registry.put_blob(sha256_hex(std::as_bytes(std::span(text))), text.size());
        ASSERT_TRUE(blob->write(std::as_bytes(std::span(text))).ok());
        ASSERT_TRUE(blob->finish().ok());
    }
    const TempDir root;
};

TEST_F(ManyAdapters, AreRegisteredListedUsedAndThereAfterARestart) {
    const uint32_t n_adapters = static_cast<uint32_t>(number_from("LORAD_TEST_ADAPTERS", 250));
    constexpr uint32_t kRoom = 8, kImages = 50;
    FakeStore device(kRoom);
    const std::string weights = safetensors_bytes(plain_tensors());
    const uint64_t image_bytes = packed_bytes(**check_adapter(AdapterFolder().path(), small_config()));
    const RegistryOptions options{.base_name = "base", .ram_bytes_max = kImages * image_bytes};
    const auto bounded = [&](const Registry& registry) {
        const RegistryStats stats = registry.stats();
        EXPECT_EQ(stats.n_names, n_adapters);
        EXPECT_LE(stats.ram_bytes, options.ram_bytes_max);
        EXPECT_LE(stats.n_on_device, kRoom);
        EXPECT_EQ(stats.n_leases + stats.n_waiting, 0u);
    };
    const auto use_some = [&](Registry& registry, uint64_t seed) {
        std::mt19937 random(static_cast<uint32_t>(seed));
        for (uint32_t n = 0; n < 200; ++n) {
            const uint32_t i = random() % n_adapters;
            const auto lease = registry.acquire(name_of(i));
            ASSERT_TRUE(lease.ok()) << lease.error().message;
            // alpha / rank
            EXPECT_EQ(device.slots[lease->slot()].modules[0].scale, static_cast<float>(i + 1) / 4);
        }
    };
    const uint64_t before = resident_bytes();
    {
        Registry registry(small_config(), device, options, open());
        upload(registry, weights);
        for (uint32_t i = 0; i < n_adapters; ++i) {
            const std::string text = config(i);
            upload(registry, text);
            const UploadedFile files[] = {{std::string(kConfigFile), sha256_hex(std::as_bytes(std::span(text)))},
                                          {std::string(kPeftFile), sha256_hex(std::as_bytes(std::span(weights)))}};
            const auto info = registry.register_adapter(name_of(i), files);
            ASSERT_TRUE(info.ok()) << info.error().message;
        }
        use_some(registry, 31);
        bounded(registry);
    }
    Registry registry(small_config(), device, options, open());
    use_some(registry, 32);
    bounded(registry);
    if (kMemoryIsCounted) {
        EXPECT_LT(resident_bytes(), before + (uint64_t{64} << 20)) << "a few KiB for each name";
    }
    // The list, whole and page by page.
    const std::vector<AdapterInfo> all = registry.list();
    ASSERT_EQ(all.size(), n_adapters);
    for (uint32_t i = 0; i < n_adapters; ++i) ASSERT_EQ(all[i].name, name_of(i));
    std::string after;
    uint32_t n_listed = 0;
    for (bool more = true; more;) {
        const Registry::Page page = registry.page(after, 300);
        ASSERT_LE(page.adapters.size(), 300u);
        n_listed += static_cast<uint32_t>(page.adapters.size());
        after = page.adapters.back().name;
        more = page.more;
    }
    EXPECT_EQ(n_listed, n_adapters);
    for (uint32_t i = 0; i < n_adapters; i += 100) ASSERT_TRUE(registry.remove(name_of(i)).ok());
    EXPECT_EQ(registry.list().size(), n_adapters - (n_adapters + 99) / 100);
}

TEST_F(ManyAdapters, LoadsAndRemovalsLeaveNothing) {
    const uint32_t n_cycles = static_cast<uint32_t>(number_from("LORAD_TEST_CYCLES", 50));
    FakeStore device(2);
    Registry registry(small_config(), device, {.base_name = "base", .ram_bytes_max = 1 << 20}, open());
    // 0.7 MB each, so that one that is left behind in every cycle shows.
    const AdapterFolder one(config(0, 512), plain_tensors(512, 1)), two(config(1, 512), plain_tensors(512, 2));
    const auto cycle = [&](uint32_t i) {
        const std::string name = name_of(i % 3);
        ASSERT_TRUE(registry.load(name, (i % 2 ? one : two).path()).ok());
        MixLease lease = *registry.acquire(name);
        ASSERT_TRUE(registry.load(name, (i % 2 ? two : one).path(), {.load_inplace = true}).ok());
        ASSERT_TRUE(registry.rollback(name).ok());
        ASSERT_TRUE(registry.remove(name, {.mode = i % 5 ? RemoveMode::kDrain : RemoveMode::kNow}).ok());
        lease = MixLease();
        ASSERT_EQ(device.allocated_bytes, 0u);
        ASSERT_EQ(registry.stats().ram_bytes, 0u);
    };
    for (uint32_t i = 0; i < 20; ++i) cycle(i);
    const uint64_t memory = resident_bytes();
    const size_t files = n_open_files();
    for (uint32_t i = 0; i < n_cycles && !HasFatalFailure(); ++i) cycle(i);
    EXPECT_EQ(n_open_files(), files);
    if (kMemoryIsCounted) {
        EXPECT_LT(resident_bytes(), memory + (uint64_t{16} << 20));
    }
    EXPECT_TRUE(registry.list().empty());
    EXPECT_EQ(registry.stats().n_generations, 0u);
    // Collected on another thread.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (registry.stats().stored_bytes > 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(registry.stats().stored_bytes, 0u);
}

}  // namespace
}  // namespace lorad::adapters::many_test
