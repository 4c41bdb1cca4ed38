#include "server/http/routes.h"

#include "proto/adapter_request.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/json.h"

namespace lorad::server {
namespace {

void write_base_card(JsonWriter& writer, const ServerContext& context) {
    writer.begin_object()
        .field("id", context.base_name)
        .field("object", "model")
        .field("created", context.started_at_s)
        .field("owned_by", "lorad")
        .field("root", context.base_name);
    writer.key("parent").null();
    writer.field("max_model_len", context.n_positions_max);
    writer.key("permission").begin_array().end_array().end_object();
}

void write_adapter_card(JsonWriter& writer, const ServerContext& context,
                        const adapters::AdapterInfo& adapter) {
    writer.begin_object()
        .field("id", adapter.name)
        .field("object", "model")
        .field("created", adapter.loaded_at_s)
        .field("owned_by", "lorad")
        .field("root", adapter.name)
        .field("parent", context.base_name)
        .field("max_model_len", context.n_positions_max)
        .field("adapter_generation", adapter.generation);
    writer.key("permission").begin_array().end_array().end_object();
}

void write_adapter(JsonWriter& writer, const adapters::AdapterInfo& adapter) {
    writer.begin_object()
        .field("id", adapter.name)
        .field("object", "lora_adapter")
        .field("state", adapter.draining ? "draining" : adapters::name_of(adapter.state))
        .field("generation", adapter.generation)
        .field("rank", adapter.rank)
        .field("modules", adapter.n_modules)
        .field("bytes", adapter.device_bytes)
        .field("active_requests", adapter.n_leases)
        .field("created", adapter.loaded_at_s)
        .end_object();
}

HttpReply health(bool ok, std::string_view status) {
    JsonWriter writer;
    writer.begin_object().field("status", status).end_object();
    return json_reply(writer.take(), ok ? 200 : 503);
}

HttpReply ready(const ServerContext* context) {
    if (context == nullptr) return health(false, "starting");
    if (context->engine.failed()) return health(false, "failed");
    if (!context->engine.accepting()) return health(false, "draining");
    return health(true, "ready");
}

}  // namespace

HttpReply list_models(ServerContext& context) {
    JsonWriter writer;
    writer.begin_object().field("object", "list").key("data").begin_array();
    write_base_card(writer, context);
    for (const adapters::AdapterInfo& adapter : context.registry.list()) {
        if (!adapter.draining)
            write_adapter_card(writer, context, adapter);
    }
    writer.end_array().end_object();
    return json_reply(writer.take());
}

HttpReply show_model(ServerContext& context, const std::string& id) {
    JsonWriter writer;
    if (id == context.base_name) {
        write_base_card(writer, context);
        return json_reply(writer.take());
    }
    std::optional<adapters::AdapterInfo> adapter = context.registry.find(id);
    if (!adapter) {
        return error_reply(make_error(ErrorCode::kModelNotFound,
                                      format("the model {} does not exist", json_quote(id)),
                                      "model"));
    }
    write_adapter_card(writer, context, *adapter);
    return json_reply(writer.take());
}

HttpReply load_adapter(ServerContext& context, const HttpRequest& request) {
    Result<proto::LoadAdapterRequest> parsed = proto::parse_load_adapter_request(request.body);
    if (!parsed.ok()) return error_reply(parsed.error());
    Result<adapters::AdapterInfo> loaded = context.registry.load(
        parsed->name, parsed->path, {parsed->load_inplace, parsed->expected_generation});
    if (!loaded.ok()) {
        log_warn("adapter {} was not loaded: {}", json_quote(parsed->name), loaded.error().message);
        return error_reply(loaded.error());
    }
    JsonWriter writer;
    write_adapter(writer, *loaded);
    return json_reply(writer.take());
}

HttpReply unload_adapter(ServerContext& context, const HttpRequest& request) {
    Result<proto::UnloadAdapterRequest> parsed = proto::parse_unload_adapter_request(request.body);
    if (!parsed.ok()) return error_reply(parsed.error());
    Result<adapters::AdapterInfo> unloaded = context.registry.remove(parsed->name);
    if (!unloaded.ok()) return error_reply(unloaded.error());
    JsonWriter writer;
    write_adapter(writer, *unloaded);
    return json_reply(writer.take());
}

HttpReply list_adapters(ServerContext& context) {
    JsonWriter writer;
    writer.begin_object().field("object", "list").key("data").begin_array();
    for (const adapters::AdapterInfo& adapter : context.registry.list())
        write_adapter(writer, adapter);
    writer.end_array().end_object();
    return json_reply(writer.take());
}

HttpReply show_metrics(ServerContext& context) {
    std::vector<Metrics::Resident> resident;
    for (const adapters::AdapterInfo& adapter : context.registry.list()) {
        if (adapter.state == adapters::AdapterState::kResident && !adapter.draining)
            resident.push_back({adapter.name, adapter.device_bytes});
    }
    HttpReply reply;
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = context.metrics.text(resident);
    return reply;
}

void add_routes(Router& router, const ContextGate& gate) {
    auto needs_model = [&gate](auto handler) -> HttpHandler {
        return [&gate, handler](const HttpRequest& request) {
            ServerContext* context = gate.load();
            if (context == nullptr) {
                return error_reply(
                    make_error(ErrorCode::kDraining,
                               "the server is starting: the model is still being loaded"));
            }
            return handler(*context, request);
        };
    };
    router.add("GET", "/health/live", [](const HttpRequest&) { return health(true, "live"); });
    router.add("GET", "/health/ready", [&gate](const HttpRequest&) { return ready(gate.load()); });
    router.add("GET", "/health", [&gate](const HttpRequest&) { return ready(gate.load()); });
    router.add("POST", "/v1/completions",
               needs_model([](ServerContext& context, const HttpRequest& request) {
                   return generate(context, request, proto::ApiKind::kCompletion);
               }));
    router.add("POST", "/v1/chat/completions",
               needs_model([](ServerContext& context, const HttpRequest& request) {
                   return generate(context, request, proto::ApiKind::kChat);
               }));
    router.add("GET", "/v1/models", needs_model([](ServerContext& context, const HttpRequest&) {
                   return list_models(context);
               }));
    router.add(
        "GET", "/v1/models/*", needs_model([](ServerContext& context, const HttpRequest& request) {
            return show_model(context, request.params.at(0));
        }));
    router.add("POST", "/v1/load_lora_adapter", needs_model(load_adapter));
    router.add("POST", "/v1/unload_lora_adapter", needs_model(unload_adapter));
    router.add("GET", "/v1/lora_adapters",
               needs_model([](ServerContext& context, const HttpRequest&) {
                   return list_adapters(context);
               }));
    router.add("GET", "/metrics", needs_model([](ServerContext& context, const HttpRequest&) {
                   return show_metrics(context);
               }));
}

}  // namespace lorad::server
