#include "server/http/guard/request_head.h"

#include <algorithm>
#include <charconv>

namespace lorad::server {
namespace {

constexpr size_t kMethodBytesMax = 32;

// Programs that map fields to variables read "Content_Length" as Content-Length; under the other names the HTTP library
// stores its own values.
constexpr std::string_view kForgedNames[] = {"REMOTE_ADDR",  "REMOTE_PORT",      "LOCAL_ADDR",
                                             "LOCAL_PORT",   "EXCEPTION_WHAT",   "CONTENT_LENGTH",
                                             "CONTENT_TYPE", "CONTENT_ENCODING", "TRANSFER_ENCODING"};
// Fields that must not repeat: it would be unclear which one counts.
constexpr std::string_view kSingleNames[] = {"host",         "content-length", "transfer-encoding", "content-encoding",
                                             "content-type", "expect",         "authorization",     "x-api-key"};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_token_char(char c) {
    return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}
bool is_control(uint8_t c) { return c < 0x20 || c == 0x7f; }

int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    c = lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Returns true if a %XX means a control character. `is_strict`: a % without two hex digits counts as one.
bool hides_control(std::string_view text, bool is_strict) {
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') continue;
        int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
        int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
        if (high < 0 || low < 0) {
            if (is_strict) return true;
        } else if (is_control(static_cast<uint8_t>(high * 16 + low))) {
            return true;
        }
    }
    return false;
}

std::string_view trim(std::string_view text) {
    const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    return text;
}

struct RequestLine {
    std::string_view method, target, version;
};

bool split_request_line(std::string_view line, RequestLine& out) {
    size_t first = line.find(' ');
    size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
    if (second == std::string_view::npos || line.find(' ', second + 1) != std::string_view::npos) return false;
    out = {line.substr(0, first), line.substr(first + 1, second - first - 1), line.substr(second + 1)};
    return true;
}

bool is_method(std::string_view text) {
    return !text.empty() && text.size() <= kMethodBytesMax &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

bool is_version(std::string_view text) {
    return text.size() == 8 && text.starts_with("HTTP/") && is_digit(text[5]) && text[6] == '.' && is_digit(text[7]);
}

bool is_target(std::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f && c != '#'; }) &&
           !hides_control(text, true);
}

// uri-host [ ":" port ], without user information.
bool is_authority(std::string_view text) {
    size_t colon = text.find_last_of(":]");
    if (colon != std::string_view::npos && text[colon] == ':') {
        std::string_view port = text.substr(colon + 1);
        if (port.size() > 5 || !std::all_of(port.begin(), port.end(), is_digit)) return false;
        text = text.substr(0, colon);
    }
    if (text.starts_with('[')) {
        return text.size() > 2 && text.ends_with(']') && std::all_of(text.begin() + 1, text.end() - 1, [](char c) {
                   return hex_value(c) >= 0 || c == ':' || c == '.';
               });
    }
    return !text.empty() && !hides_control(text, true) && std::all_of(text.begin(), text.end(), [](char c) {
        return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z') ||
               std::string_view("-._~%!$&'()*+,;=").find(c) != std::string_view::npos;
    });
}

bool parse_length(std::string_view text, uint64_t& out) {
    // 19 digits always fit, and nothing that is real has more.
    if (text.empty() || text.size() > 19 || !std::all_of(text.begin(), text.end(), is_digit)) return false;
    return std::from_chars(text.data(), text.data() + text.size(), out).ec == std::errc() &&
           out <= static_cast<uint64_t>(INT64_MAX);
}

bool has_token(std::string_view list, std::string_view token) {
    while (!list.empty()) {
        size_t comma = list.find(',');
        if (equals_ignoring_case(trim(list.substr(0, comma)), token)) return true;
        list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    }
    return false;
}

