// HTTP as the routes see it: no library type passes this header.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/error.h"

namespace lorad::server {

struct HttpRequest {
    std::string method;
    std::string path;  // decoded, without the query
    std::string body;
    // True once the client has closed its side: asked between waits, so that nobody computes for
    // nobody.
    std::function<bool()> client_gone;
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

// Finds the handler for method and path. A path that ends in "/*" takes whatever follows, at least
// one character.
class Router {
  public:
    void add(std::string method, std::string path, HttpHandler handler);
    // Answers 404 and 405 (with Allow) itself. HEAD is answered as GET; the listener leaves out the
    // body.
    HttpReply handle(const HttpRequest& request) const;

  private:
    struct Route {
        std::string method;
        std::string path;
        HttpHandler handler;
    };
    std::vector<Route> routes_;
};

}  // namespace lorad::server
