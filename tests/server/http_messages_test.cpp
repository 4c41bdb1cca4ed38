// /v1/messages over real sockets, with a model of arithmetic.
#include "tests/server/http_fixture.h"

namespace lorad::server::http_messages_test {
namespace {

class MessagesTest : public HttpTest {
  protected:
    // The envelope's type.
    std::string error_type(const Answer& answer) {
        Result<JsonDocument> document = parse_json(answer.body);
        if (!document.ok()) return answer.body;
        EXPECT_EQ(*document->root().string_or("type", ""), "error") << answer.body;
        auto error = document->root().find("error");
        return error ? std::string(*error->string_or("type", "")) : answer.body;
    }
};

const std::string kHi = R"("messages":[{"role":"user","content":"hi"}])";

TEST_F(MessagesTest, AnswersAsTheChatDoes) {
    Answer answer = post("/v1/messages", "{" + kHi + R"(,"max_tokens":4})");
    ASSERT_EQ(answer.status, 200) << answer.body;
    auto document = parse_json(answer.body);
    JsonValue root = document->root();
    EXPECT_EQ(*root.string_or("type", ""), "message");
    EXPECT_EQ(*root.string_or("stop_reason", ""), "max_tokens");
    EXPECT_EQ(*root.find("content")->as_array()->at(0).string_or("text", ""),
              text_of(fake_continuation(bytes_of("hi"), kNoAdapterSlot, 4)));
    EXPECT_EQ(*root.find("usage")->int_or("input_tokens", 0), 2);
    EXPECT_EQ(*root.find("usage")->int_or("output_tokens", 0), 4);
    std::string second = text_of({fake_continuation(bytes_of("hi"), kNoAdapterSlot, 2)[1]});
    Answer stopped = post("/v1/messages", "{" + kHi + R"(,"max_tokens":4,"stop_sequences":[")" + second + "\"]}");
    EXPECT_NE(stopped.body.find(R"("stop_reason":"stop_sequence","stop_sequence":")" + second), std::string::npos)
        << stopped.body;
}

TEST_F(MessagesTest, WhatCompilingAToolFindsIsToldWithItsPlaceAndName) {
    Answer refused = post(
        "/v1/messages",
        "{" + kHi +
            R"(,"max_tokens":4,"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"}})");
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.message, R"(tools[0].input_schema: no grammars here (function "f"))");
    refused =
        post("/v1/responses", R"({"input":"a","tools":[{"type":"custom","name":"x"},{"type":"function","name":"f"}],)"
                              R"("tool_choice":{"type":"function","name":"f"}})");
    EXPECT_EQ(refused.param, "tools[1].parameters");
    EXPECT_EQ(refused.message, R"(tools[1].parameters: no grammars here (function "f"))");
}

TEST_F(MessagesTest, StreamsBeginWithTheMessageAndEndWithItsStop) {
    auto result = client().Post("/v1/messages", "{" + kHi + R"(,"max_tokens":4,"stream":true})", "application/json");
    ASSERT_TRUE(result);
    EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
    const std::string& body = result->body;
    EXPECT_TRUE(body.starts_with("event: message_start\n")) << body;
    EXPECT_NE(body.find("event: ping\n"), std::string::npos);
    EXPECT_TRUE(body.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")) << body;
}

TEST_F(MessagesTest, CountsTheTokensOfThePromptWithoutComputing) {
    Answer answer = post("/v1/messages/count_tokens", R"({"system":"abc",)" + kHi + "}");
    EXPECT_EQ(answer.body, R"({"input_tokens":5})");
    EXPECT_EQ(runner.n_steps(), 0u);
    EXPECT_EQ(error_type(post("/v1/messages/count_tokens", R"({"model":"nobody",)" + kHi + "}")), "not_found_error");
}

TEST_F(MessagesTest, AllErrorsHaveAnthropicsEnvelope) {
    EXPECT_EQ(error_type(post("/v1/messages", "{")), "invalid_request_error");
    EXPECT_EQ(error_type(post("/v1/messages", "{" + kHi + "}")), "invalid_request_error");
    EXPECT_EQ(error_type(post("/v1/messages", R"({"model":"nobody","max_tokens":4,)" + kHi + "}")), "not_found_error");
    Answer longer = post("/v1/messages",
                         R"({"max_tokens":5,"messages":[{"role":"user","content":")" + std::string(600, 'a') + "\"}]}");
    EXPECT_EQ(longer.status, 400);
    EXPECT_EQ(error_type(longer), "invalid_request_error");
    Answer large = post("/v1/messages", std::string(200000, ' '));
    EXPECT_EQ(large.status, 413);
    EXPECT_EQ(error_type(large), "request_too_large") << "found before the handler runs";
    gate = nullptr;
    Answer starting = post("/v1/messages", "{}");
    EXPECT_EQ(starting.status, 503);
    EXPECT_EQ(error_type(starting), "overloaded_error");
    gate = &context;
    runner.not_finite_token_ = TokenId('!');
    const std::string broken = R"({"max_tokens":4,"messages":[{"role":"user","content":"a!"}])";
    EXPECT_EQ(error_type(post("/v1/messages", broken + "}")), "api_error");
    auto stream = client().Post("/v1/messages", broken + R"(,"stream":true})", "application/json");
    EXPECT_NE(stream->body.find("event: error\ndata: {\"type\":\"error\""), std::string::npos);
}

// Clients say what their model may write at most, whatever is left of this one's context.
TEST_F(MessagesTest, MaxTokensBeyondTheContextIsWhatIsLeft) {
    runner.step_time_ = std::chrono::microseconds(0);
    Answer answer = post("/v1/messages", R"({"max_tokens":2147483647,"ignore_eos":true,)" + kHi + "}");
    ASSERT_EQ(answer.status, 200) << answer.body;
    auto document = parse_json(answer.body);
    EXPECT_EQ(*document->root().find("usage")->int_or("output_tokens", 0), int64_t(kPositionsMax - 2));
    EXPECT_EQ(*document->root().string_or("stop_reason", ""), "max_tokens");
}

TEST_F(MessagesTest, WhatTheRouterFindsHasAnthropicsEnvelopeToo) {
    Answer unknown = post("/v1/messages/batches", "{}");
    EXPECT_EQ(unknown.status, 404);
    EXPECT_EQ(error_type(unknown), "not_found_error");
    auto wrong_method = client().Get("/v1/messages");
    EXPECT_EQ(wrong_method->status, 405);
    EXPECT_EQ(wrong_method->get_header_value("Allow"), "POST");
    EXPECT_EQ(error_type(read(client().Get("/v1/messages"))), "invalid_request_error");
    EXPECT_EQ(post("/v1/messagesX", "{}").code, "not_found") << "another interface's path";
    EXPECT_EQ(client().Post("/v1/messages", "{", "application/json")->get_header_value("request-id").substr(0, 4),
              "req_");
}

}  // namespace
}  // namespace lorad::server::http_messages_test
