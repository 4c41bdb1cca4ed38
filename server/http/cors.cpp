#include "server/http/cors.h"

#include <algorithm>
#include <cctype>

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::server {
namespace {

constexpr std::string_view kAnyOrigin = "*";
// Clients name others of their own beside these; those are allowed as well, since no header means anything here that a
// key does not.
constexpr std::string_view kAllowedHeaders =
    "authorization, content-type, accept, last-event-id, x-api-key, x-request-id, anthropic-version, anthropic-beta, "
    "anthropic-dangerous-direct-browser-access, x-gateway-inference-fairness-id";
constexpr size_t kAskedHeadersBytesMax = 2048;

bool is_header_list(std::string_view text) {
    return text.size() <= kAskedHeadersBytesMax && std::ranges::all_of(text, [](unsigned char c) {
               return std::isalnum(c) != 0 || c == '-' || c == '_' || c == ',' || c == ' ';
           });
}

// scheme://host[:port], as browsers write it: in lower case and without a path.
bool is_origin(std::string_view text) {
    if (text == kAnyOrigin) return true;
    const size_t scheme = text.find("://");
    if (scheme == std::string_view::npos || scheme == 0) return false;
    const std::string_view host = text.substr(scheme + 3);
    return !host.empty() && std::ranges::all_of(text.substr(0, scheme), [](unsigned char c) {
        return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-' || c == '+';
    }) && std::ranges::all_of(host, [](unsigned char c) {
        return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-' || c == '.' || c == ':' || c == '[' ||
               c == ']' || c == '_';
    });
}

}  // namespace

bool Cors::allows(std::string_view origin) const {
    return !origin.empty() &&
           std::ranges::any_of(origins_, [&](const std::string& one) { return one == kAnyOrigin || one == origin; });
}

std::optional<HttpReply> Cors::preflight(const RequestHead& head) const {
    if (head.method != "OPTIONS" || head.value_of("Access-Control-Request-Method").empty() ||
        !allows(head.value_of("Origin")))
        return std::nullopt;
    HttpReply reply;
    reply.status = 204;
    std::string allowed(kAllowedHeaders);
    const std::string_view asked = head.value_of("Access-Control-Request-Headers");
    if (!asked.empty() && is_header_list(asked)) allowed += ", " + std::string(asked);
    reply.headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, DELETE"},
                     {"Access-Control-Allow-Headers", allowed},
                     {"Access-Control-Max-Age", "600"}};
    if (head.value_of("Access-Control-Request-Private-Network") == "true")
        reply.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
    return reply;
}

void Cors::add_headers(const RequestHead& head, HttpReply& reply) const {
    if (origins_.empty()) return;
    const std::string_view origin = head.value_of("Origin");
    const bool is_for_all = std::ranges::find(origins_, kAnyOrigin) != origins_.end();
    // A cache must not show one page a reply that was allowed to another.
    if (!is_for_all) reply.headers.emplace_back("Vary", "Origin");
    if (!allows(origin)) return;
    reply.headers.emplace_back("Access-Control-Allow-Origin", is_for_all ? kAnyOrigin : origin);
    reply.headers.emplace_back("Access-Control-Expose-Headers", "*");
}

Result<std::vector<std::string>> cors_origins(const std::vector<std::string>& settings) {
    std::vector<std::string> out;
    for (const std::string& setting : settings) {
        for (size_t begin = 0; begin <= setting.size();) {
            const size_t end = std::min(setting.find(',', begin), setting.size());
            std::string origin = setting.substr(begin, end - begin);
            if (!is_origin(origin)) {
                return make_error(ErrorCode::kInvalidConfig,
                                  format("cors-origin: expected an origin such as https://app.example, in lower case "
                                         "and without a path, or *, found {}",
                                         json_quote_short(origin)),
                                  "cors-origin");
            }
            out.push_back(std::move(origin));
            begin = end + 1;
        }
    }
    return out;
}

}  // namespace lorad::server
