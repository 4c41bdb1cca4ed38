#include "adapters/store/store.h"

#include <chrono>
#include <fstream>
#include <functional>
#include <random>
#include <utility>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "adapters/pool/registry.h"
#include "proto/base/log.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/crash_file_system.h"
#include "tests/adapters/fake_store.h"
#include "tests/support/temp_dir.h"

namespace lorad::adapters::store_test {
namespace {

using ::testing::HasSubstr;
using namespace lorad::testing;

std::string digest_of(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

Status put(Store& store, std::string_view text) {
    TRY_ASSIGN(const std::unique_ptr<BlobUpload> upload, store.begin(digest_of(text), text.size()));
    // In two pieces, as they come from the network.
    const auto bytes = std::as_bytes(std::span(text));
    TRY(upload->write(bytes.first(bytes.size() / 2)));
    TRY(upload->write(bytes.subspan(bytes.size() / 2)));
    return upload->finish();
}

Catalogue catalogue_of(const std::string& name, std::string_view text, uint64_t sequence) {
    Catalogue catalogue;
    GenerationRecord record;
    record.id = digest_of(text);
    record.files = {{"adapter_config.json", digest_of(text), text.size()}};
    catalogue.generations[record.id] = record;
    catalogue.aliases[name].target.parts = {{name, record.id, 1.0f}};
    catalogue.sequence = sequence;
    return catalogue;
}

// A store's folder.
struct Folder {
    Result<std::unique_ptr<Store>> open(const StoreLimits& limits = {}) const {
        TRY_ASSIGN(std::unique_ptr<FileSystem> files, open_file_system(root / "store"));
        return disk_store(std::move(files), limits);
    }
    std::filesystem::path blob(std::string_view text) const { return root / "store/blobs" / digest_of(text); }
    const TempDir own;
    const std::filesystem::path root = own.path();
};

struct StoreTest : ::testing::Test {
    StoreTest() { set_log_level(LogLevel::kError); }
    ~StoreTest() override { set_log_level(LogLevel::kInfo); }
};

TEST_F(StoreTest, BlobsAndTheCatalogueComeBack) {
    const Folder folder;
    {
        auto store = *folder.open();
        EXPECT_TRUE(store->found().aliases.empty());
        ASSERT_TRUE(put(*store, "first").ok());
        ASSERT_TRUE(put(*store, "second").ok());
        ASSERT_TRUE(put(*store, "second").ok()) << "again";
        EXPECT_EQ(store->bytes(), 11u);
        ASSERT_TRUE(store->save(catalogue_of("a", "first", 7)).ok());
    }
    auto store = *folder.open();
    EXPECT_EQ(store->found(), catalogue_of("a", "first", 7));
    EXPECT_EQ(store->read(digest_of("first"))->text(), "first");
    EXPECT_EQ(store->read(digest_of("second"))->text(), "second") << "acknowledged, so kept";
    EXPECT_EQ(store->bytes(), 11u);
    EXPECT_EQ(store->read(digest_of("third")).error().code, ErrorCode::kAdapterFileNotFound);
    store->remove(digest_of("second"));
    EXPECT_FALSE(std::filesystem::exists(folder.blob("second")));
}

TEST_F(StoreTest, TheFolderBelongsToOneProcess) {
    const Folder folder;
    const auto store = folder.open();
    ASSERT_TRUE(store.ok());
    const auto second = folder.open();
    ASSERT_FALSE(second.ok());
    EXPECT_THAT(second.error().message, HasSubstr("another process uses this folder"));
}

TEST_F(StoreTest, BadUploadsAreRefusedAndLeaveNothing) {
    const Folder folder;
    auto store = *folder.open({.bytes_max = 100, .blob_bytes_max = 50});
    const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
    for (const std::string& name :
         {std::string(), std::string("../../etc/passwd"), std::string(64, 'g'), std::string(64, 'A'),
          std::string(63, 'a'), std::string(65, 'a'), std::string("a\0b", 3)}) {
        EXPECT_EQ(store->begin(name, 3).error().code, ErrorCode::kInvalidRequest) << name;
    }
    EXPECT_EQ(store->begin(digest_of("x"), 51).error().code, ErrorCode::kAdapterFileTooLarge);
    {
        auto upload = *store->begin(digest_of("x"), std::nullopt);
        EXPECT_EQ(upload->write(bytes(std::string(51, 'x'))).error().code, ErrorCode::kAdapterFileTooLarge);
    }
    {
        auto upload = *store->begin(digest_of("hello"), 5);
        ASSERT_TRUE(upload->write(bytes("hello")).ok());
        EXPECT_EQ(upload->write(bytes("!")).error().code, ErrorCode::kAdapterFileTooLarge)
            << "beyond what was announced";
    }
    {
        auto upload = *store->begin(digest_of("hello"), 5);
        ASSERT_TRUE(upload->write(bytes("hellO")).ok());
        EXPECT_EQ(upload->finish().error().code, ErrorCode::kDigestMismatch);
    }
    {
        auto upload = *store->begin(digest_of("hello"), 5);  // cut off
        ASSERT_TRUE(upload->write(bytes("hel")).ok());
    }
    EXPECT_EQ(store->bytes(), 0u);
    ASSERT_TRUE(put(*store, std::string(50, 'a')).ok());
    ASSERT_TRUE(put(*store, std::string(40, 'b')).ok());
    EXPECT_EQ(put(*store, std::string(11, 'c')).error().code, ErrorCode::kStorageFull);
    {
        auto upload = *store->begin(digest_of(std::string(11, 'c')), std::nullopt);
        EXPECT_EQ(upload->write(bytes(std::string(11, 'c'))).error().code, ErrorCode::kStorageFull);
    }
    EXPECT_TRUE(put(*store, std::string(10, 'd')).ok());
    EXPECT_TRUE(std::filesystem::is_empty(folder.root / "store/incoming"));
    size_t n_blobs = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.root / "store/blobs"))
        n_blobs += entry.exists();
    EXPECT_EQ(n_blobs, 3u);
}

// What is here already needs no room, for whoever may learn that it is here; anybody else is told what he would be told
// of any other.
TEST_F(StoreTest, AKnownBlobIsTakenByAFullStore) {
    const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
    const std::string known(60, 'k'), other(30, 'o');
    const auto again = [&](Store& store, std::string_view text, std::optional<uint64_t> size, bool may_know) -> Status {
        TRY_ASSIGN(const std::unique_ptr<BlobUpload> upload, store.begin(digest_of(known), size, nullptr, may_know));
        TRY(upload->write(bytes(text.substr(0, 20))));
        TRY(upload->write(bytes(text.substr(20))));
        return upload->finish();
    };
    for (const StoreLimits& limits : {StoreLimits{.bytes_max = 100}, StoreLimits{.n_blobs_max = 2}}) {
        const Folder folder;
        auto store = *folder.open(limits);
        ASSERT_TRUE(put(*store, known).ok());
        ASSERT_TRUE(put(*store, other).ok());
        EXPECT_EQ(put(*store, std::string(20, 'n')).error().code, ErrorCode::kStorageFull);
        for (const std::optional<uint64_t> size : {std::optional<uint64_t>(60), std::optional<uint64_t>()}) {
            EXPECT_TRUE(again(*store, known, size, true).ok());
            EXPECT_EQ(again(*store, known, size, false).error().code, ErrorCode::kStorageFull);
            EXPECT_EQ(again(*store, std::string(60, 'x'), size, true).error().code, ErrorCode::kDigestMismatch)
                << "whoever knows the name alone";
        }
        EXPECT_EQ(store->bytes(), 90u);
        EXPECT_TRUE(std::filesystem::is_empty(folder.root / "store/incoming"));
        EXPECT_EQ(store->read(digest_of(known))->text(), known);
        // Gone while it comes: there is no room for it then.
        auto upload = *store->begin(digest_of(known), 60, nullptr, true);
        ASSERT_TRUE(upload->write(bytes(known)).ok());
        store->remove(digest_of(known));
        EXPECT_EQ(upload->finish().error().code, ErrorCode::kStorageFull);
        upload.reset();
        EXPECT_TRUE(put(*store, known).ok()) << "what was counted is given back";
    }
}

TEST_F(StoreTest, AKnownBlobIsTakenOnAFullDisk) {
    CrashDisk disk;
    auto store = *disk_store(std::make_unique<CrashFileSystem>(disk), {});
    const std::string known(60, 'k');
    ASSERT_TRUE(put(*store, known).ok());
    disk.bytes_max = disk.bytes() + 30;  // full in the middle of it
    EXPECT_EQ(put(*store, known).error().code, ErrorCode::kStorageFull);
    auto upload = *store->begin(digest_of(known), known.size(), nullptr, true);
    ASSERT_TRUE(upload->write(std::as_bytes(std::span(known).first(20))).ok());
    ASSERT_TRUE(upload->write(std::as_bytes(std::span(known).subspan(20))).ok());
    EXPECT_TRUE(upload->finish().ok());
    EXPECT_EQ(store->read(digest_of(known))->text(), known);
}

// Of what a holder may have waiting, what it holds already takes nothing more; what another holds does.
TEST(HoldingStores, AnUploadThatIsHeldAlreadyFitsAFullQuota) {
    const std::string known(60, 'k'), fresh(60, 'f');
    for (const bool on_disk : {true, false}) {
        CrashDisk disk;
        const std::unique_ptr<Store> store =
            on_disk ? *disk_store(std::make_unique<CrashFileSystem>(disk), {}) : memory_store({});
        const auto put_as = [&](const Holder& holder, std::string_view text) -> Status {
            TRY_ASSIGN(const std::unique_ptr<BlobUpload> upload,
                       store->begin(digest_of(text), text.size(), &holder, true));
            TRY(upload->write(std::as_bytes(std::span(text))));
            return upload->finish();
        };
        const Holder red{holder_key("red"), 100, 1}, blue{holder_key("blue"), 50, 1};
        ASSERT_TRUE(put_as(red, known).ok());
        EXPECT_EQ(put_as(red, fresh).error().code, ErrorCode::kStorageFull);
        EXPECT_TRUE(put_as(red, known).ok());
        EXPECT_EQ(put_as(blue, known).error().code, ErrorCode::kStorageFull) << "a hold of its own, of 60 bytes";
        // Two promises were made, and both are kept.
        store->keep_promise(digest_of(known), red.key);
        EXPECT_TRUE(store->is_held_by(digest_of(known), red.key));
        store->keep_promise(digest_of(known), red.key);
        EXPECT_FALSE(store->is_held_by(digest_of(known), red.key));
        EXPECT_TRUE(put_as(red, fresh).ok());
    }
}

TEST_F(StoreTest, LinksAreNotFollowed) {
    const Folder folder;
    {
        auto made = folder.open();
    }
    std::ofstream(folder.root / "secret") << "secret";
    std::filesystem::create_symlink(folder.root / "secret", folder.blob("secret"));
    std::filesystem::create_directory(folder.blob("folder"));
    ::mkfifo(folder.blob("fifo").c_str(), 0600);
    {
        auto store = *folder.open();
        for (const char* name : {"secret", "folder", "fifo"}) {
            EXPECT_FALSE(store->blob_bytes(digest_of(name))) << name;
            EXPECT_FALSE(store->read(digest_of(name)).ok()) << name;
        }
        ASSERT_TRUE(put(*store, "other").ok());
        std::filesystem::remove(folder.blob("other"));
        std::filesystem::create_symlink(folder.root / "secret", folder.blob("other"));
        EXPECT_EQ(store->read(digest_of("other")).error().code, ErrorCode::kStorageFailed) << "planted while it runs";
        ASSERT_TRUE(put(*store, "copied").ok());
        std::filesystem::rename(folder.blob("copied"), folder.root / "copy");
        std::filesystem::create_symlink(folder.root / "copy", folder.blob("copied"));
        EXPECT_FALSE(store->read(digest_of("copied")).ok()) << "nor to the right content";
        ASSERT_TRUE(put(*store, "secret").ok()) << "an upload takes the link's place";
        EXPECT_EQ(store->read(digest_of("secret"))->text(), "secret");
        EXPECT_FALSE(std::filesystem::is_symlink(folder.blob("secret")));
    }
    // A store that is a link, or has one for a folder, is not opened at all.
    std::filesystem::rename(folder.root / "store/blobs", folder.root / "elsewhere");
    std::filesystem::create_symlink(folder.root / "elsewhere", folder.root / "store/blobs");
    EXPECT_FALSE(folder.open().ok());
    std::filesystem::rename(folder.root / "store", folder.root / "moved");
    std::filesystem::create_symlink(folder.root / "moved", folder.root / "store");
    EXPECT_FALSE(folder.open().ok());
}

// The operating system's files, with something to happen once: between a file's read and what is made of it, or before
// the names of a folder are synced.
struct WatchedFiles final : FileSystem {
    explicit WatchedFiles(std::unique_ptr<FileSystem> all) : files(std::move(all)) {}
    Status make_folder(const std::string& path) override { return files->make_folder(path); }
    Result<std::unique_ptr<NewFile>> create(const std::string& path) override { return files->create(path); }
    Result<FileBytes> read(const std::string& path, uint64_t bytes_max) override {
        auto bytes = files->read(path, bytes_max);
        if (after_read) std::exchange(after_read, nullptr)();
        return bytes;
    }
    Status rename(const std::string& from, const std::string& to) override { return files->rename(from, to); }
    Status remove(const std::string& path) override { return files->remove(path); }
    Status sync_folder(const std::string& path) override {
        if (before_sync) std::exchange(before_sync, nullptr)();
        return files->sync_folder(path);
    }
    Result<std::vector<Entry>> list(const std::string& path) override { return files->list(path); }
    Status lock(const std::string& path) override { return files->lock(path); }
    Status is_in_place() const override { return files->is_in_place(); }

