#include "proto/url.h"

#include "proto/base/format.h"

namespace lorad::proto {
namespace {

constexpr size_t kParametersMax = 64;

int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

Error malformed_url(std::string_view what) {
    return make_error(ErrorCode::kInvalidRequest, format("the request's path is malformed: {}", what));
}

// Calls take(piece) for every piece between separators, empty ones included.
template <typename Take>
void split(std::string_view text, char separator, Take&& take) {
    for (size_t begin = 0;;) {
        size_t end = text.find(separator, begin);
        if (end == std::string_view::npos) {
            take(text.substr(begin));
            return;
        }
        take(text.substr(begin, end - begin));
        begin = end + 1;
    }
}

}  // namespace

std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space) {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '+' && plus_is_space) {
            out += ' ';
        } else if (text[i] != '%') {
            out += text[i];
        } else {
            int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
            int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
            if (high < 0 || low < 0) return std::nullopt;
            out += static_cast<char>(high * 16 + low);
            i += 2;
        }
    }
    return out;
}

std::string percent_encode(std::string_view text) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    std::string out;
    for (char c : text) {
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
                     c == '.' || c == '_' || c == '~';
        if (plain) {
            out += c;
        } else {
            out += '%';
            out += kHex[static_cast<uint8_t>(c) >> 4];
            out += kHex[static_cast<uint8_t>(c) & 15];
        }
    }
    return out;
}

Result<Target> parse_target(std::string_view target) {
    if (!target.starts_with('/')) return malformed_url("expected it to begin with /");
    target = target.substr(0, target.find('#'));
    size_t question = target.find('?');
    std::string_view path = target.substr(0, question);
    Target out;
    bool broken = false;
    split(path.substr(1), '/', [&](std::string_view piece) {
        std::optional<std::string> decoded = percent_decode(piece);
        broken = broken || !decoded;
        if (decoded) out.segments.push_back(std::move(*decoded));
    });
    if (question != std::string_view::npos && question + 1 < target.size()) {
        split(target.substr(question + 1), '&', [&](std::string_view piece) {
            if (piece.empty() || out.query.size() > kParametersMax) return;
            size_t equals = piece.find('=');
            std::optional<std::string> key = percent_decode(piece.substr(0, equals), true);
            std::optional<std::string> value = std::string();
            if (equals != std::string_view::npos) {
                value = percent_decode(piece.substr(equals + 1), true);
            }
            broken = broken || !key || !value;
            if (key && value) out.query.emplace_back(std::move(*key), std::move(*value));
        });
    }
    if (broken) return malformed_url("expected two hex digits after each %");
    if (out.query.size() > kParametersMax) {
        return malformed_url(format("expected at most {} parameters", kParametersMax));
    }
    return out;
}

}  // namespace lorad::proto
