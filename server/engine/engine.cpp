#include "server/engine/engine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "model/step/step_shape.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/base/rounding.h"
#include "proto/base/thread.h"

namespace lorad::server {

using Clock = std::chrono::steady_clock;

Engine::Engine(StepRunner& runner, Metrics& metrics, const EngineOptions& options)
    : runner_(runner),
      metrics_(metrics),
      options_(options),
      queue_(options.n_waiting_max, options.n_waiting_tokens_max),
      blocks_(options.n_kv_blocks),
      windows_(options.n_window_blocks),
      snapshots_(options.limits.n_sequences_max, options.n_snapshots),
      fair_share_(uint64_t(options.starvation_bound.count()), options.limits.n_rows_max),
      step_times_(RowSizes(model::buckets_up_to(options.limits.n_rows_max), options.limits.n_rows_max), kBesideRowsMin,
                  kStepStretch, kAloneStepSeconds),
      background_(options.background),
      background_budget_(options.background_share),
      chooser_(options.n_sampling_threads),
      masks_(std::max(2u, options.n_sampling_threads), std::max(2u, options.n_sampling_threads),
             [this] { queue_.wake(); }) {
    CHECK(!options_.has_state || !options_.prefix_cache || options_.n_snapshots > 0);
    CHECK(options_.groups.has_windows() == (options_.n_window_blocks > 0));
    CHECK(!options_.groups.has_windows() ||
          options_.n_window_blocks >=
              options_.groups.window_blocks_max(options_.limits.n_sequences_max, options_.limits.n_rows_max));
    for (uint32_t slot = options_.limits.n_sequences_max; options_.has_state && slot > 0; --slot)
        free_state_slots_.push_back(slot - 1);
}

Clock::time_point Engine::time_now() const { return options_.clock ? options_.clock() : Clock::now(); }

uint64_t Engine::now_ms() const {
    return uint64_t(std::chrono::duration_cast<std::chrono::milliseconds>(time_now().time_since_epoch()).count());
}

Engine::~Engine() {
    drain(std::chrono::milliseconds(0));
    finish_flights();
    end_all(make_error(ErrorCode::kDraining, "the server has stopped"));
    publish();
}

void Engine::start() {
    CHECK(!thread_.joinable());
    // It steps through clients' grammars, as the threads that sample do. Where it cannot start, main() says what the
    // system says.
    if (!start_thread(thread_, [this] { run(); }, kBigStackBytes)) thread_ = std::thread([this] { run(); });
}

Status Engine::submit(std::span<Request> group) {
    for (Request& request : group) {
        CHECK(!request.prompt.empty() && request.n_tokens_max > 0 && request.stream);
        // The last token chosen is never fed back, so it needs no KV entry.
        uint64_t n_positions = uint64_t(request.prompt.size()) + request.n_tokens_max - 1;
        uint64_t n_blocks = ceil_div(n_positions, options_.limits.block_tokens);
        if (n_blocks > options_.n_kv_blocks) {
            return make_error(ErrorCode::kContextLengthExceeded,
                              format("prompt and max_tokens need {} KV cache blocks of {} tokens, the server has {}",
                                     n_blocks, options_.limits.block_tokens, options_.n_kv_blocks));
        }
        request.id = next_id_.fetch_add(1);
        request.arrived = time_now();
    }
    Status taken = queue_.push(group);
    if (!taken.ok()) metrics_.on_refused();
    return taken;
}

void Engine::drain(std::chrono::milliseconds timeout) {
    draining_ = true;
    queue_.close(make_error(ErrorCode::kDraining, "the server is shutting down"));
    if (!thread_.joinable()) return;
    {
        MutexLock lock(idle_mutex_);
        idle_changed_.wait_for(lock, timeout, [this]() REQUIRES(idle_mutex_) { return thread_ended_; });
    }
    stop_now_ = true;
    queue_.wake();
    thread_.join();
}

void Engine::run() {
    name_thread("lorad-engine");
    for (;;) {
        pulse_.beat();
        rest();
        bool worked = step();
        if (stop_now_ || failed_) break;
        if (worked) continue;
        if (run_background(std::chrono::duration<double>(options_.background_slice).count(), true)) continue;
        // There is nothing to compute: only an arrival, a drain or a stop changes that.
        if (draining_ && queue_.n_waiting() == 0 && n_held_ == 0) break;
        queue_.wait(kIdleTurn);
    }
    finish_flights();
    end_all(make_error(ErrorCode::kDraining, "the server is shutting down"));
    publish();
    pulse_.end();
    MutexLock lock(idle_mutex_);
    thread_ended_ = true;
    idle_changed_.notify_all();
}

// Until the step in flight is nearly done; see plan_ahead.h.
void Engine::rest() {
    rested_s_ = 0;
    if (in_flight_.size() != 1 || !may_plan()) return;
    const Flight& flight = in_flight_.front();
    const std::chrono::duration<double> gone = time_now() - std::max(flight.submitted, last_finish_);
    const double rest_s = plan_ahead_.rest_s(flight.kind, gone.count());
    if (rest_s <= 0) return;
    publish();
    update_gauges();
    queue_.rest(std::chrono::duration<double>(rest_s));
    rested_s_ = rest_s;
}

void Engine::post(std::function<void()> task) {
    {
        MutexLock lock(task_mutex_);
        tasks_.push_back(std::move(task));
    }
    queue_.wake();
}

void Engine::run_tasks() {
    std::vector<std::function<void()>> tasks;
    {
        MutexLock lock(task_mutex_);
        tasks.swap(tasks_);
    }
    for (const auto& task : tasks) task();
}

void Engine::set_merged(std::optional<MergedMix> mix) {
    post([this, mix = std::move(mix)] {
        merged_ = mix;
        runner_.use_merged(mix ? mix->weights : nullptr);
    });
}

void Engine::watch_steps(StepWatcher watcher) {
    MutexLock lock(watch_mutex_);
    watcher_ = std::move(watcher);
}

bool Engine::step() {
    // Uploads and merges find a lost device as well; then not even an idle engine says that it can serve.
    Status done = runner_.health();
    if (!done.ok()) {
        fail(done.error());
        return false;
    }
    take_arrivals();
    run_tasks();  // after the queue's wake-up was taken back
    drop_cancelled();
    has_others_to_keep_waiting_ = has_others_to_keep_waiting();
    bool planned = may_plan() && plan_and_apply();
    const bool worked = planned || !in_flight_.empty();
    if (planned) {
        done = submit_step();
        planned = done.ok();
        if (!done.ok() &&
            (done.error().code == ErrorCode::kOutOfMemory || done.error().code == ErrorCode::kKernelRefused)) {
            refuse_step(done.error());
            done = ok_status();
        }
    }
    publish();
    update_gauges();
    if (done.ok()) done = prepare_draw();
    // With two steps in flight, or nothing to add to the one there is, wait for the oldest.
    if (done.ok() && (in_flight_.size() > 1 || (!in_flight_.empty() && (!planned || !may_plan())))) {
        done = finish_step();
        if (done.ok()) done = prepare_draw();
        if (done.ok()) background_behind_step();
    }
    if (!done.ok()) fail(done.error());
    if (worked || n_held_ == 0 || failed_) return worked;
    queue_.wait(kIdleTurn);  // a mask wakes it
    return true;
}

// Another step can be made before the one in flight is done if the device itself chooses all of its
// tokens.
bool Engine::may_plan() const {
    if (in_flight_.empty()) return true;
    if (in_flight_.size() > 1) return false;
    const std::vector<Planned>& planned = in_flight_.front().planned;
    return std::all_of(planned.begin(), planned.end(), [](const Planned& p) {
        return p.output < 0 || p.sequence->ended || p.sequence->device_chooses(p.position);
    });
}

void Engine::take_arrivals() {
    for (Request& request : queue_.drain()) {
        auto sequence = std::make_unique<Sequence>(std::move(request), options_.draws_on_device);
        sequence->arrival = n_arrived_++;
        sequence->arrived_ms = now_ms();
        sequence->ticket =
            fair_share_.enter(sequence->request.tenant, sequence->request.adapter.name, sequence->request.priority);
        waiting_.push_back(std::move(sequence));
    }
}

void Engine::drop_cancelled() {
    Clock::time_point time = time_now();
    auto drop = [&](auto& sequences) {
        for (auto& sequence : sequences) {
            if (auto reason = sequence->request.stream->cancelled())
                end_sequence(*sequence, {*reason, std::nullopt});
            else if (sequence->request.adapter.revoked && sequence->request.adapter.revoked())
                end_sequence(*sequence, {FinishReason::kAdapterRemoved, std::nullopt});
            else if (options_.request_time_max.count() > 0 &&
                     time - sequence->request.arrived >= options_.request_time_max)
                end_late(*sequence);
        }
    };
    drop(running_);
    drop(waiting_);
    retire_ended();
}

// A request that took too long: what there is of its answer stands.
void Engine::end_late(Sequence& sequence) {
    if (sequence.was_admitted) {
        end_sequence(sequence, {FinishReason::kTimeout, std::nullopt});
        return;
    }
    end_sequence(sequence,
                 {FinishReason::kError,
                  make_error(ErrorCode::kOverloaded, format("the server is busy: the request waited {} s for its turn",
                                                            options_.request_time_max.count() / 1000))});
}

// Takes ended sequences off the lists; one that a step in flight names lives until that step is done.
void Engine::retire_ended() {
    auto retire = [this](auto& sequences) {
        for (auto& sequence : sequences) {
            if (sequence->ended) retired_.push_back({std::move(sequence), n_submitted_});
        }
        std::erase(sequences, nullptr);
    };
    retire(running_);
    retire(waiting_);
    std::erase_if(retired_, [this](const Retired& retired) { return retired.until_step <= n_finished_; });
}

// The adapters that all rows of the planned step have; none if they differ or a row has the base.
std::span<const LoraUse> Engine::common_uses() const {
    const std::vector<LoraUse>& uses = planned_.front().sequence->request.adapter.uses;
    bool all_same = std::all_of(planned_.begin(), planned_.end(), [&](const Planned& planned) {
        const AdapterUse& adapter = planned.sequence->request.adapter;
        return adapter.uses == uses && planned.sequence->n_computed >= adapter.from_position;
    });
    return all_same ? std::span(uses) : std::span<const LoraUse>();
}

Status Engine::submit_step() {
    // Rows with the same adapters side by side: the LoRA kernels then read their matrices once for
    // all of them.
    std::stable_sort(planned_.begin(), planned_.end(), [](const Planned& a, const Planned& b) {
        return a.sequence->request.adapter.uses < b.sequence->request.adapter.uses;
    });
    batch_.clear();
    saved_names_.clear();
    std::span<const LoraUse> common = common_uses();
    if (merged_ && !common.empty() && std::ranges::equal(common, merged_->uses)) batch_.set_merged();
    Flight flight;
    const uint64_t time_ms = now_ms();
    for (Planned& planned : planned_) {
        add_to_step(planned, flight);
        planned.sequence->served_ms = time_ms;
    }
    feed_back();
    describe_step(flight);
    flight.planned = planned_;
    flight.is_disturbed = std::exchange(next_is_disturbed_, false);
    flight.submitted = time_now();
    {
        MutexLock lock(watch_mutex_);
        if (watcher_) watcher_(common, batch_.n_rows());
    }
    // Must not come earlier: another sequence of this step might have got the slot to write.
    for (const Planned& planned : planned_) {
        const uint32_t held = std::exchange(planned.sequence->state_from, gpu::kNoState);
        if (held != gpu::kNoState) snapshots_.release(held);
    }
    TRY(runner_.submit(batch_));
    for (const Planned& planned : planned_) publish_states(*planned.sequence);
    in_flight_.push_back(std::move(flight));
    note_recordings();
    ++n_submitted_;
    return ok_status();
}

// The rows of one sequence, and the output behind its last known token.
void Engine::add_to_step(Planned& planned, Flight& flight) {
    Sequence& sequence = *planned.sequence;
    const uint32_t begin = sequence.n_computed, first_row = add_rows(planned);
    add_prompt_outputs(planned, first_row);
    sequence.last_step = n_submitted_ + 1;
    sequence.last_rows = begin;
    sequence.n_computed += planned.n_rows;
    publish_blocks(sequence);
    const bool is_decode = planned.n_rows == 1 && sequence.n_computed == sequence.n_known();
    if (!is_decode) {
        StepTimes::Prompts& prompts = flight.prompts;
        prompts.least_context = prompts.n_rows == 0 ? begin : std::min(prompts.least_context, begin);
        prompts.most_context = std::max(prompts.most_context, begin);
        prompts.n_rows += planned.n_rows;
        flight.prompt_context = std::max(flight.prompt_context, sequence.n_computed);
        fair_share_.computed(sequence.ticket, planned.n_rows);
    }
    if (sequence.n_computed < sequence.n_known()) return;
    planned.position = sequence.n_known();
    const uint32_t n_masks = batch_.n_masks();
    planned.output = add_output(sequence, first_row + planned.n_rows - 1, planned.position);
    if (batch_.n_masks() > n_masks) planned.mask = int32_t(n_masks);
}

// To the batch; the index of the first.
uint32_t Engine::add_rows(const Planned& planned) {
    Sequence& sequence = *planned.sequence;
    std::span<const TokenId> tokens(sequence.tokens.data() + sequence.n_computed, planned.n_rows);
    model::RowAdapters row_adapters = sequence.request.adapter.rows();
    row_adapters.rope_begin = sequence.is_long ? options_.n_short_text_tokens : 0;
    if (batch_.is_merged())
        sequence.first_merged_block =
            std::min(sequence.first_merged_block, sequence.n_computed / options_.limits.block_tokens);
    if (options_.has_state) {
        take_state_slot(sequence);
        plan_saved_states(sequence, planned.n_rows);
        row_adapters.state_slot = sequence.state_slot;
        row_adapters.state_from = sequence.state_from;
        row_adapters.state_saves = state_saves_;
    }
    // If all layers see a window, `blocks` has only names.
    const std::vector<BlockId>& blocks = options_.groups.has_full ? sequence.blocks : sequence.window_blocks;
    if (options_.groups.has_both()) row_adapters.window_blocks = sequence.window_blocks;
    if (tokens.back() >= 0) return batch_.add_rows(tokens, sequence.n_computed, blocks, row_adapters);
    CHECK(tokens.size() == 1);
    return batch_.add_fed_back_row(uint32_t(~tokens[0]), sequence.n_computed, blocks, row_adapters);
}

// The tokens that the device chooses may be rows of the next step, unless they are the last ones wanted.
void Engine::feed_back() {
    for (const Planned& planned : planned_) {
        if (planned.output < 0 || !planned.sequence->device_chooses(planned.position)) continue;
        if (planned.sequence->choice.is_patient()) continue;  // it has a step when its next mask is there
        uint32_t n_generated = planned.position - uint32_t(planned.sequence->request.prompt.size()) + 1;
        if (n_generated < planned.sequence->request.n_tokens_max) planned.sequence->tokens.push_back(~planned.output);
    }
}

// Sets the step's kind, which its time is compared by, and its metrics.
void Engine::describe_step(Flight& flight) const {
    std::set<uint32_t> adapters;  // slots
    for (const Planned& planned : planned_) {
        for (const LoraUse& use : planned.sequence->request.adapter.uses) adapters.insert(use.slot);
    }
    flight.n_outputs = batch_.n_outputs();
    flight.n_masks = batch_.n_masks();
    flight.metrics = {
        batch_.n_rows(),   uint32_t(planned_.size()), uint32_t(adapters.size()), flight.prompts.n_rows, 0.0,
        batch_.is_merged()};
    flight.metrics.is_masked = flight.n_masks > 0;
    flight.metrics.is_ahead = !in_flight_.empty();
    if (flight.prompts.n_rows == batch_.n_rows()) flight.n_prompt_rows = n_prompt_rows(flight);
    flight.kind = {model::bucket_for(batch_.n_rows()),
                   flight.prompts.n_rows == 0 ? 0 : StepTimes::class_of(flight.prompts.most_context) + 1,
                   !adapters.empty()};
}

// After what may have made a recording.
void Engine::note_recordings() {
    const uint64_t before = std::exchange(n_recordings_, runner_.n_recordings());
    if (before == n_recordings_) return;
    for (Flight& disturbed : in_flight_) disturbed.is_disturbed = true;
}

// The output that chooses the token at `position`, or gives the hidden state before it.
int32_t Engine::add_output(const Sequence& sequence, uint32_t row, uint32_t position) {
    bool on_device = sequence.device_chooses(position);
    if (sequence.request.wants_embedding) {
        uint32_t output = batch_.add_output(row, false);
        batch_.want_hidden(output);
        return int32_t(output);
    }
    auto rule = on_device ? sequence.choice.device_rule(sequence.request, position) : std::nullopt;
    return int32_t(rule ? batch_.add_output(row, *rule, sequence.choice.changes(),
                                            sequence.choice.device_allowed(sequence.request))
                        : batch_.add_output(row, !on_device));
}

// If log-probabilities of the prompt are requested, each row scores the token that follows it.
void Engine::add_prompt_outputs(Planned& planned, uint32_t first_row) {
    const Sequence& sequence = *planned.sequence;
    if (!sequence.wants_prompt_outputs()) return;
    uint32_t n_known_already = uint32_t(sequence.choice.prompt_logprobs.size());
    uint32_t begin = std::max(sequence.n_computed, n_known_already);
    uint32_t end = std::min(sequence.n_computed + planned.n_rows, uint32_t(sequence.request.prompt.size()) - 1);
    planned.prompt_position = begin + 1;
    for (uint32_t position = begin; position < end; ++position) {
        uint32_t output = batch_.add_output(first_row + position - sequence.n_computed, true);
        if (planned.n_prompt_outputs++ == 0) planned.first_prompt_output = output;
    }
}

// There was no memory to make the step, or the driver does not make a kernel of it, and nothing of it was run: its
// requests end, all others go on.
void Engine::refuse_step(const Error& error) {
    log_error("a step cannot be made, and its {} requests end: {}", planned_.size(), error.message);
    const bool is_memory = error.code == ErrorCode::kOutOfMemory;
    const Error told =
        make_error(error.code, is_memory ? "the device has no memory left for this request's step"
                                         : "the device's driver does not make a kernel that this request's step needs");
    for (const Planned& planned : planned_) {
        Sequence& sequence = *planned.sequence;
        if (sequence.ended) continue;
        drop_saved_states(sequence);
        blocks_.forget(sequence.blocks);  // some were named, but never written
        windows_.forget(held_windows(sequence));
        sequence.n_published = uint32_t(sequence.blocks.size());
        end_sequence(sequence, {FinishReason::kError, told});
    }
    retire_ended();
}

// The log has the driver's words; clients are told the consequence for them.
void Engine::fail(const Error& error) {
    log_error("the device failed, no more requests are served: {}", error.message);
    failed_ = true;
    const Error told =
        make_error(ErrorCode::kDeviceLost, "the device has failed and the server is ending; try again when it is back");
    queue_.close(told);
    end_all(told);
    publish();
    update_gauges();
}

// Before leases are given up early: the device may still read what they keep.
void Engine::finish_flights() {
    while (!failed_ && !in_flight_.empty()) {
        Status done = finish_step();
        if (!done.ok()) fail(done.error());
    }
}

// The runner is not used any more.
void Engine::end_all(const Error& error) {
    take_arrivals();
    auto end = [&](auto& sequences) {
        for (auto& sequence : sequences) {
            if (!sequence->ended) end_sequence(*sequence, {FinishReason::kError, error});
        }
        sequences.clear();
    };
    end(running_);
    end(waiting_);
    in_flight_.clear();
    retired_.clear();
}

}  // namespace lorad::server
