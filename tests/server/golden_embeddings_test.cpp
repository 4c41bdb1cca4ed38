// Embeddings beside transformers' and PEFT's, the whole way through engine and device, in steps that
// they share with decodes.
#include <gtest/gtest.h>

#include "server/engine/engine.h"
#include "server/engine/executor_runner.h"
#include "server/http/generate/adapter_choice.h"
#include "tests/adapters/served.h"
#include "tests/support/goldens.h"

namespace lorad::server::golden_embeddings_test {
namespace {

using namespace lorad::testing;

struct Case {
    const char* model;
    std::vector<const char*> adapters;  // as tests/goldens/make_embeddings.py has them
};

class GoldenEmbeddings : public ::testing::TestWithParam<Case> {};

// The angle between two directions.
double angle(std::span<const float> a, std::span<const float> b) {
    double dot = 0.0, aa = 0.0, bb = 0.0;
    for (size_t i = 0; i < a.size(); ++i) {
        dot += double(a[i]) * double(b[i]);
        aa += double(a[i]) * double(a[i]);
        bb += double(b[i]) * double(b[i]);
    }
    return std::acos(std::min(1.0, dot / std::sqrt(aa * bb)));
}

TEST_P(GoldenEmbeddings, AreTransformersHiddenStatesOfTheLastToken) {
    const std::string name = GetParam().model;
    const auto served = adapters::Served::load(goldens_dir() / "models" / name);
    ASSERT_NE(served, nullptr);
    auto prompts = read_golden_prompts(goldens_dir() / "expected/models" / (name + ".json"));
    auto expected =
        model::TensorFiles::map(goldens_dir() / "expected/embeddings" / (name + ".safetensors"), ErrorCode::kIo);
    ASSERT_TRUE(expected.ok());

    ExecutorRunner runner(served->executor());
    Metrics metrics({"base", model::kBlockTokens, 1, 1, "", "", true});
    const model::ExecutorOptions& options = served->executor().options();
    EngineOptions engine_options;
    engine_options.limits = {options.n_rows_max, options.n_sequences_max, model::kBlockTokens};
    engine_options.n_kv_blocks = served->executor().n_kv_blocks();
    engine_options.n_prompt_outputs_max = 0;
    Engine engine(runner, metrics, engine_options);

    struct Asked {
        std::string tensor;
        std::shared_ptr<TokenStream> stream;
    };
    std::vector<Asked> embeddings;
    std::vector<std::shared_ptr<TokenStream>> answers;
    auto submit = [&](size_t prompt, const adapters::MixLease& lease, bool embeds) {
        Request request;
        request.prompt.assign(prompts[prompt].ids.begin(), prompts[prompt].ids.end());
        request.n_tokens_max = embeds ? 1 : uint32_t(prompts[prompt].greedy.size());
        request.sampling.temperature = 0.0f;
        request.wants_embedding = embeds;
        request.adapter = use_of(lease, request.prompt);
        request.stream = std::make_shared<TokenStream>(request.n_tokens_max);
        auto stream = request.stream;
        EXPECT_TRUE(engine.submit(std::move(request)).ok());
        return stream;
    };
    std::vector<std::string> labels = {"base"};
    labels.insert(labels.end(), GetParam().adapters.begin(), GetParam().adapters.end());
    std::vector<adapters::MixLease> leases(labels.size());
    for (size_t i = 1; i < labels.size(); ++i) {
        ASSERT_TRUE(served->registry().load(labels[i], goldens_dir() / "adapters" / name / labels[i]).ok());
        leases[i] = *served->registry().acquire(labels[i]);
    }
    // Decodes of the base run beside all of them.
    for (size_t prompt = 0; prompt < prompts.size(); ++prompt) answers.push_back(submit(prompt, {}, false));
    for (int i = 0; i < 4; ++i) engine.step();
    for (size_t i = 0; i < labels.size(); ++i) {
        for (size_t prompt = 0; prompt < prompts.size(); ++prompt) {
            embeddings.push_back({labels[i] + ".prompt" + std::to_string(prompt), submit(prompt, leases[i], true)});
        }
    }
    for (int i = 0; i < 1000 && engine.step(); ++i) {
    }
    for (const Asked& asked : embeddings) {
        TokenStream::Batch batch = asked.stream->pop(std::chrono::milliseconds(0));
        ASSERT_TRUE(batch.end && batch.end->reason == FinishReason::kStop) << asked.tensor;
        EXPECT_TRUE(batch.tokens.empty());
        const std::vector<float> values = golden_floats(*expected, asked.tensor);
        ASSERT_EQ(batch.embedding.size(), values.size()) << asked.tensor;
        // Rows of length 1 in f16: each element is off by up to 2^-11 of itself; the KV cache's f16 adds
        // as much again in each layer, as in the goldens of logits.
        EXPECT_LT(angle(batch.embedding, values), 4e-3) << asked.tensor;
    }
    for (size_t i = 0; i < answers.size(); ++i) {
        TokenStream::Batch batch = answers[i]->pop(std::chrono::milliseconds(0));
        const size_t n = n_certain_tokens(prompts[i].margins, 2e-2);
        ASSERT_GE(batch.tokens.size(), n);
        for (size_t k = 0; k < n; ++k) EXPECT_EQ(batch.tokens[k], prompts[i].greedy[k]);
    }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenEmbeddings,
                         ::testing::Values(Case{"qwen2-tied", {"plain-r8-qv", "rslora-r16", "embed-lora"}},
                                           Case{"llama-scaled", {"all-linear-r16", "dora"}},
                                           Case{"qwen3", {"plain-r8-qv"}}),
                         [](const auto& param) {
                             std::string name = param.param.model;
                             std::erase(name, '-');
                             return name;
                         });

}  // namespace
}  // namespace lorad::server::golden_embeddings_test
