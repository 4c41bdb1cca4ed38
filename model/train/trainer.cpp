#include "model/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/train/train_checkpoint.h"
#include "model/train/train_job.h"
#include "model/train/train_sharing.h"
#include "model/train/train_stage.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr double kFreeShare = 0.9;
constexpr uint32_t kRowsMin = 2048;  // of a micro-batch, where nobody says how many

// Where nobody says it: rows with which a layer of a small model takes as long as one of 7 billion weights does with
// kRowsMin (docs/lab/training.md). By the model and the kind of device alone, so that a job that goes on elsewhere has
// the same micro-batches.
uint32_t rows_of(const ModelWeights& weights, const gpu::TrainRungs& rungs) {
    constexpr uint32_t kRowsMax = 8192;
    constexpr double kLayerProducts = 2048.0 * 240e6;
    if (!rungs.has_warpgroups || !rungs.has_flash) return kRowsMin;
    const LayerWeights& w = weights.layers.front();
    double n_weights = 0;
    for (const Matrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) n_weights += double{1} * matrix->n * matrix->k;
    uint32_t rows = kRowsMin;
    while (rows < kRowsMax && 2 * rows * n_weights <= kLayerProducts) rows *= 2;
    return rows;
}

TrainerOptions filled_in(const ModelConfig& config, const ModelWeights& weights, const gpu::TrainRungs& rungs,
                         TrainerOptions options) {
    if (options.n_rows == 0) options.n_rows = rows_of(weights, rungs);
    if (options.n_positions_max == 0) options.n_positions_max = options.n_rows;
    options.n_positions_max = std::min(options.n_positions_max, config.max_positions);
    return options;
}

uint64_t budget_of(const TrainerOptions& options, uint64_t free_bytes) {
    const auto share = static_cast<uint64_t>(static_cast<double>(free_bytes) * kFreeShare);
    return std::min(options.memory_bytes != 0 ? options.memory_bytes : share, free_bytes);
}

// A plan of `filled`, which gets fewer rows where nobody asked for so many and there is no room.
template <typename Plan>
Result<TrainPlan> plan_rows(const TrainerOptions& asked, TrainerOptions& filled, const Plan& plan) {
    Result<TrainPlan> made = plan();
    for (; asked.n_rows == 0 && !made.ok() && filled.n_rows > kRowsMin; made = plan()) filled.n_rows /= 2;
    return made;
}

Status check_learning_rate(double rate) {
    if (std::isfinite(rate) && rate >= 0) return ok_status();
    return make_error(ErrorCode::kInvalidRequest, format("learning rate {}: expected a number from 0 on", rate));
}

Status check_optimizer(const OptimizerSettings& o) {
    const bool is_right = o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1 && o.eps > 0 &&
                          std::isfinite(o.eps) && o.weight_decay >= 0 && std::isfinite(o.weight_decay) &&
                          o.max_grad_norm >= 0 && std::isfinite(o.max_grad_norm);
    if (is_right) return ok_status();
    return make_error(ErrorCode::kInvalidConfig,
                      format("the optimizer's betas have to be from 0 to below 1, eps above 0, weight decay and the "
                             "largest norm not below 0; found {}, {}, {}, {}, {}",
                             o.beta1, o.beta2, o.eps, o.weight_decay, o.max_grad_norm));
}

Status check_dropout(const TrainerOptions& options) {
    if (options.lora_dropout >= 0 && options.lora_dropout < 1) return ok_status();
    return make_error(ErrorCode::kInvalidConfig,
                      format("lora_dropout {}: expected from 0 to below 1", options.lora_dropout), "lora_dropout");
}

uint64_t slot_bytes(const TrainPlan& plan) {
    return plan.memory.parameters + plan.slot.fixed_bytes() + plan.sizes.n_sets * plan.slot.low_bytes;
}

}  // namespace

struct Trainer::Impl {
    // Takes its memory, but the passes'. memory: what the trainer tells.
    static Result<std::unique_ptr<Trainer>> make(std::shared_ptr<TrainStage> stage, TrainModel model,
                                                 const TrainableAdapter& adapter, SlotSizes sizes,
                                                 const TrainerOptions& options, const TrainMemory& memory);

    // For steps and gradients.
    Status begin_backward(std::vector<TrainExample> examples, TrainJob::Work work, double learning_rate) {
        TRY(job->begin(stage->config, stage->sizes, std::move(examples), work, learning_rate));
        const Status warm = stage->warm_up(job);
        if (warm.ok()) return warm;
        stage->leave(*job);
        job->abandon();
        return warm;
    }

