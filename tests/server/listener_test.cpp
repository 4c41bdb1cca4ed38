// The listener and the router over real sockets, with routes of the tests' own.
#include "server/http/listener.h"

#include <atomic>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/error.h"
#include "tests/server/raw_socket.h"
#include "tests/support/soon.h"

namespace lorad::server::listener_test {
namespace {

using lorad::testing::soon;

constexpr size_t kBodyMax = 1000;
constexpr uint64_t kUploadMax = 300000;
constexpr std::chrono::milliseconds kPatience{400};

class ListenerTest : public ::testing::Test {
  protected:
    explicit ListenerTest(std::chrono::milliseconds body_grace = ExchangeTimes().body_grace) {
        router.add("POST", "/echo", access::Access::open(), [](const HttpRequest& r) { return json_reply(r.body); });
        router.add("DELETE", "/echo", access::Access::open(),
                   [](const HttpRequest& r) { return json_reply("deleted" + r.body); });
        router.add("GET", "/things/fixed", access::Access::open(),
                   [](const HttpRequest&) { return json_reply("fixed"); });
        router.add("GET", "/things/{}/part", access::Access::open(),
                   [](const HttpRequest& r) { return json_reply(r.params.at(0)); });
        router.add("GET", "/things/{}", access::Access::open(), [](const HttpRequest& r) {
            return json_reply(r.params.at(0) + "|" + std::string(r.query_value("q").value_or("none")));
        });
        router.add("GET", "/status/{}", access::Access::open(),
                   [](const HttpRequest& r) { return json_reply("{}", std::stoi(r.params.at(0))); });
        router.add("GET", "/rest/*", access::Access::open(),
                   [](const HttpRequest& r) { return json_reply(r.params.at(0)); });
        router.add(
            "PUT", "/upload", access::Access::open(), [this](const HttpRequest& r) { return upload(r); },
            BodyUse::kStreamed);
        router.add(
            "PUT", "/ignore", access::Access::open(), [](const HttpRequest&) { return json_reply("ignored"); },
            BodyUse::kStreamed);
        router.add(
            "PUT", "/half", access::Access::open(), [this](const HttpRequest& r) { return half(r); },
            BodyUse::kStreamed);
        router.add("GET", "/stream", access::Access::open(), [](const HttpRequest&) {
            HttpReply reply;
            reply.stream = [](HttpSink& sink) {
                for (int i = 0; i < 3; ++i) sink.write("part" + std::to_string(i));
            };
            return reply;
        });
        router.add("GET", "/gone", access::Access::open(), [this](const HttpRequest& r) { return gone(r); });
        ListenerOptions options;
        options.sockets.push_back(*open_tcp("127.0.0.1", 0));
        options.body_bytes_max = kBodyMax;
        options.guard.n_workers = 8;
        options.guard.times.body_grace = body_grace;
        auto created = Listener::create(std::move(options), router, [](int) {});
        EXPECT_TRUE(created.ok());
        listener = std::move(*created);
        EXPECT_TRUE(listener->start().ok());
    }
    ~ListenerTest() override { listener->stop(); }

    HttpReply upload(const HttpRequest& request) {
        ++n_uploads_begun;
        uint64_t n = 0, sum = 0;
        Status status = request.stream->read(kUploadMax, [&](std::string_view piece) {
            largest_piece = std::max<size_t>(largest_piece, piece.size());
            n += piece.size();
            for (char c : piece) sum += uint8_t(c);
            return ok_status();
        });
        ++n_uploads_ended;
        if (!status.ok()) {
            last_code = status.error().code;
            return error_reply(status.error());
        }
        return json_reply(std::to_string(n) + " " + std::to_string(sum));
    }
    HttpReply half(const HttpRequest& request) {
        uint64_t n = 0;
        Status status = request.stream->read(kUploadMax, [&](std::string_view piece) -> Status {
            n += piece.size();
            if (n > 100) return make_error(ErrorCode::kStorageFailed, "full");
            return ok_status();
        });
        return status.ok() ? json_reply("all") : error_reply(status.error());
    }

    // Asks for the first time when the client has had its moment to go.
    HttpReply gone(const HttpRequest& request) {
        ++n_gone_begun;
        while (!client_had_its_moment) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        n_gone_seen += request.client_gone() ? 1 : 0;
        ++n_gone_ended;
        return json_reply("here");
    }

