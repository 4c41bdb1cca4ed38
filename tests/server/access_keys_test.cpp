// The file of keys, the store, the comparison and the quotas.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <time.h>

#include "server/access/exposure.h"
#include "server/access/key_store.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::access::access_keys_test {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using Verdict = KeyStore::Verdict;

const std::string kHex(64, 'a');

std::string hex_digest(std::string_view key) {
    KeyEntry entry;
    entry.principal.id = entry.principal.tenant = "x";
    entry.digest = key_digest(key);
    std::string line = key_line(entry);
    return line.substr(line.find("\"sha256\":\"") + 10, 64);
}
std::string entry_of(const std::string& id, std::string_view key, const std::string& more = {},
                     const std::string& scopes = "\"generate\"") {
    return "{\"id\":\"" + id + "\",\"sha256\":\"" + hex_digest(key) + "\",\"scopes\":[" + scopes + "]" + more + "}\n";
}

class KeyFileTest : public ::testing::Test {
  protected:
    KeyFileTest() : path_(std::filesystem::temp_directory_path() / ("lorad-keys-" + std::to_string(getpid()))) {}
    ~KeyFileTest() override { std::filesystem::remove(path_); }
    void write(const std::string& text) { std::ofstream(path_, std::ios::trunc) << text; }
    std::unique_ptr<KeyStore> store(int64_t now_s = 0) {
        auto created = KeyStore::create(
            {.file = path_, .unix_time_s = now_s == 0 ? std::function<int64_t()>() : [now_s] { return now_s; }});
        EXPECT_TRUE(created.ok()) << created.error().message;
        return created.ok() ? std::move(*created) : nullptr;
    }
    std::string path_;
};

TEST(KeyFile, SaysLineAndReasonOfWhatIsWrong) {
    const std::string good = entry_of("a", "key of a");
    const std::pair<std::string, std::string> cases[] = {
        {"", "holds no key"},
        {"# only a comment\n\n", "holds no key"},
        {"{", "f:1"},
        {good + "nonsense\n", "f:2"},
        {good + "[]", "f:2"},
        {good + good, "f:2: the id a is there twice"},
        {good + entry_of("b", "key of a"), "f:2: the key of b is there twice"},
        {R"({"sha256":")" + kHex + R"(","scopes":["generate"]})", "expected an id"},
        {R"({"id":"a","scopes":["generate"]})", "expected the sha256"},
        {R"({"id":"a","sha256":")" + kHex + R"("})", "expected scopes"},
        {R"({"id":"a","sha256":")" + kHex + R"(","scopes":[]})", "at least one scope"},
        {R"({"id":"a","sha256":")" + kHex + R"(","scopes":["root"]})", "expected generate, adapters:read"},
        {R"({"id":"a","sha256":")" + kHex + R"(","scopes":"admin"})", "scopes"},
        {R"({"id":"a\nb","sha256":")" + kHex + R"(","scopes":["admin"]})", "id"},
        {R"({"id":"","sha256":")" + kHex + R"(","scopes":["admin"]})", "id"},
        {R"({"id":"a","sha256":"my-secret-key","scopes":["admin"]})", "64 lower-case hex digits"},
        {R"({"id":"a","sha256":")" + std::string(64, 'A') + R"(","scopes":["admin"]})", "64 lower-case hex digits"},
        {R"({"id":"a","sha256":")" + kHex + R"(","scopes":["admin"],"scope":[]})", "no such field"},
        {R"({"id":"a","id":"b","sha256":")" + kHex + R"(","scopes":["admin"]})", "f:1"},
        {entry_of("a", "k", R"(,"requests_per_minute":-1)"), "requests_per_minute"},
        {entry_of("a", "k", R"(,"tokens_per_minute":1.5)"), "tokens_per_minute"},
        {entry_of("a", "k", R"(,"max_queued_tokens":true)"), "max_queued_tokens"},
        {entry_of("a", "k", R"(,"priority_min":4294967296)"), "priority_min"},
        {entry_of("a", "k", R"(,"adapters":"x")"), "adapters"},
        {entry_of("a", "k", R"(,"adapters":[""])"), "adapters"},
        {entry_of("a", "k", R"(,"expires":"tomorrow")"), "expires"},
        {entry_of("a", "k", R"(,"expires":"2027-02-29")"), "expires"},
        {entry_of("a", "k", R"(,"expires":1893456000)"), "expires"},
    };
    for (const auto& [text, expected] : cases) {
        auto parsed = parse_keys(text, "f");
        ASSERT_FALSE(parsed.ok()) << text;
        EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidConfig);
        EXPECT_THAT(parsed.error().message, HasSubstr(expected)) << text;
        EXPECT_THAT(parsed.error().message, HasSubstr("f:")) << text;
        EXPECT_THAT(parsed.error().message, ::testing::Not(HasSubstr("my-secret-key")));
    }
}

