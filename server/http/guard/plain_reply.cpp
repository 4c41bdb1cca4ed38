#include "server/http/guard/plain_reply.h"

#include "proto/base/format.h"

namespace lorad::server {

std::string_view reason_phrase(int status) {
    switch (status) {
        case 200: return "OK";
        case 201: return "Created";
        case 202: return "Accepted";
        case 204: return "No Content";
        case 206: return "Partial Content";
        case 304: return "Not Modified";
        case 400: return "Bad Request";
        case 401: return "Unauthorized";
        case 403: return "Forbidden";
        case 404: return "Not Found";
        case 405: return "Method Not Allowed";
        case 408: return "Request Timeout";
        case 409: return "Conflict";
        case 411: return "Length Required";
        case 413: return "Content Too Large";
        case 414: return "URI Too Long";
        case 415: return "Unsupported Media Type";
        case 416: return "Range Not Satisfiable";
        case 417: return "Expectation Failed";
        case 422: return "Unprocessable Content";
        case 429: return "Too Many Requests";
        case 431: return "Request Header Fields Too Large";
        case 499: return "Client Closed Request";
        case 500: return "Internal Server Error";
        case 503: return "Service Unavailable";
        case 505: return "HTTP Version Not Supported";
        case 507: return "Insufficient Storage";
        default: return "Other";
    }
}

std::string whole_reply(const HttpReply& reply, bool is_head, bool closes) {
    std::string out = format("HTTP/1.1 {} {}\r\nConnection: {}\r\n", reply.status, reason_phrase(reply.status),
                             closes ? "close" : "keep-alive");
    for (const auto& [name, value] : reply.headers) out += name + ": " + value + "\r\n";
    out += format("Content-Type: {}\r\nContent-Length: {}\r\n\r\n", reply.content_type, reply.body.size());
    if (!is_head) out += reply.body;
    return out;
}

}  // namespace lorad::server
