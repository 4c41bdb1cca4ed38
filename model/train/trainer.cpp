#include "model/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "gpu/queue.h"
#include "model/config/rope.h"
#include "model/train/micro_batch.h"
#include "model/train/piece_parts.h"
#include "model/train/train_checkpoint.h"
#include "model/train/train_pass.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kFreeShare = 0.9;
// One submission takes no longer by its estimate, so that no driver takes the device for hung.
constexpr std::chrono::microseconds kSubmissionMax = std::chrono::milliseconds(500);
constexpr uint32_t kNormGroupElements = 1u << 14, kNormGroups = 4096;
constexpr double kClipEps = 1e-6;
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

Status check_options(const TrainerOptions& options) {
    const OptimizerSettings& o = options.optimizer;
    const bool is_right = o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1 && o.eps > 0 &&
                          std::isfinite(o.eps) && o.weight_decay >= 0 && std::isfinite(o.weight_decay) &&
                          o.max_grad_norm >= 0 && std::isfinite(o.max_grad_norm);
    if (is_right) return ok_status();
    return make_error(ErrorCode::kInvalidConfig,
                      format("the optimizer's betas have to be from 0 to below 1, eps above 0, weight decay and the "
                             "largest norm not below 0; found {}, {}, {}, {}, {}",
                             o.beta1, o.beta2, o.eps, o.weight_decay, o.max_grad_norm));
}

Status check_dropout(const TrainerOptions& options, const TrainableAdapter& adapter) {
    if (!(options.lora_dropout >= 0 && options.lora_dropout < 1))
        return make_error(ErrorCode::kInvalidConfig,
                          format("lora_dropout {}: expected from 0 to below 1", options.lora_dropout), "lora_dropout");
    if (options.lora_dropout == 0) return ok_status();
    if (adapter.head)
        return make_error(ErrorCode::kInvalidConfig, "lora_dropout of a pair on the output layer is not trained",
                          "lora_dropout");
    const bool has_magnitudes = std::ranges::any_of(
        adapter.linears, [](const TrainedLinear& linear) { return linear.pair.magnitude.has_value(); });
    if (has_magnitudes)
        return make_error(ErrorCode::kInvalidConfig, "lora_dropout with DoRA is not trained", "lora_dropout");
    return ok_status();
}

Status check_example(const ModelConfig& config, const TrainerOptions& options, const TrainExample& example,
                     size_t index) {
    const auto refuse = [&](const std::string& what) {
        return make_error(ErrorCode::kInvalidRequest, format("example {}: {}", index, what));
    };
    if (example.tokens.empty()) return refuse("no tokens");
    if (example.tokens.size() > options.n_positions_max)
        return refuse(format("{} tokens: at most {}", example.tokens.size(), options.n_positions_max));
    if (example.weights.size() != example.tokens.size())
        return refuse(
            format("{} weights: expected {}, one for each token", example.weights.size(), example.tokens.size()));
    for (const TokenId token : example.tokens) {
        if (token < 0 || static_cast<uint32_t>(token) >= config.vocab_size)
            return refuse(format("token {}: the vocabulary has {}", token, config.vocab_size));
    }
    if (!std::ranges::all_of(example.weights, [](float weight) { return std::isfinite(weight); }))
        return refuse("a weight that is not finite");
    return ok_status();
}

}  // namespace

struct Trainer::Impl {
    Impl(gpu::Device& on, const ModelConfig& of, const ModelWeights& with) : device(on), config(of), weights(with) {}

    // A part of the work that is recorded at once; flops says how long it takes beside others.
    struct Piece {
        std::function<void(gpu::Recorder&)> record;
        double flops = 0;
        PieceKind kind = PieceKind::kOptimizer;
        // As long as its flops say.
        bool is_long() const {
            return kind == PieceKind::kForward || kind == PieceKind::kHead || kind == PieceKind::kBackward ||
                   kind == PieceKind::kBackwardAgain;
        }
    };
    enum class Phase : uint8_t { kIdle, kBatches, kNorm, kUpdate, kDone };
    struct Work {
        bool is_step = false;
        double learning_rate = 0;
        std::vector<TrainExample> examples;
        std::vector<MicroBatch> batches;
        size_t batch_idx = 0;
        TrainTables tables;
        std::vector<Piece> pieces;  // of the phase, or of the micro-batch
        size_t piece_idx = 0;
        double factor = 0;  // what the update multiplies gradients with
        TrainReport report;
    };

