// /v1/responses over real sockets, with a model of arithmetic.
#include "tests/server/http_fixture.h"

namespace lorad::server::http_responses_test {
namespace {

class ResponsesTest : public HttpTest {};

TEST_F(ResponsesTest, AnswersAsTheChatDoes) {
    Answer answer = post("/v1/responses", R"({"input":"hi","max_output_tokens":4})");
    ASSERT_EQ(answer.status, 200) << answer.body;
    auto document = parse_json(answer.body);
    JsonValue root = document->root();
    EXPECT_EQ(*root.string_or("object", ""), "response");
    EXPECT_TRUE(root.string_or("id", "")->starts_with("resp_"));
    EXPECT_EQ(*root.string_or("status", ""), "incomplete");
    JsonValue message = root.find("output")->as_array()->at(0);
    EXPECT_EQ(*message.find("content")->as_array()->at(0).string_or("text", ""),
              text_of(fake_continuation(bytes_of("hi"), kNoAdapterSlot, 4)));
    EXPECT_EQ(*root.find("usage")->int_or("input_tokens", 0), 2);
    EXPECT_EQ(*root.find("usage")->int_or("output_tokens", 0), 4);
}

TEST_F(ResponsesTest, StreamsEndWithTheWholeAnswer) {
    auto result =
        client().Post("/v1/responses", R"({"input":"hi","max_output_tokens":4,"stream":true})", "application/json");
    ASSERT_TRUE(result);
    EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
    const std::string& body = result->body;
    EXPECT_TRUE(body.starts_with("event: response.created\ndata: {"));
    size_t last = body.rfind("event: response.incomplete\ndata: ");
    ASSERT_NE(last, std::string::npos) << body;
    EXPECT_EQ(body.find("\n\n", last) + 2, body.size()) << "nothing follows";
    EXPECT_EQ(body.find("[DONE]"), std::string::npos);
    EXPECT_NE(body.find(text_of(fake_continuation(bytes_of("hi"), kNoAdapterSlot, 4)), last), std::string::npos);
}

TEST_F(ResponsesTest, AdaptersAndErrorsAreThoseOfTheOtherRoutes) {
    load_pirate();
    Answer pirate = post("/v1/responses", R"({"model":"pirate","input":"hi","max_output_tokens":4})");
    EXPECT_NE(pirate.body.find(text_of(fake_continuation(bytes_of("hi"), slot_of("pirate"), 4))), std::string::npos);
    EXPECT_NE(pirate.body.find("\"adapter_generation\":\""), std::string::npos);
    EXPECT_EQ(post("/v1/responses", R"({"model":"nobody","input":"hi"})").code, "model_not_found");
    Answer longer = post("/v1/responses", R"({"input":"hi","max_output_tokens":5000})");
    EXPECT_EQ(longer.code, "context_length_exceeded");
    EXPECT_EQ(longer.param, "max_output_tokens");
    EXPECT_EQ(post("/v1/responses", R"({"input":""})").param, "input");
    Answer schema =
        post("/v1/responses", R"({"input":"a","text":{"format":{"type":"json_schema","name":"x","schema":{}}}})");
    EXPECT_EQ(schema.param, "text.format.schema") << "what compiling the schema finds";
    auto unknown =
        client().Post("/v1/responses", R"({"input":"a","max_output_tokens":1,"nonsense":1})", "application/json");
    EXPECT_EQ(unknown->get_header_value("x-lorad-ignored-fields"), "nonsense");
    runner.not_finite_token_ = TokenId('!');
    Answer broken = post("/v1/responses", R"({"input":"a!","max_output_tokens":4})");
    EXPECT_EQ(broken.status, 500);
    auto failed =
        client().Post("/v1/responses", R"({"input":"a!","max_output_tokens":4,"stream":true})", "application/json");
    EXPECT_NE(failed->body.find("event: response.failed\n"), std::string::npos) << failed->body;
}

}  // namespace
}  // namespace lorad::server::http_responses_test
