// Kept answers of /v1/responses over real sockets: conversations that go on by id, items that are referred to, what is
// shown and forgotten, and whose it is.
#include <filesystem>

#include <gmock/gmock.h>

#include "server/http/generate/response_store.h"
#include "tests/server/access_fixture.h"

namespace lorad::server::http_response_store_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<ResponseStore> memory_store(const ResponseStoreOptions& options = {}) {
    auto created = ResponseStore::create(options, nullptr);
    EXPECT_TRUE(created.ok());
    return std::move(*created);
}

class ResponseStoreTest : public HttpTest {
  protected:
    ResponseStoreTest() { context.responses = store_.get(); }

    std::string field(const std::string& body, const std::string& name) {
        auto document = parse_json(body);
        return document.ok() ? std::string(*document->root().string_or(name, "")) : body;
    }
    std::string text_in(const std::string& body) {
        auto document = parse_json(body);
        return std::string(
            *document->root().find("output")->as_array()->at(0).find("content")->as_array()->at(0).string_or("text",
                                                                                                             ""));
    }
    std::string ask(const std::string& fields) {
        Answer answer = post("/v1/responses", "{\"max_output_tokens\":2," + fields + "}");
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.body;
    }
    std::string continued_text(const std::string& prompt) {
        return text_of(fake_continuation(bytes_of(prompt), kNoAdapterSlot, 2));
    }

    std::unique_ptr<ResponseStore> store_ = memory_store();
};

TEST_F(ResponseStoreTest, AConversationGoesOnByTheLastResponsesId) {
    const std::string first = ask(R"("input":"ab","instructions":"I")");
    EXPECT_EQ(text_in(first), continued_text("Iab"));
    EXPECT_THAT(first, HasSubstr(R"("store":true)"));
    const std::string second = ask(R"("input":"cd","previous_response_id":")" + field(first, "id") + "\"");
    const std::string so_far = "ab" + text_in(first) + "cd";
    EXPECT_EQ(text_in(second), continued_text(so_far)) << "instructions are of one request alone";
    EXPECT_EQ(field(second, "previous_response_id"), field(first, "id"));
    const std::string third = ask(R"("input":"e","previous_response_id":")" + field(second, "id") + "\"");
    EXPECT_EQ(text_in(third), continued_text(so_far + text_in(second) + "e"));
    // What it stands on may be forgotten meanwhile.
    EXPECT_EQ(del("/v1/responses/" + field(first, "id")).status, 200);
    EXPECT_EQ(text_in(ask(R"("input":"e","previous_response_id":")" + field(second, "id") + "\"")), text_in(third));
}

TEST_F(ResponseStoreTest, AnswersAreShownAsTheyWereAndForgottenWhenAsked) {
    const std::string body = ask(R"("input":"ab","metadata":{"k":"v"})");
    const std::string path = "/v1/responses/" + field(body, "id");
    EXPECT_EQ(get(path).body, body);
    EXPECT_EQ(get(path + "?stream=true").param, "stream");
    Answer removed = del(path);
    EXPECT_EQ(removed.body, R"({"id":")" + field(body, "id") + R"(","object":"response","deleted":true})");
    EXPECT_EQ(get(path).status, 404);
    EXPECT_EQ(del(path).status, 404);
    Answer gone = post("/v1/responses", R"({"input":"x","previous_response_id":")" + field(body, "id") + "\"}");
    EXPECT_EQ(gone.status, 400);
    EXPECT_EQ(gone.param, "previous_response_id");
    EXPECT_EQ(store_->counts().n, 0u);
    EXPECT_EQ(store_->counts().bytes, 0u);
}