// Cuts scheme and host off a target, which proxies get; the host must equal the Host field.
bool take_host_off(RequestHead& head) {
    for (std::string_view scheme : {std::string_view("http://"), std::string_view("https://")}) {
        if (head.target.size() < scheme.size() || !equals_ignoring_case(head.target.substr(0, scheme.size()), scheme))
            continue;
        std::string_view rest = head.target.substr(scheme.size());
        size_t end = std::min(rest.find('/'), rest.size());
        if (!equals_ignoring_case(rest.substr(0, end), head.value_of("host"))) return false;
        head.target = end == rest.size() ? std::string_view("/") : rest.substr(end);
        return true;
    }
    return false;
}

bool parse_head_fields(std::string_view bytes, RequestHead& out) {
    for (size_t begin = bytes.find("\r\n") + 2; begin + 2 < bytes.size();) {
        size_t end = bytes.find("\r\n", begin);
        std::string_view line = bytes.substr(begin, end - begin);
        size_t colon = line.find(':');
        if (colon == std::string_view::npos) return false;
        out.fields.push_back({line.substr(0, colon), trim(line.substr(colon + 1))});
        begin = end + 2;
    }
    return true;
}

}  // namespace

bool equals_ignoring_case(std::string_view a, std::string_view b) {
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view RequestHead::value_of(std::string_view name) const {
    for (const HeadField& field : fields) {
        if (equals_ignoring_case(field.name, name)) return field.value;
    }
    return {};
}

HeadReader::Verdict HeadReader::refuse(ErrorCode code, const char* reason) {
    refusal_ = {code, reason};
    return Verdict::kRefused;
}

HeadReader::Verdict HeadReader::end_line(std::string_view line) {
    if (n_lines_++ == 0) {
        RequestLine parts;
        if (!split_request_line(line, parts) || !is_method(parts.method) || !is_version(parts.version))
            return refuse(ErrorCode::kInvalidRequest, "malformed HTTP request: its first line");
        if (parts.version != "HTTP/1.1" && parts.version != "HTTP/1.0")
            return refuse(ErrorCode::kVersionUnsupported, "expected HTTP/1.1 or HTTP/1.0");
        if (parts.target.size() > limits_.target_bytes_max)
            return refuse(ErrorCode::kUriTooLong, "the request's target is too long");
        if (!is_target(parts.target)) return refuse(ErrorCode::kInvalidRequest, "malformed HTTP request: its target");
        return Verdict::kMore;
    }
    if (line.empty()) return Verdict::kComplete;
    if (n_lines_ > limits_.n_fields_max + 1)
        return refuse(ErrorCode::kHeadTooLarge, "the request has too many header fields");
    size_t colon = line.find(':');
    std::string_view name = line.substr(0, std::min(colon, line.size()));
    // White space before the colon or at the begin of a line (a folded one) is no part of a name.
    if (colon == std::string_view::npos || name.empty() || !std::all_of(name.begin(), name.end(), is_token_char))
        return refuse(ErrorCode::kInvalidRequest, "malformed HTTP request: a header field");
    for (std::string_view forged : kForgedNames) {
        if (equals_ignoring_case(name, forged))
            return refuse(ErrorCode::kInvalidRequest, "malformed HTTP request: a header field of a reserved name");
    }
    if (hides_control(line.substr(colon + 1), false))
        return refuse(ErrorCode::kInvalidRequest,
                      "malformed HTTP request: an encoded control character in a header field");
    return Verdict::kMore;
}

HeadReader::Verdict HeadReader::read(std::string_view bytes) {
    for (; at_ < bytes.size(); ++at_) {
        const char c = bytes[at_];
        if (at_ >= limits_.bytes_max) return refuse(ErrorCode::kHeadTooLarge, "the request's head is too long");
        if (n_lines_ == 0 && at_ > limits_.target_bytes_max + kMethodBytesMax + 16)
            return refuse(ErrorCode::kUriTooLong, "the request's first line is too long");
        const bool after_return = at_ > line_begin_ && bytes[at_ - 1] == '\r';
        if ((c == '\n') != after_return)
            return refuse(ErrorCode::kInvalidRequest, "malformed HTTP request: expected lines that end in CR LF");
        if (c == '\n') {
            Verdict verdict = end_line(bytes.substr(line_begin_, at_ - 1 - line_begin_));
            if (verdict == Verdict::kRefused) return verdict;
            line_begin_ = at_ + 1;
            if (verdict == Verdict::kComplete) {
                ++at_;
                return verdict;
            }
        } else if (c != '\r' && c != '\t' && is_control(static_cast<uint8_t>(c))) {
            return refuse(ErrorCode::kInvalidRequest, "malformed HTTP request: a control character");
        } else if (n_lines_ == 0 && c == '\t') {
            return refuse(ErrorCode::kInvalidRequest, "malformed HTTP request: its first line");
        }
    }
    return Verdict::kMore;
}

bool parse_head(std::string_view bytes, RequestHead& out, HeadRefusal& refusal) {
    out = {};
    const auto refuse = [&](ErrorCode code, const char* reason) {
        refusal = {code, reason};
        return false;
    };
    RequestLine line;
    if (!split_request_line(bytes.substr(0, bytes.find("\r\n")), line) || !parse_head_fields(bytes, out))
        return refuse(ErrorCode::kInvalidRequest, "malformed HTTP request");
    out.method = line.method;
    out.target = line.target;
    out.is_1_0 = line.version == "HTTP/1.0";
    const auto count_of = [&](std::string_view name) {
        return std::count_if(out.fields.begin(), out.fields.end(),
                             [&](const HeadField& field) { return equals_ignoring_case(field.name, name); });
    };
    for (std::string_view name : kSingleNames) {
        if (count_of(name) > 1)
            return refuse(ErrorCode::kInvalidRequest,
                          "malformed HTTP request: a header field that may come once came twice");
    }
    if (count_of("host") == 0 ? !out.is_1_0 : !is_authority(out.value_of("host")))
        return refuse(ErrorCode::kInvalidRequest, "malformed HTTP request: expected one Host field with a host");
    if (!out.target.starts_with('/') && !(out.target == "*" && out.method == "OPTIONS") && !take_host_off(out))
        return refuse(ErrorCode::kInvalidRequest, "malformed HTTP request: expected a target that begins with /");
    out.has_length = count_of("content-length") > 0;
    const bool is_chunked = count_of("transfer-encoding") > 0;
    if (is_chunked && (out.has_length || out.is_1_0))
        return refuse(ErrorCode::kInvalidRequest,
                      "malformed HTTP request: it is not clear where its body begins and ends");
    if (is_chunked)
        return refuse(ErrorCode::kLengthRequired, "expected a body with Content-Length, found Transfer-Encoding");
    if (out.has_length && !parse_length(out.value_of("content-length"), out.body_bytes))
        return refuse(ErrorCode::kInvalidRequest, "malformed HTTP request: expected a Content-Length of digits");
    if (count_of("content-encoding") > 0 && !equals_ignoring_case(out.value_of("content-encoding"), "identity"))
        return refuse(ErrorCode::kUnsupportedMedia, "expected a body that is not compressed, found Content-Encoding");
    if (count_of("expect") > 0) {
        if (!equals_ignoring_case(out.value_of("expect"), "100-continue"))
            return refuse(ErrorCode::kExpectationFailed, "expected no Expect field but 100-continue");
        out.expects_continue = !out.is_1_0 && out.body_bytes > 0;
    }
    bool closes = false, keeps = false;
    for (const HeadField& field : out.fields) {
        if (!equals_ignoring_case(field.name, "connection")) continue;
        closes = closes || has_token(field.value, "close");
        keeps = keeps || has_token(field.value, "keep-alive");
    }
    out.keeps_alive = !closes && (!out.is_1_0 || keeps);
    return true;
}

}  // namespace lorad::server
