// The HTTP guard over real sockets: what holds a connection, what ends it, TLS, Unix sockets.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/log.h"
#include "server/http/listener.h"
#include "tests/server/raw_socket.h"
#include "tests/support/soon.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::guard_test {
namespace {

using Clock = std::chrono::steady_clock;
using lorad::testing::soon;
using std::chrono::milliseconds;

constexpr const char* kGet = "GET /x HTTP/1.1\r\nHost: x\r\n\r\n";

class GuardTest : public ::testing::Test {
  protected:
    GuardTest() {
        set_log_level(LogLevel::kError);
        router.add("GET", "/x", access::Access::open(), [](const HttpRequest& r) {
            return json_reply("peer=" + r.peer + (r.listener == ListenerRole::kAdmin ? " admin" : ""));
        });
        router.add("POST", "/echo", access::Access::open(), [](const HttpRequest& r) { return json_reply(r.body); });
        router.add(
            "PUT", "/ignore", access::Access::open(), [](const HttpRequest&) { return json_reply("ignored"); },
            BodyUse::kStreamed);
        router.add("GET", "/flood", access::Access::open(), [this](const HttpRequest&) {
            HttpReply reply;
            reply.stream = [this](HttpSink& sink) {
                const std::string piece(4096, 'x');
                while (sink.write(piece)) n_flooded += piece.size();
                ++n_floods_ended;
            };
            return reply;
        });
        options.guard.n_workers = 2;
        options.body_bytes_max = 1 << 20;
    }
    ~GuardTest() override {
        if (listener) listener->stop();
        set_log_level(LogLevel::kInfo);
    }
    void start() {
        if (options.sockets.empty()) options.sockets.push_back(*open_tcp("127.0.0.1", 0));
        auto created = Listener::create(std::move(options), router, [](int) {});
        ASSERT_TRUE(created.ok()) << created.error().message;
        listener = std::move(*created);
        ASSERT_TRUE(listener->start().ok());
    }
    OwnedFd connect_tcp() { return connect_raw(listener->port()); }
    static void send_text(const OwnedFd& fd, std::string_view text) {
        send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    }
    // Until `end` has come, or the connection ends (closed = true).
    std::string receive(const OwnedFd& fd, const std::string& end = "\n") {
        std::string out;
        char buffer[4096];
        closed = false;
        while (end.empty() || out.find(end) == std::string::npos) {
            ssize_t n = recv(fd.get(), buffer, sizeof buffer, 0);
            if (n <= 0) {
                closed = n == 0 || errno == ECONNRESET;
                break;
            }
            out.append(buffer, size_t(n));
        }
        return out;
    }
    std::string all(const OwnedFd& fd) { return receive(fd, ""); }
    bool answers() {
        OwnedFd fd = connect_tcp();
        send_text(fd, kGet);
        return receive(fd, "peer=").find("200 OK") != std::string::npos;
    }
    uint64_t ends(GuardEnd end) { return listener->counts().ends[size_t(end)]; }

