// What programs of all kinds rely on beside the answer itself: ids of requests, pages of other origins, early heads of
// streams, errors that help.
#include <gmock/gmock.h>

#include "server/http/cors.h"
#include "server/http/request_id.h"
#include "tests/server/access_fixture.h"

namespace lorad::server::http_clients_test {
namespace {

using lorad::testing::soon;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kJson = "application/json";

TEST_F(HttpTest, EveryAnswerHasTheRequestsIdOrOneOfItsOwn) {
    const std::string completion = R"({"prompt":[1],"max_tokens":1})",
                      stream = R"({"prompt":[1],"max_tokens":1,"stream":true})";
    const std::string id = "trace/0123-abc:def";
    for (const std::string& body : {completion, stream, std::string("{")}) {
        EXPECT_EQ(
            client().Post("/v1/completions", {{"x-request-id", id}}, body, kJson)->get_header_value("x-request-id"), id)
            << body;
        auto without = client().Post("/v1/completions", body, kJson);
        EXPECT_THAT(without->get_header_value("x-request-id"), StartsWith("req_")) << body;
    }
    EXPECT_EQ(client().Get("/nowhere", {{"x-request-id", id}})->get_header_value("x-request-id"), id);
    EXPECT_EQ(client().Get("/health/live", {{"x-request-id", id}})->get_header_value("x-request-id"), id);
    EXPECT_EQ(client().Head("/health/live", {{"x-request-id", id}})->get_header_value("x-request-id"), id);
    // What the guard itself refuses, with a head that it has understood and without.
    OwnedFd fd = connect_raw(listener->port());
    const std::string request = "BREW /v1/messages HTTP/1.1\r\nHost: x\r\nx-request-id: abc\r\n\r\n";
    ASSERT_EQ(send(fd.get(), request.data(), request.size(), 0), ssize_t(request.size()));
    char piece[4096];
    const std::string answer(piece, size_t(std::max<ssize_t>(0, recv(fd.get(), piece, sizeof piece, 0))));
    EXPECT_THAT(answer, HasSubstr("x-request-id: abc\r\n"));
}

TEST(RequestId, IsTheClientsWhereItIsShortAndPrintable) {
    EXPECT_EQ(request_id_of("a"), "a");
    EXPECT_EQ(request_id_of(std::string(128, 'x')), std::string(128, 'x'));
    for (const std::string& sent : {std::string(), std::string(129, 'x'), std::string("a b"), std::string("a\tb"),
                                    std::string("\xc3\xa4"), std::string("a\x7f")})
        EXPECT_THAT(request_id_of(sent), StartsWith("req_")) << sent;
    EXPECT_NE(request_id_of(""), request_id_of(""));
}

class CorsTest : public AccessTest {
  protected:
    void listen(const std::vector<std::string>& origins) {
        ListenerOptions options;
        options.sockets.push_back(*open_tcp("127.0.0.1", 0));
        options.body_bytes_max = 100000;
        options.guard.n_workers = 4;
        options.cors = Cors(*cors_origins(origins));
        listener->stop();
        auto created = Listener::create(std::move(options), router, [](int) {});
        ASSERT_TRUE(created.ok());
        listener = std::move(*created);
        ASSERT_TRUE(listener->start().ok());
    }
    httplib::Result preflight(const std::string& origin) {
        return client().Options("/v1/chat/completions",
                                {{"Origin", origin},
                                 {"Access-Control-Request-Method", "POST"},
                                 {"Access-Control-Request-Headers", "authorization,x-stainless-os"}});
    }
};

TEST_F(CorsTest, PagesOfAllowedOriginsMayAskAndCall) {
    listen({"https://app.example,http://localhost:3000", "https://b.example:8443"});
    for (const char* origin : {"https://app.example", "http://localhost:3000", "https://b.example:8443"}) {
        auto asked = preflight(origin);
        EXPECT_EQ(asked->status, 204) << "a browser shows no key when it asks";
        EXPECT_EQ(asked->get_header_value("Access-Control-Allow-Origin"), origin);
        EXPECT_THAT(asked->get_header_value("Access-Control-Allow-Methods"), HasSubstr("POST"));
        for (const char* name : {"authorization", "x-api-key", "anthropic-version", "content-type", "x-stainless-os"})
            EXPECT_THAT(asked->get_header_value("Access-Control-Allow-Headers"), HasSubstr(name));
        EXPECT_EQ(asked->get_header_value("Vary"), "Origin");
        auto called = client().Get("/version", {{"Origin", origin}, {"Authorization", "Bearer " + key_of("generate")}});
        EXPECT_EQ(called->status, 200);
        EXPECT_EQ(called->get_header_value("Access-Control-Allow-Origin"), origin);
        EXPECT_EQ(called->get_header_value("Access-Control-Expose-Headers"), "*");
        auto refused = client().Get("/version", {{"Origin", origin}});
        EXPECT_EQ(refused->status, 401) << "the page may read why, and no more";
        EXPECT_EQ(refused->get_header_value("Access-Control-Allow-Origin"), origin);
    }
}

TEST_F(CorsTest, OthersAreToldNothing) {
    listen({"https://app.example"});
    for (const char* origin : {"https://app.example.evil", "http://app.example", "https://app.example:1", "null"}) {
        auto asked = preflight(origin);
        EXPECT_EQ(asked->status, 401) << origin;
        EXPECT_FALSE(asked->has_header("Access-Control-Allow-Origin")) << origin;
        EXPECT_EQ(asked->get_header_value("Vary"), "Origin") << "caches tell pages apart";
    }
    listen({"*"});
    EXPECT_EQ(preflight("https://any.example")->get_header_value("Access-Control-Allow-Origin"), "*");
    EXPECT_FALSE(preflight("https://any.example")->has_header("Vary"));
    listen({});
    auto asked = preflight("https://app.example");
    EXPECT_EQ(asked->status, 401);
    EXPECT_FALSE(asked->has_header("Access-Control-Allow-Origin") || asked->has_header("Vary"));
}

TEST(CorsOrigins, AreWrittenAsBrowsersWriteThem) {
    EXPECT_TRUE(cors_origins(
                    {"*", "https://a.example", "http://127.0.0.1:3000", "http://[::1]:80", "chrome-extension://abcdef"})
                    .ok());
    for (const char* wrong :
         {"", "a.example", "https://a.example/", "https://A.example", "https://", "://x", "https://a,", "https://a b"})
        EXPECT_EQ(cors_origins({wrong}).error().param, "cors-origin") << wrong;
}

// Clients and proxies that wait for a head would give up on a long queue.
TEST_F(HttpTest, StreamsSendTheirHeadWhileTheyAreQueued) {
    runner.step_time_ = kSlowStep;
    std::vector<OwnedFd> running;
    for (int i = 0; i < 8; ++i)
        running.push_back(send_request(listener->port(), "POST /v1/completions",
                                       R"({"prompt":[1],"max_tokens":500,"ignore_eos":true})"));
    ASSERT_TRUE(soon([&] { return metric("vllm:num_requests_running{model_name=\"base\"}") == 8.0; }));
    OwnedFd waiting =
        send_request(listener->port(), "POST /v1/completions", R"({"prompt":[1],"max_tokens":2,"stream":true})");
    std::string head;
    for (char piece[1024]; head.find("\r\n\r\n") == std::string::npos;) {
        const ssize_t n = recv(waiting.get(), piece, sizeof piece, 0);
        ASSERT_GT(n, 0) << head;
        head.append(piece, size_t(n));
    }
    EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(head, HasSubstr("text/event-stream"));
    EXPECT_THAT(head, Not(HasSubstr("data:")));
    EXPECT_TRUE(soon([&] { return metric("vllm:num_requests_waiting{model_name=\"base\"}") == 1.0; }))
        << "it still has no turn";
    runner.step_time_ = std::chrono::microseconds(0);
}

TEST_F(HttpTest, AnUnknownModelsErrorNamesTheNearestOnes) {
    load_pirate();
    EXPECT_THAT(post("/v1/completions", R"({"model":"pirat","prompt":[1]})").message,
                HasSubstr(R"(did you mean "pirate"?)"));
    EXPECT_THAT(post("/v1/completions", R"({"model":"Base","prompt":[1]})").message,
                HasSubstr(R"(did you mean "base"?)"));
    EXPECT_THAT(post("/v1/completions", R"({"model":"base:pirata","prompt":[1]})").message,
                HasSubstr(R"(did you mean "pirate"?)"));
    EXPECT_THAT(post("/v1/completions", R"({"adapter":"pirata","prompt":[1]})").message,
                HasSubstr(R"(did you mean "pirate"?)"));
    EXPECT_THAT(post("/tokenize", R"({"model":"pirata","prompt":"a"})").message,
                HasSubstr(R"(did you mean "pirate"?)"));
    EXPECT_THAT(get("/v1/models/pirata").message, HasSubstr(R"(did you mean "pirate"?)"));
    // On every route that takes a model, also where something else is wrong that is found later.
    const std::string messages = R"("messages":[{"role":"user","content":"a"}])",
                      format = R"({"type":"json_schema","schema":{}})";
    for (const auto& [path, fields] : std::vector<std::pair<std::string, std::string>>{
             {"/v1/chat/completions",
              messages + R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{}}})"},
             {"/v1/chat/completions/render", messages},
             {"/v1/completions/render", R"("prompt":"a")"},
             {"/v1/responses", R"("input":"a","text":{"format":)" + format + "}"},
             {"/v1/responses/input_tokens", R"("input":"a")"},
             {"/v1/messages", R"("max_tokens":4,"output_config":{"format":)" + format + "}," + messages},
             {"/v1/messages/count_tokens", messages},
             {"/v1/embeddings", R"("input":["a","b"])"},
             {"/tokenize", messages},
             {"/detokenize", R"("tokens":[1])"}}) {
        Answer refused = post(path, R"({"model":"pirata",)" + fields + "}");
        EXPECT_EQ(refused.status, 404) << path;
        EXPECT_THAT(refused.message, HasSubstr(R"(did you mean "pirate"?)")) << path;
    }
    EXPECT_EQ(get("/v1/models/pirata").code, "model_not_found");
    EXPECT_THAT(post("/v1/completions", R"({"model":"gpt-4o","prompt":[1]})").message,
                HasSubstr("GET /v1/models lists what there is"));
}

