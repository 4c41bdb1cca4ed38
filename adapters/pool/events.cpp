#include "adapters/pool/events.h"

#include "proto/base/mutex.h"

namespace lorad::adapters {

std::string_view name_of(EventKind kind) {
    switch (kind) {
        case EventKind::kUploading: return "uploading";
        case EventKind::kRegistered: return "registered";
        case EventKind::kReplaced: return "replaced";
        case EventKind::kRemoved: return "removed";
        case EventKind::kLoading: return "loading";
        case EventKind::kResident: return "resident";
        case EventKind::kLoadFailed: return "load_failed";
        case EventKind::kEvicted: return "evicted";
        case EventKind::kActivated: return "activated";
        case EventKind::kDeactivated: return "deactivated";
        case EventKind::kDamaged: return "damaged";
        case EventKind::kFreed: return "freed";
    }
    return "";
}

void EventLog::add(EventKind kind, std::string name, std::string generation, std::string detail) {
    add(AdapterEvent{
        .kind = kind, .name = std::move(name), .generation = std::move(generation), .detail = std::move(detail)});
}

void EventLog::add_upload(std::string blob, uint64_t bytes, std::optional<uint64_t> bytes_total) {
    add(AdapterEvent{
        .kind = EventKind::kUploading, .blob = std::move(blob), .bytes = bytes, .bytes_total = bytes_total});
}

void EventLog::add(AdapterEvent event) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    {
        const MutexLock lock(mutex_);
        event.number = ++last_;
        event.at_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
        events_.push_back(std::move(event));
        if (events_.size() > kKept) events_.pop_front();
    }
    added_.notify_all();
}

std::vector<AdapterEvent> EventLog::next(uint64_t after, std::chrono::milliseconds timeout) const {
    MutexLock lock(mutex_);
    added_.wait_for(lock, timeout, [&]() REQUIRES(mutex_) { return last_ > after; });
    std::vector<AdapterEvent> found;
    for (const AdapterEvent& event : events_) {
        if (event.number > after) found.push_back(event);
    }
    return found;
}

uint64_t EventLog::last_number() const {
    const MutexLock lock(mutex_);
    return last_;
}

}  // namespace lorad::adapters
