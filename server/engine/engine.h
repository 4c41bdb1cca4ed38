// The loop that turns requests into tokens. One thread: admit -> plan -> build -> submit -> publish -> finish.
//
//   take_arrivals    requests from the queue; cancelled ones end and give back their blocks
//   run_tasks        tasks posted by other threads, such as a change of the merged weights
//   plan_and_apply   plan_step (scheduler.h, pure); then preempt, admit, allocate KV blocks
//   submit_step      rows of all planned sequences, those with the same adapter side by side; the device works
//   publish          meanwhile the tokens of an earlier step go out to the HTTP workers
//   finish_step      waits for the oldest step; chooses tokens, ends sequences
//
// Two steps are in flight if the device chooses all tokens of the first: the second is planned and submitted while the
// first runs, and takes the first one's tokens on the device. A token that is not known yet is ~output in `tokens`. If
// its sequence turns out to have ended, one row was computed for nothing. If grammars mask a step's outputs, its draw
// is submitted separately: once the step before is finished, other threads make the masks while this one's forward pass
// runs (mask_pool.h). A step waits for them for a bounded time: a row whose mask is late is computed again in a later
// step, and a row whose masks are known to be slow joins a step only once its mask is there. Steps run in order, so KV
// blocks may be given to another sequence at once; the adapter's lease is kept until the last step that names its slot
// is done.
//
// Only this thread touches sequences, KV blocks and the runner; the queue and the streams connect it to the others.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "model/exec/kv_groups.h"
#include "model/step/step_batch.h"
#include "proto/base/mutex.h"
#include "server/access/time_debts.h"
#include "server/engine/background_budget.h"
#include "server/engine/background_work.h"
#include "server/engine/heartbeat.h"
#include "server/engine/mask_pool.h"
#include "server/engine/plan_ahead.h"
#include "server/engine/prefix_cache.h"
#include "server/engine/request_queue.h"
#include "server/engine/scheduler.h"
#include "server/engine/sequence.h"
#include "server/engine/step_runner.h"
#include "server/engine/step_times.h"
#include "server/engine/token_choice.h"
#include "server/metrics.h"

namespace lorad::server {

// Steps with prompts and decodes take at most this many times as long as those without prompts.
inline constexpr double kStepStretch = 1.8;
// The time of a step of prompts alone, which an arriving request must wait for. ADR 9 has the reason for its size.
inline constexpr double kAloneStepSeconds = 0.1;
inline constexpr uint32_t kPromptOutputsMax = 32;
// How often an idle engine beats, and looks whether the device was lost to others.
inline constexpr std::chrono::milliseconds kIdleTurn{250};
inline constexpr uint32_t kSnapshotTokens = 4096;
// rows of prompts beside decodes, about as many however long their step takes
inline constexpr uint32_t kBesideRowsMin = 16;

struct EngineOptions {
    SchedulerLimits limits;
    uint32_t n_kv_blocks = 0;
    uint32_t n_waiting_max = 1024;
    uint32_t n_sampling_threads = 1;  // that sample a step's tokens, with the engine's own thread
    // The longest wait of a step for masks while tokens of others wait with it.
    std::chrono::milliseconds mask_wait{15};
    bool draws_on_device = true;  // false: the host draws, and the next step waits for it
    bool prefix_cache = true;     // KV blocks of requests with an identity are used again
    uint64_t n_waiting_tokens_max = std::numeric_limits<uint64_t>::max();  // of waiting prompts
    std::chrono::milliseconds request_time_max{0};                         // from arrival to the end; 0: no limit
    std::chrono::milliseconds starvation_bound{10000};                     // fair_share.h; 0: none
    // Rows of prompts in a step beside decodes; 0: as many as keep it below kStepStretch times what
    // a step without them takes.
    uint32_t n_prefill_rows_max = 0;
    // The time, for tests; empty: the steady clock's.
    std::function<std::chrono::steady_clock::time_point()> clock = {};
    // Outputs of a step beyond one for each sequence: for the log-probabilities of prompts, which
    // advance by as many rows in a step. The runner takes n_sequences_max and these.
    uint32_t n_prompt_outputs_max = kPromptOutputsMax;
    uint32_t n_short_text_tokens = 0;  // model::short_text_tokens()
    // Work that nobody waits for, and its part of the device; null: none. Outlives the engine.
    BackgroundWork* background = nullptr;
    BackgroundShare background_share = {};
    std::chrono::microseconds background_slice{10'000};  // while nobody is served: the longest wait of a new request
    // model::has_state(): each running sequence has one of n_sequences_max slots, and no row is computed twice on it
    bool has_state = false;
    // slots behind those, for states of prefixes (state_snapshots.h); such a model has a prefix cache only with some
    uint32_t n_snapshots = 0;
    uint32_t snapshot_tokens = kSnapshotTokens;  // distance between kept states of a long prompt
    // Blocks of the layers that see a window (model/exec/kv_groups.h), where they are apart; as many as
    // window_blocks_max() of the limits, and more for the prefix cache.
    model::KvGroups groups = {};
    uint32_t n_window_blocks = 0;
};

// An adapter or mix that is part of the merged weights. Steps whose rows all belong to it run on
// them, without LoRA; all others run on the pristine weights, this mix's requests among them too.
struct MergedMix {
    std::vector<LoraUse> uses;
    std::shared_ptr<const model::MergedWeights> weights;
    std::shared_ptr<const void> lease;  // on the adapters in those slots
};

class Engine {
  public:
    Engine(StepRunner& runner, Metrics& metrics, const EngineOptions& options);
    ~Engine();  // cancels what still runs

