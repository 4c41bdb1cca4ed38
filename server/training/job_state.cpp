#include "server/training/job_state.h"

#include <algorithm>
#include <array>

namespace lorad::server::training {
namespace {

struct Transition {
    JobState from;
    JobEvent event;
    JobState to;
};

using enum JobState;

constexpr std::array kTransitions = {
    Transition{kValidating, JobEvent::kValidated, kQueued},
    Transition{kValidating, JobEvent::kFault, kFailed},
    Transition{kValidating, JobEvent::kPause, kPaused},
    Transition{kValidating, JobEvent::kCancel, kCancelled},
    Transition{kValidating, JobEvent::kRestart, kValidating},
    Transition{kQueued, JobEvent::kStarted, kRunning},
    Transition{kQueued, JobEvent::kUnread, kValidating},
    Transition{kQueued, JobEvent::kFault, kFailed},
    Transition{kQueued, JobEvent::kPause, kPaused},
    Transition{kQueued, JobEvent::kCancel, kCancelled},
    Transition{kQueued, JobEvent::kRestart, kQueued},
    Transition{kRunning, JobEvent::kLastStep, kPublishing},
    Transition{kRunning, JobEvent::kGaveWay, kQueued},
    Transition{kRunning, JobEvent::kFault, kFailed},
    Transition{kRunning, JobEvent::kPause, kPaused},
    Transition{kRunning, JobEvent::kCancel, kCancelled},
    Transition{kRunning, JobEvent::kRestart, kQueued},  // goes on from its last checkpoint
    Transition{kPublishing, JobEvent::kPublished, kSucceeded},
    Transition{kPublishing, JobEvent::kFault, kFailed},
    Transition{kPublishing, JobEvent::kRestart, kQueued},
    Transition{kPaused, JobEvent::kResume, kQueued},
    Transition{kPaused, JobEvent::kCancel, kCancelled},
    Transition{kPaused, JobEvent::kRestart, kPaused},
};

struct StateNames {
    JobState state;
    std::string_view own, wire;
};
constexpr std::array kStateNames = {
    StateNames{kValidating, "validating_files", "validating_files"},
    StateNames{kQueued, "queued", "queued"},
    StateNames{kRunning, "running", "running"},
    StateNames{kPublishing, "publishing", "running"},
    StateNames{kPaused, "paused", "paused"},
    StateNames{kSucceeded, "succeeded", "succeeded"},
    StateNames{kFailed, "failed", "failed"},
    StateNames{kCancelled, "cancelled", "cancelled"},
};

const StateNames& names_of_state(JobState state) { return *std::ranges::find(kStateNames, state, &StateNames::state); }

}  // namespace

std::optional<JobState> next_state(JobState state, JobEvent event) {
    const auto found = std::ranges::find_if(
        kTransitions, [&](const Transition& one) { return one.from == state && one.event == event; });
    return found == kTransitions.end() ? std::nullopt : std::optional(found->to);
}

bool is_ended(JobState state) { return state == kSucceeded || state == kFailed || state == kCancelled; }

std::string_view wire_name(JobState state) { return names_of_state(state).wire; }
std::string_view state_name(JobState state) { return names_of_state(state).own; }

std::optional<JobState> state_of(std::string_view name) {
    const auto found = std::ranges::find(kStateNames, name, &StateNames::own);
    return found == kStateNames.end() ? std::nullopt : std::optional(found->state);
}

}  // namespace lorad::server::training