    std::unique_ptr<FileSystem> files;
    std::function<void()> after_read, before_sync;
};

// A folder's store over such files.
struct WatchedDisk {
    explicit WatchedDisk(const Folder& folder, const StoreLimits& limits = {}) {
        auto watched = std::make_unique<WatchedFiles>(*open_file_system(folder.root / "store"));
        files = watched.get();
        store = *disk_store(std::move(watched), limits);
    }
    WatchedFiles* files = nullptr;
    std::unique_ptr<Store> store;
};

// One whose blob "good" has other bytes on the disk by now.
struct DamagedStoreTest : StoreTest {
    void SetUp() override {
        ASSERT_TRUE(put(store, "good").ok());
        std::ofstream(folder.blob("good"), std::ios::binary) << "bad!";
    }
    const Folder folder;
    const WatchedDisk disk{folder};
    Store& store = *disk.store;
};

TEST_F(DamagedStoreTest, ABlobThatIsUploadedAgainWhileItsDamageIsFoundStays) {
    disk.files->after_read = [&] { EXPECT_TRUE(put(store, "good").ok()); };
    EXPECT_TRUE(store.read(digest_of("good")).ok()) << "what the upload brought";
    EXPECT_EQ(store.blob_bytes(digest_of("good")), 4u);
    EXPECT_FALSE(std::filesystem::exists(folder.root / "store/damaged" / digest_of("good")));
    EXPECT_EQ(store.bytes(), 4u);
}

// Two find the damage; the upload comes when the first of them has put the bytes aside.
TEST_F(DamagedStoreTest, WhatIsUploadedAfterTheDamageWasToldStaysForALateReaderToo) {
    disk.files->after_read = [&] {
        EXPECT_EQ(store.read(digest_of("good")).error().code, ErrorCode::kStorageFailed);
        EXPECT_TRUE(put(store, "good").ok());
    };
    EXPECT_TRUE(store.read(digest_of("good")).ok());
    EXPECT_EQ(store.blob_bytes(digest_of("good")), 4u);
}

TEST_F(StoreTest, AnOldBlobThatIsUploadedAgainMakesNoRoomForOthers) {
    const Folder folder;
    ASSERT_TRUE(put(**folder.open(), "blob").ok());
    std::filesystem::last_write_time(folder.blob("blob"),
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    const WatchedDisk disk(folder, {.bytes_max = 12});
    Store* const store = disk.store.get();
    disk.files->before_sync = [&] { EXPECT_EQ(put(*store, "other").error().code, ErrorCode::kStorageFull); };
    ASSERT_TRUE(put(*store, "blob").ok());
    EXPECT_FALSE(disk.files->before_sync);
    EXPECT_TRUE(store->read(digest_of("blob")).ok());
}

// What takes no more room than it gives back works where nothing else does, and leaves two copies as soon as there is
// room for them.
TEST_F(StoreTest, ARemovalIsSavedOnAFullDisk) {
    CrashDisk disk;
    auto store = *disk_store(std::make_unique<CrashFileSystem>(disk), {});
    Catalogue catalogue;
    for (int i = 0; i < 5; ++i) {
        ASSERT_TRUE(put(*store, format("blob {}", i)).ok());
        const Catalogue one = catalogue_of(format("name {}", i), format("blob {}", i), 1);
        catalogue.aliases.insert(one.aliases.begin(), one.aliases.end());
        catalogue.generations.insert(one.generations.begin(), one.generations.end());
    }
    ASSERT_TRUE(store->save(catalogue).ok());
    disk.bytes_max = disk.bytes();
    Catalogue more = catalogue;
    more.aliases["another"] = more.aliases.begin()->second;
    more.sequence = 2;
    EXPECT_EQ(store->save(more).error().code, ErrorCode::kStorageFull);
    EXPECT_TRUE(disk.names.contains("registry.copy.json")) << "nothing is given up for what is refused";
    Catalogue less = catalogue;
    ASSERT_TRUE(less.remove("name 0", {}).ok());
    less.drop_unused();
    less.sequence = 3;
    ASSERT_TRUE(store->save(less).ok());
    for (const auto loss : {CrashDisk::Loss::kPower, CrashDisk::Loss::kPowerAndLuck}) {
        CrashDisk after;
        for (const auto& [name, file] : disk.on_disk)
            after.names[name] = after.on_disk[name] = std::make_shared<CrashDisk::File>(*file);
        after.restart(loss, 1);
        EXPECT_EQ((*disk_store(std::make_unique<CrashFileSystem>(after), {}))->found(), less);
    }
    store->remove(digest_of("blob 0"));
    EXPECT_EQ(disk.names.at("registry.copy.json")->bytes, disk.names.at("registry.json")->bytes);
    store.reset();
    EXPECT_EQ((*disk_store(std::make_unique<CrashFileSystem>(disk), {}))->found(), less);
}

// Where the sound copy is the only one, it is not given up to save it again.
TEST_F(StoreTest, TheLastSoundCopyOutlivesAFullDisk) {
    CrashDisk disk;
    {
        ASSERT_TRUE(
            (*disk_store(std::make_unique<CrashFileSystem>(disk), {}))->save(catalogue_of("a", "first", 7)).ok());
    }
    disk.names.at("registry.json")->bytes[100] ^= 1;
    disk.bytes_max = disk.bytes();
    for (int i = 0; i < 2; ++i)
        EXPECT_EQ((*disk_store(std::make_unique<CrashFileSystem>(disk), {}))->found(), catalogue_of("a", "first", 7));
}

TEST_F(StoreTest, NothingIsAcknowledgedInAFolderThatIsNotInItsPlace) {
    const Folder folder;
    auto store = *folder.open();
    ASSERT_TRUE(put(*store, "first").ok());
    EXPECT_TRUE(store->is_in_place().ok());
    const auto expect_displaced = [&] {
        EXPECT_EQ(store->is_in_place().error().code, ErrorCode::kStoreReadOnly);
        EXPECT_EQ(put(*store, "second").error().code, ErrorCode::kStoreReadOnly);
        EXPECT_EQ(store->save(catalogue_of("a", "first", 7)).error().code, ErrorCode::kStoreReadOnly);
        EXPECT_THAT(store->is_in_place().error().message, ::testing::Not(HasSubstr(folder.root.string())));
    };
    std::filesystem::rename(folder.root / "store", folder.root / "moved");
    expect_displaced();
    std::filesystem::create_directory(folder.root / "store");
    expect_displaced();
    std::filesystem::remove(folder.root / "store");
    std::filesystem::rename(folder.root / "moved", folder.root / "store");
    EXPECT_TRUE(store->save(catalogue_of("a", "first", 7)).ok()) << "it is back";
    std::filesystem::rename(folder.root / "store/blobs", folder.root / "blobs");
    expect_displaced();
    std::filesystem::remove_all(folder.root / "store");
    expect_displaced();
}

// One flipped bit or a cut anywhere is found when the file is used.
TEST_F(StoreTest, ChangedBlobsAreFoundAndPutAside) {
    const Folder folder;
    auto store = *folder.open();
    std::mt19937_64 random(20);
    for (int i = 0; i < 60; ++i) {
        std::string text = format("blob {} ", i) + std::string(random() % 300, 'x');
        ASSERT_TRUE(put(*store, text).ok());
        std::string changed = text;
        if (i % 4 == 0) {
            changed.resize(random() % changed.size());
        } else {
            changed[random() % changed.size()] ^= char(1 << random() % 8);
        }
        std::ofstream(folder.blob(text), std::ios::binary) << changed;
        const auto read = store->read(digest_of(text));
        ASSERT_FALSE(read.ok()) << i;
        EXPECT_EQ(read.error().code, ErrorCode::kStorageFailed);
        EXPECT_FALSE(store->blob_bytes(digest_of(text)));
        EXPECT_TRUE(std::filesystem::exists(folder.root / "store/damaged" / digest_of(text)));
        ASSERT_TRUE(put(*store, text).ok());
        EXPECT_TRUE(store->read(digest_of(text)).ok()) << "uploaded again";
    }
}

TEST_F(StoreTest, LoadingAFolderAgainMendsItsDamagedBlobs) {
    const Folder folder;
    const AdapterFolder adapter;
    const std::string weights = read_adapter_source(adapter.path())->files[1].sha256;
    FakeStore device(2);
    {
        Registry registry(small_config(), device, {.base_name = "base", .ram_bytes_max = 1 << 20}, *folder.open());
        ASSERT_TRUE(registry.load("a", adapter.path()).ok());
        std::fstream blob(folder.root / "store/blobs" / weights, std::ios::in | std::ios::out | std::ios::binary);
        ASSERT_TRUE(blob.seekp(-3, std::ios::end).put('!').good());
        blob.close();
        ASSERT_TRUE(registry.load("b", adapter.path()).ok());
        EXPECT_TRUE(std::filesystem::exists(folder.root / "store/damaged" / weights));
    }
    Registry registry(small_config(), device, {.base_name = "base"}, *folder.open());
    EXPECT_TRUE(registry.acquire("b").ok()) << "from the store";
}

TEST_F(StoreTest, OneDamagedCatalogueIsReplacedByItsCopyAndTwoAreAnError) {
    const Folder folder;
    {
        auto made = *folder.open();
        ASSERT_TRUE(put(*made, "text").ok());
        ASSERT_TRUE(made->save(catalogue_of("a", "text", 3)).ok());
    }
    const auto main = folder.root / "store/registry.json", copy = folder.root / "store/registry.copy.json";
    std::string sound(std::istreambuf_iterator<char>(std::ifstream(main).rdbuf()), {});
    std::mt19937_64 random(21);
    for (size_t at = 0; at < sound.size(); at += 5 + random() % 7) {
        std::string changed = sound;
        changed[at] ^= char(1 << random() % 8);
        std::ofstream(main, std::ios::binary) << changed;
        std::ofstream(copy, std::ios::binary) << sound;
        const auto store = folder.open();
        ASSERT_TRUE(store.ok()) << at;
        ASSERT_EQ((*store)->found(), catalogue_of("a", "text", 3)) << at;
    }
    std::ofstream(main, std::ios::binary) << sound.substr(0, sound.size() / 2);
    std::ofstream(copy, std::ios::binary) << "";
    const auto store = folder.open();
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.error().code, ErrorCode::kIo);
    EXPECT_THAT(store.error().message, HasSubstr("Put both files aside"));
}

TEST_F(StoreTest, OldBlobsThatNoAdapterWasMadeOfGoAway) {
    const Folder folder;
    {
        auto store = *folder.open();
        for (const char* text : {"old", "new", "used", "trash"}) ASSERT_TRUE(put(*store, text).ok());
        Catalogue catalogue = catalogue_of("a", "used", 1);
        catalogue.trash.insert(digest_of("trash"));
        ASSERT_TRUE(store->save(catalogue).ok());
    }
    const auto two_days_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(48);
    for (const char* text : {"old", "used"}) std::filesystem::last_write_time(folder.blob(text), two_days_ago);
    auto store = *folder.open();
    EXPECT_FALSE(store->blob_bytes(digest_of("old")));
    EXPECT_FALSE(store->blob_bytes(digest_of("trash"))) << "deleted ones do not come back";
    EXPECT_TRUE(store->blob_bytes(digest_of("new")));
    EXPECT_TRUE(store->blob_bytes(digest_of("used")));
}

// A child that stores what it can, killed at any moment: all that it has acknowledged is there.
TEST_F(StoreTest, NothingAcknowledgedIsLostWhenTheProcessIsKilled) {
    const Folder folder;
    std::mt19937_64 random(22);
    int next = 0;
    for (int round = 0; round < 12; ++round) {
        int pipe[2];
        ASSERT_EQ(::pipe(pipe), 0);
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            auto store = folder.open();
            if (!store.ok()) ::_exit(3);
            for (int i = next;; ++i) {
                const std::string text = format("adapter {}", i);
                if (!put(**store, text).ok()) ::_exit(4);
                if (!(*store)->save(catalogue_of("a", text, uint64_t(i) + 1)).ok()) ::_exit(5);
                if (::write(pipe[1], &i, sizeof(i)) != sizeof(i)) ::_exit(6);
            }
        }
        ::close(pipe[1]);
        int acknowledged = -1;
        const int n_wanted = 1 + static_cast<int>(random() % 20);
        for (int n = 0; n < n_wanted && ::read(pipe[0], &acknowledged, sizeof(acknowledged)) > 0; ++n) {
        }
        ::usleep(static_cast<useconds_t>(random() % 2000));
        ::kill(child, SIGKILL);
        int status = 0;
        ::waitpid(child, &status, 0);
        ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
        for (int more = 0; ::read(pipe[0], &more, sizeof(more)) == sizeof(more);) acknowledged = more;
        ::close(pipe[0]);
        const auto store = folder.open();
        ASSERT_TRUE(store.ok()) << store.error().message;
        ASSERT_TRUE(std::filesystem::is_empty(folder.root / "store/incoming"));
        const uint64_t sequence = (*store)->found().sequence;
        ASSERT_GE(sequence, uint64_t(acknowledged) + 1);
        ASSERT_LE(sequence, uint64_t(acknowledged) + 2) << "at most the one under way";
        for (int i = next; i <= acknowledged; ++i)
            ASSERT_TRUE((*store)->read(digest_of(format("adapter {}", i))).ok()) << i;
        next = static_cast<int>(sequence);
    }
}

}  // namespace
}  // namespace lorad::adapters::store_test
