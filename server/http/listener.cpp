#include "server/http/listener.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <exception>
#include <limits>
#include <new>
#include <stdexcept>

#include <httplib.h>
#include <sys/resource.h>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/log_failure.h"
#include "server/http/bounded_body.h"
#include "server/http/guard/plain_reply.h"
#include "server/http/request_id.h"
#include "server/memory_reserve.h"
#include "server/memory_return.h"

namespace lorad::server {
namespace {

// The exchange that this worker is in: the library's handlers are told of its own objects only.
thread_local Exchange* t_exchange = nullptr;

// The library has words for fewer statuses than we send, and those of 500 for all others.
std::string with_our_reason(std::string_view head) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    const size_t status_at = line.find(' ') + 1, reason_at = line.find(' ', status_at);
    int status = 0;
    if (reason_at == std::string_view::npos ||
        std::from_chars(line.data() + status_at, line.data() + reason_at, status).ec != std::errc())
        return std::string(head);
    return format("{} {}{}", line.substr(0, reason_at), reason_phrase(status), head.substr(line.size()));
}

// The library's input in place of the network: a head written here. Target, fields and body stay with the guard.
class ExchangeStream final : public httplib::Stream {
  public:
    ExchangeStream(Exchange& exchange, std::string head) : exchange_(exchange), head_(std::move(head)) {}

    // The releases differ in which of these they have; none says `override`.
    bool is_readable() const { return at_ < head_.size(); }
    bool wait_readable() const { return is_readable(); }
    bool is_writable() const { return !failed_; }
    bool wait_writable() const { return !failed_; }
    bool is_peer_alive() const { return !failed_; }
    time_t duration() const { return 0; }
    ssize_t read(char* out, size_t size) {
        size_t n = head_.copy(out, size, at_);
        at_ += n;
        return static_cast<ssize_t>(n);
    }
    ssize_t write(const char* bytes, size_t size) {
        std::string_view piece(bytes, size);
        std::string first;
        if (!has_written_) piece = first = with_our_reason(piece);
        // Later releases end connections after errors by themselves.
        if (!has_written_ &&
            piece.substr(0, piece.find("\r\n\r\n")).find("\r\nConnection: close") != std::string_view::npos)
            exchange_.close_after();
        has_written_ = true;
        failed_ = failed_ || !exchange_.write(piece);
        return failed_ ? -1 : static_cast<ssize_t>(size);
    }
    void get_remote_ip_and_port(std::string& ip, int& port) const {
        ip = exchange_.peer();
        port = 0;
    }
    void get_local_ip_and_port(std::string&, int&) const {}
    socket_t socket() const { return INVALID_SOCKET; }

  private:
    Exchange& exchange_;
    const std::string head_;
    size_t at_ = 0;
    bool has_written_ = false;
    bool failed_ = false;
};

class LibraryServer final : public httplib::Server {
  public:
    // It never listens; without a socket it would take itself to be stopping and cut streams off.
    LibraryServer() { svr_sock_ = std::numeric_limits<socket_t>::max(); }

    // Templates so that the one branch that does not fit the installed release is not compiled.
    template <typename AnyStream>
    bool answer(AnyStream& stream, const std::string& peer) {
        bool closed = false;
        const std::function<void(httplib::Request&)> nothing;
        if constexpr (requires { this->process_request(stream, peer, 0, peer, 0, false, closed, nothing); }) {
            return this->process_request(stream, peer, 0, std::string(), 0, false, closed, nothing);
        } else {
            return this->process_request(stream, false, closed, nothing);
        }
    }
};

class LibrarySink final : public HttpSink {
  public:
    LibrarySink(httplib::DataSink& sink, Exchange& exchange) : sink_(sink), exchange_(exchange) {}
    bool write(std::string_view bytes) override {
        gone_ = client_gone() || !sink_.write(bytes.data(), bytes.size());
        return !gone_;
    }
    bool client_gone() override { return gone_ || exchange_.client_gone(); }
    bool gone() const { return gone_; }

