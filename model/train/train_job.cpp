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
    return ok_status();
}

}  // namespace

Status TrainJob::begin(const ModelConfig& config, const TrainSizes& sizes, std::vector<TrainExample> of, bool steps,
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
    for (const MicroBatch& one : made) {
        begun.n_tokens += one.n_rows();
        begun.n_trained_tokens += one.targets.size();
    }
    if (begun.n_trained_tokens == 0)
        return make_error(ErrorCode::kInvalidRequest, "no token of the examples is trained: every weight is 0");
    is_step = steps;
    learning_rate = rate;
    batches = std::move(made);
    batch_idx = 0;
    report = std::move(begun);
    phase = Phase::kBatches;
    return ok_status();
}

void TrainJob::abandon() {
    phase = Phase::kIdle;
    batches.clear();
    report = {};
    n_tokens_of_gradients = 0;
}

TrainDropout TrainJob::dropout() const {
    return {.p = is_step ? options.lora_dropout : 0.0f, .seed = options.seed, .step = static_cast<uint32_t>(n_steps)};
}

void TrainJob::end_batch(const gpu::TrainLoss* losses, bool is_shared) {
    report.n_shared += is_shared;
    const MicroBatch& done = batch();
    for (size_t i = 0; i < done.targets.size(); ++i) {
        ExampleLoss& example = report.examples[done.examples[done.target_examples[i]]];
        example.loss_sum += losses[i].loss;
        example.n_trained += 1;
        example.n_correct += losses[i].is_best;
    }
    if (++batch_idx < batches.size()) return;
    for (const ExampleLoss& example : report.examples) report.loss += example.loss_sum;
    report.loss /= static_cast<double>(report.n_trained_tokens);
    if (is_step) n_tokens_of_gradients = report.n_trained_tokens;
    phase = is_step && std::isfinite(report.loss) ? Phase::kNorm : Phase::kDone;
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
    report.grad_norm = std::sqrt(squares) / static_cast<double>(report.n_trained_tokens);
    if (!std::isfinite(report.grad_norm)) {
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
            .factor = static_cast<float>(clip / static_cast<double>(report.n_trained_tokens)),
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
    report.is_applied = true;
    phase = Phase::kDone;
}

}  // namespace lorad::model
