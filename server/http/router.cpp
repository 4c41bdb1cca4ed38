#include <algorithm>

#include "proto/base/format.h"
#include "server/http/http.h"

namespace lorad::server {
namespace {

HttpReply run(const HttpHandler& handler, HttpRequest& request, BodyUse body, ErrorReply errors) {
    if (body == BodyUse::kStreamed || request.stream == nullptr) return handler(request);
    if (request.content_type.starts_with("multipart/")) {
        return errors(
            make_error(ErrorCode::kUnsupportedMedia, "expected a JSON body, found a form"));
    }
    Status read = request.stream->read(request.body_bytes_max, [&](std::string_view piece) {
        request.body.append(piece);
        return ok_status();
    });
    if (!read.ok()) return errors(read.error());
    return handler(request);
}

// Whether a route without any {} fits: then those with do not count, so that a word of the interface
// is never taken for a name.
template <typename Routes, typename Fits>
bool fits_literally(const Routes& routes, const Fits& fits) {
    std::vector<std::string> params;
    return std::any_of(routes.begin(), routes.end(), [&](const auto& route) {
        return fits(route, params) && params.empty();
    });
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

std::optional<std::string_view> HttpRequest::query_value(std::string_view key) const {
    for (const auto& [name, value] : query) {
        if (name == key) return value;
    }
    return std::nullopt;
}

void Router::add(std::string method, std::string_view path, HttpHandler handler, BodyUse body,
                 ErrorReply errors) {
    Result<proto::Target> target = proto::parse_target(path);
    CHECK(target.ok());
    routes_.push_back({std::move(method), std::string(path), std::move(target->segments),
                       std::move(handler), body, errors});
}

bool Router::serves(const std::string& method, const std::string& target) const {
    Result<proto::Target> parsed = proto::parse_target(target);
    if (!parsed.ok()) return false;
    const auto fits = [&](const Route& route, std::vector<std::string>& params) {
        return matches(route, parsed->segments, params);
    };
    const bool is_literal = fits_literally(routes_, fits);
    std::vector<std::string> params;
    return std::any_of(routes_.begin(), routes_.end(), [&](const Route& route) {
        bool is_method = route.method == method || (method == "HEAD" && route.method == "GET");
        return is_method && fits(route, params) && (!is_literal || params.empty());
    });
}

std::vector<std::pair<std::string, std::string>> Router::routes() const {
    std::vector<std::pair<std::string, std::string>> out;
    for (const Route& route : routes_) out.emplace_back(route.method, route.path);
    return out;
}

bool Router::matches(const Route& route, const std::vector<std::string>& path,
                     std::vector<std::string>& params) {
    params.clear();
    for (size_t i = 0; i < route.segments.size(); ++i) {
        if (i >= path.size()) return false;
        const std::string& wanted = route.segments[i];
        if (wanted == "*" && i + 1 == route.segments.size()) {
            std::string rest = path[i];
            for (size_t j = i + 1; j < path.size(); ++j) rest += "/" + path[j];
            params.push_back(rest);
            return !rest.empty();
        }
        if (wanted == "{}") {
            if (path[i].empty()) return false;
            params.push_back(path[i]);
        } else if (wanted != path[i]) {
            return false;
        }
    }
    return path.size() == route.segments.size();
}

HttpReply Router::handle(HttpRequest request) const {
    Result<proto::Target> target = proto::parse_target(request.target);
    if (!target.ok()) return error_reply(target.error());
    request.query = std::move(target->query);
    std::string allowed;
    const Route* as_get = nullptr;
    std::vector<std::string> get_params;
    const bool is_literal =
        fits_literally(routes_, [&](const Route& route, std::vector<std::string>& params) {
            return matches(route, target->segments, params);
        });
    for (const Route& route : routes_) {
        if (!matches(route, target->segments, request.params)) continue;
        if (is_literal && !request.params.empty()) continue;
        if (route.method == request.method) {
            return run(route.handler, request, route.body, route.errors);
        }
        if (request.method == "HEAD" && route.method == "GET" && as_get == nullptr) {
            as_get = &route;
            get_params = request.params;
        }
        if (allowed.find(route.method) == std::string::npos) {
            allowed += (allowed.empty() ? "" : ", ") + route.method;
        }
    }
    if (as_get != nullptr) {
        request.params = std::move(get_params);
        return run(as_get->handler, request, as_get->body, as_get->errors);
    }
    if (!allowed.empty()) {
        HttpReply reply = error_reply(
            make_error(ErrorCode::kMethodNotAllowed,
                       format("{} is not allowed here, expected {}", request.method, allowed)));
        reply.headers.emplace_back("Allow", allowed);
        return reply;
    }
    return error_reply(
        make_error(ErrorCode::kNotFound, "no such route; see docs/API.md for those there are"));
}

}  // namespace lorad::server
