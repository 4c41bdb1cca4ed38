// One key against another's share: uploads, readers of events, text.
#include <gmock/gmock.h>

#include "server/http/generate/tokenizing.h"
#include "tests/server/access_fixture.h"

namespace lorad::server::http_shares_test {
namespace {

using ::testing::HasSubstr;

class SharesTest : public AccessTest {
  protected:
    static std::string blob(const std::string& content) { return "/v1/adapters/blobs/sha256:" + sha256_of(content); }
    static std::vector<access::SharedPlaces::Place> take_all(access::SharedPlaces& pool, const std::string& tenant) {
        std::vector<access::SharedPlaces::Place> out;
        for (;;) {
            out.push_back(pool.take({tenant, {}}));
            if (!out.back().taken()) return out;
        }
    }
    static std::string text_body(size_t n, const std::string& more = {}) {
        return R"({"prompt":")" + std::string(n, 'a') + "\"" + more + "}";
    }
};

TEST_F(SharesTest, UploadsOfOneKeyLeavePlacesToAnother) {
    auto held = take_all(context.uploads_now, "red");
    EXPECT_EQ(context.uploads_now.n_taken(), kUploadsMax / 2);
    HttpReply refused = ask("PUT", blob("x"), key_of("red"), "x");
    EXPECT_EQ(refused.status, 429);
    EXPECT_THAT(refused.body, HasSubstr("lora_load_busy"));
    EXPECT_EQ(ask("PUT", blob("y"), key_of("blue"), "y").status, 201);
    held.clear();
    EXPECT_EQ(ask("PUT", blob("x"), key_of("red"), "x").status, 201);
}

TEST_F(SharesTest, ReadersOfEventsOfOneKeyLeavePlacesToAnother) {
    auto held = take_all(context.watchers_now, "red");
    EXPECT_EQ(ask("GET", "/v1/adapters/events", key_of("red")).status, 429);
    {
        HttpReply reader = ask("GET", "/v1/adapters/events", key_of("blue"));
        EXPECT_EQ(reader.status, 200);
        EXPECT_EQ(context.watchers_now.n_taken(), kWatchersMax / 2 + 1) << "for as long as the reply lives";
    }
    EXPECT_EQ(context.watchers_now.n_taken(), kWatchersMax / 2);
}

TEST_F(SharesTest, TextIsBoundedByTheContextBeforeItIsTokenized) {
    Answer whole = post("/tokenize", text_body(5000));
    EXPECT_EQ(whole.status, 401) << "this server has keys";
    HttpReply counted = ask("POST", "/tokenize", key_of("generate"), text_body(90000));
    EXPECT_EQ(counted.status, 200);
    EXPECT_THAT(counted.body, HasSubstr("\"count\":90000"));
    EXPECT_EQ(text_bytes_max(512), size_t(256) << 10);
    EXPECT_EQ(text_bytes_max(1 << 17), size_t(2) << 20);
    HttpRequest http;
    http.retry_after_s = std::make_shared<uint32_t>(0);
    Tokenizing tokenizing(context, http, TokensFor::kShowing);
    const std::string large((256 << 10) + 1, '1');
    EXPECT_EQ(tokenizing.of_text(large, false, "prompt").error().code, ErrorCode::kPayloadTooLarge);
    EXPECT_EQ(tokenizing.of_prompt(large, false, "prompt").error().code, ErrorCode::kContextLengthExceeded);
    EXPECT_EQ(tokenizing.of_text(large.substr(1), false, "prompt")->size(), size_t(256) << 10);
    EXPECT_EQ(context.texts_now.n_taken(), 0u);
    // Whoever has left is not worked for; others' texts are waited for.
    auto held = context.texts_now.take({}, context.texts_now.n_max());
    http.client_gone = [] { return true; };
    EXPECT_EQ(tokenizing.of_text("abc", false, "prompt").error().code, ErrorCode::kOverloaded);
}

TEST_F(SharesTest, TokenizingIsPaidForByTheKeysTokens) {
    // 100 tokens a minute.
    EXPECT_EQ(ask("POST", "/tokenize", key_of("few"), text_body(60)).status, 200);
    EXPECT_EQ(ask("POST", "/v1/completions/render", key_of("few"), text_body(35)).status, 200);
    // What it costs is known by its bytes beforehand, by its tokens afterwards.
    EXPECT_EQ(ask("POST", "/tokenize", key_of("few"), text_body(60)).status, 200);
    HttpReply used_up = ask("POST", "/tokenize", key_of("few"), text_body(60));
    EXPECT_EQ(used_up.status, 429);
    EXPECT_THAT(used_up.body, HasSubstr("rate_limited"));
    EXPECT_EQ(ask("POST", "/v1/messages/count_tokens", key_of("few"),
                  R"({"messages":[{"role":"user","content":"hi"}],"model":"base"})")
                  .status,
              429);
    EXPECT_EQ(ask("POST", "/tokenize", key_of("generate"), text_body(60)).status, 200) << "another key";
}

TEST_F(SharesTest, APromptThatIsRefusedForItsLengthIsPaidFor) {
    HttpReply first = ask("POST", "/v1/completions", key_of("few"), text_body(20000, R"(,"max_tokens":1)"));
    EXPECT_THAT(first.body, HasSubstr("context_length_exceeded"));
    EXPECT_EQ(ask("POST", "/v1/completions", key_of("few"), text_body(20000, R"(,"max_tokens":1)")).status, 429);
}

}  // namespace
}  // namespace lorad::server::http_shares_test
