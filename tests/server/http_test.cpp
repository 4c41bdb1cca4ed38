// The whole server but for device and tokenizer: real sockets, routes, engine thread and registry;
// a fake runner computes.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "model/config.h"
#include "proto/json.h"
#include "server/http/listener.h"
#include "server/http/routes.h"
#include "tests/server/fake_runner.h"
#include "tests/server/host_weight_store.h"

namespace lorad::server {
namespace {

constexpr uint32_t kPositionsMax = 512;
constexpr TokenId kEos = 996;

// Token t is the text "<t>"; a text is its bytes.
class FakeDecoder final : public TextDecoder {
  public:
    explicit FakeDecoder(std::vector<std::string> stop) : stop_(std::move(stop)) {}
    Result<std::string> push(TokenId token) override {
        std::string piece = "<" + std::to_string(token) + ">";
        for (const std::string& stop : stop_) found_ = found_ || piece == stop;
        return found_ ? std::string() : piece;
    }
    bool found_stop() const override { return found_; }
    Result<std::string> finish() override { return std::string(); }

  private:
    std::vector<std::string> stop_;
    bool found_ = false;
};

class FakeCodec final : public TextCodec {
  public:
    Result<std::vector<TokenId>> encode(std::string_view text, bool) const override {
        return std::vector<TokenId>(text.begin(), text.end());
    }
    Result<std::string> render_chat(const std::string& messages_json) const override {
        Result<JsonDocument> document = parse_json(messages_json);
        if (!document.ok()) return document.error();
        std::string text;
        for (const JsonValue& message : *document->root().as_array())
            text += *message.string_or("content", "");
        return text;
    }
    std::unique_ptr<TextDecoder> make_decoder(std::vector<std::string> stop) const override {
        return std::make_unique<FakeDecoder>(std::move(stop));
    }
};

std::string text_of(const std::vector<TokenId>& tokens) {
    std::string out;
    for (TokenId token : tokens) out += "<" + std::to_string(token) + ">";
    return out;
}
std::vector<TokenId> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

class HttpTest : public testing::Test {
  protected:
    HttpTest()
        : runner(64),
          metrics({"base", model::kBlockTokens, 64, 8, "fake", "none", true}),
          engine(runner, metrics, {{128, 8, model::kBlockTokens}, 64, 16}),
          config(
              *model::load_model_config(std::string(LORAD_SOURCE_DIR) + "/deploy/demo-model/base")),
          store(8),
          registry(config, store, {"base", 8}),
          context{engine,     metrics,       registry,   codec,     "base",
                  kFakeVocab, kPositionsMax, defaults(), 1700000000} {
        add_routes(router, gate);
        auto created = Listener::create({"127.0.0.1", 0, 24, 100000}, router,
                                        [this](int status) { metrics.on_http_response(status); });
        EXPECT_TRUE(created.ok());
        listener = std::move(*created);
        listener->start();
        engine.start();
        gate = &context;
    }
    ~HttpTest() override {
        engine.drain(std::chrono::milliseconds(0));
        listener->stop();
    }
    static model::GenerationDefaults defaults() {
        model::GenerationDefaults out;
        out.eos_token_ids = {kEos};
        out.temperature = 0.0f;
        return out;
    }

    struct Answer {
        int status = 0;
        std::string body;
        std::string code;  // of an error
        std::string param;
        std::string message;
    };
    Answer read(const httplib::Result& result) {
        Answer answer;
        EXPECT_TRUE(bool(result)) << "no answer";
        if (!result) return answer;
        answer.status = result->status;
        answer.body = result->body;
        Result<JsonDocument> document = parse_json(answer.body);
        if (!document.ok()) return answer;
        if (auto error = document->root().find("error")) {
            answer.code = std::string(*error->string_or("code", ""));
            answer.param = std::string(*error->string_or("param", ""));
            answer.message = std::string(*error->string_or("message", ""));
        }
        return answer;
    }
    httplib::Client client() {
        httplib::Client out("127.0.0.1", int(listener->port()));
        out.set_read_timeout(30);
        return out;
    }
    Answer post(const std::string& path, const std::string& body) {
        return read(client().Post(path, body, "application/json"));
    }
    Answer get(const std::string& path) { return read(client().Get(path)); }
    std::string completion_text(const std::string& body) {
        Answer answer = post("/v1/completions", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        Result<JsonDocument> document = parse_json(answer.body);
        if (!document.ok() || answer.status != 200) return {};
        return std::string(
            *document->root().find("choices")->as_array()->at(0).string_or("text", ""));
    }
    double metric(const std::string& line_start) {
        std::string text = get("/metrics").body;
        size_t at = text.find("\n" + line_start);
        return at == std::string::npos ? -1.0 : std::stod(text.substr(at + 1 + line_start.size()));
    }
    void load_pirate() {
        Answer answer =
            post("/v1/load_lora_adapter", R"({"lora_name":"pirate","lora_path":")" +
                                              std::string(LORAD_SOURCE_DIR) +
                                              R"(/deploy/demo-model/adapters/pirate"})");
        ASSERT_EQ(answer.status, 200) << answer.body;
    }