TEST(KeyFile, LinesAreReadAsTheyAreWritten) {
    KeyEntry entry;
    entry.principal.id = "ci";
    entry.principal.tenant = "acme";
    entry.principal.scopes.add(Scope::kGenerate);
    entry.principal.scopes.add(Scope::kAdaptersRead);
    entry.principal.adapters = {"sql", "team-*"};
    entry.principal.expires_s = *parse_utc("2027-01-31T12:34:56Z");
    entry.principal.priority_min = -3;
    entry.quotas = {600, 200000, 16, 32768};
    entry.digest = key_digest("k");
    auto read = parse_keys("# comment\r\n\n" + key_line(entry) + "\r\n", "f");
    ASSERT_TRUE(read.ok()) << read.error().message;
    ASSERT_EQ(read->size(), 1u);
    const KeyEntry& again = read->front();
    EXPECT_EQ(key_line(again), key_line(entry));
    EXPECT_EQ(again.digest, entry.digest);
    EXPECT_EQ(again.quotas, entry.quotas);
    EXPECT_EQ(again.principal.priority_min, -3);
    EXPECT_EQ(again.principal.tenant, "acme");
    EXPECT_EQ(again.principal.expires_s, 1801398896);
    EXPECT_EQ(*parse_utc("2027-01-31"), 1801353600);
}

TEST(KeyFile, KeysAreDrawn) {
    std::set<std::string> keys;
    for (int i = 0; i < 100; ++i) {
        Result<std::string> key = new_key();
        ASSERT_TRUE(key.ok());
        EXPECT_EQ(key->size(), 6u + 64u);
        keys.insert(*key);
    }
    EXPECT_EQ(keys.size(), 100u);
}

TEST_F(KeyFileTest, AFileThatEverybodyMayWriteToIsRefused) {
    write(entry_of("a", "k"));
    ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
    EXPECT_THAT(read_key_file(path_).error().message, HasSubstr("everybody may write"));
    ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
    EXPECT_TRUE(read_key_file(path_).ok());
    EXPECT_FALSE(read_key_file(path_ + ".gone").ok());
    EXPECT_FALSE(read_key_file("/tmp").ok());
    EXPECT_FALSE(read_key_file("/dev/zero").ok());
}

TEST_F(KeyFileTest, KeysAreFoundInEitherHeader) {
    write(entry_of("a", "key-a") + entry_of("b", "key-b", R"(,"expires":"2027-01-31")"));
    auto keys = store(*parse_utc("2027-01-30T23:59:59Z"));
    auto found = [&](std::string_view authorization, std::string_view other = {}) {
        return keys->find(authorization, other);
    };
    EXPECT_EQ(found("Bearer key-a").verdict, Verdict::kValid);
    EXPECT_EQ(found("Bearer key-a").principal->id, "a");
    EXPECT_EQ(found("bearer   key-b").principal->id, "b");
    EXPECT_EQ(found("", "key-b").principal->id, "b");
    EXPECT_EQ(found("Basic dTpw", "key-b").principal->id, "b");
    EXPECT_EQ(found("").verdict, Verdict::kMissing);
    for (const char* wrong : {"Bearer", "Bearer ", "Bearer key-A", "Bearer key-a ", "Bearer key", "Bearer key-ab",
                              "key-a", "Basic key-a", "Bearerkey-a"})
        EXPECT_EQ(found(wrong).verdict, Verdict::kUnknown) << wrong;
    EXPECT_EQ(found("Bearer " + std::string(100000, 'x')).verdict, Verdict::kUnknown);
    EXPECT_EQ(store(*parse_utc("2027-01-31"))->find("Bearer key-b", {}).verdict, Verdict::kExpired);
}

