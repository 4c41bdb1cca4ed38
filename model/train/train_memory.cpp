#include "model/train/train_memory.h"

#include <algorithm>
#include <array>
#include <utility>

#include "gpu/kernels/kernel_options.h"
#include "gpu/upload.h"
#include "model/rope.h"
#include "model/train/micro_batch.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr uint64_t kLogitElements = uint64_t{1} << 26;
constexpr uint64_t kScoreElements = uint64_t{1} << 27;
constexpr uint32_t kChunkRowsMax = 1024;
constexpr uint64_t kAlignBytes = 256;
constexpr uint32_t kNormGroupsMax = 4096;

uint64_t aligned(uint64_t n_bytes) { return round_up(n_bytes, kAlignBytes); }

// Bytes of each buffer of TrainBuffers but sets, rope and those of the host.
struct ScratchSizes {
    uint64_t streams, row, sums, act, gate_up, attention, turned, qkv, low, scores, logits, head_low, dropped, terms, norms;
    uint64_t sum() const {
        return streams + 4 * row + sums + act + gate_up + 3 * attention + turned + qkv + low + 2 * scores + logits + head_low + dropped + terms + norms;
    }
};

ScratchSizes scratch_sizes(const ModelConfig& config, const TrainSizes& sizes) {
    const auto rows_of = [&](uint64_t stride) { return uint64_t{sizes.n_rows} * stride * sizeof(float); };
    return {.streams = rows_of(sizes.hidden_stride) * (config.n_layers + 1),
            .row = rows_of(sizes.hidden_stride),
            .sums = sizes.n_norms != 0 ? rows_of(sizes.hidden_stride) : kAlignBytes,
            .act = rows_of(sizes.ffn_stride),
            .gate_up = rows_of(sizes.gate_up_stride),
            .attention = rows_of(sizes.attention_stride),
            .turned = rows_of(sizes.turned_stride),
            .qkv = rows_of(sizes.qkv_stride),
            .low = std::max(sizes.low_bytes, kAlignBytes),
            .scores = sizes.score_elements * sizeof(float),
            .logits = uint64_t{sizes.chunk_rows} * sizes.vocab_stride * sizeof(float),
            .head_low = std::max(sizes.head_low_bytes, kAlignBytes),
            .dropped = std::max(sizes.dropped_bytes, kAlignBytes),
            .terms = std::max(sizes.terms_bytes, kAlignBytes),
            .norms = std::max<uint64_t>(sizes.n_norms * sizeof(float), kAlignBytes)};
}

void place_layer(TrainSizes& sizes, const TrainModel& model) {
    uint64_t end = 0;
    const auto take = [&](uint32_t stride) {
        const uint64_t begin = end;
        end += aligned(uint64_t{sizes.n_rows} * stride * sizeof(float));
        return begin;
    };
    std::array<bool, kTrainGroups> has_magnitudes{};
    for (const TrainLayer& layer : model.layers) {
        for (uint32_t g = 0; g < kTrainGroups; ++g) has_magnitudes[g] |= layer.groups[g].has_magnitudes();
    }
    LayerPlaces& at = sizes.places;
    at.normed = take(sizes.hidden_stride);
    at.qkv_sums = take(sizes.qkv_stride);
    at.qkv = has_magnitudes[kTrainQkv] ? take(sizes.qkv_stride) : at.qkv_sums;
    at.turned = take(sizes.turned_stride);
    at.attention = take(sizes.attention_stride);
    at.o_sums = take(sizes.hidden_stride);
    at.middle = take(sizes.hidden_stride);
    at.middle_normed = take(sizes.hidden_stride);
    at.gate_up_sums = take(sizes.gate_up_stride);
    at.gate_up = has_magnitudes[kTrainGateUp] ? take(sizes.gate_up_stride) : at.gate_up_sums;
    at.act = take(sizes.ffn_stride);
    at.down_sums = has_magnitudes[kTrainDown] ? take(sizes.hidden_stride) : at.o_sums;
    // The sums of o are read in the backward pass only where it has a magnitude.
    if (has_magnitudes[kTrainO] && !has_magnitudes[kTrainDown]) at.down_sums = take(sizes.hidden_stride);
    at.low = end;
    at.n_bytes = end + std::max(sizes.low_bytes, kAlignBytes);
}

