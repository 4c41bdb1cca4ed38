// The text crate without memory: an allocation of Rust that fails ends the process, so it has a reserve; what cannot be
// done even so is refused.
// Each test is a process of its own that uses up what the system gives it.
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "model/text/lorad_text.h"
#include "tests/model/text_goldens.h"
#include "tests/support/sanitized.h"

extern "C" void* lorad_text_malloc(size_t n_bytes);  // what the crate's C code calls

namespace lorad::model::text_memory_test {
namespace {

constexpr bool kHasLimits = !lorad::testing::kIsSanitized;  // a sanitizer's own address space is boundless

// All memory that malloc gives, down to the smallest pieces, until it is given back.
class NoMemory {
  public:
    NoMemory() {
        getrlimit(RLIMIT_AS, &before_);
        std::array<char, 64> text{};
        const int fd = ::open("/proc/self/statm", O_RDONLY);
        if (::read(fd, text.data(), text.size() - 1) <= 0) ::_exit(90);
        ::close(fd);
        rlimit full = before_;
        full.rlim_cur = std::strtoull(text.data(), nullptr, 10) * size_t(::sysconf(_SC_PAGESIZE));
        if (setrlimit(RLIMIT_AS, &full) != 0) ::_exit(91);
        for (size_t n = 1u << 20; n >= sizeof(void*); n /= 2) {
            while (void* piece = std::malloc(n)) {
                std::memcpy(piece, &first_, sizeof first_);
                first_ = piece;
            }
        }
    }
    void end() {
        setrlimit(RLIMIT_AS, &before_);
        while (first_ != nullptr) {
            void* piece = first_;
            std::memcpy(&first_, piece, sizeof first_);
            std::free(piece);
        }
    }

  private:
    rlimit before_{};
    void* first_ = nullptr;
};

void expect(bool is_so, int status) {
    if (!is_so) ::_exit(status);
}

struct TextMemory : ::testing::Test {
    void SetUp() override {
        if (!kHasLimits) GTEST_SKIP() << "sanitizers take all address space for themselves";
        std::ifstream file(lorad::testing::source_dir() / "deploy/demo-model/base/tokenizer.json");
        const std::string json(std::istreambuf_iterator<char>(file), {});
        LoradBytes error{};
        ASSERT_EQ(lorad_tokenizer_new(as_text(json), &tokenizer, &error), LORAD_TEXT_OK);
        expect_encodes("the first words", 0);
    }
    void TearDown() override { lorad_tokenizer_free(tokenizer); }

    static LoradText as_text(std::string_view text) {
        return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
    }

    int encode(std::string_view text) {
        LoradIds ids{};
        LoradBytes error{};
        const int code = lorad_tokenizer_encode(tokenizer, as_text(text), 0, &ids, &error);
        lorad_text_free_ids(ids);
        lorad_text_free_bytes(error);
        return code;
    }
    void expect_encodes(std::string_view text, int status) { expect(encode(text) == LORAD_TEXT_OK, status); }

    LoradTokenizer* tokenizer = nullptr;
};

TEST_F(TextMemory, CallsGoOnWithTheReserveUntilThereIsMemoryAgain) {
    const auto run = [&] {
        expect(lorad_text_reserve_is_whole() == 1, 1);
        NoMemory none;
        char text[400];
        // Far more, in all, than the reserve's 32 MiB: what is freed can be had again.
        for (size_t i = 0; i < 1000; ++i) {
            for (size_t at = 0; at + 8 < sizeof text; at += 8) std::snprintf(text + at, 9, "%07zu ", i * 50 + at);
            expect_encodes({text, sizeof text - 8}, 2);
        }
        expect(lorad_text_reserve_is_whole() == 0, 3);
        none.end();
        expect(lorad_text_reserve_is_whole() == 1, 4);
        expect_encodes("afterwards", 5);
        ::_exit(0);
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

// What a thread has for itself, and what it is to drop at its end, is noted when it first needs it.
TEST_F(TextMemory, AThreadThatComesLaterGoesOnAsWell) {
    const auto run = [&] {
        std::atomic<int> step = 0;
        std::thread late([&] {
            step = 1;
            while (step != 2) std::this_thread::yield();
            expect_encodes("the first words of this thread", 1);
            step = 3;
        });
        while (step != 1) std::this_thread::yield();
        NoMemory none;
        step = 2;
        while (step != 3) std::this_thread::yield();
        none.end();
        late.join();
        expect(lorad_text_reserve_is_whole() == 1, 2);
        ::_exit(0);
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

TEST_F(TextMemory, AnInputThatNeedsMoreThanThereIsIsRefused) {
    const std::string large(8u << 20, 'x');
    const auto run = [&] {
        NoMemory none;
        expect(encode(large) == LORAD_TEXT_NO_MEMORY, 1);
        expect_encodes("a small one", 2);
        none.end();
        expect_encodes(std::string_view(large).substr(0, 1u << 20), 3);
        ::_exit(0);
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

// The reserve was never drawn from, so it is as whole as it was.
TEST_F(TextMemory, AnAllocationThatIsLargerThanTheReserveIsOverWhenThereIsMemoryAgain) {
    const auto run = [&] {
        NoMemory none;
        expect(lorad_text_malloc(size_t{1} << 30) == nullptr, 1);
        expect(lorad_text_reserve_is_whole() == 0, 2);
        none.end();
        expect(lorad_text_reserve_is_whole() == 1, 3);
        ::_exit(0);
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lorad::model::text_memory_test
