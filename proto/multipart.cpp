#include "proto/multipart.h"

#include <algorithm>
#include <optional>

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::proto {
namespace {

constexpr size_t kBoundaryBytesMax = 70;  // RFC 2046

Error malformed(std::string_view what) {
    return make_error(ErrorCode::kInvalidRequest, format("the form is malformed: {}", what));
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool equal_ignoring_case(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}
std::string_view trim(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}

// One `; key=value` or `; key="value"` off the front of `rest`. nullopt where it is malformed.
struct HeaderParameter {
    std::string key, value;
};
std::optional<HeaderParameter> take_parameter(std::string_view& rest) {
    rest = trim(rest);
    if (!rest.starts_with(';')) return std::nullopt;
    rest = trim(rest.substr(1));
    size_t equals = rest.find('=');
    if (equals == std::string_view::npos || equals == 0) return std::nullopt;
    HeaderParameter out;
    for (char c : trim(rest.substr(0, equals))) out.key += lower(c);
    rest = trim(rest.substr(equals + 1));
    if (!rest.starts_with('"')) {
        size_t end = std::min(rest.find(';'), rest.size());
        out.value = std::string(trim(rest.substr(0, end)));
        rest = rest.substr(end);
        return out;
    }
    for (size_t i = 1; i < rest.size(); ++i) {
        if (rest[i] == '"') {
            rest = rest.substr(i + 1);
            return out;
        }
        if (rest[i] == '\\' && i + 1 < rest.size()) ++i;
        out.value += rest[i];
    }
    return std::nullopt;
}

Status read_disposition(std::string_view value, FormPart& part) {
    size_t end = std::min(value.find(';'), value.size());
    if (!equal_ignoring_case(trim(value.substr(0, end)), "form-data")) {
        return malformed("expected Content-Disposition: form-data in each part");
    }
    std::string_view rest = value.substr(end);
    bool has_name = false;
    while (!trim(rest).empty()) {
        std::optional<HeaderParameter> parameter = take_parameter(rest);
        if (!parameter) return malformed("a Content-Disposition cannot be read");
        bool& seen = parameter->key == "name" ? has_name : part.has_filename;
        if (parameter->key != "name" && parameter->key != "filename") continue;
        if (seen) return malformed(format("two {} in one Content-Disposition", parameter->key));
        seen = true;
        (parameter->key == "name" ? part.name : part.filename) = std::move(parameter->value);
    }
    if (!has_name) return malformed("a part has no name");
    return ok_status();
}

}  // namespace

Status read_part_header(std::string_view header, FormPart& part) {
    bool has_disposition = false;
    while (!header.empty()) {
        size_t end = std::min(header.find("\r\n"), header.size());
        std::string_view line = header.substr(0, end);
        header.remove_prefix(std::min(end + 2, header.size()));
        size_t colon = line.find(':');
        if (colon == std::string_view::npos) return malformed("a part's header line has no colon");
        std::string_view key = trim(line.substr(0, colon));
        if (equal_ignoring_case(key, "Content-Transfer-Encoding")) {
            std::string_view value = trim(line.substr(colon + 1));
            if (!equal_ignoring_case(value, "binary") && !equal_ignoring_case(value, "8bit") &&
                !equal_ignoring_case(value, "7bit")) {
                return malformed(format("Content-Transfer-Encoding {} is not read", json_quote(value.substr(0, 40))));
            }
        }
        if (!equal_ignoring_case(key, "Content-Disposition")) continue;
        if (has_disposition) return malformed("two Content-Dispositions in one part");
        has_disposition = true;
        TRY(read_disposition(line.substr(colon + 1), part));
    }
    if (!has_disposition) return malformed("a part has no Content-Disposition");
    return ok_status();
}

Result<std::string> multipart_boundary(std::string_view content_type) {
    size_t end = std::min(content_type.find(';'), content_type.size());
    if (!equal_ignoring_case(trim(content_type.substr(0, end)), "multipart/form-data")) {
        return std::string();
    }
    std::string_view rest = content_type.substr(end);
    while (!trim(rest).empty()) {
        std::optional<HeaderParameter> parameter = take_parameter(rest);
        if (!parameter) break;
        if (parameter->key != "boundary") continue;
        if (parameter->value.empty() || parameter->value.size() > kBoundaryBytesMax) break;
        return parameter->value;
    }
    return malformed(format("expected a boundary of 1 to {} bytes", kBoundaryBytesMax));
}

Result<std::vector<FormPart>> parse_multipart(std::string_view body, std::string_view boundary) {
    std::string delimiter = "--" + std::string(boundary);
    // A preamble may stand before the first delimiter.
    size_t at = body.starts_with(delimiter) ? 0 : body.find("\r\n" + delimiter);
    if (at == std::string_view::npos) return malformed("the boundary does not occur");
    if (at != 0 || !body.starts_with(delimiter)) at += 2;
    at += delimiter.size();
    const std::string next_delimiter = "\r\n" + delimiter;
    std::vector<FormPart> parts;
    for (;;) {
        std::string_view rest = body.substr(at);
        if (rest.starts_with("--")) return parts;
        size_t line_end = rest.find("\r\n");
        if (line_end == std::string_view::npos || !trim(rest.substr(0, line_end)).empty()) {
            return malformed("expected the end of the line after a boundary");
        }
        rest.remove_prefix(line_end + 2);
        if (parts.size() == kFormPartsMax) {
            return malformed(format("expected at most {} parts", kFormPartsMax));
        }
        size_t header_end = rest.substr(0, kFormHeaderBytesMax).find("\r\n\r\n");
        if (header_end == std::string_view::npos) {
            return malformed(format("a part's header does not end within {} bytes", kFormHeaderBytesMax));
        }
        FormPart part;
        TRY(read_part_header(rest.substr(0, header_end), part));
        rest.remove_prefix(header_end + 4);
        // The delimiter's line break may be the one that ends the header of an empty part.
        size_t content_end = rest.starts_with(delimiter) ? 0 : rest.find(next_delimiter);
        if (content_end == std::string_view::npos) {
            return malformed("it ends within a part: the last boundary is missing");
        }
        part.content = rest.substr(0, content_end);
        size_t skipped = rest.starts_with(delimiter) ? delimiter.size() : content_end + next_delimiter.size();
        at = static_cast<size_t>(rest.data() - body.data()) + skipped;
        parts.push_back(std::move(part));
    }
}

}  // namespace lorad::proto
