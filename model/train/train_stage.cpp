#include "model/train/train_stage.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>

#include "gpu/queue.h"

namespace lorad::model {
namespace {

using Clock = std::chrono::steady_clock;
using Phase = TrainJob::Phase;

// The estimated time of one submission stays below this, so that no driver takes the device for hung, and that jobs
// which end are seen soon.
std::chrono::microseconds submission_max(const gpu::Device& device) {
    constexpr std::chrono::microseconds kLongest = std::chrono::milliseconds(500);
    return device.submission_max().count() == 0 ? kLongest : std::min(device.submission_max(), kLongest);
}

bool any_is(std::span<const std::shared_ptr<TrainJob>> jobs, Phase phase) {
    return std::ranges::any_of(jobs, [&](const auto& job) { return job->phase == phase; });
}

// The jobs with micro-batches left. Owners take turns, and of each owner its jobs: first one of each owner, then the
// second of each, those first that waited longest.
std::vector<std::shared_ptr<TrainJob>> in_turn(std::span<const std::shared_ptr<TrainJob>> jobs) {
    std::map<uint64_t, uint64_t> last_rounds, n_taken;  // by owner
    for (const auto& job : jobs) {
        uint64_t& last = last_rounds[job->options.owner];
        last = std::max(last, job->last_round);
    }
    std::vector<std::shared_ptr<TrainJob>> waiting;
    std::ranges::copy_if(jobs, std::back_inserter(waiting),
                         [](const auto& job) { return job->phase == Phase::kBatches; });
    std::ranges::stable_sort(waiting, {}, [](const auto& job) { return job->last_round; });
    std::map<const TrainJob*, std::pair<uint64_t, uint64_t>> turns;
    for (const auto& job : waiting) turns[job.get()] = {n_taken[job->options.owner]++, last_rounds[job->options.owner]};
    std::ranges::stable_sort(waiting, {}, [&](const auto& job) { return turns[job.get()]; });
    return waiting;
}

}  // namespace

Result<bool> TrainStage::run(std::span<const std::shared_ptr<TrainJob>> jobs, std::chrono::microseconds budget,
                             bool waits) {
    const auto deadline = Clock::now() + budget;
    Status ran = settle();
    if (ran.ok() && waits) {
        ran = run_waiting(jobs, deadline);
    } else if (ran.ok() && !any_is(jobs, Phase::kDone)) {
        // What settling took was time of the device, too.
        const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
        if (!round_) ran = begin_round(jobs);
        const auto us =
            static_cast<double>(std::clamp(left, std::chrono::microseconds(1), submission_max(device)).count());
        if (ran.ok()) ran = submit_pieces(us, us);
    }
    if (!ran.ok()) {
        give_up_round();
        for (const auto& job : jobs) job->abandon();
        return ran.error();
    }
    return any_is(jobs, Phase::kDone);
}

// The next pieces of a round are recorded while the device works, so that it waits for the host's recording at a
// round's beginning alone.
Status TrainStage::run_waiting(std::span<const std::shared_ptr<TrainJob>> jobs, Clock::time_point deadline) {
    constexpr double kFirstUs = 1000, kNextUs = 8000;  // that a submission is to take, of whole pieces
    const auto us_left = [&] {
        double us = std::chrono::duration<double, std::micro>(deadline - Clock::now()).count();
        for (const Submission& one : pending_) us -= one.us;
        return us;
    };
    const double us_max = static_cast<double>(submission_max(device).count());
    while (!any_is(jobs, Phase::kDone)) {
        if (!round_) TRY(begin_round(jobs));
        TRY(submit_pieces(std::clamp(us_left(), 1.0, us_max), pending_.empty() ? kFirstUs : kNextUs));
        // Parts, and what nothing says the time of, are learned from first.
        const bool goes_on = us_left() > 0 && flops_per_us_ > 0 && round_->piece_idx < round_->pieces.size() &&
                             !pending_.back().has_parts;
        TRY(settle_to(goes_on ? 1 : 0));
        if (Clock::now() < deadline) continue;
        TRY(settle());
        break;
    }
    return ok_status();
}

void TrainStage::leave(const TrainJob& job) {
    if (!round_) return;
    wait_for_device();  // which may work for it
    for (Member& member : round_->members) member.has_left |= member.job.get() == &job;
    if (std::ranges::all_of(round_->members, &Member::has_left)) give_up_round();
}

// If it fails the device is lost, which whoever uses it next is told.
void TrainStage::wait_for_device() {
    if (!pending_.empty()) (void)device.compute_queue().wait(pending_.back().value);
}

void TrainStage::give_up_round() {
    wait_for_device();
    pending_.clear();
    parts_.abandon();
    round_.reset();
}

// Throws the recording away and leaves the job as it was.
Status TrainStage::warm_up(const std::shared_ptr<TrainJob>& job) {
    if (is_warm_ || round_) return ok_status();
    is_warm_ = true;
    const uint64_t last_round = job->last_round;
    TRY_ASSIGN(gpu::Recorder recorder, gpu::Recorder::begin(device));
    const Status begun = begin_round(std::span(&job, 1));
    if (begun.ok()) {
        recorder.begin_part(0, 0);
        for (const Piece& piece : round_->pieces) piece.record(recorder);
        kernels->grad_norm(recorder, job->norm_params());
        kernels->adamw(recorder, job->update_params());
    }
    round_.reset();
    job->last_round = last_round;
    TRY(begun);
    return kernels->status();
}

// Whoever was served the longest time ago of the owner whose turn it is, and beside few rows the few rows of others.
std::vector<std::shared_ptr<TrainJob>> TrainStage::batch_members(
    std::span<const std::shared_ptr<TrainJob>> jobs) const {
    const std::vector<std::shared_ptr<TrainJob>> waiting = in_turn(jobs);
    std::vector<std::shared_ptr<TrainJob>> members;
    CHECK(!waiting.empty());
    const uint32_t n_rows_max = std::min(sizes.n_rows, gpu::kTrainFewRowsMax);
    uint32_t n_rows = 0;
    for (const auto& job : waiting) {
        const bool fits = members.empty() || (members.front()->may_share_batch() && job->may_share_batch() &&
                                              members.front()->has_backward() == job->has_backward() &&
                                              n_rows + job->batch().n_rows() <= n_rows_max);
        if (!fits) continue;
        n_rows += job->batch().n_rows();
        members.push_back(job);
    }
    return members;
}

Status TrainStage::begin_round(std::span<const std::shared_ptr<TrainJob>> jobs) {
    Round& round = round_.emplace();
    round.phase = any_is(jobs, Phase::kNorm)     ? Phase::kNorm
                  : any_is(jobs, Phase::kUpdate) ? Phase::kUpdate
                                                 : Phase::kBatches;
    ++n_rounds_;
    if (round.phase == Phase::kBatches) {
        for (auto& job : batch_members(jobs)) {
            job->last_round = n_rounds_;
            round.members.push_back({std::move(job)});
        }
        return begin_batch();
    }
    for (const auto& job : jobs) {
        if (job->phase != round.phase) continue;
        round.members.push_back({job});
        round.pieces.push_back({[this, job](gpu::Recorder& recorder) {
            if (job->phase == Phase::kNorm) kernels->grad_norm(recorder, job->norm_params());
            if (job->phase == Phase::kUpdate) kernels->adamw(recorder, job->update_params());
        }});
    }
    return ok_status();
}

Status TrainStage::begin_batch() {
    Round& round = *round_;
    std::vector<const MicroBatch*> batches;
    round.first_trained_layer = config.n_layers;
    for (const Member& member : round.members) {
        TrainJob& job = *member.job;
        batches.push_back(&job.batch());
        round.has_backward = job.has_backward();
        round.first_trained_layer = std::min(round.first_trained_layer, job.slot->model.first_trained_layer);
        if (job.batch_idx == 0) round.first.push_back({job.slot.get(), job.clears_gradients()});
    }
    round.has_few_rows = round.members.front().job->may_share_batch();
    round.batch = batches.size() == 1 ? *batches.front() : join_micro_batches(config, batches, sizes.score_elements);
    for (size_t i = 0; i < round.members.size(); ++i) {
        const TrainJob& job = *round.members[i].job;
        round.rows.push_back({job.slot.get(), round.batch.parts[i], job.dropout()});
    }
    round.tables = make_train_tables(config, sizes, round.batch);
    const uint64_t table_bytes = round.tables.bytes.size();
    if (!host_tables_ || host_tables_.size() < table_bytes) {
        const uint64_t wanted = round_up(table_bytes + table_bytes / 2, uint64_t{1} << 12);
        TRY_ASSIGN(host_tables_, device.create_buffer(wanted, gpu::MemoryKind::kHostUpload, "training tables"));
        TRY_ASSIGN(device_tables_, device.create_buffer(wanted, gpu::MemoryKind::kDeviceLocal, "training tables"));
    }
    std::memcpy(host_tables_.mapped().data(), round.tables.bytes.data(), table_bytes);
    list_batch_pieces();
    return ok_status();
}

TrainPass TrainStage::pass() const {
    const TrainSlot& first = *round_->rows.front().slot;
    return TrainPass(
        {*kernels, config, weights, sizes, buffers, first.model, *first.parameters, round_->first_trained_layer});
}

TrainRows TrainStage::rows() const {
    const Round& round = *round_;
    return {round.batch, round.tables, device_tables_.address(), round.rows, round.has_few_rows};
}

// The tables, and what a step begins with.
void TrainStage::begin_rows(gpu::Recorder& recorder) const {
    recorder.copy(host_tables_, 0, device_tables_, 0, round_->tables.bytes.size());
    for (const First& first : round_->first) {
        if (!first.clears_gradients) continue;
        recorder.fill(first.slot->parameters->range(TrainParameters::Range::kGradients), 0,
                      first.slot->parameters->n_elements() * sizeof(float), 0);
    }
    recorder.barrier();
    for (const First& first : round_->first) {
        pass().shadows(recorder, *first.slot);
        pass().inverse_norms(recorder, *first.slot);
        pass().biases(recorder, *first.slot);
    }
}

void TrainStage::list_batch_pieces() {
    Round& round = *round_;
    const bool has_backward = round.has_backward && !round.batch.targets.empty();
    const double n_rows = round.batch.n_rows();
    const LayerWeights& w = weights.layers.front();
    const double layer_flops = 2.0 * n_rows *
                               (double{1} * w.qkv.n * w.qkv.k + double{1} * w.o.n * w.o.k +
                                double{1} * w.gate_up.n * w.gate_up.k + double{1} * w.down.n * w.down.k);
    const double head_flops =
        2.0 * static_cast<double>(round.batch.targets.size()) * config.vocab_size * config.hidden_size;
    round.pieces.push_back({[this](gpu::Recorder& recorder) {
                                begin_rows(recorder);
                                pass().embed(recorder, rows());
                            },
                            layer_flops / 100, PieceKind::kBegin});
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        round.pieces.push_back({[this, layer](gpu::Recorder& recorder) { pass().layer(recorder, rows(), layer); },
                                layer_flops, PieceKind::kForward});
    }
    round.pieces.push_back(
        {[this, has_backward](gpu::Recorder& recorder) { pass().head(recorder, rows(), has_backward); },
         head_flops * (has_backward ? 2 : 1), PieceKind::kHead});
    if (!has_backward) return;
    for (uint32_t layer = config.n_layers; layer-- > round.first_trained_layer;) {
        const bool is_kept = sizes.keeps(layer, config.n_layers);
        round.pieces.push_back(
            {[this, layer](gpu::Recorder& recorder) { pass().layer_backward(recorder, rows(), layer); },
             layer_flops * (is_kept ? 1.2 : 2.2), is_kept ? PieceKind::kBackward : PieceKind::kBackwardAgain});
    }
    if (round.rows.front().slot->model.trains_embedding()) {
        round.pieces.push_back({[this](gpu::Recorder& recorder) { pass().embed_backward(recorder, rows()); },
                                layer_flops / 100, PieceKind::kEmbedBackward});
    }
}