    std::shared_ptr<TrainStage> stage;
    std::shared_ptr<TrainJob> job;
};

Result<TrainMemory> Trainer::plan_memory(const gpu::DeviceCapabilities& capabilities, const ModelConfig& config,
                                         const ModelWeights& weights, const TrainableAdapter& adapter,
                                         const TrainerOptions& options, uint64_t free_bytes) {
    const gpu::TrainRungs rungs =
        gpu::TrainKernels::rungs_of(capabilities, train_kernel_options(config, weights, options));
    TrainerOptions filled = filled_in(config, weights, rungs, options);
    TRY_ASSIGN(const TrainModel model, TrainModel::create(config, weights, adapter, TrainNumbers::kNone));
    TRY_ASSIGN(const TrainPlan plan, plan_rows(options, filled, [&] {
                   return plan_training(rungs, capabilities, config, weights, model, TrainLayout(adapter), filled,
                                        budget_of(options, free_bytes));
               }));
    return plan.memory;
}

Result<std::unique_ptr<Trainer>> Trainer::create(gpu::Device& device, const ModelConfig& config,
                                                 const ModelWeights& weights, const TrainableAdapter& adapter,
                                                 const TrainerOptions& options) {
    TRY(check_optimizer(options.optimizer));
    TRY_ASSIGN(TrainModel model, TrainModel::create(config, weights, adapter));
    TRY(check_dropout(options));
    auto stage = std::make_shared<TrainStage>(device, config, weights);
    const uint64_t budget = budget_of(options, device.free_bytes_estimate());
    TRY_ASSIGN(stage->kernels, gpu::TrainKernels::create(device, train_kernel_options(config, weights, options)));
    TrainerOptions filled = filled_in(config, weights, stage->kernels->rungs(), options);
    const auto plan_within = [&](uint64_t n_bytes) {
        return plan_training(stage->kernels->rungs(), device.capabilities(), config, weights, model,
                             TrainLayout(adapter), filled, n_bytes);
    };
    auto plan = plan_rows(options, filled, [&] { return plan_within(budget); });
    // A plan with less memory has the same bits, so others' share is left.
    if (plan.ok() && options.n_beside > 0 && !why_alone(adapter)) {
        const uint64_t of_other = slot_bytes(*plan);
        for (uint32_t n_others = options.n_beside; n_others > 0; n_others /= 2) {
            auto smaller = plan_within(budget - std::min(n_others * of_other, budget));
            if (!smaller.ok()) continue;
            plan = std::move(smaller);
            break;
        }
    }
    TRY_ASSIGN(TrainPlan made, std::move(plan));
    filled.memory_bytes = budget;
    TRY(stage->kernels->reserve(device, made.sizes.block_bytes));
    stage->sizes = std::move(made.sizes);
    stage->n_bytes = made.memory.sum() - slot_bytes(made);
    stage->n_bytes_max = budget;
    TRY_ASSIGN(auto trainer, Impl::make(stage, std::move(model), adapter, std::move(made.slot), filled, made.memory));
    TRY_ASSIGN(stage->buffers, TrainBuffers::create(device, config, stage->sizes));
    return trainer;
}

Result<std::unique_ptr<Trainer>> Trainer::create_beside(const Trainer& other, const TrainableAdapter& adapter,
                                                        const TrainerOptions& options) {
    const std::shared_ptr<TrainStage>& stage = other.impl_->stage;
    TRY(check_optimizer(options.optimizer));
    TRY_ASSIGN(TrainModel model, TrainModel::create(stage->config, stage->weights, adapter));
    TRY(check_dropout(options));
    TrainerOptions filled = options;
    if (filled.n_rows == 0) filled.n_rows = other.options().n_rows;
    filled = filled_in(stage->config, stage->weights, stage->kernels->rungs(), filled);
    const TrainJob& first = *other.impl_->job;
    const gpu::ScalarType act_type =
        train_act_type(stage->device.capabilities(), stage->config, stage->weights, filled);
    TRY(may_share_passes({stage->sizes, first.options, first.why_alone, act_type}, adapter, filled));
    TrainPlan plan;
    plan.slot = SlotSizes::plan(stage->sizes, model, TrainLayout(adapter), filled);
    plan.sizes.n_sets = stage->sizes.n_sets;
    plan.memory.parameters = TrainLayout(adapter).n_elements * sizeof(float) * TrainParameters::kRanges;
    plan.memory.scratch = plan.slot.fixed_bytes();
    plan.memory.activations = plan.sizes.n_sets * plan.slot.low_bytes;
    plan.memory.n_kept_layers = first.memory.n_kept_layers;
    const uint64_t left = std::min(stage->n_bytes_max - std::min(stage->n_bytes, stage->n_bytes_max),
                                   stage->device.free_bytes_estimate());
    if (plan.memory.sum() > left)
        return make_error(ErrorCode::kOutOfMemory,
                          format("{} bytes beside those who are trained: there are {}", plan.memory.sum(), left));
    return Impl::make(stage, std::move(model), adapter, std::move(plan.slot), filled, plan.memory);
}

