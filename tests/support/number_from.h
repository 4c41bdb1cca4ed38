// How much a test does, as the environment says.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace lorad::testing {

// The variable's whole number, or `otherwise` where it is not set. What is no number ends the program: of a test that
// did nothing nobody would know.
inline uint64_t number_from(const char* variable, uint64_t otherwise) {
    const char* const text = std::getenv(variable);
    if (text == nullptr) return otherwise;
    const std::string_view digits(text);
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc() && end == digits.data() + digits.size()) return value;
    std::fprintf(stderr, "%s=%s: expected a whole number\n", variable, text);
    std::abort();
}

}  // namespace lorad::testing