    FakeRunner runner;
    Metrics metrics;
    Engine engine;
    model::ModelConfig config;
    HostWeightStore store;
    adapters::Registry registry;
    FakeCodec codec;
    ServerContext context;
    ContextGate gate{nullptr};
    Router router;
    std::unique_ptr<Listener> listener;
};

TEST_F(HttpTest, CompletionIsTheContinuationOfItsPrompt) {
    EXPECT_EQ(
        completion_text(R"({"model":"base","prompt":"hello","max_tokens":5,"ignore_eos":true})"),
        text_of(fake_continuation(bytes_of("hello"), kNoAdapterSlot, 5)));
    EXPECT_EQ(completion_text(R"({"prompt":[1,2,3],"max_tokens":5,"ignore_eos":true})"),
              text_of(fake_continuation({1, 2, 3}, kNoAdapterSlot, 5)));
    EXPECT_EQ(completion_text(R"({"prompt":[[1,2,3]],"max_tokens":5,"ignore_eos":true})"),
              text_of(fake_continuation({1, 2, 3}, kNoAdapterSlot, 5)));
}

TEST_F(HttpTest, CompletionHasOpenAisShape) {
    Answer answer = post(
        "/v1/completions",
        R"({"model":"base","prompt":[7,8],"max_tokens":2,"ignore_eos":true,"return_token_ids":true})");
    auto document = parse_json(answer.body);
    ASSERT_TRUE(document.ok());
    JsonValue root = document->root();
    EXPECT_EQ(*root.string_or("object", ""), "text_completion");
    EXPECT_EQ(*root.string_or("model", ""), "base");
    EXPECT_TRUE(root.has("system_fingerprint"));
    EXPECT_EQ(*root.find("usage")->int_or("prompt_tokens", 0), 2);
    EXPECT_EQ(*root.find("usage")->int_or("completion_tokens", 0), 2);
    EXPECT_EQ(*root.find("usage")->int_or("total_tokens", 0), 4);
    JsonValue choice = root.find("choices")->as_array()->at(0);
    EXPECT_EQ(*choice.string_or("finish_reason", ""), "length");
    EXPECT_EQ(choice.find("prompt_token_ids")->dump(), "[7,8]");
    EXPECT_EQ(choice.find("token_ids")->size(), 2u);
}

TEST_F(HttpTest, ChatStreamsChunksThatAddUpToTheWholeAnswer) {
    std::string body =
        R"({"model":"base","messages":[{"role":"user","content":"hi"}],"max_tokens":6,"ignore_eos":true)";
    Answer whole = post("/v1/chat/completions", body + "}");
    auto whole_document = parse_json(whole.body);
    ASSERT_TRUE(whole_document.ok()) << whole.body;
    std::string expected(
        *whole_document->root().find("choices")->as_array()->at(0).find("message")->string_or(
            "content", ""));
    Answer streamed = post("/v1/chat/completions",
                           body + R"(,"stream":true,"stream_options":{"include_usage":true}})");
    ASSERT_EQ(streamed.status, 200) << streamed.body;
    std::string text, finish;
    std::vector<std::string> events;
    for (size_t at = 0; at < streamed.body.size();) {
        size_t end = streamed.body.find("\n\n", at);
        ASSERT_NE(end, std::string::npos);
        ASSERT_EQ(streamed.body.substr(at, 6), "data: ");
        events.push_back(streamed.body.substr(at + 6, end - at - 6));
        at = end + 2;
    }
    ASSERT_GE(events.size(), 3u);
    EXPECT_EQ(events.back(), "[DONE]");
    events.pop_back();
    auto usage = parse_json(events.back());
    ASSERT_TRUE(usage.ok());
    EXPECT_EQ(*usage->root().find("usage")->int_or("completion_tokens", 0), 6);
    EXPECT_EQ(usage->root().find("choices")->size(), 0u);
    events.pop_back();
    for (const std::string& event : events) {
        auto chunk = parse_json(event);
        ASSERT_TRUE(chunk.ok());
        EXPECT_EQ(*chunk->root().string_or("object", ""), "chat.completion.chunk");
        JsonValue choice = chunk->root().find("choices")->as_array()->at(0);
        text += *choice.find("delta")->string_or("content", "");
        finish = std::string(*choice.string_or("finish_reason", ""));
    }
    EXPECT_EQ(text, expected);
    EXPECT_EQ(finish, "length");
}

TEST_F(HttpTest, AStopStringEndsTheTextBeforeItAndTheWorkBehindIt) {
    auto tokens = fake_continuation(bytes_of("abc"), kNoAdapterSlot, 200);
    std::string stop = "<" + std::to_string(tokens[3]) + ">";
    Answer answer =
        post("/v1/completions",
             R"({"prompt":"abc","max_tokens":200,"ignore_eos":true,"stop":")" + stop + "\"}");
    auto document = parse_json(answer.body);
    ASSERT_TRUE(document.ok());
    JsonValue choice = document->root().find("choices")->as_array()->at(0);
    EXPECT_EQ(*choice.string_or("text", ""), text_of({tokens.begin(), tokens.begin() + 3}));
    EXPECT_EQ(*choice.string_or("finish_reason", ""), "stop");
    EXPECT_EQ(*document->root().find("usage")->int_or("completion_tokens", 0), 4);
}

