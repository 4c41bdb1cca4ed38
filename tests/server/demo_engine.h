// The demo model, or another, and adapters of it on the test device, asked without HTTP: engines are stepped by the
// test.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "adapters/pool/registry.h"
#include "adapters/pool/weight_store.h"
#include "proto/base/log.h"
#include "server/engine/engine.h"
#include "server/engine/executor_runner.h"
#include "server/http/generate/adapter_choice.h"
#include "tests/support/load_executor.h"
#include "tests/support/source_dir.h"
#include "tests/support/test_device.h"

namespace lorad::server {

inline const std::filesystem::path kDemoModel = testing::source_dir() / "deploy/demo-model";

struct DemoEngine {
    struct Options {
        model::ExecutorOptions executor;
        std::vector<std::string> adapters;
        bool checks_numbers = true;
        std::filesystem::path base = kDemoModel / "base", adapter_dir = kDemoModel / "adapters";
    };
    explicit DemoEngine(const Options& options) {
        set_log_level(LogLevel::kError);
        executor = testing::load_executor(options.base, options.executor);
        store = std::make_unique<adapters::DeviceWeightStore>(testing::test_device(), *executor);
        adapters::BaseModel base(executor->config());
        base.checks_numbers = options.checks_numbers;
        registry = std::make_unique<adapters::Registry>(std::move(base), *store,
                                                        adapters::RegistryOptions{.base_name = "base"});
        for (const std::string& name : options.adapters) {
            const auto adapter = registry->load(name, options.adapter_dir / name);
            EXPECT_TRUE(adapter.ok()) << adapter.error().message;
        }
        runner = std::make_unique<ExecutorRunner>(*executor);
    }
    ~DemoEngine() { set_log_level(LogLevel::kInfo); }

    // Adapter: empty for the base.
    Request request(const std::vector<TokenId>& prompt, const std::string& adapter, uint32_t n_tokens,
                    const proto::SamplingParams& sampling, float scale = 1.0f) {
        Request out;
        out.prompt = prompt;
        out.n_tokens_max = n_tokens;
        out.sampling = sampling;
        std::vector<adapters::AdapterTerm> terms;
        if (!adapter.empty()) terms.push_back({adapter, scale});
        auto lease = registry->acquire(terms);
        EXPECT_TRUE(lease.ok()) << lease.error().message;
        out.adapter = use_of(*lease, prompt);
        out.prefix = prefix_of(*registry, *lease, out.adapter, prompt, "");
        out.stream = std::make_shared<TokenStream>(n_tokens);
        return out;
    }

    struct Answer {
        std::vector<TokenId> tokens;
        StreamEnd end;
        uint32_t n_cached = 0;
    };
    // All at the same time.
    std::vector<Answer> run(Engine& engine, std::vector<Request> requests) {
        std::vector<std::shared_ptr<TokenStream>> streams;
        for (Request& one : requests) {
            streams.push_back(one.stream);
            EXPECT_TRUE(engine.submit(std::move(one)).ok());
        }
        while (engine.step()) {
        }
        std::vector<Answer> answers;
        for (const auto& stream : streams) {
            TokenStream::Batch batch = stream->pop(std::chrono::milliseconds(0));
            EXPECT_TRUE(batch.end);
            answers.push_back({batch.tokens, *batch.end, stream->n_cached_tokens()});
        }
        return answers;
    }

    uint32_t vocab_size() const { return executor->config().vocab_size; }

    std::unique_ptr<model::Executor> executor;
    std::unique_ptr<adapters::DeviceWeightStore> store;
    std::unique_ptr<adapters::Registry> registry;
    std::unique_ptr<ExecutorRunner> runner;
    Metrics metrics{{"demo", model::kBlockTokens, 64, 4, "device", "", true}};
};

}  // namespace lorad::server