  private:
    httplib::DataSink& sink_;
    Exchange& exchange_;
    bool gone_ = false;
};

bool is_routed(std::string_view method) {
    return method == "GET" || method == "HEAD" || method == "POST" || method == "PUT" || method == "PATCH" ||
           method == "DELETE" || method == "OPTIONS";
}
bool may_have_body(std::string_view method) {
    return method == "POST" || method == "PUT" || method == "PATCH" || method == "DELETE";
}

// Room for all connections beside the files of models and adapters. What the system does not give, the cap has to do
// without.
uint32_t connections_with_descriptors(uint32_t n_wanted) {
    constexpr rlim_t kOthers = 512;
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return n_wanted;
    if (limit.rlim_cur < n_wanted + kOthers) {
        limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, n_wanted + kOthers);
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur >= n_wanted + kOthers) return n_wanted;
    const auto n = static_cast<uint32_t>(std::max<rlim_t>(limit.rlim_cur / 2, 16));
    log_warn("only {} file descriptors: at most {} connections, not {}", static_cast<uint64_t>(limit.rlim_cur), n,
             n_wanted);
    return n;
}

}  // namespace

struct Listener::Impl {
    ListenerOptions options;
    const Router* router = nullptr;
    std::function<void(int)> on_response;
    LibraryServer library;
    std::unique_ptr<Guard> guard;
    uint32_t port = 0;

    void set_up_library();
    void serve(Exchange& exchange);
    void serve_checked(Exchange& exchange);
    HttpReply run_handler(Exchange& exchange, HttpBody* body) const;
    std::optional<HttpReply> at_once(const RequestHead& head) const;
    HttpReply handled(HttpRequest ours) const;
    void add_common_headers(const RequestHead& head, const std::string& request_id, HttpReply& reply) const;
    HttpReply refusal(const RequestHead& head, const Error& error) const;
    void answer(HttpReply reply, Exchange& exchange, httplib::Response& response) const;
    void answer_and_close(const HttpReply& reply, Exchange& exchange) const;
    Status load_tls();
};

HttpReply Listener::Impl::run_handler(Exchange& exchange, HttpBody* body) const {
    const RequestHead& head = exchange.head();
    const auto field = [&](std::string_view name) { return std::string(head.value_of(name)); };
    HttpRequest ours;
    ours.method = head.method;
    ours.target = head.target;
    ours.content_type = field("Content-Type");
    ours.accept = field("Accept");
    ours.if_none_match = field("If-None-Match");
    ours.last_event_id = field("Last-Event-ID");
    ours.fairness_id = field("x-gateway-inference-fairness-id");
    ours.authorization = field("Authorization");
    ours.x_api_key = field("x-api-key");
    ours.request_id = request_id_of(head.value_of("x-request-id"));
    ours.peer = exchange.peer();
    if (options.guard.n_connections_per_address_max > 0) ours.address_key = exchange.address_key();
    ours.listener = exchange.role();
    ours.stream = body;
    ours.body_bytes_max = options.body_bytes_max;
    ours.client_gone = [&exchange] { return exchange.client_gone(); };
    const std::string request_id = ours.request_id;
    std::optional<HttpReply> preflight = options.cors.preflight(head);
    HttpReply reply = preflight ? std::move(*preflight) : handled(std::move(ours));
    add_common_headers(head, request_id, reply);
    return reply;
}

// On the guard's thread.
std::optional<HttpReply> Listener::Impl::at_once(const RequestHead& head) const {
    if (!router->answers_at_once(head.method, head.target)) return std::nullopt;
    HttpRequest ours;
    ours.method = head.method;
    ours.target = head.target;
    ours.request_id = request_id_of(head.value_of("x-request-id"));
    const std::string request_id = ours.request_id;
    HttpReply reply = handled(std::move(ours));
    add_common_headers(head, request_id, reply);
    return reply;
}

