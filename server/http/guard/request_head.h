// A request's head: bytes in, a verdict out. Nothing here knows sockets; the fuzzer feeds it directly
// (tests/fuzz/request_head_fuzz.cpp). RFC 9112, read strictly: what two readers could understand differently is
// refused.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad::server {

struct HeadLimits {
    size_t bytes_max = 32 << 10;  // request line, fields and the empty line
    size_t target_bytes_max = 8 << 10;
    uint32_t n_fields_max = 100;
};

struct HeadField {
    std::string_view name, value;  // without the white space around the value
};

// Views into the bytes that were parsed.
struct RequestHead {
    std::string_view method;
    std::string_view target;  // begins with '/', or is "*"; never another host's
    bool is_1_0 = false;      // HTTP/1.0, which does not know answers in chunks
    bool keeps_alive = true;
    bool expects_continue = false;
    bool has_length = false;
    uint64_t body_bytes = 0;  // Content-Length; 0 without
    std::vector<HeadField> fields;

    // The first field of that name, in whatever case; empty where there is none.
    std::string_view value_of(std::string_view name) const;
};

// Why a head is refused: a code of the closed list and a fixed text.
struct HeadRefusal {
    ErrorCode code = ErrorCode::kInvalidRequest;
    const char* reason = "";
};

// Looks at each byte once as they come; says at the first wrong line that it is wrong, however long the rest takes.
class HeadReader {
  public:
    explicit HeadReader(const HeadLimits& limits = {}) : limits_(limits) {}

    enum class Verdict : uint8_t { kMore, kComplete, kRefused };
    // `bytes`: all since the head's begin; each call has those of the one before, and some more.
    Verdict read(std::string_view bytes);

    // After kComplete: how many bytes the head has; what follows is the body.
    size_t n_bytes() const { return at_; }
    // After kRefused.
    const HeadRefusal& refusal() const { return refusal_; }

  private:
    Verdict refuse(ErrorCode code, const char* reason);
    Verdict end_line(std::string_view line);

    HeadLimits limits_;
    size_t at_ = 0;  // behind what was looked at
    size_t line_begin_ = 0;
    uint32_t n_lines_ = 0;
    HeadRefusal refusal_;
};

// Parses a head that HeadReader found complete, and checks it as a whole (one Host, one length, ...). True, or false
// with `refusal`. `bytes`: the n_bytes() of the head.
bool parse_head(std::string_view bytes, RequestHead& out, HeadRefusal& refusal);

bool equals_ignoring_case(std::string_view a, std::string_view b);

}  // namespace lorad::server
