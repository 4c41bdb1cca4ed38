#include "model/train/train_memory.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "gpu/kernels/kernel_options.h"
#include "gpu/upload.h"
#include "model/config/rope.h"
#include "model/train/micro_batch.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr uint64_t kLogitElements = uint64_t{80} << 20;
constexpr uint64_t kScoreElements = uint64_t{1} << 26;
constexpr uint32_t kChunkRowsMax = 1024;
constexpr uint64_t kAlignBytes = 256;

uint64_t aligned(uint64_t n_bytes) { return round_up(n_bytes, kAlignBytes); }

// Bytes of each buffer of TrainBuffers but sets, rope and those of the host.
struct ScratchSizes {
    uint64_t streams, row, sums, act, gate_up_sums, dact, gate_up, attention, turned, qkv, scores, qkv_sums, rounded,
        dots, logits, embedding_low, terms, unpacked;
    uint64_t sum() const {
        return streams + 5 * row + sums + act + gate_up_sums + dact + gate_up + 3 * attention + turned + qkv +
               2 * scores + qkv_sums + rounded + dots + logits + embedding_low + terms + unpacked;
    }
};

ScratchSizes scratch_sizes(const ModelConfig& config, const TrainSizes& sizes) {
    const auto rows_of = [&](uint64_t stride, gpu::ScalarType type = gpu::ScalarType::kF32) {
        return uint64_t{sizes.n_rows} * stride * gpu::bytes_of(type);
    };
    const bool has_sums = sizes.act_type != gpu::ScalarType::kF32;
    return {
        .streams = rows_of(sizes.hidden_stride) * (config.n_layers + 1),
        .row = rows_of(sizes.hidden_stride),
        .sums = std::ranges::any_of(sizes.has_magnitudes, std::identity()) ? rows_of(sizes.hidden_stride) : kAlignBytes,
        .act = rows_of(sizes.ffn_stride, sizes.act_type),
        .gate_up_sums = has_sums ? rows_of(sizes.gate_up_stride) : kAlignBytes,
        .dact = rows_of(sizes.ffn_stride),
        .gate_up = rows_of(sizes.gate_up_stride, sizes.act_type),
        .attention = rows_of(sizes.attention_stride),
        .turned = rows_of(sizes.turned_stride),
        .qkv = rows_of(sizes.qkv_stride),
        .scores = std::max(sizes.score_elements * sizeof(float), kAlignBytes),
        .qkv_sums = sizes.keeps_qkv ? kAlignBytes : rows_of(sizes.qkv_stride),
        .rounded = sizes.has_flash ? rows_of(sizes.attention_stride, sizes.act_type) : kAlignBytes,
        .dots = sizes.has_flash ? rows_of(config.n_heads) : kAlignBytes,
        .logits = uint64_t{sizes.chunk_rows} * sizes.vocab_stride * sizeof(float),
        .embedding_low = std::max(sizes.embedding_low_bytes, kAlignBytes),
        .terms = std::max(sizes.terms_bytes, kAlignBytes),
        .unpacked = std::max(sizes.unpacked_bytes, kAlignBytes)};
}

void place_layer(TrainSizes& sizes, uint32_t n_heads) {
    uint64_t end = 0;
    const auto take = [&](uint32_t stride, gpu::ScalarType type = gpu::ScalarType::kF32) {
        const uint64_t begin = end;
        end += aligned(uint64_t{sizes.n_rows} * stride * gpu::bytes_of(type));
        return begin;
    };
    const auto& has_magnitudes = sizes.has_magnitudes;
    LayerPlaces& at = sizes.places;
    at.normed = take(sizes.hidden_stride, sizes.act_type);
    at.qkv_sums = sizes.keeps_qkv ? take(sizes.qkv_stride) : 0;
    at.qkv = has_magnitudes[kTrainQkv] ? take(sizes.qkv_stride) : at.qkv_sums;
    at.turned = sizes.has_flash ? take(sizes.qkv_stride, sizes.act_type) : take(sizes.turned_stride);
    at.lse = sizes.has_flash ? take(n_heads) : 0;
    at.attention = take(sizes.attention_stride);
    at.o_sums = has_magnitudes[kTrainO] ? take(sizes.hidden_stride) : 0;
    at.middle = take(sizes.hidden_stride);
    at.middle_normed = take(sizes.hidden_stride, sizes.act_type);
    at.gate_up = take(sizes.gate_up_stride, sizes.act_type);
    at.gate_up_sums = has_magnitudes[kTrainGateUp] ? take(sizes.gate_up_stride, sizes.act_type) : at.gate_up;
    at.down_sums = has_magnitudes[kTrainDown] ? take(sizes.hidden_stride) : 0;
    at.n_bytes = end;
}

