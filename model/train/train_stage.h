// What the trainers of one base share: kernels, the memory of the passes, and the rounds in which their jobs' work is
// done.
//
// A round is one micro-batch, of one job or of several with few rows each, whose base products then are one; or the
// norms, or the updates, of all jobs that wait for them. A job's bits do not depend on who is in its rounds: its rows
// are cut into micro-batches by itself, sums over rows are its own, and products give few rows the same bits wherever
// they lie.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/train/train_kernels.h"
#include "gpu/profiler.h"
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

    // Runs pieces of busy jobs until one is done or the budget is used up, at least one piece. True: one is done.
    // After an error all of them are abandoned.
    Result<bool> run(std::span<const std::shared_ptr<TrainJob>> jobs, std::chrono::microseconds budget);
    // The job has no work any more. The round that it is in goes on for the others.
    void leave(const TrainJob& job);

    gpu::Device& device;
    const ModelConfig& config;
    const ModelWeights& weights;
    std::unique_ptr<gpu::TrainKernels> kernels;
    TrainSizes sizes;
    TrainBuffers buffers;
    uint64_t n_bytes = 0, n_bytes_max = 0;            // taken by the passes and all their jobs; that may be
    std::vector<gpu::DispatchTime>* times = nullptr;  // where each submission's are added

  private:
    // A part of the work that is recorded at once; flops says how long it takes beside others.
    struct Piece {
        std::function<void(gpu::Recorder&)> record;
        double flops = 0;
    };
    struct Member {
        std::shared_ptr<TrainJob> job;
        bool has_left = false;
    };
    struct Round {
        TrainJob::Phase phase = TrainJob::Phase::kBatches;
        std::vector<Member> members;
        std::vector<Piece> pieces;
        size_t piece_idx = 0;
        // Of a micro-batch.
        MicroBatch batch;
        TrainTables tables;
        std::vector<TrainJobRows> rows;  // of each member
        std::vector<TrainSlot*> first;   // of members that begin a step or an evaluation
        bool is_step = false;
        uint32_t first_trained_layer = 0;
    };

    Status begin_round(std::span<const std::shared_ptr<TrainJob>> jobs);
    std::vector<std::shared_ptr<TrainJob>> members_of_batch(std::span<const std::shared_ptr<TrainJob>> jobs) const;
    Status begin_batch();
    void list_batch_pieces();
    void begin_rows(gpu::Recorder& recorder) const;
    TrainPass pass() const;
    TrainRows rows();
    Status submit_pieces(std::chrono::microseconds budget);
    void end_round();

    gpu::Buffer host_tables_, device_tables_, host_items_;
    TrainItems items_;  // of the round
    std::optional<Round> round_;
    uint64_t n_rounds_ = 0;
    double flops_per_us_ = 0;  // of the last submission of a micro-batch; 0: not known
};

}  // namespace lorad::model
