// The faces of other servers on the same registry: vLLM and mistral.rs (/v1/load_lora_adapter),
// SGLang (/load_lora_adapter), llama-server (/lora-adapters).
#include "proto/adapter_request.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/json/json.h"
#include "server/http/adapter_access.h"
#include "server/http/adapter_json.h"
#include "server/http/generate/reply_parts.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

using adapters::AdapterInfo;

HttpReply plain_text(std::string text) {
    HttpReply reply;
    reply.content_type = "text/plain; charset=utf-8";
    reply.body = std::move(text);
    return reply;
}
bool wants_text(const HttpRequest& request) { return request.accept.starts_with("text/plain"); }

// `ignored`: the header that lists unknown fields.
Result<AdapterInfo> load(ServerContext& context, const HttpRequest& request, std::string& ignored) {
    TRY_ASSIGN(proto::LoadAdapterRequest parsed, proto::parse_load_adapter_request(request.body));
    TRY_ASSIGN(ignored, ignored_fields_header(context, parsed.ignored_fields));
    TRY(check_may_name(request, parsed.name));
    TRY_ASSIGN(adapters::AdapterLocation location, allowed_path(context, parsed.path, "lora_path"));
    Result<AdapterInfo> loaded =
        context.registry.load(parsed.name, location, {parsed.load_inplace, parsed.expected_generation});
    if (!loaded.ok()) {
        log_warn("adapter {} was not loaded: {}", json_quote_short(parsed.name), loaded.error().message);
        return loaded;
    }
    if (!parsed.pin) return loaded;
    return context.registry.activate(parsed.name, {adapters::ActivationMode::kUnmerged, true});
}

Result<AdapterInfo> unload(ServerContext& context, const HttpRequest& request, std::string& ignored) {
    TRY_ASSIGN(proto::UnloadAdapterRequest parsed, proto::parse_unload_adapter_request(request.body));
    TRY_ASSIGN(ignored, ignored_fields_header(context, parsed.ignored_fields));
    TRY(check_visible(context.registry, request, parsed.name));
    adapters::RemoveOptions options;
    options.expected_generation = parsed.expected_generation;
    return context.registry.remove(parsed.name, options);
}

HttpReply vllm_load(ServerContext& context, const HttpRequest& request) {
    std::string ignored;
    Result<AdapterInfo> loaded = load(context, request, ignored);
    if (!loaded.ok()) return error_reply(loaded.error());
    HttpReply reply = wants_text(request)
                          ? plain_text(format("Success: LoRA adapter '{}' added successfully.", loaded->name))
                          : adapter_reply(*loaded);
    add_ignored_fields(reply, ignored);
    return reply;
}

HttpReply vllm_unload(ServerContext& context, const HttpRequest& request) {
    std::string ignored;
    Result<AdapterInfo> unloaded = unload(context, request, ignored);
    if (!unloaded.ok()) return error_reply(unloaded.error());
    HttpReply reply = wants_text(request)
                          ? plain_text(format("Success: LoRA adapter '{}' removed successfully.", unloaded->name))
                          : removed_reply(visible(request, {*unloaded}).at(0));
    add_ignored_fields(reply, ignored);
    return reply;
}

HttpReply vllm_list(ServerContext& context, const HttpRequest& request) {
    JsonWriter writer;
    writer.begin_object().field("object", "list").key("data").begin_array();
    for (const AdapterInfo& adapter : visible(request, context.registry.list())) write_adapter(writer, adapter);
    writer.end_array().end_object();
    return json_reply(writer.take());
}

// SGLang's answer in both cases; an error also carries our envelope.
HttpReply sglang_reply(ServerContext& context, const HttpRequest& request,
                       Result<AdapterInfo> (*change)(ServerContext&, const HttpRequest&, std::string&)) {
    std::string ignored;
    const Result<AdapterInfo> result = change(context, request, ignored);
    JsonWriter writer;
    writer.begin_object().field("success", result.ok());
    HttpReply reply;
    if (!result.ok()) {
        reply = error_reply(result.error());
        std::string envelope = reply.body;
        writer.field("error_message", result.error().message);
        Result<JsonDocument> document = parse_json(envelope);
        CHECK(document.ok());
        writer.key("error").raw(document->root().find("error")->dump());
    }
    writer.key("loaded_adapters").begin_object();
    for (const AdapterInfo& adapter : visible(request, context.registry.list())) {
        if (adapter.draining) continue;
        writer.key(adapter.name)
            .begin_object()
            .field("lora_id", adapter.generation)
            .field("pinned", adapter.pinned)
            .end_object();
    }
    writer.end_object().end_object();
    reply.body = writer.take();
    add_ignored_fields(reply, ignored);
    return reply;
}

HttpReply sglang_load(ServerContext& context, const HttpRequest& request) {
    return sglang_reply(context, request, load);
}
HttpReply sglang_unload(ServerContext& context, const HttpRequest& request) {
    return sglang_reply(context, request, unload);
}

HttpReply llama_list(ServerContext& context, const HttpRequest& request) {
    JsonWriter writer;
    writer.begin_array();
    for (const LoraScales::Entry& entry : context.lora_scales.entries(context.registry, restricted(request))) {
        writer.begin_object()
            .field("id", entry.id)
            .field("path", entry.name)
            .field("scale", entry.scale)
            .field("task_name", "")
            .field("prompt_prefix", "")
            .end_object();
    }
    writer.end_array();
    return json_reply(writer.take());
}

Result<HttpReply> set_scales(ServerContext& context, const HttpRequest& request) {
    TRY_ASSIGN(proto::LoraScalesRequest parsed, proto::parse_lora_scales_request(request.body));
    TRY_ASSIGN(std::string ignored, ignored_fields_header(context, parsed.ignored_fields));
    TRY(context.lora_scales.set(context.registry, parsed.scales));
    JsonWriter writer;
    writer.begin_object().field("success", true).end_object();
    HttpReply reply = json_reply(writer.take());
    add_ignored_fields(reply, ignored);
    return reply;
}

HttpReply llama_set(ServerContext& context, const HttpRequest& request) {
    return reply_of(set_scales(context, request));
}

// Loads read files of the server, and the scales are everybody's.
constexpr ContextRoute kCompatRoutes[] = {
    {"POST", "/v1/load_lora_adapter", kAdministers, vllm_load},
    {"POST", "/v1/unload_lora_adapter", kWritesAdapters, vllm_unload},
    {"GET", "/v1/lora_adapters", kReadsAdapters, vllm_list},
    {"POST", "/load_lora_adapter", kAdministers, sglang_load},
    {"POST", "/unload_lora_adapter", kWritesAdapters, sglang_unload},
    {"GET", "/lora-adapters", kReadsAdapters, llama_list},
    {"POST", "/lora-adapters", kAdministers, llama_set},
};

}  // namespace

std::span<const ContextRoute> compat_routes() { return kCompatRoutes; }

}  // namespace lorad::server
