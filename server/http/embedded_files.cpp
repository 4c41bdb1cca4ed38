#include "server/http/embedded_files.h"

namespace lorad::server {
namespace {

// Scripts, styles and data come from this server alone, nothing is inline, nobody frames the page.
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpReply file_reply(const HttpRequest& request, const EmbeddedFile& file) {
    HttpReply reply;
    reply.headers.emplace_back("ETag", file.etag);
    reply.headers.emplace_back("Cache-Control", "no-cache");  // kept, but asked about each time
    reply.headers.emplace_back("X-Content-Type-Options", "nosniff");
    reply.content_type = file.content_type;
    if (request.if_none_match == "*" || request.if_none_match.find(file.etag) != std::string::npos) {
        reply.status = 304;
    } else {
        reply.body = file.content;
    }
    return reply;
}

HttpReply show_console_file(const HttpRequest& request, std::string_view name) {
    for (const EmbeddedFile& file : console_files()) {
        if (file.name != name) continue;
        HttpReply reply = file_reply(request, file);
        reply.headers.emplace_back("Content-Security-Policy", kContentSecurityPolicy);
        reply.headers.emplace_back("Referrer-Policy", "no-referrer");
        reply.headers.emplace_back("Cross-Origin-Opener-Policy", "same-origin");
        return reply;
    }
    return error_reply(make_error(ErrorCode::kNotFound, "the console has no such file"));
}

HttpReply leads_to(int status, std::string location) {
    HttpReply reply;
    reply.status = status;
    reply.headers.emplace_back("Location", std::move(location));
    return reply;
}

}  // namespace

void add_file_routes(Router& router) {
    router.add("GET", "/openapi.json", access::Access::any_key(),
               [](const HttpRequest& request) { return file_reply(request, openapi_files().front()); });
    // A browser shows no key for a page; what the page then asks for needs the one that is typed into it.
    router.add("GET", "/console", access::Access::open(),
               [](const HttpRequest& request) { return show_console_file(request, "index.html"); });
    router.add("GET", "/console/{}", access::Access::open(),
               [](const HttpRequest& request) { return show_console_file(request, request.params.at(0)); });
    // The page's links begin where it lies; where the server lies leads there. Without the host, so that a proxy may
    // put all of it below a prefix.
    router.add("GET", "/console/", access::Access::open(),
               [](const HttpRequest&) { return leads_to(308, "../console"); });
    router.add("GET", "/", access::Access::open(), [](const HttpRequest&) { return leads_to(307, "console"); });
}

}  // namespace lorad::server
