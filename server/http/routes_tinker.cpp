// /api/v1: Tinker's interface, as its Python client calls it. Models are trained by calls (server/tinker), samples are
// generations. A result is fetched by the id of its future.
#include <algorithm>

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "proto/tinker/tinker_data.h"
#include "proto/tinker/tinker_requests.h"
#include "server/http/adapter_access.h"
#include "server/http/generate/generation.h"
#include "server/http/generate/reply_parts.h"
#include "server/http/place.h"
#include "server/http/tinker_samples.h"
#include "server/http/training_access.h"
#include "server/tinker/model_sessions.h"

namespace lorad::server {
namespace {

using tinker::CallContent;
using tinker::CallKind;
using tinker::ModelSessions;

constexpr std::chrono::seconds kWaitMax{20};  // of one look at a future; the client gives up after 45
constexpr std::chrono::milliseconds kWaitStep{250};
constexpr std::string_view kProtobuf = "application/x-protobuf";
constexpr size_t kChunkBytesMax = 5'000'000;  // of a call's data, which the client cuts

Result<ModelSessions*> sessions_of(const ServerContext& context) {
    if (context.tinker != nullptr) return context.tinker;
    return make_error(ErrorCode::kNotFound,
                      "this server trains no models by calls: it has no state folder, or --training-jobs or "
                      "--training-models is 0");
}

Status check_base(const ServerContext& context, std::string_view base_model) {
    if (base_model == context.base_name) return ok_status();
    return make_error(ErrorCode::kModelNotFound,
                      format("base_model: expected {}, which is served here, found {}", json_quote(context.base_name),
                             json_quote_short(base_model)),
                      "base_model");
}

// ignored_fields: the header of what has no effect.
HttpReply future_reply(const ModelSessions::Pending& pending, const std::string& ignored_fields = {}) {
    HttpReply reply = json_reply(JsonWriter()
                                     .begin_object()
                                     .field("request_id", pending.request_id)
                                     .field("model_id", pending.model_id)
                                     .end_object()
                                     .take());
    add_ignored_fields(reply, ignored_fields);
    return reply;
}

// What a client may set, as this server wants it. Nothing of it needs a model.
Result<HttpReply> client_config(ServerContext&, const HttpRequest& http) {
    TRY(proto::check_tinker_client(http.body));
    constexpr size_t kSamplesAtOnce = 32;
    const size_t chunk_bytes = std::min(kChunkBytesMax, http.body_bytes_max / 4 * 3);
    return json_reply(JsonWriter()
                          .begin_object()
                          .field("pjwt_auth_enabled", false)
                          .field("credential_default_source", "api_key")
                          .field("parallel_fwdbwd_chunks", true)
                          .field("proto_compress_fwdbwd", false)
                          .field("fwdbwd_max_chunk_len", uint64_t{1024})
                          .field("fwdbwd_max_chunk_bytes_count", uint64_t{chunk_bytes})
                          .field("sample_max_concurrent_requests", uint64_t{kSamplesAtOnce})
                          .field("use_pyqwest_transport", false)
                          .field("sample_use_retrieve_futures", false)
                          .field("custom_loss_server_side", false)
                          .field("sample_join_sampling_session", false)
                          .end_object()
                          .take());
}

Result<HttpReply> dynamic_config(ServerContext&, const HttpRequest& http) {
    TRY(proto::check_tinker_client(http.body));
    return json_reply(JsonWriter()
                          .begin_object()
                          .field("refresh_interval_sec", uint64_t{300})
                          .field("sample_cancel_enabled", true)
                          .end_object()
                          .take());
}

Result<HttpReply> healthz(ServerContext&, const HttpRequest&) { return json_reply(R"({"status":"ok"})"); }
// What clients tell of themselves is not kept.
Result<HttpReply> telemetry(ServerContext&, const HttpRequest& http) {
    TRY(proto::check_tinker_telemetry(http.body));
    return json_reply(R"({"status":"accepted"})");
}

Result<HttpReply> capabilities(ServerContext& context, const HttpRequest&) {
    JsonWriter json;
    json.begin_object().key("supported_models").begin_array();
    json.begin_object()
        .field("model_name", context.base_name)
        .field("max_context_length", context.n_positions_max)
        .field("trainable", context.tinker != nullptr)
        .field("sampleable", true)
        .end_object();
    return json_reply(json.end_array().end_object().take());
}

Result<HttpReply> create_session(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(ModelSessions* const sessions, sessions_of(context));
    TRY_ASSIGN(const proto::TinkerCreateSession request, proto::parse_tinker_create_session(http.body));
    TRY_ASSIGN(const std::string ignored, ignored_fields_header(context, request.ignored_fields));
    TRY_ASSIGN(const std::string id, sessions->create_session(training_tenant(http)));
    HttpReply reply = json_reply(
        JsonWriter().begin_object().field("type", "create_session").field("session_id", id).end_object().take());
    add_ignored_fields(reply, ignored);
    return reply;
}

// Gone: the client stops to ask.
HttpReply gone_reply(const Error& error) {
    HttpReply reply = error_reply(error);
    reply.status = 410;
    return reply;
}

Result<HttpReply> heartbeat(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(ModelSessions* const sessions, sessions_of(context));
    TRY_ASSIGN(const std::string id, proto::parse_tinker_id(http.body, "session_id"));
    const Status alive = sessions->heartbeat(training_tenant(http), id);
    if (!alive.ok()) return gone_reply(alive.error());
    return json_reply(R"({"type":"session_heartbeat"})");
}

Result<HttpReply> finish_session(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(ModelSessions* const sessions, sessions_of(context));
    TRY(proto::check_tinker_finish_session(http.body));
    TRY(sessions->finish(training_tenant(http), http.params.at(0)));
    return json_reply("{}");
}

Result<HttpReply> create_model(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(ModelSessions* const sessions, sessions_of(context));
    TRY_ASSIGN(const proto::TinkerCreateModel request, proto::parse_tinker_create_model(http.body));
    TRY(check_base(context, request.base_model));
    TRY_ASSIGN(const std::string ignored, ignored_fields_header(context, request.ignored_fields));
    TRY_ASSIGN(const ModelSessions::Pending pending, sessions->create_model(training_tenant(http), request));
    return future_reply(pending, ignored);
}

// A call in a model's order. What is wrong with it is its future's error, so that the calls behind it go on.
Result<HttpReply> called(ServerContext& context, const HttpRequest& http, const std::string& model, uint64_t seq_id,
                         CallContent content, const std::vector<std::string>& ignored_fields = {}) {
    TRY_ASSIGN(ModelSessions* const sessions, sessions_of(context));
    TRY_ASSIGN(const std::string ignored, ignored_fields_header(context, ignored_fields));
    TRY_ASSIGN(const ModelSessions::Pending pending,
               sessions->add_call(training_tenant(http), model, seq_id, std::move(content)));
    return future_reply(pending, ignored);
}

Result<HttpReply> forward_backward(ServerContext& context, const HttpRequest& http) {
    if (!http.content_type.starts_with(kProtobuf))
        return make_error(ErrorCode::kUnsupportedMedia,
                          format("Content-Type: expected {}, as Tinker's client sends it", kProtobuf));
    TRY_ASSIGN(proto::TinkerForwardBackward request, proto::parse_tinker_forward_backward(http.body));
    CallContent content;
    content.kind = request.is_forward_only ? CallKind::kForward : CallKind::kForwardBackward;
    content.is_sampled = request.loss == proto::TinkerLoss::kImportanceSampling;
    content.refusal = std::move(request.refusal);
    for (proto::TinkerDatum& datum : request.data) {
        content.examples.push_back({.tokens = std::move(datum.tokens),
                                    .weights = std::move(datum.weights),
                                    .targets = std::move(datum.targets),
                                    .sampled = std::move(datum.sampled)});
    }
    return called(context, http, request.model_id, request.seq_id, std::move(content));
}

Result<HttpReply> optim_step(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(proto::TinkerOptimStep call, proto::parse_tinker_optim_step(http.body));
    CallContent content;
    content.kind = CallKind::kUpdate;
    content.refusal = std::move(call.refusal);
    content.optimizer = {call.beta1, call.beta2, call.eps, call.weight_decay, call.grad_clip_norm};
    content.learning_rate = call.learning_rate;
    return called(context, http, call.model_id, call.seq_id, std::move(content), call.ignored_fields);
}

Result<HttpReply> save_for_sampler(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(proto::TinkerSaveForSampler call, proto::parse_tinker_save_for_sampler(http.body));
    CallContent content;
    content.kind = CallKind::kSaveForSampler;
    content.name = call.name;
    if (call.name.empty()) {
        const uint64_t number = call.sampling_session_seq_id.value_or(0);
        content.name = proto::tinker_unnamed(call);
        content.sampler_id = ModelSessions::sampler_id(ModelSessions::session_of(call.model_id), number);
    }
    content.refusal = std::move(call.refusal);
    const std::string adapter = ModelSessions::adapter_name(call.model_id, content.name);
    if (const Status allowed = check_may_name(http, adapter); !content.refusal && !allowed.ok())
        content.refusal = allowed.error();
    return called(context, http, call.model_id, call.seq_id, std::move(content), call.ignored_fields);
}

Result<HttpReply> save_state(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(proto::TinkerSaveState call, proto::parse_tinker_save_state(http.body));
    CallContent content;
    content.kind = CallKind::kSaveState;
    content.path = proto::TinkerPath{call.model_id, std::string(proto::kTinkerWeights), call.name}.text();
    content.overwrites = call.overwrites;
    content.refusal = std::move(call.refusal);
    return called(context, http, call.model_id, call.seq_id, std::move(content), call.ignored_fields);
}

Result<HttpReply> load_state(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(proto::TinkerLoadState call, proto::parse_tinker_load_state(http.body));
    if (call.refusal && (call.model_id.empty() || !call.session_id.empty())) return *call.refusal;
    if (!call.session_id.empty()) {
        if (!call.base_model.empty()) TRY(check_base(context, call.base_model));
        TRY_ASSIGN(ModelSessions* const sessions, sessions_of(context));
        TRY_ASSIGN(const std::string ignored, ignored_fields_header(context, call.ignored_fields));
        TRY_ASSIGN(const ModelSessions::Pending pending, sessions->create_model(training_tenant(http), call));
        return future_reply(pending, ignored);
    }
    CallContent content;
    content.kind = CallKind::kLoadState;
    content.path = call.path;
    content.with_optimizer = call.with_optimizer;
    content.refusal = std::move(call.refusal);
    return called(context, http, call.model_id, call.seq_id, std::move(content), call.ignored_fields);
}

Result<HttpReply> unload_model(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(ModelSessions* const sessions, sessions_of(context));
    TRY_ASSIGN(const std::string id, proto::parse_tinker_id(http.body, "model_id"));
    TRY_ASSIGN(const ModelSessions::Pending pending, sessions->unload(training_tenant(http), id));
    return future_reply(pending);
}

Result<HttpReply> get_info(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(ModelSessions* const sessions, sessions_of(context));
    TRY_ASSIGN(const std::string id, proto::parse_tinker_id(http.body, "model_id"));
    TRY_ASSIGN(const tinker::ModelInfo info, sessions->info(training_tenant(http), id));
    JsonWriter json;
    json.begin_object().field("type", "get_info").field("model_id", info.id).key("model_data").begin_object();
    json.field("model_name", context.base_name).field("tokenizer_id", context.base_name).end_object();
    json.key("optimizer_config").begin_object().field("type", "adamw").end_object();
    json.field("is_lora", true).field("lora_rank", info.shape.rank).field("model_name", context.base_name);
    return json_reply(json.end_object().take());
}

Result<HttpReply> create_sampler(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(ModelSessions* const sessions, sessions_of(context));
    TRY_ASSIGN(const proto::TinkerCreateSampler request, proto::parse_tinker_create_sampler(http.body));
    if (!request.base_model.empty()) TRY(check_base(context, request.base_model));
    if (!request.model_path.empty()) {
        TRY_ASSIGN(const proto::TinkerPath path,
                   proto::parse_tinker_path(request.model_path, proto::kTinkerSamplerWeights, "model_path"));
        const std::string adapter = ModelSessions::adapter_name(path.model_id, path.name);
        if (!may_use(http, adapter) || !context.registry.find(adapter))
            return make_error(ErrorCode::kNotFound,
                              format("model_path: nothing is kept as {}", json_quote_short(request.model_path)),
                              "model_path");
    }
    TRY_ASSIGN(const tinker::Sampler sampler, sessions->create_sampler(training_tenant(http), request));
    return json_reply(JsonWriter()
                          .begin_object()
                          .field("type", "create_sampling_session")
                          .field("sampling_session_id", sampler.id)
                          .end_object()
                          .take());
}

Error no_sampler(std::string_view id) {
    return make_error(ErrorCode::kNotFound, format("no sampling session is called {}", json_quote_short(id)),
                      "sampling_session_id");
}

Result<HttpReply> show_sampler(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(ModelSessions* const sessions, sessions_of(context));
    const std::optional<tinker::Sampler> sampler = sessions->sampler(training_tenant(http), http.params.at(0));
    if (!sampler) return no_sampler(http.params.at(0));
    JsonWriter json;
    json.begin_object().field("sampler_id", sampler->id).field("base_model", context.base_name);
    if (!sampler->model_path.empty()) json.field("model_path", sampler->model_path);
    return json_reply(json.end_object().take());
}

// The adapter of a sample, by its session, or by a path; empty: the base.
Result<std::string> adapter_of(ServerContext& context, const HttpRequest& http,
                               const proto::TinkerSampleRequest& request) {
    if (!request.sampler_id.empty()) {
        TRY_ASSIGN(ModelSessions* const sessions, sessions_of(context));
        const std::optional<tinker::Sampler> sampler = sessions->sampler(training_tenant(http), request.sampler_id);
        if (!sampler) return no_sampler(request.sampler_id);
        return sampler->adapter;
    }
    if (!request.base_model.empty()) TRY(check_base(context, request.base_model));
    if (request.model_path.empty()) return std::string();
    TRY_ASSIGN(const proto::TinkerPath path,
               proto::parse_tinker_path(request.model_path, proto::kTinkerSamplerWeights, "model_path"));
    return ModelSessions::adapter_name(path.model_id, path.name);
}

Result<HttpReply> sample(ServerContext& context, const HttpRequest& http) {
    TRY(sessions_of(context));
    TRY_ASSIGN(proto::TinkerSampleRequest request, proto::parse_tinker_sample(http.body, context.vocab_size));
    const std::string tenant = training_tenant(http);
    const uint32_t n_samples = request.generate.n;
    const std::string key = request.seq_id && !request.sampler_id.empty()
                                ? format("{}:{}", request.sampler_id, *request.seq_id)
                                : std::string();
    std::optional<std::string> id = context.tinker_samples->find(tenant, key);
    if (!id) {
        TRY_ASSIGN(request.generate.model, adapter_of(context, http, request));
        TRY(context.tinker_samples->check_room(tenant));
        const size_t n_prompt = request.generate.prompts[0].ids.size();
        if (!request.generate.n_tokens_max && n_prompt < context.n_positions_max)
            request.generate.n_tokens_max = context.n_positions_max - static_cast<uint32_t>(n_prompt);
        const size_t n_unscored = request.n_scored ? n_prompt - std::min<size_t>(*request.n_scored, n_prompt) : 0;
        TRY_ASSIGN(auto generation, Generation::start(context, http, std::move(request.generate)));
        TRY_ASSIGN(id, context.tinker_samples->add(tenant, key, std::move(generation), n_unscored));
    }
    JsonWriter json;
    json.begin_object().field("request_id", *id).key("sample_sequence_ids").begin_array();
    for (uint32_t i = 0; i < n_samples; ++i) json.value(format("{}:{}", *id, i));
    return json_reply(json.end_array().end_object().take());
}

// An error as the result of a future: whose fault it is says whether the client's user has to change something.
HttpReply failed_future(const Error& error) {
    const bool is_users = proto::error_info(error.code).http_status < 500 || error.code == ErrorCode::kNotFinite;
    return json_reply(JsonWriter()
                          .begin_object()
                          .field("error", proto::error_message(error))
                          .field("category", is_users ? "user" : "server")
                          .end_object()
                          .take());
}

HttpReply try_again(std::string_view id, bool waits_for_room) {
    JsonWriter json;
    json.begin_object().field("type", "try_again").field("request_id", id);
    json.field("queue_state", waits_for_room ? "paused_capacity" : "active");
    if (waits_for_room) json.field("queue_state_reason", "waits for those who are trained");
    return json_reply(json.end_object().take());
}

HttpReply protobuf_reply(std::string body) {
    HttpReply reply;
    reply.content_type = std::string(kProtobuf);
    reply.body = std::move(body);
    return reply;
}

Error no_future(std::string_view id) {
    return make_error(ErrorCode::kNotFound,
                      format("no request is called {}, or its result is no longer kept", json_quote_short(id)),
                      "request_id");
}

Result<HttpReply> retrieve_future(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(const ModelSessions* const sessions, sessions_of(context));
    TRY_ASSIGN(const std::string id, proto::parse_tinker_retrieve(http.body));
    const std::string tenant = training_tenant(http);
    // Each holds a worker while it waits.
    const access::SharedPlaces::Place place = context.futures_now.take(holder_of(http));
    if (!place.taken())
        return make_error(ErrorCode::kOverloaded,
                          "as many results are waited for as there may be, or as one key or address may have");
    const auto deadline = std::chrono::steady_clock::now() + kWaitMax;
    const auto gone = [&] { return !context.engine.accepting() || (http.client_gone && http.client_gone()); };
    if (training::is_id(id, "sample-")) {
        const TinkerSamples::Outcome outcome = context.tinker_samples->wait(tenant, id, deadline, gone);
        if (!outcome.is_known) return gone_reply(no_future(id));
        if (outcome.error) return failed_future(*outcome.error);
        return outcome.output ? protobuf_reply(*outcome.output) : try_again(id, false);
    }
    while (true) {
        const ModelSessions::Outcome outcome = sessions->wait(tenant, id, kWaitStep);
        if (!outcome.is_known) return gone_reply(no_future(id));
        if (outcome.result) {
            if (outcome.result->error) return failed_future(*outcome.result->error);
            return outcome.result->is_protobuf ? protobuf_reply(outcome.result->body)
                                               : json_reply(outcome.result->body);
        }
        if (std::chrono::steady_clock::now() >= deadline || gone()) return try_again(id, outcome.waits_for_room);
    }
}

// Samples end; calls of models keep their place in the order.
Result<HttpReply> cancel_future(ServerContext& context, const HttpRequest& http) {
    TRY(sessions_of(context));
    TRY_ASSIGN(const std::string id, proto::parse_tinker_id(http.body, "request_id"));
    if (!context.tinker_samples->remove(training_tenant(http), id)) return gone_reply(no_future(id));
    return json_reply("{}");
}

// What else Tinker has, by its name.
Result<HttpReply> not_there(ServerContext&, const HttpRequest& http) {
    const std::string_view target = std::string_view(http.target).substr(0, http.target.find('?'));
    return make_error(ErrorCode::kNotFound, format("{} {}: this part of Tinker's interface is not there", http.method,
                                                   json_quote_short(target)));
}

template <Result<HttpReply> (*handler)(ServerContext&, const HttpRequest&)>
HttpReply replied(ServerContext& context, const HttpRequest& http) {
    return reply_of(handler(context, http));
}

using access::Access;
using access::Scope;
constexpr Access kAnyKey = Access::any_key();
constexpr Access kSamplesOrTrains = Access::either(Scope::kGenerate, Scope::kTrainingWrite);
constexpr Access kSamplesOrReads = Access::either(Scope::kGenerate, Scope::kTrainingRead);

constexpr ContextRoute kTinkerRoutes[] = {
    {"GET", "/api/v1/healthz", kAnyKey, replied<healthz>},
    {"POST", "/api/v1/client/config", kAnyKey, replied<client_config>},
    {"POST", "/api/v1/client/dynamic_config", kAnyKey, replied<dynamic_config>},
    {"POST", "/api/v1/telemetry", kAnyKey, replied<telemetry>},
    {"GET", "/api/v1/get_server_capabilities", kAnyKey, replied<capabilities>},
    {"POST", "/api/v1/create_session", kSamplesOrTrains, replied<create_session>},
    {"POST", "/api/v1/session_heartbeat", kSamplesOrTrains, replied<heartbeat>},
    {"POST", "/api/v1/sessions/{}/finish", kSamplesOrTrains, replied<finish_session>},
    {"POST", "/api/v1/create_model", kWritesTraining, replied<create_model>},
    {"POST", "/api/v1/unload_model", kWritesTraining, replied<unload_model>},
    {"POST", "/api/v1/get_info", kReadsTraining, replied<get_info>},
    {"POST", "/api/v1/forward_backward", kWritesTraining, replied<forward_backward>},
    {"POST", "/api/v1/optim_step", kWritesTraining, replied<optim_step>},
    {"POST", "/api/v1/save_weights_for_sampler", kWritesTraining, replied<save_for_sampler>},
    {"POST", "/api/v1/save_weights", kWritesTraining, replied<save_state>},
    {"POST", "/api/v1/load_weights", kWritesTraining, replied<load_state>},
    {"POST", "/api/v1/create_sampling_session", kSamplesOrTrains, replied<create_sampler>},
    {"GET", "/api/v1/samplers/{}", kSamplesOrReads, replied<show_sampler>},
    {"POST", "/api/v1/asample", kGenerates, replied<sample>},
    {"POST", "/api/v1/retrieve_future", kSamplesOrReads, replied<retrieve_future>},
    {"POST", "/api/v1/cancel_future", kGenerates, replied<cancel_future>},
    {"GET", "/api/v1/*", kAnyKey, replied<not_there>},
    {"POST", "/api/v1/*", kAnyKey, replied<not_there>},
};

}  // namespace

std::span<const ContextRoute> tinker_routes() { return kTinkerRoutes; }

}  // namespace lorad::server
