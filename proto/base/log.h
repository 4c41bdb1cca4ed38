// Levelled log lines on stderr: one line each, key=value pairs in the message. Any thread.
// spdlog stays behind log.cpp, so that this header costs no compile time.
#pragma once

#include <string_view>

#include "proto/base/format.h"

namespace lorad {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view line);

template <typename... Args>
void log_info(fmt::format_string<Args...> text, Args&&... args) {
    if (log_enabled(LogLevel::kInfo)) log_line(LogLevel::kInfo, format(text, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> text, Args&&... args) {
    if (log_enabled(LogLevel::kWarn)) log_line(LogLevel::kWarn, format(text, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> text, Args&&... args) {
    if (log_enabled(LogLevel::kError)) log_line(LogLevel::kError, format(text, std::forward<Args>(args)...));
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> text, Args&&... args) {
    if (log_enabled(LogLevel::kDebug)) log_line(LogLevel::kDebug, format(text, std::forward<Args>(args)...));
}

}  // namespace lorad
