#include "server/http/generate/reply_parts.h"

#include "proto/base/format.h"
#include "proto/url.h"

namespace lorad::server {
namespace {

// False: the list is full and says so.
bool append_field(std::string& header, std::string_view field) {
    constexpr size_t kHeaderBytesMax = 1024;
    constexpr std::string_view kMore = "...";
    if (header.ends_with(kMore)) return false;
    std::string name = (header.empty() ? "" : ", ") + proto::percent_encode(field);
    // Paths have brackets, which a header may have as they are.
    for (const auto& [encoded, bracket] : {std::pair("%5B", "["), std::pair("%5D", "]")}) {
        for (size_t at = 0; (at = name.find(encoded, at)) != std::string::npos;) name.replace(at, 3, bracket);
    }
    const bool fits = header.size() + name.size() <= kHeaderBytesMax;
    if (fits) {
        header += name;
    } else {
        header.append(header.empty() ? "" : ", ").append(kMore);
    }
    return fits;
}

// Refused by a strict server, `why` it is.
Result<std::string> header_of(const ServerContext& context, std::span<const std::string> fields, std::string_view why) {
    std::string header;
    for (const std::string& field : fields) {
        if (context.strict) {
            return make_error(ErrorCode::kInvalidRequest, format("{}: {}", field.substr(0, 100), why),
                              field.substr(0, 100));
        }
        if (!append_field(header, field)) break;
    }
    return header;
}

}  // namespace

Result<std::string> ignored_fields_header(const ServerContext& context, std::span<const std::string> ignored_fields) {
    return header_of(context, ignored_fields, "the field would have no effect, and this server is strict");
}

Result<std::string> not_enforced_header(const ServerContext& context, std::span<const std::string> keywords) {
    return header_of(context, keywords, "no answer can be held to this keyword, or only in another form");
}

void add_not_enforced(HttpReply& reply, const std::string& header) {
    if (!header.empty()) reply.headers.emplace_back("x-lorad-not-enforced", header);
}

void add_ignored_fields(HttpReply& reply, const std::string& header, std::span<const std::string> unread_fields) {
    std::string all = header;
    for (const std::string& field : unread_fields) {
        if (!append_field(all, field)) break;
    }
    if (!all.empty()) reply.headers.emplace_back("x-lorad-ignored-fields", all);
}

HttpReply event_stream(std::function<void(HttpSink&)> write) {
    HttpReply reply;
    reply.content_type = "text/event-stream";
    reply.headers.emplace_back("Cache-Control", "no-cache");
    reply.headers.emplace_back("X-Accel-Buffering", "no");
    reply.stream = std::move(write);
    return reply;
}

Error client_closed() {
    return make_error(
        ErrorCode::kClientClosed,
        "the client closed its side of the connection before the answer was there; the request was ended");
}

}  // namespace lorad::server