Result<std::unique_ptr<Trainer>> Trainer::Impl::make(std::shared_ptr<TrainStage> stage, TrainModel model,
                                                     const TrainableAdapter& adapter, SlotSizes sizes,
                                                     const TrainerOptions& options, const TrainMemory& memory) {
    auto job = std::make_shared<TrainJob>();
    job->shape = adapter;
    for (TrainedTensor* tensor : job->shape.tensors()) std::vector<float>().swap(tensor->values);
    job->options = options;
    job->memory = memory;
    job->why_alone = model::why_alone(adapter);
    job->slot_bytes = memory.parameters + sizes.fixed_bytes() + stage->sizes.n_sets * sizes.low_bytes;
    TRY_ASSIGN(job->slot,
               TrainSlot::create(stage->device, std::move(model), adapter, std::move(sizes), stage->sizes.n_sets));
    stage->n_bytes += job->slot_bytes;
    return std::unique_ptr<Trainer>(new Trainer(std::make_unique<Impl>(std::move(stage), std::move(job))));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Trainer::~Trainer() {
    abandon();
    impl_->stage->n_bytes -= impl_->job->slot_bytes;
}

Result<TrainReport> Trainer::step(std::span<const TrainExample> examples, double learning_rate) {
    TRY(begin_step({examples.begin(), examples.end()}, learning_rate));
    while (true) {
        TRY_ASSIGN(const bool is_done, run_piece(std::chrono::hours(1)));
        if (is_done) return finish();
    }
}

Result<TrainReport> Trainer::evaluate(std::span<const TrainExample> examples) {
    TRY(begin_evaluation({examples.begin(), examples.end()}));
    while (true) {
        TRY_ASSIGN(const bool is_done, run_piece(std::chrono::hours(1)));
        if (is_done) return finish();
    }
}

Status Trainer::begin_step(std::vector<TrainExample> examples, double learning_rate) {
    TRY(check_learning_rate(learning_rate));
    return impl_->begin_backward(std::move(examples), TrainJob::Work::kStep, learning_rate);
}

Status Trainer::begin_evaluation(std::vector<TrainExample> examples) {
    return impl_->job->begin(impl_->stage->config, impl_->stage->sizes, std::move(examples),
                             TrainJob::Work::kEvaluation, 0);
}

Status Trainer::begin_gradients(std::vector<TrainExample> examples) {
    return impl_->begin_backward(std::move(examples), TrainJob::Work::kGradients, 0);
}

Status Trainer::begin_update(const OptimizerSettings& optimizer, double learning_rate) {
    TRY(check_learning_rate(learning_rate));
    TRY(check_optimizer(optimizer));
    impl_->job->options.optimizer = optimizer;
    if (!impl_->job->has_gradients) TRY(impl_->job->slot->parameters->clear(TrainParameters::Range::kGradients));
    impl_->job->begin_update(learning_rate);
    return ok_status();
}

bool Trainer::has_gradients() const { return impl_->job->has_gradients; }

Result<bool> Trainer::run_piece(std::chrono::microseconds budget) {
    CHECK(is_busy());
    return impl_->stage->run(std::span(&impl_->job, 1), budget, true);
}

Result<bool> Trainer::run_together(std::span<Trainer* const> trainers, std::chrono::microseconds budget, bool waits) {
    std::vector<std::shared_ptr<TrainJob>> jobs;
    for (const Trainer* trainer : trainers) {
        CHECK(trainer->is_busy() && trainer->impl_->stage == trainers.front()->impl_->stage);
        jobs.push_back(trainer->impl_->job);
    }
    CHECK(!jobs.empty());
    return trainers.front()->impl_->stage->run(jobs, budget, waits);
}

Result<bool> Trainer::start_piece(std::chrono::microseconds budget) {
    CHECK(is_busy());
    return impl_->stage->run(std::span(&impl_->job, 1), budget, false);
}

Status Trainer::settle() { return impl_->stage->settle(); }

double Trainer::device_seconds() const { return impl_->stage->device_us * 1e-6; }

Result<TrainReport> Trainer::finish() {
    CHECK(is_done());
    impl_->job->phase = TrainJob::Phase::kIdle;
    impl_->job->batches.clear();
    return std::exchange(impl_->job->report, {});
}

void Trainer::abandon() {
    impl_->stage->leave(*impl_->job);
    impl_->job->abandon();
}

bool Trainer::is_busy() const { return impl_->job->phase != TrainJob::Phase::kIdle; }
bool Trainer::is_done() const { return impl_->job->phase == TrainJob::Phase::kDone; }

Result<TrainableAdapter> Trainer::adapter() const {
    TRY_ASSIGN(const std::vector<float> values, impl_->job->slot->parameters->read(TrainParameters::Range::kValues));
    TrainableAdapter made = impl_->job->shape;
    const std::vector<TrainedTensor*> tensors = made.tensors();
    for (size_t i = 0; i < tensors.size(); ++i)
        tensors[i]->values = TrainParameters::dense(impl_->job->slot->parameters->layout().tensors[i], values);
    return made;
}

Result<std::vector<TrainedTensor>> Trainer::gradients() const {
    TRY_ASSIGN(const std::vector<float> gradients,
               impl_->job->slot->parameters->read(TrainParameters::Range::kGradients));
    const float factor = 1.0f / static_cast<float>(std::max<uint64_t>(impl_->job->n_gradient_tokens, 1));
    std::vector<TrainedTensor> made;
    const std::vector<const TrainedTensor*> tensors = std::as_const(impl_->job->shape).tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
        made.push_back(*tensors[i]);
        made.back().values = TrainParameters::dense(impl_->job->slot->parameters->layout().tensors[i], gradients);
        for (float& value : made.back().values) value *= factor;
    }
    return made;
}

