#include "proto/error.h"

#include <array>

#include "proto/base/printable.h"
#include "proto/json/json.h"

namespace lorad::proto {
namespace {

constexpr std::string_view kInvalid = "invalid_request_error";
constexpr std::string_view kServer = "server_error";

constexpr std::array kTable = {
    ErrorInfo{ErrorCode::kInvalidRequest, 400, kInvalid, "invalid_request"},
    ErrorInfo{ErrorCode::kUnsupportedParameter, 400, kInvalid, "unsupported_parameter"},
    ErrorInfo{ErrorCode::kContextLengthExceeded, 400, kInvalid, "context_length_exceeded"},
    ErrorInfo{ErrorCode::kModelNotFound, 404, kInvalid, "model_not_found"},
    ErrorInfo{ErrorCode::kAdapterNotFound, 404, kInvalid, "adapter_not_found"},
    ErrorInfo{ErrorCode::kAdapterExists, 400, kInvalid, "adapter_already_loaded"},
    ErrorInfo{ErrorCode::kAdapterInvalid, 422, kInvalid, "adapter_invalid"},
    ErrorInfo{ErrorCode::kAdapterUnsupported, 422, kInvalid, "adapter_unsupported"},
    ErrorInfo{ErrorCode::kNotFound, 404, kInvalid, "not_found"},
    ErrorInfo{ErrorCode::kMethodNotAllowed, 405, kInvalid, "method_not_allowed"},
    ErrorInfo{ErrorCode::kPayloadTooLarge, 413, kInvalid, "request_too_large"},
    ErrorInfo{ErrorCode::kOverloaded, 429, "rate_limit_error", "server_overloaded"},
    ErrorInfo{ErrorCode::kUnauthorized, 401, "authentication_error", "unauthorized"},
    ErrorInfo{ErrorCode::kForbidden, 403, "permission_error", "forbidden"},
    ErrorInfo{ErrorCode::kRateLimited, 429, "rate_limit_error", "rate_limited"},
    ErrorInfo{ErrorCode::kDraining, 503, kServer, "service_unavailable"},
    ErrorInfo{ErrorCode::kOutOfMemory, 507, kServer, "out_of_memory"},
    ErrorInfo{ErrorCode::kInvalidAdapterName, 400, kInvalid, "invalid_lora_name"},
    ErrorInfo{ErrorCode::kGenerationMismatch, 409, kInvalid, "lora_generation_mismatch"},
    ErrorInfo{ErrorCode::kGenerationConflict, 409, kInvalid, "lora_generation_conflict"},
    ErrorInfo{ErrorCode::kAdapterBusy, 429, "rate_limit_error", "lora_load_busy"},
    ErrorInfo{ErrorCode::kAdapterLimit, 507, kServer, "lora_adapter_limit_exceeded"},
    ErrorInfo{ErrorCode::kAdapterPathForbidden, 403, kInvalid, "adapter_path_forbidden"},
    ErrorInfo{ErrorCode::kAdapterFileNotFound, 404, kInvalid, "adapter_file_not_found"},
    ErrorInfo{ErrorCode::kAdapterFileTooLarge, 413, kInvalid, "lora_adapter_file_too_large"},
    ErrorInfo{ErrorCode::kDigestMismatch, 400, kInvalid, "digest_mismatch"},
    ErrorInfo{ErrorCode::kInvalidLoadPolicy, 400, kInvalid, "invalid_lora_load_policy"},
    ErrorInfo{ErrorCode::kStorageFailed, 507, kServer, "lora_storage_unavailable"},
    ErrorInfo{ErrorCode::kStorageFull, 507, kServer, "lora_storage_full"},
    ErrorInfo{ErrorCode::kStoreReadOnly, 503, kServer, "lora_store_read_only"},
    ErrorInfo{ErrorCode::kRequestTimeout, 408, kInvalid, "request_timeout"},
    ErrorInfo{ErrorCode::kUnsupportedMedia, 415, kInvalid, "unsupported_media_type"},
    ErrorInfo{ErrorCode::kLengthRequired, 411, kInvalid, "length_required"},
    ErrorInfo{ErrorCode::kHeadTooLarge, 431, kInvalid, "request_head_too_large"},
    ErrorInfo{ErrorCode::kVersionUnsupported, 505, kInvalid, "http_version_not_supported"},
    ErrorInfo{ErrorCode::kUriTooLong, 414, kInvalid, "uri_too_long"},
    ErrorInfo{ErrorCode::kExpectationFailed, 417, kInvalid, "expectation_failed"},
    ErrorInfo{ErrorCode::kTooManyConnections, 503, kServer, "too_many_connections"},
    ErrorInfo{ErrorCode::kClientClosed, 499, kInvalid, "client_closed_request"},
    ErrorInfo{ErrorCode::kDeviceLost, 503, kServer, "device_lost"},
    ErrorInfo{ErrorCode::kKernelRefused, 500, kServer, "kernel_refused"},
    ErrorInfo{ErrorCode::kInputTooComplex, 422, kInvalid, "input_too_complex"},
    ErrorInfo{ErrorCode::kSandboxUnavailable, 503, kServer, "sandbox_unavailable"},
    ErrorInfo{ErrorCode::kNotFinite, 500, kServer, "output_not_finite"},
    ErrorInfo{ErrorCode::kInvalidModel, 500, kServer, "invalid_model"},
    ErrorInfo{ErrorCode::kInvalidConfig, 500, kServer, "invalid_config"},
    ErrorInfo{ErrorCode::kNoDevice, 500, kServer, "no_device"},
    ErrorInfo{ErrorCode::kIo, 503, kServer, "io_error"},
    ErrorInfo{ErrorCode::kInternal, 500, kServer, "internal_error"},
};

}  // namespace

const ErrorInfo& error_info(ErrorCode code) {
    for (const ErrorInfo& info : kTable) {
        if (info.code == code) return info;
    }
    return kTable.back();
}

std::string error_message(const Error& error) { return escape_unprintable(error.message); }

std::string error_body(const Error& error) {
    const ErrorInfo& info = error_info(error.code);
    JsonWriter writer;
    writer.begin_object().key("error").begin_object();
    writer.field("message", error_message(error)).field("type", info.type);
    if (error.param.empty()) {
        writer.key("param").null();
    } else {
        writer.field("param", escape_unprintable(error.param));
    }
    writer.field("code", info.wire_code).end_object().end_object();
    return writer.take();
}

int retry_after_s(ErrorCode code) {
    switch (code) {
        case ErrorCode::kOverloaded:
        case ErrorCode::kRateLimited:
        case ErrorCode::kAdapterBusy:
        case ErrorCode::kTooManyConnections: return 1;
        case ErrorCode::kDraining:
        case ErrorCode::kDeviceLost:
        case ErrorCode::kStoreReadOnly:
        case ErrorCode::kSandboxUnavailable:
        case ErrorCode::kIo: return 5;
        default: return 0;
    }
}

}  // namespace lorad::proto
