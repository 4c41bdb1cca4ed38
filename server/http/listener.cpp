#include "server/http/listener.h"

#include <cstring>
#include <exception>
#include <thread>

#include <arpa/inet.h>
#include <dirent.h>
#include <httplib.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::server {
namespace {

constexpr int kBacklog = 1024;  // connections that wait to be accepted

// The peer's port of a connected TCP socket and, in `host`, its address; -1 for anything else.
int peer_of(int fd, std::string& host) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
    if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return -1;
    char host_text[NI_MAXHOST];
    char port_text[NI_MAXSERV];
    if (getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host_text, sizeof host_text,
                    port_text, sizeof port_text, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return -1;
    }
    host = host_text;
    return std::atoi(port_text);
}

// Older releases of the library do not say which socket a request came on. Its peer's address and
// port do: among the sockets of this process only one has them.
int find_socket(const httplib::Request& request) {
    DIR* folder = opendir("/proc/self/fd");
    if (folder == nullptr) return -1;
    int found = -1;
    std::string host;
    while (dirent* entry = readdir(folder)) {
        int fd = std::atoi(entry->d_name);
        if (entry->d_name[0] != '.' && peer_of(fd, host) == request.remote_port &&
            host == request.remote_addr) {
            found = fd;
            break;
        }
    }
    closedir(folder);
    return found;
}

bool socket_closed_by_peer(int fd) {
    pollfd state{fd, POLLRDHUP, 0};
    if (poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0)
        return true;
    char byte = 0;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// A template so that the newer library's own answer is used where it has one.
template <typename LibraryRequest>
std::function<bool()> client_gone_of(const LibraryRequest& request) {
    if constexpr (requires { request.is_connection_closed(); }) {
        return [&request] { return request.is_connection_closed(); };
    } else {
        // Looked up at the first question: most requests never wait.
        return [&request, fd = -2]() mutable {
            if (fd == -2) fd = find_socket(request);
            return fd >= 0 && socket_closed_by_peer(fd);
        };
    }
}

class LibrarySink final : public HttpSink {
  public:
    explicit LibrarySink(httplib::DataSink& sink) : sink_(sink) {}
    bool write(std::string_view bytes) override {
        gone_ = gone_ || !sink_.is_writable() || !sink_.write(bytes.data(), bytes.size());
        return !gone_;
    }
    bool client_gone() override { return gone_ || !sink_.is_writable(); }
    bool gone() const { return gone_; }

  private:
    httplib::DataSink& sink_;
    bool gone_ = false;
};

HttpReply internal_error(const char* what) {
    log_error("a request handler threw: {}", what);
    return error_reply(make_error(ErrorCode::kInternal, "internal error"));
}

// What the library itself refused, in our envelope.
Error error_of_status(int status) {
    switch (status) {
        case 404:
            return make_error(ErrorCode::kNotFound, "no such route");
        case 405:
            return make_error(ErrorCode::kMethodNotAllowed, "method not allowed");
        case 413:
            return make_error(ErrorCode::kPayloadTooLarge,
                              "the request body is larger than the server accepts");
        default:
            break;
    }
    if (status >= 500) return make_error(ErrorCode::kInternal, "internal error");
    return make_error(ErrorCode::kInvalidRequest, "malformed HTTP request");
}

}  // namespace

struct Listener::Impl {
    ListenerOptions options;
    const Router* router = nullptr;
    std::function<void(int)> on_response;
    httplib::Server server;
    std::thread thread;
    int port = 0;
    int listening_socket = -1;

    void set_up();
    HttpReply run_handler(const httplib::Request& request, std::string body) const;
    void answer(const httplib::Request& request, httplib::Response& response,
                std::string body) const;
    void answer_with_body(const httplib::Request& request, httplib::Response& response,
                          const httplib::ContentReader& reader) const;
};

HttpReply Listener::Impl::run_handler(const httplib::Request& request, std::string body) const {
    HttpRequest ours{request.method, request.path, std::move(body), client_gone_of(request)};
    try {
        return router->handle(ours);
    } catch (const std::exception& exception) {
        return internal_error(exception.what());
    } catch (...) {
        return internal_error("something that is no exception");
    }
}

