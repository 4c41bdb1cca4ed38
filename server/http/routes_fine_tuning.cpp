// /v1/fine_tuning/jobs, as OpenAI's clients call it.
#include <algorithm>
#include <memory>

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "proto/training/fine_tuning_request.h"
#include "proto/training/training_write.h"
#include "server/http/adapter_access.h"
#include "server/http/generate/reply_parts.h"
#include "server/http/place.h"
#include "server/http/tar.h"
#include "server/http/training_access.h"

namespace lorad::server {
namespace {

using training::TrainingService;

constexpr size_t kJobsPageMax = 1000;
constexpr std::chrono::seconds kEventHeartbeat{15};  // proxies close what is silent for long
constexpr std::chrono::milliseconds kEventPoll{500};

Error no_job(std::string_view id) {
    return make_error(ErrorCode::kNotFound, format("no fine-tuning job is called {}", json_quote_short(id)),
                      "fine_tuning_job_id");
}

// The adapter that a job begins with, as name@generation's id: whatever becomes of the name, the job began with this.
Result<std::string> start_of(ServerContext& context, const HttpRequest& http, const proto::FineTuningRequest& request) {
    const bool is_adapter = request.model != context.base_name;
    if (is_adapter && !request.init_from.empty() && request.init_from != request.model)
        return make_error(ErrorCode::kInvalidRequest,
                          "init_from: the model is an adapter already, which is what the job begins with", "init_from");
    const std::string name = is_adapter ? request.model : request.init_from;
    if (name.empty()) return std::string();
    const std::string_view param = is_adapter ? "model" : "init_from";
    const size_t at = name.rfind('@');
    const std::string adapter = name.substr(0, at);
    const std::optional<adapters::AdapterInfo> info =
        may_use(http, adapter) ? context.registry.find(adapter) : std::nullopt;
    if (!info || info->draining) {
        return make_error(
            is_adapter ? ErrorCode::kModelNotFound : ErrorCode::kAdapterNotFound,
            format("{}: neither the base model nor an adapter is called {}", param, json_quote_short(adapter)),
            std::string(param));
    }
    if (!info->mix.empty())
        return make_error(
            ErrorCode::kInvalidRequest,
            format("{}: {} is a mix of adapters, which cannot be trained", param, json_quote_short(adapter)),
            std::string(param));
    if (!request.form_fields.empty()) {
        const std::string& field = request.form_fields.front();
        return make_error(ErrorCode::kInvalidRequest,
                          format("{}: the job goes on with {}, which has its form already; leave the parameter out",
                                 field, json_quote_short(adapter)),
                          field);
    }
    if (at == std::string::npos) return info->generation;
    const std::string generation = name.substr(at + 1);
    const bool is_known =
        generation == info->generation || std::ranges::any_of(info->history, [&](const adapters::PastTarget& past) {
            return past.generation == generation;
        });
    if (!is_known)
        return make_error(ErrorCode::kAdapterNotFound,
                          format("{}: the adapter has no generation {}", param, json_quote_short(generation)),
                          std::string(param));
    return generation;
}

Result<HttpReply> created_of(ServerContext& context, const HttpRequest& http, proto::FineTuningRequest& request) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    TRY_ASSIGN(request.init_from, start_of(context, http, request));
    if (!request.suffix.empty()) {
        const Status named = adapters::check_adapter_name(request.suffix, context.base_name);
        if (!named.ok()) {
            std::string_view why = named.error().message;
            if (why.starts_with("lora_name: ")) why.remove_prefix(std::string_view("lora_name: ").size());
            return make_error(named.error().code, format("suffix: {}", why), "suffix");
        }
        const Status allowed = check_may_name(http, request.suffix);
        if (!allowed.ok()) return make_error(allowed.error().code, allowed.error().message, "suffix");
    } else if (restricted(http) != nullptr) {
        return make_error(ErrorCode::kForbidden,
                          "suffix: this key may use some adapters only: say which one the job is to become", "suffix");
    }
    TRY_ASSIGN(const proto::JobObject job, service->create(training_tenant(http), request));
    return json_reply(proto::job_json(job));
}

// Ignored fields are named whatever becomes of the request.
Result<HttpReply> created(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(proto::FineTuningRequest request, proto::parse_fine_tuning_request(http.body));
    TRY_ASSIGN(const std::string ignored, ignored_fields_header(context, request.ignored_fields));
    HttpReply reply = reply_of(created_of(context, http, request));
    add_ignored_fields(reply, ignored);
    return reply;
}

Result<HttpReply> listed_jobs(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    TRY_ASSIGN(const ListPage page, list_page(http, 20, kJobsPageMax));
    std::vector<proto::JobObject> jobs = service->list(training_tenant(http));
    for (const auto& [key, value] : http.query) {
        if (!key.starts_with("metadata[") || !key.ends_with(']')) continue;
        const std::pair wanted(key.substr(9, key.size() - 10), value);
        std::erase_if(jobs, [&](const proto::JobObject& job) {
            return std::ranges::find(job.metadata, wanted) == job.metadata.end();
        });
    }
    TRY_ASSIGN(const auto part, page_of(std::move(jobs), page, [](const proto::JobObject& job) { return job.id; }));
    std::vector<std::string> objects;
    for (const proto::JobObject& job : part.first) objects.push_back(proto::job_json(job));
    const bool is_any = !part.first.empty();
    return json_reply(proto::list_json(objects, part.second, is_any ? part.first.front().id : "",
                                       is_any ? part.first.back().id : ""));
}

Result<HttpReply> shown_job(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    const std::optional<proto::JobObject> job = service->find(training_tenant(http), http.params.at(0));
    if (!job) return no_job(http.params.at(0));
    return json_reply(proto::job_json(*job));
}

Result<HttpReply> changed_job(ServerContext& context, const HttpRequest& http, training::JobEvent event) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    TRY_ASSIGN(const proto::JobObject job, service->change(training_tenant(http), http.params.at(0), event));
    return json_reply(proto::job_json(job));
}

