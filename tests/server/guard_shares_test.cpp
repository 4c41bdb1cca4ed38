// What the guard keeps for others: probes and the end need no worker, a key's slow bodies have a share of the workers.
#include <atomic>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "proto/base/digest.h"
#include "proto/base/log.h"
#include "server/access/key_store.h"
#include "server/http/listener.h"
#include "tests/server/raw_socket.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::guard_shares_test {
namespace {

using Clock = std::chrono::steady_clock;
using lorad::testing::soon;
using std::chrono::milliseconds;

class GuardShares : public ::testing::Test {
  protected:
    GuardShares() {
        set_log_level(LogLevel::kError);
        router.add(
            "GET", "/alive", access::Access::open(), [](const HttpRequest&) { return json_reply("alive"); },
            BodyUse::kAtOnce);
        router.add("GET", "/stuck", access::Access::open(), [this](const HttpRequest&) {
            ++n_stuck;
            while (!released) std::this_thread::sleep_for(milliseconds(5));
            return json_reply("late");
        });
        router.add("POST", "/echo", access::Access::any_key(),
                   [](const HttpRequest& r) { return json_reply("n=" + std::to_string(r.body.size())); });
        options.guard.n_workers = 2;
        options.body_bytes_max = 1 << 20;
    }
    ~GuardShares() override {
        released = true;
        if (listener) listener->stop();
        set_log_level(LogLevel::kInfo);
    }
    void start() {
        options.sockets.push_back(*open_tcp("127.0.0.1", 0));
        auto created = Listener::create(std::move(options), router, [](int) {});
        ASSERT_TRUE(created.ok()) << created.error().message;
        listener = std::move(*created);
        ASSERT_TRUE(listener->start().ok());
    }
    void use_keys(access::SharedPlaces* shared = nullptr) {
        std::ofstream file(folder.path() / "keys");
        for (const char* id : {"a", "b"}) {
            const std::string digest = sha256_hex(std::as_bytes(std::span<const char>(key_of(id))));
            file << "{\"id\":\"" << id << "\",\"sha256\":\"" << digest << "\",\"scopes\":[\"generate\"]}\n";
        }
        file.close();
        auto created = access::KeyStore::create({.file = (folder.path() / "keys").string()});
        ASSERT_TRUE(created.ok()) << created.error().message;
        keys = std::move(*created);
        router.set_guard({.keys = keys.get(), .bodies = shared});
    }
    static std::string key_of(const std::string& id) { return "the-long-key-of-" + id; }
    static void send_text(const OwnedFd& fd, std::string_view text) {
        send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    }
    OwnedFd ask(std::string_view text) {
        OwnedFd fd = connect_raw(listener->port());
        send_text(fd, text);
        return fd;
    }
    // A body of so many bytes, of which more than the guard gathers is sent, but not all.
    OwnedFd slow_body(const std::string& id, size_t n_bytes = 200000) {
        return ask("POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key_of(id) +
                   "\r\nContent-Length: " + std::to_string(n_bytes) + "\r\n\r\n" + std::string(70000, 'x'));
    }
    std::string whole_body(const std::string& id, size_t n_bytes) {
        return receive(ask("POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key_of(id) +
                           "\r\nContent-Length: " + std::to_string(n_bytes) + "\r\n\r\n" + std::string(n_bytes, 'x')),
                       "n=");
    }
    static std::string receive(const OwnedFd& fd, const std::string& end) {
        timeval limit{20, 0};
        setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        std::string out;
        char buffer[4096];
        while (out.find(end) == std::string::npos) {
            ssize_t n = recv(fd.get(), buffer, sizeof buffer, 0);
            if (n <= 0) break;
            out.append(buffer, size_t(n));
        }
        return out;
    }

