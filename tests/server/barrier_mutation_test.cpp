// Barriers, with the fault layer (tests/vulkan_layer): software devices run what is recorded one command after another, so the layer records what stands
// between two barriers the other way round. Then a step's answers must not change; and where one barrier is left out, so that both of its sides
// run the other way round as well, they must. Run by tests/scorecard/t28_barriers.py, which sets the layer up; skipped without it.
//
// LORAD_TEST_MUTATIONS: how many barriers, spread over all, are left out one after another; 0: every one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "adapters/registry.h"
#include "model/runner.h"
#include "proto/base/log.h"
#include "tests/support/goldens.h"
#include "tests/vulkan_layer/control.h"

namespace lorad::server {
namespace {

using namespace lorad::testing;

class Words {
  public:
    Words() {
        const char* path = std::getenv("LORAD_FAULT_CONTROL");
        const int file = path != nullptr ? open(path, O_RDWR) : -1;
        if (file < 0) return;
        void* mapped = mmap(nullptr, fault::kWords * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (mapped != MAP_FAILED) words_ = static_cast<std::atomic<uint64_t>*>(mapped);
    }
    explicit operator bool() const { return words_ != nullptr; }
    std::atomic<uint64_t>& operator[](size_t index) const { return words_[index]; }

  private:
    std::atomic<uint64_t>* words_ = nullptr;
};

class BarrierMutation : public ::testing::Test {
  protected:
    void SetUp() override {
        if (!words) GTEST_SKIP() << "no fault layer";
        set_log_level(LogLevel::kError);
        auto created = gpu::Device::create({});
        ASSERT_TRUE(created.ok()) << created.error().message;
        device = std::move(*created);
        auto read = model::load_model_config(folder);
        ASSERT_TRUE(read.ok());
        config = std::move(*read);
    }
    void TearDown() override { set_log_level(LogLevel::kInfo); }

    uint64_t n_barriers() const { return words[fault::kNumberOf + size_t{fault::kBarrier}]; }

    // Answers of steps of all kinds on recordings of their own, as bits. `mutant`: counted from 0, which of the barriers that are recorded after the
    // model was loaded is left out; -1: none. `n_recorded`: how many there are.
    std::vector<uint32_t> answers(int64_t mutant, uint64_t& n_recorded) {
        model::ExecutorOptions options;
        options.n_rows_max = 64;
        options.n_sequences_max = 4;
        options.n_positions_max = 256;
        options.n_adapter_slots = 4;
        options.n_kv_blocks = 8;
        options.kernel_path = gpu::KernelPath::kPortable;
        auto executor = model::Executor::load(*device, folder, config, options);
        EXPECT_TRUE(executor.ok()) << executor.error().message;
        adapters::DeviceWeightStore store(*device, **executor);
        adapters::Registry registry{config, store, {.base_name = "base"}};
        for (const char* name : {"all-linear-r16", "rslora-r8"})
            EXPECT_TRUE(registry.load(name, goldens_dir() / "adapters" / "llama-scaled" / name).ok());
        auto one = registry.acquire("all-linear-r16");
        const adapters::AdapterTerm terms[] = {{"all-linear-r16", 0.5f}, {"rslora-r8", 1.0f}};
        auto mix = registry.acquire(terms);
        EXPECT_TRUE(one.ok() && mix.ok());

        const uint64_t begin = n_barriers();
        words[fault::kHowMany + size_t{fault::kBarrier}] = 1;
        words[fault::kFirstFailing + size_t{fault::kBarrier}] = mutant < 0 ? 0 : begin + 1 + uint64_t(mutant);
        std::vector<uint32_t> bits;
        model::Runner runner(**executor);
        std::vector<TokenId> prompt;
        for (uint32_t i = 0; i < 20; ++i) prompt.push_back(TokenId((i * 37 + 11) % 200));
        const auto add_logits = [&](const std::vector<LoraUse>& uses) {
            const auto logits = runner.logits(prompt, false, model::RowAdapters{uses});
            EXPECT_TRUE(logits.ok());
            for (const float value : *logits) bits.push_back(std::bit_cast<uint32_t>(value));
        };
        const auto add_tokens = [&](const std::vector<LoraUse>& uses, const proto::SamplingParams& sampling) {
            const auto generated = runner.generate(prompt, {.n_tokens_max = 6, .ignore_eos = true, .sampling = sampling, .uses = uses});
            EXPECT_TRUE(generated.ok());
            for (const TokenId id : generated->ids) bits.push_back(uint32_t(id));
        };
        for (const std::vector<LoraUse>& uses : {std::vector<LoraUse>(), one->uses(), mix->uses()}) {
            add_logits(uses);
            add_tokens(uses, {.temperature = 0.0f});
        }
        add_tokens({}, {.temperature = 0.9f, .top_p = 0.9f, .top_k = 40, .seed = 3});
        words[fault::kFirstFailing + size_t{fault::kBarrier}] = 0;
        n_recorded = n_barriers() - begin;
        return bits;
    }

    const Words words;
    const std::filesystem::path folder = goldens_dir() / "models" / "llama-scaled";
    std::unique_ptr<gpu::Device> device;
    model::ModelConfig config;
};

TEST_F(BarrierMutation, WhatStandsBetweenBarriersMayRunInAnyOrder) {
    uint64_t n = 0;
    words[fault::kOrder] = fault::kAsRecorded;
    const auto as_recorded = answers(-1, n);
    words[fault::kOrder] = fault::kReversed;
    const uint64_t before = words[fault::kReordered];
    const auto reversed = answers(-1, n);
    words[fault::kOrder] = fault::kAsRecorded;
    EXPECT_GT(words[fault::kReordered] - before, 0u) << "nothing was put in another order";
    EXPECT_EQ(as_recorded, reversed);
}

TEST_F(BarrierMutation, ABarrierThatIsMissingShows) {
    words[fault::kOrder] = fault::kReversed;
    uint64_t n_barriers_in_all = 0, n = 0;
    const auto expected = answers(-1, n_barriers_in_all);
    const char* wanted = std::getenv("LORAD_TEST_MUTATIONS");
    uint64_t n_mutations = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 0;
    if (n_mutations == 0 || n_mutations > n_barriers_in_all) n_mutations = n_barriers_in_all;
    ASSERT_GT(n_mutations, 0u);
    std::string missed;
    uint64_t n_missed = 0;
    for (uint64_t i = 0; i < n_mutations; ++i) {
        const uint64_t mutant = i * n_barriers_in_all / n_mutations;
        const uint64_t before = words[fault::kInjected];
        const auto found = answers(int64_t(mutant), n);
        EXPECT_EQ(words[fault::kInjected] - before, 1u);
        EXPECT_EQ(n, n_barriers_in_all);
        if (found != expected) continue;
        ++n_missed;
        missed += " " + std::to_string(mutant);
    }
    words[fault::kOrder] = fault::kAsRecorded;
    RecordProperty("trials", std::to_string(n_mutations));
    RecordProperty("barriers left out", std::to_string(n_mutations));
    RecordProperty("of these seen", std::to_string(n_mutations - n_missed));
    std::printf("%llu of %llu barriers left out, %llu not seen:%s\n", static_cast<unsigned long long>(n_mutations),
                static_cast<unsigned long long>(n_barriers_in_all), static_cast<unsigned long long>(n_missed), missed.c_str());
    // A few of them say little about the share.
    const double share_wanted = n_mutations < 50 ? 0.7 : 0.95;
    EXPECT_GE(double(n_mutations - n_missed), share_wanted * double(n_mutations));
}

}  // namespace
}  // namespace lorad::server
