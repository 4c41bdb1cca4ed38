// Which files the registry keeps while calls are under way, and that it deletes what nobody needs in the end.
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "adapters/files/source.h"
#include "adapters/pool/registry.h"
#include "proto/base/log.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/fake_store.h"
#include "tests/adapters/watched_store.h"
#include "tests/support/soon.h"

namespace lorad::adapters::registry_files_test {
namespace {

using namespace lorad::testing;

struct RegistryFilesTest : ::testing::Test {
    RegistryFilesTest() { set_log_level(LogLevel::kWarn); }
    ~RegistryFilesTest() override { set_log_level(LogLevel::kInfo); }

    std::unique_ptr<BlobUpload> begin(const SourceFile& file) {
        auto upload = registry.put_blob(file.sha256, file.bytes.size);
        EXPECT_TRUE(upload.ok());
        return std::move(upload).value();
    }
    static Status end(BlobUpload& upload, const SourceFile& file) {
        TRY(upload.write(file.bytes.span()));
        return upload.finish();
    }
    void upload_all() {
        for (const SourceFile& file : files.files) EXPECT_TRUE(end(*begin(file), file).ok());
    }
    std::vector<UploadedFile> uploads() const {
        std::vector<UploadedFile> named;
        for (const SourceFile& file : files.files) named.push_back({file.name, file.sha256});
        return named;
    }
    std::vector<std::string> digests() const {
        std::vector<std::string> blobs;
        for (const SourceFile& file : files.files) blobs.push_back(file.sha256);
        return blobs;
    }
    bool is_kept(const SourceFile& file) const { return registry.blob_bytes(file.sha256) == file.bytes.size; }
    uint64_t stored_bytes() const { return registry.stats().stored_bytes; }

