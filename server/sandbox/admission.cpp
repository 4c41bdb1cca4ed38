#include "server/sandbox/admission.h"

#include <thread>
#include <utility>

#include "proto/base/mutex.h"

namespace lorad::server::sandbox {
namespace {

constexpr std::chrono::milliseconds kLook{20};  // between two looks at whether the time is there
constexpr std::string_view kAll = "all";

// Whose time it is: a tenant's, or an address's where there are no tenants.
std::string name_of(const access::Holder& holder) {
    if (!holder.tenant.empty()) return "tenant " + holder.tenant;
    return holder.address.empty() ? std::string() : "address " + holder.address;
}

Error takes_too_long() {
    return make_error(ErrorCode::kOverloaded,
                      "reading the grammars and templates of other requests takes too long; try again in a moment");
}

}  // namespace

Admission::Admission(Options options)
    : options_(std::move(options)),
      running_(options_.n_running_max),
      of_each_({.forgotten_per_second = kTenantShare * options_.n_processors,
                .owed_max = kTenantAtOnce * options_.n_processors}),
      of_all_({.forgotten_per_second = kAllShare * options_.n_processors,
               .owed_max = kAllAtOnce * options_.n_processors}) {}

void Admission::charge(const access::Holder& holder, double seconds) {
    const std::string name = name_of(holder);
    const MutexLock lock(mutex_);
    if (!name.empty()) of_each_.charge(name, seconds, now());
    of_all_.charge(kAll, seconds, now());
}

bool Admission::is_over(const access::Holder& holder) const {
    if (!options_.is_busy || !options_.is_busy()) return false;
    const std::string name = name_of(holder);
    const MutexLock lock(mutex_);
    const TimePoint time = now();
    if (!name.empty() && of_each_.is_over(name, time)) return true;
    // A tenant without recent use does not wait for the use of others.
    return of_all_.is_over(kAll, time) && (name.empty() || of_each_.owed(name, time) > 0);
}

int Admission::niceness(const access::Holder& holder) const {
    const std::string name = name_of(holder);
    const MutexLock lock(mutex_);
    const double owed = name.empty() ? of_all_.owed(kAll, now()) : of_each_.owed(name, now());
    return owed > kNicestAbove * options_.n_processors ? kNicest : kNicer;
}

Result<Admission::Permit> Admission::enter(const access::Holder& holder) {
    const access::SharedPlaces::Place waits = waiting_.take(holder);
    if (!waits.taken())
        return make_error(ErrorCode::kOverloaded,
                          "as many grammars and templates wait to be read as may; try again in a moment");
    const TimePoint end = now() + kWaitMax;
    for (;;) {
        // Without a place, which others may use meanwhile.
        while (is_over(holder)) {
            if (now() >= end) {
                return make_error(ErrorCode::kOverloaded, "reading grammars and templates has taken as much processor "
                                                          "time as it may beside the answers that are "
                                                          "computed; try again in a moment");
            }
            std::this_thread::sleep_for(kLook);
        }
        access::SharedPlaces::Place place =
            running_.wait(holder, 1, std::chrono::ceil<std::chrono::milliseconds>(end - now()));
        if (!place.taken()) return takes_too_long();
        // Others of the same holder may have had theirs since.
        if (!is_over(holder)) return Permit(*this, holder, std::move(place));
    }
}

}  // namespace lorad::server::sandbox
