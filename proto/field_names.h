// Maps fields of a translated body to the fields of the body that the client sent, for errors.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/base/result.h"

namespace lorad::proto {

class FieldNames {
  public:
    // Maps a field and all fields within it: "messages[2]" is the client's "input[5]". The longest mapping that fits
    // counts.
    void add(std::string translated, std::string original) {
        names_.emplace_back(std::move(translated), std::move(original));
    }
    std::string original(std::string_view translated) const;
    std::vector<std::string> originals(std::span<const std::string> translated) const;
    // The same error about the client's field, in `param` and where the message begins with it.
    Error renamed(Error error) const;

  private:
    std::vector<std::pair<std::string, std::string>> names_;
};

}  // namespace lorad::proto