    FakeStore store{4};
    WatchedStore* disk = new WatchedStore;  // the registry's
    Registry registry{small_config(), store, {.base_name = "base"}, std::unique_ptr<Store>(disk)};
    AdapterFolder folder{kPlainConfig, plain_tensors(4, 1)};
    AdapterSource files = *read_adapter_source(folder.path());
    const SourceFile& first = files.files[0];
    const SourceFile& second = files.files[1];
};

TEST_F(RegistryFilesTest, WhatAnUploadHeldWhileItsAdapterWentIsDeletedWhenTheUploadIsDropped) {
    ASSERT_TRUE(registry.load("a", folder.path()).ok());
    auto again = begin(first);
    ASSERT_TRUE(registry.remove("a").ok());
    EXPECT_TRUE(is_kept(first));
    EXPECT_FALSE(is_kept(second));
    again.reset();
    EXPECT_EQ(stored_bytes(), 0u);
}

TEST_F(RegistryFilesTest, AnUploadThatIsFinishedSavesWhatItsAdapterLeft) {
    ASSERT_TRUE(registry.load("a", folder.path()).ok());
    std::vector<std::unique_ptr<BlobUpload>> again;
    for (const SourceFile& file : files.files) again.push_back(begin(file));
    ASSERT_TRUE(registry.remove("a").ok());
    for (size_t i = 0; i < again.size(); ++i) ASSERT_TRUE(end(*again[i], files.files[i]).ok());
    again.clear();
    EXPECT_TRUE(is_kept(first) && is_kept(second));
    EXPECT_TRUE(registry.register_adapter("b", uploads()).ok());
    ASSERT_TRUE(registry.acquire("b").ok());
    ASSERT_TRUE(registry.remove("b").ok());
    EXPECT_EQ(stored_bytes(), 0u);
}

TEST_F(RegistryFilesTest, AnUploadWhoseSaveFailsLeavesNothing) {
    ASSERT_TRUE(registry.load("a", folder.path()).ok());
    auto again = begin(first);
    ASSERT_TRUE(registry.remove("a").ok());
    disk->before_save = [](const Catalogue&) { return Status(make_error(ErrorCode::kStorageFull, "no room")); };
    EXPECT_EQ(end(*again, first).error().code, ErrorCode::kStorageFull);
    again.reset();
    EXPECT_EQ(stored_bytes(), 0u);
}

TEST_F(RegistryFilesTest, BytesThatAreNotTheBlobSaveNothing) {
    ASSERT_TRUE(registry.load("a", folder.path()).ok());
    auto again = begin(first);
    ASSERT_TRUE(registry.remove("a").ok());
    std::vector<std::byte> wrong(first.bytes.size, std::byte{'x'});
    ASSERT_TRUE(again->write(wrong).ok());
    EXPECT_EQ(again->finish().error().code, ErrorCode::kDigestMismatch);
    again.reset();
    EXPECT_EQ(stored_bytes(), 0u);
}

TEST_F(RegistryFilesTest, WhatIsDiscardedWhileAnUploadHoldsItIsDeletedUnlessTheUploadIsFinished) {
    for (const bool is_finished : {false, true}) {
        upload_all();
        auto again = begin(first);
        registry.discard_blobs(digests());
        EXPECT_TRUE(is_kept(first));
        EXPECT_FALSE(is_kept(second));
        if (is_finished) {
            EXPECT_TRUE(end(*again, first).ok());
        }
        again.reset();
        EXPECT_EQ(is_kept(first), is_finished);
    }
    registry.discard_blobs(digests());
    EXPECT_EQ(stored_bytes(), 0u);
}

TEST_F(RegistryFilesTest, WhatIsDiscardedWhileACallHoldsItCanStillBeRegistered) {
    for (const bool is_registered : {false, true}) {
        auto hold = registry.hold_blobs(digests());
        upload_all();
        registry.discard_blobs(digests());
        ASSERT_TRUE(is_kept(first) && is_kept(second));
        if (is_registered) {
            EXPECT_TRUE(registry.register_adapter("a", uploads()).ok());
        }
        hold.reset();
        EXPECT_EQ(is_kept(first), is_registered);
        EXPECT_EQ(is_kept(second), is_registered);
    }
    ASSERT_TRUE(registry.remove("a").ok());
    EXPECT_EQ(stored_bytes(), 0u);
}

TEST_F(RegistryFilesTest, WhatIsDiscardedWhileAnAdapterNeedsItGoesWithTheAdapter) {
    upload_all();
    ASSERT_TRUE(registry.register_adapter("a", uploads()).ok());
    registry.discard_blobs(digests());
    EXPECT_TRUE(is_kept(first) && is_kept(second));
    MixLease lease = *registry.acquire("a");
    ASSERT_TRUE(registry.remove("a").ok());
    registry.discard_blobs(digests());
    EXPECT_TRUE(is_kept(first) && is_kept(second)) << "a lease may need them again";
    lease = MixLease();
    EXPECT_TRUE(soon([&] { return stored_bytes() == 0; }));
}

// What is refused shares its files with an adapter that stays: they are not looked at again whenever a call ends, and
// go with the adapter.
TEST_F(RegistryFilesTest, WhatIsDiscardedWhileAnAdapterHasTheNameGoesWithTheLastName) {
    upload_all();
    ASSERT_TRUE(registry.register_adapter("a", uploads()).ok());
    ASSERT_TRUE(registry.register_adapter("b", uploads()).ok());
    registry.discard_blobs(digests());
    ASSERT_TRUE(registry.remove("a").ok());
    EXPECT_TRUE(is_kept(first) && is_kept(second));
    ASSERT_TRUE(registry.remove("b").ok());
    EXPECT_TRUE(soon([&] { return stored_bytes() == 0; }));
}

// The parts of a mix are found before its turn to change names comes; the one that it waits for removes one of them.
TEST_F(RegistryFilesTest, AMixWhosePartGoesBeforeItsTurnIsRefused) {
    ASSERT_TRUE(registry.load("a", folder.path()).ok());
    Result<AdapterInfo> mixed = make_error(ErrorCode::kInternal, "not tried");
    std::thread mixing;
    disk->before_save = [&](const Catalogue&) {
        if (mixing.joinable()) return ok_status();
        const std::vector<AdapterTerm> terms = {{"a", 0.5f}};
        mixing = std::thread([&, terms] { mixed = registry.register_mix("m", terms); });
        // it waits for this call's turn to end; were it later, it would find no "a"
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return ok_status();
    };
    ASSERT_TRUE(registry.remove("a").ok());
    mixing.join();
    disk->before_save = nullptr;
    EXPECT_EQ(mixed.error().code, ErrorCode::kAdapterNotFound);
    EXPECT_FALSE(registry.find("m").has_value());
    EXPECT_TRUE(registry.load("b", folder.path()).ok()) << "the registry goes on";
}

// The name is taken while the load is under way, and what it shares with the load is removed before that ends: nobody
// but the refused load knows of the files then.
TEST_F(RegistryFilesTest, ARefusedLoadLeavesNoFilesThatOthersLeftToIt) {
    struct TakesTheName final : FakeStore {
        using FakeStore::FakeStore;
        Status finish() override {
            if (on_finish) std::exchange(on_finish, nullptr)();
            return FakeStore::finish();
        }
        std::function<void()> on_finish;
    } device(4);
    Registry busy(small_config(), device, {.base_name = "base"});
    const AdapterFolder other(kPlainConfig, plain_tensors(4, 2));
    ASSERT_TRUE(busy.load("a", folder.path()).ok());
    ASSERT_TRUE(busy.deactivate("a").ok());
    device.on_finish = [&] {
        std::thread([&] {
            EXPECT_TRUE(busy.remove("a").ok());
            EXPECT_TRUE(busy.load("b", other.path()).ok());
        }).join();
    };
    EXPECT_EQ(busy.load("b", folder.path()).error().code, ErrorCode::kAdapterExists);
    ASSERT_FALSE(device.on_finish);
    ASSERT_TRUE(busy.remove("b").ok());
    EXPECT_TRUE(soon([&] { return busy.stats().stored_bytes == 0; }));
}

}  // namespace
}  // namespace lorad::adapters::registry_files_test
