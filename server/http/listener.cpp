#include "server/http/listener.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include <httplib.h>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "server/http/bounded_body.h"
#include "server/http/sockets.h"

namespace lorad::server {
namespace {

constexpr std::chrono::seconds kReadTimeout{30};  // for each read of a connection
// How long stop() waits before it ends the reading: of idle connections, and of requests on their way.
constexpr std::chrono::milliseconds kLastAnswers{500};
constexpr std::chrono::milliseconds kLastHandlers{5000};

// A template so that the newer library's own answer is used where it has one.
template <typename LibraryRequest>
std::function<bool()> client_gone_of(const LibraryRequest& request) {
    if constexpr (requires { request.is_connection_closed(); }) {
        return [&request] { return request.is_connection_closed(); };
    } else {
        // Looked up at the first question: most requests never wait. A client that has reset the
        // connection by then has left no peer to find.
        return [&request, socket = std::optional<int>()]() mutable {
            if (!socket) socket = find_socket(request.remote_addr, request.remote_port);
            return *socket == kNoSuchPeer || (*socket >= 0 && socket_closed_by_peer(*socket));
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

// The library's own pool ends the process where the system gives no more threads.
class Workers final : public httplib::TaskQueue {
  public:
    explicit Workers(uint32_t n_workers) {
        try {
            while (threads_.size() < n_workers) threads_.emplace_back([this] { run(); });
        } catch (const std::system_error& error) {
            log_warn("only {} of {} HTTP workers could be started: {}", threads_.size(), n_workers,
                     error.what());
        }
    }
    ~Workers() override { shutdown(); }

    void enqueue(std::function<void()> task) override {
        {
            std::lock_guard lock(mutex_);
            tasks_.push_back(std::move(task));
        }
        changed_.notify_one();
    }
    // Lets what was enqueued run.
    void shutdown() override {
        {
            std::lock_guard lock(mutex_);
            ended_ = true;
        }
        changed_.notify_all();
        for (std::thread& thread : threads_) thread.join();
        threads_.clear();
    }

  private:
    void run() {
        for (;;) {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return ended_ || !tasks_.empty(); });
            if (tasks_.empty()) return;
            std::function<void()> task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            task();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    bool ended_ = false;
    std::vector<std::thread> threads_;
};

HttpReply internal_error(const char* what) {
    log_error("a request handler threw: {}", what);
    return error_reply(make_error(ErrorCode::kInternal, "internal error"));
}

// What the library itself refused, in our envelope.
Error error_of_status(int status) {
    if (status >= 500) return make_error(ErrorCode::kInternal, "internal error");
    return make_error(ErrorCode::kInvalidRequest, "malformed HTTP request");
}

std::optional<uint64_t> declared_length(const httplib::Request& request) {
    return parse_length(request.get_header_value("Content-Length"));
}

BodyFraming framing_of(const httplib::Request& request) {
    BodyFraming framing;
    // Without either there is no body, and the library would wait for one.
    framing.has_body = request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
    if (!request.has_header("Transfer-Encoding") && !request.has_header("Content-Encoding"))
        framing.length = declared_length(request).value_or(0);
    return framing;
}

bool is_method(const std::string& method) {
    return !method.empty() && method.size() <= 32 &&
           std::all_of(method.begin(), method.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

bool is_routed(const std::string& method) {
    return method == "GET" || method == "HEAD" || method == "POST" || method == "PUT" ||
           method == "PATCH" || method == "DELETE" || method == "OPTIONS";
}

// Framing that two readers could understand differently is not understood at all (RFC 9112 6.3).
bool framing_is_clear(const httplib::Request& request) {
    size_t n_lengths = request.get_header_value_count("Content-Length");
    size_t n_encodings = request.get_header_value_count("Transfer-Encoding");
    if (n_lengths + n_encodings > 1) return false;
    if (n_lengths == 1 && !declared_length(request)) return false;
    if (n_encodings == 1 && request.get_header_value("Transfer-Encoding") != "chunked") return false;
    bool may_have_body = request.method == "POST" || request.method == "PUT" ||
                         request.method == "PATCH" || request.method == "DELETE";
    return may_have_body ||
           (n_encodings == 0 && declared_length(request).value_or(0) == 0);
}

// The whole answer, then the end of the connection: what follows on it cannot be trusted to be the
// next request.
void answer_and_close(const HttpReply& reply, httplib::Response& response) {
    response.status = reply.status;
    for (const auto& [name, value] : reply.headers) response.set_header(name, value);
    response.set_header("Connection", "close");
    response.set_content_provider(
        reply.body.size(), reply.content_type,
        [body = reply.body](size_t, size_t, httplib::DataSink& sink) {
            sink.write(body.data(), body.size());
            return false;  // the library closes what could not be answered
        });
}

class Busy {
  public:
    explicit Busy(std::atomic<uint32_t>& n_busy) : n_busy_(n_busy) { ++n_busy_; }
    ~Busy() { --n_busy_; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

  private:
    std::atomic<uint32_t>& n_busy_;
};

}  // namespace

struct Listener::Impl {
    ListenerOptions options;
    const Router* router = nullptr;
    std::function<void(int)> on_response;
    httplib::Server server;
    std::thread thread;
    std::atomic<bool> ended{false};           // `thread` has joined all workers
    mutable std::atomic<uint32_t> n_busy{0};  // requests between their handler's begin and their end
    int port = 0;
    int listening_socket = -1;

    void set_up();
    void set_up_routing();
    HttpReply run_handler(const httplib::Request& request, HttpBody* body,
                          std::string content_type) const;
    void answer(HttpReply reply, httplib::Response& response) const;
    void answer_with_body(const httplib::Request& request, httplib::Response& response,
                          const httplib::ContentReader& reader) const;
};

HttpReply Listener::Impl::run_handler(const httplib::Request& request, HttpBody* body,
                                      std::string content_type) const {
    HttpRequest ours;
    ours.method = request.method;
    ours.target = request.target;
    ours.content_type = std::move(content_type);
    ours.accept = request.get_header_value("Accept");
    ours.if_none_match = request.get_header_value("If-None-Match");
    ours.last_event_id = request.get_header_value("Last-Event-ID");
    ours.fairness_id = request.get_header_value("x-gateway-inference-fairness-id");
    ours.authorization = request.get_header_value("Authorization");
    ours.x_api_key = request.get_header_value("x-api-key");
    ours.peer = request.remote_addr;
    ours.stream = body;
    ours.body_bytes_max = options.body_bytes_max;
    ours.client_gone = client_gone_of(request);
    Busy busy(n_busy);
    try {
        return router->handle(std::move(ours));
    } catch (const std::exception& exception) {
        return internal_error(exception.what());
    } catch (...) {
        return internal_error("something that is no exception");
    }
}

void Listener::Impl::answer(HttpReply reply, httplib::Response& response) const {
    response.status = reply.status;
    for (const auto& [name, value] : reply.headers) response.set_header(name, value);
    if (!reply.stream) {
        response.set_content(reply.body, reply.content_type);
        return;
    }
    response.set_chunked_content_provider(
        reply.content_type, [this, stream = std::move(reply.stream)](size_t, httplib::DataSink& sink) {
            LibrarySink ours(sink);
            Busy busy(n_busy);
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

// What the handler leaves of the body is taken in, so that the connection stays in step.
void Listener::Impl::answer_with_body(const httplib::Request& request, httplib::Response& response,
                                      const httplib::ContentReader& reader) const {
    // Forms are parsed by proto/multipart.h; the library would parse them while it reads, without a
    // bound. The object is the library's own and not const there.
    std::string content_type = request.get_header_value("Content-Type");
    const_cast<httplib::Request&>(request).headers.erase("Content-Type");
    BoundedBody body(
        framing_of(request),
        [&reader](const BoundedBody::TakePiece& take) {
            return reader([&take](const char* data, size_t size) { return take(data, size); });
        },
        {options.body_patience, kReadTimeout});
    HttpReply reply = run_handler(request, &body, std::move(content_type));
    if (reply.stream || body.skip_rest()) {
        answer(std::move(reply), response);
    } else {
        answer_and_close(reply, response);
    }
}

void Listener::Impl::set_up() {
    server.set_socket_options([this](auto socket) {
        reuse_address_only(int(socket));
        listening_socket = int(socket);
    });
    server.set_tcp_nodelay(true);
    // Routes have their own bounds; the library's would read to its end what is over it.
    server.set_payload_max_length(std::numeric_limits<size_t>::max());
    server.set_read_timeout(kReadTimeout);
    server.set_write_timeout(30);
    server.set_keep_alive_timeout(5);
    server.set_keep_alive_max_count(1000);
    server.new_task_queue = [n = options.n_workers] { return new Workers(n); };

    set_up_routing();
    server.set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
            HttpReply reply = internal_error("outside of the route");
            response.status = reply.status;
            response.set_content(reply.body, reply.content_type);
        });
    server.set_error_handler([this](const httplib::Request& request, httplib::Response& response) {
        if (!response.body.empty() || response.has_header("Connection")) return;
        // Methods that the library does not even know end up here, with nothing but their line read.
        if (response.status == 400 && is_method(request.method) && !is_routed(request.method)) {
            answer_and_close(run_handler(request, nullptr, {}), response);
            return;
        }
        HttpReply reply = error_reply(error_of_status(response.status));
        response.set_content(reply.body, reply.content_type);
    });
    server.set_logger([this](const httplib::Request& request, const httplib::Response& response) {
        on_response(response.status);
        log_debug("{} {} {}", request.method, request.path, response.status);
    });
}

void Listener::Impl::set_up_routing() {
    server.set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
            // What nobody serves is 404 or 405 however it is framed; the connection ends in any case.
            bool is_clear = framing_is_clear(request);
            if (!is_routed(request.method) ||
                (!is_clear && !router->serves(request.method, request.target))) {
                answer_and_close(run_handler(request, nullptr, {}), response);
                return httplib::Server::HandlerResponse::Handled;
            }
            // The library would cut answers into what Range asks for, in as many parts as it names.
            // The object is its own and not const there.
            const_cast<httplib::Request&>(request).ranges.clear();
            if (is_clear) return httplib::Server::HandlerResponse::Unhandled;
            answer_and_close(error_reply(make_error(ErrorCode::kInvalidRequest,
                                                    "malformed HTTP request: it is not clear "
                                                    "where its body begins and ends")),
                             response);
            return httplib::Server::HandlerResponse::Handled;
        });
    auto without_body = [this](const httplib::Request& request, httplib::Response& response) {
        answer(run_handler(request, nullptr, request.get_header_value("Content-Type")), response);
    };
    auto with_body = [this](const httplib::Request& request, httplib::Response& response,
                            const httplib::ContentReader& reader) {
        answer_with_body(request, response, reader);
    };
    // Any path: the router decides. A dot would leave out decoded line breaks.
    const char* any = R"([\s\S]*)";
    server.Get(any, without_body);
    server.Options(any, without_body);
    server.Post(any, with_body);
    server.Put(any, with_body);
    server.Patch(any, with_body);
    server.Delete(any, with_body);
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
    TRY(check_host(options.host));
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
    widen_backlog(impl->listening_socket);
    return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

void Listener::start() {
    CHECK(!impl_->thread.joinable());
    impl_->thread = std::thread([impl = impl_.get()] {
        impl->server.listen_after_bind();
        impl->ended = true;
    });
    // stop() before the library has begun to accept would go unheard.
    while (!impl_->server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Listener::stop() {
    if (!impl_->thread.joinable()) return;
    impl_->server.stop();
    // Answers get a moment to leave. Then a client that keeps a connection for later, or sends its
    // request in drops, holds up nobody.
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    while (!impl_->ended) {
        auto patience = impl_->n_busy == 0 ? kLastAnswers : kLastHandlers;
        if (Clock::now() - begin > patience) hang_up(impl_->port);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    impl_->thread.join();
}

uint32_t Listener::port() const { return uint32_t(impl_->port); }

}  // namespace lorad::server
