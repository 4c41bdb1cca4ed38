#include "model/train/train_sharing.h"

#include <algorithm>

#include "proto/base/format.h"

namespace lorad::model {

std::optional<std::string> why_alone(const TrainableAdapter& adapter) {
    for (const TrainedLinear& linear : adapter.linears) {
        if (linear.pair.magnitude) return "DoRA: magnitudes scale the sums of all rows";
    }
    const bool has_b_biases = std::ranges::any_of(
        adapter.linears, [](const TrainedLinear& linear) { return linear.pair.b_bias.has_value(); });
    if (has_b_biases || !adapter.biases.empty()) return "a trained bias";
    if (adapter.embedding) return "a pair on the embedding";
    if (!adapter.wholes.empty())
        return format("{}: a tensor of the base as a whole", adapter.wholes.front().weight.name);
    return std::nullopt;
}

Status may_share_passes(const SharedPasses& passes, const TrainableAdapter& adapter, const TrainerOptions& options) {
    const auto refuse = [](std::string why) { return make_error(ErrorCode::kInvalidConfig, std::move(why)); };
    if (passes.why_alone) return refuse(format("the job under way is trained alone ({})", *passes.why_alone));
    if (const auto why = why_alone(adapter)) return refuse(format("the job is trained alone ({})", *why));
    if (passes.options.in_f32 != options.in_f32) return refuse("one of the jobs is to be trained in f32");
    if (passes.sizes.act_type != passes.act_type)
        return refuse("of the jobs one keeps its activations in 16 bits, the other in f32");
    const uint32_t n_rows = std::max(options.n_rows, options.n_positions_max);
    if (n_rows > passes.sizes.n_rows)
        return refuse(format("its micro-batches have up to {} rows: the passes of those under way have room for {}",
                             n_rows, passes.sizes.n_rows));
    if (options.n_positions_max > passes.sizes.n_positions)
        return refuse(format("its longest example has {} tokens: the passes of those under way have room for {}",
                             options.n_positions_max, passes.sizes.n_positions));
    return ok_status();
}

}  // namespace lorad::model
