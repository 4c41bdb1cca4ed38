// Adapters by name: list, register, remove, activate, roll back, validate, watch.
#include <charconv>

#include "proto/adapter_request.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/json/json.h"
#include "proto/multipart.h"
#include "server/http/adapter_access.h"
#include "server/http/adapter_json.h"
#include "server/http/place.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

using adapters::AdapterInfo;

constexpr uint32_t kListLimitMax = 1000;

// The registry speaks of "lora_name", vLLM's word; here the name is in the path or in "name".
Error with_param(Error error, std::string_view param) {
    if (error.param != "lora_name") return error;
    if (error.message.starts_with("lora_name")) error.message.replace(0, error.param.size(), param);
    error.param = std::string(param);
    return error;
}

HttpReply reply_of(const HttpRequest& request, const Result<AdapterInfo>& result, std::string_view param,
                   int status = 200) {
    if (!result.ok()) return error_reply(with_param(result.error(), param));
    return adapter_reply(visible(request, {*result}).at(0), status);
}

// "limit" and "after" of a query; without a limit all of them.
HttpReply list_adapters(ServerContext& context, const HttpRequest& request) {
    adapters::Registry::Page page;
    if (const std::optional<std::string_view> limit = request.query_value("limit")) {
        uint32_t n_max = 0;
        auto [end, error] = std::from_chars(limit->data(), limit->data() + limit->size(), n_max);
        if (error != std::errc() || end != limit->data() + limit->size() || n_max == 0 || n_max > kListLimitMax) {
            return error_reply(make_error(
                ErrorCode::kInvalidRequest,
                format("limit: expected 1 to {}, found {}", kListLimitMax, json_quote(limit->substr(0, 40))), "limit"));
        }
        page = visible_page(context.registry, request, request.query_value("after").value_or(""), n_max);
    } else if (request.query_value("after")) {
        return error_reply(make_error(ErrorCode::kInvalidRequest, "after: needs a limit", "after"));
    } else {
        page.adapters = visible(request, context.registry.list());
    }
    JsonWriter writer;
    writer.begin_object().field("object", "list").field("has_more", page.more).key("data").begin_array();
    for (const AdapterInfo& adapter : page.adapters) write_adapter(writer, adapter);
    writer.end_array().end_object();
    return json_reply(writer.take());
}

HttpReply show_adapter(ServerContext& context, const HttpRequest& request) {
    const std::string& name = request.params.at(0);
    std::optional<AdapterInfo> adapter;
    if (may_use(request, name)) adapter = context.registry.find(name);
    if (adapter) return adapter_reply(visible(request, {*adapter}).at(0));
    return error_reply(
        make_error(ErrorCode::kAdapterNotFound, format("no adapter is called {}", json_quote_short(name)), "name"));
}

HttpReply register_adapter(ServerContext& context, const HttpRequest& request) {
    Result<std::string> boundary = proto::multipart_boundary(request.content_type);
    if (!boundary.ok()) return error_reply(boundary.error());
    if (!boundary->empty()) return register_form(context, request);
    std::string body;
    if (request.stream != nullptr) {
        Status read = request.stream->read(request.body_bytes_max, [&](std::string_view piece) {
            body.append(piece);
            return ok_status();
        });
        if (!read.ok()) return error_reply(read.error());
    }
    Result<proto::RegisterAdapterRequest> parsed = proto::parse_register_request(body);
    if (!parsed.ok()) return error_reply(parsed.error());
    Status allowed = check_may_name(request, parsed->name);
    if (!allowed.ok()) return error_reply(allowed.error());
    adapters::ChangeOptions options{parsed->replace, parsed->expected_generation};
    if (parsed->files.empty()) {
        std::vector<adapters::AdapterTerm> terms;
        Status known = ok_status();
        for (const proto::NamedScale& term : parsed->mix) {
            terms.push_back({term.name, term.scale});
            if (known.ok()) known = check_visible(context.registry, request, term.name);
        }
        Result<AdapterInfo> mix =
            known.ok() ? context.registry.register_mix(parsed->name, terms, options) : known.error();
        // A missing part is not the name that is being given.
        bool part_missing = !mix.ok() && mix.error().code == ErrorCode::kAdapterNotFound;
        return reply_of(request, mix, part_missing ? "adapters" : "name", 201);
    }
    std::vector<adapters::UploadedFile> files;
    for (const proto::FileDigest& file : parsed->files) files.push_back({file.file, file.sha256});
    Status own = check_own_blobs(context, request, parsed->files);
    if (!own.ok()) return error_reply(own.error());
    const adapters::Holder holder = holder_of(context, request);
    return reply_of(request, context.registry.register_adapter(parsed->name, files, options, holder.key), "name", 201);
}

