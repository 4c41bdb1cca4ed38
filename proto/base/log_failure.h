// For handlers of exceptions, which must not throw one: where there is no memory for the line, it is not written.
#pragma once

#include <exception>

namespace lorad {

// An error line, "what: why".
void log_failure(const char* what, const std::exception& why) noexcept;

}  // namespace lorad
