// What was promised to whoever uploaded a file, whatever others do, and how much of it a tenant may have.
#include "adapters/store/blob_holds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapters/files/source.h"
#include "adapters/pool/registry.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/crash_file_system.h"
#include "tests/adapters/fake_store.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"

namespace lorad::adapters::blob_holds_test {
namespace {

using ::testing::HasSubstr;
using namespace lorad::testing;

// With both kinds of store; the one on a disk can be opened again.
struct BlobHoldsTest : ::testing::TestWithParam<bool> {
    BlobHoldsTest() {
        set_log_level(LogLevel::kError);
        open();
    }
    ~BlobHoldsTest() override { set_log_level(LogLevel::kInfo); }

    void open(const StoreLimits& limits = {}) {
        registry.reset();
        std::unique_ptr<Store> store;
        if (GetParam()) {
            auto opened = disk_store(*open_file_system(root.path() / "store"), limits);
            ASSERT_TRUE(opened.ok()) << opened.error().message;
            store = std::move(opened).value();
        } else {
            store = memory_store(limits);
        }
        registry =
            std::make_unique<Registry>(small_config(), weights, RegistryOptions{.base_name = "base"}, std::move(store));
    }
    Status put(std::string_view bytes, const Holder& holder) {
        TRY_ASSIGN(auto upload, registry->put_blob(digest(bytes), bytes.size(), &holder));
        TRY(upload->write(std::as_bytes(std::span(bytes))));
        return upload->finish();
    }
    void put_all(const AdapterSource& source, const Holder& holder) {
        for (const SourceFile& file : source.files) EXPECT_TRUE(put(file.bytes.text(), holder).ok());
    }
    static std::string digest(std::string_view bytes) { return sha256_hex(std::as_bytes(std::span(bytes))); }
    static std::vector<UploadedFile> named(const AdapterSource& source) {
        std::vector<UploadedFile> uploads;
        for (const SourceFile& file : source.files) uploads.push_back({file.name, file.sha256});
        return uploads;
    }
    Status register_as(const Holder& holder, const std::string& name, const std::vector<UploadedFile>& uploads) {
        const auto made = registry->register_adapter(name, uploads, {.replace = true}, holder.key);
        return made.ok() ? ok_status() : Status(made.error());
    }
    bool is_there(const AdapterSource& source) const {
        for (const SourceFile& file : source.files) {
            if (!registry->blob_bytes(file.sha256)) return false;
        }
        return true;
    }