TEST_F(KeyFileTest, ReloadIsAllOrNothing) {
    write(entry_of("a", "key-a", R"(,"requests_per_minute":2)") + entry_of("b", "key-b"));
    auto keys = store();
    auto before = keys->find("Bearer key-a", {}).principal;
    EXPECT_FALSE(before->account->begin_request());
    EXPECT_FALSE(before->account->begin_request());
    write(entry_of("c", "key-c") + "{\n");
    EXPECT_FALSE(keys->prepare().ok());
    Status reloaded = keys->reload();
    ASSERT_FALSE(reloaded.ok());
    EXPECT_THAT(reloaded.error().message, HasSubstr(":2"));
    EXPECT_EQ(keys->find("Bearer key-b", {}).verdict, Verdict::kValid);
    EXPECT_EQ(keys->find("Bearer key-c", {}).verdict, Verdict::kUnknown);
    write(entry_of("a", "key-a2", R"(,"requests_per_minute":2)") + entry_of("c", "key-c"));
    auto prepared = keys->prepare();
    ASSERT_TRUE(prepared.ok());
    EXPECT_EQ(keys->find("Bearer key-c", {}).verdict, Verdict::kUnknown) << "not yet";
    (*prepared)();
    EXPECT_EQ(keys->n_keys(), 2u);
    EXPECT_EQ(keys->find("Bearer key-b", {}).verdict, Verdict::kUnknown);
    EXPECT_EQ(keys->find("Bearer key-c", {}).verdict, Verdict::kValid);
    // Another key of the same id has what the old one left of the quota: nothing.
    EXPECT_TRUE(keys->find("Bearer key-a2", {}).principal->account->begin_request());
}

TEST_F(KeyFileTest, TenantsHaveSaltsOfTheirOwn) {
    write(entry_of("a", "key-a", R"(,"tenant":"t")") + entry_of("b", "key-b", R"(,"tenant":"t")") +
          entry_of("c", "key-c"));
    auto keys = store(), others = store();
    auto salt = [](const KeyStore& from, const char* key) { return from.find({}, key).principal->prefix_salt; };
    EXPECT_EQ(salt(*keys, "key-a"), salt(*keys, "key-b"));
    EXPECT_NE(salt(*keys, "key-a"), salt(*keys, "key-c"));
    EXPECT_NE(salt(*keys, "key-a"), salt(*others, "key-a"));
    EXPECT_EQ(salt(*keys, "key-a").size(), 32u);
}

TEST_F(KeyFileTest, AFullKeyStandsBesideTheFile) {
    write(entry_of("a", "key-a"));
    auto both = KeyStore::create({.file = path_, .full_key = "0123456789abcdef"});
    ASSERT_TRUE(both.ok());
    auto full = (*both)->find("Bearer 0123456789abcdef", {});
    EXPECT_EQ(full.verdict, Verdict::kValid);
    for (Scope scope : kAllScopes) EXPECT_TRUE(full.principal->scopes.allow(scope));
    EXPECT_FALSE(full.principal->is_restricted());
    for (const std::string& bad : {std::string("short"), std::string(600, 'x'), std::string("has a blank in it"),
                                   std::string("line\nbreak 0123456789")}) {
        auto refused = KeyStore::create({.full_key = bad});
        ASSERT_FALSE(refused.ok());
        EXPECT_THAT(refused.error().message, ::testing::Not(HasSubstr(bad)));
    }
}