void place_pairs(TrainSizes& sizes, const TrainModel& model, const TrainLayout& layout) {
    sizes.low_begins.resize(layout.linears.size());
    sizes.norm_begins.resize(layout.linears.size());
    for (const TrainLayer& layer : model.layers) {
        uint64_t end = 0;
        for (const TrainGroup& group : layer.groups) {
            for (const TrainPart& part : group.parts) {
                if (!part.linear) continue;
                const uint32_t i = *part.linear;
                sizes.low_begins[i] = end;
                end += aligned(uint64_t{sizes.n_rows} * round_up(layout.linears[i].rank, 8) * sizeof(float));
                if (!part.has_magnitude) continue;
                sizes.norm_begins[i] = sizes.n_norms;
                sizes.n_norms += gpu::padded(part.n);
            }
        }
        sizes.low_bytes = std::max(sizes.low_bytes, end);
    }
    const uint32_t outer_rank = std::max(round_up(layout.embedding.rank, 8), round_up(layout.head.rank, 8));
    sizes.head_low_bytes = uint64_t{2} * sizes.n_rows * outer_rank * sizeof(float);
}

}  // namespace

uint32_t TrainSizes::set_of(uint32_t layer, uint32_t n_layers) const {
    const uint32_t from_top = n_layers - 1 - layer;
    return from_top + 1 < n_sets ? from_top + 1 : 0;
}

bool TrainSizes::keeps(uint32_t layer, uint32_t n_layers) const {
    if (set_of(layer, n_layers) != 0) return true;
    return n_sets >= n_layers_needed && layer + n_layers_needed == n_layers;  // the first set is that of the lowest one alone
}

Result<TrainSizes> plan_train_sizes(const ModelConfig& config, const ModelWeights& weights, const TrainModel& model, const TrainLayout& layout,
                                    const TrainerOptions& options, uint64_t budget, TrainMemory& memory) {
    TrainSizes sizes;
    const LayerWeights& first = weights.layers.front();
    sizes.n_positions = options.n_positions_max;
    sizes.n_rows = std::max(options.n_rows, options.n_positions_max);
    sizes.hidden_stride = gpu::padded(config.hidden_size);
    sizes.qkv_stride = first.qkv.n_padded;
    sizes.turned_stride = gpu::padded(config.q_size() + config.kv_size());
    sizes.attention_stride = gpu::padded(config.q_size());
    sizes.gate_up_stride = first.gate_up.n_padded;
    sizes.ffn_stride = gpu::padded(config.intermediate_size);
    sizes.vocab_stride = gpu::padded(config.vocab_size);
    place_pairs(sizes, model, layout);
    place_layer(sizes, model);
    sizes.chunk_rows = std::clamp(static_cast<uint32_t>(kLogitElements / sizes.vocab_stride), 1u, std::min(kChunkRowsMax, sizes.n_rows));
    const uint64_t longest = round_up(sizes.n_positions, 64u), longest_run = uint64_t{queries_of_run(sizes.n_positions)} * longest;
    sizes.score_elements = std::max(longest_run, std::min(kScoreElements, uint64_t{sizes.n_rows} * longest * config.n_heads));
    if (options.lora_dropout > 0) sizes.dropped_bytes = uint64_t{sizes.n_rows} * std::max({sizes.hidden_stride, sizes.attention_stride, sizes.ffn_stride}) * sizeof(float);
    if (model.trains_norms()) sizes.terms_bytes = uint64_t{sizes.n_rows} * std::max(sizes.hidden_stride, sizes.turned_stride) * sizeof(float);
    sizes.n_layers_needed = config.n_layers - model.first_trained_layer;

    memory.parameters = layout.n_elements * sizeof(float) * TrainParameters::kRanges;
    memory.scratch = scratch_sizes(config, sizes).sum() + rope_table_bytes(config, sizes.n_positions);
    const uint64_t fixed = memory.parameters + memory.scratch, set = sizes.places.n_bytes;
    if (fixed + set > budget) {
        return make_error(ErrorCode::kOutOfMemory,
                          format("training needs {} bytes: {} for {} trained numbers with gradients and moments, {} for passes of {} rows, {} for a layer's activations; "
                                 "there are {}",
                                 fixed + set, memory.parameters, layout.n_elements, memory.scratch, sizes.n_rows, set, budget));
    }
    sizes.n_sets = static_cast<uint32_t>(std::clamp<uint64_t>((budget - fixed) / set, 1, std::max(sizes.n_layers_needed, 1u)));
    memory.activations = sizes.n_sets * set;
    memory.n_kept_layers = 0;
    for (uint32_t layer = model.first_trained_layer; layer < config.n_layers; ++layer) memory.n_kept_layers += sizes.keeps(layer, config.n_layers);
    return sizes;
}

