// Adapters change under traffic: 64 greedy streams over 8 names in room for 4, while others load, replace, remove,
// activate and roll back. The fake device's tokens are a hash of what lies in the slots, so that a slot that is written
// too early, read too late, mixed up or freed changes them; the reference is the content of the generation that the
// request was given.
//
// LORAD_TEST_STEPS and LORAD_TEST_SEED make it long or repeat it.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "adapters/pool/registry.h"
#include "proto/base/log.h"
#include "server/engine/engine.h"
#include "server/http/generate/adapter_choice.h"
#include "tests/server/adapter_versions.h"
#include "tests/support/number_from.h"

namespace lorad::server::swap_race_test {
namespace {

using namespace lorad::testing;
using adapters::AdapterTerm;
using adapters::MixLease;
using std::chrono::milliseconds;

constexpr uint32_t kNames = 8, kRoom = 4, kStreams = 64, kVersions = 3, kCalls = 20;

std::string name_of(uint32_t i) { return "adapter-" + std::to_string(i); }

// Before and after the members of a test.
struct QuietLog {
    QuietLog() { set_log_level(LogLevel::kError); }
    ~QuietLog() { set_log_level(LogLevel::kInfo); }
};

class SwapRace : private QuietLog, public ::testing::Test {
  protected:
    // One stream after the other until it is done.
    void stream(uint32_t client) {
        std::mt19937 random(seed * 1000 + client);
        while (!done()) {
            std::vector<AdapterTerm> terms;
            for (uint32_t n = random() % 6 < 4 ? 1 : random() % 4; n > 0; --n) {
                constexpr float kScales[] = {1.0f, 0.5f, -1.0f, 0.0f};
                terms.push_back({name_of(random() % kNames), n == 1 ? 1.0f : kScales[random() % 4]});
            }
            auto lease = registry.acquire(terms, {.timeout = milliseconds(random() % 8 == 0 ? 1 : 60000)});
            if (!lease.ok()) {
                ErrorCode code = lease.error().code;
                // A name that is removed just now, a mix that names one adapter twice, a short timeout.
                bool fair = code == ErrorCode::kAdapterNotFound || code == ErrorCode::kInvalidRequest ||
                            code == ErrorCode::kAdapterBusy;
                if (!fair) ADD_FAILURE() << lease.error().message;
                std::this_thread::yield();
                continue;
            }
            Request request;
            // Every other prompt begins like others do, so that blocks are found again across all of the changes.
            uint32_t n_prompt = 1 + random() % 40;
            if (random() % 2 == 0) {
                const uint32_t text = random() % 3;
                for (n_prompt = 1 + random() % 200; request.prompt.size() < n_prompt;)
                    request.prompt.push_back(TokenId((request.prompt.size() * (7 + text)) % kFakeVocab));
            }
            while (request.prompt.size() < n_prompt) request.prompt.push_back(TokenId(random() % kFakeVocab));
            request.n_tokens_max = 1 + random() % 60;
            request.sampling.temperature = 0.0f;
            request.adapter = use_of(*lease, request.prompt);
            request.prefix = prefix_of(registry, *lease, request.adapter, request.prompt, "");
            request.stream = std::make_shared<TokenStream>(request.n_tokens_max);
            auto tokens_to_come = request.stream;
            std::vector<TokenId> want = folders.expected(request.prompt, *lease, request.n_tokens_max);
            *lease = MixLease();  // the engine's copy has to do
            if (!engine.submit(std::move(request)).ok()) {
                ADD_FAILURE() << "not taken";
                return;
            }
            check(*tokens_to_come, want, random() % 16 == 0);
        }
    }

    void check(TokenStream& tokens_to_come, std::vector<TokenId> want, bool cancels) {
        std::vector<TokenId> tokens;
        std::optional<StreamEnd> end;
        while (!end) {
            TokenStream::Batch batch = tokens_to_come.pop(milliseconds(60000));
            tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
            end = batch.end;
            if (cancels && !tokens.empty()) tokens_to_come.cancel();
        }
        bool whole = end->reason == FinishReason::kLength;
        if (end->reason == FinishReason::kAdapterRemoved) n_revoked.fetch_add(1);
        bool fair = whole || end->reason == FinishReason::kAdapterRemoved ||
                    (cancels && end->reason == FinishReason::kCancelled);
        if (!whole) want.resize(std::min(want.size(), tokens.size()));
        if (!fair || tokens != want) n_wrong.fetch_add(1);
        n_streams.fetch_add(1);
        n_tokens.fetch_add(tokens.size());
        n_cached.fetch_add(tokens_to_come.n_cached_tokens());
    }

