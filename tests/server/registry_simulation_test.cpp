// Scheduler, registry and a fake device on one thread, everything by seed: requests arrive, are cancelled and run while
// adapters are loaded, replaced, mixed, activated, rolled back and removed, and while the device runs out of memory,
// refuses steps, fails uploads or is lost. What goes wrong once goes wrong again with its seed: LORAD_TEST_SEED.
// LORAD_TEST_SEEDS is how many are tried.
#include <cstdio>
#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

#include "proto/base/log.h"
#include "server/engine/engine.h"
#include "server/http/generate/adapter_choice.h"
#include "tests/server/adapter_versions.h"
#include "tests/support/number_from.h"

namespace lorad::server::registry_simulation_test {
namespace {

using namespace lorad::testing;
using adapters::AdapterTerm;
using adapters::MixLease;
using std::chrono::milliseconds;

constexpr uint32_t kNames = 6, kVersions = 3, kTurns = 220;

std::string name_of(uint64_t i) { return "adapter-" + std::to_string(i); }

// What happened in all runs, so that it is known that the simulation meets what it is to meet.
struct Totals {
    uint64_t n_steps = 0, n_tokens = 0, n_changes = 0, n_refused_loads = 0, n_busy = 0, n_revoked = 0,
             n_refused_steps = 0, n_losses = 0, n_cached = 0;
};

class Simulation {
  public:
    Simulation(uint32_t seed, const AdapterVersions& versions, Totals& totals)
        : random_(seed),
          versions_(versions),
          totals_(totals),
          n_blocks_(8 + random_() % 40),
          n_slots_(1 + random_() % 4),
          store_(n_slots_),
          registry_(small_config(), store_,
                    {.base_name = "base",
                     .ram_bytes_max = random_() % 2 ? uint64_t{1} << 20 : 0,
                     .wait_timeout = milliseconds(0)}),
          runner_(n_blocks_),
          metrics_({"base", model::kBlockTokens, n_blocks_, kNames, "fake", "", true}),
          engine_(runner_, metrics_,
                  {.limits = {8 + uint32_t(random_() % 100), 1 + uint32_t(random_() % 8), model::kBlockTokens},
                   .n_kv_blocks = n_blocks_,
                   .clock = [this] { return std::chrono::steady_clock::time_point(milliseconds(now_ms_)); }}) {
        runner_.slot_digest_ = [this](uint32_t slot) { return digest_of(store_.slots[slot]); };
        const bool refuses = random_() % 3 == 0;
        runner_.refuse_step_ = [this, refuses](uint64_t) {
            const bool now = refuses && random_() % 40 == 0;
            totals_.n_refused_steps += now;
            return now;
        };
        if (random_() % 4 == 0) runner_.fail_at_step_ = 20 + random_() % 150;
    }

    // Everything that depends on the order of things: equal for equal seeds.
    uint64_t run() {
        for (uint32_t i = 0; i < kNames; ++i) (void)registry_.load(name_of(i), versions_.of(i, 0)).ok();
        for (uint32_t turn = 0; turn < kTurns; ++turn) {
            now_ms_ += random_() % 5;
            if (random_() % 3 == 0) arrive();
            if (random_() % 4 == 0) change();
            if (!sent_.empty() && random_() % 12 == 0) cancel(sent_[random_() % sent_.size()]);
            if (random_() % 50 == 0) {
                store_.capacity_bytes =
                    store_.capacity_bytes == kPlenty ? store_.allocated_bytes + random_() % 4096 : kPlenty;
            }
            engine_.step();
        }
        store_.capacity_bytes = kPlenty;
        for (int i = 0; i < 100000 && engine_.step(); ++i) now_ms_ += 1;
        totals_.n_steps += runner_.n_steps();
        totals_.n_losses += engine_.failed();
        check();
        return fake_mix(fake_mix(runner_.trace(), runner_.n_steps()), n_answers_);
    }

