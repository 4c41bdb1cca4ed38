// Turns at the helpers, and at what is done here with what passed them: so many at a time, a bounded number that waits, of both a share for everybody
// (server/access/shared_places.h). Any thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "proto/base/result.h"
#include "server/access/shared_places.h"

namespace lorad::server::sandbox {

class Turns {
  public:
    static constexpr uint32_t kWaitingMax = 256;
    static constexpr std::chrono::seconds kWaitMax{15};

    explicit Turns(uint32_t n_running_max) : running_(n_running_max) {}

    // Given back when it goes.
    using Turn = access::SharedPlaces::Place;
    // Waits. kOverloaded where as many wait as may, in all or of this holder, and where the wait takes too long.
    Result<Turn> enter(const access::Holder& holder) {
        const access::SharedPlaces::Place waits = waiting_.take(holder);
        if (!waits.taken()) return make_error(ErrorCode::kOverloaded, "as many grammars and templates wait to be read as may; try again in a moment");
        Turn turn = running_.wait(holder, 1, kWaitMax);
        if (!turn.taken()) return make_error(ErrorCode::kOverloaded, "reading the grammars and templates of other requests takes too long; try again in a moment");
        return turn;
    }

  private:
    access::SharedPlaces waiting_{kWaitingMax};
    access::SharedPlaces running_;
};

}  // namespace lorad::server::sandbox
