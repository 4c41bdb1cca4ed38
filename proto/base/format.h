// The one string formatter of the project: fmt, as packaged (std::format is not in GCC 12).
#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>

namespace lorad {

// An object, not a function: for arguments of namespace std the compiler would find std::format beside a function,
// where there is one.
struct Format {
    template <typename... Values>
    std::string operator()(fmt::format_string<Values...> text, Values&&... values) const {
        return fmt::format(text, std::forward<Values>(values)...);
    }
};
inline constexpr Format format{};

}  // namespace lorad