TEST_F(AccessTest, NearestNamesAreThoseThatTheKeyMayList) {
    for (const char* name : {"red-pirate", "blue-pirate"})
        ASSERT_TRUE(registry.load(name, demo_folder("pirate"), {}).ok());
    const std::string body = R"({"model":"ed-pirate","prompt":[1]})";
    EXPECT_THAT(ask_as("red", "POST", "/v1/completions", body).body, HasSubstr("red-pirate"));
    EXPECT_THAT(ask_as("red", "POST", "/v1/completions", body).body, Not(HasSubstr("blue")));
    EXPECT_THAT(ask_as("blue", "POST", "/v1/completions", body).body, Not(HasSubstr("red-")));
    EXPECT_THAT(ask_as("generate", "POST", "/v1/completions", body).body, HasSubstr("red-pirate"));
}

// Whether or not there is such a route: who has no key does not learn it.
TEST_F(AccessTest, WithoutAKeyAnthropicsPathsAnswerInItsEnvelope) {
    for (const char* target : {"/v1/messages", "/v1/messages/count_tokens", "/v1/messages/nowhere"}) {
        HttpReply reply = ask("POST", target, "", "{}");
        EXPECT_EQ(reply.status, 401);
        EXPECT_THAT(reply.body, StartsWith(R"({"type":"error","error":{"type":"authentication_error")")) << target;
        EXPECT_FALSE(header(reply, "WWW-Authenticate").empty());
    }
    EXPECT_THAT(ask("POST", "/v1/completions", "", "{}").body, StartsWith(R"({"error":{"message")"));
    EXPECT_THAT(ask_as("metrics", "POST", "/v1/messages", "{}").body, HasSubstr("permission_error"));
    for (int i = 0; i < 2; ++i) ask_as("slow", "GET", "/version");
    HttpReply limited = ask_as("slow", "POST", "/v1/messages", "{}");
    EXPECT_EQ(limited.status, 429);
    EXPECT_THAT(limited.body, HasSubstr("rate_limit_error"));
}

TEST_F(HttpTest, TokenizerInfoIsTheModelsConfiguration) {
    EXPECT_EQ(get("/tokenizer_info").status, 404) << "this model has none";
    context.tokenizer_info =
        *tokenizer_info_of(**model::ModelFiles::open(lorad::testing::source_dir() / "deploy/demo-model/base"));
    Answer answer = get("/tokenizer_info");
    EXPECT_EQ(answer.status, 200);
    auto document = parse_json(answer.body);
    ASSERT_TRUE(document.ok());
    EXPECT_EQ(*document->root().string_or("eos_token", ""), "<|im_end|>");
    EXPECT_EQ(*document->root().string_or("tokenizer_class", ""), "PreTrainedTokenizerFast");
    EXPECT_THAT(std::string(*document->root().string_or("chat_template", "")), HasSubstr("<|im_start|>"));
    EXPECT_EQ(*document->root().find("added_tokens_decoder")->string_or("0", ""), "<|endoftext|>");
}

}  // namespace
}  // namespace lorad::server::http_clients_test
