#include <netinet/tcp.h>

#include "tests/server/http_fixture.h"

namespace lorad::server::http_test {
namespace {

using lorad::testing::soon;

TEST_F(HttpTest, CompletionIsTheContinuationOfItsPrompt) {
    EXPECT_EQ(completion_text(R"({"model":"base","prompt":"hello","max_tokens":5,"ignore_eos":true})"),
              text_of(fake_continuation(bytes_of("hello"), kNoAdapterSlot, 5)));
    EXPECT_EQ(completion_text(R"({"prompt":[1,2,3],"max_tokens":5,"ignore_eos":true})"),
              text_of(fake_continuation({1, 2, 3}, kNoAdapterSlot, 5)));
    EXPECT_EQ(completion_text(R"({"prompt":[[1,2,3]],"max_tokens":5,"ignore_eos":true})"),
              text_of(fake_continuation({1, 2, 3}, kNoAdapterSlot, 5)));
}

TEST_F(HttpTest, CompletionHasOpenAisShape) {
    Answer answer = post("/v1/completions",
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
        *whole_document->root().find("choices")->as_array()->at(0).find("message")->string_or("content", ""));
    Answer streamed = post("/v1/chat/completions", body + R"(,"stream":true,"stream_options":{"include_usage":true}})");
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
        post("/v1/completions", R"({"prompt":"abc","max_tokens":200,"ignore_eos":true,"stop":")" + stop + "\"}");
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
    EXPECT_EQ(completion_text(R"({"model":"pirate","prompt":[5,6],"max_tokens":4,"ignore_eos":true})"), expected);
    EXPECT_EQ(completion_text(R"({"model":"base:pirate","prompt":[5,6],"max_tokens":4,"ignore_eos":true})"), expected);
    EXPECT_NE(completion_text(R"({"model":"base","prompt":[5,6],"max_tokens":4,"ignore_eos":true})"), expected);
    std::string models = get("/v1/models").body;
    EXPECT_NE(models.find(R"("id":"pirate")"), std::string::npos);
    EXPECT_NE(models.find(R"("parent":"base")"), std::string::npos);
    // Anthropic's client reads these.
    EXPECT_NE(models.find(R"("type":"model","display_name":"pirate","created_at":"20)"), std::string::npos) << models;
    EXPECT_NE(models.find(R"("has_more":false,"first_id":"base","last_id":"pirate")"), std::string::npos) << models;
    EXPECT_EQ(get("/v1/models/pirate").status, 200);
    EXPECT_EQ(post("/v1/unload_lora_adapter", R"({"lora_name":"pirate"})").status, 200);
    Answer gone = post("/v1/completions", R"({"model":"pirate","prompt":[5,6]})");
    EXPECT_EQ(gone.status, 404);
    EXPECT_EQ(gone.code, "model_not_found");
}

TEST_F(HttpTest, UnknownNamesAreNotFound) {
    EXPECT_EQ(post("/v1/completions", R"({"model":"nobody","prompt":"a"})").code, "model_not_found");
    EXPECT_EQ(post("/v1/completions", R"({"model":"base:nobody","prompt":"a"})").code, "adapter_not_found");
    EXPECT_EQ(post("/v1/unload_lora_adapter", R"({"lora_name":"nobody"})").code, "adapter_not_found");
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
    EXPECT_EQ(post("/v1/completions", R"({"prompt":[1,2,3],"max_tokens":509,"stop_token_ids":[1,2]})").status, 200);
}

TEST_F(HttpTest, ATextFarBeyondTheContextIsRefusedByItsBeginning) {
    const auto refusal = [&](size_t n_bytes) {
        Answer answer = post("/v1/completions", R"({"prompt":")" + std::string(n_bytes, 'a') + R"(","max_tokens":1})");
        EXPECT_EQ(answer.code, "context_length_exceeded");
        EXPECT_EQ(answer.param, "prompt");
        return answer.message;
    };
    EXPECT_NE(refusal(2000).find("2000 in the prompt"), std::string::npos);
    EXPECT_NE(refusal(20000).find("the input has more than 576"), std::string::npos);
}

TEST_F(HttpTest, APromptOverTheContextIsNamedBeforeMaxTokens) {
    std::string ids = "1";
    for (uint32_t i = 1; i < kPositionsMax; ++i) ids += ",1";
    EXPECT_EQ(post("/v1/completions", "{\"prompt\":[" + ids + "],\"max_tokens\":1}").param, "prompt");
    EXPECT_EQ(post("/v1/completions", R"({"prompt":[1],"max_tokens":512})").param, "max_tokens");
}

TEST_F(HttpTest, TokensThatTheModelDoesNotHaveAreRefusedAlsoInTexts) {
    // The fake tokenizer gives a byte of 0x80 and above a number outside of the vocabulary.
    for (auto [path, body] : std::vector<std::pair<std::string, std::string>>{
             {"/v1/completions", R"({"prompt":"caf\u00e9"})"},
             {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"caf\u00e9"}]})"}}) {
        Answer answer = post(path, body);
        EXPECT_EQ(answer.status, 400) << answer.body;
        EXPECT_NE(answer.message.find("vocabulary"), std::string::npos) << answer.message;
    }
}