    void start();

    // HTTP workers. Sets id and arrival. kOverloaded, kDraining, or kContextLengthExceeded where
    // the request could never fit the KV cache; otherwise the stream gets exactly one ending.
    Status submit(Request request) { return submit(std::span(&request, 1)); }
    // The same for all answers to one HTTP request: the queue takes all of them or none.
    Status submit(std::span<Request> group);

    // HTTP workers, before a request costs anything: kOverloaded or kDraining where submit() would
    // say so to the smallest request.
    Status check_room() const {
        Status room = queue_.check_room();
        if (!room.ok()) metrics_.on_refused();
        return room;
    }

    const EngineOptions& options() const { return options_; }

    // Any thread but the engine's: refuses new requests, lets the running ones finish until
    // `timeout`, then ends the rest with kDraining and stops the thread.
    void drain(std::chrono::milliseconds timeout);
    // The device gave up; every stream has its error. The process should end for its supervisor.
    bool failed() const { return failed_.load(); }
    bool accepting() const { return !failed_.load() && !draining_.load(); }
    // Any thread: of the device, that background work has had.
    double background_seconds() const { return double(background_us_.load()) * 1e-6; }
    // Any thread: background work has come.
    void wake() { queue_.wake(); }
    // Any thread: the loop's turns. An idle engine turns every kIdleTurn; a turn takes at most a step, a rest before it
    // (plan_ahead.h) and what is posted.
    Heartbeat heartbeat() const { return pulse_.read(); }

    // Any thread: runs the task on the engine's thread between two steps. After the last step it is
    // dropped.
    void post(std::function<void()> task);
    // Any thread; holds from one of the next steps on.
    void set_merged(std::optional<MergedMix> mix);
    // Any thread. Called on the engine's thread for every step with the adapters that all of its rows
    // have, or none, and its number of rows. After this returns the old one is not called any more.
    using StepWatcher = std::function<void(std::span<const LoraUse> uses, uint32_t n_rows)>;
    void watch_steps(StepWatcher watcher);

    // One turn of the loop on the calling thread, for tests without a thread. False if there was
    // nothing to do.
    bool step();

