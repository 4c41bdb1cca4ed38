// Kernels of training that go by rows, columns or single numbers: embedding, norms, heads, softmax, activation,
// dropout, the loss, the optimizer.
#include <algorithm>

#include "gpu/kernels/launch.h"
#include "gpu/kernels/train/train_kernels.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kGroupsAcross = 32768;  // workgroups along one side of a grid

struct TrainEmbedConstants {
    uint32_t threads, backward, table_type, transposed;
};

}  // namespace

uint32_t TrainKernels::row_threads(uint32_t elements) const {
    return workgroup_size(facts_.capabilities, threads_for(elements, 64, 512), 32);
}

void TrainKernels::round(Recorder& recorder, const TrainRoundParams& params, ScalarType to, uint32_t rows) {
    CHECK(params.columns % 4 == 0);
    const uint32_t size = workgroup_size(facts_.capabilities, params.columns < 256 ? 32 : 128, 32);
    const Kernel* k = kernel(
        "train_round", RoundConstants{.threads = size, .to = static_cast<uint32_t>(to), .in_blocks = 0, .type = 0});
    if (k == nullptr) return;
    const TrainRoundKernelParams of_kernel{.from = params.from,
                                           .to = params.to,
                                           .columns = params.columns,
                                           .from_stride = params.from_stride,
                                           .to_stride = params.to_stride,
                                           .rows = rows,
                                           .factor = params.factor,
                                           .pad = 0};
    recorder.dispatch(*k, of_kernel, ceil_div(params.columns / 4, size), rows, 1,
                      {"train_round", uint64_t{rows} * params.columns * 6, 0});
}

void TrainKernels::round_items(Recorder& recorder, const TrainRoundItemsParams& params, ScalarType to) {
    const uint32_t size = workgroup_size(facts_.capabilities, 256, 32);
    struct Constants {
        uint32_t threads, to;
    };
    const Kernel* k = kernel("train_round_items", Constants{.threads = size, .to = static_cast<uint32_t>(to)});
    if (k == nullptr || params.n_quads == 0) return;
    const uint32_t n_groups = ceil_div(params.n_quads, size), across = std::min(n_groups, kGroupsAcross);
    recorder.dispatch(*k, params, across, ceil_div(n_groups, across), 1,
                      {"train_round_items", uint64_t{params.n_quads} * 4 * 6, 0});
}

void TrainKernels::sum_heads(Recorder& recorder, const TrainSumHeadsParams& params, uint32_t rows) {
    const uint32_t size = workgroup_size(facts_.capabilities, 128, 32);
    const Kernel* k = kernel("train_sum_heads", TypedRowConstants{.threads = size, .type = 0});
    if (k == nullptr) return;
    const TrainHeadSumsParams of_kernel{.from = params.from,
                                        .to = params.to,
                                        .dout = 0,
                                        .rounded = 0,
                                        .columns = params.columns,
                                        .head_dim = params.head_dim,
                                        .n_group = params.n_group,
                                        .from_stride = params.from_stride,
                                        .to_stride = params.to_stride,
                                        .pad = 0};
    recorder.dispatch(*k, of_kernel, ceil_div(params.columns, size), rows, 1,
                      {"train_sum_heads", uint64_t{rows} * params.columns * (params.n_group + 1) * 4, 0});
}

void TrainKernels::embed(Recorder& recorder, const TrainEmbedParams& params, WeightKind table, bool is_transposed,
                         uint32_t rows) {
    const bool is_packed_table = is_packed(table.format);
    CHECK(!is_packed_table || (!is_transposed && params.x_stride == params.table_stride));
    const uint32_t rounding = is_packed_table ? static_cast<uint32_t>(table.type) << kWeightRoundShift : 0;
    const Kernel* k = kernel("train_embed", TrainEmbedConstants{.threads = row_threads(params.hidden),
                                                                .backward = 0,
                                                                .table_type = number_of(table.format) | rounding,
                                                                .transposed = is_transposed});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows, 1, 1,
                      {"train_embed", uint64_t{rows} * params.hidden * (4 + bytes_of(table.type)), 0});
}