TEST_F(HttpTest, AnAdapterIsNamedByModelAndRunsInItsSlot) {
    load_pirate();
    uint32_t slot = registry.acquire("pirate")->slot();
    std::string expected = text_of(fake_continuation({5, 6}, slot, 4));
    EXPECT_EQ(
        completion_text(R"({"model":"pirate","prompt":[5,6],"max_tokens":4,"ignore_eos":true})"),
        expected);
    EXPECT_EQ(completion_text(
                  R"({"model":"base:pirate","prompt":[5,6],"max_tokens":4,"ignore_eos":true})"),
              expected);
    EXPECT_NE(
        completion_text(R"({"model":"base","prompt":[5,6],"max_tokens":4,"ignore_eos":true})"),
        expected);
    std::string models = get("/v1/models").body;
    EXPECT_NE(models.find(R"("id":"pirate")"), std::string::npos);
    EXPECT_NE(models.find(R"("parent":"base")"), std::string::npos);
    EXPECT_EQ(get("/v1/models/pirate").status, 200);
    EXPECT_EQ(post("/v1/unload_lora_adapter", R"({"lora_name":"pirate"})").status, 200);
    Answer gone = post("/v1/completions", R"({"model":"pirate","prompt":[5,6]})");
    EXPECT_EQ(gone.status, 404);
    EXPECT_EQ(gone.code, "model_not_found");
}

TEST_F(HttpTest, UnknownNamesAreNotFound) {
    EXPECT_EQ(post("/v1/completions", R"({"model":"nobody","prompt":"a"})").code,
              "model_not_found");
    EXPECT_EQ(post("/v1/completions", R"({"model":"base:nobody","prompt":"a"})").code,
              "adapter_not_found");
    EXPECT_EQ(post("/v1/unload_lora_adapter", R"({"lora_name":"nobody"})").code,
              "adapter_not_found");
    EXPECT_EQ(get("/v1/models/nobody").status, 404);
    Answer route = get("/v1/nothing");
    EXPECT_EQ(route.status, 404);
    EXPECT_EQ(route.code, "not_found");
    Answer method = get("/v1/completions");
    EXPECT_EQ(method.status, 405);
    EXPECT_EQ(method.code, "method_not_allowed");
}

TEST_F(HttpTest, ContextLengthIsRefusedWithBothNumbers) {
    Answer answer = post("/v1/completions", R"({"prompt":[1,2,3],"max_tokens":510})");
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.code, "context_length_exceeded");
    EXPECT_NE(answer.message.find("512"), std::string::npos);
    EXPECT_NE(answer.message.find("513"), std::string::npos);
    EXPECT_EQ(
        post("/v1/completions", R"({"prompt":[1,2,3],"max_tokens":509,"stop_token_ids":[1,2]})")
            .status,
        200);
}

TEST_F(HttpTest, MalformedJsonIsRefusedWithItsPosition) {
    Answer answer = post("/v1/completions", "{\"prompt\":\n  oops}");
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.code, "invalid_request");
    EXPECT_NE(answer.message.find("line 2"), std::string::npos) << answer.message;
}

