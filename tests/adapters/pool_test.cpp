// Who gets a place on the device, when, and who has to leave: through the registry, with host memory for a device.
#include "adapters/pool/pool.h"

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapters/files/source.h"
#include "adapters/plan/check.h"
#include "adapters/pool/registry.h"
#include "proto/base/log.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/fake_store.h"
#include "tests/adapters/watched_store.h"
#include "tests/support/soon.h"

namespace lorad::adapters::pool_test {
namespace {

using ::testing::HasSubstr;
using namespace lorad::testing;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLong = 60s;

struct PoolTest : ::testing::Test {
    PoolTest() { set_log_level(LogLevel::kError); }
    ~PoolTest() override { set_log_level(LogLevel::kInfo); }

    static AdapterFolder folder(uint64_t seed, uint32_t rank = 4) {
        return AdapterFolder(
            format(R"({{"peft_type":"LORA","r":{},"lora_alpha":8,"target_modules":["q_proj","v_proj"]}})", rank),
            plain_tensors(rank, seed));
    }
    // Registered and on no device.
    static void add(Registry& registry, const std::string& name, uint64_t seed, uint32_t rank = 4) {
        const AdapterFolder files = folder(seed, rank);
        const auto loaded = registry.load(name, files.path());
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        ASSERT_TRUE(registry.deactivate(name).ok());
        ASSERT_EQ(registry.find(name)->slot, kNoAdapterSlot);
    }
    static float print_of(const FakeStore& store, uint32_t slot) {
        return *reinterpret_cast<const float*>(store.slots[slot].modules[0].a);
    }
    static void wait_for_waiting(const Registry& registry, uint64_t n) {
        while (registry.stats().n_waiting != n) std::this_thread::sleep_for(1ms);
    }
};

TEST_F(PoolTest, ManyRequestsForOneAdapterShareOneLoad) {
    FakeStore store(2);
    Registry registry(small_config(), store, {.base_name = "base"});
    add(registry, "a", 1);
    const uint64_t before = registry.stats().n_loads;
    std::vector<MixLease> leases(12);
    std::vector<std::thread> threads;
    for (MixLease& lease : leases) threads.emplace_back([&] { lease = *registry.acquire("a"); });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(registry.stats().n_loads, before + 1);
    for (const MixLease& lease : leases) EXPECT_EQ(lease.slot(), leases[0].slot());
    EXPECT_EQ(registry.find("a")->n_leases, 12u);
}

TEST_F(PoolTest, RequestsWaitInTheirOrder) {
    FakeStore store(1);
    Registry registry(small_config(), store, {.base_name = "base", .starvation_bound = kLong});
    for (uint64_t i = 0; i < 4; ++i) add(registry, std::string(1, static_cast<char>('a' + i)), i);
    MixLease held = *registry.acquire("a");
    std::mutex mutex;
    std::string order;
    std::vector<std::thread> threads;
    for (const char* name : {"b", "c", "d"}) {
        threads.emplace_back([&, name] {
            const auto lease = registry.acquire(name);
            ASSERT_TRUE(lease.ok());
            const std::lock_guard lock(mutex);
            order += name;
        });
        wait_for_waiting(registry, threads.size());
    }
    // Those whose adapter is there go past the queue.
    EXPECT_TRUE(registry.acquire("a", {.timeout = 0ms}).ok());
    held = MixLease();
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(order, "bcd");
}

// Leases on "a" overlap for ever; "b" gets its turn only because the door is closed after the bound.
TEST_F(PoolTest, AnAdapterThatIsAlwaysInUseDrainsForOneThatWaits) {
    const auto run = [&](std::chrono::milliseconds bound, std::chrono::milliseconds patience) {
        FakeStore store(1);
        Registry registry(small_config(), store, {.base_name = "base", .starvation_bound = bound});
        add(registry, "a", 1);
        add(registry, "b", 2);
        std::atomic<bool> stop{false};
        std::atomic<uint32_t> n_served{0};
        std::vector<std::thread> busy;
        for (int i = 0; i < 3; ++i) {
            busy.emplace_back([&] {
                MixLease before;
                while (!stop) {
                    auto lease = registry.acquire("a", {.timeout = 200ms});
                    if (!lease.ok()) {
                        before = MixLease();
                        continue;
                    }
                    std::this_thread::sleep_for(1ms);
                    before = std::move(*lease);  // the one before is given back only now
                    if (++n_served % 50 == 0) before = MixLease();
                }
            });
        }
        while (n_served < 5) std::this_thread::sleep_for(1ms);
        auto lease = registry.acquire("b", {.timeout = patience});
        const bool ok = lease.ok() && print_of(store, lease->slot()) == test_value(2, 0, 0);
        EXPECT_TRUE(ok || lease.error().code == ErrorCode::kAdapterBusy);
        stop = true;
        lease = MixLease();
        for (auto& thread : busy) thread.join();
        return ok;
    };
    EXPECT_TRUE(run(20ms, kLong));
    EXPECT_FALSE(run(kLong, 300ms)) << "without the bound it would starve";
}

TEST_F(PoolTest, OnlyWhatCanNeverFitIsRefused) {
    FakeStore store(4);
    const uint64_t small = [&] {
        Registry registry(small_config(), store, {.base_name = "base"});
        return registry.load("x", folder(1).path())->device_bytes;
    }();
    Registry registry(small_config(), store,
                      {.base_name = "base", .device_bytes_max = 2 * small, .starvation_bound = kLong});
    const auto large = registry.load("large", folder(2, 64).path());
    ASSERT_FALSE(large.ok());
    EXPECT_EQ(large.error().code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(large.error().message, HasSubstr(format("{} bytes", 2 * small).substr(0, 4)));
    EXPECT_TRUE(registry.list().empty());
    EXPECT_EQ(registry.stats().stored_bytes, 0u);

    for (uint64_t i = 0; i < 3; ++i) add(registry, std::string(1, static_cast<char>('a' + i)), i);
    const AdapterTerm all[] = {{"a", 1}, {"b", 1}, {"c", 1}};
    EXPECT_EQ(registry.acquire(all).error().code, ErrorCode::kOutOfMemory) << "three at once in room for two";
    EXPECT_TRUE(registry.acquire(std::span(all, 2)).ok());
    ASSERT_TRUE(registry.activate("a", {.pin = true}).ok());
    EXPECT_TRUE(registry.acquire(std::span(all, 2)).ok()) << "its own pin is no obstacle";
    EXPECT_EQ(registry.acquire(std::span(all + 1, 2)).error().code, ErrorCode::kOutOfMemory);
    const MixLease lease = *registry.acquire("b");
    EXPECT_EQ(registry.acquire("c", {.timeout = 10ms}).error().code, ErrorCode::kAdapterBusy) << "that may fit later";
    EXPECT_LE(registry.device_bytes(), 2 * small);
    ASSERT_TRUE(registry.deactivate("a").ok());
    EXPECT_TRUE(registry.acquire("c").ok());
}

TEST_F(PoolTest, APinnedAdapterStays) {
    FakeStore store(2);
    Registry registry(small_config(), store, {.base_name = "base"});
    for (uint64_t i = 0; i < 6; ++i) add(registry, std::string(1, static_cast<char>('a' + i)), i);
    const auto pinned = registry.activate("a", {.pin = true});
    ASSERT_TRUE(pinned.ok());
    EXPECT_TRUE(pinned->pinned);
    const uint32_t slot = registry.find("a")->slot;
    for (const char* name : {"b", "c", "d", "e", "f"}) ASSERT_TRUE(registry.acquire(name).ok());
    EXPECT_EQ(registry.find("a")->slot, slot);
    ASSERT_TRUE(registry.load("a", folder(9).path(), {.load_inplace = true}).ok());
    EXPECT_TRUE(registry.find("a")->pinned) << "the new content is what stays now";
    EXPECT_EQ(registry.find("a")->state, AdapterState::kResident);
}

TEST_F(PoolTest, TheOneNotUsedForLongestLeaves) {
    FakeStore store(3);
    Registry registry(small_config(), store, {.base_name = "base"});
    for (uint64_t i = 0; i < 4; ++i) add(registry, std::string(1, static_cast<char>('a' + i)), i);
    for (const char* name : {"a", "b", "c", "a"}) ASSERT_TRUE(registry.acquire(name).ok());
    ASSERT_TRUE(registry.acquire("d").ok());
    EXPECT_EQ(registry.find("b")->tier, Tier::kDisk);
    for (const char* name : {"a", "c", "d"}) EXPECT_EQ(registry.find(name)->tier, Tier::kGpu) << name;
}

TEST_F(PoolTest, EvictedAdaptersComeBackFromHostMemoryWithinItsBudget) {
    FakeStore store(1);
    const uint64_t bytes = [&] {
        Registry registry(small_config(), store, {.base_name = "base"});
        return registry.load("x", folder(1).path())->device_bytes;
    }();
    Registry registry(small_config(), store, {.base_name = "base", .ram_bytes_max = 2 * bytes + 100});
    for (uint64_t i = 0; i < 3; ++i) add(registry, std::string(1, static_cast<char>('a' + i)), i);
    EXPECT_EQ(registry.stats().ram_bytes, 2 * bytes);
    EXPECT_EQ(registry.find("a")->tier, Tier::kDisk);
    EXPECT_EQ(registry.find("b")->tier, Tier::kRam);
    EXPECT_EQ(registry.find("c")->tier, Tier::kRam);
    const uint64_t from_ram = registry.stats().n_loads_from_ram;
    for (const char* name : {"b", "c", "b", "c"}) {
        const MixLease lease = *registry.acquire(name);
        EXPECT_EQ(print_of(store, lease.slot()), test_value(static_cast<uint64_t>(*name - 'a'), 0, 0));
    }
    EXPECT_EQ(registry.stats().n_loads_from_ram, from_ram + 4);
    ASSERT_TRUE(registry.acquire("a").ok());
    EXPECT_EQ(registry.stats().n_loads_from_ram, from_ram + 4);
    EXPECT_EQ(registry.find("b")->tier, Tier::kDisk) << "used longer ago than c";
    EXPECT_LE(registry.stats().ram_bytes, 2 * bytes + 100);
    ASSERT_TRUE(registry.remove("a").ok());
    EXPECT_EQ(registry.stats().ram_bytes, bytes);
}

TEST_F(PoolTest, WhatWasReadAndCheckedIsNotReadAgainWhereHostMemoryKeepsItsImage) {
    const AdapterFolder files = folder(1);
    const auto read = *read_adapter_source(files.path());
    const std::vector<UploadedFile> uploads = {{read.files[0].name, read.files[0].sha256},
                                               {read.files[1].name, read.files[1].sha256}};
    for (const uint64_t ram_bytes_max : {uint64_t{0}, uint64_t{1} << 30}) {
        const uint32_t again = ram_bytes_max == 0 ? 2 : 0;  // of both files
        FakeStore store(2);
        auto counting = std::make_unique<WatchedStore>();
        const WatchedStore& blobs = *counting;
        Registry registry(small_config(), store, {.base_name = "base", .ram_bytes_max = ram_bytes_max},
                          std::move(counting));
        ASSERT_TRUE(registry.load("a", files.path()).ok());
        EXPECT_EQ(blobs.n_reads, again) << "from the folder, once";
        EXPECT_EQ(print_of(store, registry.find("a")->slot), test_value(1, 0, 0));
        ASSERT_TRUE(registry.remove("a").ok());
        for (const SourceFile& file : read.files) {
            auto upload = *registry.put_blob(file.sha256, file.bytes.size);
            ASSERT_TRUE(upload->write(file.bytes.span()).ok());
            ASSERT_TRUE(upload->finish().ok());
        }
        const uint32_t before = blobs.n_reads;
        ASSERT_TRUE(registry.register_adapter("b", uploads).ok());
        EXPECT_EQ(blobs.n_reads, before + 2) << "to be checked, once";
        const auto lease = registry.acquire("b");
        ASSERT_TRUE(lease.ok());
        EXPECT_EQ(blobs.n_reads, before + 2 + again);
        EXPECT_EQ(print_of(store, lease->slot()), test_value(1, 0, 0));
    }
}

// A load of an active name, overtaken by a change of the name between its own change and bringing the name's content to
// the device: with one slot, whoever held the loaded content while it waited for the other would wait for itself.
TEST_F(PoolTest, ALoadThatIsOvertakenHoldsNoPlaceWhileItWaitsForAnother) {
    const AdapterFolder one = folder(1), two = folder(2);
    FakeStore store(1);
    auto watched = std::make_unique<WatchedStore>();
    WatchedStore& blobs = *watched;
    Registry registry(small_config(), store, {.base_name = "base", .wait_timeout = 5s}, std::move(watched));
    const std::string first = registry.load("a", one.path())->generation;
    ASSERT_TRUE(registry.activate("a", {}).ok());
    std::thread overtakes;
    blobs.before_save = [&](const Catalogue& next) {
        if (overtakes.joinable() || next.aliases.at("a").target.generation() == first) return ok_status();
        // Changes take turns in the order in which they are asked for: this one's comes right after the load's.
        overtakes = std::thread([&] { EXPECT_TRUE(registry.rollback("a").ok()); });
        std::this_thread::sleep_for(100ms);
        return ok_status();
    };
    EXPECT_TRUE(registry.load("a", two.path(), {.load_inplace = true}).ok());
    ASSERT_TRUE(overtakes.joinable());
    overtakes.join();
    EXPECT_EQ(registry.find("a")->generation, first);
    EXPECT_EQ(registry.find("a")->state, AdapterState::kResident);
    EXPECT_EQ(registry.stats().n_wait_timeouts, 0u);
}

TEST_F(PoolTest, RegisteringPushesNoImageOutOfHostMemoryAndLoadingDoes) {
    FakeStore store(4);
    const AdapterFolder one = folder(1), two = folder(2), three = folder(3);
    const uint64_t bytes = packed_bytes(**check_adapter(one.path(), small_config()));
    Registry registry(small_config(), store, {.base_name = "base", .ram_bytes_max = bytes + 100});
    const auto add_upload = [&](const std::string& name, const AdapterFolder& files) {
        std::vector<UploadedFile> uploads;
        const AdapterSource source = *read_adapter_source(files.path());
        for (const SourceFile& file : source.files) {
            auto upload = *registry.put_blob(file.sha256, file.bytes.size);
            ASSERT_TRUE(upload->write(file.bytes.span()).ok() && upload->finish().ok());
            uploads.push_back({file.name, file.sha256});
        }
        ASSERT_TRUE(registry.register_adapter(name, uploads).ok());
    };
    add_upload("a", one);
    EXPECT_EQ(registry.find("a")->tier, Tier::kRam);
    add_upload("b", two);
    EXPECT_EQ(registry.find("a")->tier, Tier::kRam);
    EXPECT_EQ(registry.find("b")->tier, Tier::kDisk);
    ASSERT_TRUE(registry.load("c", three.path()).ok());
    EXPECT_EQ(registry.find("a")->tier, Tier::kDisk);
    EXPECT_EQ(registry.stats().ram_bytes, bytes);
}

TEST_F(PoolTest, RequestsThatGiveUpHoldNothing) {
    FakeStore store(2);
    Registry registry(small_config(), store, {.base_name = "base", .starvation_bound = 5ms});
    for (uint64_t i = 0; i < 4; ++i) add(registry, std::string(1, static_cast<char>('a' + i)), i);
    MixLease a = *registry.acquire("a"), b = *registry.acquire("b");
    std::atomic<bool> left{false};
    const AdapterTerm pair[] = {{"b", 1}, {"c", 1}};
    std::thread first([&] {
        const auto lease = registry.acquire(pair, {.cancelled = [&] { return left.load(); }});
        EXPECT_EQ(lease.error().code, ErrorCode::kAdapterBusy);
    });
    wait_for_waiting(registry, 1);
    EXPECT_TRUE(soon([&] { return !registry.acquire("a", {.timeout = 1ms}).ok(); }))
        << "the first closes the door of \"a\"";
    EXPECT_EQ(registry.acquire("a", {.timeout = 1ms}).error().code, ErrorCode::kAdapterBusy);
    std::thread second([&] { EXPECT_TRUE(registry.acquire("d").ok()); });
    wait_for_waiting(registry, 2);
    left = true;
    first.join();
    b = MixLease();
    second.join();
    EXPECT_TRUE(registry.acquire("a", {.timeout = 0ms}).ok()) << "the door is open again";
    EXPECT_EQ(registry.stats().n_waiting, 0u);
}

// The plan promised more than the device has.
TEST_F(PoolTest, ADeviceWithLessRoomThanPlannedIsShared) {
    FakeStore store(4);
    Registry registry(small_config(), store, {.base_name = "base", .starvation_bound = kLong});
    for (uint64_t i = 0; i < 4; ++i) add(registry, std::string(1, static_cast<char>('a' + i)), i);
    store.capacity_bytes = registry.find("a")->device_bytes * 5 / 2;
    for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(registry.acquire(name).ok()) << "idle ones leave";
    MixLease a = *registry.acquire("a"), b = *registry.acquire("b");
    EXPECT_EQ(registry.acquire("c", {.timeout = 5ms}).error().code, ErrorCode::kAdapterBusy);
    std::thread waits([&] { EXPECT_TRUE(registry.acquire("c").ok()); });
    wait_for_waiting(registry, 1);
    a = MixLease();
    waits.join();
    b = MixLease();
    store.capacity_bytes = 100;
    ASSERT_TRUE(registry.deactivate("a").ok() && registry.deactivate("b").ok() && registry.deactivate("c").ok());
    EXPECT_EQ(registry.acquire("d", {.timeout = kLong}).error().code, ErrorCode::kOutOfMemory) << "alone, and yet not";
}

// Many threads do everything at once in room for few: whoever has a lease has the right weights in its slots, nobody
// waits for ever, and in the end nothing is left.
TEST_F(PoolTest, EverybodyGetsTheRightWeightsWhateverGoesOn) {
    constexpr int kNames = 8, kThreads = 10;
    FakeStore store(4);
    Registry registry(small_config(), store,
                      {.base_name = "base", .ram_bytes_max = 20'000, .wait_timeout = kLong, .starvation_bound = 5ms});
    // Content i of a name begins with a value of its own; generations of equal content are one.
    std::vector<std::unique_ptr<AdapterFolder>> folders;
    std::map<std::string, float> prints;
    for (uint64_t seed = 0; seed < 12; ++seed) {
        const uint32_t rank = 2 + static_cast<uint32_t>(seed % 4);
        folders.push_back(std::unique_ptr<AdapterFolder>(new AdapterFolder(folder(seed, rank))));
        const auto loaded = registry.load("probe", folders.back()->path(), {.load_inplace = true});
        ASSERT_TRUE(loaded.ok());
        prints[loaded->generation] = test_value(seed, 0, 0);
    }
    ASSERT_TRUE(registry.remove("probe").ok());
    ASSERT_EQ(prints.size(), 12u);

    std::atomic<uint64_t> n_leases{0}, n_wrong{0}, n_late{0};
    std::mutex mutex;
    std::set<std::string> strange;
    const uint64_t first_seed = std::random_device{}();
    const auto end = Clock::now() + 2500ms;
    const auto goes_on = [&] {
        return Clock::now() < end ||
               ((n_leases <= 100 || registry.stats().n_evictions == 0) && Clock::now() < end + 30s);
    };
    std::vector<std::thread> threads;
    for (int id = 0; id < kThreads; ++id) {
        threads.emplace_back([&, id] {
            std::mt19937_64 random(first_seed + static_cast<uint64_t>(id));
            const auto name = [&] { return std::string(1, static_cast<char>('a' + random() % kNames)); };
            const auto expect = [&](const auto& result, std::initializer_list<ErrorCode> allowed) {
                if (result.ok() || std::find(allowed.begin(), allowed.end(), result.error().code) != allowed.end())
                    return;
                const std::lock_guard lock(mutex);
                strange.insert(result.error().message);
            };
            using enum ErrorCode;
            while (goes_on()) {
                const uint64_t what = random() % 100;
                if (what < 60) {
                    std::vector<AdapterTerm> terms(1 + random() % 3);
                    for (AdapterTerm& term : terms) term = {name(), 0.5f + static_cast<float>(random() % 3)};
                    const bool impatient = random() % 8 == 0, leaves = random() % 8 == 0;
                    const auto begin = Clock::now();
                    AcquireOptions options;
                    if (impatient) options.timeout = std::chrono::milliseconds(random() % 4);
                    if (leaves) options.cancelled = [&, n = random() % 3]() mutable { return n-- == 0; };
                    const auto lease = registry.acquire(terms, options);
                    n_late += Clock::now() - begin > 10s;
                    if (impatient || leaves) {
                        expect(lease, {kAdapterNotFound, kAdapterBusy});
                    } else {
                        expect(lease, {kAdapterNotFound});
                    }
                    if (!lease.ok()) continue;
                    ++n_leases;
                    for (int look = 0; look < 3; ++look) {
                        for (size_t use = 0; use < lease->uses().size(); ++use) {
                            n_wrong +=
                                print_of(store, lease->uses()[use].slot) != prints.at(lease->content()[use].generation);
                        }
                        std::this_thread::yield();
                    }
                } else if (what < 85) {
                    const LoadOptions options{.load_inplace = random() % 3 != 0};
                    expect(registry.load(name(), folders[random() % folders.size()]->path(), options),
                           {kAdapterExists});
                } else if (what < 90) {
                    expect(registry.remove(name(), {.mode = random() % 2 ? RemoveMode::kNow : RemoveMode::kDrain,
                                                    .timeout = std::chrono::milliseconds(random() % 3)}),
                           {kAdapterNotFound});
                } else if (what < 94) {
                    expect(registry.activate(name(), {}), {kAdapterNotFound, kGenerationConflict});
                } else if (what < 97) {
                    expect(registry.deactivate(name()), {kAdapterNotFound});
                } else {
                    expect(registry.rollback(name()), {kAdapterNotFound, kGenerationConflict});
                }
            }
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_TRUE(strange.empty()) << *strange.begin() << " (seed " << first_seed << ")";
    EXPECT_EQ(n_wrong, 0u) << "seed " << first_seed;
    EXPECT_EQ(n_late, 0u) << "seed " << first_seed;
    EXPECT_GT(n_leases, 100u);
    const RegistryStats stats = registry.stats();
    EXPECT_EQ(stats.n_leases + stats.n_waiting, 0u);
    for (const AdapterInfo& info : registry.list()) {
        EXPECT_FALSE(info.draining);
        EXPECT_TRUE(registry.remove(info.name).ok());
    }
    EXPECT_EQ(store.allocated_bytes, 0u);
    EXPECT_EQ(store.n_freed_while_pending, 0u);
    EXPECT_EQ(registry.device_bytes(), 0u);
    EXPECT_EQ(registry.stats().ram_bytes, 0u);
    EXPECT_EQ(registry.stats().n_generations, 0u);
    // The last lease's thread leaves the files to the housekeeper.
    EXPECT_TRUE(soon([&] { return registry.stats().stored_bytes == 0; }));
    EXPECT_GT(stats.n_evictions, 0u);
}

TEST_F(PoolTest, AThousandLoadsAndUnloadsLeaveNothing) {
    FakeStore store(2);
    Registry registry(small_config(), store, {.base_name = "base", .ram_bytes_max = 1 << 20});
    for (int i = 0; i < 1000; ++i) {
        const AdapterFolder files = folder(static_cast<uint64_t>(i % 50));
        ASSERT_TRUE(registry.load("a", files.path()).ok());
        ASSERT_TRUE(registry.acquire("a").ok());
        ASSERT_TRUE(registry.remove("a").ok());
        ASSERT_EQ(store.allocated_bytes, 0u);
        ASSERT_EQ(registry.stats().stored_bytes, 0u);
    }
    EXPECT_EQ(registry.stats().n_generations, 0u);
}

}  // namespace
}  // namespace lorad::adapters::pool_test
