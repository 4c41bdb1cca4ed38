// The HTTP server: the guard (server/http/guard) reads requests, a worker has the HTTP library route and answer them.
// The only file pair that knows the library (private implementation in listener.cpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/base/result.h"
#include "server/http/cors.h"
#include "server/http/guard/guard.h"
#include "server/http/guard/listening.h"
#include "server/http/http.h"

namespace lorad::server {

struct ListenerOptions {
    std::vector<ListeningSocket> sockets;
    size_t body_bytes_max = 0;
    GuardOptions guard;
    // PEM files for the sockets with `tls`; both or neither.
    std::string tls_cert, tls_key;
    Cors cors;
};

// Threads: the guard has one of its own, each request runs on one of guard.n_workers. stop() ends accepting,
// lets running handlers return and joins all.
class Listener {
  public:
    // `router` outlives the listener; `on_response` is told every status, from any worker. kInvalidConfig.
    static Result<std::unique_ptr<Listener>> create(ListenerOptions options, const Router& router,
                                                    std::function<void(int status)> on_response);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    Status start();
    // Accepts nothing more; open connections are served on. A service manager's sockets keep their queue for the next
    // process.
    void stop_accepting();
    // False: a worker does not end; see Guard::stop().
    bool stop();

    // Reads certificate and key again, for connections from then on; with an error the old ones stay. Any thread.
    Status reload_tls();
    uint32_t port() const;  // the first TCP socket's; 0: there is none
    GuardCounts counts() const;

  private:
    struct Impl;
    explicit Listener(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace lorad::server