Result<std::vector<std::byte>> Trainer::checkpoint() const {
    CHECK(!is_busy());
    return write_train_checkpoint(impl_->job->shape, *impl_->job->slot->parameters, impl_->job->n_steps);
}

Status Trainer::restore(std::span<const std::byte> checkpoint) {
    CHECK(!is_busy());
    TRY_ASSIGN(impl_->job->n_steps,
               read_train_checkpoint(checkpoint, impl_->job->shape, *impl_->job->slot->parameters));
    impl_->job->has_gradients = false;
    return ok_status();
}

Status Trainer::reset_optimizer() {
    CHECK(!is_busy());
    TrainParameters& parameters = *impl_->job->slot->parameters;
    TRY(parameters.clear(TrainParameters::Range::kFirst));
    TRY(parameters.clear(TrainParameters::Range::kSecond));
    impl_->job->n_steps = 0;
    return ok_status();
}

Result<std::vector<gpu::KernelProfile>> Trainer::profile(std::span<const TrainExample> examples) {
    std::vector<gpu::DispatchTime> times;
    impl_->stage->times = &times;
    const auto report = step(examples, 0.0);
    impl_->stage->times = nullptr;
    if (!report.ok()) return report.error();
    return gpu::sum_by_kernel(times);
}

Result<std::vector<gpu::KernelProfile>> Trainer::profile_together(std::span<const std::unique_ptr<Trainer>> trainers,
                                                                  std::span<const std::vector<TrainExample>> examples) {
    std::vector<Trainer*> busy;
    for (size_t i = 0; i < trainers.size(); ++i) {
        TRY(trainers[i]->begin_step(examples[i], 0.0));
        busy.push_back(trainers[i].get());
    }
    std::vector<gpu::DispatchTime> times;
    trainers.front()->impl_->stage->times = &times;
    Status ran = ok_status();
    while (ran.ok() && !busy.empty()) {
        if (const auto some = run_together(busy, std::chrono::hours(1)); !some.ok()) ran = some.error();
        std::erase_if(busy, [](Trainer* trainer) { return trainer->is_done() && trainer->finish().ok(); });
    }
    trainers.front()->impl_->stage->times = nullptr;
    TRY(ran);
    return gpu::sum_by_kernel(times);
}

uint64_t Trainer::n_steps() const { return impl_->job->n_steps; }
const TrainMemory& Trainer::memory() const { return impl_->job->memory; }
const TrainerOptions& Trainer::options() const { return impl_->job->options; }

}  // namespace lorad::model
