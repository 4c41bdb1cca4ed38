#include <algorithm>

#include "proto/base/format.h"
#include "server/access/audit.h"
#include "server/access/key_store.h"
#include "server/http/http.h"
#include "server/http/place.h"

namespace lorad::server {
namespace {

// Bodies up to here are as good as read when a worker comes to them.
constexpr uint64_t kSmallBodyBytes = 64 << 10;

HttpReply read_and_run(const HttpHandler& handler, HttpRequest& request, BodyUse body, ErrorReply errors,
                       access::SharedPlaces* bodies) {
    if (body == BodyUse::kStreamed || request.stream == nullptr) return handler(request);
    if (request.content_type.starts_with("multipart/")) {
        return errors(make_error(ErrorCode::kUnsupportedMedia, "expected a JSON body, found a form"));
    }
    const uint64_t n_bytes = std::min<uint64_t>(request.stream->length().value_or(0), request.body_bytes_max);
    access::SharedPlaces::Place room;
    if (bodies != nullptr && n_bytes > kSmallBodyBytes) {
        room = bodies->take(holder_of(request), n_bytes);
        if (!room.taken())
            return errors(make_error(ErrorCode::kOverloaded,
                                     "large request bodies take as much memory as they may; try again in a moment"));
    }
    // Growing by doubling would take twice the limit.
    request.body.reserve(static_cast<size_t>(n_bytes));
    Status read = request.stream->read(request.body_bytes_max, [&](std::string_view piece) {
        request.body.append(piece);
        return ok_status();
    });
    if (!read.ok()) return errors(read.error());
    return handler(request);
}

}  // namespace

HttpReply json_reply(std::string body, int status) {
    HttpReply reply;
    reply.status = status;
    reply.body = std::move(body);
    return reply;
}

HttpReply error_reply(const Error& error) {
    HttpReply reply = json_reply(proto::error_body(error), proto::error_info(error.code).http_status);
    int retry_after_s = proto::retry_after_s(error.code);
    if (retry_after_s > 0) reply.headers.emplace_back("Retry-After", format("{}", retry_after_s));
    return reply;
}

HttpReply reply_of(Result<HttpReply> reply, ErrorReply errors) {
    return reply.ok() ? std::move(*reply) : errors(reply.error());
}

std::optional<std::string_view> HttpRequest::query_value(std::string_view key) const {
    for (const auto& [name, value] : query) {
        if (name == key) return value;
    }
    return std::nullopt;
}

void Router::add(std::string method, std::string_view path, access::Access access, HttpHandler handler, BodyUse body,
                 ErrorReply errors) {
    Result<proto::Target> target = proto::parse_target(path);
    CHECK(target.ok());
    routes_.push_back(
        {std::move(method), std::string(path), access, std::move(target->segments), std::move(handler), body, errors});
}

HttpReply Router::error_for(std::string_view target, const Error& error) const {
    const std::string_view path = target.substr(0, target.find('?'));
    for (const auto& [family, errors] : families_) {
        if (path.starts_with(family) && (path.size() == family.size() || path[family.size()] == '/'))
            return errors(error);
    }
    return error_reply(error);
}

bool Router::answers_at_once(std::string_view method, std::string_view target) const {
    const std::string_view path = target.substr(0, target.find('?'));
    return std::ranges::any_of(routes_, [&](const Route& route) {
        const bool fits = route.method == method || (route.method == "GET" && method == "HEAD");
        return fits && route.body == BodyUse::kAtOnce && route.access.is_open() && route.path == path;
    });
}

std::string Router::tenant_of(std::string_view authorization, std::string_view x_api_key) const {
    if (guard_.keys == nullptr) return {};
    const access::KeyStore::Found found = guard_.keys->find(authorization, x_api_key);
    return found.verdict == access::KeyStore::Verdict::kValid ? found.principal->tenant : " ";
}

bool Router::serves(const std::string& method, const std::string& target) const {
    Result<proto::Target> parsed = proto::parse_target(target);
    if (!parsed.ok()) return false;
    return find(method, parsed->segments, ListenerRole::kAdmin).route != nullptr;
}

std::vector<Router::RouteInfo> Router::routes() const {
    std::vector<RouteInfo> out;
    for (const Route& route : routes_) out.push_back({route.method, route.path, route.access});
    return out;
}

bool Router::matches(const Route& route, const std::vector<std::string>& path, std::vector<std::string>& params) {
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

Router::Match Router::find(const std::string& method, const std::vector<std::string>& path,
                           ListenerRole listener) const {
    Match match;
    Match as_get;
    std::vector<std::string> params;
    // If a route without {} matches, routes with {} do not count, so that a word of the interface is never taken for a
    // name.
    const bool is_literal = std::ranges::any_of(
        routes_, [&](const Route& route) { return matches(route, path, params) && params.empty(); });
    for (const Route& route : routes_) {
        if (guard_.administers_elsewhere && listener == ListenerRole::kMain && route.access.is_administrative())
            continue;
        if (!matches(route, path, params)) continue;
        if (is_literal && !params.empty()) continue;
        if (route.method == method) {
            match.route = &route;
            match.params = std::move(params);
            match.allowed.clear();
            return match;
        }
        if (method == "HEAD" && route.method == "GET" && as_get.route == nullptr) {
            as_get.route = &route;
            as_get.params = params;
        }
        if (match.allowed.find(route.method) == std::string::npos)
            match.allowed += (match.allowed.empty() ? "" : ", ") + route.method;
    }
    return as_get.route != nullptr ? as_get : match;
}

HttpReply Router::refused(const HttpRequest& request, const Match& match, const Error& error,
                          std::string_view reason) const {
    // Without a key all answers below a path are the same, whatever routes there are.
    bool is_known = match.route != nullptr && error.code != ErrorCode::kUnauthorized;
    HttpReply reply = is_known ? match.route->errors(error) : error_for(request.target, error);
    if (guard_.audit != nullptr) {
        guard_.audit->refused({request.method,
                               match.route != nullptr ? match.route->path : "",
                               {},
                               request.peer,
                               request.principal.get(),
                               request.request_id},
                              reason, reply.status);
    }
    return reply;
}

// Fills the principal, or says why not.
std::optional<HttpReply> Router::identify(HttpRequest& request, const Match& match) const {
    using Verdict = access::KeyStore::Verdict;
    if (guard_.keys == nullptr || (match.route != nullptr && match.route->access.is_open())) return std::nullopt;
    if (guard_.metrics_without_key && match.route != nullptr && match.route->access.is_for(access::Scope::kMetrics))
        return std::nullopt;
    access::KeyStore::Found found = guard_.keys->find(request.authorization, request.x_api_key);
    request.principal = std::move(found.principal);
    if (found.verdict != Verdict::kValid) {
        const bool is_missing = found.verdict == Verdict::kMissing;
        HttpReply reply =
            refused(request, match,
                    make_error(ErrorCode::kUnauthorized,
                               is_missing ? "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
                                          : "the API key is not valid"),
                    is_missing                           ? "no key"
                    : found.verdict == Verdict::kExpired ? "expired key"
                                                         : "unknown key");
        reply.headers.emplace_back("WWW-Authenticate", is_missing ? R"(Bearer realm="lorad")"
                                                                  : R"(Bearer realm="lorad", error="invalid_token")");
        return reply;
    }
    if (std::optional<access::QuotaExceeded> exceeded = request.principal->account->begin_request()) {
        *request.retry_after_s = exceeded->retry_after_s;
        return refused(request, match, exceeded->error, "requests a minute");
    }
    if (match.route == nullptr || match.route->access.allows(request.principal->scopes)) return std::nullopt;
    return refused(request, match,
                   make_error(ErrorCode::kForbidden,
                              format("this key's scopes do not allow it: expected {}", match.route->access.text())),
                   "scope");
}

HttpReply Router::run(const Route& route, HttpRequest& request) const {
    HttpReply reply = read_and_run(route.handler, request, route.body, route.errors, guard_.bodies);
    if (guard_.audit == nullptr) return reply;
    access::AuditedCall call{request.method, route.path, {}, request.peer, request.principal.get(), request.request_id};
    if (!request.params.empty()) call.name = request.params[0];
    if (route.access.is_administrative()) guard_.audit->administered(call, reply.status);
    return reply;
}

HttpReply Router::handle(HttpRequest request) const {
    request.retry_after_s = std::make_shared<uint32_t>(0);
    Result<proto::Target> target = proto::parse_target(request.target);
    Match match;
    if (target.ok()) match = find(request.method, target->segments, request.listener);
    HttpReply reply = [&]() -> HttpReply {
        if (std::optional<HttpReply> refusal = identify(request, match)) return *refusal;
        if (!target.ok()) return error_for(request.target, target.error());
        if (match.route != nullptr) {
            request.query = std::move(target->query);
            request.params = std::move(match.params);
            return run(*match.route, request);
        }
        if (match.allowed.empty()) {
            return error_for(request.target,
                             make_error(ErrorCode::kNotFound, "no such route; see docs/API.md for those there are"));
        }
        HttpReply not_allowed = error_for(
            request.target, make_error(ErrorCode::kMethodNotAllowed,
                                       format("{} is not allowed here, expected {}", request.method, match.allowed)));
        not_allowed.headers.emplace_back("Allow", match.allowed);
        return not_allowed;
    }();
    if (*request.retry_after_s > 0) {
        std::erase_if(reply.headers, [](const auto& header) { return header.first == "Retry-After"; });
        reply.headers.emplace_back("Retry-After", format("{}", *request.retry_after_s));
    }
    return reply;
}

}  // namespace lorad::server
