// Pieces of training that take longer than there is time for, recorded in parts over several submissions; and how long
// the stretches of such pieces take, which is learned from each submission.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "gpu/command.h"

namespace lorad::model {

// Pieces that make the same calls.
enum class PieceKind : uint8_t {
    kBegin,
    kForward,
    kHead,
    kBackward,
    kBackwardAgain,
    kEmbedBackward,
    kOptimizer,
    kKinds
};

// One thread at a time.
class PieceParts {
  public:
    using Record = std::function<void(gpu::Recorder&)>;

    bool is_begun() const { return cut_ != 0; }
    // Records what of the piece fits between `us` and `us_max`; where us is 0 at least something. Adds to us.
    // guessed_us: of the piece, where no one of its kind was cut yet. True: with this the piece is whole, and another
    // one may begin.
    bool record_some(gpu::Recorder& recorder, const Record& record, PieceKind kind, double guessed_us, double us_max,
                     double& us);
    // What was recorded since the last call took so long; 0: nobody knows.
    void learn(double us);
    void abandon();

  private:
    struct Recorded {
        PieceKind kind;
        uint32_t from, to;
    };
    uint32_t cut_ = 0;  // where the piece goes on
    // Microseconds of each stretch between cuts; empty: no piece of the kind was cut yet
    std::array<std::vector<double>, static_cast<size_t>(PieceKind::kKinds)> stretch_us_;
    std::vector<Recorded> recorded_;  // since learn()
};

}  // namespace lorad::model
