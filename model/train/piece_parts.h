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
    struct Piece {
        const Record& record;
        PieceKind kind;
        double flops;       // of the base's products; pieces of a kind take as long as these say
        double guessed_us;  // where no piece of its kind was cut yet
    };

    bool is_begun() const { return cut_ != 0; }
    // Records what of the piece fits between `us` and `us_max`; where us is 0 at least something. Adds to us. True:
    // with this the piece is whole, and another one may begin.
    bool record_some(gpu::Recorder& recorder, const Piece& piece, double us_max, double& us);
    // Learns how long the parts recorded since the last call took; 0: unknown.
    void learn(double us);
    void abandon();

  private:
    struct Recorded {
        PieceKind kind;
        uint32_t from, to;
        double flops;
    };
    std::vector<double>& stretches(PieceKind kind) { return stretches_[static_cast<size_t>(kind)]; }

    uint32_t cut_ = 0;  // where the piece goes on
    // Microseconds of each stretch between cuts, for each flop of the piece; empty: no piece of the kind was cut yet
    std::array<std::vector<double>, static_cast<size_t>(PieceKind::kKinds)> stretches_;
    std::vector<Recorded> recorded_;  // since learn()
};

}  // namespace lorad::model