    Router router;
    ListenerOptions options;
    std::unique_ptr<Listener> listener;
    std::atomic<size_t> n_flooded{0};
    std::atomic<int> n_floods_ended{0};
    bool closed = false;
};

TEST_F(GuardTest, HalfSentHeadsHoldNoWorkerAndAreEndedAtTheirDeadline) {
    options.guard.head_time = milliseconds(600);
    options.guard.n_workers = 1;
    start();
    std::vector<OwnedFd> slow;
    for (int i = 0; i < 200; ++i) {
        slow.push_back(connect_tcp());
        send_text(slow.back(), std::string_view(kGet).substr(0, size_t(i % 20)));
    }
    EXPECT_TRUE(answers());
    const auto begin = Clock::now();
    for (size_t i = 0; i < slow.size(); ++i) {
        std::string answer = all(slow[i]);
        EXPECT_TRUE(closed);
        EXPECT_EQ(answer.find("HTTP/1.1 408 ") == 0, i % 20 != 0) << answer;
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(9)) << "without the option it would be 10";
    EXPECT_EQ(ends(GuardEnd::kHeadTimeout), 200u);
}

TEST_F(GuardTest, KeptConnectionsAreEndedAfterTheirIdleTime) {
    options.guard.idle_time = milliseconds(300);
    start();
    OwnedFd fd = connect_tcp();
    const auto begin = Clock::now();
    send_text(fd, kGet);
    EXPECT_NE(all(fd).find("peer=127.0.0.1"), std::string::npos);
    EXPECT_TRUE(closed);
    EXPECT_GE(Clock::now() - begin, milliseconds(290));
}

TEST_F(GuardTest, PipelinedRequestsAreAnsweredInOrder) {
    start();
    OwnedFd fd = connect_tcp();
    std::string requests;
    for (int i = 0; i < 20; ++i)
        requests += "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n" + std::to_string(10 + i);
    send_text(fd,
              requests + "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n99" + kGet);
    std::string answers = all(fd), order;
    for (size_t at = 0; (at = answers.find("\r\n\r\n", at)) != std::string::npos; at += 4)
        order += answers.substr(at + 4, 2) + " ";
    EXPECT_EQ(order, "10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 99 ");
    EXPECT_EQ(answers.find("peer="), std::string::npos) << "after Connection: close nothing is answered";
}

TEST_F(GuardTest, WhoAsksIsToldToSendWhereItsBodyIsRead) {
    start();
    OwnedFd fd = connect_tcp();
    send_text(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    EXPECT_EQ(receive(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    send_text(fd, "abc");
    EXPECT_NE(receive(fd, "abc").find("200 OK"), std::string::npos);
    send_text(fd, "PUT /ignore HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    std::string answer = all(fd);
    EXPECT_EQ(answer.find("HTTP/1.1 200 OK"), 0u) << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos) << "whether the body follows cannot be known";
    EXPECT_TRUE(closed);
}

TEST_F(GuardTest, AFullHouseTurnsAwayButIdleGuestsGiveTheirPlaceUp) {
    options.guard.n_connections_max = 16;
    start();
    std::vector<OwnedFd> guests;
    for (int i = 0; i < 16; ++i) {
        guests.push_back(connect_tcp());
        send_text(guests.back(), "GET");
    }
    EXPECT_TRUE(soon([&] { return listener->counts().n_open == 16; }));
    OwnedFd turned_away = connect_tcp();
    std::string answer = all(turned_away);
    EXPECT_EQ(answer.find("HTTP/1.1 503 "), 0u) << answer;
    EXPECT_NE(answer.find("too_many_connections"), std::string::npos);
    EXPECT_NE(answer.find("Retry-After: "), std::string::npos);
    EXPECT_EQ(ends(GuardEnd::kTotalCap), 1u);
    send_text(guests[3], std::string_view(kGet).substr(3));
    EXPECT_NE(receive(guests[3], "127.0.0.1").find("200 OK"), std::string::npos);
    EXPECT_TRUE(soon([&] { return answers(); })) << "the one that was answered makes room";
    EXPECT_EQ(all(guests[3]), "");
    EXPECT_TRUE(closed);
}

TEST_F(GuardTest, ListeningOutlivesTheLackOfDescriptors) {
    start();
    ASSERT_TRUE(answers());
    std::vector<OwnedFd> clients;
    for (int i = 0; i < 8; ++i) clients.push_back(OwnedFd(socket(AF_INET, SOCK_STREAM, 0)));
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    rlimit none = before;
    none.rlim_cur = 3;  // fewer than are open: every accept4 is EMFILE
    setrlimit(RLIMIT_NOFILE, &none);
    const auto begin = Clock::now();
    for (const OwnedFd& client : clients) (void)connect_to(client, listener->port());
    const bool lacked = soon([&] { return ends(GuardEnd::kNoDescriptors) >= 1; });
    std::this_thread::sleep_for(milliseconds(300));
    setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_TRUE(lacked);
    EXPECT_LE(int64_t(ends(GuardEnd::kNoDescriptors)), (Clock::now() - begin) / milliseconds(100) + 2)
        << "it pauses, it does not spin";
    EXPECT_TRUE(soon([&] { return answers(); }));
}

TEST_F(GuardTest, AReaderThatStopsIsCut) {
    options.guard.times.write_stall = milliseconds(400);
    start();
    OwnedFd fd(socket(AF_INET, SOCK_STREAM, 0));
    int small = 4096;
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    ASSERT_TRUE(connect_to(fd, listener->port()));
    const auto begin = Clock::now();
    send_text(fd, "GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(soon([&] { return n_floods_ended == 1; }));
    EXPECT_LT(Clock::now() - begin, milliseconds(4500)) << "without the option it would be 5 s";
    EXPECT_LT(n_flooded.load(), size_t(256) << 10) << "all that is kept for it";
    EXPECT_TRUE(soon([&] { return ends(GuardEnd::kStalled) == 1; }));
}

TEST_F(GuardTest, LargeBodiesThatDoNotComeLeaveWorkersToOthers) {
    options.guard.n_workers = 2;
    start();
    std::vector<OwnedFd> slow;
    for (int i = 0; i < 6; ++i) {
        slow.push_back(connect_tcp());
        send_text(slow.back(),
                  "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + std::string(100000, 'a'));
    }
    EXPECT_TRUE(soon([&] { return listener->counts().n_working == 1; }));
    EXPECT_TRUE(answers());
    // The rest comes after all: one after the other they are answered.
    for (OwnedFd& fd : slow) send_text(fd, std::string(100000, 'a'));
    for (OwnedFd& fd : slow) EXPECT_NE(receive(fd, std::string(1000, 'a')).find("200 OK"), std::string::npos);
}

TEST_F(GuardTest, AcceptingEndsBeforeServing) {
    start();
    OwnedFd fd = connect_tcp();
    send_text(fd, kGet);
    EXPECT_NE(receive(fd, "peer=127.0.0.1").find("Keep-Alive"), std::string::npos);
    listener->stop_accepting();
    EXPECT_TRUE(soon([&] { return connect_tcp().get() < 0; }));
    send_text(fd, kGet);
    std::string answer = all(fd);
    EXPECT_NE(answer.find("200 OK"), std::string::npos);
    EXPECT_NE(answer.find("Connection: close"), std::string::npos);
}

TEST_F(GuardTest, TheLastReplyOfAConnectionSaysThatItIsTheLast) {
    options.guard.n_requests_max = 5;
    start();
    OwnedFd fd = connect_tcp();
    for (int i = 1; i <= 5; ++i) {
        send_text(fd, kGet);
        std::string answer = receive(fd, "peer=127.0.0.1");
        EXPECT_NE(answer.find("200 OK"), std::string::npos) << "request " << i;
        EXPECT_EQ(answer.find("Connection: close") != std::string::npos, i == 5) << "request " << i;
    }
    EXPECT_EQ(all(fd), "");
    EXPECT_TRUE(closed);
}

TEST_F(GuardTest, WhoseFirstRequestComesWhileTheServerEndsIsAnswered) {
    options.guard.last_heads = std::chrono::seconds(60);
    start();
    OwnedFd late = connect_tcp();
    ASSERT_TRUE(soon([&] { return listener->counts().n_open == 1; }));
    std::thread stopping([&] { listener->stop(); });
    EXPECT_TRUE(soon([&] { return connect_tcp().get() < 0; }));
    send_text(late, kGet);
    std::string answer = all(late);
    EXPECT_NE(answer.find("200 OK"), std::string::npos) << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos);
    stopping.join();
}

TEST_F(GuardTest, WhoAsksNothingDoesNotHoldUpTheEnd) {
    options.guard.last_heads = milliseconds(100);
    start();
    OwnedFd silent = connect_tcp();
    ASSERT_TRUE(soon([&] { return listener->counts().n_open == 1; }));
    listener->stop();
    EXPECT_EQ(all(silent), "");
    EXPECT_TRUE(closed);
}

TEST_F(GuardTest, UnixSocketsHaveTheirModeAndRoleAndReplaceOnlyWhatIsDead) {
    const lorad::testing::TempDir folder;
    const std::string path = folder.path() / "s", file = folder.path() / "file";
    std::ofstream(file) << "x";
    EXPECT_FALSE(open_unix(file, 0600).ok());
    EXPECT_FALSE(open_unix(std::string(200, 'a'), 0600).ok());
    auto first = open_unix(path, 0600);
    ASSERT_TRUE(first.ok()) << first.error().message;
    struct stat info{};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_FALSE(open_unix(path, 0600).ok()) << "somebody listens";
    first->fd.reset();
    auto again = open_unix(path, 0660);
    ASSERT_TRUE(again.ok()) << again.error().message;
    again->role = ListenerRole::kAdmin;
    options.sockets.push_back(std::move(*again));
    start();
    OwnedFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, path.size());
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    send_text(fd, kGet);
    EXPECT_NE(receive(fd, "admin").find("peer=unix admin"), std::string::npos);
    listener->stop();
    EXPECT_FALSE(std::filesystem::exists(path));
}

// However early or late the guard's thread sees the stop.
TEST_F(GuardTest, AUnixSocketIsRemovedByAStopAtOnce) {
    const lorad::testing::TempDir folder;
    const std::string path = folder.path() / "s";
    for (int i = 0; i < 50; ++i) {
        auto socket = open_unix(path, 0600);
        ASSERT_TRUE(socket.ok()) << socket.error().message;
        ListenerOptions own;
        own.guard.n_workers = 1;
        own.sockets.push_back(std::move(*socket));
        auto created = Listener::create(std::move(own), router, [](int) {});
        ASSERT_TRUE(created.ok()) << created.error().message;
        ASSERT_TRUE(std::filesystem::exists(path));
        if (i % 2 == 0) {
            ASSERT_TRUE((*created)->start().ok());
        }
        (*created)->stop();
        ASSERT_FALSE(std::filesystem::exists(path)) << "stop " << i << (i % 2 == 0 ? "" : ", never started");
    }
}

TEST_F(GuardTest, OnlyListeningStreamSocketsAreAdopted) {
    auto own = open_tcp("127.0.0.1", 0);
    ASSERT_TRUE(own.ok());
    OwnedFd datagrams(socket(AF_INET, SOCK_DGRAM, 0)), silent(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_FALSE(adopt(datagrams.get()).ok());
    EXPECT_FALSE(adopt(silent.get()).ok());
    EXPECT_FALSE(adopt(9999).ok());
    auto adopted = adopt(own->fd.release());
    ASSERT_TRUE(adopted.ok());
    EXPECT_TRUE(adopted->is_inherited);
    options.sockets.push_back(std::move(*adopted));
    start();
    EXPECT_TRUE(answers());
}

// A certificate of its own serial number, signed by its own key.
void write_certificate(const std::string& cert_path, const std::string& key_path, long serial) {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* cert = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(cert), serial);
    X509_gmtime_adj(X509_getm_notBefore(cert), 0);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("lorad.test"), -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    X509_sign(cert, key, EVP_sha256());
    FILE* file = fopen(cert_path.c_str(), "w");
    PEM_write_X509(file, cert);
    fclose(file);
    file = fopen(key_path.c_str(), "w");
    PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
    fclose(file);
    X509_free(cert);
    EVP_PKEY_free(key);
}

class GuardTls : public GuardTest {
  protected:
    GuardTls() {
        options.tls_cert = folder.path() / "cert.pem";
        options.tls_key = folder.path() / "key.pem";
        write_certificate(options.tls_cert, options.tls_key, 1);
        options.sockets.push_back(*open_tcp("127.0.0.1", 0));
        options.sockets.back().tls = true;
        cert = options.tls_cert;
        key = options.tls_key;
    }
    // One request over TLS: the answer's begin, and the certificate's serial number.
    std::pair<std::string, long> ask(const std::string& request) {
        OwnedFd fd = connect_tcp();
        SSL_CTX* context = SSL_CTX_new(TLS_client_method());
        SSL* session = SSL_new(context);
        SSL_set_fd(session, fd.get());
        std::pair<std::string, long> out{"", -1};
        if (SSL_connect(session) == 1) {
            X509* peer = SSL_get1_peer_certificate(session);
            out.second = ASN1_INTEGER_get(X509_get_serialNumber(peer));
            X509_free(peer);
            for (size_t at = 0; at < request.size();) {
                int n = SSL_write(session, request.data() + at, int(request.size() - at));
                if (n <= 0) break;
                at += size_t(n);
            }
            char buffer[8192];
            for (int n = 0; (n = SSL_read(session, buffer, sizeof buffer)) > 0;) out.first.append(buffer, size_t(n));
        }
        SSL_free(session);
        SSL_CTX_free(context);
        return out;
    }
    static std::string closing_get() { return "GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"; }
    lorad::testing::TempDir folder;
    std::string cert, key;
};

TEST_F(GuardTls, RequestsLargeBodiesAndRepliesPass) {
    start();
    EXPECT_NE(ask(closing_get()).first.find("peer=127.0.0.1"), std::string::npos);
    const std::string body(900000, 'b');
    std::string answer =
        ask("POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
            "\r\n\r\n" + body)
            .first;
    EXPECT_NE(answer.find("200 OK"), std::string::npos);
    EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, body.size());
    EXPECT_NE(ask("GET /x HTTP/1.1\r\n\r\n").first.find("400 Bad Request"), std::string::npos);
}

TEST_F(GuardTls, PlainBytesAndSilenceEndWithTheHandshakesDeadline) {
    options.guard.head_time = milliseconds(3000);
    start();
    OwnedFd silent = connect_tcp(), plain = connect_tcp();
    send_text(plain, kGet);
    EXPECT_EQ(all(plain).find("HTTP/1.1"), std::string::npos);
    EXPECT_TRUE(soon([&] { return ends(GuardEnd::kTlsFailed) > 0; }));
    EXPECT_EQ(ends(GuardEnd::kTlsFailed), 1u) << "plain bytes are refused at once, not with the silent ones";
    EXPECT_EQ(all(silent), "");
    EXPECT_TRUE(closed);
    EXPECT_NE(ask(closing_get()).first.find("200 OK"), std::string::npos);
}

TEST_F(GuardTls, AReloadIsAllOrNothing) {
    start();
    EXPECT_EQ(ask(closing_get()).second, 1);
    write_certificate(cert, key, 2);
    EXPECT_EQ(ask(closing_get()).second, 1) << "not before it is asked for";
    ASSERT_TRUE(listener->reload_tls().ok());
    EXPECT_EQ(ask(closing_get()).second, 2);
    // A certificate whose key is another's, then no certificate at all.
    write_certificate(cert, key + ".other", 3);
    EXPECT_FALSE(listener->reload_tls().ok());
    std::ofstream(cert) << "nothing";
    Status broken = listener->reload_tls();
    ASSERT_FALSE(broken.ok());
    EXPECT_EQ(broken.error().code, ErrorCode::kInvalidConfig);
    EXPECT_EQ(ask(closing_get()).second, 2);
}

}  // namespace
}  // namespace lorad::server::guard_test
