// A body of multipart/form-data that is taken apart while it comes, for files that are not held in memory. The same
// rules and bounds as multipart.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "proto/base/result.h"
#include "proto/multipart.h"

namespace lorad::proto {

// Takes the parts; an error of any function ends the body.
struct MultipartSink {
    std::function<Status(const FormPart& part)> begin;        // its name and file name; content is empty
    std::function<Status(std::string_view content)> content;  // piece after piece
    std::function<Status()> end;
};

// Holds as much of a body as a part's header or a boundary is long. One thread.
class MultipartStream {
  public:
    MultipartStream(std::string_view boundary, MultipartSink sink);
    Status push(std::string_view piece);
    // kInvalidRequest where the last boundary has not come.
    Status finish();

  private:
    enum class State : uint8_t { kPreamble, kBehindBoundary, kHeader, kFirstContent, kContent, kDone };
    Result<bool> advance();
    Result<bool> pass_content(bool is_wanted);

    const std::string delimiter_;  // with the line break before it
    const MultipartSink sink_;
    State state_ = State::kPreamble;
    std::string held_ = "\r\n";  // so that the first boundary may come at once
    size_t n_parts_ = 0;
};

}  // namespace lorad::proto
