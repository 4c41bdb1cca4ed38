// The HTTP server: the only file pair that knows the HTTP library (private implementation in
// listener.cpp).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "proto/base/result.h"
#include "server/http/http.h"

namespace lorad::server {

struct ListenerOptions {
    std::string host;
    uint32_t port = 0;       // 0: any free one
    uint32_t n_workers = 0;  // one open request each
    size_t body_bytes_max = 0;
    // A body may take this long, and then a second for each 32 KiB.
    std::chrono::milliseconds body_patience{30000};
};

// Threads: accepts on one of its own, each request runs on one of n_workers. stop() ends accepting,
// lets running handlers return and joins all.
class Listener {
  public:
    // `router` outlives the listener; `on_response` is told every status, from any worker.
    static Result<std::unique_ptr<Listener>> create(const ListenerOptions& options,
                                                    const Router& router,
                                                    std::function<void(int status)> on_response);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    void start();
    void stop();
    uint32_t port() const;

  private:
    struct Impl;
    explicit Listener(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace lorad::server
