#include "server/config_service.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include <unistd.h>

namespace lorad::server {
namespace {

constexpr int kFirstInherited = 3;  // SD_LISTEN_FDS_START
constexpr int kInheritedMax = 64;

std::string_view variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string_view() : std::string_view(value);
}

std::optional<uint64_t> number(const char* name) {
    const std::string_view text = variable(name);
    uint64_t out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return out;
}

// A variable that names the process it is for; children inherit it and must not take it for theirs.
bool is_for_us(const char* name) {
    const auto pid = number(name);
    return pid && *pid == static_cast<uint64_t>(getpid());
}

}  // namespace

ServiceEnvironment service_environment() {
    ServiceEnvironment out;
    out.notify_socket = variable("NOTIFY_SOCKET");
    if (const auto usec = number("WATCHDOG_USEC");
        usec && *usec > 0 && (variable("WATCHDOG_PID").empty() || is_for_us("WATCHDOG_PID")))
        out.watchdog = std::chrono::microseconds(*usec);
    const auto n_sockets = number("LISTEN_FDS");
    if (!n_sockets || *n_sockets > kInheritedMax || !is_for_us("LISTEN_PID")) return out;
    std::string_view names = variable("LISTEN_FDNAMES");
    for (int i = 0; i < int(*n_sockets); ++i) {
        const size_t end = std::min(names.find(':'), names.size());
        out.sockets.push_back({kFirstInherited + i, end == 0 ? "unknown" : std::string(names.substr(0, end))});
        names.remove_prefix(std::min(end + 1, names.size()));
    }
    return out;
}

}  // namespace lorad::server