TEST_F(HttpTest, MinTokensAboveTheDefaultOfMaxTokensIsRefused) {
    Answer answer = post("/v1/completions", R"({"prompt":[1],"min_tokens":17})");
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.param, "min_tokens");
}

TEST_F(HttpTest, LongNamesAreNotGivenBackWhole) {
    std::string name(50000, 'x');
    EXPECT_LT(post("/v1/completions", R"({"prompt":[1],"model":")" + name + "\"}").body.size(), 500u);
    EXPECT_LT(post("/v1/unload_lora_adapter", R"({"lora_name":")" + name + "\"}").body.size(), 500u);
    EXPECT_LT(get("/v1/models/" + name.substr(0, 5000)).body.size(), 500u);
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
            std::string body = std::string(R"({"model":")") + (adapter ? "pirate" : "base") + R"(","prompt":[)" +
                               std::to_string(i) + R"(,1],"max_tokens":30,"ignore_eos":true})";
            httplib::Client one = client();
            auto result = one.Post("/v1/completions", body, "application/json");
            if (!result) return;
            std::string expected = text_of(fake_continuation({i, 1}, adapter ? slot : kNoAdapterSlot, 30));
            if (result->body.find("\"text\":\"" + expected + "\"") != std::string::npos) ++n_right;
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(n_right.load(), 12);
    EXPECT_EQ(runner.n_broken(), 0u);
}

TEST_F(HttpTest, AClientThatGoesAwayCancelsItsRequest) {
    runner.step_time_ = kSlowStep;
    const std::string running = "vllm:num_requests_running{model_name=\"base\"}";
    const std::string aborted = "vllm:request_success_total{model_name=\"base\",finished_reason=\"abort\"}";
    double n_aborted = 0;
    for (const char* stream : {"false", "true"}) {
        OwnedFd fd =
            send_request(listener->port(), "POST /v1/completions",
                         std::string(R"({"prompt":[1],"max_tokens":500,"ignore_eos":true,"stream":)") + stream + "}");
        ASSERT_TRUE(soon([&] { return metric(running) == 1.0; })) << "stream " << stream;
        fd.reset();
        ASSERT_TRUE(soon([&] { return metric(running) == 0.0; })) << "stream " << stream;
        EXPECT_EQ(metric(aborted), ++n_aborted) << "stream " << stream;
    }
}

TEST_F(HttpTest, AClientThatClosesItsSideIsToldSo) {
    runner.step_time_ = kSlowStep;
    const std::string running = "vllm:num_requests_running{model_name=\"base\"}";
    for (const char* route :
         {"POST /v1/completions", "POST /v1/chat/completions", "POST /v1/responses", "POST /v1/messages"}) {
        const bool is_prompt = std::string_view(route).ends_with("v1/completions"),
                   is_responses = std::string_view(route).ends_with("responses");
        const char* input = is_prompt ? R"("prompt":[1],"max_tokens":500,"ignore_eos":true)"
                            : is_responses
                                ? R"("input":"a","max_output_tokens":400,"ignore_eos":true)"
                                : R"("messages":[{"role":"user","content":"a"}],"max_tokens":400,"ignore_eos":true)";
        OwnedFd fd = send_request(listener->port(), route, std::string(R"({"model":"base",)") + input + "}");
        ASSERT_TRUE(soon([&] { return metric(running) == 1.0; })) << route;
        shutdown(fd.get(), SHUT_WR);
        std::string answer(4096, '\0');
        const ssize_t n = recv(fd.get(), answer.data(), answer.size(), 0);
        answer.resize(size_t(std::max<ssize_t>(n, 0)));
        EXPECT_EQ(answer.find("HTTP/1.1 499 Client Closed Request\r\n"), 0u) << route << ": " << answer;
        EXPECT_EQ(answer.find("internal"), std::string::npos) << route << ": " << answer;
        ASSERT_TRUE(soon([&] { return metric(running) == 0.0; })) << route;
    }
}

TEST_F(HttpTest, ABurstOfConnectionsFindsRoom) {
    constexpr int kClients = 100;
    std::vector<OwnedFd> sockets;
    for (int i = 0; i < kClients; ++i) {
        sockets.push_back(connect_raw(listener->port()));
        ASSERT_TRUE(sockets.back().ok());
        // With a full backlog it would have had to ask again, a second later.
        tcp_info info{};
        socklen_t n_bytes = sizeof info;
        ASSERT_EQ(getsockopt(sockets.back().get(), IPPROTO_TCP, TCP_INFO, &info, &n_bytes), 0);
        EXPECT_EQ(info.tcpi_total_retrans, 0u) << "connection " << i;
    }
    EXPECT_TRUE(soon([&] { return listener->counts().n_accepted >= kClients; }));
    EXPECT_EQ(listener->counts().n_accepted, uint64_t(kClients));
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
    EXPECT_EQ(metric("vllm:request_success_total{model_name=\"base\",finished_reason=\"length\"}"), 1.0);
    EXPECT_EQ(metric("lorad_steps_total{model_name=\"base\"}"), 4.0);
    EXPECT_EQ(metric("vllm:time_to_first_token_seconds_count{model_name=\"base\"}"), 1.0);
    EXPECT_EQ(metric("vllm:inter_token_latency_seconds_count{model_name=\"base\"}"), 3.0);
}

}  // namespace
}  // namespace lorad::server::http_test
