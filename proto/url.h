// Request targets: percent-encoding, paths and queries (RFC 3986), without guessing: what is malformed
// is an error.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/base/result.h"

namespace lorad::proto {

// "a%2Fb" -> "a/b". nullopt where a % is not followed by two hex digits. With `plus_is_space`, as in
// queries, + becomes a space.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space = false);

// Everything but letters, digits and -._~ as %XX, so that a name with a '/' is one part of a path.
std::string percent_encode(std::string_view text);

struct Target {
    std::vector<std::string> segments;                       // decoded, so that one may hold a '/'; "/a/b" has two
    std::vector<std::pair<std::string, std::string>> query;  // decoded, in order
};

// Splits first, decodes then. kInvalidRequest for a target that does not begin with '/', for broken
// percent-encoding and for more than 64 parameters.
Result<Target> parse_target(std::string_view target);

}  // namespace lorad::proto
