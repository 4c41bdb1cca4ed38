// Admission to the helpers, and to work in this process on their results. Any thread.
//
// Three things bound them: the numbers of granted and of waiting permits, both shared fairly
// (server/access/shared_places.h); and their processor time while answers are computed, for each tenant and for all
// recent ones together (server/access/time_debts.h), since answers may need the processors: always on a software
// device, and a little on every other one. A tenant with much recent use also has the lowest priority.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/base/thread.h"
#include "server/access/shared_places.h"
#include "server/access/time_debts.h"

namespace lorad::server::sandbox {

class Admission {
  public:
    static constexpr uint32_t kWaitingMax = 256;
    static constexpr std::chrono::seconds kWaitMax{15};
    // Parts of each processor in the long run, and seconds of each that may be used at once before that.
    static constexpr double kTenantShare = 0.1, kAllShare = 0.25;
    static constexpr double kTenantAtOnce = 0.25, kAllAtOnce = 0.5;
    static constexpr double kNicestAbove = 0.02;  // seconds of each processor; whoever owes more comes last on it

    struct Options {
        uint32_t n_running_max = 2;
        double n_processors = 1;
        // whether answers are computed; none: never, and processor time is not bounded
        std::function<bool()> is_busy = {};
        std::function<std::chrono::steady_clock::time_point()> now = {};  // none: the clock
    };
    explicit Admission(Options options);

    // Given back when it goes.
    class Permit {
      public:
        Permit() = default;
        // Charges processor time of the permit's work, also if it failed.
        void charge(double seconds) {
            if (admission_ != nullptr) admission_->charge(holder_, seconds);
        }
        // The niceness of the permit's work: kNicer, or kNicest for a holder that has used much lately
        // (proto/base/thread.h).
        int niceness() const { return niceness_; }

      private:
        friend class Admission;
        Permit(Admission& admission, access::Holder holder, access::SharedPlaces::Place place)
            : admission_(&admission),
              holder_(std::move(holder)),
              place_(std::move(place)),
              niceness_(admission.niceness(holder_)) {}
        Admission* admission_ = nullptr;
        access::Holder holder_;
        access::SharedPlaces::Place place_;
        int niceness_ = kNicer;
    };
    // Waits. kOverloaded where as many wait as may, in all or of this holder, and where the wait takes too long.
    Result<Permit> enter(const access::Holder& holder);

  private:
    using TimePoint = std::chrono::steady_clock::time_point;
    TimePoint now() const { return options_.now ? options_.now() : std::chrono::steady_clock::now(); }
    void charge(const access::Holder& holder, double seconds);
    bool is_over(const access::Holder& holder) const;
    int niceness(const access::Holder& holder) const;

    const Options options_;
    access::SharedPlaces waiting_{kWaitingMax};
    access::SharedPlaces running_;
    mutable Mutex mutex_;
    access::TimeDebts of_each_ GUARDED_BY(mutex_), of_all_ GUARDED_BY(mutex_);  // the second knows one name
};

}  // namespace lorad::server::sandbox
