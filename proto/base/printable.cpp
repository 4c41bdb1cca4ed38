#include "proto/base/printable.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "proto/base/format.h"
#include "proto/json/json_tree.h"

namespace lorad {
namespace {

struct Range {
    char32_t first, last;
};
// In order. Unicode 16: controls, separators, bidirectional controls, default ignorable code points but for joiners and
// variation selectors.
constexpr Range kUnprintable[] = {
    {0x0000, 0x001f},   {0x007f, 0x009f},   {0x00ad, 0x00ad},   {0x034f, 0x034f}, {0x061c, 0x061c}, {0x115f, 0x1160},
    {0x17b4, 0x17b5},   {0x180e, 0x180e},   {0x200b, 0x200b},   {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
    {0x3164, 0x3164},   {0xfdd0, 0xfdef},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0}, {0xfff0, 0xfffb}, {0x1bca0, 0x1bca3},
    {0x1d173, 0x1d17a}, {0xe0000, 0xe00ff}, {0xe01f0, 0xe0fff},
};

bool is_printable(char32_t point) {
    if ((point & 0xfffe) == 0xfffe) return false;  // the last two of each plane are no characters
    const auto* const range = std::ranges::lower_bound(kUnprintable, point, {}, &Range::last);
    return range == std::end(kUnprintable) || point < range->first;
}

char32_t code_point(std::string_view sequence) {
    const auto lead = static_cast<uint8_t>(sequence[0]);
    char32_t point = sequence.size() == 1 ? lead : lead & (0x7f >> sequence.size());
    for (const char c : sequence.substr(1)) point = (point << 6) | (static_cast<uint8_t>(c) & 0x3f);
    return point;
}

// Returns the length of the printable prefix.
size_t printable_bytes(std::string_view text) {
    size_t n = 0;
    while (n < text.size()) {
        const char c = text[n];
        if (c >= 0x20 && c < 0x7f) {
            ++n;
            continue;
        }
        const size_t bytes = utf8_sequence_bytes(text.substr(n));
        if (bytes == 0 || !is_printable(code_point(text.substr(n, bytes)))) break;
        n += bytes;
    }
    return n;
}

std::string escaped(char32_t point) {
    switch (point) {
        case '\n': return "\\n";
        case '\r': return "\\r";
        case '\t': return "\\t";
        default: break;
    }
    if (point < 0x10000) return format("\\u{:04x}", static_cast<uint32_t>(point));
    const uint32_t rest = point - 0x10000;
    return format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
}

}  // namespace

bool is_printable(std::string_view text) { return printable_bytes(text) == text.size(); }

std::string escape_unprintable(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (;;) {
        const size_t n_plain = printable_bytes(text);
        out += text.substr(0, n_plain);
        text.remove_prefix(n_plain);
        if (text.empty()) return out;
        const size_t bytes = utf8_sequence_bytes(text);
        out += bytes == 0 ? "\xef\xbf\xbd" : escaped(code_point(text.substr(0, bytes)));
        text.remove_prefix(std::max<size_t>(bytes, 1));
    }
}

}  // namespace lorad
