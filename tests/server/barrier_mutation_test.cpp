// Barriers, with the fault layer (tests/vulkan_layer): software devices run what is recorded one command after another,
// so the layer records what stands between two barriers the other way round. Then a step's answers must not change; and
// where one barrier is left out, so that both of its sides run the other way round as well, they must. Run by
// tests/scorecard/t28_barriers.py.
//
// The barriers are those of the steps' recordings: layers, choices, and the copies around them. Not those of starting
// and of merging, which the host waits for.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "adapters/pool/registry.h"
#include "gpu/kept_kernels.h"
#include "model/forward/forward.h"
#include "model/output/logits.h"
#include "model/output/sampler.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "tests/support/goldens.h"
#include "tests/support/number_from.h"
#include "tests/support/temp_dir.h"
#include "tests/vulkan_layer/control.h"

namespace lorad::server::barrier_mutation_test {
namespace {

using namespace lorad::testing;

// of a process that tries mutants for another: the first one's index and the distance of the next
constexpr const char* kWorker = "LORAD_TEST_MUTANTS";
// Each so manieth barrier alone is left out.
constexpr const char* kEvery = "LORAD_TEST_EVERY_BARRIER";

std::filesystem::path program() { return std::filesystem::read_symlink("/proc/self/exe"); }

// The layer, for the instances that this process makes while this lives, and the words that are shared with it.
class FaultLayer {
  public:
    FaultLayer() {
        const std::filesystem::path file = folder_.path() / "control";
        setenv("LORAD_FAULT_CONTROL", file.c_str(), 1);
        setenv("VK_ADD_LAYER_PATH", (program().parent_path() / "vulkan_layer").c_str(), 1);
        setenv("VK_INSTANCE_LAYERS", "VK_LAYER_LORAD_fault", 1);
        const int opened = open(file.c_str(), O_RDWR | O_CREAT, 0600);
        EXPECT_EQ(ftruncate(opened, kBytes), 0);
        void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
        close(opened);
        EXPECT_NE(mapped, MAP_FAILED) << file;
        words_ = static_cast<std::atomic<uint64_t>*>(mapped);
    }
    ~FaultLayer() {
        for (const char* name : {"LORAD_FAULT_CONTROL", "VK_ADD_LAYER_PATH", "VK_INSTANCE_LAYERS"}) unsetenv(name);
        munmap(words_, kBytes);
    }
    FaultLayer(const FaultLayer&) = delete;
    FaultLayer& operator=(const FaultLayer&) = delete;

    std::atomic<uint64_t>& operator[](size_t index) const { return words_[index]; }
    uint64_t n_barriers() const { return words_[fault::kNumberOf + size_t{fault::kBarrier}]; }
    // Counted from 1; 0: none.
    void leave_out(uint64_t barrier) const {
        words_[fault::kHowMany + size_t{fault::kBarrier}] = 1;
        words_[fault::kFirstFailing + size_t{fault::kBarrier}] = barrier;
    }

  private:
    static constexpr size_t kBytes = fault::kWords * sizeof(uint64_t);
    TempDir folder_;
    std::atomic<uint64_t>* words_ = nullptr;
};

using Uses = std::vector<LoraUse>;
using Bits = std::vector<uint32_t>;

// Scenes: few steps each, which depend on nothing that was before them. Together they have recordings of all kinds that
// a software device makes.
// The number of each one's steps is a multiple of the executor's slots for steps in flight, so that a scene runs the
// same recordings whenever it is run.
class Scenes {
  public:
    Scenes(model::Executor& executor, const Uses& one, const Uses& mix, const Uses& saved, const Uses& head)
        : executor_(executor), uses_{{{}}, {one}, {mix}, {saved, head}} {}

    static constexpr const char* kNames[] = {"base",  "adapter", "mix",   "adapters with embeddings and heads",
                                             "rules", "masks",   "merged"};
    static constexpr size_t kCount = std::size(kNames);

    // What the steps answer, with tokens of their own for each salt. Ends with the first step that fails.
    Bits run(size_t scene, uint32_t salt) {
        salt_ = salt;
        bits_.clear();
        failed_ = false;
        sequences_.clear();
        for (const Uses& uses : uses_[scene < std::size(uses_) ? scene : 0]) sequences_.push_back({uses});
        if (scene == 0) run_base();
        if (scene > 0 && scene < 4)
            run_steps([&](model::StepBatch& batch, uint32_t row, uint32_t) { batch.add_output(row, true); });
        if (scene == 4) run_rules();
        if (scene == 5) run_masked();
        merged_ = scene == 6;
        if (scene == 6)
            run_steps([&](model::StepBatch& batch, uint32_t row, uint32_t) { batch.add_output(row, true); });
        merged_ = false;
        return bits_;
    }
    bool failed() const { return failed_; }