// Records whole pieces for as long as is wanted, at least one, as estimated from the last ones. A piece longer than the
// most that may be is recorded in parts, at least one.
void TrainStage::record_pieces(gpu::Recorder& recorder, double us_max, double us_wanted, Submission& made) {
    Round& round = *round_;
    double& us = made.us;
    const auto us_of = [&](const Piece& piece) {
        // One of which nothing says how long it takes is by itself.
        return !piece.is_long() ? 1.0 : flops_per_us_ > 0 ? piece.flops / flops_per_us_ : us_max;
    };
    const auto fits = [&] {
        if (round.piece_idx == round.pieces.size() || parts_.is_begun()) return false;
        // In one submission, so that numbers are changed only where the round's end says it of the job.
        if (round.phase == Phase::kUpdate) return true;
        const double piece_us = us_of(round.pieces[round.piece_idx]);
        return piece_us <= us_max && (us == 0 || us + piece_us <= std::min(us_max, us_wanted));
    };
    while (fits()) {
        const Piece& piece = round.pieces[round.piece_idx++];
        piece.record(recorder);
        us += us_of(piece);
        made.has_whole = true;
        made.has_begin |= piece.kind == PieceKind::kBegin;
        if (piece.is_long()) made.flops += piece.flops;
    }
    made.has_end = round.piece_idx == round.pieces.size();
    while (round.piece_idx < round.pieces.size()) {
        if (us >= us_wanted) break;
        const Piece& piece = round.pieces[round.piece_idx];
        const double piece_us = us_of(piece);
        if (!parts_.is_begun() && piece_us <= us_max) break;
        made.has_parts = true;
        if (!parts_.record_some(recorder, {piece.record, piece.kind, piece.flops, piece_us}, us_max, us)) break;
        ++round.piece_idx;
    }
}