HttpReply Listener::Impl::handled(HttpRequest ours) const {
    const std::string target = ours.target;
    const auto no_memory = [&] {
        return router->error_for(target, make_error(ErrorCode::kOutOfMemory, "the server is out of memory; try again"));
    };
    const auto internal_error = [&](const std::exception& why) {
        log_failure("a request handler threw", why);
        return router->error_for(target, make_error(ErrorCode::kInternal, "internal error"));
    };
    try {
        // Requests that free memory, or report it, go on.
        const bool takes_memory = ours.method == "POST" || ours.method == "PUT";
        if (takes_memory && !memory_reserve_is_whole()) return no_memory();
        return router->handle(std::move(ours));
    } catch (const std::bad_alloc&) {
        return no_memory();
    } catch (const std::exception& exception) {
        return internal_error(exception);
    } catch (...) {
        return internal_error(std::runtime_error("something that is no exception"));
    }
}

void Listener::Impl::add_common_headers(const RequestHead& head, const std::string& request_id,
                                        HttpReply& reply) const {
    reply.headers.emplace_back("x-request-id", request_id);
    // Anthropic's clients look for this name.
    if (head.target.starts_with("/v1/messages")) reply.headers.emplace_back("request-id", request_id);
    options.cors.add_headers(head, reply);
}

HttpReply Listener::Impl::refusal(const RequestHead& head, const Error& error) const {
    HttpReply reply = router->error_for(head.target, error);
    add_common_headers(head, request_id_of(head.value_of("x-request-id")), reply);
    return reply;
}

void Listener::Impl::answer(HttpReply reply, Exchange& exchange, httplib::Response& response) const {
    response.status = reply.status;
    for (const auto& [name, value] : reply.headers) response.set_header(name, value);
    if (!reply.stream) {
        response.set_content(reply.body, reply.content_type);
        return;
    }
    const auto send = [&exchange, stream = std::move(reply.stream)](size_t, httplib::DataSink& sink) {
        exchange.send_at_once();
        // The head goes out while the request still waits for its turn: clients and proxies see that it is served.
        if (!exchange.write({})) {
            exchange.close_after();
            return false;
        }
        LibrarySink ours(sink, exchange);
        try {
            stream(ours);
        } catch (const std::exception& exception) {
            log_failure("a streaming handler threw", exception);
            exchange.close_after();
            return false;
        }
        if (ours.gone()) {
            exchange.close_after();
            return false;
        }
        sink.done();
        return true;
    };
    if (exchange.head().is_1_0)
        response.set_content_provider(reply.content_type, send);
    else
        response.set_chunked_content_provider(reply.content_type, send);
}

void Listener::Impl::answer_and_close(const HttpReply& reply, Exchange& exchange) const {
    exchange.close_after();
    on_response(reply.status);
    exchange.write(closing_reply(reply, exchange.head().method == "HEAD"));
}