void Listener::Impl::answer(const httplib::Request& request, httplib::Response& response,
                            std::string body) const {
    HttpReply reply = run_handler(request, std::move(body));
    response.status = reply.status;
    for (const auto& [name, value] : reply.headers) response.set_header(name, value);
    if (!reply.stream) {
        response.set_content(reply.body, reply.content_type);
        return;
    }
    response.set_chunked_content_provider(
        reply.content_type, [stream = std::move(reply.stream)](size_t, httplib::DataSink& sink) {
            LibrarySink ours(sink);
            try {
                stream(ours);
            } catch (const std::exception& exception) {
                log_error("a streaming handler threw: {}", exception.what());
                return false;
            }
            if (ours.gone()) return false;
            sink.done();
            return true;
        });
}

// The body is read before routing, so that a connection stays in step whatever the route answers.
void Listener::Impl::answer_with_body(const httplib::Request& request, httplib::Response& response,
                                      const httplib::ContentReader& reader) const {
    if (request.is_multipart_form_data()) {
        HttpReply reply = error_reply(
            make_error(ErrorCode::kInvalidRequest, "expected a JSON body, found a form"));
        response.status = 415;
        response.set_content(reply.body, reply.content_type);
        return;
    }
    std::string body;
    bool complete = reader([&](const char* data, size_t size) {
        if (body.size() + size > options.body_bytes_max) {
            response.status = 413;
            return false;
        }
        body.append(data, size);
        return true;
    });
    if (!complete) {
        // The error handler writes the envelope.
        if (response.status < 400)
            response.status = body.size() >= options.body_bytes_max ? 413 : 400;
        return;
    }
    answer(request, response, std::move(body));
}

void Listener::Impl::set_up() {
    // The library's default would let a second daemon share the port without a word.
    server.set_socket_options([this](auto socket) {
        int yes = 1;
        setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        listening_socket = int(socket);
    });
    server.set_tcp_nodelay(true);
    server.set_payload_max_length(options.body_bytes_max);
    server.set_read_timeout(30);
    server.set_write_timeout(30);
    server.set_keep_alive_timeout(5);
    server.set_keep_alive_max_count(1000);
    server.new_task_queue = [n = options.n_workers] { return new httplib::ThreadPool(n); };

    auto without_body = [this](const httplib::Request& request, httplib::Response& response) {
        answer(request, response, {});
    };
    auto with_body = [this](const httplib::Request& request, httplib::Response& response,
                            const httplib::ContentReader& reader) {
        answer_with_body(request, response, reader);
    };
    server.Get(".*", without_body);
    server.Post(".*", with_body);
    server.Put(".*", with_body);
    server.Patch(".*", with_body);
    server.Delete(".*", without_body);
    server.Options(".*", without_body);
    server.set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
            HttpReply reply = internal_error("outside of the route");
            response.status = reply.status;
            response.set_content(reply.body, reply.content_type);
        });
    server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
        if (!response.body.empty()) return;
        HttpReply reply = error_reply(error_of_status(response.status));
        response.set_content(reply.body, reply.content_type);
    });
    server.set_logger([this](const httplib::Request& request, const httplib::Response& response) {
        on_response(response.status);
        log_debug("{} {} {}", request.method, request.path, response.status);
    });
}

Listener::Listener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Listener::~Listener() { stop(); }

Result<std::unique_ptr<Listener>> Listener::create(const ListenerOptions& options,
                                                   const Router& router,
                                                   std::function<void(int)> on_response) {
    auto impl = std::make_unique<Impl>();
    impl->options = options;
    impl->router = &router;
    impl->on_response = std::move(on_response);
    impl->set_up();
    bool bound = false;
    if (options.port == 0) {
        impl->port = impl->server.bind_to_any_port(options.host);
        bound = impl->port > 0;
    } else {
        impl->port = int(options.port);
        bound = impl->server.bind_to_port(options.host, impl->port);
    }
    if (!bound) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("cannot listen on {}:{}: {}; choose another --host or --port",
                                 options.host, options.port, std::strerror(errno)));
    }
    // The library asks for a backlog of 5: more clients than that at once would be reset or wait a
    // second. Linux lets us ask again.
    ::listen(impl->listening_socket, kBacklog);
    return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

void Listener::start() {
    CHECK(!impl_->thread.joinable());
    impl_->thread = std::thread([impl = impl_.get()] { impl->server.listen_after_bind(); });
    // stop() before the library has begun to accept would go unheard.
    while (!impl_->server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Listener::stop() {
    if (!impl_->thread.joinable()) return;
    impl_->server.stop();
    impl_->thread.join();
}

uint32_t Listener::port() const { return uint32_t(impl_->port); }

}  // namespace lorad::server