TEST(Principal, PatternsStandForWholeNames) {
    EXPECT_TRUE(matches_pattern("sql", "sql"));
    EXPECT_FALSE(matches_pattern("sql", "sql2"));
    EXPECT_FALSE(matches_pattern("sql", "Sql"));
    EXPECT_TRUE(matches_pattern("team-*", "team-"));
    EXPECT_TRUE(matches_pattern("team-*", "team-a/b"));
    EXPECT_FALSE(matches_pattern("team-*", "team"));
    EXPECT_TRUE(matches_pattern("*-v*.1", "sql-v2.0-v3.1"));
    EXPECT_FALSE(matches_pattern("*-v*.1", "sql-v2.0"));
    EXPECT_TRUE(matches_pattern("*", ""));
    EXPECT_TRUE(matches_pattern("**a**", "bab"));
    // Many stars over a long name take no time to speak of.
    EXPECT_FALSE(matches_pattern(std::string(60, '*') + "a*b*a*b*c", std::string(128, 'a')));
    Principal principal;
    EXPECT_TRUE(principal.may_use("anything"));
    principal.adapters.emplace();
    EXPECT_FALSE(principal.may_use("anything"));
    principal.adapters = {"a", "b*"};
    EXPECT_TRUE(principal.may_use("bc"));
    EXPECT_FALSE(principal.may_use("c"));
}

TEST(Scopes, SomeIncludeOthers) {
    Scopes write, admin, metrics;
    write.add(Scope::kAdaptersWrite);
    admin.add(Scope::kAdmin);
    metrics.add(Scope::kMetrics);
    EXPECT_TRUE(write.allow(Scope::kAdaptersRead));
    EXPECT_FALSE(write.allow(Scope::kGenerate));
    for (Scope scope : kAllScopes) {
        EXPECT_TRUE(admin.allow(scope));
        EXPECT_EQ(metrics.allow(scope), scope == Scope::kMetrics);
        EXPECT_EQ(scope_of(name_of(scope)), scope);
    }
    EXPECT_TRUE(Access::open().allows(Scopes()));
    EXPECT_TRUE(Access::any_key().allows(Scopes()));
    EXPECT_FALSE(Access::scope(Scope::kMetrics).allows(Scopes()));
}

TEST(Quotas, ABucketFillsEvenly) {
    TokenBucket bucket;
    Time now = std::chrono::steady_clock::now();
    EXPECT_FALSE(bucket.take(1e9, now));
    bucket.set_rate(60, now);
    for (int i = 0; i < 60; ++i) EXPECT_FALSE(bucket.take(1, now)) << i;
    EXPECT_NEAR(bucket.take(1, now).value_or(0), 1.0, 1e-6);
    EXPECT_NEAR(bucket.take(30, now).value_or(0), 30.0, 1e-6);
    EXPECT_FALSE(bucket.take(1, now + 1s));
    EXPECT_TRUE(bucket.take(1, now + 1s));
    // What is more than a minute's worth is taken from a full bucket and owed afterwards.
    EXPECT_FALSE(bucket.take(90, now + 10min));
    EXPECT_NEAR(bucket.take(1, now + 10min).value_or(0), 31.0, 1e-6);
    bucket.take_anyway(-1000, now + 10min);
    EXPECT_NEAR(bucket.level(now + 10min), 60, 1e-6);
}

