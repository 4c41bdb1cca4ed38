// Adapters from their files to their answers: loaded through the registry onto the device, run by the engine's own
// step, compared with what PEFT computed.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <numbers>
#include <thread>

#include <gtest/gtest.h>

#include "adapters/pool/registry.h"
#include "gpu/kernels/kernels.h"
#include "model/exec/runner.h"
#include "proto/base/log.h"
#include "proto/json/json.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/served.h"
#include "tests/support/goldens.h"
#include "tests/support/soon.h"
#include "tests/support/source_dir.h"
#include "tests/support/test_device.h"

namespace lorad::adapters::device_test {
namespace {

using model::Executor;
using model::Runner;
using namespace lorad::testing;

// The KV cache holds f16; weights of the base and of the adapters are exact, everything else is f32.
constexpr double kRelativeErrorMax = 2e-3;
constexpr double kRelativeErrorMax16 = 1e-2;  // with activations in 16 bit

struct Request {
    std::vector<TokenId> prompt;
    uint32_t slot = kNoAdapterSlot;
    uint32_t n_tokens = 24;
    TokenId end = -1;  // stops after this token

    std::vector<TokenId> ids;         // the answer
    std::vector<float> first_logits;  // after the prompt
};

// All requests in shared steps from the beginning, greedily; `between` runs between the steps.
void answer_together(Executor& executor, std::vector<Request>& requests, const std::function<void()>& between = {}) {
    model::BlockPool pool(executor.n_kv_blocks());
    std::vector<std::vector<BlockId>> blocks(requests.size());
    std::vector<size_t> waiting, running;
    for (size_t i = requests.size(); i-- > 0;) waiting.push_back(i);
    model::StepBatch batch;
    while (!waiting.empty() || !running.empty()) {
        uint32_t n_rows_left = executor.options().n_rows_max - static_cast<uint32_t>(running.size());
        std::vector<size_t> joining;
        while (!waiting.empty() && running.size() + joining.size() < executor.options().n_sequences_max) {
            const Request& next = requests[waiting.back()];
            const auto n_prompt = static_cast<uint32_t>(next.prompt.size());
            if (n_prompt >= n_rows_left) break;
            if (!pool.allocate(model::blocks_for_tokens(n_prompt + next.n_tokens), blocks[waiting.back()])) break;
            n_rows_left -= n_prompt;
            joining.push_back(waiting.back());
            waiting.pop_back();
        }
        batch.clear();
        running.insert(running.end(), joining.begin(), joining.end());
        std::stable_sort(running.begin(), running.end(),
                         [&](size_t a, size_t b) { return requests[a].slot < requests[b].slot; });
        for (const size_t i : running) {
            const Request& request = requests[i];
            std::span<const TokenId> rows = request.prompt;
            uint32_t position = 0;
            if (!request.ids.empty()) {
                rows = std::span(request.ids).last(1);
                position = static_cast<uint32_t>(request.prompt.size() + request.ids.size() - 1);
            }
            const uint32_t first = batch.add_rows(rows, position, blocks[i], request.slot);
            batch.add_output(first + static_cast<uint32_t>(rows.size()) - 1, request.ids.empty());
        }
        ASSERT_TRUE(executor.submit(batch).ok());
        if (between) between();
        const auto output = executor.finish();
        ASSERT_TRUE(output.ok()) << output.error().message;
        std::vector<size_t> still_running;
        for (size_t place = 0; place < running.size(); ++place) {
            Request& request = requests[running[place]];
            const auto at = static_cast<uint32_t>(place);
            if (request.ids.empty()) {
                const auto logits = output->logits(at);
                request.first_logits.assign(logits.begin(), logits.end());
            }
            request.ids.push_back(output->sampled[at]);
            if (request.ids.size() < request.n_tokens && request.ids.back() != request.end) {
                still_running.push_back(running[place]);
            } else {
                pool.release(blocks[running[place]]);
            }
        }
        running = std::move(still_running);
    }
}

void expect_certain_tokens(const std::vector<TokenId>& ids, const std::vector<TokenId>& expected,
                           const std::vector<double>& margins, double logit_error, const std::string& where) {
    const size_t n_certain = n_certain_tokens(margins, logit_error);
    ASSERT_GE(ids.size(), n_certain) << where;
    for (size_t i = 0; i < n_certain; ++i)
        ASSERT_EQ(ids[i], expected[i]) << where << ", token " << i << ", margin " << margins[i];
}

JsonDocument read_json(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    auto document = parse_json(text);
    EXPECT_TRUE(document.ok()) << file << ": " << (document.ok() ? "" : document.error().message);
    return std::move(document).value();
}

// An adapter that is loaded, and what PEFT answers with it.
struct GoldenAdapter {
    std::string where;
    uint32_t slot;
    std::vector<GoldenPrompt> prompts;
    std::vector<std::vector<float>> last_logits;  // of each prompt
};

// The folder of a model's reference set, which for a family is that of all families.
std::filesystem::path set_of(const std::string& model) {
    return std::filesystem::exists(goldens_dir() / "models" / model) ? goldens_dir() : goldens_dir() / "families";
}

void load_golden_adapters(Served& served, const std::string& model, std::vector<GoldenAdapter>& adapters) {
    const auto answers = set_of(model) / "expected/adapters" / model;
    for (const auto& folder : std::filesystem::directory_iterator(set_of(model) / "adapters" / model)) {
        const std::string name = folder.path().filename();
        const auto loaded = served.registry().load(name, folder.path());
        ASSERT_TRUE(loaded.ok()) << name << ": " << loaded.error().message;
        auto files = model::TensorFiles::map(answers / (name + ".safetensors"), ErrorCode::kIo);
        ASSERT_TRUE(files.ok());
        GoldenAdapter& adapter = adapters.emplace_back(model + "/" + name, served.slot_of(name),
                                                       read_golden_prompts(answers / (name + ".json")));
        for (size_t i = 0; i < adapter.prompts.size(); ++i) {
            adapter.last_logits.push_back(golden_floats(*files, "prompt" + std::to_string(i) + ".last_logits"));
        }
    }
}

// All adapters of a model are loaded at once; each answers all prompts, alone and beside all others.
void check_golden_adapters(const std::string& model, gpu::KernelPath path, double error_max) {
    const auto served = Served::load(goldens_dir() / "models" / model, false, 24, path);
    ASSERT_NE(served, nullptr);
    struct Expected {
        std::string where;
        GoldenPrompt prompt;
        std::vector<float> logits;
    };
    std::vector<Request> requests;
    std::vector<Expected> expected;
    double worst = 0;
    std::vector<GoldenAdapter> adapters;
    ASSERT_NO_FATAL_FAILURE(load_golden_adapters(*served, model, adapters));
    for (const GoldenAdapter& adapter : adapters) {
        for (size_t i = 0; i < adapter.prompts.size(); ++i) {
            const GoldenPrompt& prompt = adapter.prompts[i];
            const std::string where = adapter.where + " prompt " + std::to_string(i);
            const std::vector<float>& reference = adapter.last_logits[i];
            const auto logits = Runner(served->executor()).logits(prompt.ids, false, adapter.slot);
            ASSERT_TRUE(logits.ok()) << logits.error().message;
            const double error = relative_error(logits->data(), reference.data(), reference.size());
            EXPECT_LE(error, error_max) << where;
            worst = std::max(worst, error);
            Request request;
            request.prompt = prompt.ids;
            request.slot = adapter.slot;
            requests.push_back(std::move(request));
            expected.push_back({where, prompt, reference});
        }
    }
    ASSERT_GE(requests.size(), 3u);
    answer_together(served->executor(), requests);
    for (size_t i = 0; i < requests.size(); ++i) {
        const std::vector<float>& reference = expected[i].logits;
        const double error = relative_error(requests[i].first_logits.data(), reference.data(), reference.size());
        EXPECT_LE(error, error_max) << expected[i].where << ", in the batch";
        double norm = 0.0;
        for (const float value : reference) norm += double{value} * value;
        // Four standard deviations of the difference of two logits, each as far off as those of the prompt were.
        const double logit_error =
            4.0 * std::numbers::sqrt2 * error * std::sqrt(norm / static_cast<double>(reference.size()));
        expect_certain_tokens(requests[i].ids, expected[i].prompt.greedy, expected[i].prompt.margins, logit_error,
                              expected[i].where);
    }
    ::testing::Test::RecordProperty("worst_relative_error", std::to_string(worst));
}

class GoldenAdapterOnDevice : public ::testing::TestWithParam<const char*> {};
class GoldenAdapterInOneDispatch : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenAdapterOnDevice, LogitsAndGreedyTokensAreThoseOfPeft) {
    check_golden_adapters(GetParam(), gpu::KernelPath::kPortableF32, kRelativeErrorMax);
}

// The path that the device gets by itself; matrix units take 16-bit activations, and portable kernels may sum in f16.
TEST_P(GoldenAdapterOnDevice, TheDevicesOwnPathAgreesWithPeft) {
    const auto kernels = gpu::KernelSet::create(test_device(), {});
    ASSERT_TRUE(kernels.ok()) << kernels.error().message;
    if ((*kernels)->options().path == gpu::KernelPath::kPortable && !(*kernels)->ladder().has(gpu::RungId::kShortSums))
        GTEST_SKIP() << "portable kernels in f32 are this device's own";
    check_golden_adapters(GetParam(), gpu::KernelPath::kAuto, kRelativeErrorMax16);
}

// Prompts row by row, as decodes are. What the dispatch does not take (extras, gains, more ranks) goes the other way.
TEST_P(GoldenAdapterInOneDispatch, AgreesWithPeft) {
    const std::string model = GetParam();
    const auto served =
        Served::load(set_of(model) / "models" / model, false, 24, gpu::KernelPath::kAuto, gpu::PersistentDecode::kOn);
    ASSERT_NE(served, nullptr);
    const gpu::ScalarType type = served->executor().weights().layers[0].qkv.type;
    if (type == gpu::ScalarType::kF32) GTEST_SKIP() << "only for 16-bit weights";
    ASSERT_TRUE(served->executor().decodes_in_one_dispatch());
    // What a step runs, whose row has this adapter.
    const auto n_dispatches = [&](uint32_t slot) {
        model::StepBatch batch;
        const TokenId token = 1;
        const BlockId block{0};
        batch.add_output(batch.add_rows({&token, 1}, 0, {&block, 1}, slot), false);
        EXPECT_TRUE(served->executor().submit(batch).ok());
        const auto output = served->executor().finish();
        EXPECT_TRUE(output.ok());
        return output.ok() ? output->n_dispatches : 0;
    };
    const uint32_t n_of_base = n_dispatches(kNoAdapterSlot);
    std::vector<GoldenAdapter> adapters;
    ASSERT_NO_FATAL_FAILURE(load_golden_adapters(*served, model, adapters));
    EXPECT_FALSE(adapters.empty());
    uint32_t n_in_one = 0;
    for (const GoldenAdapter& adapter : adapters) {
        ASSERT_FALSE(adapter.prompts.empty());
        const std::vector<float>& reference = adapter.last_logits[0];
        const auto logits = Runner(served->executor()).logits(adapter.prompts[0].ids, false, adapter.slot, 1);
        ASSERT_TRUE(logits.ok()) << logits.error().message;
        EXPECT_LE(relative_error(logits->data(), reference.data(), reference.size()),
                  type == gpu::ScalarType::kBf16 ? 5e-2 : kRelativeErrorMax16)
            << adapter.where;
        n_in_one += n_dispatches(adapter.slot) == n_of_base ? 1 : 0;
    }
    const bool all_have_biases = model == "llama-tied";  // which go the other way
    EXPECT_EQ(n_in_one == 0, all_have_biases);
    EXPECT_TRUE(served->executor().decodes_in_one_dispatch()) << "a step gave up";
}

std::string test_name(const ::testing::TestParamInfo<const char*>& info) {
    std::string name = info.param;
    std::ranges::replace(name, '-', '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenAdapterOnDevice,
                         ::testing::Values("llama-scaled", "llama-tied", "mistral-window", "phi3-sharded", "qwen2-tied",
                                           "qwen3"),
                         test_name);
// A software device compiles the programs of each for a minute and a half: one here; the weights of phi3-sharded are
// f32.
INSTANTIATE_TEST_SUITE_P(All, GoldenAdapterInOneDispatch, ::testing::Values("qwen2-tied", "gemma3-nested"), test_name);
INSTANTIATE_TEST_SUITE_P(SlowAll, GoldenAdapterInOneDispatch,
                         ::testing::Values("qwen3", "llama-scaled", "llama-tied", "mistral-window", "olmo3"),
                         test_name);

std::filesystem::path demo_dir() { return lorad::testing::source_dir() / "deploy/demo-model"; }

TEST(DemoAdapters, AnswerTheSamplesTokenForTokenInSharedSteps) {
    const auto served = Served::load(demo_dir() / "base");
    ASSERT_NE(served, nullptr);
    const JsonDocument samples = read_json(demo_dir() / "samples.json");
    std::map<std::string, uint32_t> slots{{"base", kNoAdapterSlot}};
    struct Sample {
        std::string where;
        std::vector<TokenId> ids;
        std::vector<double> margins;
    };
    std::vector<Request> requests;
    std::vector<Sample> expected;
    for (const JsonValue& sample : *samples.root().find("samples")->as_array()) {
        std::vector<TokenId> prompt;
        for (const JsonValue& id : *sample.find("prompt_ids")->as_array())
            prompt.push_back(static_cast<TokenId>(*id.as_int()));
        for (const JsonMember& output : *sample.find("outputs")->as_object()) {
            const std::string name(output.key);
            if (!slots.contains(name)) {
                const auto loaded = served->registry().load(name, demo_dir() / "adapters" / name);
                ASSERT_TRUE(loaded.ok()) << loaded.error().message;
                slots[name] = loaded->slot;
            }
            Sample wanted{name + " " + std::string(*sample.string_or("id", "")), {}, {}};
            for (const JsonValue& id : *output.value.find("ids")->as_array())
                wanted.ids.push_back(static_cast<TokenId>(*id.as_int()));
            for (const JsonValue& margin : *output.value.find("margins")->as_array())
                wanted.margins.push_back(*margin.as_number());
            Request request;
            request.prompt = prompt;
            request.slot = slots[name];
            request.n_tokens = static_cast<uint32_t>(wanted.ids.size());
            request.end = 2;
            requests.push_back(std::move(request));
            expected.push_back(std::move(wanted));
        }
    }
    EXPECT_EQ(slots.size(), 5u);
    ASSERT_GE(requests.size(), 100u);
    answer_together(served->executor(), requests);
    size_t n_tokens = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
        // Logits of the demo model are about 5 in size; see kRelativeErrorMax.
        expect_certain_tokens(requests[i].ids, expected[i].ids, expected[i].margins, 0.02, expected[i].where);
        n_tokens += n_certain_tokens(expected[i].margins, 0.02);
    }
    EXPECT_GT(n_tokens, 1500u);
}

class QwenAdapters : public ::testing::Test {
  protected:
    static constexpr const char* kModel = "qwen2-tied";
    static std::filesystem::path folder(const std::string& name) { return goldens_dir() / "adapters" / kModel / name; }
    static std::vector<TokenId> prompt(int seed, int n) {
        std::vector<TokenId> ids;
        for (int i = 0; i < n; ++i) ids.push_back((seed * 37 + i * 11) % 500);
        return ids;
    }
    std::vector<TokenId> alone(Served& served, const std::vector<TokenId>& ids, uint32_t slot, uint32_t n_tokens = 24) {
        auto generated =
            Runner(served.executor())
                .generate(ids, {.n_tokens_max = n_tokens, .ignore_eos = true, .uses = model::uses_of(slot)});
        EXPECT_TRUE(generated.ok());
        return generated->ids;
    }
};

TEST_F(QwenAdapters, RowsOfAMixedBatchEqualTheirSoloRunsBitForBit) {
    const auto served = Served::load(goldens_dir() / "models" / kModel, true);
    ASSERT_NE(served, nullptr);
    std::vector<uint32_t> slots{kNoAdapterSlot};
    for (const char* name : {"all-linear-r3", "plain-r8-qv", "r64", "rslora-r16", "layers-subset"}) {
        const auto loaded = served->registry().load(name, folder(name));
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        slots.push_back(loaded->slot);
    }
    std::vector<Request> together;
    for (int i = 0; i < 18; ++i) {
        Request request;
        request.prompt = prompt(i, 1 + (i * 5) % 23);
        request.slot = slots[static_cast<size_t>(i) % slots.size()];
        request.n_tokens = 8;
        together.push_back(std::move(request));
    }
    answer_together(served->executor(), together);
    for (size_t i = 0; i < together.size(); ++i) {
        std::vector<Request> solo(1, Request{together[i].prompt, together[i].slot, 8, -1, {}, {}});
        answer_together(served->executor(), solo);
        EXPECT_EQ(solo[0].ids, together[i].ids) << i;
        ASSERT_EQ(solo[0].first_logits.size(), together[i].first_logits.size());
        EXPECT_EQ(std::memcmp(solo[0].first_logits.data(), together[i].first_logits.data(),
                              solo[0].first_logits.size() * sizeof(float)),
                  0)
            << i;
    }
}

TEST_F(QwenAdapters, ARequestKeepsItsWeightsWhenTheNameIsReplaced) {
    const auto served = Served::load(goldens_dir() / "models" / kModel);
    ASSERT_NE(served, nullptr);
    Registry& registry = served->registry();
    ASSERT_TRUE(registry.load("a", folder("all-linear-r3")).ok());
    ASSERT_TRUE(registry.load("other", folder("r64")).ok());
    const auto ids = prompt(3, 20);
    const auto with_first = alone(*served, ids, served->slot_of("a"));
    const auto with_second = alone(*served, ids, served->slot_of("other"));
    ASSERT_NE(with_first, with_second);

    auto lease = registry.acquire("a");
    ASSERT_TRUE(lease.ok());
    std::vector<Request> running(1, Request{ids, lease->slot(), 24, -1, {}, {}});
    int n_steps = 0;
    answer_together(served->executor(), running, [&] {
        ++n_steps;
        if (n_steps == 5) {
            ASSERT_TRUE(registry.load("a", folder("r64"), {.load_inplace = true}).ok());
        } else if (n_steps == 10) {
            ASSERT_TRUE(registry.remove("other").ok());
        }
    });
    EXPECT_EQ(running[0].ids, with_first);
    EXPECT_EQ(alone(*served, ids, lease->slot()), with_first);
    EXPECT_EQ(alone(*served, ids, served->slot_of("a")), with_second);
}

// One adapter written twice, with fused and with split names, for a base whose files are split and one whose are fused.
TEST(FusedAndSplitNames, GiveTheSameLogitsBitForBit) {
    for (const char* model : {"qwen2-tied", "phi3-sharded"}) {
        const auto served = Served::load(goldens_dir() / "models" / model);
        ASSERT_NE(served, nullptr);
        const model::ModelConfig& config = served->executor().config();
        const uint32_t hidden = config.hidden_size, q = config.q_size(), kv = config.kv_size(),
                       ffn = config.intermediate_size;
        TestTensors fused, split;
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            const auto add = [&](const std::string& whole, const std::vector<std::pair<std::string, uint32_t>>& parts,
                                 uint64_t seed) {
                uint32_t n = 0;
                for (const auto& [name, rows] : parts) n += rows;
                add_pair(fused, layer, whole, 5, n, hidden, seed);
                const TestTensor& b = fused[lora_name(layer, whole, 'B')];
                size_t at = 0;
                for (const auto& [name, rows] : parts) {
                    split[lora_name(layer, name, 'A')] = fused[lora_name(layer, whole, 'A')];
                    const size_t n_bytes = size_t{rows} * 5 * sizeof(float);
                    const auto begin = b.data.begin() + static_cast<ptrdiff_t>(at);
                    split[lora_name(layer, name, 'B')] = {
                        "F32", {rows, 5}, {begin, begin + static_cast<ptrdiff_t>(n_bytes)}};
                    at += n_bytes;
                }
            };
            add("self_attn.qkv_proj", {{"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}},
                layer * 9 + 1);
            add("mlp.gate_up_proj", {{"mlp.gate_proj", ffn}, {"mlp.up_proj", ffn}}, layer * 9 + 5);
        }
        const AdapterFolder fused_folder(
            R"({"peft_type":"LORA","r":5,"lora_alpha":0.002,"target_modules":["qkv_proj","gate_up_proj"]})", fused);
        const AdapterFolder split_folder(
            R"({"peft_type":"LORA","r":5,"lora_alpha":0.002,"target_modules":["q_proj","k_proj","v_proj","gate_proj","up_proj"]})",
            split);
        const auto loaded_fused = served->registry().load("fused", fused_folder.path());
        const auto loaded_split = served->registry().load("split", split_folder.path());
        ASSERT_TRUE(loaded_fused.ok()) << loaded_fused.error().message;
        ASSERT_TRUE(loaded_split.ok()) << loaded_split.error().message;
        EXPECT_LT(loaded_fused->device_bytes, loaded_split->device_bytes);
        const std::vector<TokenId> ids{5, 9, 23, 4, 77, 31};
        Runner runner(served->executor());
        const auto base = runner.logits(ids, false);
        const auto with_fused = runner.logits(ids, false, loaded_fused->slot);
        const auto with_split = runner.logits(ids, false, loaded_split->slot);
        ASSERT_TRUE(base.ok() && with_fused.ok() && with_split.ok());
        EXPECT_EQ(*with_fused, *with_split) << model;
        EXPECT_GT(relative_error(with_fused->data(), base->data(), base->size()), 0.01) << model;
    }
}

// Zero rows of A and columns of B do nothing, so every rank can be compared with a golden one.
TEST_F(QwenAdapters, EveryRankUpToTheLargestIsApplied) {
    const auto served = Served::load(goldens_dir() / "models" / kModel);
    ASSERT_NE(served, nullptr);
    const auto golden = served->registry().load("r64", folder("r64"));
    ASSERT_TRUE(golden.ok());
    const auto ids = prompt(2, 21);
    Runner runner(served->executor());
    const auto expected = runner.logits(ids, false, golden->slot);
    const JsonDocument config = read_json(folder("r64") / "adapter_config.json");
    const double scale = *config.root().find("lora_alpha")->as_number() / 64.0;
    const auto files = model::TensorFiles::map(folder("r64") / "adapter_model.safetensors", ErrorCode::kIo);
    ASSERT_TRUE(files.ok());
    for (const uint64_t rank : {65u, 100u, 256u, 512u}) {
        TestTensors padded;
        for (const model::Tensor& tensor : files->tensors()) {
            const bool is_a = tensor.name.find("lora_A") != std::string::npos;
            const uint64_t rows = is_a ? rank : tensor.shape[0], columns = is_a ? tensor.shape[1] : rank;
            const size_t size = model::bytes_of(tensor.dtype);
            TestTensor& wide = padded[tensor.name];
            wide = {std::string(model::name_of(tensor.dtype)),
                    {rows, columns},
                    std::vector<std::byte>(rows * columns * size)};
            // A's rows and B's columns go to the end, so that the last rank carries weight.
            for (uint64_t row = 0; row < tensor.shape[0]; ++row) {
                const uint64_t to = is_a ? (row + rank - 64) * columns : row * columns + rank - 64;
                std::memcpy(wide.data.data() + to * size, tensor.data.data() + row * tensor.shape[1] * size,
                            tensor.shape[1] * size);
            }
        }
        const AdapterFolder folder_of_rank(
            format(R"({{"peft_type":"LORA","r":{},"lora_alpha":{}}})", rank, scale * static_cast<double>(rank)),
            padded);
        const std::string name = "rank" + std::to_string(rank);
        const auto loaded = served->registry().load(name, folder_of_rank.path());
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        EXPECT_EQ(loaded->rank, rank);
        const auto logits = runner.logits(ids, false, loaded->slot);
        ASSERT_TRUE(logits.ok());
        EXPECT_LT(relative_error(logits->data(), expected->data(), expected->size()), 1e-4) << rank;
    }
}

TEST_F(QwenAdapters, ARecycledSlotHasNothingOfTheAdapterBefore) {
    const auto served = Served::load(goldens_dir() / "models" / kModel, false, 1);
    ASSERT_NE(served, nullptr);
    Registry& registry = served->registry();
    const auto ids = prompt(5, 17);
    ASSERT_TRUE(registry.load("subset", folder("layers-subset")).ok());
    const auto fresh = Runner(served->executor()).logits(ids, false, 0);
    ASSERT_TRUE(registry.remove("subset").ok());
    ASSERT_TRUE(registry.load("all", folder("r64")).ok());
    const auto other = Runner(served->executor()).logits(ids, false, 0);
    EXPECT_NE(*fresh, *other);
    ASSERT_TRUE(registry.remove("all").ok());
    ASSERT_TRUE(registry.load("subset", folder("layers-subset")).ok());
    const auto again = Runner(served->executor()).logits(ids, false, 0);
    EXPECT_EQ(*fresh, *again);
}

TEST_F(QwenAdapters, LoadingAndUnloadingGivesAllDeviceMemoryBack) {
    const auto served = Served::load(goldens_dir() / "models" / kModel, false, 4);
    ASSERT_NE(served, nullptr);
    Registry& registry = served->registry();
    const uint64_t before = test_device().allocated_bytes();
    for (int i = 0; i < 200; ++i) {
        const std::string name = "n" + std::to_string(i % 3);
        const auto loaded = registry.load(name, folder(i % 2 ? "all-linear-r3" : "r64"), {.load_inplace = i % 5 == 0});
        ASSERT_TRUE(loaded.ok()) << i << ": " << loaded.error().message;
        ASSERT_GE(test_device().allocated_bytes(), before + loaded->device_bytes);
        ASSERT_TRUE(registry.remove(name).ok());
    }
    EXPECT_EQ(test_device().allocated_bytes(), before);
    EXPECT_EQ(registry.device_bytes(), 0u);
}

TEST_F(QwenAdapters, DecodingGoesOnUnchangedWhileOthersLoadAndUnload) {
    const auto served = Served::load(goldens_dir() / "models" / kModel);
    ASSERT_NE(served, nullptr);
    Registry& registry = served->registry();
    ASSERT_TRUE(registry.load("steady", folder("rslora-r16")).ok());
    const uint32_t slot = served->slot_of("steady");
    std::vector<Request> quiet, busy;
    for (int i = 0; i < 6; ++i) quiet.push_back({prompt(i, 9 + i), i % 2 ? slot : kNoAdapterSlot, 48, -1, {}, {}});
    busy = quiet;
    answer_together(served->executor(), quiet);

    std::atomic<bool> stop{false};
    std::atomic<uint32_t> n_loads{0}, n_failures{0};
    std::thread churn([&] {
        for (int i = 0; !stop; ++i) {
            const auto loaded = registry.load("churn", folder(i % 2 ? "r64" : "all-linear-r3"));
            n_failures += !loaded.ok() || !registry.remove("churn").ok();
            n_loads++;
        }
    });
    answer_together(served->executor(), busy, [&] {
        const uint32_t before = n_loads;
        EXPECT_TRUE(soon([&] { return n_loads > before; }));
    });
    stop = true;
    churn.join();
    EXPECT_GT(n_loads, 10u);
    EXPECT_EQ(n_failures, 0u);
    for (size_t i = 0; i < quiet.size(); ++i) EXPECT_EQ(busy[i].ids, quiet[i].ids) << i;
}

}  // namespace
}  // namespace lorad::adapters::device_test
