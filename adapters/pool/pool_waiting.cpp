// Places for all adapters of a request: at once, or in the queue of those who wait.
#include <algorithm>

#include "adapters/pool/pool.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/json/json.h"

namespace lorad::adapters {

using Clock = std::chrono::steady_clock;

namespace {

// The interval at which a waiting request checks that its client is still there.
constexpr std::chrono::milliseconds kCancelPoll{50};

}  // namespace

// One request that could not be granted at once. On the waiting thread's stack.
struct Pool::Ticket {
    LeaseState& lease;
    const WaitOptions& wait;
    const Clock::time_point since = Clock::now();
    const Clock::time_point deadline;
    Condition changed;
    std::vector<bool> claimed = std::vector<bool>(lease.generations.size(), false);
    std::vector<GenerationPtr> own_loads;
    std::vector<GenerationPtr> doors;          // closed by this ticket
    uint64_t device_bytes_below = UINT64_MAX;  // after the device had less room than its plan: try again below this
    bool again = false;

    bool wants(const Generation* generation) const {
        return std::any_of(lease.generations.begin(), lease.generations.end(),
                           [&](const GenerationPtr& own) { return own.get() == generation; });
    }
    // Sleeps until something changes. kAdapterBusy when the request's time is over. `lock` is the caller's, of the
    // pool's mutex.
    Status sleep(MutexLock& lock, Clock::time_point wake_at) NO_THREAD_SAFETY_ANALYSIS {
        if (Clock::now() >= deadline) {
            return make_error(ErrorCode::kAdapterBusy,
                              format("the adapter {} found no place on the device within {} ms; all are in use",
                                     json_quote(lease.name), wait.timeout.count()));
        }
        if (wait.cancelled) wake_at = std::min(wake_at, Clock::now() + kCancelPoll);
        changed.wait_until(lock, std::min(wake_at, deadline));
        if (!wait.cancelled) return ok_status();
        // Afterwards, so that nothing that happens meanwhile is slept over.
        lock.unlock();
        const bool cancelled = wait.cancelled();
        lock.lock();
        if (cancelled) return make_error(ErrorCode::kAdapterBusy, "the client left while its adapter was on its way");
        return ok_status();
    }
};

bool Pool::all_resident(const LeaseState& lease) const {
    return std::all_of(lease.generations.begin(), lease.generations.end(), [](const GenerationPtr& generation) {
        return generation->state == AdapterState::kResident && !generation->door_closed;
    });
}

Status Pool::fits_ever(const LeaseState& lease) const {
    uint64_t bytes = 0, n_slots = 0, pinned_bytes = n_pinned_bytes, pinned_slots = n_pinned;
    for (const GenerationPtr& generation : lease.generations) {
        bytes += generation->record.device_bytes;
        ++n_slots;
        if (generation->n_pins > 0) {
            pinned_bytes -= generation->record.device_bytes;
            --pinned_slots;
        }
        if (generation->state == AdapterState::kDamaged) return generation->damage();
    }
    if (bytes + pinned_bytes > device_bytes_max()) {
        return make_error(ErrorCode::kOutOfMemory,
                          format("{} needs {} bytes of device memory; adapters may have {}, of which {} are pinned",
                                 json_quote(lease.name), bytes, device_bytes_max(), pinned_bytes));
    }
    if (n_slots + pinned_slots > options.n_slots) {
        return make_error(ErrorCode::kOutOfMemory,
                          format("{} needs {} adapter slots; there are {}, of which {} are pinned",
                                 json_quote(lease.name), n_slots, options.n_slots, pinned_slots));
    }
    return ok_status();
}

Status Pool::grant(LeaseState& lease, const Loader& load, const WaitOptions& wait) {
    MutexLock lock(mutex);
    if (all_resident(lease)) {
        for (const GenerationPtr& generation : lease.generations) ++generation->n_uses;
    } else {
        TRY(fits_ever(lease));
        counters.n_waits.fetch_add(1, std::memory_order_relaxed);
        Ticket ticket{.lease = lease, .wait = wait, .deadline = Clock::now() + wait.timeout};
        Status got = ok_status();
        do {
            got = wait_for_place(ticket, lock);
            if (got.ok()) got = load_claimed(ticket, load, lock);
            if (!got.ok()) unclaim(ticket);
        } while (!got.ok() && std::exchange(ticket.again, false));
        const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - ticket.since);
        counters.wait_us.fetch_add(static_cast<uint64_t>(waited.count()), std::memory_order_relaxed);
        if (!got.ok()) {
            if (got.error().code == ErrorCode::kAdapterBusy) {
                counters.n_wait_timeouts.fetch_add(1, std::memory_order_relaxed);
            }
            return got;
        }
    }
    // The claims become the lease's.
    lease.granted = true;
    for (size_t i = 0; i < lease.uses.size(); ++i) {
        lease.uses[i].slot = lease.generations[i]->slot;
        lease.generations[i]->last_use = ++clock_;
    }
    return ok_status();
}