// "mode", "timeout_ms" and "expected_generation" of a query.
Result<adapters::RemoveOptions> remove_options(const HttpRequest& request) {
    adapters::RemoveOptions options;
    for (const auto& [key, value] : request.query) {
        if (key == "mode" && (value == "drain" || value == "now")) {
            options.mode = value == "now" ? adapters::RemoveMode::kNow : adapters::RemoveMode::kDrain;
        } else if (key == "timeout_ms") {
            uint32_t ms = 0;
            auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), ms);
            if (error != std::errc() || end != value.data() + value.size() || ms > proto::kTimeoutMsMax) {
                return make_error(ErrorCode::kInvalidRequest,
                                  format("timeout_ms: expected 0 to {}, found {}", proto::kTimeoutMsMax,
                                         json_quote(value.substr(0, 40))),
                                  "timeout_ms");
            }
            options.timeout = std::chrono::milliseconds(ms);
        } else if (key == "expected_generation" && is_sha256_hex(value)) {
            options.expected_generation = value;
        } else {
            bool known = key == "mode" || key == "expected_generation";
            std::string_view expected = key == "mode" ? "drain or now"
                                        : known       ? "64 lower-case hex digits"
                                                      : "mode, timeout_ms or expected_generation";
            return make_error(key == "mode" ? ErrorCode::kInvalidLoadPolicy : ErrorCode::kInvalidRequest,
                              format("{}: expected {}, found {}", known ? key : "the query", expected,
                                     json_quote((known ? value : key).substr(0, 80))),
                              key);
        }
    }
    return options;
}

HttpReply remove_adapter(ServerContext& context, const HttpRequest& request) {
    Result<adapters::RemoveOptions> options = remove_options(request);
    if (!options.ok()) return error_reply(options.error());
    Status empty = proto::parse_empty_request(request.body);
    if (!empty.ok()) return error_reply(empty.error());
    Status known = check_visible(context.registry, request, request.params.at(0));
    if (!known.ok()) return error_reply(with_param(known.error(), "name"));
    // A wait holds an HTTP worker. What is removed is removed either way.
    const access::SharedPlaces::Place place = context.drain_waits_now.take(holder_of(request));
    if (!place.taken()) options->timeout = std::chrono::milliseconds(0);
    options->cancelled = [&] { return !context.engine.accepting() || (request.client_gone && request.client_gone()); };
    Result<AdapterInfo> removed = context.registry.remove(request.params.at(0), *options);
    if (!removed.ok()) return error_reply(with_param(removed.error(), "name"));
    return removed_reply(visible(request, {*removed}).at(0));
}

HttpReply activate_adapter(ServerContext& context, const HttpRequest& request) {
    Result<proto::ActivateRequest> parsed = proto::parse_activate_request(request.body);
    if (!parsed.ok()) return error_reply(parsed.error());
    Status known = check_visible(context.registry, request, request.params.at(0));
    if (!known.ok()) return error_reply(with_param(known.error(), "name"));
    adapters::ActivateOptions options;
    options.mode = adapters::activation_mode_of(parsed->mode).value();
    options.pin = parsed->pin;
    return reply_of(request, context.registry.activate(request.params.at(0), options), "name");
}

HttpReply deactivate_adapter(ServerContext& context, const HttpRequest& request) {
    Status empty = proto::parse_empty_request(request.body);
    if (!empty.ok()) return error_reply(empty.error());
    Status known = check_visible(context.registry, request, request.params.at(0));
    if (!known.ok()) return error_reply(with_param(known.error(), "name"));
    return reply_of(request, context.registry.deactivate(request.params.at(0)), "name");
}

HttpReply roll_back_adapter(ServerContext& context, const HttpRequest& request) {
    Result<proto::RollbackRequest> parsed = proto::parse_rollback_request(request.body);
    if (!parsed.ok()) return error_reply(parsed.error());
    Status known = check_visible(context.registry, request, request.params.at(0));
    if (!known.ok()) return error_reply(with_param(known.error(), "name"));
    return reply_of(request, context.registry.rollback(request.params.at(0), parsed->generation), "name");
}

constexpr ContextRoute kAdapterRoutes[] = {
    {"GET", "/v1/adapters", kReadsAdapters, list_adapters},
    {"POST", "/v1/adapters", kWritesAdapters, register_adapter, BodyUse::kStreamed},
    {"GET", "/v1/adapters/events", kReadsAdapters, watch_adapters},
    {"GET", "/v1/adapters/{}", kReadsAdapters, show_adapter},
    {"DELETE", "/v1/adapters/{}", kWritesAdapters, remove_adapter},
    {"POST", "/v1/adapters/{}/activate", kWritesAdapters, activate_adapter},
    {"POST", "/v1/adapters/{}/deactivate", kWritesAdapters, deactivate_adapter},
    {"POST", "/v1/adapters/{}/rollback", kWritesAdapters, roll_back_adapter},
};

}  // namespace

std::span<const ContextRoute> adapter_routes() { return kAdapterRoutes; }

}  // namespace lorad::server
