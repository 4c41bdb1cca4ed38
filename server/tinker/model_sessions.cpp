// What any thread may do with sessions; model_work.cpp is the training thread's part.
#include "server/tinker/model_sessions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "server/training/file_store.h"

namespace lorad::server::tinker {
namespace {

constexpr size_t kRequestIdsMax = 256;  // of a model, by which a repeated call is known again
constexpr uint64_t kSeqAheadMax = 4096;

Error no_session(std::string_view id) {
    return make_error(ErrorCode::kNotFound, format("no session is called {}, or it has ended", json_quote_short(id)),
                      "session_id");
}

Error no_model(std::string_view id) {
    return make_error(
        ErrorCode::kNotFound,
        format("no model is called {}, or it has ended: it was unloaded, its session ended, or nobody called it for "
               "long",
               json_quote_short(id)),
        "model_id");
}

std::string model_id_of(std::string_view session, uint64_t number) { return format("{}:train:{}", session, number); }

}  // namespace

ModelSessions::ModelSessions(training::TrainingHost& host, StateStore states, SavedWeights weights,
                             const SessionLimits& limits, std::function<void()> wake)
    : host_(host),
      states_(std::move(states)),
      weights_(std::move(weights)),
      limits_(limits),
      wake_(std::move(wake)),
      disk_([this](const std::string&, const Status&) { wake_(); }) {
    states_.remove_unfinished();
    for (const std::string& name : weights_.temporary()) remove_weights(name);
    disk_.start();
}

Result<std::string> ModelSessions::create_session(const std::string& tenant) {
    MutexLock lock(mutex_);
    // Those of processes that went away make room for new ones.
    const Clock::time_point now = Clock::now();
    std::erase_if(sessions_, [&](const auto& one) { return now - one.second.last_sign > limits_.silent_max; });
    const auto n = std::ranges::count_if(sessions_, [&](const auto& one) { return one.second.tenant == tenant; });
    if (static_cast<uint64_t>(n) >= limits_.n_sessions_max)
        return make_error(ErrorCode::kRateLimited,
                          format("{} sessions of this key have not ended, as many as it may have", n));
    std::string id = training::new_id("ts-");
    sessions_.emplace(id, Session{tenant, now});
    return id;
}

ModelSessions::Session* ModelSessions::session_at(std::string_view tenant, std::string_view id) {
    const auto found = sessions_.find(id);
    return found == sessions_.end() || found->second.tenant != tenant ? nullptr : &found->second;
}

ModelSessions::Model* ModelSessions::model_at(std::string_view tenant, std::string_view id) const {
    const auto found = models_.find(id);
    return found == models_.end() || found->second->tenant != tenant || found->second->ended ? nullptr
                                                                                             : found->second.get();
}

Status ModelSessions::heartbeat(std::string_view tenant, std::string_view session) {
    MutexLock lock(mutex_);
    Session* const found = session_at(tenant, session);
    if (found == nullptr) return no_session(session);
    found->last_sign = Clock::now();
    return ok_status();
}

Status ModelSessions::finish(std::string_view tenant, std::string_view session) {
    {
        MutexLock lock(mutex_);
        if (session_at(tenant, session) == nullptr) return no_session(session);
        sessions_.erase(sessions_.find(session));
        end_old();
    }
    wake_();
    return ok_status();
}

// Returns true also where calls wait for one before them that does not come.
bool ModelSessions::is_idle(const Model& model) const {
    return model.current == nullptr && !model.waits_for_room && !model.waits_for_state &&
           !model.waiting.contains(model.next_seq);
}

// Models whose session has ended, or that nobody calls, end.
void ModelSessions::end_old() {
    const Clock::time_point now = Clock::now();
    std::erase_if(sessions_, [&](const auto& one) { return now - one.second.last_sign > limits_.silent_max; });
    for (const auto& [id, model] : models_) {
        if (model->ended) continue;
        if (!sessions_.contains(model->session))
            model->ended = make_error(ErrorCode::kNotFound, "the session has ended, and its models with it");
        else if (is_idle(*model) && now - model->last_call > limits_.idle_max)
            model->ended = make_error(ErrorCode::kNotFound, format("nobody called the model for {} s: it has ended",
                                                                   limits_.idle_max.count()));
    }
    std::erase_if(calls_, [&](const auto& one) {
        return one.second->result && now - one.second->done_at > limits_.result_age_max;
    });
}

ModelSessions::CallPtr ModelSessions::new_call(const std::string& tenant, CallContent content) {
    auto call = std::make_shared<Call>();
    call->id = training::new_id("req-");
    call->tenant = tenant;
    call->n_tokens = content.n_tokens();
    call->content = std::move(content);
    calls_.emplace(call->id, call);
    return call;
}

// Results that nobody asked for make room, the oldest first.
void ModelSessions::forget_results(std::string_view tenant) {
    std::vector<const Call*> done;
    uint64_t n_bytes = 0;
    for (const auto& [id, call] : calls_) {
        if (call->tenant != tenant || !call->result) continue;
        done.push_back(call.get());
        n_bytes += call->result->body.size();
    }
    if (done.size() <= limits_.n_results_max && n_bytes <= limits_.result_bytes_max) return;
    std::ranges::sort(done, {}, &Call::done_at);
    for (size_t i = 0; i + 1 < done.size(); ++i) {
        if (done.size() - i <= limits_.n_results_max && n_bytes <= limits_.result_bytes_max) break;
        n_bytes -= done[i]->result->body.size();
        calls_.erase(calls_.find(done[i]->id));
    }
}

void ModelSessions::set_result(Call& call, CallResult result) {
    call.result = std::move(result);
    call.done_at = Clock::now();
    forget_results(call.tenant);
    changed_.notify_all();
}

Result<ModelSessions::Pending> ModelSessions::add_model(const std::string& tenant, const std::string& session,
                                                        uint64_t number, const LoraShape& shape, CallContent content) {
    std::string id = model_id_of(session, number);
    CallPtr call;
    {
        MutexLock lock(mutex_);
        if (is_over_) return make_error(ErrorCode::kDraining, "the server ends");
        Session* const found = session_at(tenant, session);
        if (found == nullptr) return no_session(session);
        found->last_sign = Clock::now();
        if (const auto known = models_.find(id); known != models_.end())
            return Pending{known->second->request_ids.at(0), id};
        const auto n = std::ranges::count_if(
            models_, [&](const auto& one) { return one.second->tenant == tenant && !one.second->ended; });
        if (static_cast<uint64_t>(n) >= limits_.n_models_max)
            return make_error(
                ErrorCode::kForbidden,
                format("{} models of this key have not ended, as many as it may have (--training-models); "
                       "end a session or unload one",
                       n));
        auto model = std::make_shared<Model>();
        model->id = id;
        model->tenant = tenant;
        model->session = session;
        model->shape = shape;
        model->last_call = Clock::now();
        call = new_call(tenant, std::move(content));
        model->request_ids.emplace(0, call->id);
        model->waiting.emplace(0, call);
        models_.emplace(id, std::move(model));
    }
    wake_();
    return Pending{call->id, id};
}

Result<ModelSessions::Pending> ModelSessions::create_model(const std::string& tenant,
                                                           const proto::TinkerCreateModel& request) {
    CallContent content;
    content.kind = CallKind::kCreate;
    // A seed that nobody said: another one each time.
    const std::string drawn = training::new_id("");
    const uint64_t seed = request.seed.value_or(std::hash<std::string>{}(drawn) % 1'000'000'007u);
    return add_model(tenant, request.session_id, request.model_seq_id,
                     {request.rank, seed, request.trains_unembed, request.trains_mlp, request.trains_attention},
                     std::move(content));
}

Result<ModelSessions::Pending> ModelSessions::create_model(const std::string& tenant,
                                                           const proto::TinkerLoadState& request) {
    CallContent content;
    content.kind = CallKind::kCreate;
    content.refusal = request.refusal;
    content.path = request.path;
    content.with_optimizer = request.with_optimizer;
    return add_model(tenant, request.session_id, request.model_seq_id, {}, std::move(content));
}

Result<ModelSessions::Pending> ModelSessions::add_call(std::string_view tenant, std::string_view model_id,
                                                       uint64_t seq_id, CallContent content) {
    CallPtr call;
    {
        MutexLock lock(mutex_);
        Model* const found = model_at(tenant, model_id);
        if (found == nullptr) return no_model(model_id);
        Model& model = *found;
        if (seq_id == 0) seq_id = std::max(model.next_seq, model.request_ids.rbegin()->first + 1);
        if (const auto known = model.request_ids.find(seq_id); known != model.request_ids.end())
            return Pending{known->second, model.id};
        if (seq_id < model.next_seq || seq_id > model.next_seq + kSeqAheadMax)
            return make_error(ErrorCode::kInvalidRequest,
                              format("seq_id: {}: the model's next call is {}", seq_id, model.next_seq), "seq_id");
        // The next one is taken always: the others wait for it.
        const uint64_t n_tokens = content.n_tokens();
        if (n_tokens > limits_.n_tokens_max) {
            content.refusal =
                make_error(ErrorCode::kInvalidRequest,
                           format("data: {} tokens in one call: at most {}", n_tokens, limits_.n_tokens_max), "data");
            content.examples.clear();
        } else if (seq_id != model.next_seq && (model.waiting.size() >= limits_.n_calls_max ||
                                                model.n_waiting_tokens + n_tokens > limits_.n_tokens_max)) {
            return make_error(ErrorCode::kOverloaded,
                              format("{} calls with {} tokens of this model wait, as many as may", model.waiting.size(),
                                     model.n_waiting_tokens));
        }
        call = new_call(std::string(tenant), std::move(content));
        model.n_waiting_tokens += call->n_tokens;
        model.last_call = Clock::now();
        model.waiting.emplace(seq_id, call);
        model.request_ids.emplace(seq_id, call->id);
        // But the first, by which create_model is known again.
        while (model.request_ids.size() > kRequestIdsMax) model.request_ids.erase(std::next(model.request_ids.begin()));
    }
    wake_();
    return Pending{call->id, std::string(model_id)};
}

Result<ModelSessions::Pending> ModelSessions::unload(const std::string& tenant, std::string_view model_id) {
    Pending pending;
    {
        MutexLock lock(mutex_);
        Model* const found = model_at(tenant, model_id);
        if (found == nullptr) return no_model(model_id);
        found->ended = make_error(ErrorCode::kNotFound, "the model was unloaded");
        const CallPtr call = new_call(tenant, {});
        set_result(*call, {.body = JsonWriter()
                                       .begin_object()
                                       .field("type", "unload_model")
                                       .field("model_id", model_id)
                                       .end_object()
                                       .take()});
        pending = {call->id, std::string(model_id)};
    }
    wake_();
    return pending;
}

Result<ModelInfo> ModelSessions::info(std::string_view tenant, std::string_view model_id) const {
    MutexLock lock(mutex_);
    const Model* const found = model_at(tenant, model_id);
    if (found == nullptr) return no_model(model_id);
    return ModelInfo{found->id, found->shape};
}

std::string ModelSessions::adapter_name(std::string_view model, std::string_view name) {
    std::string made(model);
    if (const size_t at = made.find(":train:"); at != made.npos) made.replace(at, 7, "-");
    return format("{}-{}", made, name);
}

std::string ModelSessions::sampler_id(std::string_view session, uint64_t number) {
    return format("{}:sample:{}", session, number);
}

std::string ModelSessions::session_of(std::string_view model) {
    return std::string(model.substr(0, model.find(":train:")));
}

void ModelSessions::add_sampler(Sampler sampler) {
    sampler.number = n_samplers_made_++;
    const std::string tenant = sampler.tenant, id = sampler.id;
    samplers_.insert_or_assign(id, std::move(sampler));
    const auto is_own = [&](const auto& one) { return one.second.tenant == tenant; };
    if (static_cast<uint64_t>(std::ranges::count_if(samplers_, is_own)) <= limits_.n_samplers_max) return;
    auto oldest = samplers_.end();
    for (auto one = samplers_.begin(); one != samplers_.end(); ++one) {
        if (is_own(*one) && (oldest == samplers_.end() || one->second.number < oldest->second.number)) oldest = one;
    }
    samplers_.erase(oldest);
}

Result<Sampler> ModelSessions::create_sampler(const std::string& tenant, const proto::TinkerCreateSampler& request) {
    Sampler sampler{.id = sampler_id(request.session_id, request.seq_id), .tenant = tenant};
    if (!request.model_path.empty()) {
        TRY_ASSIGN(const proto::TinkerPath path,
                   proto::parse_tinker_path(request.model_path, proto::kTinkerSamplerWeights, "model_path"));
        sampler.adapter = adapter_name(path.model_id, path.name);
        sampler.model_path = request.model_path;
    }
    MutexLock lock(mutex_);
    if (session_at(tenant, request.session_id) == nullptr) return no_session(request.session_id);
    add_sampler(sampler);
    return sampler;
}

std::optional<Sampler> ModelSessions::sampler(std::string_view tenant, std::string_view id) const {
    MutexLock lock(mutex_);
    const auto found = samplers_.find(id);
    if (found == samplers_.end() || found->second.tenant != tenant) return std::nullopt;
    return found->second;
}

ModelSessions::Outcome ModelSessions::wait(std::string_view tenant, std::string_view request_id,
                                           std::chrono::milliseconds timeout) const {
    MutexLock lock(mutex_);
    const auto found = calls_.find(request_id);
    if (found == calls_.end() || found->second->tenant != tenant) return {};
    const CallPtr call = found->second;
    changed_.wait_for(lock, timeout, [&]() REQUIRES(mutex_) { return call->result.has_value() || is_over_; });
    return {.is_known = true, .waits_for_room = call->waits_for_room, .result = call->result};
}

uint64_t ModelSessions::n_models() const {
    MutexLock lock(mutex_);
    return models_.size();
}

}  // namespace lorad::server::tinker
