// Any bytes as a request body: an answer or an Error, never a crash; what is accepted keeps to the
// limits.
#include <cstdint>
#include <string_view>

#include "proto/adapter_request.h"
#include "proto/base/check.h"
#include "proto/error.h"
#include "proto/generate/generate_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lorad;
    constexpr uint32_t kVocab = 4096;
    std::string_view body(reinterpret_cast<const char*>(data), size);
    for (proto::ApiKind kind : {proto::ApiKind::kCompletion, proto::ApiKind::kChat}) {
        Result<proto::GenerateRequest> request = proto::parse_generate_request(body, kind, kVocab);
        if (!request.ok()) {
            CHECK(!proto::error_body(request.error()).empty());
            continue;
        }
        CHECK(!request->temperature || (*request->temperature >= 0.0f && *request->temperature <= 2.0f));
        CHECK(!request->top_p || (*request->top_p > 0.0f && *request->top_p <= 1.0f));
        CHECK(!request->n_tokens_max || *request->n_tokens_max > 0 || request->echo);
        CHECK(request->stop.size() <= proto::kStopStringsMax);
        CHECK(request->prompts.size() * request->best_of <= proto::kChoicesMax);
        CHECK(request->n >= 1 && request->n <= request->best_of);
        for (const proto::Prompt& prompt : request->prompts) {
            for (TokenId id : prompt.ids) CHECK(id >= 0 && uint32_t(id) < kVocab);
        }
    }
    (void)proto::parse_load_adapter_request(body).ok();
    (void)proto::parse_unload_adapter_request(body).ok();
    Result<proto::RegisterAdapterRequest> registration = proto::parse_register_request(body);
    if (registration.ok()) {
        CHECK(registration->files.empty() != registration->mix.empty());
        CHECK(registration->files.size() <= proto::kAdapterFilesMax);
        CHECK(registration->mix.size() <= proto::kAdapterTermsMax);
        for (const proto::FileDigest& file : registration->files) {
            CHECK(file.sha256.size() == 64 && !file.file.empty());
            CHECK(file.file.find('/') == std::string::npos && file.file.front() != '.');
        }
    }
    (void)proto::parse_validate_request(body).ok();
    (void)proto::parse_activate_request(body).ok();
    (void)proto::parse_rollback_request(body).ok();
    (void)proto::parse_lora_scales_request(body).ok();
    return 0;
}
