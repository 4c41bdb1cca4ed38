#include "server/ops/process_metrics.h"

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iterator>

#include <sys/resource.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "server/metrics.h"

namespace lorad::server::ops {
namespace {

void write_value(std::string& out, const char* name, const char* type, const char* help, double value) {
    write_metric_head(out, name, type, help);
    out += format("{} {}\n", name, value);
}

double resident_bytes() {
    std::FILE* file = std::fopen("/proc/self/statm", "re");
    if (file == nullptr) return 0;
    unsigned long long total = 0, resident = 0;
    const bool read = std::fscanf(file, "%llu %llu", &total, &resident) == 2;
    std::fclose(file);
    return read ? static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) : 0;
}

double entries_of(const char* folder) {
    std::error_code error;
    const std::filesystem::directory_iterator begin(folder, error);
    return error ? 0 : static_cast<double>(std::distance(begin, std::filesystem::directory_iterator()));
}

double clock_s(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// The 22nd field of stat, in ticks since the machine's start; the 2nd, a name in brackets, may hold anything.
double start_time_s() {
    static const double started = [] {
        std::FILE* file = std::fopen("/proc/self/stat", "re");
        if (file == nullptr) return 0.0;
        char text[2048];
        const size_t size = std::fread(text, 1, sizeof text, file);
        std::fclose(file);
        std::string_view rest(text, size);
        const size_t bracket = rest.rfind(')');
        if (bracket == std::string_view::npos) return 0.0;
        rest.remove_prefix(bracket + 1);
        for (int field = 3; field < 22; ++field) rest.remove_prefix(std::min(rest.find(' ', 1), rest.size()));
        unsigned long long ticks = 0;
        if (std::sscanf(std::string(rest).c_str(), "%llu", &ticks) != 1) return 0.0;
        return clock_s(CLOCK_REALTIME) - clock_s(CLOCK_BOOTTIME) +
               static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
    }();
    return started;
}

}  // namespace

std::string process_metrics_text(const Heartbeat& engine, const ReloadState* reload) {
    std::string out;
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    write_value(out, "process_start_time_seconds", "gauge", "When the process began, as Unix time.", start_time_s());
    write_value(out, "process_cpu_seconds_total", "counter", "Processor time of the process.",
                clock_s(CLOCK_PROCESS_CPUTIME_ID));
    write_value(out, "process_resident_memory_bytes", "gauge", "Host memory in use.", resident_bytes());
    write_value(out, "process_open_fds", "gauge", "Open descriptors.", entries_of("/proc/self/fd"));
    write_value(out, "process_max_fds", "gauge", "Descriptors that may be open.", static_cast<double>(files.rlim_cur));
    write_value(out, "process_threads", "gauge", "Threads.", entries_of("/proc/self/task"));
    write_value(out, "lorad_engine_turns_total", "counter", "Turns of the engine's loop.",
                static_cast<double>(engine.n_turns));
    write_value(out, "lorad_engine_turn_age_seconds", "gauge", "How long the turn under way has lasted.",
                static_cast<double>(engine.age.count()) / 1000);
    if (reload != nullptr) {
        write_value(out, "lorad_config_last_reload_successful", "gauge",
                    "1 if the last reload was taken, or there was none.", reload->last_taken ? 1 : 0);
        write_value(out, "lorad_config_last_reload_success_timestamp_seconds", "gauge",
                    "When the configuration was last taken, as Unix time.", static_cast<double>(reload->taken_at_s));
    }
    return out;
}

}  // namespace lorad::server::ops