TEST_F(HttpTest, ABodyOverTheLimitIs413) {
    Answer answer = post("/v1/completions", "{\"prompt\":\"" + std::string(200000, 'a') + "\"}");
    EXPECT_EQ(answer.status, 413);
    EXPECT_EQ(answer.code, "request_too_large");
}

TEST_F(HttpTest, ManyStreamsAtOnceEachGetTheirOwnTokens) {
    load_pirate();
    uint32_t slot = registry.acquire("pirate")->slot();
    std::atomic<int> n_right{0};
    std::vector<std::thread> threads;
    for (TokenId i = 0; i < 12; ++i) {
        threads.emplace_back([&, i] {
            bool adapter = i % 2 == 0;
            std::string body = std::string(R"({"model":")") + (adapter ? "pirate" : "base") +
                               R"(","prompt":[)" + std::to_string(i) +
                               R"(,1],"max_tokens":30,"ignore_eos":true})";
            httplib::Client one = client();
            auto result = one.Post("/v1/completions", body, "application/json");
            if (!result) return;
            std::string expected =
                text_of(fake_continuation({i, 1}, adapter ? slot : kNoAdapterSlot, 30));
            if (result->body.find("\"text\":\"" + expected + "\"") != std::string::npos) ++n_right;
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(n_right.load(), 12);
    EXPECT_EQ(runner.n_broken(), 0u);
}

// A request over a bare socket that closes without reading the answer.
void send_and_close(uint32_t port, const std::string& body, int wait_ms) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(uint16_t(port));
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    std::string request =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
        "application/json\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body;
    ASSERT_EQ(send(fd, request.data(), request.size(), 0), ssize_t(request.size()));
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    close(fd);
}

TEST_F(HttpTest, AClientThatGoesAwayCancelsItsRequest) {
    runner.step_time_ = std::chrono::milliseconds(10);
    for (const char* stream : {"false", "true"}) {
        // Would run for five seconds.
        send_and_close(
            listener->port(),
            std::string(R"({"prompt":[1],"max_tokens":500,"ignore_eos":true,"stream":)") + stream +
                "}",
            200);
        auto begin = std::chrono::steady_clock::now();
        while (metric("vllm:num_requests_running{model_name=\"base\"}") != 0.0) {
            ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2))
                << "stream " << stream;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }
    EXPECT_EQ(metric("vllm:request_success_total{model_name=\"base\",finished_reason=\"abort\"}"),
              2.0);
}

TEST_F(HttpTest, ABurstOfConnectionsIsAcceptedWithoutDelay) {
    constexpr int kClients = 100;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(uint16_t(listener->port()));
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    auto begin = std::chrono::steady_clock::now();
    std::vector<int> sockets;
    for (int i = 0; i < kClients; ++i) {
        sockets.push_back(socket(AF_INET, SOCK_STREAM, 0));
        ASSERT_EQ(connect(sockets.back(), reinterpret_cast<sockaddr*>(&address), sizeof address),
                  0);
    }
    // A full backlog would cost a second for each that has to try again.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(900));
    for (int fd : sockets) close(fd);
}

TEST_F(HttpTest, ReadinessFollowsTheEngine) {
    EXPECT_EQ(get("/health/live").status, 200);
    EXPECT_EQ(get("/health/ready").status, 200);
    gate = nullptr;
    EXPECT_EQ(get("/health/ready").status, 503);
    EXPECT_EQ(get("/v1/models").status, 503);
    gate = &context;
    engine.drain(std::chrono::milliseconds(0));
    EXPECT_EQ(get("/health/ready").status, 503);
    EXPECT_EQ(get("/health/live").status, 200);
    EXPECT_EQ(post("/v1/completions", R"({"prompt":"a"})").status, 503);
}

TEST_F(HttpTest, MetricsCountWhatHappened) {
    completion_text(R"({"prompt":[1,2,3],"max_tokens":4,"ignore_eos":true})");
    EXPECT_EQ(metric("vllm:prompt_tokens_total{model_name=\"base\"}"), 3.0);
    EXPECT_EQ(metric("vllm:generation_tokens_total{model_name=\"base\"}"), 4.0);
    EXPECT_EQ(metric("vllm:request_success_total{model_name=\"base\",finished_reason=\"length\"}"),
              1.0);
    EXPECT_EQ(metric("lorad_steps_total{model_name=\"base\"}"), 4.0);
    EXPECT_EQ(metric("vllm:time_to_first_token_seconds_count{model_name=\"base\"}"), 1.0);
    EXPECT_EQ(metric("vllm:inter_token_latency_seconds_count{model_name=\"base\"}"), 3.0);
}

}  // namespace
}  // namespace lorad::server
