// Threads that follow grammars beside the engine: they take the chosen token, and make the mask of the next one. How
// long that takes is up to the client's grammar, from microseconds to most of a second, so the engine never does it
// itself and never has to wait for its end: it checks for a mask, and may leave its sequence out of a step.
//
// There are two kinds of threads. Quick ones make masks that are expected in time for the step; a tenant may have all
// of them but one. Patient ones, of lower priority, make masks that are known to be slow; a tenant may have half of
// them. Within a kind tenants take turns.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "proto/base/mutex.h"
#include "server/access/shared_places.h"
#include "server/engine/token_constraint.h"

namespace lorad::server {

// One mask in the making. The constraint is used by nobody else until it is done.
struct MaskJob {
    std::shared_ptr<TokenConstraint> constraint;
    std::string tenant;
    std::optional<TokenId> chosen;        // the token before it, which the constraint has not been told yet
    std::atomic<bool> is_patient{false};  // no step waits for it; the engine may give up waiting later
    // Once done() is true.
    std::vector<uint32_t> words;
    Status status = ok_status();
    double seconds = 0;  // processor time of both

    bool done() const { return is_done.load(); }
    std::atomic<bool> is_done{false};
};

// begin() and wait(): the engine's thread.
class MaskPool {
  public:
    // `on_patient` is called on a thread of the pool after each mask that is patient by then.
    MaskPool(uint32_t n_quick, uint32_t n_patient, std::function<void()> on_patient);
    ~MaskPool();
    MaskPool(const MaskPool&) = delete;
    MaskPool& operator=(const MaskPool&) = delete;

    // If the system gives no threads the mask is ready when this returns. A job that nobody holds any more is not
    // begun.
    std::shared_ptr<MaskJob> begin(std::shared_ptr<TokenConstraint> constraint, std::string tenant, bool is_patient,
                                   std::optional<TokenId> chosen = {});
    // Waits until all of these are done or the time is over. Returns true if all are done.
    bool wait(std::span<const std::shared_ptr<MaskJob>> jobs, std::chrono::steady_clock::duration at_most);

  private:
    struct Lane {
        explicit Lane(uint32_t n, uint64_t share) : n_threads(n), threads_now(n, share) {}
        const uint32_t n_threads;
        access::SharedPlaces threads_now;  // shares among tenants
        Condition changed;
        std::map<std::string, std::deque<std::shared_ptr<MaskJob>>> waiting;  // by tenant; none is empty
        std::string last;                                                     // whose turn it was
    };
    struct Task {
        std::shared_ptr<MaskJob> job;
        access::SharedPlaces::Place place;
    };
    void run(Lane& lane, bool is_patient);
    static Task next(Lane& lane);
    static void make(MaskJob& job);

    const std::function<void()> on_patient_;
    Mutex mutex_;
    Condition done_;
    Lane quick_ GUARDED_BY(mutex_), patient_ GUARDED_BY(mutex_);
    bool stop_ GUARDED_BY(mutex_) = false;
    std::vector<std::thread> threads_;
    uint32_t n_started_[2] = {0, 0};  // quick, patient
};

}  // namespace lorad::server