void Pool::wake_first() {
    if (!queue_.empty()) queue_.front()->changed.notify_one();
}

Status Pool::wait_for_place(Ticket& ticket, MutexLock& lock) {
    // A ticket whose place the device refused has waited before all others.
    if (ticket.device_bytes_below == UINT64_MAX) {
        queue_.push_back(&ticket);
    } else {
        queue_.push_front(&ticket);
    }
    Status got = ok_status();
    for (;;) {
        Clock::time_point wake_at = Clock::time_point::max();
        if (queue_.front() == &ticket) {
            bool complete = false;
            got = claim(ticket, complete);
            if (!got.ok() || complete) break;
            if (const GenerationPtr victim = idle_victim(&ticket)) {
                Freed freed;
                evict(*victim, freed);
                mutex.unlock();
                free(std::move(freed));
                mutex.lock();
                continue;
            }
            const Clock::time_point bound = ticket.since + options.starvation_bound;
            if (Clock::now() >= bound) {
                close_doors(ticket);
            } else {
                wake_at = bound;
            }
        }
        got = ticket.sleep(lock, wake_at);
        if (!got.ok()) break;
    }
    std::erase(queue_, &ticket);
    for (const GenerationPtr& generation : std::exchange(ticket.doors, {})) generation->door_closed = false;
    wake_first();
    // Requests that waited at a closed door may now pass the queue as well.
    for (Ticket* other : queue_) other->changed.notify_one();
    return got;
}

Status Pool::claim(Ticket& ticket, bool& complete) {
    complete = true;
    for (size_t i = 0; i < ticket.claimed.size(); ++i) {
        const GenerationPtr& generation = ticket.lease.generations[i];
        if (generation->state == AdapterState::kDamaged) return generation->damage();
        if (ticket.claimed[i]) continue;
        if (generation->state == AdapterState::kStored) {
            const uint64_t bytes = generation->record.device_bytes;
            if (device_bytes + bytes > device_bytes_max() || free_slots_.empty() ||
                device_bytes >= ticket.device_bytes_below) {
                complete = false;
                continue;
            }
            generation->change(StateChange::kLoadBegins);
            generation->slot = free_slots_.top();
            free_slots_.pop();
            by_slot_[generation->slot] = generation;
            device_bytes += bytes;
            generation->load_error.reset();
            ticket.own_loads.push_back(generation);
            events.add(EventKind::kLoading, ticket.lease.name, generation->record.id);
        }
        ++generation->n_uses;
        ticket.claimed[i] = true;
    }
    return ok_status();
}

GenerationPtr Pool::idle_victim(const Ticket* ticket) const {
    GenerationPtr victim;
    for (const GenerationPtr& generation : by_slot_) {
        if (!generation || generation->state != AdapterState::kResident || ticket->wants(generation.get())) continue;
        if (generation->n_uses > 0 || generation->n_pins > 0) continue;
        if (!victim || generation->last_use < victim->last_use) victim = generation;
    }
    return victim;
}

// Closes the doors of as many busy adapters as make room: of those with the fewest leases, then of the longest
// resident.
void Pool::close_doors(Ticket& ticket) {
    uint64_t bytes_wanted = device_bytes, n_wanted = 0;
    for (size_t i = 0; i < ticket.claimed.size(); ++i) {
        if (ticket.claimed[i]) continue;
        bytes_wanted += ticket.lease.generations[i]->record.device_bytes;
        ++n_wanted;
    }
    std::vector<GenerationPtr> open;
    uint64_t bytes_coming = 0, n_coming = free_slots_.size();
    for (const GenerationPtr& generation : by_slot_) {
        if (!generation || generation->state != AdapterState::kResident || ticket.wants(generation.get())) continue;
        if (generation->n_pins > 0) continue;
        if (generation->door_closed) {
            bytes_coming += generation->placed.device_bytes;
            ++n_coming;
        } else {
            open.push_back(generation);
        }
    }
    std::sort(open.begin(), open.end(), [](const GenerationPtr& a, const GenerationPtr& b) {
        return std::pair(a->n_uses, a->resident_since) < std::pair(b->n_uses, b->resident_since);
    });
    for (const GenerationPtr& generation : open) {
        const bool below = ticket.device_bytes_below == UINT64_MAX || bytes_coming > 0;
        if (n_coming >= n_wanted && bytes_wanted - bytes_coming <= device_bytes_max() && below) break;
        generation->door_closed = true;
        ticket.doors.push_back(generation);
        bytes_coming += generation->placed.device_bytes;
        ++n_coming;
    }
}