  private:
    struct Sequence {
        Uses uses;
        uint32_t position = 0;
    };
    static constexpr uint32_t kPromptTokens = 12;

    TokenId token(size_t sequence, uint32_t position) const {
        return TokenId((position * 37 + sequence * 101 + salt_ * 331 + 11) % executor_.config().vocab_size);
    }
    model::StepBatch new_batch() const {
        model::StepBatch batch;
        if (merged_) batch.set_merged();
        return batch;
    }
    // Returns each sequence's last row.
    std::vector<uint32_t> add_prompts(model::StepBatch& batch, uint32_t n_tokens) {
        std::vector<uint32_t> last;
        for (size_t i = 0; i < sequences_.size(); ++i) {
            Sequence& sequence = sequences_[i];
            std::vector<TokenId> tokens;
            for (uint32_t n = 0; n < n_tokens; ++n) tokens.push_back(token(i, sequence.position + n));
            const BlockId block{uint32_t(i)};
            last.push_back(batch.add_rows(tokens, sequence.position, {&block, 1}, model::RowAdapters{sequence.uses}) +
                           n_tokens - 1);
            sequence.position += n_tokens;
        }
        return last;
    }
    // The next token of each sequence: one of its own, or what the step before chooses.
    template <typename AddOutput>
    model::StepBatch decode(bool fed_back, const AddOutput& add_output) {
        model::StepBatch batch = new_batch();
        for (size_t i = 0; i < sequences_.size(); ++i) {
            Sequence& sequence = sequences_[i];
            const BlockId block{uint32_t(i)};
            const TokenId own = token(i, sequence.position);
            const model::RowAdapters adapters{sequence.uses};
            const uint32_t row = fed_back
                                     ? batch.add_fed_back_row(uint32_t(i), sequence.position, {&block, 1}, adapters)
                                     : batch.add_rows({&own, 1}, sequence.position, {&block, 1}, adapters);
            add_output(batch, row, ++sequence.position);
        }
        return batch;
    }
    void submit(model::StepBatch batch) {
        failed_ = failed_ || !executor_.submit(batch).ok();
        if (!failed_) in_flight_.push_back(std::move(batch));
    }
    void finish() {
        if (failed_) return;
        const auto output = executor_.finish();
        const model::StepBatch batch = std::move(in_flight_.front());
        in_flight_.pop_front();
        failed_ = !output.ok();
        if (failed_) return;
        const auto add = [&](const auto& values) {
            for (const auto value : values) bits_.push_back(std::bit_cast<uint32_t>(value));
        };
        add(output->sampled);
        add(output->max_logits);
        add(output->log_sum_exps);
        for (uint32_t i = 0; i < batch.n_outputs(); ++i) {
            const model::OutputRow& asked = batch.outputs()[i];
            if (asked.want_logits) add(output->logits(i));
            if (asked.want_hidden) add(output->hidden(i));
            if (asked.choice < 0 || (batch.choices()[size_t(asked.choice)].what & gpu::kRuleLogprobs) == 0) continue;
            const gpu::ChoiceLogprobs& logprobs = output->logprobs[i];
            bits_.push_back(std::bit_cast<uint32_t>(logprobs.logprob));
            bits_.push_back(logprobs.rank);
            add(std::span(logprobs.tokens).first(logprobs.n_top));
            add(std::span(logprobs.logprobs).first(logprobs.n_top));
        }
    }

    void run_alone(model::StepBatch batch) {
        submit(std::move(batch));
        finish();
    }

    // A chunk of a prompt that asks for nothing, its end, and tokens a step ahead.
    void run_base() {
        model::StepBatch begin = new_batch();
        add_prompts(begin, kPromptTokens);
        submit(std::move(begin));
        model::StepBatch end = new_batch();
        for (const uint32_t row : add_prompts(end, kPromptTokens)) end.want_hidden(end.add_output(row, true));
        submit(std::move(end));
        finish();
        finish();
        const auto add_output = [](model::StepBatch& batch, uint32_t row, uint32_t) { batch.add_output(row, true); };
        // By turns: where all of a slot's steps embed as the step before did, a state that comes too late would not
        // show.
        submit(decode(false, add_output));
        for (const bool fed_back : {true, false, true}) {
            submit(decode(fed_back, add_output));
            finish();
        }
        finish();
    }

    void run_prompt() {
        model::StepBatch prompt = new_batch();
        for (const uint32_t row : add_prompts(prompt, kPromptTokens)) prompt.add_output(row, true);
        run_alone(std::move(prompt));
    }