// The oldest first, then what comes, to the job's end.
void send_job_events(const ServerContext& context, TrainingService& service, const std::string& tenant,
                     const std::string& id, HttpSink& sink) {
    using Clock = std::chrono::steady_clock;
    Clock::time_point sent = Clock::now();
    for (size_t from = 0; context.engine.accepting();) {
        const Result<TrainingService::Events> found = service.events(tenant, id, from, kEventPoll);
        if (!found.ok()) return;
        std::string out;
        for (const proto::JobEventObject& event : found->events)
            out += format("data: {}\n\n", proto::job_event_json(event));
        from += found->events.size();
        if (found->events.empty() && found->is_ended) {
            sink.write("data: [DONE]\n\n");
            return;
        }
        if (out.empty() && Clock::now() - sent >= kEventHeartbeat) out = ": heartbeat\n\n";
        if (out.empty()) {
            if (sink.client_gone()) return;
            continue;
        }
        if (!sink.write(out)) return;
        sent = Clock::now();
    }
}

Result<HttpReply> job_events(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    const std::string& id = http.params.at(0);
    const std::string tenant = training_tenant(http);
    TRY_ASSIGN(TrainingService::Events all, service->events(tenant, id, 0));
    if (http.query_value("stream").value_or("false") == "true" ||
        http.accept.find("text/event-stream") != std::string::npos) {
        auto place = std::make_shared<access::SharedPlaces::Place>(context.watchers_now.take(holder_of(http)));
        if (!place->taken())
            return make_error(ErrorCode::kOverloaded,
                              "as many readers of events as there may be, or as one key or address may have");
        return event_stream([&context, service, tenant, id, place](HttpSink& sink) {
            send_job_events(context, *service, tenant, id, sink);
        });
    }
    TRY_ASSIGN(const ListPage page, list_page(http, 20, kJobsPageMax));
    std::ranges::reverse(all.events);
    TRY_ASSIGN(const auto part,
               page_of(std::move(all.events), page, [](const proto::JobEventObject& event) { return event.id; }));
    std::vector<std::string> objects;
    for (const proto::JobEventObject& event : part.first) objects.push_back(proto::job_event_json(event));
    const bool is_any = !part.first.empty();
    return json_reply(proto::list_json(objects, part.second, is_any ? part.first.front().id : "",
                                       is_any ? part.first.back().id : ""));
}

Result<HttpReply> job_checkpoints(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    TRY_ASSIGN(std::vector<proto::JobCheckpointObject> all,
               service->checkpoints(training_tenant(http), http.params.at(0)));
    TRY_ASSIGN(const ListPage page, list_page(http, 10, kJobsPageMax));
    std::ranges::reverse(all);
    TRY_ASSIGN(const auto part,
               page_of(std::move(all), page, [](const proto::JobCheckpointObject& one) { return one.id; }));
    std::vector<std::string> objects;
    for (const proto::JobCheckpointObject& one : part.first) objects.push_back(proto::job_checkpoint_json(one));
    const bool is_any = !part.first.empty();
    return json_reply(proto::list_json(objects, part.second, is_any ? part.first.front().id : "",
                                       is_any ? part.first.back().id : ""));
}