  private:
    static constexpr uint64_t kPlenty = uint64_t{1} << 40;
    struct Sent {
        std::shared_ptr<TokenStream> stream;
        std::vector<TokenId> expected;
        bool cancelled = false;
    };

    void arrive() {
        std::vector<AdapterTerm> terms;
        for (uint32_t n = random_() % 5 < 4 ? 1 : random_() % 3; n > 0; --n) {
            constexpr float kScales[] = {1.0f, 0.5f, -1.0f, 0.0f};
            terms.push_back({name_of(random_() % kNames), kScales[random_() % 4]});
        }
        // Without waiting: on one thread nobody else could make room.
        auto lease = registry_.acquire(terms, {.timeout = milliseconds(0)});
        if (!lease.ok()) {
            totals_.n_busy += lease.error().code == ErrorCode::kAdapterBusy;
            return;
        }
        Request request;
        const uint32_t text = random_() % 3, n_prompt = 1 + random_() % 150;
        const bool shared = random_() % 2 == 0;
        while (request.prompt.size() < n_prompt)
            request.prompt.push_back(shared ? TokenId((request.prompt.size() * (7 + text)) % kFakeVocab)
                                            : TokenId(random_() % kFakeVocab));
        request.n_tokens_max = 1 + random_() % 40;
        request.sampling.temperature = 0.0f;
        request.adapter = use_of(*lease, request.prompt);
        request.prefix = prefix_of(registry_, *lease, request.adapter, request.prompt, "");
        request.stream = std::make_shared<TokenStream>(request.n_tokens_max);
        Sent sent{request.stream, versions_.expected(request.prompt, *lease, request.n_tokens_max)};
        *lease = MixLease();  // the engine's copy has to do
        if (engine_.submit(std::move(request)).ok()) sent_.push_back(std::move(sent));
    }

    void cancel(Sent& sent) {
        sent.cancelled = true;
        sent.stream->cancel();
    }

    void change() {
        const uint32_t i = random_() % kNames;
        const std::string name = name_of(i);
        const auto& files = versions_.of(i, random_() % kVersions);
        ++totals_.n_changes;
        bool ok = true;
        switch (random_() % 9) {
            case 0:
            case 1:
            case 2: ok = registry_.load(name, files, {.load_inplace = true}).ok(); break;
            case 3:
                (void)registry_.remove(name, {.mode = adapters::RemoveMode::kNow}).ok();
                ok = registry_.load(name, files).ok();
                break;
            case 4: ok = registry_.remove(name).ok(); break;
            case 5: ok = registry_.activate(name, {.pin = random_() % 8 == 0}).ok(); break;
            case 6: (void)registry_.deactivate(name).ok(); break;
            case 7: (void)registry_.rollback(name).ok(); break;
            default:
                // The next upload but a few fails.
                store_.n_uploads_until_failure = int64_t(1 + random_() % 3);
                ok = registry_.load(name, files, {.load_inplace = true}).ok();
                store_.n_uploads_until_failure = 0;
                break;
        }
        totals_.n_refused_loads += !ok;
    }