    // A prompt and two tokens, the second a step ahead.
    template <typename AddOutput>
    void run_steps(const AddOutput& add_output) {
        run_prompt();
        submit(decode(false, add_output));
        submit(decode(true, add_output));
        finish();
        finish();
    }

    // Where logits are changed, few tokens are likely to come; elsewhere many, so that it is hardly ever the most
    // probable one.
    auto chosen_by(uint32_t what) {
        return [this, what](model::StepBatch& batch, uint32_t row, uint32_t position) {
            proto::SamplingParams params{.temperature = 3.0f, .repetition_penalty = 1.3f, .seed = 3};
            // As many whatever the salt: a step's state has the same size, and so the same recording that copies it.
            for (TokenId n = 0; n < 111; ++n) params.logit_bias.push_back({TokenId(salt_) + n * 9, 40.0f});
            gpu::ChoiceRule rule = model::choice_rule(params, position);
            model::TokenChanges changes(params, {}, {});
            if (what & gpu::kRuleAdjusts) model::add_changes(params, rule);
            rule.what |= what;
            rule.n_top = 3;
            batch.add_output(row, rule,
                             what & gpu::kRuleAdjusts ? changes.entries() : std::span<const gpu::TokenChange>());
        };
    }

    void run_rules() {
        constexpr uint32_t kChanges = gpu::kRuleAdjusts, kLogprobs = gpu::kRuleLogprobs;
        run_prompt();
        submit(decode(false, chosen_by(0)));
        submit(decode(true, chosen_by(kChanges | kLogprobs)));
        finish();
        finish();
        run_alone(decode(false, chosen_by(kLogprobs)));
        for (const uint32_t what : {kChanges, kChanges | kLogprobs}) run_alone(decode(true, chosen_by(what)));
    }

    void run_masked() {
        run_prompt();
        for (uint32_t i = 0; i < 2; ++i) {
            submit(decode(i != 0, chosen_by(gpu::kRuleMasked | gpu::kRuleAdjusts)));
            if (i != 0) finish();
            if (failed_) return;
            // Few tokens, other ones each time.
            std::ranges::fill(executor_.masks(), 1u << ((salt_ * 5 + i * 3) % 32));
            failed_ = failed_ || !executor_.submit_draw().ok();
        }
        finish();
    }

    model::Executor& executor_;
    const std::vector<Uses> uses_[4];
    std::vector<Sequence> sequences_;
    std::deque<model::StepBatch> in_flight_;
    uint32_t salt_ = 0;
    bool merged_ = false, failed_ = false;
    Bits bits_;
};

class BarrierMutation : public ::testing::Test {
  protected:
    void SetUp() override { set_log_level(LogLevel::kError); }
    void TearDown() override {
        unload();
        device.reset();
        set_log_level(LogLevel::kInfo);
    }

    void unload() {
        scenes.reset();
        leases.clear();
        registry.reset();
        store.reset();
        executor.reset();
    }

    // The device, with its pipelines, stays from one load to the next.
    void load() {
        if (!device) {
            auto created = gpu::Device::create({});
            ASSERT_TRUE(created.ok()) << created.error().message;
            device = std::move(*created);
            gpu::keep_kernels(*device);
        }
        const auto read = model::load_model_config(folder);
        ASSERT_TRUE(read.ok());
        model::ExecutorOptions options{
            .n_rows_max = 32, .n_sequences_max = 2, .n_positions_max = 64, .n_adapter_slots = 4, .n_kv_blocks = 2};
        options.kernel_path = gpu::KernelPath::kPortable;
        options.decode = gpu::PersistentDecode::kOn;
        if (device->capabilities().is_cpu) options.decode_workgroups = 1;
        auto loaded = model::Executor::load(*device, folder, *read, options);
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        executor = std::move(*loaded);
        store.emplace(*device, *executor);
        registry.emplace(*read, *store, adapters::RegistryOptions{.base_name = "base"});
        for (const char* name : {"all-linear-r16", "rslora-r8", "embed-and-head-saved", "lm-head-lora"}) {
            const auto adapter = registry->load(name, goldens_dir() / "adapters" / "llama-scaled" / name);
            ASSERT_TRUE(adapter.ok()) << name << ": " << adapter.error().message;
        }
        const auto uses_of = [&](const auto& what) {
            auto lease = registry->acquire(what);
            EXPECT_TRUE(lease.ok());
            leases.push_back(std::move(*lease));
            return leases.back()->uses();
        };
        const adapters::AdapterTerm terms[] = {{"all-linear-r16", 0.5f}, {"rslora-r8", 1.0f}};
        const Uses one = uses_of("all-linear-r16");
        auto merged = executor->merge(one);
        ASSERT_TRUE(merged.ok()) << merged.error().message;
        executor->use_merged(*merged);
        scenes.emplace(*executor, one, uses_of(std::span<const adapters::AdapterTerm>(terms)),
                       uses_of("embed-and-head-saved"), uses_of("lm-head-lora"));
    }

