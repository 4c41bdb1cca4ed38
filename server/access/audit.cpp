#include "server/access/audit.h"

#include "proto/base/log.h"
#include "proto/base/mutex.h"

namespace lorad::server::access {
namespace {

constexpr double kRefusalsPerMinute = 60;  // and as many at once
constexpr size_t kNameBytesMax = 128;
constexpr size_t kShownMethodBytesMax = 16;

void write_line(LogLevel level, std::string_view what, const AuditedCall& call, std::string_view reason, int status,
                uint64_t n_left_out) {
    if (!log_enabled(level)) return;
    log_event(level, what,
              {{"method", call.method.substr(0, kShownMethodBytesMax)},
               {"route", call.route},
               {"adapter", call.name.substr(0, kNameBytesMax)},
               {"reason", reason},
               {"status", static_cast<uint64_t>(status)},
               {"key", call.principal != nullptr ? std::string_view(call.principal->id) : std::string_view()},
               {"peer", call.peer.substr(0, kNameBytesMax)},
               {"request_id", call.request_id},
               {"left_out", n_left_out > 0 ? std::to_string(n_left_out) : std::string()}});
}

}  // namespace

void Audit::administered(const AuditedCall& call, int status) {
    write_line(LogLevel::kInfo, "administration", call, {}, status, 0);
}

void Audit::refused(const AuditedCall& call, std::string_view reason, int status) {
    uint64_t n_left_out = 0;
    {
        MutexLock lock(mutex_);
        Time now = std::chrono::steady_clock::now();
        if (!is_set_up_) lines_.set_rate(kRefusalsPerMinute, now);
        is_set_up_ = true;
        if (lines_.take(1, now)) {
            ++n_left_out_;
            return;
        }
        n_left_out = std::exchange(n_left_out_, 0);
    }
    write_line(LogLevel::kWarn, "access refused", call, reason, status, n_left_out);
}

}  // namespace lorad::server::access