    Status begin(std::vector<TrainExample> examples, bool is_step, double learning_rate);
    Status warm_up();
    gpu::TrainGradNormParams norm_params() const;
    Status begin_batch();
    void list_batch_pieces();
    void read_losses();
    void begin_norm();
    void begin_update();
    Status submit_pieces(std::chrono::microseconds budget);
    Status settle();
    Status end_phase();
    TrainPass pass() { return TrainPass({*kernels, config, weights, *model, *parameters, sizes, buffers}); }

    gpu::Device& device;
    const ModelConfig& config;
    const ModelWeights& weights;
    std::unique_ptr<gpu::TrainKernels> kernels;
    TrainableAdapter shape;  // without values
    TrainerOptions options;
    TrainMemory memory;
    std::optional<TrainModel> model;
    TrainSizes sizes;
    std::unique_ptr<TrainParameters> parameters;
    TrainBuffers buffers;
    gpu::Buffer host_tables, device_tables;
    uint64_t n_steps = 0;
    uint64_t n_tokens_of_gradients = 0;
    // Submitted, and not waited for.
    struct Submission {
        std::optional<gpu::CommandBuffer> recording;
        uint64_t value = 0;
        double flops = 0;  // of whole pieces that say how long such take
        bool has_whole = false, has_parts = false;
        Clock::time_point begin;
    };
    PieceParts parts;  // of the piece that is next
    std::optional<Submission> pending;
    double device_us = 0;
    double flops_per_us = 0;                          // of the last layers that were recorded whole; 0: not known
    bool is_warm = false;                             // the kernels of a step are made
    std::vector<gpu::DispatchTime>* times = nullptr;  // where each submission's are added
    Phase phase = Phase::kIdle;
    Work work;
};

Result<TrainMemory> Trainer::plan_memory(const gpu::DeviceCapabilities& capabilities, const ModelConfig& config,
                                         const ModelWeights& weights, const TrainableAdapter& adapter,
                                         const TrainerOptions& options, uint64_t free_bytes) {
    const gpu::TrainRungs rungs =
        gpu::TrainKernels::rungs_of(capabilities, train_kernel_options(config, weights, options));
    const TrainerOptions filled = filled_in(config, weights, rungs, options);
    TRY_ASSIGN(const TrainModel model, TrainModel::create(config, weights, adapter));
    TrainMemory memory;
    TRY(plan_train_sizes(rungs, capabilities, config, weights, model, TrainLayout(adapter), filled,
                         filled.memory_bytes != 0 ? filled.memory_bytes
                                                  : static_cast<uint64_t>(static_cast<double>(free_bytes) * kFreeShare),
                         memory));
    return memory;
}

