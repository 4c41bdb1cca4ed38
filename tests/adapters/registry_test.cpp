#include "adapters/pool/registry.h"

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/base/ids.h"
#include "proto/base/log.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/fake_store.h"
#include "tests/support/soon.h"

namespace lorad::adapters::registry_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace lorad::testing;

struct RegistryTest : ::testing::Test {
    RegistryTest() { set_log_level(LogLevel::kWarn); }
    ~RegistryTest() override { set_log_level(LogLevel::kInfo); }

    // The first element of layer 0's q A: tells which adapter a slot holds.
    float fingerprint(uint32_t slot) const { return *reinterpret_cast<const float*>(store.slots[slot].modules[0].a); }

    FakeStore store{4};
    Registry registry{small_config(), store, {.base_name = "base"}};
    AdapterFolder one{kPlainConfig, plain_tensors(4, 1)};
    AdapterFolder two{kPlainConfig, plain_tensors(4, 2)};
    const float one_print = test_value(1, 0, 0), two_print = test_value(2, 0, 0);
};

TEST_F(RegistryTest, LoadsListsLeasesAndUnloads) {
    const auto info = registry.load("sql", one.path());
    ASSERT_TRUE(info.ok()) << info.error().message;
    EXPECT_EQ(info->name, "sql");
    EXPECT_EQ(info->path, one.path().string());
    EXPECT_EQ(info->state, AdapterState::kResident);
    EXPECT_EQ(info->generation.size(), 64u);
    EXPECT_EQ(info->rank, 4u);
    EXPECT_EQ(info->n_modules, 4u);
    EXPECT_EQ(info->device_bytes, store.allocated_bytes);
    EXPECT_EQ(registry.device_bytes(), store.allocated_bytes);
    EXPECT_GT(info->loaded_at_s, 1'700'000'000);
    {
        const auto lease = registry.acquire("sql");
        ASSERT_TRUE(lease.ok());
        EXPECT_EQ(lease->name(), "sql");
        EXPECT_EQ(lease->generation(), info->generation);
        EXPECT_EQ(lease->slot(), info->slot);
        EXPECT_EQ(fingerprint(lease->slot()), one_print);
        ASSERT_EQ(registry.list().size(), 1u);
        EXPECT_EQ(registry.list()[0].n_leases, 1u);
    }
    EXPECT_EQ(registry.find("sql")->n_leases, 0u);
    EXPECT_TRUE(registry.remove("sql").ok());
    EXPECT_TRUE(registry.list().empty());
    EXPECT_EQ(store.allocated_bytes, 0u);
    EXPECT_EQ(registry.acquire("sql").error().code, ErrorCode::kAdapterNotFound);
    EXPECT_EQ(registry.remove("sql").error().code, ErrorCode::kAdapterNotFound);
    EXPECT_EQ(MixLease().slot(), kNoAdapterSlot);
}

TEST_F(RegistryTest, AnUnloadedAdapterLivesUntilItsLastLeaseEnds) {
    const auto info = registry.load("a", one.path());
    auto lease = registry.acquire("a");
    ASSERT_TRUE(lease.ok());
    MixLease copy = *lease;
    const auto removed = registry.remove("a");
    ASSERT_TRUE(removed.ok());
    EXPECT_EQ(removed->n_leases, 1u) << "copies are one hold";
    EXPECT_TRUE(removed->draining);
    EXPECT_EQ(registry.acquire("a").error().code, ErrorCode::kAdapterNotFound);
    ASSERT_EQ(registry.list().size(), 1u);
    EXPECT_TRUE(registry.list()[0].draining);
    *lease = MixLease();
    EXPECT_EQ(store.allocated_bytes, info->device_bytes);
    EXPECT_EQ(fingerprint(copy.slot()), one_print);
    copy = MixLease();
    EXPECT_EQ(store.allocated_bytes, 0u);
    EXPECT_TRUE(registry.list().empty());
}

TEST_F(RegistryTest, ANameInUseIsRefusedUnlessReplacedInPlace) {
    const auto first = registry.load("a", one.path());
    const auto again = registry.load("a", two.path());
    ASSERT_FALSE(again.ok());
    EXPECT_EQ(again.error().code, ErrorCode::kAdapterExists);
    EXPECT_EQ(registry.find("a")->generation, first->generation);

    auto old_lease = registry.acquire("a");
    const auto replaced = registry.load("a", two.path(), {.load_inplace = true});
    ASSERT_TRUE(replaced.ok());
    EXPECT_NE(replaced->generation, first->generation);
    const auto new_lease = registry.acquire("a");
    EXPECT_NE(new_lease->slot(), old_lease->slot());
    EXPECT_EQ(fingerprint(old_lease->slot()), one_print);
    EXPECT_EQ(fingerprint(new_lease->slot()), two_print);
    ASSERT_EQ(registry.list().size(), 2u);
    EXPECT_TRUE(registry.list()[1].draining);
    *old_lease = MixLease();
    EXPECT_EQ(registry.list().size(), 1u);
    EXPECT_EQ(store.allocated_bytes, replaced->device_bytes);
}

TEST_F(RegistryTest, ReplacingByTheSameContentChangesNothing) {
    const auto first = registry.load("a", one.path());
    const auto same = registry.load("a", one.path(), {.load_inplace = true});
    ASSERT_TRUE(same.ok());
    EXPECT_EQ(same->slot, first->slot);
    EXPECT_EQ(same->generation, first->generation);
    EXPECT_EQ(registry.list().size(), 1u);
}

TEST_F(RegistryTest, ReplacingChecksTheExpectedGeneration) {
    const auto first = registry.load("a", one.path());
    LoadOptions options{.load_inplace = true, .expected_generation = std::string(64, '0')};
    EXPECT_EQ(registry.load("a", two.path(), options).error().code, ErrorCode::kGenerationMismatch);
    EXPECT_EQ(registry.find("a")->generation, first->generation);
    options.expected_generation = first->generation;
    EXPECT_TRUE(registry.load("a", two.path(), options).ok());
    EXPECT_FALSE(registry.load("b", two.path(), options).ok());
}

TEST_F(RegistryTest, AFailedLoadLeavesNothingBehind) {
    ASSERT_TRUE(registry.load("a", one.path()).ok());
    const uint64_t before = store.allocated_bytes;
    const AdapterFolder broken(R"({"peft_type":"LORA","r":5,"target_modules":["q_proj","v_proj"]})");
    EXPECT_EQ(registry.load("b", broken.path()).error().code, ErrorCode::kAdapterInvalid);
    EXPECT_EQ(registry.load("a", broken.path(), {.load_inplace = true}).error().code, ErrorCode::kAdapterInvalid);
    EXPECT_EQ(registry.load("b", "no/such/folder").error().code, ErrorCode::kAdapterNotFound);
    store.capacity_bytes = before + 100;
    const auto lease = registry.acquire("a");
    ASSERT_TRUE(lease.ok());
    Registry full(small_config(), store, {.base_name = "base"});
    const auto too_large = full.load("b", two.path());
    ASSERT_FALSE(too_large.ok());
    EXPECT_EQ(too_large.error().code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(too_large.error().message, HasSubstr("bytes asked for"));
    EXPECT_TRUE(full.list().empty());
    store.capacity_bytes = uint64_t{1} << 40;
    store.n_uploads_until_failure = 1;
    EXPECT_EQ(registry.load("b", two.path()).error().code, ErrorCode::kDeviceLost);
    EXPECT_EQ(registry.list().size(), 1u);
    EXPECT_EQ(store.allocated_bytes, before);
    EXPECT_EQ(store.n_freed_while_pending, 0u);
    for (const char* name : {"b", "c", "d"}) EXPECT_TRUE(registry.load(name, two.path()).ok()) << name;
}

TEST_F(RegistryTest, AnIdleAdapterMakesRoomAndALeasedOneDoesNot) {
    for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(registry.load(name, one.path()).ok());
    std::vector<MixLease> leases;
    for (uint64_t seed = 3; seed < 7; ++seed) {
        const AdapterFolder folder(kPlainConfig, plain_tensors(4, seed));
        const std::string name = format("n{}", leases.size());
        ASSERT_TRUE(registry.load(name, folder.path()).ok()) << "the idle ones leave";
        leases.push_back(*registry.acquire(name));
    }
    const auto waits = registry.acquire("a", {.timeout = std::chrono::milliseconds(20)});
    ASSERT_FALSE(waits.ok());
    EXPECT_EQ(waits.error().code, ErrorCode::kAdapterBusy);
    const uint32_t slot = leases[2].slot();
    EXPECT_EQ(fingerprint(slot), test_value(5, 0, 0));
    leases[2] = MixLease();
    const auto granted = registry.acquire("a");
    ASSERT_TRUE(granted.ok());
    EXPECT_EQ(granted->slot(), slot);
    EXPECT_EQ(fingerprint(slot), one_print);
    EXPECT_EQ(registry.find("n2")->state, AdapterState::kStored);
}

TEST_F(RegistryTest, ASlotNeverKeepsModulesOfTheAdapterBefore) {
    ASSERT_TRUE(registry.load("a", one.path()).ok());
    const uint32_t slot = registry.find("a")->slot;
    ASSERT_TRUE(registry.remove("a").ok());
    TestTensors only_o;
    add_pair(only_o, 1, "self_attn.o_proj", 2, 40, 64);
    const AdapterFolder folder(R"({"peft_type":"LORA","r":2,"target_modules":["o_proj"],"layers_to_transform":[1]})",
                               only_o);
    ASSERT_EQ(registry.load("b", folder.path())->slot, slot);
    for (size_t i = 0; i < 14; ++i) EXPECT_EQ(store.slots[slot].modules[i].rank, i == 7 + 3 ? 2u : 0u) << i;
}

TEST_F(RegistryTest, LeasesOutliveTheRegistry) {
    MixLease lease;
    {
        Registry short_lived(small_config(), store, {.base_name = "base"});
        ASSERT_TRUE(short_lived.load("a", one.path()).ok());
        lease = *short_lived.acquire("a");
    }
    EXPECT_GT(store.allocated_bytes, 0u);
    EXPECT_EQ(fingerprint(lease.slot()), one_print);
    lease = MixLease();
    EXPECT_EQ(store.allocated_bytes, 0u);
}

TEST_F(RegistryTest, NamesAreChecked) {
    for (const std::string& name : {std::string(),
                                    std::string(129, 'x'),
                                    std::string("a\nb"),
                                    std::string("a\0b", 3),
                                    std::string("/a"),
                                    std::string("../a"),
                                    std::string("a/../b"),
                                    std::string(" a"),
                                    std::string("a "),
                                    std::string("\x7f"),
                                    std::string("\xff"),
                                    std::string("a\xc2\x85"),
                                    std::string("a\xc2\x9b"
                                                "31m"),
                                    std::string("\xe2\x80\xa8"
                                                "a"),
                                    std::string("a\xe2\x80\xa9"),
                                    std::string("a\xe2\x80\xae"
                                                "b"),
                                    std::string("\xe2\x81\xa6"
                                                "a"),
                                    std::string("\xef\xbb\xbf"
                                                "a"),
                                    std::string("a\xe2\x80\x8b"),
                                    std::string("a\xf3\xa0\x81\xa1"),
                                    std::string("base"),
                                    std::string("base:a")}) {
        const auto loaded = registry.load(name, one.path());
        ASSERT_FALSE(loaded.ok()) << name;
        EXPECT_EQ(loaded.error().code, ErrorCode::kInvalidAdapterName) << name;
        EXPECT_EQ(loaded.error().param, "lora_name");
    }
    for (const std::string& name :
         {std::string("a"), std::string(128, 'x'), std::string("org/name:v1@main"), std::string("sql lora"),
          std::string("caf\xc3\xa9"), std::string("a..b"), std::string("\xd9\x85\xdb\x8c\xe2\x80\x8c\xd8\xae"),
          std::string("\xe2\x9d\xa4\xef\xb8\x8f")}) {
        EXPECT_TRUE(registry.load(name, one.path()).ok()) << name;
        EXPECT_TRUE(registry.remove(name).ok()) << name;
    }
}

TEST_F(RegistryTest, CallsAboutOneNameTakeTurnsAndOneLoadWins) {
    std::atomic<int> n_ok{0}, n_exists{0}, n_other{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
        threads.emplace_back([&] {
            const auto loaded = registry.load("a", one.path());
            (loaded.ok() ? n_ok : loaded.error().code == ErrorCode::kAdapterExists ? n_exists : n_other)++;
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(n_ok, 1);
    EXPECT_EQ(n_exists, 5);
    EXPECT_EQ(n_other, 0);
    EXPECT_EQ(registry.list().size(), 1u);
}

// Whatever the threads do, a lease's slot holds the weights of the lease's generation from beginning to end.
TEST_F(RegistryTest, LeasedWeightsStayWhileOthersLoadReplaceAndUnload) {
    FakeStore small_store(6);
    Registry busy(small_config(), small_store, {.base_name = "base"});
    const std::string one_generation = busy.load("x", one.path())->generation;
    ASSERT_TRUE(busy.remove("x").ok());
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> n_leases{0}, n_wrong{0}, n_loads{0}, n_unexpected{0};
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 3; ++seed) {
        threads.emplace_back([&, seed] {
            std::minstd_rand random(seed + 1);
            while (!stop) {
                const std::string name(1, static_cast<char>('a' + random() % 3));
                const AdapterFolder& folder = random() % 2 ? one : two;
                if (random() % 4 == 0) {
                    (void)busy.remove(name).ok();
                } else {
                    const auto loaded = busy.load(name, folder.path(), {.load_inplace = random() % 2 == 0});
                    n_loads += loaded.ok();
                    if (!loaded.ok() && loaded.error().code != ErrorCode::kAdapterExists &&
                        loaded.error().code != ErrorCode::kOutOfMemory) {
                        n_unexpected++;
                    }
                }
                (void)busy.list();
            }
        });
    }
    for (unsigned seed = 0; seed < 3; ++seed) {
        threads.emplace_back([&, seed] {
            std::minstd_rand random(seed + 100);
            while (!stop) {
                const std::string name(1, static_cast<char>('a' + random() % 3));
                const auto lease = busy.acquire(name);
                if (!lease.ok()) continue;
                n_leases++;
                const float expected = lease->generation() == one_generation ? one_print : two_print;
                for (int i = 0; i < 20; ++i) {
                    const auto& module = small_store.slots[lease->slot()].modules[0];
                    n_wrong += *reinterpret_cast<const float*>(module.a) != expected;
                    if (i % 7 == 0) std::this_thread::yield();
                }
            }
        });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_TRUE(soon([&] { return n_leases > 0 && n_loads > 0; }));
    stop = true;
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(n_wrong, 0u);
    EXPECT_EQ(n_unexpected, 0u);
    for (const AdapterInfo& info : busy.list()) EXPECT_TRUE(busy.remove(info.name).ok());
    EXPECT_EQ(small_store.allocated_bytes, 0u);
    EXPECT_EQ(small_store.n_freed_while_pending, 0u);
    EXPECT_EQ(busy.device_bytes(), 0u);
    // No slot was lost.
    std::vector<MixLease> all;
    for (uint64_t i = 0; i < 6; ++i) {
        const AdapterFolder folder(kPlainConfig, plain_tensors(4, 10 + i));
        const std::string name = std::to_string(i);
        ASSERT_TRUE(busy.load(name, folder.path()).ok());
        all.push_back(*busy.acquire(name));
    }
}

}  // namespace
}  // namespace lorad::adapters::registry_test