    // A model of its own, and what its scenes answer. Returns how many barriers they have.
    uint64_t begin() {
        unload();
        load();
        if (HasFatalFailure()) return 0;
        n_before = layer.n_barriers();
        end_of_scene.clear();
        for (const uint32_t salt : {kQuiet, kMutated}) {
            expected[salt].clear();
            for (size_t scene = 0; scene < Scenes::kCount; ++scene) {
                expected[salt].push_back(scenes->run(scene, salt));
                EXPECT_FALSE(scenes->failed()) << Scenes::kNames[scene];
                if (salt == kQuiet) end_of_scene.push_back(layer.n_barriers());
            }
        }
        EXPECT_EQ(layer.n_barriers(), end_of_scene.back()) << "a scene has other recordings when it is run again";
        is_sound = true;
        return end_of_scene.back() - n_before;
    }

    // Of a process of its own, which a mutant may end: says on its output what it tries and what comes of it.
    void try_mutants(uint64_t first, uint64_t distance) {
        constexpr unsigned kSecondsMax = 60;  // of a mutant, which may make the device run in circles
        layer[fault::kOrder] = fault::kReversed;
        const uint64_t n_barriers = begin();
        ASSERT_FALSE(HasFailure());
        say("mutants", n_barriers, "");
        for (uint64_t mutant = first; mutant < n_barriers; mutant += distance) {
            // What a mutant wrote where nobody writes again would be taken for what the next one does.
            if (!is_sound) {
                alarm(2 * kSecondsMax);  // the device may still run in circles
                ASSERT_EQ(begin(), n_barriers);
                ASSERT_FALSE(HasFailure());
            }
            const uint64_t barrier = n_before + 1 + mutant;
            const auto scene = size_t(std::ranges::lower_bound(end_of_scene, barrier) - end_of_scene.begin());
            const uint64_t in_scene = barrier - (scene == 0 ? n_before : end_of_scene[scene - 1]);
            say("trying", mutant, format("barrier {} of scene '{}'", in_scene, Scenes::kNames[scene]));
            alarm(kSecondsMax);
            const bool shows =
                shows_in(scene, scene + 1, barrier) || (is_sound && shows_in(0, Scenes::kCount, barrier));
            alarm(0);
            say(shows ? "seen" : "missed", mutant, "");
            if (scenes->failed()) _exit(0);  // the device may be lost
        }
        say("done", 0, "");
    }

    struct Tally {
        uint64_t n_mutants = 0, n_seen = 0, n_ended = 0;
        std::string missed, failure;
    };
    // One process after the other: each goes on behind the mutant that ended the one before.
    static Tally try_in_processes(uint64_t first, uint64_t distance) {
        Tally tally;
        for (bool done = false; !done && tally.failure.empty();) {
            const std::string command = format("{}={},{} exec '{}' --gtest_filter=BarrierMutation.ABarrier*", kWorker,
                                               first, distance, program().string());
            FILE* worker = popen(command.c_str(), "r");
            std::string trying, said;
            for (char line[512]; worker != nullptr && std::fgets(line, sizeof line, worker) != nullptr;) {
                char verb[16] = "", what[256] = "";
                unsigned long long number = 0;
                said += line;
                if (std::sscanf(line, "mutant: %15s %llu %255[^\n]", verb, &number, what) < 2) continue;
                const std::string_view is(verb);
                done = is == "done";
                if (is == "mutants") tally.n_mutants = number;
                if (is == "trying") {
                    trying = what;
                    first = number + distance;
                }
                if (is == "missed") tally.missed += "\n  " + trying;
                if (is == "seen") ++tally.n_seen;
                if (is == "seen" || is == "missed") trying.clear();
            }
            if (worker != nullptr) pclose(worker);
            if (!trying.empty()) {
                ++tally.n_ended;
                ++tally.n_seen;
            }
            const bool tried_any = said.find("mutant: trying") != std::string::npos;
            if ((!tried_any && !done) || said.find("FAILED") != std::string::npos) tally.failure = said;
            done = done || (tally.n_mutants != 0 && first >= tally.n_mutants);
        }
        return tally;
    }

    static constexpr uint32_t kQuiet = 0, kMutated = 1;  // salts

