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

namespace lorad::server::access {
struct Principal;
}

namespace lorad::server {

// Which of the server's listening sockets a request came in on.
enum class ListenerRole : uint8_t { kMain, kAdmin };

// A request's body as it comes from the network. The request's HTTP worker only.
class HttpBody {
  public:
    using Take = std::function<Status(std::string_view piece)>;

    virtual ~HttpBody() = default;
    // As the client declared it; nothing where the body is chunked or compressed.
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
    std::string last_event_id;  // of an event stream that is taken up again
    std::string fairness_id;    // the tenant, as a gateway names it; may be empty
    std::string authorization;  // as sent: "Bearer KEY"
    std::string x_api_key;      // the key, as Anthropic's clients send it
    std::string peer;           // the client's address, or "unix"
    ListenerRole listener = ListenerRole::kMain;
    // Routes that take a stream read it themselves; for all others the router fills `body`.
    HttpBody* stream = nullptr;  // null: there is none
    std::string body;
    size_t body_bytes_max = 0;  // for what is read into memory
    // True once the client has closed its side: asked between waits, so that nobody computes for
    // nobody.
    std::function<bool()> client_gone;

    // Filled by the router: whose key it is, what stands for each {} of the route, decoded, and the query.
    std::shared_ptr<const access::Principal> principal;  // null: the server has no keys
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

// How a route shows errors: error_reply, or another interface's envelope.
using ErrorReply = HttpReply (*)(const Error& error);

enum class BodyUse : uint8_t {
    kBuffered,  // read before the handler runs, up to the server's limit
    kStreamed,  // the handler reads it, or part of it
};

// Finds the handler for method and path. In a route's path a part {} takes any one part, not empty;
// a route without any comes before those, of others the first that fits. A path that ends in "/*" takes whatever follows.
class Router {
  public:
    void add(std::string method, std::string_view path, HttpHandler handler,
             BodyUse body = BodyUse::kBuffered, ErrorReply errors = error_reply);
    // Answers 404 and 405 (with Allow) itself, and 400 for a target it cannot read. HEAD is answered
    // as GET where it has no route; the listener leaves out the body.
    HttpReply handle(HttpRequest request) const;

    // Whether handle() would run a handler, and not answer 400, 404 or 405 itself.
    bool serves(const std::string& method, const std::string& target) const;
    // Method and path of each, as they were added.
    std::vector<std::pair<std::string, std::string>> routes() const;

  private:
    struct Route {
        std::string method, path;
        std::vector<std::string> segments;
        HttpHandler handler;
        BodyUse body;
        ErrorReply errors;  // also of what the router itself finds
    };
    static bool matches(const Route& route, const std::vector<std::string>& path,
                        std::vector<std::string>& params);
    std::vector<Route> routes_;
};

}  // namespace lorad::server
