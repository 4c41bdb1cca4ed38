// Adapters that change while requests run, clients that leave while they wait, and readers of events.
#include <gmock/gmock.h>

#include "tests/server/http_fixture.h"

namespace lorad::server::http_traffic_test {
namespace {

using lorad::testing::soon;
using ::testing::HasSubstr;

// A request whose answer is read as it comes, on a thread of its own.
class Stream {
  public:
    Stream(httplib::Client client, const std::string& path, const std::string& body) {
        thread_ = std::thread([this, path, body, client = std::make_shared<httplib::Client>(std::move(client))] {
            const auto take = [this](const char* data, size_t size) {
                std::lock_guard lock(mutex_);
                text_.append(data, size);
                return !stop_;
            };
            if (body.empty()) {
                client->Get(path, take);
            } else {
                httplib::Request request;
                request.method = "POST";
                request.path = path;
                request.body = body;
                request.content_receiver = [take](const char* data, size_t size, uint64_t, uint64_t) {
                    return take(data, size);
                };
                client->send(request);
            }
        });
    }
    ~Stream() { end(); }
    void end() {
        stop_ = true;
        if (thread_.joinable()) thread_.join();
    }
    void end_soon() { stop_ = true; }  // at the next piece
    std::string wait_whole() {
        thread_.join();
        return text();
    }
    std::string text() const {
        std::lock_guard lock(mutex_);
        return text_;
    }
    bool wait_for(const std::string& part) const {
        return soon([&] { return text().find(part) != std::string::npos; });
    }