// The size of the largest matrix that is unpacked for its products; the embedding's rows are read where they lie.
uint64_t unpacked_bytes(const ModelWeights& weights) {
    uint64_t most = 0;
    const auto add = [&](const Matrix& w) {
        if (w.is_packed()) most = std::max(most, w.plain_bytes());
    };
    for (const LayerWeights& layer : weights.layers) {
        for (const Matrix* w : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) add(*w);
    }
    add(weights.output());
    return most;
}

}  // namespace

uint32_t TrainSizes::set_of(uint32_t layer, uint32_t n_layers) const {
    const uint32_t from_top = n_layers - 1 - layer;
    return from_top + 1 < n_sets ? from_top + 1 : 0;
}

bool TrainSizes::keeps(uint32_t layer, uint32_t n_layers) const {
    if (set_of(layer, n_layers) != 0) return true;
    // the first set is that of the lowest one alone
    return n_sets >= n_layers_needed && layer + n_layers_needed == n_layers;
}

gpu::TrainKernelOptions train_kernel_options(const ModelConfig& config, const ModelWeights& weights,
                                             const TrainerOptions& options) {
    return {.matrix_type = options.in_f32 ? gpu::ScalarType::kF32 : weights.layers.front().qkv.type,
            .head_dim = config.head_dim,
            .head_group = config.n_heads / config.n_kv_heads};
}

// Products that read 16 bits, and what writes these four columns at a time.
gpu::ScalarType train_act_type(const gpu::DeviceCapabilities& capabilities, const ModelConfig& config,
                               const ModelWeights& weights, const TrainerOptions& options) {
    const bool pays = (capabilities.coopmat_f16 && !capabilities.small_workgroups) || options.keeps_16_bits;
    const bool can = config.intermediate_size % 4 == 0;
    return pays && can ? train_kernel_options(config, weights, options).matrix_type : gpu::ScalarType::kF32;
}

Result<TrainPlan> plan_training(const gpu::TrainRungs& rungs, const gpu::DeviceCapabilities& capabilities,
                                const ModelConfig& config, const ModelWeights& weights, const TrainModel& model,
                                const TrainLayout& layout, const TrainerOptions& options, uint64_t budget) {
    TrainPlan plan;
    TrainSizes& sizes = plan.sizes;
    TrainMemory& memory = plan.memory;
    const LayerWeights& first = weights.layers.front();
    sizes.n_positions = options.n_positions_max;
    // Products by warpgroups write whole tiles of rows.
    sizes.n_rows = round_up(std::max(options.n_rows, options.n_positions_max), gpu::kTrainTileRows);
    sizes.hidden_stride = gpu::padded(config.hidden_size);
    sizes.qkv_stride = first.qkv.n_padded;
    sizes.turned_stride = gpu::padded(config.q_size() + config.kv_size());
    sizes.attention_stride = gpu::padded(config.q_size());
    sizes.gate_up_stride = first.gate_up.n_padded;
    sizes.ffn_stride = gpu::padded(config.intermediate_size);
    sizes.vocab_stride = gpu::padded(config.vocab_size);
    for (const TrainLayer& layer : model.layers) {
        for (uint32_t g = 0; g < kTrainGroups; ++g) sizes.has_magnitudes[g] |= layer.groups[g].has_magnitudes();
    }
    sizes.act_type = train_act_type(capabilities, config, weights, options);
    sizes.has_flash = rungs.has_flash && sizes.act_type == rungs.matrix_type;
    sizes.keeps_qkv = !sizes.has_flash || config.qk_norm || sizes.has_magnitudes[kTrainQkv];
    plan.slot = SlotSizes::plan(sizes, model, layout, options);
    sizes.embedding_low_bytes = uint64_t{2} * sizes.n_rows * round_up(layout.embedding.rank, 8) * sizeof(float);
    place_layer(sizes, config.n_heads);
    const auto chunk_tiles = static_cast<uint32_t>(kLogitElements / sizes.vocab_stride / gpu::kTrainTileRows);
    sizes.chunk_rows =
        std::clamp(chunk_tiles * gpu::kTrainTileRows, gpu::kTrainTileRows, std::min(kChunkRowsMax, sizes.n_rows));
    sizes.block_bytes = std::max(uint64_t{sizes.n_rows} * std::max({sizes.hidden_stride, sizes.attention_stride,
                                                                    sizes.gate_up_stride, sizes.qkv_stride}),
                                 uint64_t{sizes.chunk_rows} * sizes.vocab_stride) *
                        2;
    const uint64_t longest = round_up(sizes.n_positions, 64u),
                   longest_run = uint64_t{run_queries(sizes.n_positions)} * longest;
    if (!sizes.has_flash)
        sizes.score_elements =
            std::max(longest_run, std::min(kScoreElements, uint64_t{sizes.n_rows} * longest * config.n_heads));
    if (model.trains_norms())
        sizes.terms_bytes = uint64_t{sizes.n_rows} * std::max(sizes.hidden_stride, sizes.turned_stride) * sizeof(float);
    sizes.unpacked_bytes = unpacked_bytes(weights);
    sizes.n_layers_needed = config.n_layers - model.first_trained_layer;

    memory.parameters = layout.n_elements * sizeof(float) * TrainParameters::kRanges;
    memory.scratch = scratch_sizes(config, sizes).sum() + rope_table_bytes(config, sizes.n_positions) +
                     plan.slot.fixed_bytes() + gpu::TrainKernels::scratch_bytes(rungs, sizes.block_bytes);
    const uint64_t fixed = memory.parameters + memory.scratch, set = sizes.places.n_bytes + plan.slot.low_bytes;
    if (fixed + set > budget) {
        return make_error(
            ErrorCode::kOutOfMemory,
            format("training needs {} bytes: {} for {} trained numbers with gradients and moments, {} for passes of {} "
                   "rows{}, {} for a layer's activations; "
                   "there are {}",
                   fixed + set, memory.parameters, layout.n_elements, memory.scratch, sizes.n_rows,
                   sizes.unpacked_bytes == 0
                       ? std::string()
                       : format(", of them {} for one matrix that is unpacked", sizes.unpacked_bytes),
                   set, budget));
    }
    sizes.n_sets =
        static_cast<uint32_t>(std::clamp<uint64_t>((budget - fixed) / set, 1, std::max(sizes.n_layers_needed, 1u)));
    memory.activations = sizes.n_sets * set;
    memory.n_kept_layers = 0;
    for (uint32_t layer = model.first_trained_layer; layer < config.n_layers; ++layer)
        memory.n_kept_layers += sizes.keeps(layer, config.n_layers);
    return plan;
}

