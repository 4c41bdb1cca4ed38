// The registry on a disk that ends the program, or fails, at every single call in turn.
#include <gtest/gtest.h>

#include "adapters/pool/registry.h"
#include "proto/base/log.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/crash_file_system.h"
#include "tests/adapters/fake_store.h"

namespace lorad::adapters::crash_test {
namespace {

using namespace lorad::testing;
using Names = std::map<std::string, Alias, std::less<>>;

struct CrashTest : ::testing::Test {
    CrashTest() { set_log_level(LogLevel::kError); }
    ~CrashTest() override { set_log_level(LogLevel::kInfo); }

    static std::string file_text(const std::filesystem::path& path) {
        std::ifstream file(path, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(file), {});
    }
    static std::string digest(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

    // What an observer outside knows: names as they were when a call was acknowledged, and blobs that were.
    struct Known {
        Names names;
        std::set<std::string> blobs;
    };

    // One life of a server: calls until one fails (or all, with `goes_on`). Times are not compared.
    Known live(std::unique_ptr<Store> files, bool goes_on, Names* during = nullptr) {
        Known known;
        FakeStore weights(2);
        Registry registry(small_config(), weights, {.base_name = "base"}, std::move(files));
        known.names = names_of(registry);
        const auto did = [&](bool ok) {
            if (ok) known.names = names_of(registry);
            return ok || goes_on;
        };
        const auto upload = [&](const std::string& text) {
            auto begun = registry.put_blob(digest(text), text.size());
            const bool ok =
                begun.ok() && (*begun)->write(std::as_bytes(std::span(text))).ok() && (*begun)->finish().ok();
            if (ok) known.blobs.insert(digest(text));
            return did(ok);
        };
        const auto steps = [&] {
            if (!did(registry.load("a", one.path(), {.load_inplace = true}).ok())) return;
            const std::string config = file_text(two.path() / kConfigFile), tensors = file_text(two.path() / kPeftFile);
            if (!upload(config) || !upload(tensors)) return;
            const std::vector<UploadedFile> files_of_two = {{std::string(kConfigFile), digest(config)},
                                                            {std::string(kPeftFile), digest(tensors)}};
            if (!did(registry.register_adapter("b", files_of_two, {.replace = true}).ok())) return;
            if (!did(registry.load("a", three.path(), {.load_inplace = true}).ok())) return;
            const AdapterTerm terms[] = {{"a", 0.5f}, {"b", -2.0f}};
            if (!did(registry.register_mix("m", terms, {.replace = true}).ok())) return;
            if (!did(registry.activate("b", {.pin = true}).ok())) return;
            if (!did(registry.rollback("a").ok())) return;
            const auto removed = registry.remove("m");
            if (!did(removed.ok() || removed.error().code == ErrorCode::kAdapterNotFound)) return;
            known.blobs.clear();  // they go with their adapter, also if that is not acknowledged any more
            const auto gone = registry.remove("b");
            if (!did(gone.ok() || gone.error().code == ErrorCode::kAdapterNotFound)) return;
            if (!upload("only uploaded")) return;
        };
        steps();
        if (during != nullptr) *during = names_of(registry);
        EXPECT_EQ(weights.n_freed_while_pending, 0u);
        return known;
    }

    static Names names_of(const Registry& registry) {
        Names names;
        for (const AdapterInfo& info : registry.list()) {
            if (info.draining) continue;
            Alias alias;
            alias.mode = info.mode;
            alias.pinned = info.pinned;
            alias.target.path = info.generation;
            for (const PastTarget& past : info.history) alias.history.push_back({{}, past.generation, 0});
            names[info.name] = alias;
        }
        return names;
    }

    // The state after a restart: what was acknowledged, all of it usable, nothing half.
    void check(CrashDisk& disk, const Known& known, const std::string& where) {
        auto opened = disk_store(std::make_unique<CrashFileSystem>(disk), {});
        ASSERT_TRUE(opened.ok()) << where << ": " << opened.error().message;
        for (const auto& [path, file] : disk.names) {
            EXPECT_FALSE(path.starts_with("incoming/")) << where << path;
            EXPECT_FALSE(path.ends_with(".new")) << where << path;
        }
        for (const std::string& blob : known.blobs) {
            EXPECT_TRUE((*opened)->blob_bytes(blob)) << where << ": an acknowledged upload is gone";
        }
        FakeStore weights(4);
        Registry registry(small_config(), weights, {.base_name = "base"}, std::move(opened).value());
        for (const AdapterInfo& info : registry.list()) {
            EXPECT_TRUE(registry.acquire(info.name).ok()) << where << ": " << info.name << " is half there";
            for (size_t back = 0; back < info.history.size(); ++back) {
                EXPECT_TRUE(registry.rollback(info.name).ok()) << where;
                EXPECT_TRUE(registry.acquire(info.name).ok()) << where << ": history of " << info.name;
            }
        }
    }

    AdapterFolder one{kPlainConfig, plain_tensors(4, 1)};
    AdapterFolder two{kPlainConfig, plain_tensors(4, 2)};
    AdapterFolder three{kPlainConfig, plain_tensors(4, 3)};
};

TEST_F(CrashTest, WhateverCallIsTheLastTheRegistryOpensWithAllThatWasAcknowledged) {
    for (const CrashDisk::Loss loss :
         {CrashDisk::Loss::kProgram, CrashDisk::Loss::kPower, CrashDisk::Loss::kPowerAndLuck}) {
        uint64_t n_crashes = 0;
        for (uint64_t at = 1;; ++at) {
            CrashDisk disk;
            disk.fail_at(at);
            Known known;
            auto opened = disk_store(std::make_unique<CrashFileSystem>(disk), {});
            if (opened.ok()) known = live(std::move(opened).value(), false);
            const bool reached = disk.reached();
            n_crashes += reached;
            disk.restart(loss, at);
            // Names are what was acknowledged last, or what the call under way was about.
            auto again = disk_store(std::make_unique<CrashFileSystem>(disk), {});
            ASSERT_TRUE(again.ok()) << at << again.error().message;
            Names found;
            {
                FakeStore weights(4);
                Registry registry(small_config(), weights, {.base_name = "base"}, std::move(again).value());
                found = names_of(registry);
            }
            if (found != known.names) {
                // One call further: the same life, with the disk dying only after that call.
                bool explained = false;
                for (uint64_t later = at + 1; later < at + 40 && !explained; ++later) {
                    CrashDisk other;
                    other.fail_at(later);
                    auto store = disk_store(std::make_unique<CrashFileSystem>(other), {});
                    if (!store.ok()) continue;
                    const Known next = live(std::move(store).value(), false);
                    explained = next.names == found;
                    if (next.names != known.names && !explained) break;
                }
                EXPECT_TRUE(explained) << "call " << at << ": neither before nor after the call under way";
            }
            check(disk, known, format("call {} loss {}", at, static_cast<int>(loss)));
            if (::testing::Test::HasFailure() || !reached) break;
        }
        EXPECT_GT(n_crashes, 80u);
    }
}

// A disk that fails once, or three times, or for good: errors are told, what was acknowledged stays, the program goes
// on.
TEST_F(CrashTest, WhateverCallFailsNothingAcknowledgedIsLost) {
    for (const uint64_t n_failures : {uint64_t{1}, uint64_t{3}, uint64_t{1} << 40}) {
        for (uint64_t at = 1;; ++at) {
            CrashDisk disk;
            disk.fail_at(at, n_failures);
            Known known;
            Names during;
            auto opened = disk_store(std::make_unique<CrashFileSystem>(disk), {});
            if (opened.ok()) known = live(std::move(opened).value(), true, &during);
            EXPECT_EQ(during, known.names) << at << ": a call that failed has changed something";
            const bool reached = disk.reached();
            disk.restart(CrashDisk::Loss::kProgram, at);
            check(disk, known, format("call {} fails {} times", at, n_failures));
            if (::testing::Test::HasFailure() || !reached) break;
        }
    }
}

// Also where it is what the name stood for before a call that failed: that one may be on the disk.
TEST_F(CrashTest, WhatIsAcknowledgedAfterAFailureIsThereAfterARestart) {
    uint64_t n_refused = 0;
    for (uint64_t at = 1;; ++at) {
        CrashDisk disk;
        disk.fail_at(at);
        std::string acknowledged;
        if (auto opened = disk_store(std::make_unique<CrashFileSystem>(disk), {}); opened.ok()) {
            FakeStore weights(2);
            Registry registry(small_config(), weights, {.base_name = "base"}, std::move(opened).value());
            const auto load = [&](const AdapterFolder& folder) {
                const auto loaded = registry.load("a", folder.path(), {.load_inplace = true});
                acknowledged = loaded.ok() ? loaded->generation : "";
                return loaded.ok();
            };
            if (load(one) && !load(two)) n_refused += !load(one);
        }
        const bool reached = disk.reached();
        disk.restart(CrashDisk::Loss::kProgram, at);
        if (!acknowledged.empty()) {
            auto again = disk_store(std::make_unique<CrashFileSystem>(disk), {});
            ASSERT_TRUE(again.ok()) << at;
            FakeStore weights(4);
            Registry registry(small_config(), weights, {.base_name = "base"}, std::move(again).value());
            EXPECT_EQ(registry.list().at(0).generation, acknowledged) << "call " << at;
        }
        if (::testing::Test::HasFailure() || !reached) break;
    }
    EXPECT_GT(n_refused, 0u);
}

}  // namespace
}  // namespace lorad::adapters::crash_test