    lorad::testing::TempDir folder;
    access::SharedPlaces bodies{4 * 200000};  // outlives the listener's workers, as all that follows does
    std::unique_ptr<access::KeyStore> keys;
    Router router;
    ListenerOptions options;
    std::unique_ptr<Listener> listener;
    std::atomic<bool> released{false};
    std::atomic<int> n_stuck{0};
};

TEST_F(GuardShares, ProbesAreAnsweredWhileEveryWorkerIsStuck) {
    start();
    std::vector<OwnedFd> stuck;
    for (int i = 0; i < 5; ++i) stuck.push_back(ask("GET /stuck HTTP/1.1\r\nHost: x\r\n\r\n"));
    ASSERT_TRUE(soon([&] { return n_stuck == 2; }));
    OwnedFd probe = ask("GET /alive HTTP/1.1\r\nHost: x\r\n\r\n");
    std::string answer = receive(probe, "alive") + receive(ask("GET /alive?x=1 HTTP/1.0\r\nHost: x\r\n\r\n"), "alive");
    EXPECT_NE(answer.find("HTTP/1.1 200 OK\r\nConnection: keep-alive"), std::string::npos) << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
    send_text(probe, "HEAD /alive HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_NE(receive(probe, "\r\n\r\n").find("Content-Length: 5"), std::string::npos)
        << "the same connection, without the body";
    released = true;
    EXPECT_NE(receive(stuck[4], "late").find("200"), std::string::npos);
}

TEST_F(GuardShares, ManyProbesInOnePacketAreAnsweredOneByOne) {
    start();
    constexpr int kProbes = 900;
    std::string text;
    for (int i = 0; i < kProbes; ++i) text += "GET /alive HTTP/1.1\r\nHost: x\r\n\r\n";
    OwnedFd fd = ask(text + "GET /alive HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    const std::string answers = receive(fd, "Connection: close");
    int n = 0;
    for (size_t at = 0; (at = answers.find("HTTP/1.1 200", at)) != std::string::npos; ++at) ++n;
    EXPECT_EQ(n, kProbes + 1);
}

// The server ends although a handler never does; whoever started it has to end the process then.
TEST_F(GuardShares, AWorkerThatDoesNotEndDoesNotKeepTheServerFromEnding) {
    options.guard.last_handlers = milliseconds(200);
    options.guard.given_up = milliseconds(200);
    start();
    OwnedFd stuck = ask("GET /stuck HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_TRUE(soon([&] { return n_stuck == 1; }));
    const auto begin = Clock::now();
    EXPECT_FALSE(listener->stop());
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
    EXPECT_FALSE(listener->stop()) << "and says so again";
}

TEST_F(GuardShares, OneKeysSlowBodiesLeaveWorkersForAnothersBodies) {
    use_keys();
    options.guard.n_workers = 16;  // 8 wait for bodies: 4 of one key
    start();
    std::vector<OwnedFd> slow;
    for (int i = 0; i < 40; ++i) slow.push_back(slow_body("a"));
    ASSERT_TRUE(soon([&] { return listener->counts().n_working == 4; }));
    for (int i = 0; i < 3; ++i) EXPECT_NE(whole_body("b", 150000).find("n=150000"), std::string::npos);
    EXPECT_TRUE(soon([&] { return listener->counts().n_working == 4; }));
    // One that ends makes room for one that waits, of the same key.
    send_text(slow[0], std::string(130000, 'x'));
    EXPECT_NE(receive(slow[0], "n=").find("n=200000"), std::string::npos);
    EXPECT_TRUE(soon([&] { return listener->counts().n_working == 4; }));
    for (OwnedFd& fd : slow) fd.reset();
    EXPECT_TRUE(soon([&] { return listener->counts().n_open == 0; }));
    EXPECT_NE(whole_body("a", 150000).find("n=150000"), std::string::npos);
}

TEST_F(GuardShares, OneKeysBodiesTakeHalfOfTheMemoryForThem) {
    use_keys(&bodies);
    options.guard.n_workers = 16;
    start();
    OwnedFd one = slow_body("a"), two = slow_body("a");
    ASSERT_TRUE(soon([&] { return bodies.n_taken() == 400000; }));
    const std::string refused = receive(slow_body("a"), "}}");
    EXPECT_NE(refused.find("HTTP/1.1 429"), std::string::npos) << refused;
    EXPECT_NE(refused.find("Retry-After"), std::string::npos);
    EXPECT_NE(refused.find("server_overloaded"), std::string::npos);
    EXPECT_NE(whole_body("b", 200000).find("n=200000"), std::string::npos);
    EXPECT_NE(whole_body("a", 50000).find("n=50000"), std::string::npos) << "small ones are not counted";
    one.reset();
    EXPECT_TRUE(soon([&] { return bodies.n_taken() == 200000; }));
}

}  // namespace
}  // namespace lorad::server::guard_shares_test
