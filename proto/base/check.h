// CHECK for programmer errors only: prints the expression and aborts, in every build type.
// Anything a client or operator can cause is a Result instead (proto/base/result.h).
#pragma once

#include <cstdio>
#include <cstdlib>

namespace lorad::detail {
[[noreturn]] inline void check_failed(const char* expression, const char* file, int line) {
    std::fprintf(stderr, "lorad: internal error: CHECK(%s) failed at %s:%d\n", expression, file, line);
    std::abort();
}
}  // namespace lorad::detail

#define CHECK(condition) ((condition) ? void(0) : ::lorad::detail::check_failed(#condition, __FILE__, __LINE__))
