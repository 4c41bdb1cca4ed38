#include "model/exec/executor.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/exec/runner.h"
#include "model/files/npy.h"
#include "tests/support/goldens.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"

namespace lorad::model::executor_test {
namespace {

using namespace lorad::testing;
using ::testing::HasSubstr;

std::filesystem::path folder_of(const char* name) { return goldens_dir() / "models" / name; }

Result<std::unique_ptr<Executor>> load(const std::filesystem::path& folder, ExecutorOptions options = {}) {
    TRY_ASSIGN(const ModelConfig config, load_model_config(folder));
    options.n_rows_max = std::min(options.n_rows_max, 32u);
    options.n_sequences_max = std::min(options.n_sequences_max, 4u);
    options.n_adapter_slots = 1;
    return Executor::load(test_device(), folder, config, options);
}

std::string load_error(const std::filesystem::path& folder, const ExecutorOptions& options = {}) {
    const auto executor = load(folder, options);
    return executor.ok() ? "accepted" : executor.error().message;
}

TEST(Executor, SubmitsTheNextStepBeforeTheFirstIsFinished) {
    auto executor = load(folder_of("qwen2-tied"), {.n_positions_max = 128});
    ASSERT_TRUE(executor.ok()) << executor.error().message;
    const std::vector<TokenId> prompt = {3, 99, 512, 8};
    constexpr uint32_t kSteps = 12;
    const auto expected = Runner(**executor).generate(prompt, {.n_tokens_max = kSteps, .ignore_eos = true});
    ASSERT_TRUE(expected.ok());

    // Each decode row's token is the answer of a step that may still run.
    const std::vector<BlockId> blocks = {1};
    std::vector<TokenId> ids;
    StepBatch batch;
    batch.add_output(batch.add_rows(prompt, 0, blocks, kNoAdapterSlot) + 3, false);
    ASSERT_TRUE((*executor)->submit(batch).ok());
    for (uint32_t step = 1; step < kSteps; ++step) {
        batch.clear();
        batch.add_output(batch.add_fed_back_row(0, 3 + step, blocks, kNoAdapterSlot), false);
        ASSERT_TRUE((*executor)->submit(batch).ok());
        EXPECT_EQ((*executor)->n_in_flight(), 2u);
        const auto output = (*executor)->finish();
        ASSERT_TRUE(output.ok());
        ids.push_back(output->sampled[0]);
    }
    const auto output = (*executor)->finish();
    ASSERT_TRUE(output.ok());
    ids.push_back(output->sampled[0]);
    EXPECT_EQ(ids, expected->ids);
}

TEST(Executor, TheSmallestLimitsStillHoldAStep) {
    const auto loaded = load(folder_of("qwen2-tied"), {.n_rows_max = 1, .n_sequences_max = 1, .n_positions_max = 64});
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    const std::vector<TokenId> prompt = {3, 99, 512, 8};
    const auto wide = load(folder_of("qwen2-tied"), {.n_positions_max = 64});
    ASSERT_TRUE(wide.ok());
    const GenerateOptions options{.n_tokens_max = 8, .ignore_eos = true};
    const auto found = Runner(**loaded).generate(prompt, options), expected = Runner(**wide).generate(prompt, options);
    ASSERT_TRUE(found.ok() && expected.ok());
    EXPECT_EQ(found->ids, expected->ids);
}

// One row at a time goes to separate dispatches, or where the device can do it to one dispatch for all layers.
class ExecutorRecordings : public ::testing::TestWithParam<gpu::PersistentDecode> {
  protected:
    Result<std::unique_ptr<Executor>> load_it(bool warm_up) {
        return load(folder_of("qwen2-tied"),
                    {.n_positions_max = 128, .decode = GetParam(), .decode_workgroups = 1, .warm_up = warm_up});
    }
};

INSTANTIATE_TEST_SUITE_P(All, ExecutorRecordings,
                         ::testing::Values(gpu::PersistentDecode::kOff, gpu::PersistentDecode::kOn));

TEST_P(ExecutorRecordings, OfEachShapeAreMadeOnce) {
    auto executor = load_it(false);
    ASSERT_TRUE(executor.ok()) << executor.error().message;
    Runner runner(**executor);
    const std::vector<TokenId> prompt = {3, 99, 512, 8};
    // As many steps as end with the last slot of the ring: the second time each shape comes to the slots that it had.
    const GenerateOptions options{.n_tokens_max = 21, .ignore_eos = true};
    ASSERT_TRUE(runner.generate(prompt, options).ok());
    const uint64_t n_recordings = (*executor)->n_recordings();
    // Four rows, once; one row, for each slot of the ring. The trial of one dispatch had two in separate dispatches,
    // and two with an adapter in one: of any types, of the weights'.
    EXPECT_EQ(n_recordings, GetParam() == gpu::PersistentDecode::kOn ? 8u : 4u);
    ASSERT_TRUE(runner.generate(prompt, options).ok());
    EXPECT_EQ((*executor)->n_recordings(), n_recordings);
}

TEST_P(ExecutorRecordings, TellHowManyKernelsAStepRuns) {
    auto executor = load_it(false);
    ASSERT_TRUE(executor.ok()) << executor.error().message;
    const TokenId token = 3;
    const BlockId block = 0;
    StepBatch batch;
    batch.add_output(batch.add_rows({&token, 1}, 0, {&block, 1}, kNoAdapterSlot), false);
    ASSERT_TRUE((*executor)->submit(batch).ok());
    const auto output = (*executor)->finish();
    ASSERT_TRUE(output.ok()) << output.error().message;
    // Products, attention, residuals and norms of each layer, or one for all of them; then what is before and behind
    // the layers.
    const uint32_t n_layers = (*executor)->config().n_layers;
    if (GetParam() == gpu::PersistentDecode::kOff)
        EXPECT_GE(output->n_dispatches, 7 * n_layers + 5);
    else
        EXPECT_LE(output->n_dispatches, 1u + 8u);
}

TEST_P(ExecutorRecordings, OfUsualStepsAreMadeByWarmingUp) {
    auto executor = load_it(true);
    ASSERT_TRUE(executor.ok()) << executor.error().message;
    const uint64_t n_recordings = (*executor)->n_recordings();
    EXPECT_GE(n_recordings, 26u);  // 1, 2, 3, 4 sequences and 9 sizes of chunk, each with adapters and without
    const std::vector<TokenId> prompt(32, 7);
    ASSERT_TRUE(Runner(**executor).generate(prompt, {.n_tokens_max = 3, .ignore_eos = true}).ok());
    EXPECT_EQ((*executor)->n_recordings(), n_recordings);
}

// What the driver refuses behind the tests at the start.
struct Refused {
    std::vector<std::string> kernels;
    gpu::PersistentDecode decode = gpu::PersistentDecode::kOff;
    bool warm_up = true;
    Result<std::unique_ptr<Executor>> load_it() const {
        return load(folder_of("qwen2-tied"), {.n_positions_max = 128,
                                              .decode = decode,
                                              .decode_workgroups = 1,
                                              .refused_kernels = kernels,
                                              .warm_up = warm_up});
    }
};

// The logits behind a prompt, and what an output by `rule` got.
struct Answer {
    Status submitted = ok_status();
    std::vector<float> logits;
    uint32_t n_dispatches = 0;
};
Answer answer(Executor& executor, const gpu::ChoiceRule* rule = nullptr) {
    const std::vector<TokenId> prompt = {3, 99, 512, 8};
    const BlockId block = 0;
    StepBatch batch;
    const uint32_t last = batch.add_rows(prompt, 0, {&block, 1}, kNoAdapterSlot) + 3;
    batch.add_output(last, true);
    if (rule != nullptr) batch.add_output(last, *rule);
    Answer answer{.submitted = executor.submit(batch), .logits = {}};
    if (!answer.submitted.ok()) return answer;
    const auto output = executor.finish();
    EXPECT_TRUE(output.ok());
    if (!output.ok()) return answer;
    answer.logits.assign(output->logits(0).begin(), output->logits(0).end());
    answer.n_dispatches = output->n_dispatches;
    return answer;
}

TEST(Executor, SaysWhichKernelTheDriverRefuses) {
    const auto loaded = Refused{{"embed"}}.load_it();
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, ErrorCode::kKernelRefused);
    EXPECT_THAT(loaded.error().message, HasSubstr("'embed'"));
}

TEST(Executor, AStepWhoseKernelIsRefusedIsNotBegunAndOthersAre) {
    const auto executor = Refused{.kernels = {"sample_logprobs"}, .warm_up = false}.load_it(),
               whole = Refused{.kernels = {}, .warm_up = false}.load_it();
    ASSERT_TRUE(executor.ok() && whole.ok());
    const gpu::ChoiceRule wants_logprobs{.what = gpu::kRuleLogprobs, .n_top = 2};
    for (uint32_t turn = 0; turn < 2; ++turn) {
        const Answer refused = answer(**executor, &wants_logprobs);
        ASSERT_FALSE(refused.submitted.ok());
        EXPECT_EQ(refused.submitted.error().code, ErrorCode::kKernelRefused);
        EXPECT_THAT(refused.submitted.error().message, HasSubstr("'sample_logprobs'"));
        EXPECT_EQ((*executor)->n_in_flight(), 0u);
        EXPECT_EQ(answer(**executor).logits, answer(**whole).logits);
    }
    EXPECT_TRUE(answer(**whole, &wants_logprobs).submitted.ok()) << "it is this kernel that such a step needs";
}

TEST(Executor, WhereOneDispatchForAllLayersIsRefusedThereAreSeparateOnes) {
    const std::vector<std::string> all = {"decode_layers", "decode_layers_affinity"};
    for (const bool warm_up : {false, true}) {
        const auto wanted = Refused{all, gpu::PersistentDecode::kOn, warm_up}.load_it();
        ASSERT_FALSE(wanted.ok()) << "separate dispatches were not asked for";
        EXPECT_EQ(wanted.error().code, ErrorCode::kInvalidConfig);
        EXPECT_THAT(wanted.error().message, HasSubstr("'decode_layers"));
        // On a device that would take one dispatch by itself.
        const auto automatic = Refused{all, gpu::PersistentDecode::kAuto, warm_up}.load_it(),
                   whole = Refused{{}, gpu::PersistentDecode::kOff, warm_up}.load_it();
        ASSERT_TRUE(automatic.ok() && whole.ok());
        EXPECT_FALSE((*automatic)->decodes_in_one_dispatch());
        EXPECT_EQ((*automatic)->options().kernel_path, (*whole)->options().kernel_path);
        EXPECT_EQ(answer(**automatic).logits, answer(**whole).logits);
    }
}

// Small products pass on the fast path, but those of the model's own sizes are refused.
TEST(Executor, AFastKernelThatIsRefusedIsLeftOutAlone) {
    const auto whole = Refused{{}}.load_it();
    ASSERT_TRUE(whole.ok()) << whole.error().message;
    const gpu::KernelPath best = (*whole)->options().kernel_path;
    if (best == gpu::KernelPath::kPortable) GTEST_SKIP() << "this device has nothing above the portable kernels";
    const Answer want = answer(**whole);
    uint32_t n_dispatches = 0;  // of the last one
    const auto expect_others = [&](const std::vector<std::string>& kernels, auto&& check) {
        SCOPED_TRACE(kernels.front());
        const auto loaded = Refused{kernels}.load_it();
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        check((*loaded)->options());
        const Answer got = answer(**loaded);
        n_dispatches = got.n_dispatches;
        ASSERT_EQ(got.logits.size(), want.logits.size());
        EXPECT_LE(relative_error(got.logits.data(), want.logits.data(), want.logits.size()), 1e-2)
            << "16-bit activations beside f32";
    };
    expect_others({"attention_from_qkv"}, [&](const ExecutorOptions& found) {
        EXPECT_EQ(found.kernel_path, best);
        EXPECT_THAT(found.left_out_kernels, ::testing::ElementsAre("attention_from_qkv"));
    });
    // Where one is out the next best is tried, and refused.
    expect_others({"attention_group", "attention_registers", "attention_coopmat2", "attention_tile"},
                  [&](const ExecutorOptions& found) {
                      EXPECT_EQ(found.kernel_path, best);
                      EXPECT_THAT(found.left_out_kernels,
                                  ::testing::IsSupersetOf({"attention_registers", "attention_tile"}));
                  });
    expect_others({"matmul_coopmat_f16"}, [&](const ExecutorOptions& found) {
        EXPECT_THAT(found.left_out_kernels, ::testing::ElementsAre("matmul_coopmat_f16"));
    });
    // Two dispatches of each layer but the last, of which one row is left, come back then.
    const uint32_t n_norms = 2 * ((*whole)->config().n_layers - 1);
    for (const char* module : {"matmul_residual_f16", "matmul_coopmat_deferred_f16"}) {
        expect_others({module}, [&](const ExecutorOptions& found) {
            EXPECT_EQ(found.kernel_path, best);
            EXPECT_THAT(found.left_out_kernels, ::testing::ElementsAre(module));
        });
        EXPECT_EQ(n_dispatches, want.n_dispatches + n_norms) << module;
    }
    // There is no other that goes with the fast products.
    expect_others({"matmul_gemv"}, [&](const ExecutorOptions& found) {
        EXPECT_EQ(found.kernel_path, gpu::KernelPath::kPortable);
        EXPECT_THAT(found.left_out_kernels, ::testing::IsEmpty());
    });
}

TEST(Executor, TellsMaximumAndLogSumExpOfTheLogits) {
    auto executor = load(folder_of("qwen2-tied"), {.n_positions_max = 128});
    ASSERT_TRUE(executor.ok());
    const std::vector<TokenId> prompt = {3, 99};
    const std::vector<BlockId> blocks = {0};
    StepBatch batch;
    batch.add_rows(prompt, 0, blocks, kNoAdapterSlot);
    batch.add_output(0, false);
    batch.add_output(1, true);
    ASSERT_TRUE((*executor)->submit(batch).ok());
    const auto output = (*executor)->finish();
    ASSERT_TRUE(output.ok());
    const auto logits = output->logits(1);
    ASSERT_EQ(logits.size(), (*executor)->config().vocab_size);
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(double{logit});
    EXPECT_EQ(output->max_logits[1], *std::ranges::max_element(logits));
    EXPECT_EQ(logits[static_cast<size_t>(output->sampled[1])], output->max_logits[1]);
    EXPECT_NEAR(output->log_sum_exps[1], std::log(sum), 1e-4);
}

// The last layer works on those rows alone whose next token is wanted, where they are few.
TEST(Executor, LogitsOfFewRowsEqualThoseOfAll) {
    for (const char* const model : {"qwen2-tied", "qwen3"}) {
        const auto config = load_model_config(folder_of(model));
        ASSERT_TRUE(config.ok());
        auto executor = Executor::load(test_device(), folder_of(model), config.value(),
                                       {.n_rows_max = 64, .n_sequences_max = 64, .n_positions_max = 128});
        ASSERT_TRUE(executor.ok()) << executor.error().message;
        const auto profile = (*executor)->profile({48, 64, true}, {}, 1);
        ASSERT_TRUE(profile.ok()) << profile.error().message;
        EXPECT_TRUE(std::ranges::any_of(
            *profile, [](const auto& kernel) { return std::string_view(kernel.name) == "gather_rows"; }));
        std::vector<TokenId> prompt;
        for (TokenId t = 0; t < 40; t++) prompt.push_back((t * 37 + 11) % 500);
        const std::vector<BlockId> blocks = {0};
        const auto logits_of = [&](const std::vector<uint32_t>& rows) {
            StepBatch batch;
            batch.add_rows(prompt, 0, blocks, kNoAdapterSlot);
            for (const uint32_t row : rows) batch.add_output(row, true);
            EXPECT_TRUE((*executor)->submit(batch).ok());
            const auto output = (*executor)->finish();
            EXPECT_TRUE(output.ok());
            std::vector<std::vector<float>> logits;
            for (uint32_t i = 0; i < rows.size(); i++)
                logits.emplace_back(output->logits(i).begin(), output->logits(i).end());
            return logits;
        };
        std::vector<uint32_t> every(prompt.size());
        std::iota(every.begin(), every.end(), 0u);
        const auto all = logits_of(every);
        for (const std::vector<uint32_t>& rows :
             {std::vector<uint32_t>{39}, {0}, {5, 6, 39}, {1, 8, 9, 20, 21, 30, 33, 38}}) {
            const auto few = logits_of(rows);
            for (size_t i = 0; i < rows.size(); i++) {
                for (size_t token = 0; token < few[i].size(); token++) {
                    const float want = all[rows[i]][token];
                    ASSERT_NEAR(few[i][token], want, 2e-3 * (1 + std::fabs(want)))
                        << model << " row " << rows[i] << " token " << token;
                }
            }
        }
    }
}

TEST(Executor, SampledTextDependsOnTheSeedNotOnTheChunks) {
    auto executor = load(folder_of("qwen2-tied"), {.n_positions_max = 128, .batch_invariant = true});
    ASSERT_TRUE(executor.ok());
    Runner runner(**executor);
    const std::vector<TokenId> prompt = {3, 99, 512, 8, 77, 21, 5};
    GenerateOptions options{.n_tokens_max = 16, .ignore_eos = true, .sampling = {.temperature = 1.0f, .seed = 4}};
    const auto whole = runner.generate(prompt, options);
    options.n_chunk_rows = 2;
    const auto chunked = runner.generate(prompt, options);
    options.sampling.seed = 5;
    const auto other = runner.generate(prompt, options);
    ASSERT_TRUE(whole.ok() && chunked.ok() && other.ok());
    EXPECT_EQ(whole->ids, chunked->ids);
    EXPECT_NE(whole->ids, other->ids);
}

TEST(Executor, ProfilesEachKernelOfAStep) {
    auto executor = load(folder_of("qwen2-tied"), {.n_positions_max = 256});
    ASSERT_TRUE(executor.ok());
    const auto profile = (*executor)->profile({4, 200}, {}, 2);
    ASSERT_TRUE(profile.ok()) << profile.error().message;
    uint64_t n_calls = 0;
    for (const auto& kernel : *profile) n_calls += kernel.n_calls;
    EXPECT_GE(n_calls, 2u * (*executor)->config().n_layers * 8);
    EXPECT_GT(profile->front().us, 0.0);
    EXPECT_FALSE((*executor)->profile({5, 200}, {}, 1).ok());
    EXPECT_FALSE((*executor)->profile({1, 257}, {}, 1).ok());
}

TEST(Executor, RefusesLimitsThatCannotHold) {
    EXPECT_THAT(load_error(folder_of("qwen2-tied"), {.n_positions_max = 1025}), HasSubstr("made for 1024"));
    EXPECT_THAT(load_error(folder_of("qwen2-tied"), {.n_rows_max = 2, .n_sequences_max = 4}),
                HasSubstr("2 rows cannot hold 4"));
    EXPECT_THAT(load_error(folder_of("qwen2-tied"), {.n_positions_max = 1024, .n_kv_blocks = 2}),
                HasSubstr("one sequence of 1024 tokens needs 16"));
}

TEST(Runner, RefusesTokensItCannotTake) {
    auto executor = load(folder_of("qwen2-tied"), {.n_positions_max = 128});
    ASSERT_TRUE(executor.ok());
    Runner runner(**executor);
    EXPECT_THAT(runner.logits({}, false).error().message, HasSubstr("no tokens"));
    const std::vector<TokenId> beyond = {1, 1023}, negative = {-1}, long_prompt(120, 1);
    EXPECT_THAT(runner.logits(beyond, false).error().message, HasSubstr("token 1 is 1023, the vocabulary has 1023"));
    EXPECT_THAT(runner.logits(negative, false).error().message, HasSubstr("token 0 is -1"));
    EXPECT_THAT(runner.generate(long_prompt, {.n_tokens_max = 9}).error().message, HasSubstr("context of 128"));
    EXPECT_TRUE(runner.generate(long_prompt, {.n_tokens_max = 8}).ok());
}

// A copy of a golden model whose files can be spoilt.
class SpoiltModel : public ::testing::Test {
  protected:
    void SetUp() override {
        for (const auto& file : std::filesystem::directory_iterator(folder_of("llama-tied"))) {
            std::filesystem::copy(file.path(), dir_.path());
        }
    }
    void set_config(const char* key, const nlohmann::json& value) {
        std::ifstream in(dir_.path() / "config.json");
        auto config = nlohmann::json::parse(in);
        in.close();
        config[key] = value;
        std::ofstream(dir_.path() / "config.json") << config.dump();
    }
    TempDir dir_;
};

TEST_F(SpoiltModel, NamesTensorsThatAreMissingUnknownOrOfAnotherShape) {
    set_config("num_hidden_layers", 3);
    EXPECT_THAT(load_error(dir_.path()), HasSubstr("tensor model.layers.2.input_layernorm.weight is missing"));
    set_config("num_hidden_layers", 1);
    EXPECT_THAT(load_error(dir_.path()), HasSubstr("\"model.layers.1."));
    set_config("num_hidden_layers", 2);
    set_config("intermediate_size", 256);
    EXPECT_THAT(load_error(dir_.path()),
                HasSubstr("gate_proj.weight: expected shape [256, 96] (from config.json), found [250, 96]"));
    set_config("intermediate_size", 250);
    set_config("mlp_bias", false);
    EXPECT_THAT(load_error(dir_.path()), HasSubstr("proj.bias\" [96] is not part of a LlamaForCausalLM"));
    set_config("mlp_bias", true);
    set_config("tie_word_embeddings", false);
    EXPECT_THAT(load_error(dir_.path()), HasSubstr("lm_head.weight is missing"));
    set_config("tie_word_embeddings", true);
    EXPECT_EQ(load_error(dir_.path()), "accepted");
}

TEST_F(SpoiltModel, NamesAVectorThatHoldsInfinity) {
    const auto file = dir_.path() / "model.safetensors";
    std::fstream data(file, std::ios::binary | std::ios::in | std::ios::out);
    uint64_t n_header = 0;
    data.read(reinterpret_cast<char*>(&n_header), sizeof n_header);
    std::string header(n_header, ' ');
    data.read(header.data(), static_cast<std::streamsize>(n_header));
    const auto offsets = nlohmann::json::parse(header)["model.norm.weight"]["data_offsets"];
    const uint16_t infinity = 0x7f80;  // in bf16
    data.seekp(static_cast<std::streamoff>(8 + n_header + offsets[0].get<uint64_t>() + 3 * sizeof infinity));
    data.write(reinterpret_cast<const char*>(&infinity), sizeof infinity);
    data.close();
    EXPECT_THAT(load_error(dir_.path()),
                HasSubstr("tensor model.norm.weight: expected finite numbers, found inf at [3]"));
}

TEST_F(SpoiltModel, RefusesWeightsThatAreCutShort) {
    const auto file = dir_.path() / "model.safetensors";
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 100);
    EXPECT_THAT(load_error(dir_.path()), HasSubstr("model.safetensors"));
    std::filesystem::remove(file);
    EXPECT_THAT(load_error(dir_.path()), HasSubstr("no model.safetensors"));
}

