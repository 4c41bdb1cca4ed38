#include "proto/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

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

spdlog::logger& logger() {
    static const std::shared_ptr<spdlog::logger> instance = [] {
        auto created = spdlog::stderr_color_mt("lorad");
        created->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
        created->flush_on(spdlog::level::info);
        return created;
    }();
    return *instance;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }
bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }
void log_line(LogLevel level, std::string_view line) { logger().log(to_spdlog(level), "{}", line); }

}  // namespace lorad
