#include "server/http/guard/tls.h"

#include <cstring>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "proto/base/format.h"

namespace lorad::server {
namespace {

// HTTP/1.1 is all that we speak; a client that offers only others is told so at once.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                    unsigned offered_size, void*) {
    static constexpr unsigned char kOurs[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
    unsigned char* chosen = nullptr;
    if (SSL_select_next_proto(&chosen, out_size, kOurs, sizeof kOurs, offered, offered_size) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

Error bad_file(const char* flag, const std::string& path, const char* expected) {
    ERR_clear_error();
    return make_error(ErrorCode::kInvalidConfig, format("--{}: {}: expected {}", flag, path, expected), flag);
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::load(const std::string& cert_path, const std::string& key_path) {
    SSL_CTX* context = SSL_CTX_new(TLS_server_method());
    if (context == nullptr) return make_error(ErrorCode::kInternal, "TLS could not be set up");
    std::shared_ptr<const TlsContext> out(new TlsContext(context));
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_options(context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(context,
                     SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);  // tickets need no memory here
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
    // A key that wants a password is refused, not asked for on the terminal.
    SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return 0; });
    if (SSL_CTX_use_certificate_chain_file(context, cert_path.c_str()) != 1)
        return bad_file("tls-cert", cert_path, "a readable chain of PEM certificates");
    if (SSL_CTX_use_PrivateKey_file(context, key_path.c_str(), SSL_FILETYPE_PEM) != 1)
        return bad_file("tls-key", key_path, "a readable PEM key without a password, that of the certificate");
    if (SSL_CTX_check_private_key(context) != 1) return bad_file("tls-key", key_path, "the certificate's key");
    return out;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

void EndTlsSession::operator()(ssl_st* session) const { SSL_free(session); }

TlsSession TlsContext::new_session(int fd) const {
    TlsSession session(SSL_new(context_));
    if (session == nullptr) return nullptr;
    SSL_set_accept_state(session.get());
    if (SSL_set_fd(session.get(), fd) != 1) return nullptr;
    return session;
}

}  // namespace lorad::server