void Listener::Impl::serve_checked(Exchange& exchange) {
    const RequestHead& head = exchange.head();
    const std::string method(head.method);
    // The library does not know the method, or a method without a body has one. What nobody serves is 404 or 405 even
    // so.
    const bool has_stray_body = head.body_bytes > 0 && !may_have_body(method);
    if (has_stray_body && router->serves(method, std::string(head.target))) {
        return answer_and_close(
            refusal(head, make_error(ErrorCode::kInvalidRequest, "malformed HTTP request: a body where none belongs")),
            exchange);
    }
    if (has_stray_body || !is_routed(method)) return answer_and_close(run_handler(exchange, nullptr), exchange);
    ExchangeStream stream(exchange, method + " / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    t_exchange = &exchange;
    // False: what it began to write has no end.
    if (!library.answer(stream, exchange.peer())) exchange.close_after();
    t_exchange = nullptr;
}

void Listener::Impl::serve(Exchange& exchange) {
    try {
        serve_checked(exchange);
    } catch (const std::exception& exception) {
        t_exchange = nullptr;
        log_failure("a request's answer failed", exception);
        exchange.close_after();
    }
    if (exchange.head().body_bytes >= kLargeBodyBytes) note_large_request();
}

void Listener::Impl::set_up_library() {
    library.set_keep_alive_timeout(options.guard.idle_time.count() / 1000);
    library.set_keep_alive_max_count(options.guard.n_requests_max);
    library.set_logger([this](const httplib::Request&, const httplib::Response& response) {
        on_response(response.status);
        const RequestHead& head = t_exchange->head();
        log_debug("{} {} {} request_id={}", head.method, head.target.substr(0, head.target.find('?')), response.status,
                  response.get_header_value("x-request-id"));
    });
    library.set_error_handler([this](const httplib::Request&, httplib::Response& response) {
        if (!response.body.empty()) return;
        HttpReply reply =
            router->error_for(t_exchange->head().target, make_error(ErrorCode::kInternal, "internal error"));
        response.set_content(reply.body, reply.content_type);
    });
    const auto handle = [this](const httplib::Request& request, httplib::Response& response) {
        Exchange& exchange = *t_exchange;
        BoundedBody body(exchange);
        HttpReply reply = run_handler(exchange, may_have_body(exchange.head().method) ? &body : nullptr);
        // The end of a stream that is not in chunks is that of the connection.
        if (reply.stream && exchange.head().is_1_0) exchange.close_after();
        // The library says so where the request says so. The object is its own and not const there.
        if (exchange.closes()) const_cast<httplib::Request&>(request).headers.emplace("Connection", "close");
        answer(std::move(reply), exchange, response);
    };
    library.Get("/", handle);
    library.Options("/", handle);
    library.Post("/", handle);
    library.Put("/", handle);
    library.Patch("/", handle);
    library.Delete("/", handle);
}

Status Listener::Impl::load_tls() {
    TRY_ASSIGN(std::shared_ptr<const TlsContext> tls, TlsContext::load(options.tls_cert, options.tls_key));
    guard->set_tls(std::move(tls));
    return ok_status();
}

Listener::Listener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Listener::~Listener() { (void)stop(); }

Result<std::unique_ptr<Listener>> Listener::create(ListenerOptions options, const Router& router,
                                                   std::function<void(int)> on_response) {
    auto impl = std::make_unique<Impl>();
    bool wants_tls = false;
    for (const ListeningSocket& socket : options.sockets) {
        wants_tls = wants_tls || socket.tls;
        if (impl->port == 0) impl->port = bound_port(socket.fd.get());
    }
    impl->router = &router;
    impl->on_response = std::move(on_response);
    options.guard.n_connections_max = connections_with_descriptors(options.guard.n_connections_max);
    std::vector<ListeningSocket> sockets = std::move(options.sockets);
    options.guard.refusal = [impl = impl.get()](const RequestHead& head, const Error& error) {
        return impl->refusal(head, error);
    };
    impl->options = std::move(options);
    impl->set_up_library();
    Guard::Handlers handlers;
    handlers.serve = [impl = impl.get()](Exchange& exchange) { impl->serve(exchange); };
    handlers.on_reply = impl->on_response;
    handlers.at_once = [impl = impl.get()](const RequestHead& head) { return impl->at_once(head); };
    handlers.tenant = [&router](const RequestHead& head) {
        return router.tenant_of(head.value_of("Authorization"), head.value_of("x-api-key"));
    };
    impl->guard = std::make_unique<Guard>(impl->options.guard, std::move(sockets), std::move(handlers));
    if (wants_tls) TRY(impl->load_tls());
    return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

Status Listener::start() { return impl_->guard->start(); }
void Listener::stop_accepting() { impl_->guard->stop_accepting(); }
bool Listener::stop() { return impl_->guard->stop(); }
Status Listener::reload_tls() { return impl_->options.tls_cert.empty() ? ok_status() : impl_->load_tls(); }
uint32_t Listener::port() const { return impl_->port; }
GuardCounts Listener::counts() const { return impl_->guard->counts(); }

}  // namespace lorad::server
