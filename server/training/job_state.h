// The life of a training job: one table says what may follow what, and nothing else changes a state.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lorad::server::training {

enum class JobState : uint8_t {
    kValidating,  // its data is being read
    kQueued,      // waits for its turn
    kRunning,
    kPublishing,  // its last step is done, its adapter is being registered; told as running
    kPaused,
    kSucceeded,
    kFailed,
    kCancelled,
};

enum class JobEvent : uint8_t {
    kValidated,
    kStarted,   // its turn has come
    kGaveWay,   // to a job of another key, until its next turn
    kLastStep,  // nothing is left to train
    kPublished,
    kFault,  // bad data, a loss that is not finite, a full disk, a device that refuses
    kPause,
    kResume,
    kUnread,  // its turn has come, but its data was never read: it was paused before
    kCancel,
    kRestart,  // the daemon starts, and found the job on its disk
};

// Returns nothing if the event cannot happen to a job in this state.
std::optional<JobState> next_state(JobState state, JobEvent event);

bool is_ended(JobState state);
// OpenAI's names: "validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled".
std::string_view wire_name(JobState state);
// The state's own name, for files: "publishing" is one of them.
std::string_view state_name(JobState state);
std::optional<JobState> state_of(std::string_view name);

}  // namespace lorad::server::training