  private:
    struct Publication {
        std::shared_ptr<TokenStream> stream;
        TokenId token = -1;
        std::optional<StreamEnd> end;
        std::optional<proto::TokenLogprobs> logprobs = {};       // for the token
        std::vector<proto::TokenLogprobs> prompt_logprobs = {};  // before it
        std::vector<float> embedding = {};
    };
    struct Planned {
        Sequence* sequence;
        uint32_t n_rows;
        int32_t output = -1;    // index in the batch's outputs, -1 for a chunk that ends before the
                                // known tokens do
        uint32_t position = 0;  // of the token chosen from the output
        // Outputs that are compared with the prompt's own tokens from prompt_position on.
        uint32_t first_prompt_output = 0, n_prompt_outputs = 0, prompt_position = 0;
        int32_t mask = -1;  // index in the batch's masks
    };
    struct Flight {
        std::vector<Planned> planned;
        uint32_t n_outputs = 0;
        uint32_t n_masks = 0;
        bool is_prepared = false;   // its grammars' masks are made, and its draw is submitted
        bool is_disturbed = false;  // something was recorded while it was submitted or in flight: its time says nothing
        StepTimes::Prompts prompts;
        uint32_t prompt_context = 0;  // the longest that a row of a prompt sees
        double n_prompt_rows = 0;     // without decodes: the cost of its rows, in rows at prompt_context
        PlanAhead::Kind kind;
        Metrics::Step metrics;
        std::chrono::steady_clock::time_point submitted;
    };
    // An ended sequence that steps in flight still name.
    struct Retired {
        std::unique_ptr<Sequence> sequence;
        uint64_t until_step = 0;
    };

    void run();
    void rest();
    void run_tasks();
    std::span<const LoraUse> common_uses() const;
    void take_arrivals();
    void drop_cancelled();  // and those whose adapter was revoked or whose time is over
    void end_late(Sequence& sequence);
    bool may_plan() const;
    std::chrono::steady_clock::time_point time_now() const;
    uint64_t now_ms() const;
    void order_waiting();
    void make_views();
    SequenceView waiting_view(Sequence& sequence, uint32_t n_prompt_rows_max);
    void apply(const StepPlan& plan);
    bool plan_and_apply();
    void deal_prompts();
    void add_prompt(const Sequence& sequence, uint32_t index, SequenceView& view, uint32_t n_decodes);
    void promote_starving_prompts();
    void admit(uint32_t n_admitted);
    void preempt(Sequence& sequence, bool has_yielded);
    void restart_long_texts();
    PrefixCache::Match find_prefix(Sequence& sequence);
    void take_prefix(Sequence& sequence, const PrefixCache::Match& match);
    PrefixCache::Match shorten(Sequence& sequence, const PrefixCache::Match& match,
                               std::span<const BlockIdentity> prefix, bool or_merged) const;
    std::vector<bool> find_windows(const PrefixCache::Match& match, std::span<const BlockIdentity> prefix) const;
    void take_windows(Sequence& sequence, const PrefixCache::Match& match);
    void allocate_windows(Sequence& sequence);
    void give_back_windows(Sequence& sequence);
    std::span<const BlockId> held_windows(const Sequence& sequence) const {
        return std::span(sequence.window_blocks).subspan(sequence.n_given_back);
    }
    uint32_t kept_tokens(const Sequence& sequence) const;
    void take_state(Sequence& sequence, const PrefixCache::Match& match);
    void take_state_slot(Sequence& sequence);
    void plan_saved_states(Sequence& sequence, uint32_t n_rows);
    void save_state(Sequence& sequence, uint32_t n_rows, uint32_t n_tokens, StateSnapshots::Worth worth, bool replaces);
    StateSnapshots::Name state_name(Sequence& sequence, uint32_t n_tokens) const;
    void publish_states(Sequence& sequence);
    void drop_saved_states(Sequence& sequence);
    void forget_content(Sequence& sequence);
    void release_state(Sequence& sequence);
    void release_blocks(Sequence& sequence);
    void publish_blocks(Sequence& sequence);
    Status submit_step();
    void add_to_step(Planned& planned, Flight& flight);
    uint32_t add_rows(const Planned& planned);
    void feed_back();
    void describe_step(Flight& flight) const;
    double n_prompt_rows(const Flight& flight) const;
    void note_recordings();
    Status prepare_draw();
    bool has_others_to_keep_waiting() const;
    void begin_mask(Sequence& sequence);
    bool has_rows_that_wait_for_no_mask(const Flight& flight) const;
    void leave_out_late(Flight& flight, double waited_s);
    void charge_masks(double waited_s);
    void publish();
    Status finish_step();
    uint32_t prompt_rows_max() const;
    int32_t add_output(const Sequence& sequence, uint32_t row, uint32_t position);
    void add_prompt_outputs(Planned& planned, uint32_t first_row);
    void list_choices(const Flight& flight);
    void take_prompt_logprobs(const StepResult& result);
    void set_token(const Planned& planned, TokenId token, TokenChoice& choice,
                   std::chrono::steady_clock::time_point now);
    void take_token(Sequence& sequence, TokenId token, TokenChoice& choice, std::chrono::steady_clock::time_point now);
    void take_embedding(const Planned& planned, TokenId token, const StepResult& result,
                        std::chrono::steady_clock::time_point now);
    void end_not_finite(Sequence& sequence, uint32_t position);
    Metrics::Finished finished(const Sequence& sequence, FinishReason reason) const;
    void end_sequence(Sequence& sequence, StreamEnd end);
    void retire_ended();
    void refuse_step(const Error& error);
    void fail(const Error& error);
    void finish_flights();
    void end_all(const Error& error);
    void update_gauges();
    bool run_background(double budget_s, bool waits);
    void background_behind_step();