TEST(Quotas, TokensAreChargedByEstimateAndSettled) {
    Time now = std::chrono::steady_clock::now();
    auto account = std::make_shared<Account>([&now] { return now; });
    account->set_quotas({.tokens_per_minute = 1000});
    std::shared_ptr<Account::Charge> first, second, third;
    ASSERT_FALSE(account->charge({.n_prompt = 400, .n_generated_max = 100}, first));
    EXPECT_NEAR(account->use().tokens_left, 1000 - 464, 1e-6);
    first->settle(400, 500);
    first.reset();
    EXPECT_NEAR(account->use().tokens_left, 100, 1e-6);
    auto refused = account->charge({.n_prompt = 300, .n_generated_max = 0}, second);
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->error.code, ErrorCode::kRateLimited);
    EXPECT_EQ(refused->retry_after_s, 12u);  // 200 more at 1000 a minute
    now += 12s;
    ASSERT_FALSE(account->charge({.n_prompt = 300, .n_generated_max = 0}, second));
    // One that was never computed gives back the estimate of its answer.
    now += 60s;
    ASSERT_FALSE(account->charge({.n_prompt = 10, .n_generated_max = 1000, .n_answers = 2}, third));
    third.reset();
    EXPECT_NEAR(account->use().tokens_left, 990, 1e-6);
}

TEST(Quotas, PlacesInTheQueueComeBack) {
    auto account = std::make_shared<Account>();
    account->set_quotas({.queued_requests_max = 3, .queued_tokens_max = 100});
    std::vector<std::shared_ptr<const void>> places;
    const uint64_t two[] = {40, 50}, long_one[] = {11}, short_one[] = {10}, huge[] = {5000};
    ASSERT_FALSE(account->enter_queue(two, places));
    EXPECT_TRUE(account->enter_queue(two, places));
    EXPECT_TRUE(account->enter_queue(long_one, places));
    EXPECT_FALSE(account->enter_queue(short_one, places));
    EXPECT_EQ(account->use().n_queued_requests, 3u);
    EXPECT_EQ(account->use().n_queued_tokens, 100u);
    places.erase(places.begin());
    EXPECT_EQ(account->use().n_queued_tokens, 60u);
    places.clear();
    EXPECT_EQ(account->use().n_queued_requests, 0u);
    EXPECT_FALSE(account->enter_queue(huge, places)) << "alone it may wait";
}

TEST(Exposure, WithoutKeysOnlyThisMachineIsServed) {
    for (const char* host : {"127.0.0.1", "127.9.8.7", "::1", "localhost", "::ffff:127.0.0.1"})
        EXPECT_TRUE(is_loopback(host)) << host;
    for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "not an address", "::2"})
        EXPECT_FALSE(is_loopback(host)) << host;
    Status refused = check_exposure({.host = "0.0.0.0"});
    ASSERT_FALSE(refused.ok());
    for (const char* way : {"--api-key-file", "LORAD_API_KEY", "--insecure-no-keys", "127.0.0.1"})
        EXPECT_THAT(refused.error().message, HasSubstr(way));
    EXPECT_TRUE(check_exposure({.host = "0.0.0.0", .has_keys = true}).ok());
    EXPECT_TRUE(check_exposure({.host = "0.0.0.0", .insecure_no_keys = true}).ok());
    EXPECT_TRUE(check_exposure({.host = "127.0.0.1", .admin_listen = "unix:/run/x"}).ok());
    EXPECT_TRUE(check_exposure({.host = "127.0.0.1", .admin_listen = "[::1]:9000"}).ok());
    EXPECT_FALSE(check_exposure({.host = "127.0.0.1", .admin_listen = "0.0.0.0:9000"}).ok());
}