uint64_t rope_table_bytes(const ModelConfig& config, uint32_t n_positions) {
    return std::max<uint64_t>(
        (uint64_t{short_text_tokens(config.rope, n_positions)} + n_positions) * config.rope.rotary_dim * sizeof(float),
        kAlignBytes);
}

Result<TrainBuffers> TrainBuffers::create(gpu::Device& device, const ModelConfig& config, const TrainSizes& sizes) {
    TrainBuffers made;
    const ScratchSizes bytes = scratch_sizes(config, sizes);
    const auto make = [&](gpu::Buffer& buffer, uint64_t n_bytes, const char* name,
                          gpu::MemoryKind kind = gpu::MemoryKind::kDeviceLocal) -> Status {
        TRY_ASSIGN(buffer, device.create_buffer(n_bytes, kind, name));
        return ok_status();
    };
    made.sets.resize(sizes.n_sets);
    for (gpu::Buffer& set : made.sets) TRY(make(set, sizes.places.n_bytes, "training activations"));
    TRY(make(made.streams, bytes.streams, "training streams"));
    for (gpu::Buffer* buffer : {&made.dstream, &made.dnormed, &made.head_normed, &made.dhead_normed, &made.sums})
        TRY(make(*buffer, bytes.row, "training rows"));
    TRY(make(made.dsums, bytes.sums, "training sums"));
    TRY(make(made.qkv_sums, bytes.qkv_sums, "training qkv"));
    TRY(make(made.rounded, bytes.rounded, "training attention"));
    TRY(make(made.dots, bytes.dots, "training attention"));
    TRY(make(made.act, bytes.act, "training act"));
    TRY(make(made.gate_up_sums, bytes.gate_up_sums, "training gate_up"));
    TRY(make(made.dact, bytes.dact, "training act"));
    TRY(make(made.dgate_up, bytes.gate_up, "training gate_up"));
    TRY(make(made.dattention, bytes.attention, "training attention"));
    TRY(make(made.dkeys, bytes.attention, "training keys"));
    TRY(make(made.dvalues, bytes.attention, "training values"));
    TRY(make(made.dturned, bytes.turned, "training turned"));
    TRY(make(made.dqkv, bytes.qkv, "training qkv"));
    TRY(make(made.scores, bytes.scores, "training scores"));
    TRY(make(made.dscores, bytes.scores, "training scores"));
    TRY(make(made.logits, bytes.logits, "training logits"));
    TRY(make(made.embedding_low, bytes.embedding_low, "training low"));
    TRY(make(made.terms, bytes.terms, "training terms"));
    TRY(make(made.unpacked, bytes.unpacked, "training unpacked weights"));
    TRY(make(made.losses, uint64_t{sizes.n_rows} * sizeof(gpu::TrainLoss), "training losses",
             gpu::MemoryKind::kHostReadback));
    const std::vector<float> rope = rope_table(config.rope, sizes.n_positions);
    TRY(make(made.rope, rope_table_bytes(config, sizes.n_positions), "training rope table"));
    if (!rope.empty()) TRY(device.uploader().upload(made.rope, 0, std::as_bytes(std::span(rope))));
    TRY(device.uploader().finish());
    return made;
}

}  // namespace lorad::model