Result<std::unique_ptr<Trainer>> Trainer::create(gpu::Device& device, const ModelConfig& config,
                                                 const ModelWeights& weights, const TrainableAdapter& adapter,
                                                 const TrainerOptions& options) {
    auto impl = std::make_unique<Impl>(device, config, weights);
    TRY(check_options(options));
    TRY_ASSIGN(impl->model, TrainModel::create(config, weights, adapter));
    TRY(check_dropout(options, adapter));
    const uint64_t free_bytes = device.free_bytes_estimate();
    const uint64_t budget =
        std::min(options.memory_bytes != 0 ? options.memory_bytes
                                           : static_cast<uint64_t>(static_cast<double>(free_bytes) * kFreeShare),
                 free_bytes);
    TRY_ASSIGN(impl->kernels, gpu::TrainKernels::create(device, train_kernel_options(config, weights, options)));
    impl->options = filled_in(config, weights, impl->kernels->rungs(), options);
    const auto plan = [&] {
        return plan_train_sizes(impl->kernels->rungs(), device.capabilities(), config, weights, *impl->model,
                                TrainLayout(adapter), impl->options, budget, impl->memory);
    };
    auto sizes = plan();
    // Fewer rows where nobody asked for so many and there is no room.
    for (; options.n_rows == 0 && !sizes.ok() && impl->options.n_rows > kRowsMin; sizes = plan())
        impl->options.n_rows /= 2;
    TRY_ASSIGN(impl->sizes, std::move(sizes));
    impl->options.memory_bytes = budget;
    TRY(impl->kernels->reserve(device, impl->sizes.block_bytes));
    TRY_ASSIGN(impl->parameters, TrainParameters::create(device, adapter));
    TRY_ASSIGN(impl->buffers, TrainBuffers::create(device, config, impl->sizes));
    impl->shape = adapter;
    for (TrainedTensor* tensor : impl->shape.tensors()) std::vector<float>().swap(tensor->values);
    return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() {
    if (impl_) abandon();
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
    if (!std::isfinite(learning_rate) || learning_rate < 0)
        return make_error(ErrorCode::kInvalidRequest,
                          format("learning rate {}: expected a number from 0 on", learning_rate));
    return impl_->begin(std::move(examples), true, learning_rate);
}

Status Trainer::begin_evaluation(std::vector<TrainExample> examples) {
    return impl_->begin(std::move(examples), false, 0);
}

Result<bool> Trainer::run_piece(std::chrono::microseconds budget) {
    Impl& it = *impl_;
    CHECK(is_busy());
    const auto deadline = Clock::now() + budget;
    Status ran = it.settle();
    while (ran.ok() && it.phase != Impl::Phase::kDone) {
        const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
        ran = it.submit_pieces(std::clamp(left, std::chrono::microseconds(1), kSubmissionMax));
        if (ran.ok()) ran = it.settle();
        if (Clock::now() >= deadline) break;
    }
    if (!ran.ok()) {
        abandon();
        return ran.error();
    }
    return it.phase == Impl::Phase::kDone;
}

Result<bool> Trainer::start_piece(std::chrono::microseconds budget) {
    Impl& it = *impl_;
    CHECK(is_busy());
    Status ran = it.settle();
    if (ran.ok() && it.phase == Impl::Phase::kDone) return true;
    if (ran.ok()) ran = it.submit_pieces(std::clamp(budget, std::chrono::microseconds(1), kSubmissionMax));
    if (!ran.ok()) {
        abandon();
        return ran.error();
    }
    return false;
}

double Trainer::device_seconds() const { return impl_->device_us * 1e-6; }

Result<TrainReport> Trainer::finish() {
    CHECK(impl_->phase == Impl::Phase::kDone);
    impl_->phase = Impl::Phase::kIdle;
    return std::exchange(impl_->work, {}).report;
}

void Trainer::abandon() {
    if (impl_->pending) {
        // Nothing that it reads or writes is given up before. If the wait fails the device is lost.
        (void)impl_->device.compute_queue().wait(impl_->pending->value);
        impl_->pending.reset();
    }
    impl_->parts.abandon();
    impl_->phase = Impl::Phase::kIdle;
    impl_->work = {};
    impl_->n_tokens_of_gradients = 0;
}

bool Trainer::is_busy() const { return impl_->phase != Impl::Phase::kIdle; }

Result<TrainableAdapter> Trainer::adapter() const {
    TRY_ASSIGN(const std::vector<float> values, impl_->parameters->read(TrainParameters::Range::kValues));
    TrainableAdapter made = impl_->shape;
    const std::vector<TrainedTensor*> tensors = made.tensors();
    for (size_t i = 0; i < tensors.size(); ++i)
        tensors[i]->values = TrainParameters::dense(impl_->parameters->layout().tensors[i], values);
    return made;
}

Result<std::vector<TrainedTensor>> Trainer::gradients() const {
    TRY_ASSIGN(const std::vector<float> gradients, impl_->parameters->read(TrainParameters::Range::kGradients));
    const float factor = 1.0f / static_cast<float>(std::max<uint64_t>(impl_->n_tokens_of_gradients, 1));
    std::vector<TrainedTensor> made;
    const std::vector<const TrainedTensor*> tensors = std::as_const(impl_->shape).tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
        made.push_back(*tensors[i]);
        made.back().values = TrainParameters::dense(impl_->parameters->layout().tensors[i], gradients);
        for (float& value : made.back().values) value *= factor;
    }
    return made;
}

Result<std::vector<std::byte>> Trainer::checkpoint() const {
    CHECK(!is_busy());
    return write_train_checkpoint(impl_->shape, *impl_->parameters, impl_->n_steps);
}

Status Trainer::restore(std::span<const std::byte> checkpoint) {
    CHECK(!is_busy());
    TRY_ASSIGN(impl_->n_steps, read_train_checkpoint(checkpoint, impl_->shape, *impl_->parameters));
    return ok_status();
}

