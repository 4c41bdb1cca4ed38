// The one string formatter of the project: fmt, as packaged (std::format is not in GCC 12).
#pragma once

#include <fmt/format.h>

namespace lorad {
using fmt::format;
}  // namespace lorad