// Into its slot: from the image in host memory, or from the files, whose image then stays.
Result<PlacedAdapter> Pool::load_one(Ticket& ticket, const GenerationPtr& generation, uint32_t slot,
                                     const Loader& load) {
    std::shared_ptr<const PackedImage> image;
    {
        const MutexLock lock(mutex);
        image = generation->image;
    }
    if (image) {
        counters.n_loads_from_ram.fetch_add(1, std::memory_order_relaxed);
    } else {
        TRY_ASSIGN(PackedImage packed, load(generation->record));
        image = std::make_shared<const PackedImage>(std::move(packed));
        Freed freed;  // after the lock
        const MutexLock lock(mutex);
        keep_image(*generation, image, ImageRoom::kMade, freed);
    }
    for (;;) {
        auto placed = place(*image, store);
        if (placed.ok()) TRY(store.set_slot(slot, placed->view));
        if (placed.ok() || placed.error().code != ErrorCode::kOutOfMemory) return placed;
        // The device has less room than planned: evict idle adapters, then try again.
        Freed freed;
        {
            const MutexLock lock(mutex);
            if (const GenerationPtr victim = idle_victim(&ticket)) evict(*victim, freed);
        }
        if (freed.placed.empty()) return placed;
        free(std::move(freed));
    }
}

Status Pool::load_claimed(Ticket& ticket, const Loader& load, MutexLock& lock) {
    loading_.insert(&ticket);
    for (const GenerationPtr& generation : std::exchange(ticket.own_loads, {})) {
        const uint32_t slot = generation->slot;
        mutex.unlock();
        const Clock::time_point begin = Clock::now();
        auto placed = load_one(ticket, generation, slot, load);
        const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
        mutex.lock();
        if (placed.ok()) {
            device_bytes += placed->device_bytes;
            device_bytes -= generation->record.device_bytes;
            generation->placed = std::move(placed).value();
            generation->change(StateChange::kLoadEnds);
            generation->resident_since = ++clock_;
            counters.n_loads.fetch_add(1, std::memory_order_relaxed);
            counters.bytes_loaded.fetch_add(generation->placed.device_bytes, std::memory_order_relaxed);
            counters.load_us.fetch_add(static_cast<uint64_t>(took.count()), std::memory_order_relaxed);
            events.add(EventKind::kResident, ticket.lease.name, generation->record.id, format("{} us", took.count()));
        } else {
            const bool damaged = placed.error().code == ErrorCode::kStorageFailed;
            generation->change(damaged ? StateChange::kFoundDamaged : StateChange::kLoadFails);
            leave_slot(*generation);
            device_bytes -= generation->record.device_bytes;
            counters.n_load_failures.fetch_add(1, std::memory_order_relaxed);
            events.add(damaged ? EventKind::kDamaged : EventKind::kLoadFailed, ticket.lease.name, generation->record.id,
                       placed.error().message);
            log_warn("adapter not loaded generation={}: {}", short_id(generation->record.id), placed.error().message);
            generation->load_error = std::move(placed).error();
            wake_first();
        }
        for (Ticket* other : loading_) other->changed.notify_one();
    }
    // Waits for the loads of other requests.
    Status got = ok_status();
    const auto loading = [&] {
        return std::any_of(ticket.lease.generations.begin(), ticket.lease.generations.end(),
                           [](const GenerationPtr& g) { return g->state == AdapterState::kLoading; });
    };
    while (got.ok() && loading()) got = ticket.sleep(lock, Clock::time_point::max());
    loading_.erase(&ticket);
    if (!got.ok()) return got;
    for (const GenerationPtr& generation : ticket.lease.generations) {
        if (generation->state == AdapterState::kResident) continue;
        // The load failed; it may have been tried again since, then without this request's claim.
        Error error = generation->load_error.value_or(make_error(ErrorCode::kInternal, "the load was given up"));
        // Worth waiting for only if somebody may leave.
        const bool others_may_leave = std::any_of(by_slot_.begin(), by_slot_.end(), [&](const GenerationPtr& g) {
            return g && g->n_pins == 0 && !ticket.wants(g.get());
        });
        ticket.again = error.code == ErrorCode::kOutOfMemory && others_may_leave;
        if (ticket.again) ticket.device_bytes_below = device_bytes;
        return error;
    }
    return ok_status();
}

void Pool::unclaim(Ticket& ticket) {
    Freed freed;
    // Places that were reserved while others were still missing.
    for (const GenerationPtr& generation : std::exchange(ticket.own_loads, {})) {
        generation->change(StateChange::kLoadFails);
        leave_slot(*generation);
        device_bytes -= generation->record.device_bytes;
    }
    for (size_t i = 0; i < ticket.claimed.size(); ++i) {
        if (!ticket.claimed[i]) continue;
        ticket.claimed[i] = false;
        const GenerationPtr& generation = ticket.lease.generations[i];
        --generation->n_uses;
        drop_if_unused(generation, freed);
    }
    wake_first();
    mutex.unlock();
    free(std::move(freed));
    mutex.lock();
}

}  // namespace lorad::adapters
