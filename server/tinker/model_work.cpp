// The training thread's part of ModelSessions: calls become work of trainers, and what trainers give becomes results.
// model_files.cpp is the part of the disk's thread.
#include <algorithm>
#include <cmath>
#include <utility>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/json/json.h"
#include "proto/tinker/tinker_data.h"
#include "server/tinker/model_sessions.h"

namespace lorad::server::tinker {
namespace {

using training::StepTrainer;

constexpr double kAlpha = 32.0;  // as Tinker has it, whatever the rank

CallResult failed(const Error& error) { return {.error = error}; }

// The modules of a shape, by PEFT's names.
std::string modules_of(const LoraShape& shape) {
    std::string parts;
    const auto add = [&](bool is_trained, std::string_view part) {
        if (is_trained) parts += format("{}{}", parts.empty() ? "" : "|", part);
    };
    add(shape.trains_attention, R"(.*\.self_attn\..*)");
    add(shape.trains_mlp, R"(.*\.mlp\..*)");
    add(shape.trains_unembed, R"((.*\.)?lm_head)");
    return parts;
}

training::RunPlan plan_of(const LoraShape& shape, uint32_t n_positions) {
    training::RunPlan plan;
    plan.recipe.lora_r = shape.rank;
    plan.recipe.lora_alpha = kAlpha;
    plan.recipe.seed = shape.seed;
    plan.recipe.lora_trainable_modules = {modules_of(shape)};
    plan.n_positions = n_positions;
    return plan;
}

std::string created_json(std::string_view type, std::string_view model, std::string_view path) {
    JsonWriter json;
    json.begin_object().field("type", type).field("model_id", model);
    if (!path.empty()) json.field("path", path);
    return json.end_object().take();
}

Status restore(StepTrainer& trainer, const SavedState& state, bool with_optimizer) {
    TRY(trainer.restore(state.trainer));
    return with_optimizer ? ok_status() : trainer.reset_optimizer();
}

}  // namespace

bool ModelSessions::can_begin(const Model& model) const {
    return model.current == nullptr && !model.waits_for_room && !model.waits_for_state &&
           model.waiting.contains(model.next_seq);
}

bool ModelSessions::has_work() const {
    MutexLock lock(mutex_);
    return std::ranges::any_of(
        models_, [&](const auto& one) REQUIRES(mutex_) { return one.second->ended || can_begin(*one.second); });
}

std::vector<ModelSessions::ModelPtr> ModelSessions::all_models() const {
    MutexLock lock(mutex_);
    std::vector<ModelPtr> models;
    for (const auto& [id, model] : models_) models.push_back(model);
    return models;
}

std::vector<StepTrainer*> ModelSessions::busy() const {
    MutexLock lock(mutex_);
    std::vector<StepTrainer*> trainers;
    for (const auto& [id, model] : models_) {
        if (model->trainer && model->current && !model->is_saving) trainers.push_back(model->trainer.get());
    }
    return trainers;
}

uint32_t ModelSessions::n_trainers() const {
    MutexLock lock(mutex_);
    return static_cast<uint32_t>(
        std::ranges::count_if(models_, [](const auto& one) { return one.second->trainer != nullptr; }));
}

StepTrainer* ModelSessions::any_trainer() const {
    MutexLock lock(mutex_);
    for (const auto& [id, model] : models_) {
        if (model->trainer) return model->trainer.get();
    }
    return nullptr;
}

bool ModelSessions::advance(StepTrainer* beside, uint32_t n_jobs) {
    {
        MutexLock lock(mutex_);
        end_old();
    }
    bool has_let_go = false;
    for (const ModelPtr& model : all_models()) {
        take_done(*model);
        has_let_go |= let_go(model);
    }
    for (const ModelPtr& model : all_models()) {
        // One each time: calls that give results at once keep neither others nor the service's end waiting.
        begin_next(model, beside, n_jobs);
    }
    return has_let_go;
}

void ModelSessions::take_done(Model& model) {
    CallPtr call;
    {
        const MutexLock lock(mutex_);
        if (!model.is_saving) call = model.current;
    }
    if (!call || !model.trainer->is_done()) return;
    complete(model, call, result_of(*call, model.trainer->finish()));
}

void ModelSessions::complete(Model& model, const CallPtr& call, CallResult result) {
    if (result.error) log_debug("a call of the model {} failed: {}", model.id, result.error->message);
    MutexLock lock(mutex_);
    if (model.current == call) {
        model.current.reset();
        model.is_saving = false;
    }
    model.last_call = Clock::now();
    call->content = {};
    call->waits_for_room = false;
    set_result(*call, std::move(result));
}

// True: a trainer was let go.
bool ModelSessions::let_go(const ModelPtr& model) {
    std::vector<CallPtr> left;
    std::vector<std::string> snapshots;
    {
        MutexLock lock(mutex_);
        if (!model->ended) return false;
        // What is being written comes to its end.
        if (model->current && !model->is_saving) left.push_back(std::exchange(model->current, nullptr));
        for (auto& [seq, call] : model->waiting) left.push_back(std::move(call));
        model->waiting.clear();
        snapshots.swap(model->snapshots);
        for (const CallPtr& call : left) {
            call->content = {};
            set_result(*call, failed(*model->ended));
        }
        models_.erase(model->id);
        model->is_gone = true;
        // Models that found no room look again.
        for (const auto& [id, other] : models_) other->waits_for_room = false;
    }
    log_info("the model {} has ended: {}", model->id, model->ended->message);
    if (!snapshots.empty()) {
        disk_.put(model->id, [this, snapshots] {
            for (const std::string& name : snapshots) remove_weights(name);
            return ok_status();
        });
    }
    if (!model->trainer) return false;
    model->trainer->abandon();
    model->trainer.reset();
    return true;
}

void ModelSessions::begin_next(const ModelPtr& model, StepTrainer* beside, uint32_t n_jobs) {
    const uint32_t n_others = n_jobs + n_trainers() - (model->trainer ? 1 : 0);
    CallPtr call;
    {
        MutexLock lock(mutex_);
        if (model->waits_for_room && n_others < model->room_seen) model->waits_for_room = false;
        if (model->ended || !can_begin(*model)) return;
        const auto next = model->waiting.find(model->next_seq);
        call = next->second;
        model->current = call;
    }
    const bool is_creation = call->content.kind == CallKind::kCreate;
    Start start = begin(model, call, beside, n_others);
    {
        MutexLock lock(mutex_);
        if (start.waits) {
            model->current.reset();
            return;
        }
        model->waiting.erase(model->next_seq);
        model->n_waiting_tokens -= call->n_tokens;
        ++model->next_seq;
    }
    if (!start.result) return;
    const std::optional<Error> why = start.result->error;
    complete(*model, call, std::move(*start.result));
    if (!is_creation || !why) return;
    MutexLock lock(mutex_);
    model->ended = why;
}

ModelSessions::Start ModelSessions::begin(const ModelPtr& model, const CallPtr& call, StepTrainer* beside,
                                          uint32_t n_others) {
    const CallContent& content = call->content;
    if (content.refusal) return {.result = failed(*content.refusal)};
    StepTrainer* const trainer = model->trainer.get();
    Status begun = ok_status();
    switch (content.kind) {
        case CallKind::kCreate: return make(model, *call, beside, n_others);
        case CallKind::kForwardBackward: begun = trainer->begin_gradients(content.examples); break;
        case CallKind::kForward: begun = trainer->begin_evaluation(content.examples); break;
        case CallKind::kUpdate: begun = trainer->begin_update(content.optimizer, content.learning_rate); break;
        case CallKind::kSaveForSampler:
        case CallKind::kSaveState: return begin_save(model, call);
        case CallKind::kLoadState: return load_state(model, *call);
    }
    return {.result = begun.ok() ? std::nullopt : std::optional(failed(begun.error()))};
}

ModelSessions::Start ModelSessions::make(const ModelPtr& model, const Call& call, StepTrainer* beside,
                                         uint32_t n_others) {
    const std::string& path = call.content.path;
    std::optional<Result<SavedState>> state;
    LoraShape shape = model->shape;
    if (!path.empty()) {
        state = take_state(model, call);
        if (!state) return {.waits = true};
        if (!state->ok()) return {.result = failed(state->error())};
        shape = (*state)->shape;
    }
    if (beside == nullptr) beside = any_trainer();
    model->plan = plan_of(shape, limits_.n_positions_max);
    model->plan.owner = std::hash<std::string>{}(model->tenant);  // as jobs have it
    Result<training::MadeTrainer> made = make_error(ErrorCode::kOutOfMemory, "as many are trained as may be together");
    if (n_others < limits_.n_together_max) made = host_.make_trainer(model->plan, {}, beside);
    if (!made.ok()) {
        const bool is_room =
            made.error().code == ErrorCode::kOutOfMemory || made.error().code == ErrorCode::kInvalidConfig;
        if (n_others == 0 || !is_room) return {.result = failed(made.error())};
        return wait_for_room(*model, n_others, made.error());
    }
    if (state) {
        const Status restored = restore(*made->trainer, **state, call.content.with_optimizer);
        if (!restored.ok()) return {.result = failed(restored.error())};
    }
    model->trainer = std::move(made->trainer);
    MutexLock lock(mutex_);
    model->shape = shape;
    return {.result = CallResult{.body = created_json(state ? "load_weights" : "create_model", model->id, path)}};
}

// Beside those who are trained.
ModelSessions::Start ModelSessions::wait_for_room(Model& model, uint32_t n_others, const Error& why) {
    MutexLock lock(mutex_);
    model.waits_for_room = true;
    model.room_seen = n_others;
    Call& call = *model.current;
    if (!call.waits_for_room) log_info("the model {} waits for those who are trained: {}", model.id, why.message);
    call.waits_for_room = true;
    return {.waits = true};
}

ModelSessions::Start ModelSessions::load_state(const ModelPtr& model, const Call& call) {
    const std::optional<Result<SavedState>> state = take_state(model, call);
    if (!state) return {.waits = true};
    if (!state->ok()) return {.result = failed(state->error())};
    const Status restored = restore(*model->trainer, **state, call.content.with_optimizer);
    if (!restored.ok()) return {.result = failed(restored.error())};
    return {.result = CallResult{.body = created_json("load_weights", model->id, call.content.path)}};
}

std::optional<Result<SavedState>> ModelSessions::take_state(const ModelPtr& model, const Call& call) {
    {
        MutexLock lock(mutex_);
        if (model->loaded) return std::exchange(model->loaded, std::nullopt);
        model->waits_for_state = true;
    }
    disk_.put(model->id, [this, model, path = call.content.path] {
        Result<SavedState> state = states_.load(model->tenant, path);
        MutexLock lock(mutex_);
        model->loaded = std::move(state);
        model->waits_for_state = false;
        return ok_status();
    });
    return std::nullopt;
}

// What is saved is taken off the device now. The model's next call waits until it is written.
ModelSessions::Start ModelSessions::begin_save(const ModelPtr& model, const CallPtr& call) {
    std::function<CallResult()> write;
    if (call->content.kind == CallKind::kSaveForSampler) {
        Result<model::TrainableAdapter> adapter = model->trainer->adapter();
        if (!adapter.ok()) return {.result = failed(adapter.error())};
        write = [this, model, content = call->content,
                 kept = std::make_shared<const model::TrainableAdapter>(std::move(*adapter))] {
            return save_for_sampler(*model, content, *kept);
        };
    } else {
        Result<std::vector<std::byte>> bytes = model->trainer->checkpoint();
        if (!bytes.ok()) return {.result = failed(bytes.error())};
        write = [this, model, content = call->content,
                 kept = std::make_shared<const SavedState>(SavedState{model->shape, std::move(*bytes)})] {
            return save_state(*model, content, *kept);
        };
    }
    {
        MutexLock lock(mutex_);
        model->is_saving = true;
    }
    disk_.put(model->id, [this, model, call, write = std::move(write)] {
        complete(*model, call, write());
        return ok_status();
    });
    return {};
}

CallResult ModelSessions::result_of(const Call& call, const Result<model::TrainReport>& report) const {
    if (!report.ok()) return failed(report.error());
    if (call.content.kind == CallKind::kUpdate) {
        if (!report->is_applied)
            return failed(make_error(ErrorCode::kNotFinite, "the gradients are not finite: nothing was changed, and "
                                                            "they are forgotten; a lower learning_rate may help"));
        return {.body = JsonWriter()
                            .begin_object()
                            .key("metrics")
                            .begin_object()
                            .field("grad_norm", report->grad_norm)
                            .field("grad_clipped", report->is_clipped ? 1.0 : 0.0)
                            .end_object()
                            .end_object()
                            .take()};
    }
    const std::vector<model::TrainExample>& examples = call.content.examples;
    std::map<std::string, double> metrics = {{"loss:sum", 0.0}};
    std::vector<std::vector<float>> log_probabilities;
    double apart_sum = 0, apart_max = 0;
    uint64_t n_apart = 0;
    for (size_t i = 0; i < examples.size(); ++i) {
        const model::ExampleLoss& loss = report->examples[i];
        metrics["loss:sum"] += loss.loss_sum;
        log_probabilities.push_back(loss.log_probabilities);
        for (size_t t = 0; call.content.is_sampled && t < loss.log_probabilities.size(); ++t) {
            if (examples[i].weights[t] == 0.0f) continue;  // a token of the prompt was not sampled
            const double apart = std::abs(double{loss.log_probabilities[t]} - double{examples[i].sampled[t]});
            apart_sum += apart;
            apart_max = std::max(apart_max, apart);
            ++n_apart;
        }
    }
    if (call.content.kind == CallKind::kForwardBackward && !std::isfinite(metrics["loss:sum"]))
        return failed(make_error(ErrorCode::kNotFinite,
                                 "the loss is not finite: the gradients since the last optim_step are forgotten"));
    if (n_apart > 0) {
        metrics["rollout_train_logprobs_abs_diff:mean"] = apart_sum / static_cast<double>(n_apart);
        metrics["rollout_train_logprobs_abs_diff:max"] = apart_max;
    }
    return {.is_protobuf = true, .body = proto::tinker_forward_backward_output(log_probabilities, metrics)};
}

void ModelSessions::fail(const Error& error) {
    for (const ModelPtr& model : all_models()) {
        CallPtr call;
        {
            const MutexLock lock(mutex_);
            if (!model->is_saving) call = model->current;
        }
        if (!call) continue;
        model->trainer->abandon();
        complete(*model, call,
                 failed(make_error(error.code,
                                   format("{} (gradients since the last optim_step are forgotten)", error.message))));
    }
}

void ModelSessions::end() {
    {
        MutexLock lock(mutex_);
        is_over_ = true;  // none is made any more
    }
    for (const ModelPtr& model : all_models()) {
        {
            MutexLock lock(mutex_);
            model->ended = make_error(ErrorCode::kDraining, "the server ends");
        }
        let_go(model);
    }
    disk_.stop();  // behind what was begun
    MutexLock lock(mutex_);
    changed_.notify_all();
}

}  // namespace lorad::server::tinker