    void check() {
        for (Sent& sent : sent_) {
            TokenStream::Batch batch = sent.stream->pop(milliseconds(0));
            ASSERT_TRUE(batch.end) << "a request without an ending";
            totals_.n_tokens += batch.tokens.size();
            totals_.n_cached += sent.stream->n_cached_tokens();
            for (TokenId token : batch.tokens) n_answers_ = fake_mix(n_answers_, uint64_t(token));
            const FinishReason reason = batch.end->reason;
            totals_.n_revoked += reason == FinishReason::kAdapterRemoved;
            if (reason == FinishReason::kError) {
                const ErrorCode code = batch.end->error->code;
                EXPECT_TRUE(code == ErrorCode::kOutOfMemory || (code == ErrorCode::kDeviceLost && engine_.failed()))
                    << batch.end->error->message;
            } else if (reason == FinishReason::kCancelled) {
                EXPECT_TRUE(sent.cancelled);
            } else if (reason == FinishReason::kLength) {
                EXPECT_EQ(batch.tokens.size(), sent.expected.size());
            } else {
                EXPECT_EQ(reason, FinishReason::kAdapterRemoved);
            }
            ASSERT_LE(batch.tokens.size(), sent.expected.size());
            EXPECT_TRUE(std::equal(batch.tokens.begin(), batch.tokens.end(), sent.expected.begin()))
                << "tokens of another content";
        }
        EXPECT_EQ(runner_.n_broken(), 0u);
        EXPECT_EQ(store_.n_freed_while_pending.load(), 0u);
        EXPECT_EQ(registry_.stats().n_leases, 0u);
        EXPECT_NE(metrics_.text({}).find("vllm:kv_cache_usage_perc{model_name=\"base\"} 0\n"), std::string::npos);
        for (uint32_t i = 0; i < kNames; ++i) (void)registry_.remove(name_of(i)).ok();
        EXPECT_EQ(store_.allocated_bytes.load(), 0u);
        EXPECT_EQ(registry_.stats().n_on_device, 0u);
    }

    std::mt19937 random_;
    const AdapterVersions& versions_;
    Totals& totals_;
    uint64_t now_ms_ = 1;
    uint64_t n_answers_ = 17;
    const uint32_t n_blocks_, n_slots_;
    FakeStore store_;
    adapters::Registry registry_;
    FakeRunner runner_;
    Metrics metrics_;
    Engine engine_;
    std::vector<Sent> sent_;
};

struct QuietLog {
    QuietLog() { set_log_level(LogLevel::kError); }
    ~QuietLog() { set_log_level(LogLevel::kInfo); }
};

TEST(RegistrySimulation, EveryRequestHasItsOwnTokensWhateverFails) {
    const QuietLog quiet;
    const AdapterVersions versions(kNames, kVersions);
    const uint64_t n_seeds = number_from("LORAD_TEST_SEEDS", 60), first = number_from("LORAD_TEST_SEED", 0);
    Totals totals;
    for (uint64_t seed = first; seed < first + n_seeds; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        Simulation(uint32_t(seed), versions, totals).run();
        if (HasFailure()) break;
    }
    if (n_seeds >= 60) {
        EXPECT_GT(totals.n_refused_loads, 50u);
        EXPECT_GT(totals.n_busy, 50u);
        EXPECT_GT(totals.n_revoked, 10u);
        EXPECT_GT(totals.n_refused_steps, 10u);
        EXPECT_GT(totals.n_losses, 5u);
        EXPECT_GT(totals.n_cached, 1000u);
    }
    RecordProperty("simulated seeds", std::to_string(n_seeds));
    RecordProperty("simulated steps", std::to_string(totals.n_steps));
    std::printf("%llu steps, %llu tokens, %llu changes; %llu loads and %llu steps refused, %llu busy, %llu revoked, "
                "%llu losses\n",
                static_cast<unsigned long long>(totals.n_steps), static_cast<unsigned long long>(totals.n_tokens),
                static_cast<unsigned long long>(totals.n_changes),
                static_cast<unsigned long long>(totals.n_refused_loads),
                static_cast<unsigned long long>(totals.n_refused_steps), static_cast<unsigned long long>(totals.n_busy),
                static_cast<unsigned long long>(totals.n_revoked), static_cast<unsigned long long>(totals.n_losses));
}

TEST(RegistrySimulation, ASeedIsOneRun) {
    const QuietLog quiet;
    const AdapterVersions versions(kNames, kVersions);
    Totals totals;
    for (uint32_t seed = 1000; seed < 1005; ++seed)
        EXPECT_EQ(Simulation(seed, versions, totals).run(), Simulation(seed, versions, totals).run())
            << "seed " << seed;
}

}  // namespace
}  // namespace lorad::server::registry_simulation_test
