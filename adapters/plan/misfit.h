// The parts of an adapter that do not fit, tensor by tensor.
#pragma once

#include <string>
#include <vector>

#include "proto/base/result.h"

namespace lorad::adapters {

// One thing that does not fit.
struct Misfit {
    std::string tensor;  // the file's name for it; or a field of the config, or a missing tensor
    std::string expected;
    std::string found;
    bool unsupported = false;  // well formed, but of a variant that is not applied
};

// More are not told one by one.
inline constexpr size_t kMisfitsMax = 1000;

// "2 problems: TENSOR: expected X, found Y; ...", at most 20 of them: kAdapterInvalid, or kAdapterUnsupported if that
// is all there is. What is broken comes before what is merely not supported.
Error misfit_error(std::vector<Misfit> misfits);

// Names come from the files: a message stays one line of valid UTF-8 and bounded length whatever they hold.
std::string one_line(std::string text);
Error one_line(Error error);

}  // namespace lorad::adapters
