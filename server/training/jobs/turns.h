// Whose jobs run beside each other, so that jobs of one key never keep another key's job waiting: keys share the places
// that there are, and the jobs of a key what the key has, in the order in which they came. Where there are more keys
// than places, or jobs that cannot be beside each other, keys take turns of some length. A job that gives way goes on
// later with the same bits. Pure: who asks has the jobs and the time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace lorad::server::training {

struct TurnJob {
    std::string id, tenant;
    uint64_t number = 0;                          // jobs of a key run in this order
    std::chrono::steady_clock::time_point since;  // of a running one: when its turn began
    bool is_ready = true;                         // of a waiting one: its files are written, so that it may begin
};

// One thread.
class Turns {
  public:
    using Clock = std::chrono::steady_clock;
    // n_places: jobs that run beside each other, at most. length: a job runs so long before it gives way to a key that
    // has as few running jobs.
    Turns(uint32_t n_places, Clock::duration length) : n_places_(n_places), length_(length) {}

    // The waiting jobs' order: first that of the key with the fewest running jobs, of several the one whose turn is the
    // longest ago; of a key only its oldest, as the others come behind it, if that is ready. Indices in `waiting`.
    std::vector<size_t> order(std::span<const TurnJob> waiting, std::span<const TurnJob> running) const;
    // Which running jobs give way to this one: indices in `running`; none: it waits, or there is a place.
    // has_to_be_alone: it cannot be beside those that run, so that all give way or none.
    std::vector<size_t> who_gives_way(const TurnJob& job, std::span<const TurnJob> running, bool has_to_be_alone,
                                      Clock::time_point now, uint32_t n_called = 0) const;
    // n_called: models that are trained by calls, which have places, too, but leave the jobs one.
    bool has_place(std::span<const TurnJob> running, uint32_t n_called = 0) const {
        return running.size() + std::min(n_called, n_places_ - 1) < n_places_;
    }
    void begun(const TurnJob& job) { last_turns_[job.tenant] = ++n_turns_; }

  private:
    const uint32_t n_places_;
    const Clock::duration length_;
    uint64_t n_turns_ = 0;
    std::map<std::string, uint64_t, std::less<>> last_turns_;  // by key
};

}  // namespace lorad::server::training