Result<std::vector<gpu::KernelProfile>> Trainer::profile(std::span<const TrainExample> examples) {
    std::vector<gpu::DispatchTime> times;
    impl_->times = &times;
    const auto report = step(examples, 0.0);
    impl_->times = nullptr;
    if (!report.ok()) return report.error();
    return gpu::sum_by_kernel(times);
}

uint64_t Trainer::n_steps() const { return impl_->n_steps; }
const TrainMemory& Trainer::memory() const { return impl_->memory; }
const TrainerOptions& Trainer::options() const { return impl_->options; }

Status Trainer::Impl::begin(std::vector<TrainExample> examples, bool is_step, double learning_rate) {
    CHECK(phase == Phase::kIdle);
    for (size_t i = 0; i < examples.size(); ++i) TRY(check_example(config, options, examples[i], i));
    work = {.is_step = is_step, .learning_rate = learning_rate, .examples = std::move(examples)};
    work.batches = make_micro_batches(config, work.examples,
                                      {.n_rows = options.n_rows,
                                       .n_score_elements = sizes.score_elements,
                                       .short_text_tokens = short_text_tokens(config.rope, options.n_positions_max)});
    TrainReport& report = work.report;
    report.examples.resize(work.examples.size());
    report.n_micro_batches = static_cast<uint32_t>(work.batches.size());
    for (const MicroBatch& batch : work.batches) {
        report.n_tokens += batch.n_rows();
        report.n_trained_tokens += batch.targets.size();
    }
    if (report.n_trained_tokens == 0) {
        work = {};
        return make_error(ErrorCode::kInvalidRequest, "no token of the examples is trained: every weight is 0");
    }
    Status begun = begin_batch();
    if (begun.ok() && !is_warm) begun = warm_up();
    if (!begun.ok())
        work = {};
    else
        phase = Phase::kBatches;
    return begun;
}

// Makes the kernels of a step on the thread that begins it, not where others wait: what is recorded is left out.
Status Trainer::Impl::warm_up() {
    TRY_ASSIGN(gpu::Recorder recorder, gpu::Recorder::begin(device));
    recorder.begin_part(0, 0);
    for (const Piece& piece : work.pieces) piece.record(recorder);
    kernels->grad_norm(recorder, norm_params());
    kernels->adamw(recorder, {.n = static_cast<uint32_t>(parameters->n_elements())});
    is_warm = true;
    return kernels->status();
}

Status Trainer::Impl::begin_batch() {
    work.tables = make_train_tables(config, sizes, work.batches[work.batch_idx]);
    const uint64_t n_bytes = work.tables.bytes.size();
    if (!host_tables || host_tables.size() < n_bytes) {
        const uint64_t wanted = round_up(n_bytes + n_bytes / 2, uint64_t{1} << 12);
        TRY_ASSIGN(host_tables, device.create_buffer(wanted, gpu::MemoryKind::kHostUpload, "training tables"));
        TRY_ASSIGN(device_tables, device.create_buffer(wanted, gpu::MemoryKind::kDeviceLocal, "training tables"));
    }
    std::memcpy(host_tables.mapped().data(), work.tables.bytes.data(), n_bytes);
    list_batch_pieces();
    return ok_status();
}