TEST_F(ResponseStoreTest, StreamsAreKeptWhenTheyEndAndWhatIsNotToBeKeptIsNot) {
    auto stream =
        client().Post("/v1/responses", R"({"input":"ab","max_output_tokens":2,"stream":true})", "application/json");
    const size_t at = stream->body.rfind("data: ");
    auto last = parse_json(std::string_view(stream->body).substr(at + 6));
    ASSERT_TRUE(last.ok());
    const std::string response = last->root().find("response")->dump();
    EXPECT_EQ(get("/v1/responses/" + field(response, "id")).body, response);
    const std::string unkept = ask(R"("input":"ab","store":false)");
    EXPECT_THAT(unkept, HasSubstr(R"("store":false)"));
    EXPECT_EQ(get("/v1/responses/" + field(unkept, "id")).status, 404);
    EXPECT_EQ(store_->counts().n, 1u);
}

TEST_F(ResponseStoreTest, ItemsAreListedAndReferredTo) {
    const std::string body =
        ask(R"("input":[{"role":"user","content":"a"},{"type":"message","id":"mine","role":"user","content":"b"}])");
    const std::string path = "/v1/responses/" + field(body, "id") + "/input_items";
    Answer listed = get(path + "?order=asc");
    auto document = parse_json(listed.body);
    std::vector<JsonValue> data = *document->root().find("data")->as_array();
    ASSERT_EQ(data.size(), 2u);
    const std::string first_id(*data[0].string_or("id", ""));
    EXPECT_THAT(first_id, ::testing::StartsWith("msg_"));
    EXPECT_EQ(data[1].dump(),
              R"({"id":"mine","type":"message","role":"user","content":[{"type":"input_text","text":"b"}]})");
    EXPECT_EQ(field(listed.body, "first_id"), first_id);
    EXPECT_THAT(get(path).body, HasSubstr(R"("first_id":"mine")")) << "the latest first";
    EXPECT_THAT(get(path + "?limit=1").body, HasSubstr(R"("has_more":true)"));
    EXPECT_THAT(get(path + "?order=asc&after=" + first_id).body,
                HasSubstr(R"("first_id":"mine","last_id":"mine","has_more":false)"));
    EXPECT_EQ(get(path + "?after=nobody").param, "after");
    EXPECT_EQ(get(path + "?limit=0").param, "limit");
    EXPECT_EQ(get(path + "?order=up").param, "order");
    auto answer = parse_json(body);
    const std::string said(*answer->root().find("output")->as_array()->at(0).string_or("id", ""));
    const std::string next = ask(R"("input":[{"type":"item_reference","id":"mine"},{"type":"item_reference","id":")" +
                                 said + R"("},{"role":"user","content":"?"}])");
    EXPECT_EQ(text_in(next), continued_text("b" + text_in(body) + "?"));
    EXPECT_EQ(post("/v1/responses", R"({"input":[{"type":"item_reference","id":"nobody"}]})").param, "input[0].id");
}

TEST_F(ResponseStoreTest, InputTokensAreCountedWithoutComputing) {
    const std::string first = ask(R"("input":"ab")");
    const auto n_steps = runner.n_steps();
    EXPECT_EQ(post("/v1/responses/input_tokens", R"({"input":"hello","instructions":"I"})").body,
              R"({"object":"response.input_tokens","input_tokens":6})");
    const size_t n = 2 + text_in(first).size() + 1;
    EXPECT_EQ(
        post("/v1/responses/input_tokens", R"({"input":"x","previous_response_id":")" + field(first, "id") + "\"}")
            .body,
        R"({"object":"response.input_tokens","input_tokens":)" + std::to_string(n) + "}");
    EXPECT_EQ(runner.n_steps(), n_steps);
    EXPECT_EQ(store_->counts().n, 1u);
}

TEST_F(HttpTest, WithoutAStoreWhatNeedsOneIsRefusedByName) {
    EXPECT_EQ(post("/v1/responses", R"({"input":"a","store":true})").param, "store");
    EXPECT_EQ(post("/v1/responses", R"({"input":"a","previous_response_id":"resp_1"})").param, "previous_response_id");
    EXPECT_EQ(get("/v1/responses/resp_1").status, 404);
    EXPECT_THAT(post("/v1/responses", R"({"input":"a","max_output_tokens":1})").body, HasSubstr(R"("store":false)"));
    EXPECT_THAT(post("/v1/responses/input_tokens", R"({"input":"abc"})").body, HasSubstr(R"("input_tokens":3)"));
}

