#include "server/http/routes.h"

#include "proto/base/clock.h"
#include "proto/base/version.h"
#include "proto/json/json.h"
#include "server/adapter_metrics.h"
#include "server/http/adapter_access.h"
#include "server/http/embedded_files.h"
#include "server/ops/process_metrics.h"
#include "server/training/training_service.h"

namespace lorad::server {
namespace {

// What OpenAI's and Anthropic's clients expect of a model; vLLM's fields follow.
void begin_card(JsonWriter& writer, std::string_view id, int64_t created_s) {
    writer.begin_object()
        .field("id", id)
        .field("object", "model")
        .field("created", created_s)
        .field("owned_by", "lorad")
        .field("type", "model")
        .field("display_name", id)
        .field("created_at", utc_text(created_s))
        .field("root", id);
}

void write_base_card(JsonWriter& writer, const ServerContext& context) {
    begin_card(writer, context.base_name, context.started_at_s);
    writer.key("parent").null();
    writer.field("max_model_len", context.n_positions_max);
    writer.key("permission").begin_array().end_array().end_object();
}

void write_adapter_card(JsonWriter& writer, const ServerContext& context, const adapters::AdapterInfo& adapter) {
    begin_card(writer, adapter.name, adapter.loaded_at_s);
    writer.field("parent", context.base_name)
        .field("max_model_len", context.n_positions_max)
        .field("adapter_generation", adapter.generation);
    writer.key("permission").begin_array().end_array().end_object();
}

HttpReply health(bool ok, std::string_view status) {
    JsonWriter writer;
    writer.begin_object().field("status", status).end_object();
    return json_reply(writer.take(), ok ? 200 : 503);
}

HttpReply show_version() {
    JsonWriter writer;
    writer.begin_object().field("version", version()).end_object();
    return json_reply(writer.take());
}

HttpReply ready(const ServerContext* context) {
    if (context == nullptr) return health(false, "starting");
    if (context->engine.failed()) return health(false, "failed");
    if (!context->engine.accepting()) return health(false, "draining");
    if (context->vitals != nullptr && context->vitals->state() != ops::Vital::kWell) return health(false, "stalled");
    // A restart would not find the registered adapters.
    if (!context->registry.is_store_in_place()) return health(false, "state folder moved or removed");
    return health(true, "ready");
}

// Reports if a restart would help. That HTTP works is shown by the answer itself.
HttpReply live(const ServerContext* context) {
    if (context != nullptr && context->vitals != nullptr && context->vitals->state() == ops::Vital::kHung)
        return health(false, "hung");
    return health(true, "live");
}

// One page, as Anthropic's clients ask for the next one until there is none.
HttpReply list_models(ServerContext& context, const HttpRequest& request) {
    JsonWriter writer;
    writer.begin_object().field("object", "list").key("data").begin_array();
    write_base_card(writer, context);
    std::string last = context.base_name;
    for (const adapters::AdapterInfo& adapter : visible(request, context.registry.list())) {
        if (adapter.draining) continue;
        write_adapter_card(writer, context, adapter);
        last = adapter.name;
    }
    writer.end_array()
        .field("has_more", false)
        .field("first_id", context.base_name)
        .field("last_id", last)
        .end_object();
    return json_reply(writer.take());
}

HttpReply show_model(ServerContext& context, const HttpRequest& request) {
    const std::string& id = request.params.at(0);
    JsonWriter writer;
    if (id == context.base_name) {
        write_base_card(writer, context);
        return json_reply(writer.take());
    }
    std::optional<adapters::AdapterInfo> adapter;
    if (may_use(request, id)) adapter = context.registry.find(id);
    if (!adapter) {
        Error error = no_such_model(context, request, id);
        error.code = ErrorCode::kModelNotFound;
        return error_reply(error);
    }
    write_adapter_card(writer, context, *adapter);
    return json_reply(writer.take());
}

HttpReply show_metrics(ServerContext& context, const HttpRequest&) {
    std::vector<Metrics::Resident> resident;
    const std::vector<adapters::AdapterInfo> adapters = context.registry.list();
    for (const adapters::AdapterInfo& adapter : adapters) {
        if (!adapter.draining && adapter.tier == adapters::Tier::kGpu && resident.size() < kNamedSeriesMax)
            resident.push_back({adapter.name, adapter.device_bytes});
    }
    HttpReply reply;
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = context.metrics.text(resident, names_waiting_for_place(adapters)) +
                 adapter_metrics_text(adapters, context.registry.stats(), context.base_name) +
                 ops::process_metrics_text(context.engine.heartbeat(), context.reload);
    if (context.http_metrics) reply.body += context.http_metrics();
    if (context.training != nullptr) reply.body += context.training->metrics_text(context.engine.background_seconds());
    return reply;
}

HttpReply complete(ServerContext& context, const HttpRequest& request) {
    return generate(context, request, proto::ApiKind::kCompletion);
}
HttpReply chat(ServerContext& context, const HttpRequest& request) {
    return generate(context, request, proto::ApiKind::kChat);
}

constexpr access::Access kNamesModels = access::Access::either(access::Scope::kGenerate, access::Scope::kAdaptersRead);

constexpr ContextRoute kRoutes[] = {
    {"POST", "/v1/completions", kGenerates, complete},
    {"POST", "/v1/chat/completions", kGenerates, chat},
    {"GET", "/v1/models", kNamesModels, list_models},
    {"GET", "/v1/models/*", kNamesModels, show_model},
    {"GET", "/metrics", access::Access::scope(access::Scope::kMetrics), show_metrics},
};

}  // namespace

void add_routes(Router& router, const ContextGate& gate) {
    using access::Access;
    router.add("GET", "/version", Access::any_key(), [](const HttpRequest&) { return show_version(); });
    router.add(
        "GET", "/health/live", Access::open(), [&gate](const HttpRequest&) { return live(gate.load()); },
        BodyUse::kAtOnce);
    router.add(
        "GET", "/health/ready", Access::open(), [&gate](const HttpRequest&) { return ready(gate.load()); },
        BodyUse::kAtOnce);
    router.add(
        "GET", "/health", Access::open(), [&gate](const HttpRequest&) { return ready(gate.load()); }, BodyUse::kAtOnce);
    add_file_routes(router);
    router.set_errors_below("/v1/messages", messages_error_reply);
    for (std::span<const ContextRoute> routes :
         {std::span<const ContextRoute>(kRoutes), upload_routes(), adapter_routes(), compat_routes(), text_routes(),
          tokenizer_routes(), responses_routes(), stored_response_routes(), messages_routes(), embeddings_routes(),
          file_routes(), fine_tuning_routes(), tinker_routes()}) {
        for (const ContextRoute& route : routes) {
            router.add(
                route.method, route.path, route.access,
                [&gate, handler = route.handler, errors = route.errors](const HttpRequest& request) {
                    ServerContext* context = gate.load();
                    if (context != nullptr) return handler(*context, request);
                    return errors(
                        make_error(ErrorCode::kDraining, "the server is starting: the model is still being loaded"));
                },
                route.body, route.errors);
        }
    }
}

}  // namespace lorad::server
