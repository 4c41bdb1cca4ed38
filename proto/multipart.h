// Bodies of multipart/form-data (RFC 7578), taken apart in place. Bounded: parts, and the bytes of a
// part's header.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad::proto {

inline constexpr size_t kFormPartsMax = 32;
inline constexpr size_t kFormHeaderBytesMax = 4096;  // per part

struct FormPart {
    std::string name;
    std::string filename;  // the client's text: never use it to open a file
    bool has_filename = false;
    std::string_view content;  // into the body
};

// The boundary of a Content-Type; empty if it is no multipart/form-data.
Result<std::string> multipart_boundary(std::string_view content_type);

// A part's header lines, without the empty one that ends them, into its names.
Status read_part_header(std::string_view header, FormPart& part);

// kInvalidRequest for anything that is not well formed, names the part. `body` outlives the parts.
Result<std::vector<FormPart>> parse_multipart(std::string_view body, std::string_view boundary);

}  // namespace lorad::proto
