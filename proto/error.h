// The form of errors on the wire: the closed table from ErrorCode to HTTP status, OpenAI error type and code.
#pragma once

#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace lorad::proto {

struct ErrorInfo {
    ErrorCode code;
    int http_status;
    std::string_view type;       // OpenAI's "type"
    std::string_view wire_code;  // OpenAI's "code"; clients branch on it, so it never changes
};

const ErrorInfo& error_info(ErrorCode code);

// Returns the message as one printable line (proto/base/printable.h): it may have names that others chose.
std::string error_message(const Error& error);

// {"error":{"message","type","param","code"}}; param is null when the error names no field.
std::string error_body(const Error& error);

// "Retry-After" seconds for errors that a client may repeat unchanged; 0 where that is pointless.
int retry_after_s(ErrorCode code);

}  // namespace lorad::proto