void Trainer::Impl::list_batch_pieces() {
    const MicroBatch& batch = work.batches[work.batch_idx];
    const bool is_first = work.batch_idx == 0, has_backward = work.is_step && !batch.targets.empty();
    const auto rows = [this] {
        return TrainRows{work.batches[work.batch_idx],
                         work.tables,
                         device_tables.address(),
                         {.p = work.is_step ? options.lora_dropout : 0.0f,
                          .seed = options.seed,
                          .step = static_cast<uint32_t>(n_steps)}};
    };
    const double n_rows = batch.n_rows();
    const LayerWeights& w = weights.layers.front();
    const double layer_flops = 2.0 * n_rows *
                               (double{1} * w.qkv.n * w.qkv.k + double{1} * w.o.n * w.o.k +
                                double{1} * w.gate_up.n * w.gate_up.k + double{1} * w.down.n * w.down.k);
    const double head_flops = 2.0 * static_cast<double>(batch.targets.size()) * config.vocab_size * config.hidden_size;
    work.pieces.clear();
    work.piece_idx = 0;
    work.pieces.push_back({[this, rows, is_first](gpu::Recorder& recorder) {
                               recorder.copy(host_tables, 0, device_tables, 0, work.tables.bytes.size());
                               if (is_first && work.is_step)
                                   recorder.fill(parameters->range(TrainParameters::Range::kGradients), 0,
                                                 parameters->n_elements() * sizeof(float), 0);
                               recorder.barrier();
                               if (is_first) {
                                   pass().shadows(recorder);
                                   pass().inverse_norms(recorder);
                               }
                               pass().embed(recorder, rows());
                           },
                           layer_flops / 100, PieceKind::kBegin});
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        work.pieces.push_back({[this, rows, layer](gpu::Recorder& recorder) { pass().layer(recorder, rows(), layer); },
                               layer_flops, PieceKind::kForward});
    }
    work.pieces.push_back(
        {[this, rows, has_backward](gpu::Recorder& recorder) { pass().head(recorder, rows(), has_backward); },
         head_flops * (has_backward ? 2 : 1), PieceKind::kHead});
    if (!has_backward) return;
    for (uint32_t layer = config.n_layers; layer-- > model->first_trained_layer;) {
        const bool is_kept = sizes.keeps(layer, config.n_layers);
        work.pieces.push_back(
            {[this, rows, layer](gpu::Recorder& recorder) { pass().layer_backward(recorder, rows(), layer); },
             layer_flops * (is_kept ? 1.2 : 2.2), is_kept ? PieceKind::kBackward : PieceKind::kBackwardAgain});
    }
    if (model->trains_embedding()) {
        work.pieces.push_back({[this, rows](gpu::Recorder& recorder) { pass().embed_backward(recorder, rows()); },
                               layer_flops / 100, PieceKind::kEmbedBackward});
    }
}

// Records pieces up to the budget's end by what the last ones took, and submits them. What is longer than the budget is
// recorded in parts, of which there is at least one.
Status Trainer::Impl::submit_pieces(std::chrono::microseconds budget) {
    TRY_ASSIGN(gpu::Recorder recorder,
               gpu::Recorder::begin(device, {.timestamps = times != nullptr, .span_timestamps = times == nullptr}));
    Submission made;
    double us = 0;
    const auto us_max = static_cast<double>(budget.count());
    for (bool is_whole = true; is_whole && work.piece_idx < work.pieces.size();) {
        const Piece& piece = work.pieces[work.piece_idx];
        // One of which nothing says how long it takes is by itself.
        const double piece_us = !piece.is_long() ? 1.0 : flops_per_us > 0 ? piece.flops / flops_per_us : us_max;
        if (!parts.is_begun() && piece_us <= us_max && (us == 0 || us + piece_us <= us_max)) {
            piece.record(recorder);
            us += piece_us;
            made.has_whole = true;
            if (piece.is_long()) made.flops += piece.flops;
        } else if (parts.is_begun() || piece_us > us_max) {
            is_whole = parts.record_some(recorder, piece.record, piece.kind, piece_us, us_max, us);
            made.has_parts = true;
        } else {
            break;
        }
        if (is_whole) ++work.piece_idx;
    }
    TRY(kernels->status());
    TRY_ASSIGN(gpu::CommandBuffer recording, std::move(recorder).end());
    const gpu::CommandBuffer* recordings[] = {&recording};
    made.begin = Clock::now();
    TRY_ASSIGN(made.value, device.compute_queue().submit(recordings));
    made.recording = std::move(recording);
    pending = std::move(made);
    return ok_status();
}

// Waits for what is submitted, if anything is, and goes on to what comes behind it.
Status Trainer::Impl::settle() {
    if (!pending) return ok_status();
    TRY(device.compute_queue().wait(pending->value));
    const Submission done = std::move(*pending);
    pending.reset();
    double us = std::chrono::duration<double, std::micro>(Clock::now() - done.begin).count();
    TRY_ASSIGN(const std::vector<gpu::DispatchTime> of_submission, gpu::read_dispatch_times(device, *done.recording));
    if (times != nullptr)
        times->insert(times->end(), of_submission.begin(), of_submission.end());
    else if (!of_submission.empty())
        us = of_submission.front().us;  // others' work in front of it does not count
    device_us += us;
    if (!done.has_parts && done.flops > 0) flops_per_us = done.flops / std::max(us, 1.0);
    parts.learn(done.has_whole ? 0 : us);
    return work.piece_idx == work.pieces.size() ? end_phase() : ok_status();
}

