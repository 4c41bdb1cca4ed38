// A slow device gets its steps in more submissions, and computes the same bits.
#include <algorithm>

#include <gtest/gtest.h>

#include "model/exec/runner.h"
#include "model/files/model_files.h"
#include "tests/support/goldens.h"
#include "tests/support/test_device.h"

namespace lorad::model::slow_device_test {
namespace {

using namespace lorad::testing;

struct Answers {
    std::vector<float> logits;
    std::vector<TokenId> ids;
    uint64_t n_submissions = 0;
    uint64_t n_messages = 0;
};

Answers answers_of(const gpu::DeviceOptions& options, const std::string& model) {
    auto device = gpu::Device::create(options);
    EXPECT_TRUE(device.ok());
    const auto folder = goldens_dir() / "models" / model;
    const auto files = ModelFiles::open(folder);
    const auto config = (*files)->config();
    auto executor = Executor::load(**device, folder, *config,
                                   {.n_rows_max = 256,
                                    .n_sequences_max = 4,
                                    .n_positions_max = 256,
                                    .n_adapter_slots = 2,
                                    .kernel_path = gpu::KernelPath::kPortable,
                                    .decode = gpu::PersistentDecode::kOff});
    EXPECT_TRUE(executor.ok()) << executor.error().message;
    Runner runner(**executor);
    std::vector<TokenId> prompt(200);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>((i * 37 + 5) % config->vocab_size);
    const uint64_t before = (*device)->n_submissions();
    Answers answers;
    answers.logits = runner.logits(prompt, false).value();
    answers.ids = runner.generate(prompt, {.n_tokens_max = 6, .ignore_eos = true}).value().ids;
    answers.n_submissions = (*device)->n_submissions() - before;
    executor->reset();
    answers.n_messages = (*device)->validation_message_count();
    return answers;
}

class SlowDevice : public ::testing::TestWithParam<const char*> {};

TEST_P(SlowDevice, HasMoreSubmissionsAndTheSameBits) {
    const Answers plain = answers_of({.submission_max = std::chrono::microseconds(0)}, GetParam());
    ASSERT_FALSE(plain.logits.empty());
    uint64_t before = plain.n_submissions;
    for (const double slowness : {2e3, 2e5}) {
        SCOPED_TRACE(slowness);
        const bool is_cpu = test_device().capabilities().is_cpu;
        const Answers slow =
            answers_of({.validation = true, .slowness = is_cpu ? slowness : slowness * 1000}, GetParam());
        EXPECT_TRUE(slow.logits == plain.logits) << "the same bits";
        EXPECT_EQ(slow.ids, plain.ids);
        EXPECT_GT(slow.n_submissions, before);
        EXPECT_EQ(slow.n_messages, 0u);
        before = slow.n_submissions;
    }
}

INSTANTIATE_TEST_SUITE_P(Models, SlowDevice, ::testing::Values("llama-scaled", "qwen2-tied"), [](const auto& model) {
    return std::string(model.param).starts_with("llama") ? "llama" : "qwen2";
});

}  // namespace
}  // namespace lorad::model::slow_device_test
