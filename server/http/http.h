// HTTP as the routes see it: no library type passes this header.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/error.h"
#include "proto/url.h"
#include "server/access/scope.h"

namespace lorad::server::access {
struct Principal;
class KeyStore;
class Audit;
class SharedPlaces;
}  // namespace lorad::server::access

namespace lorad::server {

// The role of the listening socket that a request came in on.
enum class ListenerRole : uint8_t { kMain, kAdmin };

// A request's body as it comes from the network. The request's HTTP worker only.
class HttpBody {
  public:
    using Take = std::function<Status(std::string_view piece)>;

    virtual ~HttpBody() = default;
    // The declared length; nothing if the body is chunked or compressed.
    virtual std::optional<uint64_t> length() const = 0;
    // Hands over piece after piece until the body ends; at most once. An error of `take` ends it.
    // kPayloadTooLarge over `bytes_max`, kRequestTimeout where the pieces come too slowly,
    // kInvalidRequest where the body breaks off: what was taken so far is not the body.
    virtual Status read(uint64_t bytes_max, const Take& take) = 0;
};

struct HttpRequest {
    std::string method;
    std::string target;  // as sent: percent-encoded, with the query
    std::string content_type;
    std::string accept;
    std::string if_none_match;
    std::string last_event_id;  // where an event stream is resumed
    std::string fairness_id;    // the tenant, as a gateway names it; may be empty
    std::string authorization;  // as sent: "Bearer KEY"
    std::string x_api_key;      // the key, as Anthropic's clients send it
    std::string peer;           // the client's address, or "unix"
    std::string request_id;     // by which logs name it; request_id.h
    std::string address_key;    // key of shares of pools; empty: local, or addresses have none
    ListenerRole listener = ListenerRole::kMain;
    // Routes that take a stream read it themselves; for all others the router fills `body`.
    HttpBody* stream = nullptr;  // null: there is none
    std::string body;
    size_t body_bytes_max = 0;  // for what is read into memory
    // True once the client has closed its side: asked between waits, so that no abandoned request is computed.
    std::function<bool()> client_gone;

    // Filled by the router: whose key it is, what stands for each {} of the route, decoded, and the query.
    std::shared_ptr<const access::Principal> principal;  // null: the server has no keys
    // A handler that refuses because of a quota says here when to come back, in seconds; never null in a handler.
    std::shared_ptr<uint32_t> retry_after_s;
    std::vector<std::string> params;
    std::vector<std::pair<std::string, std::string>> query;

    std::optional<std::string_view> query_value(std::string_view key) const;
};

// Where a streaming reply writes. Runs on the request's HTTP worker.
class HttpSink {
  public:
    virtual ~HttpSink() = default;
    virtual bool write(std::string_view bytes) = 0;  // false: the client is gone
    virtual bool client_gone() = 0;
};

struct HttpReply {
    int status = 200;
    std::string content_type = "application/json";
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers;
    // When set, the body is what this writes, sent as it comes; `body` is not used.
    std::function<void(HttpSink&)> stream;
};

using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

HttpReply json_reply(std::string body, int status = 200);
// The envelope of proto/error.h with its status, and Retry-After where repeating makes sense.
HttpReply error_reply(const Error& error);

// Writes a route's errors: error_reply, or another interface's envelope.
using ErrorReply = HttpReply (*)(const Error& error);
HttpReply reply_of(Result<HttpReply> reply, ErrorReply errors = error_reply);

enum class BodyUse : uint8_t {
    kBuffered,  // read before the handler runs, up to the server's limit
    kStreamed,  // the handler reads it, or part of it
    kAtOnce,    // there is none, and the handler never blocks: it is called without a worker
};

// Checks on callers. The pointers outlive the router.
struct RouterGuard {
    const access::KeyStore* keys = nullptr;  // null: no key is asked for
    access::Audit* audit = nullptr;          // null: nothing is told
    // Bytes of bodies in memory; null: as many as there are workers for. Those that fit a packet or some are not
    // counted.
    access::SharedPlaces* bodies = nullptr;
    // Administrative routes are there on the other listener only.
    bool administers_elsewhere = false;
    bool metrics_without_key = false;  // like an open route
};

// Finds the handler for method and path, and admits only callers who may use it. In a route's path a part {} matches
// any one part that is not empty; a route without {} goes first, then the first that matches. A path that ends in "/*"
// matches all that follows.
//
// With keys: a caller without a valid one gets nothing but open routes, and 401 for all else, so that nobody learns
// which routes there are; then the key's rate counts, then whether there is such a route, then the key's scopes (403).
class Router {
  public:
    void add(std::string method, std::string_view path, access::Access access, HttpHandler handler,
             BodyUse body = BodyUse::kBuffered, ErrorReply errors = error_reply);
    // Before requests come: how errors look for whatever is below this path, also where there is no route.
    void set_errors_below(std::string path, ErrorReply errors) { families_.emplace_back(std::move(path), errors); }
    // An error about a request that no route has been found for. Any thread.
    HttpReply error_for(std::string_view target, const Error& error) const;
    // Before requests come.
    void set_guard(const RouterGuard& guard) { guard_ = guard; }
    // Answers 404 and 405 (with Allow) itself, and 400 for a target it cannot read. HEAD is answered
    // as GET where it has no route; the listener leaves out the body.
    HttpReply handle(HttpRequest request) const;

    // Returns true if handle() answers it without a body and without blocking.
    bool answers_at_once(std::string_view method, std::string_view target) const;
    // The tenant whose share the request uses, by its key: empty without keys, a blank without a valid key.
    std::string tenant_of(std::string_view authorization, std::string_view x_api_key) const;

    // Returns true if there is a route for this, for any caller.
    bool serves(const std::string& method, const std::string& target) const;

    struct RouteInfo {
        std::string method, path;
        access::Access access;
    };
    // In the order of add().
    std::vector<RouteInfo> routes() const;

  private:
    struct Route {
        std::string method, path;
        access::Access access;
        std::vector<std::string> segments;
        HttpHandler handler;
        BodyUse body;
        ErrorReply errors;  // also of what the router itself finds
    };
    struct Match {
        const Route* route = nullptr;
        std::vector<std::string> params;
        std::string allowed;  // methods that the path has, where this one is not among them
    };
    static bool matches(const Route& route, const std::vector<std::string>& path, std::vector<std::string>& params);
    Match find(const std::string& method, const std::vector<std::string>& path, ListenerRole listener) const;
    HttpReply refused(const HttpRequest& request, const Match& match, const Error& error,
                      std::string_view reason) const;
    std::optional<HttpReply> identify(HttpRequest& request, const Match& match) const;
    HttpReply run(const Route& route, HttpRequest& request) const;

    std::vector<Route> routes_;
    std::vector<std::pair<std::string, ErrorReply>> families_;
    RouterGuard guard_;
};

}  // namespace lorad::server