    // Sends bytes as they are and reads an answer, or all until the server closes. The next request on
    // the same connection follows when the first answer is there.
    std::string raw(const std::string& bytes, bool until_closed = false, const std::string& next = {}) {
        const OwnedFd fd = connect();
        std::string out = exchange(fd, bytes, until_closed);
        if (!next.empty()) out += exchange(fd, next, false);
        return out;
    }
    std::string exchange(const OwnedFd& fd, const std::string& bytes, bool until_closed) {
        for (size_t at = 0; at < bytes.size();) {
            ssize_t n = send(fd.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
            if (n <= 0) break;
            at += size_t(n);
        }
        std::string out;
        char buffer[4096];
        closed = false;
        while (until_closed || !is_whole(out)) {
            ssize_t n = recv(fd.get(), buffer, sizeof buffer, 0);
            if (n <= 0) {
                closed = n == 0 || errno == ECONNRESET;
                break;
            }
            out.append(buffer, size_t(n));
        }
        return out;
    }
    static bool is_whole(const std::string& answer) {
        size_t head = answer.find("\r\n\r\n");
        size_t length = answer.find("Content-Length: ");
        return head != std::string::npos && length < head &&
               answer.size() >= head + 4 + std::stoul(answer.substr(length + 16));
    }
    static int count(const std::string& text) {
        int n = 0;
        for (size_t at = 0; (at = text.find("HTTP/1.1 ", at)) != std::string::npos; at += 9) ++n;
        return n;
    }
    OwnedFd connect() {
        OwnedFd fd = connect_raw(listener->port());
        EXPECT_TRUE(fd.ok());
        return fd;
    }
    httplib::Client client() { return httplib::Client("127.0.0.1", int(listener->port())); }

    Router router;
    std::unique_ptr<Listener> listener;
    std::atomic<size_t> largest_piece{0};
    std::atomic<int> n_uploads_begun{0}, n_uploads_ended{0};
    std::atomic<bool> client_had_its_moment{false};
    std::atomic<int> n_gone_begun{0}, n_gone_seen{0}, n_gone_ended{0};
    std::atomic<ErrorCode> last_code{ErrorCode::kInternal};
    bool closed = false;
};

TEST_F(ListenerTest, NamesInPathsMayHoldSlashesAndAnyByte) {
    const auto get = [&](const std::string& path) { return client().Get(path)->body; };
    EXPECT_EQ(get("/things/a%2Fb/part"), "a/b");
    EXPECT_NE(raw("GET /things/a%2Fb?q=x%26y+z HTTP/1.1\r\nHost: x\r\n\r\n").find("a/b|x&y z"), std::string::npos);
    EXPECT_EQ(get("/things/fixed"), "fixed");
    EXPECT_EQ(get("/rest/a/b%2Fc"), "a/b/c");
    EXPECT_EQ(client().Get("/things/")->status, 404);
    EXPECT_EQ(client().Get("/things/a/b")->status, 404);
    EXPECT_EQ(client().Get("/rest/")->status, 404);
    EXPECT_EQ(client().Post("/things/a", "", "")->status, 405);
    EXPECT_NE(raw("GET /things/%zz HTTP/1.1\r\nHost: x\r\n\r\n").find("400 "), std::string::npos);
    EXPECT_NE(raw("GET /things/a%0Ab HTTP/1.1\r\nHost: x\r\n\r\n").find("400 "), std::string::npos);
    EXPECT_NE(raw("GET /things/%4 HTTP/1.1\r\nHost: x\r\n\r\n").find("400 "), std::string::npos);
}

// The library knows few statuses, and calls all others internal errors.
TEST_F(ListenerTest, EveryStatusThatIsSentHasItsOwnWords) {
    std::set<int> statuses = {200, 201, 202, 204, 304};
    for (int code = 0; code <= int(ErrorCode::kInternal); ++code)
        statuses.insert(proto::error_info(ErrorCode(code)).http_status);
    std::map<std::string, int> by_reason;
    for (const int status : statuses) {
        const std::string answer =
            raw("GET /status/" + std::to_string(status) + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", true);
        const std::string expected = "HTTP/1.1 " + std::to_string(status) + " ";
        ASSERT_EQ(answer.substr(0, expected.size()), expected);
        const std::string reason = answer.substr(expected.size(), answer.find("\r\n") - expected.size());
        EXPECT_NE(reason, "Other") << status;
        const auto [other, is_new] = by_reason.emplace(reason, status);
        EXPECT_TRUE(is_new) << "of " << other->second << " and " << status << ": " << reason;
    }
    EXPECT_EQ(by_reason["Client Closed Request"], 499);
    EXPECT_EQ(by_reason["Insufficient Storage"], 507);
}

TEST_F(ListenerTest, UploadsComeInPiecesAndWhole) {
    std::string body(kUploadMax, '\x01');
    auto result = client().Put("/upload", body, "application/octet-stream");
    ASSERT_TRUE(bool(result));
    EXPECT_EQ(result->body, "300000 300000");
    EXPECT_LT(largest_piece.load(), body.size() / 4);
    EXPECT_EQ(client().Put("/upload", body.substr(0, 5), "multipart/form-data; boundary=x")->body, "5 5");
    EXPECT_EQ(client().Put("/upload", "", "a/b")->body, "0 0");
}

TEST_F(ListenerTest, APostWithoutLengthHasNoBodyAndDoesNotWaitForOne) {
    auto begin = std::chrono::steady_clock::now();
    EXPECT_NE(raw("POST /echo HTTP/1.1\r\nHost: x\r\n\r\n").find("200 OK"), std::string::npos);
    EXPECT_NE(raw("DELETE /echo HTTP/1.1\r\nHost: x\r\n\r\n").find("deleted"), std::string::npos);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
}

TEST_F(ListenerTest, WhatIsTooLargeIs413WhetherItIsGatheredOrOnItsWay) {
    httplib::Client one = client();
    one.set_keep_alive(true);
    EXPECT_EQ(one.Put("/upload", std::string(kUploadMax + 1, 'a'), "a/b")->status, 413);
    EXPECT_EQ(one.Post("/echo", std::string(kBodyMax + 1, 'a'), "a/b")->status, 413);
    EXPECT_EQ(one.Post("/echo", std::string(kBodyMax, 'a'), "a/b")->status, 200);
    // What is refused is taken in all the same: who sends first and reads then gets the answer, and the connection
    // ends.
    std::string large =
        "PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n" + std::string(8000000, 'a');
    std::string answer = raw(large, true);
    EXPECT_NE(answer.find("HTTP/1.1 413"), std::string::npos) << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
}

TEST_F(ListenerTest, WhatAHandlerLeavesIsNeverTakenForTheNextRequest) {
    std::string hidden = "DELETE /echo HTTP/1.1\r\nHost: x\r\n\r\n";
    for (const char* path : {"/ignore", "/half", "/nothing"}) {
        std::string body = std::string(20000, ' ') + hidden;
        std::string request = std::string("PUT ") + path +
                              " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                              body;
        std::string answers = raw(request, false, "GET /things/fixed HTTP/1.1\r\nHost: x\r\n\r\n");
        EXPECT_EQ(answers.find("deleted"), std::string::npos) << path;
        EXPECT_NE(answers.find("fixed"), std::string::npos) << path;
    }
}

class ImpatientListenerTest : public ListenerTest {
  protected:
    ImpatientListenerTest() : ListenerTest(kPatience) {}
};

TEST_F(ImpatientListenerTest, MoreThanIsTakenInForNothingIsAnsweredAndEnded) {
    std::string hidden = "DELETE /echo HTTP/1.1\r\nHost: x\r\n\r\n";
    std::string answers = raw("PUT /ignore HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", false, hidden);
    EXPECT_EQ(count(answers), 1) << answers;
    EXPECT_TRUE(closed);
}

TEST_F(ListenerTest, UnclearFramingIsRefusedAndClosed) {
    for (const char* header :
         {"Content-Length: 5\r\nTransfer-Encoding: chunked", "Content-Length: 5\r\nContent-Length: 6",
          "Content-Length: x", "Content-Length: -1", "Content-Length: 5, 5", "Content-Length: +5",
          "Content-Length: 5 5", "Content-Length : 5", "Content-Length: 99999999999999999999999"}) {
        std::string answer = raw("POST /echo HTTP/1.1\r\nHost: x\r\n" + std::string(header) +
                                     "\r\n\r\nGET /things/fixed HTTP/1.1\r\nHost: x\r\n\r\n",
                                 true);
        EXPECT_EQ(count(answer), 1) << header << answer;
        EXPECT_NE(answer.find("HTTP/1.1 400"), std::string::npos) << header << answer;
        EXPECT_NE(answer.find("\"invalid_request\""), std::string::npos) << header << answer;
        EXPECT_TRUE(closed) << header;
    }
    EXPECT_NE(raw("GET /things/fixed HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", true).find("400"),
              std::string::npos);
}

TEST_F(ListenerTest, MethodsThatNobodyHasAreNotAllowed) {
    for (const char* method : {"TRACE", "CONNECT", "QUERY", "PROPFIND"}) {
        for (const char* body : {"\r\n", "Content-Length: 3\r\n\r\nabc"}) {
            std::string answer = raw(method + std::string(" /things/a HTTP/1.1\r\nHost: x\r\n") + body, true);
            EXPECT_NE(answer.find("HTTP/1.1 405"), std::string::npos) << answer;
            EXPECT_NE(answer.find("Allow: GET"), std::string::npos) << answer;
            EXPECT_EQ(count(answer), 1) << answer;
            EXPECT_TRUE(closed) << method;
        }
        EXPECT_NE(raw(method + std::string(" /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"), true).find("HTTP/1.1 404"),
                  std::string::npos);
    }
    EXPECT_NE(raw("GET /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", true).find("HTTP/1.1 405"),
              std::string::npos);
    EXPECT_NE(raw("get /things/a HTTP/1.1\r\nHost: x\r\n\r\n", true).find("HTTP/1.1 400"), std::string::npos);
}

// Of the second only the handler can know: it is more than the guard gathers.
TEST_F(ImpatientListenerTest, ABodyThatComesByteByByteIsNotWaitedForToItsEnd) {
    for (size_t size : {size_t(1000), size_t(200000)}) {
        const OwnedFd fd = connect();
        std::string head = "PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(size) + "\r\n\r\n";
        if (size > 1000) head += std::string(64 << 10, 'a');
        auto begin = std::chrono::steady_clock::now();
        send(fd.get(), head.data(), head.size(), 0);
        std::string answer;
        char buffer[1000];
        while (answer.find("\r\n\r\n") == std::string::npos &&
               std::chrono::steady_clock::now() - begin < std::chrono::seconds(9)) {
            send(fd.get(), "a", 1, MSG_NOSIGNAL);
            ssize_t n = recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
            if (n > 0) answer.append(buffer, size_t(n));
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        EXPECT_GE(std::chrono::steady_clock::now() - begin, kPatience);
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9))
            << "without the option it would be 10";
        EXPECT_NE(answer.find("HTTP/1.1 408"), std::string::npos) << answer;
        EXPECT_EQ(n_uploads_ended.load(), size > 1000 ? 1 : 0);
    }
    EXPECT_EQ(last_code.load(), ErrorCode::kRequestTimeout);
}

TEST_F(ListenerTest, ABodyThatBreaksOffEndsItsUploadWithAnError) {
    OwnedFd fd = connect();
    std::string part = "PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + std::string(100000, 'a');
    send(fd.get(), part.data(), part.size(), 0);
    ASSERT_TRUE(soon([&] { return n_uploads_begun == 1; }));
    EXPECT_EQ(n_uploads_ended.load(), 0);
    fd.reset();
    EXPECT_TRUE(soon([&] { return n_uploads_ended == 1; }));
    EXPECT_EQ(last_code.load(), ErrorCode::kInvalidRequest);
    // What never was whole is refused by the guard itself.
    EXPECT_EQ(n_uploads_ended.load(), 1);
    const OwnedFd half = connect();
    std::string few = "PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc";
    send(half.get(), few.data(), few.size(), 0);
    shutdown(half.get(), SHUT_WR);
    EXPECT_NE(exchange(half, "", true).find("HTTP/1.1 400"), std::string::npos);
    EXPECT_EQ(n_uploads_ended.load(), 1);
}

TEST_F(ListenerTest, AClientThatResetsBeforeTheFirstQuestionIsGone) {
    for (bool reset : {false, true}) {
        client_had_its_moment = false;
        int n_ended = n_gone_ended;
        OwnedFd fd = connect();
        std::string request = "GET /gone HTTP/1.1\r\nHost: x\r\n\r\n";
        send(fd.get(), request.data(), request.size(), 0);
        while (n_gone_begun == n_ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        linger at_once{1, 0};
        if (reset) setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        fd.reset();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        client_had_its_moment = true;
        while (n_gone_ended == n_ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_EQ(n_gone_seen.load(), n_gone_ended.load()) << (reset ? "reset" : "closed");
    }
    EXPECT_EQ(client().Get("/gone")->body, "here");
    EXPECT_EQ(n_gone_seen.load(), n_gone_ended.load() - 1) << "who waits is not gone";
}

TEST_F(ListenerTest, StopWaitsForAnswersButNotForIdleOrHalfSentConnections) {
    const OwnedFd idle = connect();
    std::string whole = "GET /things/fixed HTTP/1.1\r\nHost: x\r\n\r\n";
    EXPECT_NE(exchange(idle, whole, false).find("fixed"), std::string::npos);  // kept alive
    const OwnedFd half = connect();
    send(half.get(), whole.data(), 20, 0);
    const OwnedFd busy = connect();
    std::string wait = "GET /gone HTTP/1.1\r\nHost: x\r\n\r\n";
    send(busy.get(), wait.data(), wait.size(), 0);
    while (n_gone_begun == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    auto begin = std::chrono::steady_clock::now();
    std::thread release([this] {
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        client_had_its_moment = true;
    });
    listener->stop();
    // The library would wait 5 s for the idle one and 30 s for the other.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(4500));
    release.join();
    EXPECT_NE(exchange(busy, "", false).find("here"), std::string::npos);
}

TEST_F(ListenerTest, StreamsComeWholeAndTheConnectionGoesOn) {
    httplib::Client one = client();
    one.set_keep_alive(true);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(one.Get("/stream")->body, "part0part1part2");
    EXPECT_EQ(listener->counts().n_accepted, 1u);
}

TEST_F(ListenerTest, StreamsToHttp10AreNotInChunksAndEndWithTheConnection) {
    for (const char* fields : {"", "Connection: keep-alive\r\n"}) {
        const std::string answer = raw("GET /stream HTTP/1.0\r\n" + std::string(fields) + "\r\n", true);
        EXPECT_TRUE(answer.ends_with("\r\n\r\npart0part1part2")) << answer;
        EXPECT_EQ(answer.find("Transfer-Encoding"), std::string::npos) << answer;
        EXPECT_EQ(answer.find("Content-Length"), std::string::npos) << answer;
        EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
    }
}

TEST_F(ListenerTest, RangesAreNotServed) {
    for (const char* range : {"bytes=0-1", "bytes=0-,0-,0-,0-", "bytes=999-", "bytes=-2"}) {
        auto answer = client().Get("/things/fixed", {{"Range", range}});
        EXPECT_EQ(answer->status, 200) << range;
        EXPECT_EQ(answer->body, "fixed") << range;
    }
}

TEST(Router, AWordOfTheInterfaceIsNotTakenForAName) {
    Router router;
    router.add("GET", "/a/{}", access::Access::open(),
               [](const HttpRequest& request) { return json_reply(request.params.at(0)); });
    router.add("POST", "/a/validate", access::Access::open(), [](const HttpRequest&) { return json_reply("valid"); });
    const auto answer = [&](const char* method, const char* target) {
        HttpRequest request;
        request.method = method;
        request.target = target;
        EXPECT_EQ(router.serves(method, target), router.handle(request).status == 200) << method << target;
        return router.handle(request);
    };
    EXPECT_EQ(answer("GET", "/a/x").body, "x");
    EXPECT_EQ(answer("HEAD", "/a/x").status, 200);
    EXPECT_EQ(answer("POST", "/a/validate").body, "valid");
    EXPECT_EQ(answer("GET", "/a/validate").status, 405);
    EXPECT_EQ(answer("GET", "/a/validate").headers.back(), (std::pair<std::string, std::string>{"Allow", "POST"}));
    EXPECT_EQ(answer("POST", "/a/x").status, 405);
    EXPECT_EQ(answer("GET", "/b").status, 404);
}

TEST(Listener, AnAddressThatIsNotThisMachinesIsToldFromATakenPort) {
    auto unknown = open_tcp("999.1.1.1", 0);
    ASSERT_FALSE(unknown.ok());
    EXPECT_NE(unknown.error().message.find("expected an address of this machine"), std::string::npos);
    auto first = open_tcp("127.0.0.1", 0);
    ASSERT_TRUE(first.ok());
    auto taken = open_tcp("127.0.0.1", bound_port(first->fd.get()));
    ASSERT_FALSE(taken.ok());
    EXPECT_NE(taken.error().message.find("choose another"), std::string::npos);
}

}  // namespace
}  // namespace lorad::server::listener_test