    // Calls of the API, all at random.
    void churn(uint32_t client) {
        std::mt19937 random(seed * 1000 + 500 + client);
        while (!done()) {
            uint32_t i = random() % kNames;
            std::string name = name_of(i);
            switch (random() % 8) {
                case 0:
                case 1:
                case 2:
                    (void)registry.load(name, folders.of(i, random() % kVersions), {.load_inplace = true}).ok();
                    break;
                case 3:
                    (void)registry.remove(name, {.mode = adapters::RemoveMode::kNow}).ok();
                    (void)registry.load(name, folders.of(i, random() % kVersions)).ok();
                    break;
                case 4:
                    (void)registry.remove(name).ok();
                    (void)registry.load(name, folders.of(i, random() % kVersions)).ok();
                    break;
                case 5: (void)registry.activate(name, {.pin = false}).ok(); break;
                case 6: (void)registry.deactivate(name).ok(); break;
                default: (void)registry.rollback(name).ok(); break;
            }
            n_calls.fetch_add(1);
        }
    }

    // However the machine shares its time among the threads: enough steps, calls and blocks that were found again.
    bool done() const {
        const uint64_t n = runner.n_steps();
        return (n >= n_steps && n_calls >= kCalls && n_cached > 0) || n >= 20 * n_steps || n_wrong > 0;
    }

    const uint64_t seed = number_from("LORAD_TEST_SEED", std::random_device{}());
    const uint64_t n_steps = number_from("LORAD_TEST_STEPS", 10000);
    const AdapterVersions folders{kNames, kVersions};
    FakeStore store{kRoom};
    adapters::Registry registry{small_config(), store, {.base_name = "base"}};
    FakeRunner runner{400};
    Metrics metrics{{"base", model::kBlockTokens, 400, kNames, "fake", "", true}};
    Engine engine{runner, metrics, {.limits = {96, 24, model::kBlockTokens}, .n_kv_blocks = 400}};
    std::atomic<uint64_t> n_wrong{0}, n_streams{0}, n_tokens{0}, n_calls{0}, n_revoked{0}, n_cached{0};
};

TEST_F(SwapRace, NotOneTokenDiffersFromThePinnedGeneration) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    for (uint32_t i = 0; i < kNames; ++i) {
        auto loaded = registry.load(name_of(i), folders.of(i, 0));
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    }
    runner.slot_digest_ = [this](uint32_t slot) { return digest_of(store.slots[slot]); };
    engine.start();
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < 3; ++i) threads.emplace_back([this, i] { churn(i); });
    for (uint32_t i = 0; i < kStreams; ++i) threads.emplace_back([this, i] { stream(i); });
    for (std::thread& thread : threads) thread.join();
    engine.drain(milliseconds(10000));

    EXPECT_EQ(n_wrong.load(), 0u) << "seed " << seed;
    EXPECT_EQ(runner.n_broken(), 0u) << "seed " << seed;
    EXPECT_EQ(store.n_freed_while_pending.load(), 0u);
    EXPECT_GE(n_calls.load(), kCalls);
    EXPECT_GT(n_cached.load(), 0u);
    EXPECT_GT(n_tokens.load(), n_steps / 2);
    // Names go; then nothing is left on the device.
    for (uint32_t i = 0; i < kNames; ++i) (void)registry.remove(name_of(i)).ok();
    EXPECT_EQ(store.allocated_bytes.load(), 0u);
    RecordProperty("trials", std::to_string(runner.n_steps()));
    RecordProperty("fake steps", std::to_string(runner.n_steps()));
    RecordProperty("fake tokens", std::to_string(n_tokens.load()));
    RecordProperty("fake calls", std::to_string(n_calls.load()));
    std::printf("%llu steps, %llu streams, %llu tokens, %llu calls, %llu revoked\n",
                static_cast<unsigned long long>(runner.n_steps()), static_cast<unsigned long long>(n_streams.load()),
                static_cast<unsigned long long>(n_tokens.load()), static_cast<unsigned long long>(n_calls.load()),
                static_cast<unsigned long long>(n_revoked.load()));
}

}  // namespace
}  // namespace lorad::server::swap_race_test
