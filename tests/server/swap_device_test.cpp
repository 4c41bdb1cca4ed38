// The swap race on a real device: adapters change under 64 greedy streams over 8 names in room for 4; with
// batch-invariant kernels every stream's tokens are those of its generation alone.
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "model/exec/runner.h"
#include "proto/base/log.h"
#include "server/engine/engine.h"
#include "server/engine/executor_runner.h"
#include "server/http/generate/adapter_choice.h"
#include "server/loaded_model.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"
#include "tests/support/test_device.h"

namespace lorad::server::swap_device_test {
namespace {

using namespace lorad::testing;
using adapters::MixLease;
using std::chrono::milliseconds;

constexpr uint32_t kRoom = 4, kStreams = 64, kStreamsAtOnce = 16, kPrompts = 3, kTokens = 12;
// How much must have happened before the streams end, however the machine shares its time among the threads; and when
// they give up.
constexpr uint32_t kCalls = 20, kWhole = 20, kStreamsMax = 32 * kStreams;
constexpr const char* kAdapters[] = {"all-linear-r16", "plain-r8-qv",   "r1",      "r3", "r64",
                                     "rslora-r8",      "regex-targets", "patterns"};

std::vector<TokenId> prompt_of(uint32_t i) {
    std::mt19937 random(i);
    std::vector<TokenId> prompt(5 + i * 70);
    for (TokenId& token : prompt) token = TokenId(random() % 200);
    return prompt;
}

TEST(SwapDevice, StreamsKeepTheirGenerationWhileAdaptersChange) {
    set_log_level(LogLevel::kError);
    const uint32_t seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto folder = goldens_dir() / "models" / "llama-scaled";
    model::ExecutorOptions options;
    options.n_rows_max = 64;
    options.n_sequences_max = kStreamsAtOnce;
    options.n_positions_max = 256;
    options.n_adapter_slots = kRoom;
    options.n_kv_blocks = 32;
    options.kernel_path = gpu::KernelPath::kPortableF32;
    options.batch_invariant = true;
    const auto executor = load_executor(folder, options);
    adapters::DeviceWeightStore store(test_device(), *executor);
    adapters::Registry registry{executor->config(), store, {.base_name = "base"}};

    // What each generation answers alone; every name stands for one of them at a time.
    std::map<std::string, std::vector<std::vector<TokenId>>> alone;
    auto path_of = [](const char* name) { return goldens_dir() / "adapters" / "llama-scaled" / name; };
    for (const char* name : kAdapters) {
        auto loaded = registry.load(name, path_of(name));
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        auto lease = registry.acquire(name);
        ASSERT_TRUE(lease.ok()) << lease.error().message;
        for (uint32_t i = 0; i < kPrompts; ++i) {
            auto answer = model::Runner(*executor).generate(
                prompt_of(i), {.n_tokens_max = kTokens, .ignore_eos = true, .uses = lease->uses()});
            ASSERT_TRUE(answer.ok()) << answer.error().message;
            alone[lease->generation()].push_back(answer->ids);
        }
    }
    ASSERT_EQ(alone.size(), std::size(kAdapters));

    ExecutorRunner runner(*executor);
    Metrics metrics{{"base", model::kBlockTokens, 32, kRoom, "device", "", true}};
    Engine engine{runner, metrics, {.limits = {64, kStreamsAtOnce, model::kBlockTokens}, .n_kv_blocks = 32}};
    engine.start();
    std::atomic<uint32_t> n_begun{0}, n_whole{0}, n_wrong{0}, n_open{kStreamsAtOnce}, n_calls{0}, n_cached{0};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    auto stream = [&](uint32_t client) {
        std::mt19937 random(seed + client);
        auto has_seen_enough = [&] {
            return n_begun >= kStreams && n_calls >= kCalls && n_whole >= kWhole && n_cached > 0;
        };
        while (!has_seen_enough() && n_begun < kStreamsMax && std::chrono::steady_clock::now() < deadline) {
            auto lease = registry.acquire(kAdapters[random() % std::size(kAdapters)]);
            if (!lease.ok()) {  // removed just now
                std::this_thread::yield();
                continue;
            }
            n_begun.fetch_add(1);
            uint32_t i = uint32_t(random() % kPrompts);
            const std::vector<TokenId> want = alone.at(lease->generation())[i];
            Request request;
            request.prompt = prompt_of(i);
            request.n_tokens_max = kTokens;
            request.sampling.temperature = 0.0f;
            request.adapter = use_of(*lease, request.prompt);
            request.prefix = prefix_of(registry, *lease, request.adapter, request.prompt, "");
            request.stream = std::make_shared<TokenStream>(kTokens);
            auto to_come = request.stream;
            *lease = MixLease();
            if (!engine.submit(std::move(request)).ok()) n_wrong.fetch_add(1);
            std::vector<TokenId> tokens;
            uint32_t n_cached_here = 0;
            for (bool ended = false; !ended;) {
                TokenStream::Batch batch = to_come->pop(milliseconds(60000));
                tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
                ended = batch.end.has_value();
                if (ended) n_cached_here = to_come->n_cached_tokens();
            }
            bool is_prefix = tokens.size() <= want.size() && std::equal(tokens.begin(), tokens.end(), want.begin());
            if (!is_prefix) n_wrong.fetch_add(1);
            if (tokens == want) n_whole.fetch_add(1);
            n_cached.fetch_add(n_cached_here);
        }
        n_open.fetch_sub(1);
    };
    auto churn = [&](uint32_t client) {
        std::mt19937 random(seed + 100 + client);
        while (n_open.load() > 0) {
            const char* name = kAdapters[random() % std::size(kAdapters)];
            const auto files = path_of(kAdapters[random() % std::size(kAdapters)]);
            uint32_t what = random() % 4;
            if (what == 0) (void)registry.remove(name, {.mode = adapters::RemoveMode::kNow}).ok();
            if (what == 1) (void)registry.remove(name).ok();
            if (what == 2) (void)registry.activate(name, {}).ok();
            (void)registry.load(name, files, {.load_inplace = true}).ok();
            n_calls.fetch_add(1);
        }
    };
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < kStreamsAtOnce; ++i) threads.emplace_back(stream, i);
    for (uint32_t i = 0; i < 2; ++i) threads.emplace_back(churn, i);
    for (std::thread& thread : threads) thread.join();
    engine.drain(milliseconds(10000));
    set_log_level(LogLevel::kInfo);
    EXPECT_EQ(n_wrong.load(), 0u);
    EXPECT_GE(n_whole.load(), kWhole) << "of " << n_begun << " streams";
    EXPECT_GE(n_calls.load(), kCalls);
    EXPECT_GT(n_cached.load(), 0u) << "no generation met its own blocks again";
}

}  // namespace
}  // namespace lorad::server::swap_device_test
