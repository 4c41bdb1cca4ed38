// One function per endpoint. HTTP worker threads; each returns a complete answer or a stream.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>

#include "adapters/pool/registry.h"
#include "model/config/config.h"
#include "model/files/model_files.h"
#include "model/text/reasoning.h"
#include "proto/generate/generate_request.h"
#include "server/access/blob_owners.h"
#include "server/access/shared_places.h"
#include "server/engine/engine.h"
#include "server/http/generate/adapter_choice.h"
#include "server/http/http.h"
#include "server/metrics.h"
#include "server/ops/reload.h"
#include "server/ops/vitals.h"
#include "server/text_codec.h"

namespace lorad::server {

class ResponseStore;
class TinkerSamples;
namespace training {
class TrainingService;
}
namespace tinker {
class ModelSessions;
}

// Limits on calls that hold an HTTP worker for long; each is shared fairly.
inline constexpr uint32_t kUploadsMax = 16;      // and validations; more are answered 429
inline constexpr uint32_t kWatchersMax = 16;     // readers of events; more are answered 429
inline constexpr uint32_t kFutureWaitsMax = 64;  // looks at futures; more are answered 429
inline constexpr uint32_t kDrainWaitsMax = 8;    // removals that wait for running requests; more answer at once

// Bounds on what clients send to be kept.
struct UploadLimits {
    uint64_t file_bytes_max = adapters::kWeightsBytesMax;  // per file
    uint64_t form_bytes_max = uint64_t{64} << 20;          // per form, which is held in memory
    // Limits on a tenant's files without an adapter. Without keys there are no tenants, and only the store's limits
    // count.
    uint64_t held_bytes_max = uint64_t{16} << 30;
    uint32_t n_held_max = 1024;
};

// All that the routes reach. The references outlive the listener.
struct ServerContext {
    Engine& engine;
    Metrics& metrics;
    adapters::Registry& registry;
    const TextCodec& text;
    std::string base_name;
    uint32_t vocab_size = 0;
    uint32_t n_positions_max = 0;  // prompt and answer together
    model::GenerationDefaults defaults;
    int64_t started_at_s = 0;  // Unix time
    uint32_t hidden_size = 0;  // numbers of an embedding
    UploadLimits uploads = {};
    // The format of tool calls in answers; nothing: the chat template's.
    std::optional<model::ToolFormat> tool_format = {};
    bool separates_reasoning = false;                // text between thought_marks is no content
    bool strict = false;                             // refuses what would else be ignored and listed in a header
    ResponseStore* responses = nullptr;              // null: none are kept
    training::TrainingService* training = nullptr;   // null: nothing is trained here
    tinker::ModelSessions* tinker = nullptr;         // null: no models are trained by calls
    TinkerSamples* tinker_samples = nullptr;         // null: as above
    std::string tokenizer_info = {};                 // JSON; empty: the model has no such file
    std::string adapter_root = {};                   // folder that loads may read from; empty: any
    std::function<std::string()> http_metrics = {};  // the listener's metrics, for /metrics

    const ops::Vitals* vitals = nullptr;       // null: nobody looks
    const ops::ReloadState* reload = nullptr;  // null: there is none

    LoraScales lora_scales = {};
    access::BlobOwners blob_owners = {};
    access::SharedPlaces uploads_now{kUploadsMax};
    access::SharedPlaces watchers_now{kWatchersMax};
    access::SharedPlaces futures_now{kFutureWaitsMax};
    access::SharedPlaces drain_waits_now{kDrainWaitsMax};
    access::SharedPlaces texts_now{uint64_t{4} << 20};  // bytes that are being tokenized
    model::ThoughtMarks thought_marks = {};
};

// Set once the model is there; until then routes that need it answer 503.
using ContextGate = std::atomic<ServerContext*>;

// Every route of the server. `gate` outlives the router.
void add_routes(Router& router, const ContextGate& gate);

// The access of each route; docs/API.md has the table.
inline constexpr access::Access kGenerates = access::Access::scope(access::Scope::kGenerate);
inline constexpr access::Access kReadsAdapters = access::Access::scope(access::Scope::kAdaptersRead);
inline constexpr access::Access kWritesAdapters = access::Access::scope(access::Scope::kAdaptersWrite);
inline constexpr access::Access kReadsTraining = access::Access::scope(access::Scope::kTrainingRead);
inline constexpr access::Access kWritesTraining = access::Access::scope(access::Scope::kTrainingWrite);
inline constexpr access::Access kAdministers = access::Access::scope(access::Scope::kAdmin);

// Handlers of routes that need the model.
using ContextHandler = HttpReply (*)(ServerContext&, const HttpRequest&);
struct ContextRoute {
    const char* method;
    const char* path;
    access::Access access;
    ContextHandler handler;
    BodyUse body = BodyUse::kBuffered;
    ErrorReply errors = error_reply;
};

// Errors in Anthropic's envelope.
HttpReply messages_error_reply(const Error& error);

HttpReply generate(ServerContext& context, const HttpRequest& request, proto::ApiKind kind);

std::span<const ContextRoute> adapter_routes();          // /v1/adapters
std::span<const ContextRoute> upload_routes();           // blobs, forms, validation of what was uploaded
std::span<const ContextRoute> text_routes();             // prompts and tokens, without generating
std::span<const ContextRoute> tokenizer_routes();        // /tokenizer_info
std::span<const ContextRoute> responses_routes();        // /v1/responses
std::span<const ContextRoute> stored_response_routes();  // /v1/responses/ID
std::span<const ContextRoute> messages_routes();         // /v1/messages
std::span<const ContextRoute> embeddings_routes();       // /v1/embeddings
std::span<const ContextRoute> file_routes();             // /v1/files
std::span<const ContextRoute> fine_tuning_routes();      // /v1/fine_tuning/jobs
std::span<const ContextRoute> tinker_routes();           // /api/v1
std::span<const ContextRoute> compat_routes();           // the faces of other servers on the same registry

// Returns the answer of GET /tokenizer_info for a model; empty if its files have none. kInvalidModel.
Result<std::string> tokenizer_info_of(const model::ModelFiles& files);

// Returns a path on the server's disk: if there is an adapter root, below it and without following links.
// kAdapterPathForbidden, with `param`, outside of the root.
Result<adapters::AdapterLocation> allowed_path(const ServerContext& context, const std::string& path,
                                               std::string_view param);

// POST /v1/adapters with a form.
HttpReply register_form(ServerContext& context, const HttpRequest& request);
// GET /v1/adapters/events
HttpReply watch_adapters(ServerContext& context, const HttpRequest& request);

}  // namespace lorad::server
