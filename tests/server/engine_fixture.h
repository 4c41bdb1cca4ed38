// An engine on the fake device, stepped by the test.
#pragma once

#include <random>

#include <gtest/gtest.h>

#include "server/engine/engine.h"
#include "tests/server/fake_runner.h"

namespace lorad::server {

// The identity that a request with these adapters has, where a slot's number is its content.
inline PrefixIdentity fake_prefix(const AdapterUse& adapter, std::span<const TokenId> prompt, std::string salt = {}) {
    PrefixScope scope{.base_fingerprint = "fake", .tenant_salt = std::move(salt)};
    for (const LoraUse& use : adapter.uses) scope.adapters.push_back({std::to_string(use.slot), use.scale});
    scope.from_position = adapter.from_position;
    PrefixIdentity prefix(std::move(scope), model::kBlockTokens);
    prefix.extend(prompt);
    return prefix;
}

struct EngineFixture {
    explicit EngineFixture(uint32_t n_blocks = 64, SchedulerLimits limits = {128, 8, model::kBlockTokens},
                           uint32_t n_waiting_max = 100)
        : runner(n_blocks),
          metrics({"base", model::kBlockTokens, n_blocks, 4, "fake", "none", true}),
          engine(runner, metrics,
                 {.limits = limits, .n_kv_blocks = n_blocks, .n_waiting_max = n_waiting_max, .n_sampling_threads = 3}) {
    }

    // With any options; the fake has as many blocks as they say.
    explicit EngineFixture(const EngineOptions& options)
        : runner(options.n_kv_blocks),
          metrics({"base", model::kBlockTokens, options.n_kv_blocks, 4, "fake", "none", true}),
          engine(runner, metrics, options) {}

    // Hands a request over and returns its stream.
    std::shared_ptr<TokenStream> submit(std::vector<TokenId> prompt, uint32_t n_max, uint32_t slot = kNoAdapterSlot,
                                        float temperature = 0.0f) {
        AdapterUse adapter;
        if (slot != kNoAdapterSlot) adapter.uses = {{slot, 1.0f}};
        return submit(std::move(prompt), n_max, std::move(adapter), temperature);
    }
    std::shared_ptr<TokenStream> submit(std::vector<TokenId> prompt, uint32_t n_max, AdapterUse adapter,
                                        float temperature = 0.0f) {
        Request request;
        request.prompt = std::move(prompt);
        request.n_tokens_max = n_max;
        request.sampling.temperature = temperature;
        request.adapter = std::move(adapter);
        if (shares_prefixes) request.prefix = fake_prefix(request.adapter, request.prompt);
        request.stream = std::make_shared<TokenStream>(n_max);
        auto stream = request.stream;
        Status status = engine.submit(std::move(request));
        EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
        return stream;
    }
    void run_until_idle() {
        for (int i = 0; i < 100000 && engine.step(); ++i) {
        }
    }

    bool shares_prefixes = false;
    FakeRunner runner;
    Metrics metrics;
    Engine engine;
};

inline std::vector<TokenId> prompt_of(uint32_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<TokenId> out(n);
    for (TokenId& token : out) token = TokenId(random() % kFakeVocab);
    return out;
}

}  // namespace lorad::server
