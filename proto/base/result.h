// Result<T>: a value, or an Error that a client or operator can act on. Dropping one is a compile error.
// Errors are values; nothing in lorad throws. See proto/error.h for how codes map to HTTP.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "proto/base/check.h"

namespace lorad {

// Closed list. proto/error.cpp holds the table: code -> wire name, HTTP status, error type.
enum class ErrorCode : uint8_t {
    kInvalidRequest,         // malformed JSON, wrong type, out of range
    kUnsupportedParameter,   // known to OpenAI/vLLM, refused by name
    kContextLengthExceeded,  // prompt + max_tokens over the context
    kModelNotFound,
    kAdapterNotFound,
    kAdapterExists,
    kAdapterInvalid,      // the files do not fit the base model or are broken
    kAdapterUnsupported,  // well formed, but a variant that lorad does not apply
    kNotFound,            // no such route
    kMethodNotAllowed,
    kPayloadTooLarge,
    kOverloaded,    // a bounded queue is full: 429
    kUnauthorized,  // no key, or none that is valid: 401
    kForbidden,     // the key's scopes do not allow it: 403
    kRateLimited,   // more than the key's quota: 429
    kDraining,      // 503
    kOutOfMemory,
    kInvalidAdapterName,
    kGenerationMismatch,    // expected_generation is not the present one: 409
    kGenerationConflict,    // another call changed, or is changing, the same name or blob: 409
    kAdapterBusy,           // no place became free in time, or too many transfers at once: 429
    kAdapterLimit,          // the limit on adapters is reached
    kAdapterPathForbidden,  // a server path outside of what loads may read
    kAdapterFileNotFound,   // a blob that was not uploaded
    kAdapterFileTooLarge,
    kDigestMismatch,      // the bytes are not those that the digest names
    kInvalidLoadPolicy,   // a mode that this server, or this adapter, does not do
    kStorageFailed,       // the store cannot keep or give it: a failing disk, a damaged file
    kStorageFull,         // the disk, a quota or the store's own limit: 507
    kStoreReadOnly,       // after a disk that failed to sync; until a restart: 503
    kRequestTimeout,      // the body came too slowly: 408
    kUnsupportedMedia,    // 415
    kLengthRequired,      // a body without Content-Length: 411
    kHeadTooLarge,        // a request's head: 431
    kVersionUnsupported,  // not HTTP/1.0 or 1.1: 505
    kUriTooLong,          // 414
    kExpectationFailed,   // Expect with anything but 100-continue: 417
    kTooManyConnections,  // in all or from one address: 503
    kClientClosed,        // nobody waits for the answer any more: 499, as nginx says it
    kDeviceLost,
    kKernelRefused,  // the driver does not make a kernel: 500
    // a grammar or template takes more memory, time or depth than one may, or made its library fail: 422
    kInputTooComplex,
    kSandboxUnavailable,  // the process that grammars and templates are tried in cannot be started: 503
    kNotFinite,           // the model's output is NaN or infinite: that request ends, 500
    kInvalidModel,        // model folder missing, corrupt or of an unsupported architecture
    kInvalidConfig,       // flags, file or environment
    kNoDevice,            // no usable Vulkan device
    kIo,
    kInternal,
};

struct Error {
    ErrorCode code = ErrorCode::kInternal;
    std::string message;  // what, where, expected, found; must show HTTP clients no path or address of this process
    std::string param;    // request field or flag at fault; may be empty
};

inline Error make_error(ErrorCode code, std::string message, std::string param = {}) {
    return Error{code, std::move(message), std::move(param)};
}

template <typename T>
class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(implicit)
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(implicit)

    bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }

    T& value() & {
        CHECK(ok());
        return std::get<0>(state_);
    }
    const T& value() const& {
        CHECK(ok());
        return std::get<0>(state_);
    }
    // By value, so that `for (auto& x : *function())` does not read from a Result that is gone.
    T value() && {
        CHECK(ok());
        return std::get<0>(std::move(state_));
    }
    T operator*() && { return std::move(*this).value(); }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    const Error& error() const& {
        CHECK(!ok());
        return std::get<1>(state_);
    }
    Error&& error() && {
        CHECK(!ok());
        return std::get<1>(std::move(state_));
    }

  private:
    std::variant<T, Error> state_;
};

struct Unit {};
using Status = Result<Unit>;
inline Status ok_status() { return Status(Unit{}); }

}  // namespace lorad

#define LORAD_CONCAT_INNER(a, b) a##b
#define LORAD_CONCAT(a, b) LORAD_CONCAT_INNER(a, b)

// TRY(expr): returns the error of a Result-valued expression from the enclosing function.
#define TRY(expr)                                                               \
    do {                                                                        \
        auto lorad_try_result = (expr);                                         \
        if (!lorad_try_result.ok()) return std::move(lorad_try_result).error(); \
    } while (false)

// TRY_ASSIGN(auto x, expr): declares or assigns x from a Result, or returns its error.
#define TRY_ASSIGN(declaration, expr) TRY_ASSIGN_IMPL(LORAD_CONCAT(lorad_result_, __LINE__), declaration, expr)
#define TRY_ASSIGN_IMPL(temporary, declaration, expr)         \
    auto temporary = (expr);                                  \
    if (!temporary.ok()) return std::move(temporary).error(); \
    declaration = std::move(temporary).value()