void TrainKernels::embed_backward(Recorder& recorder, const TrainEmbedBackwardParams& params, bool is_transposed,
                                  uint32_t n_tokens) {
    const uint32_t size = row_threads(64);
    const Kernel* k =
        kernel("train_embed",
               TrainEmbedConstants{.threads = size, .backward = 1, .table_type = 0, .transposed = is_transposed});
    if (k == nullptr) return;
    const TrainEmbedParams of_kernel{.table = params.dtable,
                                     .tokens = params.tokens,
                                     .x = params.dx,
                                     .rows = params.rows,
                                     .hidden = params.hidden,
                                     .table_stride = params.table_stride,
                                     .x_stride = params.x_stride,
                                     .pad = 0};
    recorder.dispatch(*k, of_kernel, n_tokens, ceil_div(params.hidden, size), 1,
                      {"train_embed_backward", uint64_t{n_tokens} * params.hidden * 12, 0});
}

void TrainKernels::norm(Recorder& recorder, TrainDirection direction, const TrainNormParams& params, uint32_t rows,
                        ScalarType y_type) {
    const bool is_backward = direction == TrainDirection::kBackward;
    struct Constants {
        uint32_t threads, backward, type;
    };
    const Kernel* k = kernel("train_norm", Constants{.threads = row_threads(params.hidden),
                                                     .backward = is_backward,
                                                     .type = static_cast<uint32_t>(y_type)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows, 1, 1,
                      {is_backward ? "train_norm_backward" : "train_norm",
                       uint64_t{rows} * params.hidden * (is_backward ? 16 : 8), 0});
}

void TrainKernels::heads(Recorder& recorder, TrainDirection direction, const TrainHeadsParams& params, uint32_t n_heads,
                         uint32_t head_dim, uint32_t rotary_dim, uint32_t rows, ScalarType turned_type) {
    CHECK(turned_type == ScalarType::kF32 || head_dim % 2 == 0);
    CHECK(rotary_dim % 2 == 0 && rotary_dim <= head_dim && (params.q_gamma != 0) == (params.k_gamma != 0));
    const bool is_backward = direction == TrainDirection::kBackward;
    const uint32_t size = workgroup_size(facts_.capabilities, threads_for(head_dim, 32, 128), 32);
    struct Constants {
        uint32_t threads, backward, head_dim, rotary_dim, type;
    };
    const Kernel* k = kernel("train_heads", Constants{.threads = size,
                                                      .backward = is_backward,
                                                      .head_dim = head_dim,
                                                      .rotary_dim = rotary_dim,
                                                      .type = static_cast<uint32_t>(turned_type)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, n_heads, rows, 1,
                      {is_backward ? "train_heads_backward" : "train_heads",
                       uint64_t{rows} * n_heads * head_dim * (is_backward ? 12 : 8), 0});
}

void TrainKernels::softmax(Recorder& recorder, TrainDirection direction, const TrainSoftmaxParams& params,
                           uint32_t n_queries, uint32_t n_runs) {
    const bool is_backward = direction == TrainDirection::kBackward;
    struct Constants {
        uint32_t threads, backward;
    };
    const Kernel* k = kernel("train_softmax", Constants{.threads = row_threads(256), .backward = is_backward});
    if (k == nullptr) return;
    recorder.dispatch(
        *k, params, n_queries, 1, n_runs,
        {is_backward ? "train_softmax_backward" : "train_softmax", uint64_t{n_runs} * n_queries * n_queries * 8, 0});
}

void TrainKernels::act(Recorder& recorder, TrainDirection direction, const TrainActParams& params, ScalarType type) {
    const bool is_backward = direction == TrainDirection::kBackward;
    const uint32_t size = workgroup_size(facts_.capabilities, 256, 32);
    const uint32_t columns = type == ScalarType::kF32 ? 1 : 4, element = bytes_of(type);
    CHECK(params.ffn % columns == 0);
    struct Constants {
        uint32_t threads, backward, type;
    };
    const Kernel* k =
        kernel("train_act", Constants{.threads = size, .backward = is_backward, .type = static_cast<uint32_t>(type)});
    if (k == nullptr) return;
    const uint32_t column_bytes = is_backward ? 4 * element + 4 : 3 * element + (params.sums != 0 ? 8 : 0);
    recorder.dispatch(
        *k, params, ceil_div(params.h_stride, size * columns), params.rows, 1,
        {is_backward ? "train_act_backward" : "train_act", uint64_t{params.rows} * params.ffn * column_bytes, 0});
}

void TrainKernels::affine(Recorder& recorder, const TrainAffineParams& params, ScalarType type) {
    const uint32_t size = workgroup_size(facts_.capabilities, 256, 32), columns = type == ScalarType::kF32 ? 1 : 4;
    CHECK(columns == 1 || (params.n % columns == 0 && params.base == 0 && params.bias == 0));
    const Kernel* k = kernel("train_affine", TypedRowConstants{.threads = size, .type = static_cast<uint32_t>(type)});
    if (k == nullptr) return;
    recorder.dispatch(
        *k, params, ceil_div(params.n, size * columns), params.rows, 1,
        {"train_affine", uint64_t{params.rows} * params.n * (2 * bytes_of(type) + (params.base != 0 ? 4 : 0)), 0});
}

void TrainKernels::dropout(Recorder& recorder, const TrainDropoutParams& params, TrainDropoutForm form, uint32_t rows,
                           ScalarType type) {
    const bool adds = form == TrainDropoutForm::kAdds;
    CHECK(!adds || type == ScalarType::kF32);
    const uint32_t size = workgroup_size(facts_.capabilities, 128, 32);
    struct Constants {
        uint32_t threads, form, type;
    };
    const Kernel* k =
        kernel("train_dropout",
               Constants{.threads = size, .form = static_cast<uint32_t>(form), .type = static_cast<uint32_t>(type)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(ceil_div(params.columns, 4), size), rows, 1,
                      {"train_dropout", uint64_t{rows} * params.columns * (adds ? 3 : 2) * bytes_of(type), 0});
}

void TrainKernels::column_sums(Recorder& recorder, const TrainColumnSumsParams& params, ScalarType type) {
    const uint32_t size = workgroup_size(facts_.capabilities, 64, 32);
    const Kernel* k =
        kernel("train_column_sums", TypedRowConstants{.threads = size, .type = static_cast<uint32_t>(type)});
    if (k == nullptr) return;
    const uint64_t n_bytes =
        uint64_t{params.rows} * params.n_columns * params.n_parts * bytes_of(type) * (params.b != 0 ? 2 : 1);
    recorder.dispatch(*k, params, ceil_div(params.n_columns, size), 1, 1, {"train_column_sums", n_bytes, 0});
}

void TrainKernels::cross_entropy(Recorder& recorder, const TrainCrossEntropyParams& params, bool with_gradient,
                                 uint32_t rows) {
    struct Constants {
        uint32_t threads, gradient;
    };
    const Kernel* k =
        kernel("train_cross_entropy", Constants{.threads = row_threads(params.vocab), .gradient = with_gradient});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows, 1, 1,
                      {"train_cross_entropy", uint64_t{rows} * params.vocab * (with_gradient ? 16 : 8), 0});
}

void TrainKernels::grad_norm(Recorder& recorder, const TrainGradNormParams& params) {
    const Kernel* k = kernel("train_grad_norm", WorkgroupConstants{.threads = row_threads(params.n_per_group)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, grad_norm_groups(params), 1, 1, {"train_grad_norm", uint64_t{params.n} * 4, 0});
}

void TrainKernels::adamw(Recorder& recorder, const TrainAdamwParams& params) {
    const uint32_t size = workgroup_size(facts_.capabilities, 256, 32);
    const Kernel* k = kernel("train_adamw", WorkgroupConstants{.threads = size});
    if (k == nullptr) return;
    const uint32_t n_groups = ceil_div(params.n, size), across = std::min(n_groups, kGroupsAcross);
    recorder.dispatch(*k, params, across, ceil_div(n_groups, across), 1, {"train_adamw", uint64_t{params.n} * 28, 0});
}

}  // namespace lorad::gpu
