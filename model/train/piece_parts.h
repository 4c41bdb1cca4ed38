// A piece of training that takes longer than there is time for, recorded in parts over several submissions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gpu/command.h"

namespace lorad::model {

// One thread at a time.
class PieceParts {
  public:
    using Record = std::function<void(gpu::Recorder&)>;

    bool is_begun() const { return cut_ != 0; }
    // Records what of the piece, which takes `piece_flops`, fits between `flops` and `flops_max`; where flops is 0 at
    // least something. Adds to flops. True: with this the piece is whole, and another one may begin.
    bool record_some(gpu::Recorder& recorder, const Record& record, double piece_flops, double flops_max,
                     double& flops);
    void abandon();

  private:
    uint32_t cut_ = 0;           // where the piece goes on
    std::vector<double> costs_;  // of its stretches, beside each other; empty: not known yet
};

}  // namespace lorad::model
