// Tinker's sessions: models that a client trains call by call, and the futures of its calls. HTTP workers add calls and
// wait for results; the training thread works them off, beside jobs, in the order of each model's calls. Files are
// written and read on a thread of their own: a slow disk holds up the model whose files they are, and nobody's steps.
//
//   create_model ... forward_backward, optim_step, save_weights_for_sampler ... unload_model, or nobody calls for long
//
// Everything is bounded: sessions and models of a tenant, calls and tokens that wait, results that are kept, and the
// time that a model or a session is kept without calls. Nothing of it outlives the process but weights for samplers,
// which are adapters, and states that were saved.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/tinker/tinker_requests.h"
#include "server/tinker/saved_weights.h"
#include "server/tinker/state_store.h"
#include "server/tinker/tinker_call.h"
#include "server/training/called_work.h"
#include "server/training/jobs/disk_thread.h"
#include "server/training/training_host.h"

namespace lorad::server::tinker {

struct SessionLimits {
    uint32_t n_sessions_max = 16;           // of a tenant
    uint32_t n_models_max = 2;              // of a tenant
    uint32_t n_samplers_max = 1024;         // of a tenant; the oldest are forgotten
    uint32_t n_calls_max = 64;              // of a model, that wait
    uint64_t n_tokens_max = 1u << 20;       // of these
    uint32_t n_results_max = 1024;          // of a tenant; the oldest are forgotten
    uint64_t result_bytes_max = 64u << 20;  // of these
    uint32_t n_positions_max = 4096;        // tokens of a sequence
    uint32_t n_snapshots_max = 8;           // weights without a name of a model; the oldest are removed
    uint32_t n_together_max = 4;            // models and jobs
    std::chrono::seconds idle_max{1800};    // without a call a model ends
    std::chrono::seconds silent_max{300};   // without a sign of life a session ends
    std::chrono::seconds result_age_max{600};
};

struct ModelInfo {
    std::string id;
    LoraShape shape;
};

struct Sampler {
    std::string id, tenant;
    std::string adapter;     // name in the registry; empty: the base
    std::string model_path;  // empty: the base
    uint64_t number = 0;
};

// Any thread, but what CalledWork has.
class ModelSessions final : public training::CalledWork {
  public:
    using Clock = std::chrono::steady_clock;
    // Weights of models that another process had are removed where they went with these. `host` outlives it. wake: the
    // training thread, when there is work; any thread.
    ModelSessions(training::TrainingHost& host, StateStore states, SavedWeights weights, const SessionLimits& limits,
                  std::function<void()> wake);

    // kRateLimited: as many as the tenant may have.
    Result<std::string> create_session(const std::string& tenant);
    // kNotFound: there is no such session, or it has ended.
    Status heartbeat(std::string_view tenant, std::string_view session);
    // Ends its models.
    Status finish(std::string_view tenant, std::string_view session);

    struct Pending {
        std::string request_id, model_id;
    };
    // The futures of calls. The same session and number, or model and place in the order: the same future again.
    // kNotFound: no such session or model; kRateLimited, kOverloaded: the bounds; else errors are the future's.
    Result<Pending> create_model(const std::string& tenant, const proto::TinkerCreateModel& request);
    // Begins with a state.
    Result<Pending> create_model(const std::string& tenant, const proto::TinkerLoadState& request);
    Result<Pending> add_call(std::string_view tenant, std::string_view model, uint64_t seq_id, CallContent content);
    // Ends a model; calls that wait fail.
    Result<Pending> unload(const std::string& tenant, std::string_view model);
    Result<ModelInfo> info(std::string_view tenant, std::string_view model) const;
    // The adapter's name of a model's weights under such a name.
    static std::string adapter_name(std::string_view model, std::string_view name);

    // kNotFound: no such session.
    Result<Sampler> create_sampler(const std::string& tenant, const proto::TinkerCreateSampler& request);
    std::optional<Sampler> sampler(std::string_view tenant, std::string_view id) const;
    // The id that a sampling session has by its number.
    static std::string sampler_id(std::string_view session, uint64_t number);
    static std::string session_of(std::string_view model);

    struct Outcome {
        bool is_known = false;
        bool waits_for_room = false;       // beside others who are trained
        std::optional<CallResult> result;  // nothing: it is not there yet
    };
    // Waits for a result, not longer than `timeout`.
    Outcome wait(std::string_view tenant, std::string_view request_id, std::chrono::milliseconds timeout) const;

    const SessionLimits& limits() const { return limits_; }
    uint64_t n_models() const;

