// aLoRA on the device: rows before the last invocation are the base's, rows from it on the adapter's on top of the
// base's keys and values; compared with double precision.
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapters/plan/check.h"
#include "adapters/plan/pack.h"
#include "model/exec/runner.h"
#include "server/engine/request.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/fake_store.h"
#include "tests/adapters/served.h"
#include "tests/support/goldens.h"
#include "tests/support/host_model.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::activated_adapter_test {
namespace {

using ::testing::HasSubstr;
using namespace lorad::testing;
using namespace lorad::adapters;

// As for the goldens: the KV cache holds f16; weights of the base and of the adapters are exact, everything else is
// f32.
constexpr double kRelativeErrorMax = 2e-3;
const std::vector<TokenId> kInvocation = {5, 6};

// A golden adapter as one that acts from kInvocation on.
void write_activated(const std::filesystem::path& from, const std::filesystem::path& to) {
    std::filesystem::copy(from, to);
    std::ifstream in(to / kConfigFile);
    std::string config((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    // Its fields take the place of the same ones, which PEFT writes as null.
    const std::string field = "\"alora_invocation_tokens\": ";
    const size_t at = config.find(field + "null");
    if (at != std::string::npos) {
        config.replace(at, field.size() + 4, field + "[5, 6]");
    } else {
        config.insert(config.find('{') + 1, field + "[5, 6],");
    }
    std::filesystem::permissions(to / kConfigFile, std::filesystem::perms::owner_all);
    std::ofstream(to / kConfigFile) << config;
}

std::vector<TokenId> prompt_of(std::initializer_list<std::vector<TokenId>> parts) {
    std::vector<TokenId> prompt;
    for (const std::vector<TokenId>& part : parts) prompt.insert(prompt.end(), part.begin(), part.end());
    return prompt;
}

TEST(ActivatedAdapter, RowsBeforeTheLastInvocationAreTheBasesAndThoseAfterItTheAdapters) {
    const std::string model_name = "llama-scaled";
    const auto served = Served::load(goldens_dir() / "models" / model_name);
    ASSERT_NE(served, nullptr);
    const TempDir folder;
    const auto plain_path = goldens_dir() / "adapters" / model_name / "all-linear-r16";
    write_activated(plain_path, folder.path() / "activated");
    ASSERT_TRUE(served->registry().load("plain", plain_path).ok());
    const auto loaded = served->registry().load("activated", folder.path() / "activated");
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    const auto lease = served->registry().acquire("activated"), plain = served->registry().acquire("plain");
    ASSERT_TRUE(lease.ok() && plain.ok());
    ASSERT_TRUE(std::ranges::equal(lease->invocation_tokens(), kInvocation));

    // The same weights for the reference, at addresses of the host.
    const HostModel model(goldens_dir() / "models" / model_name);
    const auto checked = check_adapter(plain_path, *BaseModel::load(goldens_dir() / "models" / model_name));
    ASSERT_TRUE(checked.ok());
    FakeStore host(1);
    const PlacedAdapter placed = *place(*pack(**checked), host);
    const HostAdapter adapter(placed.view, model.config());
    const std::vector<HostUse> uses{{&adapter, 1.0}};

    const std::vector<TokenId> first = {11, 60, 3, 142, 90, 5, 7}, second = {33, 12, 6, 5, 77, 101, 9, 8, 30};
    const std::vector<std::pair<std::vector<TokenId>, size_t>> prompts = {
        {prompt_of({first, kInvocation, second}), first.size()},
        {prompt_of({kInvocation, first, kInvocation, second}), 2 + first.size()},
        {prompt_of({first, second, kInvocation}), first.size() + second.size()},
        {prompt_of({kInvocation, first, second}), 0},
        {prompt_of({first, second}), first.size() + second.size()},  // without it the base answers
    };
    model::Runner runner(served->executor());
    for (const auto& [prompt, begin] : prompts) {
        SCOPED_TRACE("invoked at " + std::to_string(begin) + " of " + std::to_string(prompt.size()));
        const uint32_t position = activation_position(prompt, lease->invocation_tokens());
        EXPECT_EQ(std::min<size_t>(position, prompt.size()), begin);
        const auto logits = runner.logits(prompt, true, model::RowAdapters{lease->uses(), position});
        const auto of_base = runner.logits(prompt, true, model::RowAdapters{});
        const auto of_plain = runner.logits(prompt, true, model::RowAdapters{plain->uses()});
        ASSERT_TRUE(logits.ok() && of_base.ok() && of_plain.ok());
        const size_t n = model.config().vocab_size;
        const auto row = [&](const std::vector<float>& all, size_t at) { return all.data() + at * n; };
        for (size_t at = 0; at < prompt.size(); ++at) {
            const std::span<const TokenId> known(prompt.data(), at + 1);
            const reference::Vector exact = model.last_logits(known, uses, begin);
            const std::vector<float> expected(exact.begin(), exact.end());
            EXPECT_LE(relative_error(row(*logits, at), expected.data(), n), kRelativeErrorMax) << "row " << at;
            // The tolerance tells them apart.
            const double from_base = relative_error(row(*of_base, at), expected.data(), n);
            const double from_plain = relative_error(row(*of_plain, at), expected.data(), n);
            if (at >= begin) {
                EXPECT_GT(from_base, 5 * kRelativeErrorMax) << "row " << at;
            }
            if (begin > 0) {
                EXPECT_GT(from_plain, 5 * kRelativeErrorMax) << "row " << at;
            }
        }
    }
}

TEST(ActivatedAdapter, MayHaveAScaleAndNoOthersBesideIt) {
    FakeStore store(4);
    Registry registry(BaseModel(small_config()), store, {.base_name = "base"});
    const AdapterFolder plain,
        activated(
            R"({"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj","v_proj"],"alora_invocation_tokens":[5,6]})");
    ASSERT_TRUE(registry.load("plain", plain.path()).ok());
    ASSERT_TRUE(registry.load("activated", activated.path()).ok());
    const AdapterTerm scaled[] = {{"activated", 0.5f}};
    const auto half = registry.acquire(scaled);
    ASSERT_TRUE(half.ok()) << half.error().message;
    EXPECT_TRUE(std::ranges::equal(half->invocation_tokens(), kInvocation));
    const AdapterTerm mix[] = {{"plain", 1.0f}, {"activated", 0.5f}};
    for (const Error& error : {registry.acquire(mix).error(), registry.register_mix("mix", mix).error()}) {
        EXPECT_EQ(error.code, ErrorCode::kAdapterUnsupported);
        EXPECT_THAT(error.message, HasSubstr("aLoRA"));
    }
    const AdapterTerm without[] = {{"plain", 1.0f}, {"activated", 0.0f}};
    EXPECT_TRUE(registry.acquire(without).ok());
}

}  // namespace
}  // namespace lorad::server::activated_adapter_test