TEST_F(AccessTest, KeptResponsesAreTheirTenantsAlone) {
    auto responses = memory_store();
    context.responses = responses.get();
    HttpReply mine =
        ask_as("red", "POST", "/v1/responses",
               R"({"input":[{"id":"item_of_red","role":"user","content":"secret"}],"max_output_tokens":1})");
    ASSERT_EQ(mine.status, 200) << mine.body;
    const size_t at = mine.body.find("resp_");
    const std::string id = mine.body.substr(at, 21);
    EXPECT_EQ(ask_as("red", "GET", "/v1/responses/" + id).body, mine.body);
    for (const char* other : {"blue", "generate", "admin"}) {
        EXPECT_EQ(ask_as(other, "GET", "/v1/responses/" + id).status, 404) << other;
        EXPECT_EQ(ask_as(other, "GET", "/v1/responses/" + id + "/input_items").status, 404) << other;
        EXPECT_EQ(ask_as(other, "DELETE", "/v1/responses/" + id).status, 404) << other;
        EXPECT_EQ(
            ask_as(other, "POST", "/v1/responses", R"({"input":"x","previous_response_id":")" + id + "\"}").status, 400)
            << other;
        EXPECT_EQ(ask_as(other, "POST", "/v1/responses", R"({"input":[{"type":"item_reference","id":"item_of_red"}]})")
                      .status,
                  400)
            << other;
    }
    EXPECT_EQ(ask_as("red", "DELETE", "/v1/responses/" + id).status, 200);
}

proto::StoredResponse stored(const std::string& tenant, int number, int64_t created_s, size_t bytes = 1000) {
    proto::StoredResponse out;
    char id[32];
    std::snprintf(id, sizeof id, "resp_%016x", unsigned(number));
    out.id = id;
    out.tenant = tenant;
    out.created_s = created_s;
    out.json = "{\"id\":\"" + out.id + "\"}";
    out.items = {std::make_shared<const proto::ResponseItem>(proto::ResponseItem{
        "msg_" + std::to_string(number),
        "{\"id\":\"msg_" + std::to_string(number) + "\",\"text\":\"" + std::string(bytes, 'x') + "\"}"})};
    out.input_end = 1;
    return out;
}

TEST(ResponseStore, IsBoundedAndTheLargestTenantsOldestMakeWay) {
    ResponseStoreOptions options;
    options.bytes_max = 64 << 10;
    auto store = memory_store(options);
    ASSERT_TRUE(store->put(stored("small", 1, 0x7fffffff)).ok());
    for (int i = 2; i < 200; ++i) {
        ASSERT_TRUE(store->put(stored("large", i, 0x7fffffff)).ok());
        ASSERT_LE(store->counts().bytes, options.bytes_max);
    }
    EXPECT_NE(store->find("small", stored("small", 1, 0).id), nullptr) << "one tenant cannot push another's out";
    EXPECT_EQ(store->find("large", stored("large", 2, 0).id), nullptr);
    EXPECT_EQ(store->find_item("large", "msg_2"), nullptr);
    EXPECT_NE(store->find("large", stored("large", 199, 0).id), nullptr);
    EXPECT_NE(store->find_item("large", "msg_199"), nullptr);
    EXPECT_EQ(store->put(stored("large", 500, 0x7fffffff, 32 << 10)).error().code, ErrorCode::kStorageFull);
    options.n_max = 2;
    store = memory_store(options);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(store->put(stored("a", i, 0x7fffffff)).ok());
    EXPECT_EQ(store->counts().n, 2u);
}

