#include "proto/base/format.h"
#include "server/http/http.h"

namespace lorad::server {
namespace {

bool matches(std::string_view pattern, std::string_view path) {
    if (!pattern.ends_with("/*")) return pattern == path;
    pattern.remove_suffix(1);
    return path.size() > pattern.size() && path.starts_with(pattern);
}

}  // namespace

HttpReply json_reply(std::string body, int status) {
    HttpReply reply;
    reply.status = status;
    reply.body = std::move(body);
    return reply;
}

HttpReply error_reply(const Error& error) {
    HttpReply reply =
        json_reply(proto::error_body(error), proto::error_info(error.code).http_status);
    int retry_after_s = proto::retry_after_s(error.code);
    if (retry_after_s > 0) reply.headers.emplace_back("Retry-After", format("{}", retry_after_s));
    return reply;
}

void Router::add(std::string method, std::string path, HttpHandler handler) {
    routes_.push_back({std::move(method), std::move(path), std::move(handler)});
}

HttpReply Router::handle(const HttpRequest& request) const {
    std::string_view method =
        request.method == "HEAD" ? std::string_view("GET") : std::string_view(request.method);
    std::string allowed;
    for (const Route& route : routes_) {
        if (!matches(route.path, request.path)) continue;
        if (route.method == method) return route.handler(request);
        allowed += (allowed.empty() ? "" : ", ") + route.method;
    }
    if (!allowed.empty()) {
        HttpReply reply = error_reply(
            make_error(ErrorCode::kMethodNotAllowed,
                       format("{} is not allowed here, expected {}", request.method, allowed)));
        reply.headers.emplace_back("Allow", allowed);
        return reply;
    }
    return error_reply(
        make_error(ErrorCode::kNotFound, "no such route; see the README for those there are"));
}

}  // namespace lorad::server
