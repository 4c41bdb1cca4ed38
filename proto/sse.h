// Server-sent events as OpenAI's clients read them.
#pragma once

#include <string>
#include <string_view>

namespace lorad::proto {

// `data` is one line of JSON.
inline std::string sse_event(std::string_view data) {
    std::string out;
    out.reserve(data.size() + 8);
    out += "data: ";
    out += data;
    out += "\n\n";
    return out;
}

// Writes an event with a name, by which clients of other interfaces tell events apart.
inline std::string sse_event(std::string_view name, std::string_view data) {
    std::string out = "event: ";
    out += name;
    out += '\n';
    return out + sse_event(data);
}

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace lorad::proto