TEST(MemoryPlan, FillsWhatIsFreeWithKvBlocks) {
    auto config = load_model_config(folder_of("qwen2-tied"));
    ASSERT_TRUE(config.ok());
    gpu::DeviceCapabilities device;
    device.name = "a device";
    device.max_allocation_bytes = uint64_t{4} << 30;
    const uint64_t block = kv_block_bytes(*config);
    MemoryPlanOptions options{.n_sequences_max = 1000, .n_positions_max = 640, .memory_utilization = 0.5};
    const auto plan = plan_memory(device, 1000 * block, *config, 100 * block, 50 * block, options);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    EXPECT_EQ(plan->n_kv_blocks, 350u);
    EXPECT_EQ(plan->kv_bytes, 350 * block);
    EXPECT_THAT(plan->table(), HasSubstr("350 blocks of 64 tokens"));

    options.kv = gpu::KvType::kInt8;
    const auto eight = plan_memory(device, 1000 * block, *config, 100 * block, 50 * block, options);
    ASSERT_TRUE(eight.ok()) << eight.error().message;
    const uint64_t small_block = kv_block_bytes(*config, gpu::KvType::kInt8);
    EXPECT_EQ(eight->n_kv_blocks, 350 * block / small_block);
    EXPECT_GT(eight->n_kv_blocks, 350u * 3 / 2);
    EXPECT_THAT(eight->table(), HasSubstr("int8"));
    options.kv = gpu::KvType::kF16;

    options.n_sequences_max = 2;
    EXPECT_EQ(plan_memory(device, 1000 * block, *config, 0, 0, options)->n_kv_blocks, 20u);  // no more than can be used
    options.adapter_bytes = 495 * block;
    const auto too_little = plan_memory(device, 1000 * block, *config, 0, 0, options);
    ASSERT_FALSE(too_little.ok());
    EXPECT_EQ(too_little.error().code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(too_little.error().message, HasSubstr(std::to_string(1000 * block)));
}

// Blocks of such a model hold nothing: the plan gives as many as sequences may have, whatever there is room for.
TEST(MemoryPlan, LayersThatAllAreConvolutionsNeedNoCache) {
    auto config = load_model_config(folder_of("qwen2-tied"));
    ASSERT_TRUE(config.ok());
    std::vector<LayerFacts> layers;
    for (uint32_t layer = 0; layer < config->n_layers; ++layer) {
        layers.push_back(config->layer(layer));
        layers.back().mixer = Mixer::kShortConv;
    }
    config->layers = layers;
    ASSERT_EQ(kv_block_bytes(*config), 0u);
    gpu::DeviceCapabilities device;
    device.max_allocation_bytes = uint64_t{4} << 30;
    MemoryPlanOptions options{.n_sequences_max = 3, .n_positions_max = 640};
    for (const bool is_cpu : {false, true}) {
        device.is_cpu = is_cpu;
        const auto plan = plan_memory(device, uint64_t{1} << 30, *config, 1 << 20, 1 << 20, options);
        ASSERT_TRUE(plan.ok()) << plan.error().message;
        EXPECT_EQ(plan->n_kv_blocks, 30u);
        EXPECT_EQ(plan->kv_bytes, 0u);
    }
    options.n_kv_blocks = 12;
    EXPECT_EQ(plan_memory(device, uint64_t{1} << 30, *config, 0, 0, options)->n_kv_blocks, 12u);
}

TEST(MemoryPlan, ANumberOfBlocksThatIsAskedForIsKeptOrRefused) {
    auto config = load_model_config(folder_of("qwen2-tied"));
    ASSERT_TRUE(config.ok());
    gpu::DeviceCapabilities device;
    device.max_allocation_bytes = 200 * kv_layer_block_bytes(*config, 0);
    const uint64_t block = kv_block_bytes(*config);
    const auto plan = [&](uint32_t n_blocks, uint64_t n_free) {
        return plan_memory(device, n_free * block, *config, 0, 0,
                           {.n_sequences_max = 4, .n_positions_max = 640, .n_kv_blocks = n_blocks});
    };
    EXPECT_EQ(plan(10, 1000)->n_kv_blocks, 10u);
    EXPECT_EQ(plan(200, 1000)->n_kv_blocks, 200u);
    EXPECT_EQ(plan(9, 1000).error().code, ErrorCode::kInvalidConfig);
    EXPECT_EQ(plan(201, 1000).error().code, ErrorCode::kInvalidConfig);
    EXPECT_EQ(plan(150, 100).error().code, ErrorCode::kOutOfMemory);
}

TEST(MemoryPlan, TakesAtMostOneGibOnCpuDevices) {
    auto config = load_model_config(folder_of("qwen2-tied"));
    ASSERT_TRUE(config.ok());
    gpu::DeviceCapabilities device;
    device.is_cpu = true;
    device.max_allocation_bytes = uint64_t{64} << 30;
    const auto plan =
        plan_memory(device, uint64_t{64} << 30, *config, 0, 0, {.n_sequences_max = 100000, .n_positions_max = 1024});
    ASSERT_TRUE(plan.ok());
    EXPECT_LE(plan->kv_bytes, uint64_t{1} << 30);
    EXPECT_GT(plan->kv_bytes, uint64_t{1023} << 20);
}

TEST(Npy, WritesWhatNumpyReads) {
    const TempDir dir;
    const std::vector<float> values = {1.0f, 2.5f, -3.0f, 0.0f, 5.0f, 6.0f};
    const std::vector<uint64_t> shape = {2, 3};
    ASSERT_TRUE(write_npy(dir.path() / "x.npy", shape, values).ok());
    std::ifstream in(dir.path() / "x.npy", std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    ASSERT_EQ(bytes.size() % 64, 24u);
    EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
    EXPECT_THAT(bytes, HasSubstr("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, ), }"));
    EXPECT_EQ(std::memcmp(bytes.data() + bytes.size() - 24, values.data(), 24), 0);
    EXPECT_FALSE(write_npy(dir.path() / "none" / "x.npy", shape, values).ok());
}

}  // namespace
}  // namespace lorad::model::executor_test
