// The state that the trainers of one base share: kernels, the memory of the passes, and the rounds in which their jobs'
// work is done.
//
// A round is one micro-batch, of one job or of several with few rows each, whose base products then are one; or the
// norms, or the updates, of all jobs that wait for them. A job's bits do not depend on who is in its rounds: its rows
// are cut into micro-batches by itself, sums over rows are its own, and products give few rows the same bits wherever
// they lie.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/command.h"
#include "gpu/device.h"
#include "gpu/kernels/train/train_kernels.h"
#include "gpu/profiler.h"
#include "model/train/piece_parts.h"
#include "model/train/train_job.h"
#include "model/train/train_memory.h"
#include "model/train/train_pass.h"
#include "model/train/train_tables.h"
#include "proto/base/result.h"

namespace lorad::model {

// One thread at a time.
class TrainStage {
  public:
    TrainStage(gpu::Device& on, const ModelConfig& of, const ModelWeights& with)
        : device(on), config(of), weights(with) {}
    ~TrainStage() { wait_for_device(); }
    TrainStage(const TrainStage&) = delete;
    TrainStage& operator=(const TrainStage&) = delete;

    // Runs pieces of busy jobs until one is done or the budget is used up, at least one piece, or a part of one that is
    // longer than the budget. True: one is done. Without `waits` pieces are submitted behind what the device has to do,
    // and are waited for by the next call. After an error all jobs are abandoned.
    Result<bool> run(std::span<const std::shared_ptr<TrainJob>> jobs, std::chrono::microseconds budget, bool waits);
    // Waits for what is submitted, if anything is, and goes on to what comes behind it: a job may be done then.
    Status settle();
    // The job has no work any more. The round that it is in goes on for the others. An update of it that is submitted
    // happens all the same: who goes on with its numbers settles first.
    void leave(const TrainJob& job);
    // Makes the kernels of a step of the job, on the thread that begins it and not where others wait.
    Status warm_up(const std::shared_ptr<TrainJob>& job);

    gpu::Device& device;
    const ModelConfig& config;
    const ModelWeights& weights;
    std::unique_ptr<gpu::TrainKernels> kernels;
    TrainSizes sizes;
    TrainBuffers buffers;
    uint64_t n_bytes = 0, n_bytes_max = 0;            // taken by the passes and all their jobs; that may be
    double device_us = 0;                             // of the device, as far as it was waited for
    std::vector<gpu::DispatchTime>* times = nullptr;  // where each submission's are added

  private:
    // A part of the work that is recorded at once; flops says how long it takes beside others.
    struct Piece {
        std::function<void(gpu::Recorder&)> record;
        double flops = 0;
        PieceKind kind = PieceKind::kOptimizer;
        // Returns true for pieces that take as long as their flops say.
        bool is_long() const {
            return kind == PieceKind::kForward || kind == PieceKind::kHead || kind == PieceKind::kBackward ||
                   kind == PieceKind::kBackwardAgain;
        }
    };
    // Submitted, and not waited for.
    struct Submission {
        std::optional<gpu::CommandBuffer> recording;
        uint64_t value = 0;
        double flops = 0;  // of whole pieces that say how long such take
        double us = 0;     // expected
        bool has_whole = false, has_parts = false, has_begin = false, has_end = false;
        std::chrono::steady_clock::time_point begin;
    };
    struct Member {
        std::shared_ptr<TrainJob> job;
        bool has_left = false;
    };
    // What is made ready before a job's first micro-batch.
    struct First {
        TrainSlot* slot = nullptr;
        bool clears_gradients = false;
    };
    struct Round {
        TrainJob::Phase phase = TrainJob::Phase::kBatches;
        std::vector<Member> members;
        std::vector<Piece> pieces;
        size_t piece_idx = 0;
        // The following are for a micro-batch.
        MicroBatch batch;
        TrainTables tables;
        std::vector<TrainJobRows> rows;                   // of each member
        std::vector<First> first;                         // of members that begin with it
        bool has_backward = false, has_few_rows = false;  // of which others' may be beside
        uint32_t first_trained_layer = 0;
    };

    Status begin_round(std::span<const std::shared_ptr<TrainJob>> jobs);
    std::vector<std::shared_ptr<TrainJob>> batch_members(std::span<const std::shared_ptr<TrainJob>> jobs) const;
    Status begin_batch();
    void list_batch_pieces();
    void begin_rows(gpu::Recorder& recorder) const;
    TrainPass pass() const;
    TrainRows rows() const;
    void record_pieces(gpu::Recorder& recorder, double us_max, double us_wanted, Submission& made);
    Status submit_pieces(double us_max, double us_wanted);
    Status run_waiting(std::span<const std::shared_ptr<TrainJob>> jobs, std::chrono::steady_clock::time_point deadline);
    Status settle_to(size_t n_pending);
    Status settle_first();
    void wait_for_device();
    void give_up_round();
    void end_round();

    gpu::Buffer host_tables_, device_tables_;
    std::optional<Round> round_;
    uint64_t n_rounds_ = 0;
    double flops_per_us_ = 0;         // of the last layers that were recorded whole; 0: not known
    PieceParts parts_;                // of the round's next piece
    std::deque<Submission> pending_;  // of one round, the oldest first
    std::chrono::steady_clock::time_point last_end_;
    bool is_warm_ = false;
};

}  // namespace lorad::model
