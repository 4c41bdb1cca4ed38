// Whether this build has a sanitizer that keeps freed memory, takes address space for itself, and is slow.
#pragma once

namespace lorad::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace lorad::testing