    bool has_work() const override;
    bool advance(training::StepTrainer* beside, uint32_t n_jobs) override;
    std::vector<training::StepTrainer*> busy() const override;
    uint32_t n_trainers() const override;
    training::StepTrainer* any_trainer() const override;
    void fail(const Error& error) override;
    void end() override;

  private:
    using CallPtr = std::shared_ptr<Call>;
    struct Session {
        std::string tenant;
        Clock::time_point last_sign;
    };
    struct Model {
        std::string id, tenant, session;
        LoraShape shape;
        std::map<uint64_t, std::string> request_ids;  // of calls, by place in the order: the last ones
        std::map<uint64_t, CallPtr> waiting;          // by place in the order
        uint64_t next_seq = 0;                        // 0: it is made
        uint64_t n_waiting_tokens = 0;
        std::optional<Error> ended;  // why
        Clock::time_point last_call;
        bool waits_for_room = false;
        uint32_t room_seen = 0;  // trainers that there were when it found no room
        CallPtr current;
        bool is_saving = false;                    // current: what it writes is the disk's thread's
        bool waits_for_state = false;              // the next call reads a state, which the disk's thread does
        std::optional<Result<SavedState>> loaded;  // that state
        bool is_gone = false;                      // it has ended, and nothing of it is kept
        std::vector<std::string> snapshots;        // adapters' names, the oldest first
        // The training thread's alone.
        std::unique_ptr<training::StepTrainer> trainer;
        training::RunPlan plan;
    };
    using ModelPtr = std::shared_ptr<Model>;

    Result<Pending> add_model(const std::string& tenant, const std::string& session, uint64_t number,
                              const LoraShape& shape, CallContent content);
    Session* session_at(std::string_view tenant, std::string_view id) REQUIRES(mutex_);
    // Null: the tenant has no such model, or it has ended.
    Model* model_at(std::string_view tenant, std::string_view id) const REQUIRES(mutex_);
    CallPtr new_call(const std::string& tenant, CallContent content) REQUIRES(mutex_);
    void forget_results(std::string_view tenant) REQUIRES(mutex_);
    void set_result(Call& call, CallResult result) REQUIRES(mutex_);
    void end_old() REQUIRES(mutex_);
    bool can_begin(const Model& model) const REQUIRES(mutex_);
    bool is_idle(const Model& model) const REQUIRES(mutex_);
    void add_sampler(Sampler sampler) REQUIRES(mutex_);

    // The training thread's.
    struct Start {
        bool waits = false;                // it has not begun: it is tried again
        std::optional<CallResult> result;  // nothing: it has begun
    };
    std::vector<ModelPtr> all_models() const;
    void take_done(Model& model);
    bool let_go(const ModelPtr& model);
    void begin_next(const ModelPtr& model, training::StepTrainer* beside, uint32_t n_jobs);
    Start begin(const ModelPtr& model, const CallPtr& call, training::StepTrainer* beside, uint32_t n_others);
    Start make(const ModelPtr& model, const Call& call, training::StepTrainer* beside, uint32_t n_others);
    Start wait_for_room(Model& model, uint32_t n_others, const Error& why);
    Start load_state(const ModelPtr& model, const Call& call);
    Start begin_save(const ModelPtr& model, const CallPtr& call);
    // The state that the call begins with; nothing: it is being read.
    std::optional<Result<SavedState>> take_state(const ModelPtr& model, const Call& call);
    CallResult result_of(const Call& call, const Result<model::TrainReport>& report) const;
    // Or the disk's.
    void complete(Model& model, const CallPtr& call, CallResult result);

    // The disk's.
    CallResult save_for_sampler(Model& model, const CallContent& content, const model::TrainableAdapter& adapter);
    CallResult save_state(const Model& model, const CallContent& content, const SavedState& state) const;
    void remove_weights(const std::string& name);

    training::TrainingHost& host_;
    const StateStore states_;
    SavedWeights weights_;  // the disk's thread's
    const SessionLimits limits_;
    const std::function<void()> wake_;
    mutable Mutex mutex_;
    mutable Condition changed_;
    std::map<std::string, Session, std::less<>> sessions_ GUARDED_BY(mutex_);
    std::map<std::string, ModelPtr, std::less<>> models_ GUARDED_BY(mutex_);
    std::map<std::string, CallPtr, std::less<>> calls_ GUARDED_BY(mutex_);  // by request id
    std::map<std::string, Sampler, std::less<>> samplers_ GUARDED_BY(mutex_);
    uint64_t n_samplers_made_ GUARDED_BY(mutex_) = 0;
    bool is_over_ GUARDED_BY(mutex_) = false;
    training::DiskThread disk_;  // last: what it has to write needs the others
};

}  // namespace lorad::server::tinker
