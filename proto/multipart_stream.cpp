#include "proto/multipart_stream.h"

#include <algorithm>

#include "proto/base/format.h"

namespace lorad::proto {
namespace {

constexpr size_t kBoundaryLineBytesMax = 256;  // blanks may stand behind a boundary

Error malformed_stream(std::string_view what) {
    return make_error(ErrorCode::kInvalidRequest, format("the form is malformed: {}", what));
}

}  // namespace

MultipartStream::MultipartStream(std::string_view boundary, MultipartSink sink)
    : delimiter_(format("\r\n--{}", boundary)), sink_(std::move(sink)) {}

Status MultipartStream::push(std::string_view piece) {
    if (state_ == State::kDone) return ok_status();  // bytes behind the last boundary have no meaning
    held_ += piece;
    for (;;) {
        TRY_ASSIGN(const bool has_advanced, advance());
        if (!has_advanced) return ok_status();
    }
}

Status MultipartStream::finish() {
    if (state_ == State::kDone) return ok_status();
    return malformed_stream(state_ == State::kPreamble ? "the boundary does not occur"
                                                       : "it ends within a part: the last boundary is missing");
}

// Up to the next boundary, as far as it has come. True once that is there.
Result<bool> MultipartStream::pass_content(bool is_wanted) {
    const size_t found = held_.find(delimiter_);
    const size_t n_certain =
        found != std::string::npos ? found : held_.size() - std::min(held_.size(), delimiter_.size() - 1);
    if (is_wanted && n_certain > 0) TRY(sink_.content(std::string_view(held_).substr(0, n_certain)));
    held_.erase(0, found != std::string::npos ? found + delimiter_.size() : n_certain);
    return found != std::string::npos;
}

// One step, if enough has come for it.
Result<bool> MultipartStream::advance() {
    switch (state_) {
        case State::kPreamble: {
            TRY_ASSIGN(const bool is_there, pass_content(false));
            if (is_there) state_ = State::kBehindBoundary;
            return is_there;
        }
        case State::kBehindBoundary: {
            if (held_.size() < 2) return false;
            if (held_.starts_with("--")) {
                state_ = State::kDone;
                held_.clear();
                return false;
            }
            const size_t line_end = held_.find("\r\n");
            if (line_end == std::string::npos && held_.size() <= kBoundaryLineBytesMax) return false;
            if (line_end == std::string::npos || held_.find_first_not_of(" \t") < line_end)
                return malformed_stream("expected the end of the line after a boundary");
            held_.erase(0, line_end + 2);
            if (++n_parts_ > kFormPartsMax) return malformed_stream(format("expected at most {} parts", kFormPartsMax));
            state_ = State::kHeader;
            return true;
        }
        case State::kHeader: {
            const size_t header_end = std::string_view(held_).substr(0, kFormHeaderBytesMax).find("\r\n\r\n");
            if (header_end == std::string::npos && held_.size() < kFormHeaderBytesMax) return false;
            if (header_end == std::string::npos)
                return malformed_stream(format("a part's header does not end within {} bytes", kFormHeaderBytesMax));
            FormPart part;
            TRY(read_part_header(std::string_view(held_).substr(0, header_end), part));
            held_.erase(0, header_end + 4);
            TRY(sink_.begin(part));
            state_ = State::kFirstContent;
            return true;
        }
        case State::kFirstContent: {
            // The delimiter's line break may be the one that ends the header of an empty part.
            const std::string_view delimiter = std::string_view(delimiter_).substr(2);
            if (held_.size() < delimiter.size() && delimiter.starts_with(held_)) return false;
            const bool is_empty = held_.starts_with(delimiter);
            if (is_empty) {
                held_.erase(0, delimiter.size());
                TRY(sink_.end());
            }
            state_ = is_empty ? State::kBehindBoundary : State::kContent;
            return true;
        }
        case State::kContent: {
            TRY_ASSIGN(const bool is_over, pass_content(true));
            if (!is_over) return false;
            TRY(sink_.end());
            state_ = State::kBehindBoundary;
            return true;
        }
        case State::kDone: return false;
    }
    return false;
}

}  // namespace lorad::proto
