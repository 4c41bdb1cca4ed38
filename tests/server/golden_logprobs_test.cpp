// Log-probabilities as clients get them, beside transformers' log-softmax in float32: the whole way
// through engine and device.
#include <gtest/gtest.h>

#include "server/engine/engine.h"
#include "server/engine/executor_runner.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"

namespace lorad::server::golden_logprobs_test {
namespace {

using namespace lorad::testing;

class GoldenLogprobs : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenLogprobs, OfPromptsAreTransformersLogSoftmax) {
    model::ExecutorOptions options;
    options.n_rows_max = 64;
    options.n_sequences_max = 4;
    options.n_outputs_max = 4 + 8;
    options.n_positions_max = 256;
    options.n_adapter_slots = 2;
    options.kernel_path = gpu::KernelPath::kPortableF32;
    const auto executor = load_executor(goldens_dir() / "models" / GetParam(), options);
    const auto expected_dir = goldens_dir() / "expected/models";
    auto prompts = read_golden_prompts(expected_dir / (std::string(GetParam()) + ".json"));
    auto files = model::TensorFiles::map(expected_dir / (std::string(GetParam()) + ".safetensors"), ErrorCode::kIo);
    ASSERT_TRUE(files.ok());
    const size_t last = prompts.size() - 1;
    const std::string name = "prompt" + std::to_string(last);
    const auto values = golden_floats(*files, name + ".top20_logprobs");
    const std::vector<TokenId> prompt(prompts[last].ids.begin(), prompts[last].ids.end());
    ASSERT_EQ(values.size(), prompt.size() * 20);

    ExecutorRunner runner(*executor);
    Metrics metrics({"base", model::kBlockTokens, 1, 1, "", "", true});
    EngineOptions engine_options;
    engine_options.limits = {64, 4, model::kBlockTokens};
    engine_options.n_kv_blocks = executor->n_kv_blocks();
    engine_options.n_prompt_outputs_max = 8;
    Engine engine(runner, metrics, engine_options);
    Request request;
    request.prompt = prompt;
    request.n_tokens_max = 1;
    request.sampling.temperature = 0.0f;
    request.n_logprobs = 20;
    request.n_prompt_logprobs = 20;
    request.may_skip_prefix = false;
    request.stream = std::make_shared<TokenStream>(1);
    auto stream = request.stream;
    ASSERT_TRUE(engine.submit(std::move(request)).ok());
    for (int i = 0; i < 1000 && engine.step(); ++i) {
    }
    TokenStream::Batch batch = stream->pop(std::chrono::milliseconds(0));
    ASSERT_EQ(batch.prompt_logprobs.size() + 1, prompt.size());
    ASSERT_EQ(batch.logprobs.size(), 1u);
    batch.prompt_logprobs.push_back(batch.logprobs[0]);
    // Row i of the reference says what follows token i.
    for (size_t i = 0; i < batch.prompt_logprobs.size(); ++i) {
        ASSERT_EQ(batch.prompt_logprobs[i].top.size(), 20u);
        for (size_t k = 0; k < 20; ++k) {
            // Equal ranks may trade places where two values are that close.
            EXPECT_NEAR(batch.prompt_logprobs[i].top[k].logprob, values[i * 20 + k], 1e-2)
                << "row " << i << ", rank " << k;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenLogprobs, ::testing::Values("qwen2-tied", "llama-scaled", "qwen3"),
                         [](const auto& param) {
                             std::string name = param.param;
                             std::erase(name, '-');
                             return name;
                         });

}  // namespace
}  // namespace lorad::server::golden_logprobs_test