  private:
    mutable std::mutex mutex_;
    std::string text_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

class HttpTraffic : public HttpTest {
  protected:
    using HttpTest::HttpTest;
    std::unique_ptr<Stream> stream(const std::string& path, const std::string& body = {}) {
        return std::make_unique<Stream>(client(), path, body);
    }
    std::unique_ptr<Stream> generate(const std::string& model, int n_tokens) {
        return stream("/v1/completions", R"({"stream":true,"ignore_eos":true,"prompt":[5,6],"max_tokens":)" +
                                             std::to_string(n_tokens) + R"(,"model":")" + model + "\"}");
    }
    // The text of all chunks.
    static std::string text_in(const std::string& events) {
        std::string out;
        for (size_t at = 0; (at = events.find("data: {", at)) != std::string::npos;) {
            size_t end = events.find("\n\n", at);
            auto chunk = parse_json(events.substr(at + 6, end - at - 6));
            EXPECT_TRUE(chunk.ok());
            out += *chunk->root().find("choices")->as_array()->at(0).string_or("text", "");
            at = end;
        }
        return out;
    }
};

TEST_F(HttpTraffic, ARunningRequestKeepsWhatItBeganWithWhenItsNameIsReplacedOrDrained) {
    for (const bool replace : {true, false}) {
        runner.step_time_ = kSlowStep;
        const std::string first = register_demo("a", "pirate").generation;
        const std::string expected = text_of(fake_continuation({5, 6}, slot_of("a"), 500));
        auto running = generate("a", 500);
        ASSERT_TRUE(running->wait_for("data: "));
        if (replace) {
            EXPECT_EQ(register_demo("a", "shout", R"(,"replace":true)").status, 201);
            EXPECT_NE(completed(R"("model":"a")").second, first);
        } else {
            Answer removed = del("/v1/adapters/a");
            EXPECT_THAT(removed.body, HasSubstr(R"("in_flight":1)"));
            EXPECT_EQ(post("/v1/completions", R"({"model":"a","prompt":[1]})").status, 404);
        }
        EXPECT_THAT(get("/v1/adapters").body, HasSubstr(R"("state":"draining")"));
        runner.step_time_ = std::chrono::milliseconds(0);
        std::string events = running->wait_whole();
        EXPECT_EQ(text_in(events), expected);
        EXPECT_THAT(events, HasSubstr(R"("finish_reason":"length")"));
        del("/v1/adapters/a?timeout_ms=30000");
        EXPECT_TRUE(soon([&] { return registry.list().empty() && registry.device_bytes() == 0; }));
    }
    EXPECT_EQ(runner.n_broken(), 0u);
}

TEST_F(HttpTraffic, ModeNowEndsRequestsWithTheirOwnReason) {
    runner.step_time_ = kSlowStep;
    register_demo("a", "pirate");
    register_demo("b", "shout");
    const std::string of_b = text_of(fake_continuation({5, 6}, slot_of("b"), 500));
    auto ends = generate("a", 500), goes_on = generate("b", 500);
    std::thread whole([&] {
        Answer answer = post("/v1/completions", R"({"model":"a","prompt":[5,6],"max_tokens":500,"ignore_eos":true})");
        EXPECT_EQ(answer.status, 200);
        EXPECT_THAT(answer.body, HasSubstr(R"("finish_reason":"adapter_removed")"));
    });
    EXPECT_TRUE(soon([&] { return registry.find("a")->n_leases == 2; }));
    ASSERT_TRUE(ends->wait_for("data: ") && goes_on->wait_for("data: "));
    Answer removed = del("/v1/adapters/a?mode=now&timeout_ms=30000");
    EXPECT_THAT(removed.body, HasSubstr(R"("in_flight":0)")) << "the call waited for them";
    runner.step_time_ = std::chrono::milliseconds(0);
    whole.join();
    EXPECT_THAT(ends->wait_whole(), HasSubstr(R"("finish_reason":"adapter_removed")"));
    EXPECT_EQ(text_in(goes_on->wait_whole()), of_b);
    EXPECT_EQ(metric("vllm:request_success_total{model_name=\"base\",finished_reason=\"adapter_removed\"}"), 2.0);
}

TEST_F(HttpTraffic, RemovalsThatWaitForRequestsAreFewAndEndWithTheirClient) {
    context.drain_waits_now.set_max(1);
    runner.step_time_ = kSlowStep;
    register_demo("a", "pirate");
    register_demo("b", "shout");
    auto on_a = generate("a", 500), on_b = generate("b", 500);
    ASSERT_TRUE(on_a->wait_for("data: ") && on_b->wait_for("data: "));
    OwnedFd leaves = send_request(listener->port(), "DELETE /v1/adapters/a?timeout_ms=3600000");
    EXPECT_TRUE(soon([&] { return context.drain_waits_now.n_taken() == 1; }));
    const Answer second = del("/v1/adapters/b?timeout_ms=3600000");
    EXPECT_THAT(second.body, HasSubstr(R"("deleted":true,"in_flight":1)")) << "gone, and nobody waits";
    EXPECT_EQ(context.drain_waits_now.n_taken(), 1u) << "the first still waits";
    leaves.reset();
    EXPECT_TRUE(soon([&] { return context.drain_waits_now.n_taken() == 0; }));
    EXPECT_EQ(registry.list().size(), 2u) << "both still run";
}

// One slot: whoever comes second waits.
class HttpTightTraffic : public HttpTraffic {
  protected:
    HttpTightTraffic() : HttpTraffic(1) {}
};

TEST_F(HttpTightTraffic, ARequestWaitsForAPlaceOnTheDevice) {
    runner.step_time_ = kSlowStep;
    register_demo("a", "pirate");
    const std::string b = register_demo("b", "shout").generation;
    auto holder = generate("a", 500);
    ASSERT_TRUE(holder->wait_for("data: "));
    std::thread second([&] { EXPECT_EQ(completed(R"("model":"b")").second, b); });
    EXPECT_TRUE(soon([&] { return registry.stats().n_waiting == 1; }));
    runner.step_time_ = std::chrono::milliseconds(0);
    second.join();
    EXPECT_EQ(text_in(holder->wait_whole()), text_of(fake_continuation({5, 6}, 0, 500)));
    EXPECT_EQ(runner.n_broken(), 0u);
}

TEST_F(HttpTightTraffic, AClientThatLeavesWhileItWaitsLeavesNothingBehind) {
    runner.step_time_ = kSlowStep;
    register_demo("a", "pirate");
    register_demo("b", "shout");
    auto holder = generate("a", 500);
    ASSERT_TRUE(holder->wait_for("data: "));
    OwnedFd leaves =
        send_request(listener->port(), "POST /v1/completions", R"({"model":"b","prompt":[1],"max_tokens":4})");
    EXPECT_TRUE(soon([&] { return registry.stats().n_waiting == 1; }));
    leaves.reset();
    EXPECT_TRUE(soon([&] { return registry.stats().n_waiting == 0; }));
    EXPECT_EQ(registry.find("a")->n_leases, 1u) << "the holder still runs: the waiting one has given up";
    holder->end();
    EXPECT_TRUE(soon([&] { return registry.stats().n_leases == 0; }));
}

TEST_F(HttpTraffic, EventsAreToldAsTheyHappenAndAgainFromANumberOn) {
    auto events = stream("/v1/adapters/events");
    ASSERT_TRUE(events->wait_for(": lorad"));
    const std::string generation = register_demo("a", "pirate").generation;
    EXPECT_EQ(post("/v1/adapters/a/activate", R"({"pin":true})").status, 200);
    EXPECT_EQ(del("/v1/adapters/a").status, 200);
    ASSERT_TRUE(events->wait_for("event: removed")) << events->text();
    const std::string seen = events->text();
    size_t at = 0;
    for (const char* kind :
         {"event: registered", "event: loading", "event: resident", "event: activated", "event: removed"}) {
        at = seen.find(kind, at);
        EXPECT_NE(at, std::string::npos) << kind << "\n" << seen;
    }
    EXPECT_THAT(seen, HasSubstr("\"generation\":\"" + generation));
    auto again = stream("/v1/adapters/events?after=0");
    EXPECT_TRUE(again->wait_for("id: 1\n")) << again->text();
    EXPECT_TRUE(again->wait_for("event: removed"));
    EXPECT_EQ(get("/v1/adapters/events?after=x").status, 400);
    EXPECT_EQ(context.watchers_now.n_taken(), 2u);
    engine.drain(std::chrono::milliseconds(0));
    EXPECT_TRUE(soon([&] { return context.watchers_now.n_taken() == 0; })) << "a server that ends lets its readers go";
}

TEST_F(HttpTraffic, UploadsTellHowFarTheyAre) {
    auto events = stream("/v1/adapters/events");
    ASSERT_TRUE(events->wait_for(": lorad"));
    const std::string small = put_blob("{}");
    ASSERT_TRUE(events->wait_for(small + R"(","bytes":2,"bytes_total":2})")) << events->text();
    const std::string large = put_blob(std::string(40 << 20, 'x'));
    ASSERT_TRUE(events->wait_for(large + R"(","bytes":41943040,"bytes_total":41943040})"));
    const std::string text = events->text();
    size_t n_told = 0;
    for (size_t at = 0; (at = text.find(large, at)) != std::string::npos; at += large.size()) ++n_told;
    EXPECT_GE(n_told, 4u);
    EXPECT_LE(n_told, 6u) << "at every 8 MiB, and at the end";
    engine.drain(std::chrono::milliseconds(0));  // lets the reader go before its next heartbeat
}

TEST_F(HttpTraffic, ReadersOfEventsThatLeaveAreForgottenAndTooManyAreRefused) {
    {
        std::vector<std::unique_ptr<Stream>> readers;
        for (uint32_t i = 0; i < kWatchersMax; ++i) {
            readers.push_back(stream("/v1/adapters/events"));
            ASSERT_TRUE(readers.back()->wait_for(": lorad"));
        }
        Answer refused = get("/v1/adapters/events");
        EXPECT_EQ(refused.status, 429);
        register_demo("a", "pirate");
        for (auto& reader : readers) EXPECT_TRUE(reader->wait_for("event: registered"));
        for (auto& reader : readers) reader->end_soon();
        register_demo("b", "pirate");
    }
    EXPECT_TRUE(soon([&] { return context.watchers_now.n_taken() == 0; }));
}

}  // namespace
}  // namespace lorad::server::http_traffic_test