Status Trainer::Impl::end_phase() {
    switch (phase) {
        case Phase::kBatches:
            read_losses();
            if (++work.batch_idx < work.batches.size()) return begin_batch();
            for (const ExampleLoss& example : work.report.examples) work.report.loss += example.loss_sum;
            work.report.loss /= static_cast<double>(work.report.n_trained_tokens);
            if (work.is_step) n_tokens_of_gradients = work.report.n_trained_tokens;
            if (work.is_step && std::isfinite(work.report.loss)) {
                begin_norm();
            } else {
                phase = Phase::kDone;
            }
            return ok_status();
        case Phase::kNorm: begin_update(); return ok_status();
        case Phase::kUpdate:
            ++n_steps;
            work.report.is_applied = true;
            phase = Phase::kDone;
            return ok_status();
        case Phase::kIdle:
        case Phase::kDone: break;
    }
    CHECK(false);
}

void Trainer::Impl::read_losses() {
    const MicroBatch& batch = work.batches[work.batch_idx];
    const auto* losses = reinterpret_cast<const gpu::TrainLoss*>(buffers.losses.mapped().data());
    for (size_t i = 0; i < batch.targets.size(); ++i) {
        ExampleLoss& example = work.report.examples[batch.examples[batch.target_examples[i]]];
        example.loss_sum += losses[i].loss;
        example.n_trained += 1;
        example.n_correct += losses[i].is_best;
    }
}

gpu::TrainGradNormParams Trainer::Impl::norm_params() const {
    const auto n = static_cast<uint32_t>(parameters->n_elements());
    return {.gradients = parameters->range(TrainParameters::Range::kGradients).address(),
            .sums = buffers.norm_sums.address(),
            .n = n,
            .n_per_group = std::max(kNormGroupElements, n / kNormGroups + 1)};
}

void Trainer::Impl::begin_norm() {
    phase = Phase::kNorm;
    const gpu::TrainGradNormParams params = norm_params();
    work.pieces = {{[this, params](gpu::Recorder& recorder) { kernels->grad_norm(recorder, params); }, 1.0}};
    work.piece_idx = 0;
}

void Trainer::Impl::begin_update() {
    const auto n = static_cast<uint32_t>(parameters->n_elements());
    const uint32_t n_groups = n / std::max(kNormGroupElements, n / kNormGroups + 1) +
                              (n % std::max(kNormGroupElements, n / kNormGroups + 1) != 0);
    const auto* sums = reinterpret_cast<const float*>(buffers.norm_sums.mapped().data());
    double squares = 0;
    for (uint32_t i = 0; i < n_groups; ++i) squares += sums[i];
    TrainReport& report = work.report;
    const double n_tokens = static_cast<double>(report.n_trained_tokens);
    report.grad_norm = std::sqrt(squares) / n_tokens;
    const OptimizerSettings& o = options.optimizer;
    if (!std::isfinite(report.grad_norm)) {
        phase = Phase::kDone;
        return;
    }
    double clip = 1.0;
    if (o.max_grad_norm > 0) clip = std::min(1.0, o.max_grad_norm / (report.grad_norm + kClipEps));
    report.is_clipped = clip < 1.0;
    phase = Phase::kUpdate;
    const double k = static_cast<double>(n_steps) + 1;
    const gpu::TrainAdamwParams params{
        .values = parameters->range(TrainParameters::Range::kValues).address(),
        .gradients = parameters->range(TrainParameters::Range::kGradients).address(),
        .first = parameters->range(TrainParameters::Range::kFirst).address(),
        .second = parameters->range(TrainParameters::Range::kSecond).address(),
        .n = n,
        .factor = static_cast<float>(clip / n_tokens),
        .keep = static_cast<float>(1.0 - work.learning_rate * o.weight_decay),
        .one_minus_beta1 = static_cast<float>(1.0 - o.beta1),
        .beta2 = static_cast<float>(o.beta2),
        .one_minus_beta2 = static_cast<float>(1.0 - o.beta2),
        .step_size = static_cast<float>(work.learning_rate / (1.0 - std::pow(o.beta1, k))),
        .root = static_cast<float>(std::sqrt(1.0 - std::pow(o.beta2, k))),
        .eps = static_cast<float>(o.eps),
        .pad = 0};
    work.pieces = {{[this, params](gpu::Recorder& recorder) { kernels->adamw(recorder, params); }, 1.0}};
    work.piece_idx = 0;
}

}  // namespace lorad::model
