// A sequence for people to look at: what of it is trained, and where an answer ends.
#pragma once

#include <string>

#include "server/training/line_encoder.h"
#include "server/training/training_text.h"

namespace lorad::server::training {

// With in_colours, trained tokens are green and bold, the others grey; else trained runs stand between [[ and ]].
// Tokens of texts that are not printable are written as in JSON; line ends also end a line.
std::string shown_sequence(const TrainingSequence& sequence, const TrainingText& text, bool in_colours);

}  // namespace lorad::server::training
