#include "proto/base/log.h"

#include <atomic>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "proto/base/log_failure.h"
#include "proto/base/printable.h"
#include "proto/json/json.h"

namespace lorad {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
    switch (level) {
        case LogLevel::kDebug: return spdlog::level::debug;
        case LogLevel::kInfo: return spdlog::level::info;
        case LogLevel::kWarn: return spdlog::level::warn;
        case LogLevel::kError: return spdlog::level::err;
    }
    return spdlog::level::info;
}

constexpr const char* kTextPattern = "%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v";
// %v is the rest of the object's members.
constexpr const char* kJsonPattern = "{\"time\":\"%Y-%m-%dT%H:%M:%S.%e%z\",\"level\":\"%l\",%v}";

std::atomic<LogFormat> g_format{LogFormat::kText};

spdlog::logger& logger() {
    static const std::shared_ptr<spdlog::logger> instance = [] {
        auto created = spdlog::stderr_color_mt("lorad");
        created->set_pattern(kTextPattern);
        created->flush_on(spdlog::level::info);
        return created;
    }();
    return *instance;
}

// Whatever a line is made of, it is one line, and a terminal does nothing but show it. JSON stays what it is.
void write(LogLevel level, std::string_view line) { logger().log(to_spdlog(level), "{}", escape_unprintable(line)); }

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }
bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }
void set_log_format(LogFormat log_format) {
    g_format = log_format;
    logger().set_pattern(log_format == LogFormat::kJson ? kJsonPattern : kTextPattern);
}

void log_line(LogLevel level, std::string_view line) {
    if (!log_enabled(level)) return;
    write(level, g_format == LogFormat::kJson ? "\"message\":" + json_quote(line) : std::string(line));
}

void log_failure(const char* what, const std::exception& why) noexcept {
    try {
        log_error("{}: {}", what, why.what());
    } catch (...) {
    }
}

void log_event(LogLevel level, std::string_view what, std::initializer_list<LogField> fields) {
    if (!log_enabled(level)) return;
    bool is_json = g_format == LogFormat::kJson;
    std::string out = is_json ? "\"message\":" + json_quote(what) : std::string(what);
    for (const LogField& field : fields) {
        if (field.value.empty()) continue;
        std::string value = field.is_number ? field.value : json_quote(field.value);
        out += is_json ? format(",{}:{}", json_quote(field.key), value) : format(" {}={}", field.key, value);
    }
    write(level, out);
}

}  // namespace lorad
