// Levelled log lines on stderr: one line each, as text with key=value pairs in the message, or as a JSON object. Any
// thread. What is not printable (proto/base/printable.h), line ends included, is escaped here. What clients send as
// prompts is never logged.
// spdlog stays behind log.cpp, so that this header costs no compile time.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "proto/base/format.h"

namespace lorad {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

enum class LogFormat { kText, kJson };

void set_log_level(LogLevel level);
void set_log_format(LogFormat log_format);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view line);

// A value of an event: quoted text, or a number as it is.
struct LogField {
    std::string_view key;
    std::string value;
    bool is_number = false;

    LogField(std::string_view name, std::string_view text) : key(name), value(text) {}
    LogField(std::string_view name, uint64_t number) : key(name), value(std::to_string(number)), is_number(true) {}
    LogField(std::string_view name, double number) : key(name), value(format("{:.6f}", number)), is_number(true) {}
};
// `what` and its fields: what="request finished" as text, members of the object in JSON. Fields that
// are empty text are left out.
void log_event(LogLevel level, std::string_view what, std::initializer_list<LogField> fields);

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
