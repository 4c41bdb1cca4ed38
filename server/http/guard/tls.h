// TLS by OpenSSL: certificate and key, and the one place that includes its headers besides channel.cpp.
#pragma once

#include <memory>
#include <string>

#include "proto/base/result.h"

struct ssl_ctx_st;
struct ssl_st;

namespace lorad::server {

struct EndTlsSession {
    void operator()(ssl_st* session) const;
};
using TlsSession = std::unique_ptr<ssl_st, EndTlsSession>;

// A certificate chain and its key. Immutable; connections keep the one that they began with.
class TlsContext {
  public:
    // PEM files. kInvalidConfig for what cannot be read or does not fit together.
    static Result<std::shared_ptr<const TlsContext>> load(const std::string& cert_path, const std::string& key_path);
    ~TlsContext();
    TlsContext(const TlsContext&) = delete;
    TlsContext& operator=(const TlsContext&) = delete;

    // The server's side of a connection; null where memory is short.
    TlsSession new_session(int fd) const;

  private:
    explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
    ssl_ctx_st* context_;
};

}  // namespace lorad::server