    StepRunner& runner_;
    Metrics& metrics_;
    const EngineOptions options_;
    RequestQueue queue_;
    std::atomic<RequestId> next_id_{1};
    std::atomic<bool> failed_{false}, draining_{false}, stop_now_{false};
    Pulse pulse_;  // turned by run()
    std::atomic<uint64_t> background_us_{0};

    // Engine thread.
    PrefixCache blocks_;
    PrefixCache windows_;                     // blocks of the window group
    std::vector<uint32_t> free_state_slots_;  // with has_state
    StateSnapshots snapshots_;
    std::vector<gpu::StateSave> state_saves_;        // of the rows being added
    std::vector<StateSnapshots::Name> saved_names_;  // of the step being made
    FairShare fair_share_;
    StepTimes step_times_;
    std::vector<std::unique_ptr<Sequence>> running_;  // promoted ones, then by priority and arrival
    std::vector<std::unique_ptr<Sequence>> waiting_;
    std::vector<FairShare::Candidate> order_;  // admission order of the waiting ones
    uint64_t n_arrived_ = 0;
    uint64_t next_starvation_look_ms_ = 0;
    std::vector<Planned> planned_;  // of the step being made
    std::deque<Flight> in_flight_;  // oldest first, at most two
    std::vector<Retired> retired_;
    uint64_t n_submitted_ = 0, n_finished_ = 0, n_recordings_ = 0;
    std::chrono::steady_clock::time_point last_finish_;
    PlanAhead plan_ahead_;
    BackgroundWork* const background_;
    BackgroundBudget background_budget_;
    double background_budget_s_ = 0;  // for work submitted behind a step, not yet finished
    double last_step_s_ = 0;          // of the last finished step
    bool was_last_quiet_ = true;      // nothing else ran in its time
    bool next_is_disturbed_ = false;  // the step that is submitted next runs behind background work
    double rested_s_ = 0;             // before making the present step
    std::vector<Publication> publications_;
    std::vector<SequenceView> running_views_, waiting_views_;
    std::vector<PrefixCache::Match> matches_;  // by waiting_views_
    std::vector<FairShare::Prompt> prompts_;   // prompts that may have rows in the step
    std::vector<PromptChunk> prompt_chunks_;
    model::StepBatch batch_;
    TokenChooser chooser_;
    MaskPool masks_;
    // A tenant owes the time that steps have waited for its masks; the debt falls by a hundredth of the time that
    // passes. The masks of a tenant that owes more than owed_max seconds are made without any step waiting, and its
    // rows join a step when their masks are ready.
    access::TimeDebts mask_debts_{{.forgotten_per_second = 0.01, .owed_max = 0.02}};
    uint32_t n_held_ = 0;                      // running ones that only wait for a mask
    bool has_others_to_keep_waiting_ = false;  // at the begin of the turn
    std::vector<TokenChoice> choices_;         // of one step in flight
    std::vector<Sequence*> choosers_;          // by choice, the sequence it is for
    std::string active_running_, active_waiting_;

    std::optional<MergedMix> merged_;

    Mutex task_mutex_;
    std::vector<std::function<void()>> tasks_ GUARDED_BY(task_mutex_);
    Mutex watch_mutex_;  // held while the watcher runs
    StepWatcher watcher_ GUARDED_BY(watch_mutex_);

    Mutex idle_mutex_;
    Condition idle_changed_;
    bool thread_ended_ GUARDED_BY(idle_mutex_) = false;
    std::thread thread_;
};

}  // namespace lorad::server
