// One function per endpoint. HTTP worker threads; each returns a complete answer or a stream.
#pragma once

#include <atomic>
#include <string>

#include "adapters/registry.h"
#include "model/config.h"
#include "proto/generate_request.h"
#include "server/engine/engine.h"
#include "server/http/http.h"
#include "server/metrics.h"
#include "server/text_codec.h"

namespace lorad::server {

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
};

// Set once the model is there; until then routes that need it answer 503.
using ContextGate = std::atomic<ServerContext*>;

// Every route of the server. `gate` outlives the router.
void add_routes(Router& router, const ContextGate& gate);

HttpReply generate(ServerContext& context, const HttpRequest& request, proto::ApiKind kind);

HttpReply list_models(ServerContext& context);
HttpReply show_model(ServerContext& context, const std::string& id);
HttpReply load_adapter(ServerContext& context, const HttpRequest& request);
HttpReply unload_adapter(ServerContext& context, const HttpRequest& request);
HttpReply list_adapters(ServerContext& context);
HttpReply show_metrics(ServerContext& context);

}  // namespace lorad::server
