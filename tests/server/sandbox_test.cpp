// Helper processes: what they are kept from, and that whatever a client's grammar or an adapter's template does to one
// ends one request.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/output/logits.h"
#include "proto/base/format.h"
#include "server/model_text.h"
#include "server/sandbox/confine.h"
#include "server/sandbox/grammar_compiler.h"
#include "server/sandbox/helper_pool.h"
#include "tests/support/sanitized.h"
#include "tests/support/soon.h"
#include "tests/support/source_dir.h"

namespace lorad::server::sandbox::sandbox_test {
namespace {

const std::string kBase = (lorad::testing::source_dir() / "deploy/demo-model/base").string();
constexpr uint32_t kVocabSize = 4096;
const std::vector<TokenId> kEnds = {2};

// A sanitizer's own memory is as much again, and it is slow.
constexpr uint64_t kMore = lorad::testing::kIsSanitized ? 8 : 1;

std::string program() {
    // build/X/tests/server_tests beside build/X/lorad
    return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lorad").string();
}

std::shared_ptr<const model::Tokenizer> tokenizer() {
    static const auto loaded = model::Tokenizer::load(kBase);
    return loaded.ok() ? *loaded : nullptr;
}

HelperPool::Options options() {
    HelperPool::Options out;
    out.program = program();
    out.setup.words = *tokenizer()->words();
    out.setup.vocab_size = tokenizer()->vocab_size();
    out.setup.eos_ids = kEnds;
    out.setup.limits.grammar_bytes *= kMore;
    out.setup.limits.template_bytes *= kMore;
    out.setup.limits.grammar_cpu_ms = 500 * uint32_t(kMore);
    out.setup.limits.template_cpu_ms = 500 * uint32_t(kMore);
    return out;
}

std::unique_ptr<HelperPool> pool(HelperPool::Options from = options()) {
    auto started = HelperPool::start(std::move(from));
    EXPECT_TRUE(started.ok()) << (started.ok() ? "" : started.error().message);
    return started.ok() ? std::move(*started) : nullptr;
}

Frame compile_job(model::GrammarKind kind, std::string source) {
    return {
        kCompile,
        {number_field(uint64_t(kind)), std::move(source), ids_field(kEnds), number_field(tokenizer()->vocab_size())}};
}
Frame render_job(std::string source) {
    return {kRender,
            {R"({"eos_token":"</s>"})", R"({"messages":[{"role":"user","content":"hi"}]})", number_field(0), "default",
             std::move(source)}};
}

// Status of a process that ran this.
int status_in_child(const std::function<int()>& run) {
    const pid_t child = fork();
    if (child == 0) _exit(run());
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
}

TEST(Sandbox, AHelperCannotReachWhatIsOutsideOfIt) {
    const pid_t other = getpid();
    const int status = status_in_child([&] {
        limit_process();
        if (!filter_calls()) return 99;
        // Each of these succeeds without the filter.
        if (open("/etc/passwd", O_RDONLY) >= 0) return 1;
        if (socket(AF_INET, SOCK_STREAM, 0) >= 0) return 2;
        if (kill(other, 0) == 0) return 3;
        if (mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
            return 4;
        rlimit limit{};
        if (prlimit(other, RLIMIT_CORE, nullptr, &limit) == 0) return 5;
        if (fork() >= 0) return 6;
        if (unlink("/nowhere") == 0 || errno != EPERM) return 7;
        void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, 4096, PROT_READ | PROT_EXEC) == 0) return 8;
        return 0;
    });
    ASSERT_TRUE(WIFEXITED(status)) << status;
    EXPECT_EQ(WEXITSTATUS(status), 0) << "what the number stands for is above";
}

TEST(Sandbox, TheKernelEndsWhatTakesTooLongOrTooMuch) {
    const auto begin = std::chrono::steady_clock::now();
    const int spun = status_in_child([] {
        if (!limit_time(100, 60'000)) return 99;
        std::atomic<uint64_t> n_turns = 0;
        for (;;) n_turns.fetch_add(1);
    });
    EXPECT_TRUE(WIFSIGNALED(spun) && WTERMSIG(spun) == SIGPROF) << spun;
    const int slept = status_in_child([] {
        if (!limit_time(60'000, 100)) return 99;
        std::this_thread::sleep_for(std::chrono::seconds(60));
        return 1;
    });
    EXPECT_TRUE(WIFSIGNALED(slept) && WTERMSIG(slept) == SIGALRM) << slept;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    const int grew = status_in_child([] {
        constexpr size_t kSome = size_t(4) << 20, kMuch = size_t(64) << 20;
        if (!limit_memory(process_bytes(), kMuch / 2)) return 99;
        if (mmap(nullptr, kSome, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) return 1;
        return mmap(nullptr, kMuch, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? 0 : 2;
    });
    EXPECT_EQ(grew, 0);
}

TEST(Sandbox, HelpersDoWhatTheDaemonWouldDo) {
    auto helpers = pool();
    ASSERT_TRUE(helpers);
    EXPECT_TRUE(helpers->filters_calls());
    HelperPool::Effort effort;
    auto took = helpers->run(
        compile_job(model::GrammarKind::kJsonSchema, R"({"type":"object","properties":{"a":{"type":"integer"}}})"),
        effort);
    ASSERT_TRUE(took.ok()) << took.error().message;
    ASSERT_EQ(took->size(), 1u);
    EXPECT_GT(field_number((*took)[0]), 1000u) << "bytes";
    EXPECT_GT(effort.cpu_seconds, 1e-5);
    EXPECT_LT(effort.cpu_seconds, 1.0);
    auto text = helpers->run(render_job("{{ messages[0].content }}{{ eos_token }}"));
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_EQ((*text)[0], "hi</s>");
    EXPECT_TRUE(helpers->run({kCheck, {"{{ a }}"}}).ok());
    // Refusals are those of this process.
    auto refused = helpers->run(compile_job(model::GrammarKind::kRegex, "("));
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidRequest);
    EXPECT_EQ(refused.error().message,
              model::Grammar::create(*tokenizer(), model::GrammarKind::kRegex, "(", kEnds, kVocabSize).error().message);
    EXPECT_EQ(helpers->run({kCheck, {"{% if %}"}}).error().code, ErrorCode::kAdapterInvalid);
    EXPECT_EQ(helpers->run(render_job("{{ raise_exception('no') }}")).error().message, "no");
}

TEST(Sandbox, AFolderMayBringAllItsTemplates) {
    auto helpers = pool();
    ASSERT_TRUE(helpers);
    Frame job = render_job("default");
    while (job.fields.size() < 3 + 2 * (model::kNamedTemplatesMax + 1)) {
        job.fields.push_back(format("t{}", job.fields.size()));
        job.fields.push_back("named");
    }
    auto done = helpers->run(job);
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(done->front(), "default");
    while (job.fields.size() <= kFrameFieldsMax) job.fields.push_back("x");
    EXPECT_EQ(helpers->run(job).error().code, ErrorCode::kInputTooComplex) << "which ends no helper";
    EXPECT_TRUE(helpers->run(render_job("again")).ok());
}

TEST(Sandbox, WhateverHappensToAHelperIsOneAnswer) {
    auto helpers = pool();
    ASSERT_TRUE(helpers);
    const pid_t process = helpers->process();
    std::string pairs, patterns;
    for (int i = 0; i < 60; ++i) pairs += "{% set ns.a=[ns.a,ns.a] %}{% set ns.b=[ns.b,ns.b] %}";
    for (int i = 5; i < 25; ++i)
        patterns += format(R"({}{{"type":"string","pattern":"a.{{{}}}b"}})", i == 5 ? "" : ",", i);
    const Frame jobs[] = {
        // Time, memory, both, and a panic.
        render_job("{% set ns = namespace(a=[1],b=[1]) %}" + pairs + "{{ ns.a == ns.b }}"),
        compile_job(model::GrammarKind::kJsonSchema, R"({"allOf":[)" + patterns + "]}"),
        compile_job(model::GrammarKind::kLark,
                    [] {
                        std::string source = "start:";
                        for (int i = 0; i < 20000; ++i) source += R"( "a"?)";
                        return source;
                    }()),
        compile_job(model::GrammarKind::kLark, "start: a::0\na::_: \"x\" a::incr(_)\n"),
    };
    for (const Frame& job : jobs) {
        auto done = helpers->run(job);
        ASSERT_FALSE(done.ok()) << job.fields[1].substr(0, 60);
        EXPECT_NE(done.error().code, ErrorCode::kInternal);
        EXPECT_NE(done.error().code, ErrorCode::kSandboxUnavailable);
        EXPECT_LT(done.error().message.size(), 600u);
        EXPECT_EQ(done.error().message.find("panic"), std::string::npos) << done.error().message;
        EXPECT_TRUE(helpers->run(compile_job(model::GrammarKind::kRegex, "a")).ok());
    }
    EXPECT_EQ(helpers->process(), process) << "the process that forks them has not noticed";
}

TEST(Sandbox, HelpersGetNothingOfTheEnvironmentAndOneDescriptor) {
    setenv("LORAD_API_KEY", "secret", 1);
    auto helpers = pool();
    unsetenv("LORAD_API_KEY");
    ASSERT_TRUE(helpers);
    std::ifstream file(format("/proc/{}/environ", helpers->process()), std::ios::binary);
    const std::string environment((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    EXPECT_EQ(environment.find("secret"), std::string::npos);
    // The socket of a helper that is being forked is there for a moment.
    EXPECT_TRUE(lorad::testing::soon([&] {
        std::error_code error;
        int highest = -1;
        for (const auto& entry : std::filesystem::directory_iterator(format("/proc/{}/fd", helpers->process()), error))
            highest = std::max(highest, std::stoi(entry.path().filename().string()));
        return highest == kControlFd;
    }));
}

TEST(Sandbox, TheProcessThatForksThemIsReplaced) {
    auto helpers = pool();
    ASSERT_TRUE(helpers);
    const pid_t first = helpers->process();
    // Once a second at most.
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    kill(first, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    auto done = helpers->run(compile_job(model::GrammarKind::kRegex, "a"));
    EXPECT_TRUE(done.ok()) << done.error().message;
    EXPECT_NE(helpers->process(), first);
    helpers.reset();
    EXPECT_EQ(waitpid(first, nullptr, WNOHANG), -1) << "nothing is left behind";
}

TEST(Sandbox, AProgramThatIsNoneIsAnError) {
    HelperPool::Options none = options();
    none.program = "/nonexistent";
    EXPECT_EQ(HelperPool::start(std::move(none)).error().code, ErrorCode::kSandboxUnavailable);
    HelperPool::Options other = options();
    other.program = "/bin/false";
    EXPECT_EQ(HelperPool::start(std::move(other)).error().code, ErrorCode::kSandboxUnavailable);
}

class Grammars : public ::testing::Test {
  protected:
    Result<std::unique_ptr<TokenConstraint>> compile(std::string source, const access::Holder& holder = {"a", ""},
                                                     proto::StructureKind kind = proto::StructureKind::kRegex) {
        return compiler.compile({kind, std::move(source), "regex"}, kEnds, tokenizer()->vocab_size(), holder);
    }

    std::unique_ptr<HelperPool> helpers = pool();
    Admission admission{{.n_running_max = 2}};
    GrammarCompiler compiler{tokenizer(), helpers.get(), admission, {.kept_bytes_max = 64 << 20, .n_kept_max = 4}};
};

TEST_F(Grammars, OneIsCompiledOnceForAllWhoAskTheSame) {
    ASSERT_TRUE(compile("[a-c]+").ok());
    auto constraint = compile("[a-c]+", {"b", ""});
    ASSERT_TRUE(constraint.ok());
    EXPECT_EQ(compiler.n_compiled(), 1u);
    ASSERT_TRUE(compile("[a-d]+").ok());
    EXPECT_EQ(compiler.n_compiled(), 2u);
    // What one follows does not change what the next one begins with.
    std::vector<uint32_t> first, second;
    ASSERT_TRUE((*constraint)->next_mask(first).ok());
    const TokenId a = *tokenizer()->token_id("a");
    ASSERT_TRUE((*constraint)->accept(a).ok());
    ASSERT_TRUE((*compile("[a-c]+"))->next_mask(second).ok());
    EXPECT_EQ(first, second);
    ASSERT_TRUE((*constraint)->next_mask(second).ok());
    EXPECT_NE(first, second) << "now the end may come";
    // The least used goes.
    for (const char* other : {"1", "2", "3", "4"}) ASSERT_TRUE(compile(other).ok());
    ASSERT_TRUE(compile("[a-c]+").ok());
    EXPECT_EQ(compiler.n_compiled(), 7u);
}

TEST_F(Grammars, ManyWhoAskTheSameAtOnceTakeOnePermit) {
    std::vector<std::thread> threads;
    std::atomic<int> n_ok = 0;
    // More than one holder may have waiting.
    for (uint32_t i = 0; i < Admission::kWaitingMax; ++i)
        threads.emplace_back([&] { n_ok += compile("(ab|cd)+x").ok() ? 1 : 0; });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(n_ok.load(), int(Admission::kWaitingMax));
    EXPECT_EQ(compiler.n_compiled(), 1u);
}

TEST_F(Grammars, WhoeverHasManyWaitingLeavesPlacesToOthers) {
    // Nobody gets on before all have asked.
    std::vector<Admission::Permit> held;
    for (const char* one : {"x", "y"}) {
        auto permit = admission.enter({one, ""});
        ASSERT_TRUE(permit.ok());
        held.push_back(std::move(*permit));
    }
    std::vector<std::thread> threads;
    std::atomic<uint32_t> n_refused = 0;
    for (uint32_t i = 0; i < Admission::kWaitingMax; ++i) {
        threads.emplace_back([&, i] {
            auto made = compile(format("a{{{}}}", i + 1));
            // Not those whose wait was too long.
            const bool is_refused = !made.ok() && made.error().code == ErrorCode::kOverloaded;
            n_refused +=
                is_refused && made.error().message.find("wait to be read as may") != std::string::npos ? 1u : 0u;
        });
    }
    EXPECT_TRUE(lorad::testing::soon([&] { return n_refused >= Admission::kWaitingMax / 2; }))
        << "one holder has at most half of the places";
    std::atomic<bool> other_ok = false;
    threads.emplace_back([&] { other_ok = compile("b+", {"other", ""}).ok(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that it asks while the places are taken
    held.clear();
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(other_ok);
}

// A clock that goes on by 100 ms whenever somebody looks.
std::function<std::chrono::steady_clock::time_point()> hasty_clock(std::chrono::steady_clock::time_point& at) {
    return [&at] { return at += std::chrono::milliseconds(100); };
}

TEST(AdmissionTest, ProcessorTimeIsBoundedWhileAnswersAreComputed) {
    std::chrono::steady_clock::time_point at{};
    bool is_busy = true;
    Admission admission(
        {.n_running_max = 4, .n_processors = 2, .is_busy = [&] { return is_busy; }, .now = hasty_clock(at)});
    const access::Holder greedy{"greedy", ""}, other{"other", ""};
    const auto seconds_for = [&](const access::Holder& holder) {
        const auto begin = at;
        EXPECT_TRUE(admission.enter(holder).ok()) << holder.tenant;
        return std::chrono::duration<double>(at - begin).count();
    };
    admission.enter(greedy)->charge(0.45);
    EXPECT_LT(seconds_for(greedy), 1.0) << "half a second at once";
    admission.enter(greedy)->charge(1.0);
    EXPECT_LT(seconds_for(other), 1.0) << "whoever has had little does not wait for whoever has had much";
    // A second is forgotten in five: a tenth of two processors.
    const double waited = seconds_for(greedy);
    EXPECT_GT(waited, 2.5);
    EXPECT_LT(waited, 6.0);
    admission.enter(greedy)->charge(0.7);
    is_busy = false;
    EXPECT_LT(seconds_for(greedy), 1.0) << "where no answers are computed nobody waits";
    is_busy = true;
    at += std::chrono::minutes(10);
    EXPECT_LT(seconds_for(greedy), 1.0);
}

// A half of one of two processors, after a second at once; whoever owes nothing is let in all the same.
TEST(AdmissionTest, ProcessorTimeOfAllTogetherIsBounded) {
    std::chrono::steady_clock::time_point at{};
    bool goes_on = false;
    Admission admission({.n_running_max = 4,
                         .n_processors = 2,
                         .is_busy = [] { return true; },
                         .now = [&] { return goes_on ? at += std::chrono::milliseconds(100) : at; }});
    const auto name = [](int i) { return access::Holder{format("t{}", i), ""}; };
    for (int i = 0; i < 30; ++i) admission.enter(name(i))->charge(0.4);
    goes_on = true;
    auto begin = at;
    EXPECT_TRUE(admission.enter({"another", ""}).ok());
    EXPECT_LT(at - begin, std::chrono::seconds(1));
    // Alone it would not wait, as 0.4 s are within its own bound. In two seconds it owes nothing any more.
    begin = at;
    EXPECT_TRUE(admission.enter(name(29)).ok());
    EXPECT_GT(at - begin, std::chrono::seconds(1));
    admission.enter({"large", ""})->charge(5.0);
    const Result<Admission::Permit> late = admission.enter({"large", ""});
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, ErrorCode::kOverloaded);
}

TEST(AdmissionTest, WithoutTenantsAddressesHaveTheirTime) {
    std::chrono::steady_clock::time_point at{};
    Admission admission(
        {.n_running_max = 4, .n_processors = 2, .is_busy = [] { return true; }, .now = hasty_clock(at)});
    admission.enter({"", "10.0.0.1"})->charge(0.9);
    auto begin = at;
    ASSERT_TRUE(admission.enter({"", "10.0.0.2"}).ok());
    EXPECT_LT(at - begin, std::chrono::seconds(1));
    begin = at;
    ASSERT_TRUE(admission.enter({"", "10.0.0.1"}).ok());
    EXPECT_GT(at - begin, std::chrono::seconds(1));
}

// Schemas that no helper gets done with.
std::string endless_schema() {
    std::string patterns;
    for (int i = 5; i < 25; ++i)
        patterns += format("{}{{\"type\":\"string\",\"pattern\":\"a.{{{}}}b\"}}", i == 5 ? "" : ",", i);
    return "{\"allOf\":[" + patterns + "]}";
}

// The processes that this one has forked, while they are there: how they give way.
std::vector<int> niceness_of_children(pid_t process) {
    std::ifstream file(format("/proc/{0}/task/{0}/children", process));
    std::vector<int> found;
    for (pid_t child = 0; file >> child;) found.push_back(getpriority(PRIO_PROCESS, id_t(child)));
    return found;
}

TEST(Sandbox, WhoeverHasHadMuchComesLast) {
    auto helpers = pool();
    ASSERT_TRUE(helpers);
    const int own = getpriority(PRIO_PROCESS, 0);
    for (const int niceness : {kNicer, kNicest}) {
        std::atomic<bool> is_done = false;
        std::thread runs([&] {
            HelperPool::Effort effort{.niceness = niceness};
            EXPECT_FALSE(helpers->run(compile_job(model::GrammarKind::kJsonSchema, endless_schema()), effort).ok());
            is_done = true;
        });
        int most = 0;
        while (!is_done) {
            for (const int one : niceness_of_children(helpers->process())) most = std::max(most, one);
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        runs.join();
        EXPECT_EQ(most, std::min(niceness == kNicest ? kNicest : own + kNicer, kNicest));
    }
    std::chrono::steady_clock::time_point at{};
    Admission admission({.n_running_max = 4, .n_processors = 2, .now = [&] { return at; }});
    const access::Holder greedy{"greedy", ""};
    admission.enter(greedy)->charge(0.03);
    EXPECT_EQ(admission.enter(greedy)->niceness(), kNicer);
    admission.enter(greedy)->charge(0.03);
    EXPECT_EQ(admission.enter(greedy)->niceness(), kNicest);
    EXPECT_EQ(admission.enter({"other", ""})->niceness(), kNicer);
    at += std::chrono::seconds(1);
    EXPECT_EQ(admission.enter(greedy)->niceness(), kNicer) << "forgotten, at a tenth of two processors";
}

// A helper that is ended does not say what it took: then what it may have taken counts.
TEST_F(Grammars, WhatACompilationTookIsItsTenants) {
    HelperPool::Options with = options();
    std::unique_ptr<HelperPool> some = pool(std::move(with));
    HelperPool::Effort effort;
    EXPECT_EQ(some->run(compile_job(model::GrammarKind::kJsonSchema, endless_schema()), effort).error().code,
              ErrorCode::kInputTooComplex);
    EXPECT_GE(effort.cpu_seconds, 0.05)
        << "it ends at half a second here, or before that where it has taken its memory, sooner on a faster machine";
    EXPECT_LE(effort.cpu_seconds, 0.5 * double(kMore));
    // Through the compiler: beside answers the next grammar of this tenant waits until enough of it is forgotten,
    // another's does not.
    std::chrono::steady_clock::time_point at{};
    Admission busy({.n_running_max = 2, .n_processors = 0.01, .is_busy = [] { return true; }, .now = hasty_clock(at)});
    GrammarCompiler beside(tokenizer(), some.get(), busy, {});
    const auto seconds_for = [&](const char* tenant, std::string source, bool is_schema) {
        const auto begin = at;
        (void)beside
            .compile(
                {is_schema ? proto::StructureKind::kJsonSchema : proto::StructureKind::kRegex, std::move(source), "x"},
                kEnds, tokenizer()->vocab_size(), {tenant, ""})
            .ok();
        return std::chrono::duration<double>(at - begin).count();
    };
    // 2.5 ms at once, and a thousandth of a processor: 50 ms are not forgotten in the 15 s that one waits.
    EXPECT_LT(seconds_for("greedy", endless_schema(), true), 1.0);
    EXPECT_GT(seconds_for("greedy", "[a-c]+", false), 14.0);
}

// Copying it takes milliseconds: as many copies at a time as there are permits.
TEST_F(Grammars, ALargeOneIsCopiedUnderAPermit) {
    std::string large;
    for (int i = 0; i < 60'000; ++i) large += "[^a]";
    const auto constraint = compile(large);
    ASSERT_TRUE(constraint.ok()) << constraint.error().message;
    ASSERT_TRUE(compile("[a-c]+").ok());
    std::atomic<bool> is_copied = false;
    std::thread asks;
    {
        const auto one = admission.enter({"x", ""}), two = admission.enter({"y", ""});
        ASSERT_TRUE(one.ok() && two.ok());
        ASSERT_TRUE(compile("[a-c]+").ok()) << "a small one waits for nobody";
        asks = std::thread([&] { is_copied = compile(large).ok(); });
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_FALSE(is_copied);
    }
    asks.join();
    EXPECT_TRUE(is_copied);
    EXPECT_EQ(compiler.n_compiled(), 2u);
}

TEST_F(Grammars, ARefusalIsKeptToo) {
    std::string chain = "start: r0\n";
    for (int i = 0; i < 4000; ++i) chain += format("r{}: r{}\n", i, i + 1);
    auto refused = compile(chain + "r4000: \"a\"", {}, proto::StructureKind::kLark);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInputTooComplex);
    EXPECT_EQ(refused.error().param, "regex");
    kill(helpers->process(), SIGKILL);
    EXPECT_EQ(compile(chain + "r4000: \"a\"", {}, proto::StructureKind::kLark).error().message,
              refused.error().message);
}

TEST_F(Grammars, WithoutHelpersNoneIsCompiled) {
    GrammarCompiler without(tokenizer(), nullptr, admission, {});
    auto refused = without.compile({proto::StructureKind::kRegex, "a", "regex"}, kEnds, tokenizer()->vocab_size(), {});
    EXPECT_EQ(refused.error().code, ErrorCode::kSandboxUnavailable);
}

TEST(GrammarMemoryTest, GrammarsTakeNoMoreThanTheirShare) {
    auto memory = std::make_shared<GrammarMemory>();
    auto grammar =
        model::Grammar::create(*tokenizer(), model::GrammarKind::kRegex, "[ab]*", kEnds, tokenizer()->vocab_size());
    ASSERT_TRUE(grammar.ok());
    EXPECT_GT((*grammar)->n_bytes(), 1000u);
    EXPECT_GE((*grammar)->n_bytes_compiling(), (*grammar)->n_bytes());
    const GrammarConstraint first(std::move(*grammar), tokenizer()->vocab_size(), {}, memory, {"a", ""});
    std::vector<std::unique_ptr<TokenConstraint>> copies;
    Status status = ok_status();
    while (status.ok() && copies.size() < 2 * GrammarMemory::kAllMibMax) {
        Result<std::unique_ptr<TokenConstraint>> copy = first.duplicate();
        status = copy.ok() ? ok_status() : Status(copy.error());
        if (copy.ok()) copies.push_back(std::move(*copy));
    }
    EXPECT_EQ(status.error().code, ErrorCode::kOverloaded);
    EXPECT_LE(copies.size(), GrammarMemory::kAllMibMax / 2);
    EXPECT_GT(memory->all_mib.n_taken(), GrammarMemory::kAllMibMax / 4);
    copies.clear();
    EXPECT_EQ(memory->all_mib.n_taken(), 0u);
}

Result<std::vector<model::NamedTemplate>> own(const char* source) {
    return std::vector<model::NamedTemplate>{{std::string(model::kDefaultTemplate), source}};
}

TEST(IsolatedText, AdaptersTemplatesGiveWhatTheyGaveInThisProcess) {
    auto inside = ModelText::load(kBase), outside = ModelText::load(kBase);
    ASSERT_TRUE(inside.ok() && outside.ok());
    (*outside)->isolate(pool(), {.n_running_max = 2});
    ChatInput chat{.messages_json = R"([{"role":"user","content":"hi \u00e9"}])"};
    chat.template_digest = "d1";
    chat.template_sources = [&] {
        return own("{{ bos_token }}{% for m in messages %}{{ m | tojson }}{% endfor %}{{ strftime_now('%Y')|length "
                   "}}{{ eos_token }}");
    };
    EXPECT_EQ((*inside)->render_chat(chat)->text, (*outside)->render_chat(chat)->text);
    EXPECT_TRUE((*outside)->check_template("{{ a }}").ok());
    EXPECT_FALSE((*outside)->check_template("{{ a ").ok());
    // The model's own template stays inside, and works without helpers.
    (*outside)->isolate(nullptr, {.n_running_max = 0});
    EXPECT_EQ((*outside)->render_chat(chat).error().code, ErrorCode::kSandboxUnavailable);
    chat.template_digest.clear();
    EXPECT_EQ((*inside)->render_chat(chat)->text, (*outside)->render_chat(chat)->text);
}

// What docs/adr/0016 says a rendering costs: printed for whoever changes it, and far within what hangs.
TEST(IsolatedText, ARenderingCostsLittleMoreThanInside) {
    auto text = ModelText::load(kBase);
    ASSERT_TRUE(text.ok());
    (*text)->isolate(pool(), {.n_running_max = 2});
    ChatInput chat{
        .messages_json =
            R"([{"role":"user","content":"hi"},{"role":"assistant","content":"yes"},{"role":"user","content":"and?"}])"};
    chat.template_digest = "d1";
    chat.template_sources = [] {
        return own("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}");
    };
    ASSERT_TRUE((*text)->render_chat(chat).ok());
    constexpr int kTimes = 200;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) ASSERT_TRUE((*text)->render_chat(chat).ok());
    const double each_us =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kTimes;
    RecordProperty("microseconds", int(each_us));
    std::printf("%.0f us for each\n", each_us);
    EXPECT_LT(each_us, 50'000.0);
}

}  // namespace
}  // namespace lorad::server::sandbox::sandbox_test