// A tar of the PEFT folder; ours.
Result<HttpReply> job_adapter(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    const std::string checkpoint(http.query_value("checkpoint").value_or(""));
    const access::SharedPlaces::Place place = context.uploads_now.take(holder_of(http));
    if (!place.taken())
        return make_error(
            ErrorCode::kOverloaded,
            "as many uploads or downloads are under way as there may be, or as one key or address may have");
    TRY_ASSIGN(const std::vector<training::NamedBytes> files,
               service->adapter_files(training_tenant(http), http.params.at(0), checkpoint));
    std::string archive;
    for (const training::NamedBytes& file : files) add_tar_file(archive, file.name, file.content);
    end_tar(archive);
    HttpReply reply;
    reply.content_type = "application/x-tar";
    reply.body = std::move(archive);
    reply.headers.emplace_back("Content-Disposition", format("attachment; filename=\"{}.tar\"", http.params.at(0)));
    return reply;
}

Result<HttpReply> published(ServerContext& context, const HttpRequest& http) {
    TRY_ASSIGN(TrainingService* const service, training_of(context));
    TRY_ASSIGN(const std::string generation,
               service->publish_checkpoint(training_tenant(http), http.params.at(0), http.params.at(1)));
    return json_reply(JsonWriter()
                          .begin_object()
                          .field("object", "fine_tuning.job.checkpoint.published")
                          .field("id", http.params.at(1))
                          .field("generation", generation)
                          .end_object()
                          .take());
}

HttpReply create_job(ServerContext& context, const HttpRequest& http) { return reply_of(created(context, http)); }
HttpReply list_jobs(ServerContext& context, const HttpRequest& http) { return reply_of(listed_jobs(context, http)); }
HttpReply show_job(ServerContext& context, const HttpRequest& http) { return reply_of(shown_job(context, http)); }
HttpReply cancel_job(ServerContext& context, const HttpRequest& http) {
    return reply_of(changed_job(context, http, training::JobEvent::kCancel));
}
HttpReply pause_job(ServerContext& context, const HttpRequest& http) {
    return reply_of(changed_job(context, http, training::JobEvent::kPause));
}
HttpReply resume_job(ServerContext& context, const HttpRequest& http) {
    return reply_of(changed_job(context, http, training::JobEvent::kResume));
}
HttpReply show_events(ServerContext& context, const HttpRequest& http) { return reply_of(job_events(context, http)); }
HttpReply show_checkpoints(ServerContext& context, const HttpRequest& http) {
    return reply_of(job_checkpoints(context, http));
}
HttpReply show_adapter_files(ServerContext& context, const HttpRequest& http) {
    return reply_of(job_adapter(context, http));
}
HttpReply publish_one(ServerContext& context, const HttpRequest& http) { return reply_of(published(context, http)); }

constexpr ContextRoute kFineTuningRoutes[] = {
    {"POST", "/v1/fine_tuning/jobs", kWritesTraining, create_job},
    {"GET", "/v1/fine_tuning/jobs", kReadsTraining, list_jobs},
    {"GET", "/v1/fine_tuning/jobs/{}", kReadsTraining, show_job},
    {"POST", "/v1/fine_tuning/jobs/{}/cancel", kWritesTraining, cancel_job},
    {"POST", "/v1/fine_tuning/jobs/{}/pause", kWritesTraining, pause_job},
    {"POST", "/v1/fine_tuning/jobs/{}/resume", kWritesTraining, resume_job},
    {"GET", "/v1/fine_tuning/jobs/{}/events", kReadsTraining, show_events},
    {"GET", "/v1/fine_tuning/jobs/{}/checkpoints", kReadsTraining, show_checkpoints},
    {"GET", "/v1/fine_tuning/jobs/{}/adapter", kReadsTraining, show_adapter_files},
    {"POST", "/v1/fine_tuning/jobs/{}/checkpoints/{}/publish", kWritesTraining, publish_one},
};

}  // namespace

std::span<const ContextRoute> fine_tuning_routes() { return kFineTuningRoutes; }

}  // namespace lorad::server