    TempDir root;
    FakeStore weights{4};
    std::unique_ptr<Registry> registry;
    const AdapterFolder folder{kPlainConfig, plain_tensors(4, 1)}, other_folder{kPlainConfig, plain_tensors(4, 2)};
    const AdapterSource files = *read_adapter_source(folder.path()), other = *read_adapter_source(other_folder.path());
    const Holder red{holder_key("red")}, blue{holder_key("blue")};
};

TEST_P(BlobHoldsTest, WhatWasAcknowledgedOutlivesTheLastNameWithTheseFiles) {
    for (const bool is_replaced : {false, true}) {
        put_all(files, red);
        ASSERT_TRUE(register_as(red, "one", named(files)).ok());
        put_all(files, blue);
        if (is_replaced) {
            // Five others push it out of the name's history.
            for (uint64_t seed = 10; seed < 15; ++seed) {
                const AdapterFolder next(kPlainConfig, plain_tensors(4, seed));
                ASSERT_TRUE(registry->load("one", next.path(), {.load_inplace = true}).ok());
            }
        } else {
            ASSERT_TRUE(registry->remove("one").ok());
        }
        EXPECT_TRUE(is_there(files));
        ASSERT_TRUE(register_as(blue, "mine", named(files)).ok());
        // An adapter was made of it, and its weights, which no other has, go with that.
        ASSERT_TRUE(registry->remove("mine").ok());
        EXPECT_TRUE(soon([&] { return !registry->blob_bytes(files.files[1].sha256); }));
        (void)registry->remove("one").ok();
    }
    EXPECT_TRUE(soon([&] { return registry->stats().stored_bytes == 0; }));
}

TEST_P(BlobHoldsTest, ARefusedRegistrationTakesNoUploadAway) {
    for (const Holder& refused : {red, blue}) {  // one's own, and another's
        put_all(files, blue);
        const std::string junk("\x08\0\0\0\0\0\0\0{}      ", 16);
        ASSERT_TRUE(put(junk, refused).ok());
        std::vector<UploadedFile> bad = named(files);
        for (UploadedFile& file : bad) {
            if (file.name == kPeftFile) file.sha256 = digest(junk);
        }
        EXPECT_FALSE(register_as(refused, "two", bad).ok());
        EXPECT_TRUE(registry->blob_bytes(digest(junk)).has_value())
            << "it was acknowledged as well, and may be right for another config";
        EXPECT_TRUE(register_as(blue, "mine", named(files)).ok());
        ASSERT_TRUE(registry->remove("mine").ok());
    }
    // Of somebody who holds nothing the files go at once.
    for (const SourceFile& file : other.files) {
        auto upload = *registry->put_blob(file.sha256, file.bytes.size);
        ASSERT_TRUE(upload->write(file.bytes.span()).ok());
        ASSERT_TRUE(upload->finish().ok());
    }
    std::vector<UploadedFile> twice = named(other);
    twice[0].name = "adapter_model.bin";
    EXPECT_FALSE(registry->register_adapter("x", twice).ok());
    EXPECT_FALSE(registry->blob_bytes(other.files[0].sha256));
}

TEST_P(BlobHoldsTest, TwoUploadsOfOneFileAreTwoPromises) {
    put_all(files, blue);
    put_all(files, blue);
    ASSERT_TRUE(register_as(blue, "first", named(files)).ok());
    ASSERT_TRUE(registry->remove("first").ok());
    EXPECT_TRUE(register_as(blue, "second", named(files)).ok()) << "whose upload was acknowledged as well";
    ASSERT_TRUE(registry->remove("second").ok());
    EXPECT_TRUE(soon([&] { return registry->stats().stored_bytes == 0; }));
}

TEST_P(BlobHoldsTest, AHoldEndsWithItsTime) {
    put_all(files, red);
    put_all(other, blue);
    ASSERT_TRUE(register_as(blue, "named", named(other)).ok());
    registry->expire_uploads(unix_time_s() + kHoldSeconds - 100);
    EXPECT_TRUE(is_there(files));
    registry->expire_uploads(unix_time_s() + kHoldSeconds + 100);
    EXPECT_FALSE(registry->blob_bytes(files.files[1].sha256));
    EXPECT_TRUE(is_there(other)) << "an adapter has it";
    EXPECT_FALSE(registry->holds_blob(files.files[1].sha256, red.key));
}

TEST_P(BlobHoldsTest, ATenantHoldsSoMuchAndOthersHaveTheirOwn) {
    const Holder small{red.key, 100, 3};
    ASSERT_TRUE(put(std::string(60, 'a'), small).ok());
    const Status beyond = put(std::string(41, 'b'), small);
    ASSERT_FALSE(beyond.ok());
    EXPECT_EQ(beyond.error().code, ErrorCode::kStorageFull);
    EXPECT_THAT(beyond.error().message, HasSubstr("60 of 100 bytes and 1 of 3 files"));
    {
        // Uploads under way count too, and those that announce no size.
        auto first = *registry->put_blob(digest("c"), std::nullopt, &small),
             second = *registry->put_blob(digest("d"), std::nullopt, &small);
        EXPECT_TRUE(first->write(std::as_bytes(std::span("01234567890123456789", 20))).ok());
        EXPECT_EQ(second->write(std::as_bytes(std::span("012345678901234567890", 21))).error().code,
                  ErrorCode::kStorageFull);
        EXPECT_EQ(registry->put_blob(digest("e"), 1, &small).error().code, ErrorCode::kStorageFull) << "a fourth file";
    }
    EXPECT_TRUE(put(std::string(40, 'b'), small).ok()) << "what was dropped counts no more";
    EXPECT_FALSE(put("x", small).ok());
    EXPECT_TRUE(put(std::string(1000, 'x'), blue).ok());
    EXPECT_TRUE(registry->blob_bytes(digest(std::string(60, 'a'))).has_value());
}

INSTANTIATE_TEST_SUITE_P(Stores, BlobHoldsTest, ::testing::Bool(),
                         [](const auto& kind) { return kind.param ? "disk" : "memory"; });

struct DiskHoldsTest : BlobHoldsTest {};

TEST_P(DiskHoldsTest, WhatWasAcknowledgedIsHeldOverARestart) {
    put_all(files, red);
    ASSERT_TRUE(register_as(red, "one", named(files)).ok());
    put_all(files, blue);
    put_all(other, blue);
    open();
    for (const SourceFile& file : files.files) {
        EXPECT_TRUE(registry->holds_blob(file.sha256, blue.key));
        EXPECT_FALSE(registry->holds_blob(file.sha256, red.key)) << "it has become an adapter";
    }
    ASSERT_TRUE(registry->remove("one").ok());
    open();
    EXPECT_TRUE(register_as(blue, "mine", named(files)).ok());
    EXPECT_TRUE(register_as(blue, "other", named(other)).ok());
    for (const char* name : {"mine", "other"}) ASSERT_TRUE(registry->remove(name).ok());
    EXPECT_TRUE(soon([&] { return registry->stats().stored_bytes == 0; }));
    EXPECT_TRUE(std::filesystem::is_empty(root.path() / "store/holds"));
    EXPECT_TRUE(std::filesystem::is_empty(root.path() / "store/blobs"));
}

TEST_P(DiskHoldsTest, AFullStoreDropsNobodysUploads) {
    open({.bytes_max = 100});
    const auto age = [&](std::string_view bytes) {
        std::filesystem::last_write_time(root.path() / "store/blobs" / digest(bytes),
                                         std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
    };
    const std::string held(60, 'a'), loose(40, 'b');
    ASSERT_TRUE(put(held, red).ok());
    {
        auto upload = *registry->put_blob(digest(loose), loose.size());
        ASSERT_TRUE(upload->write(std::as_bytes(std::span(loose))).ok());
        ASSERT_TRUE(upload->finish().ok());
    }
    age(held);
    age(loose);
    open({.bytes_max = 100});
    EXPECT_FALSE(put(std::string(50, 'c'), blue).ok());
    EXPECT_TRUE(registry->blob_bytes(digest(held)).has_value());
    EXPECT_TRUE(put(std::string(40, 'c'), blue).ok()) << "in the place of one that nobody holds";
    EXPECT_TRUE(registry->blob_bytes(digest(held)).has_value());
    EXPECT_FALSE(registry->blob_bytes(digest(loose)).has_value());
}

TEST_P(DiskHoldsTest, AFolderThatIsMovedOrRemovedIsNoticed) {
    EXPECT_TRUE(registry->is_store_in_place());
    std::filesystem::rename(root.path() / "store", root.path() / "moved");
    EXPECT_TRUE(soon([&] { return !registry->is_store_in_place(); }));
    EXPECT_EQ(put("some bytes", red).error().code, ErrorCode::kStoreReadOnly);
    EXPECT_EQ(registry->load("a", folder.path()).error().code, ErrorCode::kStoreReadOnly);
    std::filesystem::rename(root.path() / "moved", root.path() / "store");
    EXPECT_TRUE(soon([&] { return registry->is_store_in_place(); }));
    EXPECT_TRUE(put("some bytes", red).ok());
    std::filesystem::remove_all(root.path() / "store");
    EXPECT_TRUE(soon([&] { return !registry->is_store_in_place(); }));
}

INSTANTIATE_TEST_SUITE_P(Stores, DiskHoldsTest, ::testing::Values(true));

TEST(BlobHolds, FilesOfRefusedRegistrationsMakeRoomForTheirUploaderAfterAWhile) {
    BlobHolds holds;
    const Holder small{"h", 100, 0};
    holds.add(holds.next("a", "h"), 50, 1000);
    holds.add(holds.next("b", "h"), 50, 1001);
    holds.add(holds.next("b", "other"), 50, 1001);
    for (const char* blob : {"a", "b"}) holds.mark_tried(blob, "h");
    std::vector<BlobHolds::Promise> dropped;
    EXPECT_FALSE(holds.make_room(small, 30, 1000 + kTriedHoldSeconds, dropped).ok());
    EXPECT_TRUE(holds.make_room(small, 30, 1001 + kTriedHoldSeconds, dropped).ok());
    EXPECT_THAT(dropped, ::testing::ElementsAre(BlobHolds::Promise{"a", "h", 0}));
    holds.add(holds.next("b", "h"), 50, 1002);  // uploaded again, and so promised again
    EXPECT_FALSE(holds.make_room(small, 60, 5000, dropped).ok());
    EXPECT_TRUE(holds.is_held_by("b", "other"));
}

TEST(BlobHolds, UploadsOfOneFileRenewThePromisesBeyondABound) {
    BlobHolds holds;
    for (uint32_t i = 0; i < 3 * BlobHolds::kPromisesMax; ++i) {
        const BlobHolds::Promise next = holds.next("a", "h");
        EXPECT_LT(next.number, BlobHolds::kPromisesMax);
        holds.add(next, 5, 1000 + i);
    }
    for (uint32_t i = 0; i < BlobHolds::kPromisesMax; ++i) EXPECT_TRUE(holds.take("a", "h").has_value());
    EXPECT_FALSE(holds.is_held("a"));
    EXPECT_FALSE(holds.take("a", "h").has_value());
}

TEST(BlobHolds, ARenewedPromiseCanHaveItsTimeAgain) {
    BlobHolds holds;
    const BlobHolds::Promise promise = holds.next("a", "h");
    EXPECT_FALSE(holds.time_of(promise));
    holds.add(promise, 5, 1000);
    holds.add(promise, 5, 2000);
    holds.restore(promise, 1000);
    EXPECT_EQ(holds.time_of(promise), 1000);
    EXPECT_THAT(holds.expire(1001 + kHoldSeconds), ::testing::ElementsAre(promise));
    holds.restore(promise, 1000);
    EXPECT_FALSE(holds.is_held("a")) << "what has ended meanwhile stays so";
}

// Of one file a holder has so many promises; a further upload renews the oldest, and where that fails all that were
// acknowledged are there still.
TEST(BlobHolds, ARenewalThatFailsTakesNoPromiseAway) {
    set_log_level(LogLevel::kError);
    const Holder holder{holder_key("red")};
    const std::string bytes = "some bytes", name = sha256_hex(std::as_bytes(std::span(bytes)));
    for (const bool restarts : {false, true}) {
        uint64_t n_failed = 0;
        for (uint64_t at = 1; at < 20; ++at) {
            CrashDisk disk;
            auto store = *disk_store(std::make_unique<CrashFileSystem>(disk), {});
            auto put = [&] {
                auto upload = store->begin(name, bytes.size(), &holder);
                return upload.ok() && (*upload)->write(std::as_bytes(std::span(bytes))).ok() &&
                       (*upload)->finish().ok();
            };
            for (uint32_t i = 0; i < BlobHolds::kPromisesMax; ++i) ASSERT_TRUE(put());
            disk.fail_at(at, 1);
            n_failed += put() ? 0 : 1;
            if (restarts) {
                store.reset();
                disk.restart(CrashDisk::Loss::kPower, at);
                store = *disk_store(std::make_unique<CrashFileSystem>(disk), {});
            }
            for (uint32_t i = 0; i < BlobHolds::kPromisesMax; ++i) {
                EXPECT_TRUE(store->is_held_by(name, holder.key)) << at << ": " << i;
                store->keep_promise(name, holder.key);
            }
            EXPECT_FALSE(store->is_held_by(name, holder.key)) << at;
        }
        EXPECT_GE(n_failed, 6u) << "of the blob and of its hold: to create, sync and rename each";
    }
    set_log_level(LogLevel::kInfo);
}

// An upload that was acknowledged is held after a loss of power at any call, and one that was not leaves no hold
// without its file.
TEST(BlobHolds, AcknowledgedUploadsAreHeldAfterALossOfPowerAtAnyCall) {
    set_log_level(LogLevel::kError);
    const Holder holder{holder_key("red")};
    const std::string bytes = "some bytes", name = sha256_hex(std::as_bytes(std::span(bytes)));
    for (const auto loss : {CrashDisk::Loss::kProgram, CrashDisk::Loss::kPower, CrashDisk::Loss::kPowerAndLuck}) {
        for (uint64_t at = 1; at < 40; ++at) {
            CrashDisk disk;
            bool acknowledged = false;
            {
                auto store = *disk_store(std::make_unique<CrashFileSystem>(disk), {});
                disk.fail_at(at);
                auto upload = store->begin(name, bytes.size(), &holder);
                acknowledged =
                    upload.ok() && (*upload)->write(std::as_bytes(std::span(bytes))).ok() && (*upload)->finish().ok();
            }
            disk.restart(loss, at);
            auto store = *disk_store(std::make_unique<CrashFileSystem>(disk), {});
            if (acknowledged) {
                EXPECT_TRUE(store->is_held_by(name, holder.key)) << at;
                EXPECT_TRUE(store->read(name).ok()) << at;
            }
            EXPECT_TRUE(!store->is_held(name) || store->blob_bytes(name).has_value()) << at;
        }
    }
    set_log_level(LogLevel::kInfo);
}

}  // namespace
}  // namespace lorad::adapters::blob_holds_test
