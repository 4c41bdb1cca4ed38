#include "model/train/train_job.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/config/rope.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr uint32_t kNormGroupElements = 1u << 14, kNormGroups = 4096;
constexpr double kClipEps = 1e-6;

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
    if (example.targets.empty() && example.sampled.empty()) return ok_status();
    if (example.targets.size() != example.tokens.size())
        return refuse(
            format("{} targets: expected {}, one for each token", example.targets.size(), example.tokens.size()));
    for (const TokenId token : example.targets) {
        if (token < 0 || static_cast<uint32_t>(token) >= config.vocab_size)
            return refuse(format("target {}: the vocabulary has {}", token, config.vocab_size));
    }
    if (!example.sampled.empty() && example.sampled.size() != example.tokens.size())
        return refuse(format("{} sampled log-probabilities: expected {}, one for each token", example.sampled.size(),
                             example.tokens.size()));
    if (!std::ranges::all_of(example.sampled, [](float value) { return std::isfinite(value); }))
        return refuse("a sampled log-probability that is not finite");
    return ok_status();
}

uint64_t n_trained(const MicroBatch& batch) {
    return static_cast<uint64_t>(
        std::ranges::count_if(batch.targets, [](const gpu::TrainTarget& target) { return target.weight != 0.0f; }));
}

}  // namespace

Status TrainJob::begin(const ModelConfig& config, const TrainSizes& sizes, std::vector<TrainExample> of, Work of_kind,
                       double rate) {
    CHECK(phase == Phase::kIdle);
    for (size_t i = 0; i < of.size(); ++i) TRY(check_example(config, options, of[i], i));
    std::vector<MicroBatch> made =
        make_micro_batches(config, of,
                           {.n_rows = options.n_rows,
                            .n_score_elements = sizes.score_elements,
                            .short_text_tokens = short_text_tokens(config.rope, sizes.n_positions)});
    TrainReport begun;
    begun.examples.resize(of.size());
    begun.n_micro_batches = static_cast<uint32_t>(made.size());
    bool has_targets = false;
    for (const MicroBatch& one : made) {
        begun.n_tokens += one.n_rows();
        begun.n_trained_tokens += n_trained(one);
        has_targets |= !one.targets.empty();
    }
    if (of_kind == Work::kStep ? begun.n_trained_tokens == 0 : !has_targets)
        return make_error(ErrorCode::kInvalidRequest, "no token of the examples is trained: every weight is 0");
    for (size_t i = 0; i < of.size(); ++i) begun.examples[i].log_probabilities.reserve(of[i].targets.size());
    has_own_targets.clear();
    for (const TrainExample& one : of) has_own_targets.push_back(!one.targets.empty());
    work = of_kind;
    adds_gradients = work == Work::kGradients && has_gradients;
    if (work == Work::kStep) has_gradients = false;
    learning_rate = rate;
    batches = std::move(made);
    batch_idx = 0;
    report = std::move(begun);
    phase = Phase::kBatches;
    return ok_status();
}

void TrainJob::begin_update(double rate) {
    CHECK(phase == Phase::kIdle);
    work = Work::kUpdate;
    learning_rate = rate;
    report = {};
    n_gradient_tokens = 1;
    phase = Phase::kNorm;
}

void TrainJob::abandon() {
    phase = Phase::kIdle;
    batches.clear();
    report = {};
    n_gradient_tokens = 0;
    has_gradients = false;
}

TrainDropout TrainJob::dropout() const {
    return {.p = has_backward() ? options.lora_dropout : 0.0f,
            .seed = options.seed,
            .step = static_cast<uint32_t>(n_steps)};
}

void TrainJob::end_batch(const gpu::TrainLoss* losses, bool is_shared) {
    report.n_shared += is_shared;
    const MicroBatch& done = batch();
    for (size_t i = 0; i < done.targets.size(); ++i) {
        ExampleLoss& example = report.examples[done.examples[done.target_examples[i]]];
        example.loss_sum += losses[i].loss;
        if (has_own_targets[done.examples[done.target_examples[i]]])
            example.log_probabilities.push_back(losses[i].log_probability);
        if (done.targets[i].weight == 0.0f) continue;
        example.n_trained += 1;
        example.n_correct += losses[i].is_best;
    }
    if (++batch_idx < batches.size()) return;
    for (const ExampleLoss& example : report.examples) report.loss += example.loss_sum;
    const uint64_t n_divided_by = work == Work::kGradients ? 1 : std::max<uint64_t>(report.n_trained_tokens, 1);
    report.loss /= static_cast<double>(n_divided_by);
    if (has_backward()) n_gradient_tokens = n_divided_by;
    if (work == Work::kGradients) has_gradients = std::isfinite(report.loss);
    phase = work == Work::kStep && std::isfinite(report.loss) ? Phase::kNorm : Phase::kDone;
}

gpu::TrainGradNormParams TrainJob::norm_params() const {
    const auto n = static_cast<uint32_t>(slot->parameters->n_elements());
    return {.gradients = slot->parameters->range(TrainParameters::Range::kGradients).address(),
            .sums = slot->norm_sums.address(),
            .n = n,
            .n_per_group = std::max(kNormGroupElements, n / kNormGroups + 1)};
}

void TrainJob::end_norm() {
    const auto* sums = reinterpret_cast<const float*>(slot->norm_sums.mapped().data());
    double squares = 0;
    for (uint32_t i = 0; i < gpu::TrainKernels::grad_norm_groups(norm_params()); ++i) squares += sums[i];
    report.grad_norm = std::sqrt(squares) / static_cast<double>(n_gradient_tokens);
    if (!std::isfinite(report.grad_norm)) {
        has_gradients = false;
        phase = Phase::kDone;
        return;
    }
    const double max_norm = options.optimizer.max_grad_norm;
    clip = max_norm > 0 ? std::min(1.0, max_norm / (report.grad_norm + kClipEps)) : 1.0;
    report.is_clipped = clip < 1.0;
    phase = Phase::kUpdate;
}

gpu::TrainAdamwParams TrainJob::update_params() const {
    const OptimizerSettings& o = options.optimizer;
    const TrainParameters& parameters = *slot->parameters;
    const double k = static_cast<double>(n_steps) + 1;
    return {.values = parameters.range(TrainParameters::Range::kValues).address(),
            .gradients = parameters.range(TrainParameters::Range::kGradients).address(),
            .first = parameters.range(TrainParameters::Range::kFirst).address(),
            .second = parameters.range(TrainParameters::Range::kSecond).address(),
            .n = static_cast<uint32_t>(parameters.n_elements()),
            .factor = static_cast<float>(clip / static_cast<double>(n_gradient_tokens)),
            .keep = static_cast<float>(1.0 - learning_rate * o.weight_decay),
            .one_minus_beta1 = static_cast<float>(1.0 - o.beta1),
            .beta2 = static_cast<float>(o.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - o.beta2),
            .step_size = static_cast<float>(learning_rate / (1.0 - std::pow(o.beta1, k))),
            .root = static_cast<float>(std::sqrt(1.0 - std::pow(o.beta2, k))),
            .eps = static_cast<float>(o.eps),
            .pad = 0};
}

void TrainJob::end_update() {
    ++n_steps;
    has_gradients = false;
    report.is_applied = true;
    phase = Phase::kDone;
}

}  // namespace lorad::model