    static void say(const char* verb, uint64_t number, const std::string& what) {
        std::printf("mutant: %s %llu %s\n", verb, static_cast<unsigned long long>(number), what.c_str());
        std::fflush(stdout);
    }
    // Runs the scenes without the barrier. With it they are run before and after, on other tokens, so that nothing that
    // a kernel reads too early is right by chance.
    bool shows_in(size_t first, size_t end, uint64_t barrier) {
        bool shows = false;
        const uint64_t before = layer[fault::kInjected];
        layer.leave_out(barrier);
        for (size_t scene = first; scene < end && !shows; ++scene)
            shows = scenes->run(scene, kMutated) != expected[kMutated][scene];
        layer.leave_out(0);
        EXPECT_GT(layer[fault::kInjected], before)
            << "barrier " << barrier << " is in no recording of scenes " << first << " to " << end - 1;
        is_sound = !scenes->failed();
        for (size_t scene = first; scene < end && is_sound; ++scene)
            is_sound = scenes->run(scene, kQuiet) == expected[kQuiet][scene];
        return shows || !is_sound;
    }

    std::vector<Bits> expected[2];
    uint64_t n_before = 0;               // how many barriers had been recorded before the scenes
    std::vector<uint64_t> end_of_scene;  // and behind each
    bool is_sound = true;                // the scenes answer as they did at first

    const std::filesystem::path folder = goldens_dir() / "models" / "llama-scaled";
    FaultLayer layer;
    std::unique_ptr<gpu::Device> device;
    std::unique_ptr<model::Executor> executor;
    std::optional<adapters::DeviceWeightStore> store;
    std::optional<adapters::Registry> registry;
    std::vector<std::optional<adapters::MixLease>> leases;
    std::optional<Scenes> scenes;
};

TEST_F(BarrierMutation, WhatStandsBetweenBarriersMayRunInAnyOrder) {
    std::vector<Bits> answers[2];
    for (const fault::Order order : {fault::kAsRecorded, fault::kReversed}) {
        layer[fault::kOrder] = order;
        const uint64_t before = layer[fault::kReordered];
        ASSERT_NO_FATAL_FAILURE(load());
        for (size_t scene = 0; scene < Scenes::kCount; ++scene) answers[order].push_back(scenes->run(scene, 1));
        EXPECT_FALSE(scenes->failed());
        EXPECT_EQ(layer[fault::kReordered] - before > 0, order == fault::kReversed) << "pieces put in another order";
        unload();
    }
    for (size_t scene = 0; scene < Scenes::kCount; ++scene)
        EXPECT_EQ(answers[0][scene], answers[1][scene]) << Scenes::kNames[scene];
}

TEST_F(BarrierMutation, ABarrierThatIsMissingShows) {
    uint64_t first = 0, distance = 1;
    if (const char* as_worker = std::getenv(kWorker)) {
        ASSERT_EQ(std::sscanf(as_worker, "%lu,%lu", &first, &distance), 2) << as_worker;
        try_mutants(first, distance);
        return;
    }
    const uint64_t every = number_from(kEvery, 1);
    ASSERT_GT(every, 0u) << kEvery;
    const uint64_t n_processes = std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
    std::vector<Tally> tallies(n_processes);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < n_processes; ++i)
        threads.emplace_back([&, i] { tallies[i] = try_in_processes(i * every, n_processes * every); });
    for (std::thread& thread : threads) thread.join();
    Tally sum;
    for (const Tally& tally : tallies) {
        ASSERT_EQ(tally.failure, "");
        sum.n_mutants = (tally.n_mutants + every - 1) / every;
        sum.n_seen += tally.n_seen;
        sum.n_ended += tally.n_ended;
        sum.missed += tally.missed;
    }
    RecordProperty("trials", std::to_string(sum.n_mutants));
    RecordProperty("barriers left out, seen", format("{}, {}", sum.n_mutants, sum.n_seen));
    std::printf("%s\n", format("{} barriers left out, {} seen, of these {} by the end of the process; not seen:{}",
                               sum.n_mutants, sum.n_seen, sum.n_ended, sum.missed.empty() ? " none" : sum.missed)
                            .c_str());
    ASSERT_GT(sum.n_mutants, 0u);
    // Software devices run things one after another, so that nothing is right by chance: there a barrier that does not
    // show is one that nothing needs.
    const double wanted = std::getenv("LORAD_TEST_DEVICE") != nullptr ? 0.95 : 1.0;
    EXPECT_GE(double(sum.n_seen), wanted * double(sum.n_mutants)) << sum.missed;
}

}  // namespace
}  // namespace lorad::server::barrier_mutation_test