TEST(Exposure, TheAdminSocketIsWhereItIsSaid) {
    const lorad::testing::TempDir folder;
    for (const std::string& where : {std::string("127.0.0.1:0"), "unix:" + (folder.path() / "admin.sock").string()}) {
        auto socket = open_admin_socket(where);
        ASSERT_TRUE(socket.ok()) << socket.error().message;
        EXPECT_EQ(socket->role, ListenerRole::kAdmin);
    }
    for (const char* where :
         {"", "9000", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999", ":9000", "unix:"}) {
        auto socket = open_admin_socket(where);
        ASSERT_FALSE(socket.ok()) << where;
        EXPECT_EQ(socket.error().code, ErrorCode::kInvalidConfig);
    }
}

// Welch's t over two kinds of digest, in random order: the first key of the table, and one that differs from its first
// bit on. Above 4.5 the times would tell them apart (the usual bound of TVLA). Times over the 99th percentile are the
// machine's, not the code's.
struct Comparison {
    double t = 0, ns = 0;
};
void compare_times(size_t n_samples, uint64_t seed, bool swapped, Comparison& found) {
    constexpr size_t kKeys = 16;
    std::mt19937_64 random(seed);
    auto draw = [&] {
        KeyDigest digest;
        for (uint8_t& byte : digest) byte = uint8_t(random());
        return digest;
    };
    std::vector<KeyDigest> keys(kKeys);
    for (KeyDigest& key : keys) key = draw();
    // As many different digests of each kind, so that what is in the caches is the same; one table, since a branch by
    // kind would be mispredicted, and where its two ways lie in the program decides which costs more. Which half of it
    // is whose may be swapped, since where a digest lies can cost time, too.
    constexpr size_t kDigests = 64;
    std::vector<KeyDigest> digests(2 * kDigests, keys[0]);
    const size_t first_of[2] = {swapped ? kDigests : 0, swapped ? 0 : kDigests};
    for (size_t i = 0; i < kDigests; ++i) digests[first_of[1] + i] = draw();
    std::vector<double> times[2];
    size_t n_found = 0;
    for (size_t i = 0; i < n_samples; ++i) {
        const size_t kind = random() & 1;
        const KeyDigest digest = digests[first_of[kind] + random() % kDigests];
        timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        // Several at a time: the clock itself takes as long as one.
        for (int repeat = 0; repeat < 4; ++repeat) n_found += find_digest(keys, digest) == 0;
        clock_gettime(CLOCK_MONOTONIC, &end);
        times[kind].push_back(double(end.tv_sec - begin.tv_sec) * 1e9 + double(end.tv_nsec - begin.tv_nsec));
    }
    ASSERT_EQ(n_found, 4 * times[0].size());
    std::vector<double> all = times[0];
    all.insert(all.end(), times[1].begin(), times[1].end());
    std::nth_element(all.begin(), all.begin() + ptrdiff_t(all.size() * 99 / 100), all.end());
    const double cut = all[all.size() * 99 / 100];
    double mean[2] = {}, variance[2] = {}, n[2] = {};
    for (size_t kind : {0, 1}) {
        std::erase_if(times[kind], [&](double time) { return time > cut; });
        n[kind] = double(times[kind].size());
        for (double time : times[kind]) mean[kind] += time / n[kind];
        for (double time : times[kind]) variance[kind] += (time - mean[kind]) * (time - mean[kind]) / (n[kind] - 1);
    }
    found = {(mean[0] - mean[1]) / std::sqrt(variance[0] / n[0] + variance[1] / n[1]), mean[0]};
}

TEST(KeyComparison, TakesTheSameTimeWhateverTheKeyIs) {
    constexpr size_t kSamples = 1'000'000;
    // what else the machine does can shift one of them; a difference in the code is in each, the same way round
    constexpr int kTries = 3;
    Comparison first, found;
    bool differs = true;
    for (int attempt = 0; attempt < kTries; ++attempt) {
        ASSERT_NO_FATAL_FAILURE(compare_times(
            kSamples, uint64_t(::testing::UnitTest::GetInstance()->random_seed() + attempt), attempt % 2 == 1, found));
        if (attempt == 0) first = found;
        differs = std::abs(found.t) >= 4.5 && (found.t > 0) == (first.t > 0);
        if (!differs) break;
    }
    RecordProperty("Welch t of the comparison", std::to_string(std::abs(found.t)).substr(0, 4));
    RecordProperty("ns for 64 keys", int(found.ns));
    RecordProperty("trials", int(kSamples));
    EXPECT_FALSE(differs) << "t " << found.t << ", " << found.ns << " ns";
}

}  // namespace
}  // namespace lorad::server::access::access_keys_test