Status TrainStage::submit_pieces(double us_max, double us_wanted) {
    TRY_ASSIGN(gpu::Recorder recorder,
               gpu::Recorder::begin(device, {.timestamps = times != nullptr, .span_timestamps = times == nullptr}));
    Submission made{.begin = Clock::now()};
    record_pieces(recorder, us_max, us_wanted, made);
    TRY(kernels->status());
    TRY_ASSIGN(made.recording, std::move(recorder).end());
    const gpu::CommandBuffer* recordings[] = {&*made.recording};
    TRY_ASSIGN(made.value, device.compute_queue().submit(recordings));
    pending_.push_back(std::move(made));
    return ok_status();
}

Status TrainStage::settle() { return settle_to(0); }

Status TrainStage::settle_to(size_t n_pending) {
    if (pending_.empty()) return ok_status();
    while (pending_.size() > n_pending) TRY(settle_first());
    if (pending_.empty() && round_->piece_idx == round_->pieces.size()) end_round();
    return ok_status();
}

Status TrainStage::settle_first() {
    TRY(device.compute_queue().wait(pending_.front().value));
    const Submission done = std::move(pending_.front());
    pending_.pop_front();
    TRY_ASSIGN(const std::vector<gpu::DispatchTime> of_recording, gpu::read_dispatch_times(device, *done.recording));
    if (times != nullptr) times->insert(times->end(), of_recording.begin(), of_recording.end());
    // Others' work in front of it does not count.
    double us = 0;
    for (const gpu::DispatchTime& dispatch : of_recording) us += dispatch.us;
    const Clock::time_point now = Clock::now();
    if (us == 0) us = std::chrono::duration<double, std::micro>(now - std::max(done.begin, last_end_)).count();
    last_end_ = now;
    device_us += us;
    // What a step begins with has no flops that say how long it takes; a whole round has nothing else to learn from.
    const bool tells_speed = !done.has_parts && done.flops > 0 && (!done.has_begin || done.has_end);
    if (tells_speed) flops_per_us_ = done.flops / std::max(us, 1.0);
    if (done.has_parts) parts_.learn(done.has_whole ? 0 : us);
    return ok_status();
}

void TrainStage::end_round() {
    const Round round = std::move(*round_);  // jobs that have left end with it
    round_.reset();
    const auto* losses = reinterpret_cast<const gpu::TrainLoss*>(buffers.losses.mapped().data());
    for (size_t i = 0; i < round.members.size(); ++i) {
        if (round.members[i].has_left) continue;
        TrainJob& job = *round.members[i].job;
        if (round.phase == Phase::kBatches)
            job.end_batch(losses + round.batch.parts[i].first_target, round.members.size() > 1);
        if (round.phase == Phase::kNorm) job.end_norm();
        if (round.phase == Phase::kUpdate) job.end_update();
    }
}

}  // namespace lorad::model