uint64_t rope_table_bytes(const ModelConfig& config, uint32_t n_positions) {
    return std::max<uint64_t>((uint64_t{short_text_tokens(config.rope, n_positions)} + n_positions) * config.rope.rotary_dim * sizeof(float), kAlignBytes);
}

Result<TrainBuffers> TrainBuffers::create(gpu::Device& device, const ModelConfig& config, const TrainSizes& sizes) {
    TrainBuffers made;
    const ScratchSizes bytes = scratch_sizes(config, sizes);
    const auto make = [&](gpu::Buffer& buffer, uint64_t n_bytes, const char* name, gpu::MemoryKind kind = gpu::MemoryKind::kDeviceLocal) -> Status {
        TRY_ASSIGN(buffer, device.create_buffer(n_bytes, kind, name));
        return ok_status();
    };
    made.sets.resize(sizes.n_sets);
    for (gpu::Buffer& set : made.sets) TRY(make(set, sizes.places.n_bytes, "training activations"));
    TRY(make(made.streams, bytes.streams, "training streams"));
    for (gpu::Buffer* buffer : {&made.dstream, &made.dnormed, &made.head_normed, &made.dhead_normed}) TRY(make(*buffer, bytes.row, "training rows"));
    TRY(make(made.dsums, bytes.sums, "training sums"));
    TRY(make(made.dact, bytes.act, "training act"));
    TRY(make(made.dgate_up, bytes.gate_up, "training gate_up"));
    TRY(make(made.dattention, bytes.attention, "training attention"));
    TRY(make(made.dkeys, bytes.attention, "training keys"));
    TRY(make(made.dvalues, bytes.attention, "training values"));
    TRY(make(made.dturned, bytes.turned, "training turned"));
    TRY(make(made.dqkv, bytes.qkv, "training qkv"));
    TRY(make(made.dlow, bytes.low, "training low"));
    TRY(make(made.scores, bytes.scores, "training scores"));
    TRY(make(made.dscores, bytes.scores, "training scores"));
    TRY(make(made.logits, bytes.logits, "training logits"));
    TRY(make(made.head_low, bytes.head_low, "training low"));
    TRY(make(made.dropped, bytes.dropped, "training dropout"));
    TRY(make(made.terms, bytes.terms, "training terms"));
    TRY(make(made.inverse_norms, bytes.norms, "training norms"));
    TRY(make(made.losses, uint64_t{sizes.n_rows} * sizeof(gpu::TrainLoss), "training losses", gpu::MemoryKind::kHostReadback));
    TRY(make(made.norm_sums, kNormGroupsMax * sizeof(float), "training norms", gpu::MemoryKind::kHostReadback));
    const std::vector<float> rope = rope_table(config.rope, sizes.n_positions);
    TRY(make(made.rope, rope_table_bytes(config, sizes.n_positions), "training rope table"));
    if (!rope.empty()) TRY(device.uploader().upload(made.rope, 0, std::as_bytes(std::span(rope))));
    TRY(device.uploader().finish());
    return made;
}

}  // namespace lorad::model