TEST(ResponseStore, WhatIsTooOldIsGone) {
    int64_t now = 1000;
    ResponseStoreOptions options;
    options.age_max_s = 100;
    options.now_s = [&] { return now; };
    auto store = memory_store(options);
    ASSERT_TRUE(store->put(stored("a", 1, now)).ok());
    now = 1100;
    EXPECT_NE(store->find("a", stored("a", 1, 0).id), nullptr);
    now = 1101;
    EXPECT_EQ(store->find("a", stored("a", 1, 0).id), nullptr);
    EXPECT_EQ(store->counts().bytes, 0u);
}

// A body may have 64 levels and 2^18 values; the answer's tools are as deep, and the file has them one level deeper,
// and more values.
TEST(ResponseStore, WhatIsAsDeepAndLongAsMayBeSaidIsReadAgain) {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("lorad-deep-responses-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    auto open = [&] {
        auto created = ResponseStore::create({}, std::move(*adapters::open_file_system(folder)));
        EXPECT_TRUE(created.ok());
        return std::move(*created);
    };
    auto nested = [](int n) { return std::string(size_t(n), '[') + std::string(size_t(n), ']'); };
    proto::StoredResponse deep = stored("a", 1, 0x7fffffff), many = stored("a", 2, 0x7fffffff);
    deep.json = R"({"id":")" + deep.id + R"(","tools":)" + nested(63) + "}";
    deep.items = {std::make_shared<const proto::ResponseItem>(
        proto::ResponseItem{"deep", R"({"id":"deep","x":)" + nested(61) + "}"})};
    std::string list = "0";
    for (int i = 0; i < 200'000; ++i) list += ",0";
    many.items.clear();
    for (const char* id : {"m1", "m2", "m3"})
        many.items.push_back(std::make_shared<const proto::ResponseItem>(
            proto::ResponseItem{id, R"({"id":")" + std::string(id) + R"(","x":[)" + list + "]}"}));
    {
        auto store = open();
        ASSERT_TRUE(store->put(deep).ok());
        ASSERT_TRUE(store->put(many).ok());
    }
    auto store = open();
    for (const proto::StoredResponse* one : {&deep, &many}) {
        auto kept = store->find("a", one->id);
        ASSERT_NE(kept, nullptr) << one->id;
        EXPECT_EQ(kept->json, one->json);
        ASSERT_EQ(kept->items.size(), one->items.size());
        EXPECT_EQ(kept->items.back()->json, one->items.back()->json);
    }
    std::filesystem::remove_all(folder);
}

TEST(ResponseStore, FilesOutlastTheProcessAndDamagedOnesAreRemoved) {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("lorad-responses-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    auto open = [&] {
        auto created = ResponseStore::create({}, std::move(*adapters::open_file_system(folder)));
        EXPECT_TRUE(created.ok());
        return std::move(*created);
    };
    {
        auto store = open();
        for (int i = 1; i <= 3; ++i) ASSERT_TRUE(store->put(stored("a\n\"", i, 0x7fffffff)).ok());
        ASSERT_TRUE(*store->remove("a\n\"", stored("", 3, 0).id));
    }
    const std::filesystem::path second = folder / (stored("", 2, 0).id + ".json");
    EXPECT_EQ(std::filesystem::status(second).permissions() & std::filesystem::perms::others_all,
              std::filesystem::perms::none);
    std::ofstream(second) << "{\"id\":";
    std::ofstream(folder / "resp_00000000000000ff.new") << "half";
    std::ofstream(folder / "of-somebody-else") << "x";
    auto store = open();
    EXPECT_EQ(store->counts().n, 1u);
    auto kept = store->find("a\n\"", stored("", 1, 0).id);
    ASSERT_NE(kept, nullptr);
    EXPECT_EQ(kept->json, stored("", 1, 0).json);
    EXPECT_EQ(kept->items.at(0)->json, stored("", 1, 0).items.at(0)->json);
    EXPECT_FALSE(std::filesystem::exists(second));
    EXPECT_FALSE(std::filesystem::exists(folder / "resp_00000000000000ff.new"));
    EXPECT_TRUE(std::filesystem::exists(folder / "of-somebody-else"));
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lorad::server::http_response_store_test
