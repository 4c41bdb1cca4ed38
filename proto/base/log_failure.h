// Logs for handlers of exceptions, which must not throw: without memory for the line, it is not written.
#pragma once

#include <exception>

namespace lorad {

// An error line, "what: why".
void log_failure(const char* what, const std::exception& why) noexcept;

}  // namespace lorad
