#include "model/train/train_slot.h"

#include <algorithm>
#include <utility>

#include "gpu/kernels/kernel_options.h"
#include "gpu/upload.h"
#include "model/train/train_memory.h"

namespace lorad::model {
namespace {

constexpr uint64_t kSlotAlignBytes = 256;
constexpr uint32_t kNormSumsMax = 4096;

uint64_t at_least(uint64_t n_bytes) { return std::max(n_bytes, kSlotAlignBytes); }

}  // namespace

SlotSizes SlotSizes::plan(const TrainSizes& sizes, const TrainModel& model, const TrainLayout& layout,
                          const TrainerOptions& options) {
    SlotSizes slot;
    slot.n_rows = round_up(std::max(options.n_rows, options.n_positions_max), gpu::kTrainTileRows);
    if (sizes.act_type != gpu::ScalarType::kF32) slot.shadows = ShadowPlaces::plan(model, layout);
    if (slot.shadows) slot.n_shadow_items = 2 * static_cast<uint32_t>(layout.linears.size());
    slot.low_begins.resize(layout.linears.size());
    slot.low_strides.resize(layout.linears.size());
    slot.norm_begins.resize(layout.linears.size());
    const auto rows_bytes = [&](uint32_t stride) {
        return round_up(uint64_t{slot.n_rows} * stride * sizeof(float), kSlotAlignBytes);
    };
    size_t group_idx = 0;
    for (const TrainLayer& layer : model.layers) {
        uint64_t end = 0;
        for (const TrainGroup& group : layer.groups) {
            const uint32_t group_stride = slot.shadows ? slot.shadows->groups[group_idx++].n_ranks : 0;
            for (const TrainPart& part : group.parts) {
                if (!part.linear) continue;
                const uint32_t i = *part.linear;
                if (slot.shadows) {
                    slot.low_begins[i] = end + slot.shadows->rank_begins[i] * sizeof(float);
                    slot.low_strides[i] = group_stride;
                } else {
                    slot.low_begins[i] = end;
                    slot.low_strides[i] = round_up(layout.linears[i].rank, 8);
                    end += rows_bytes(slot.low_strides[i]);
                }
                if (!part.has_magnitude) continue;
                slot.norm_begins[i] = slot.n_norms;
                slot.n_norms += gpu::padded(part.n);
            }
            end += rows_bytes(group_stride);
            slot.bias_begins.push_back(group.trains_bias() ? std::optional(slot.n_biases) : std::nullopt);
            if (group.trains_bias()) slot.n_biases += gpu::padded(group.w->n);
        }
        slot.low_bytes = std::max(slot.low_bytes, end);
    }
    slot.low_bytes = at_least(slot.low_bytes);
    if (options.lora_dropout > 0)
        slot.dropped_bytes = uint64_t{slot.n_rows} *
                             std::max({sizes.hidden_stride, sizes.attention_stride, sizes.ffn_stride}) * sizeof(float);
    slot.head_low_bytes = uint64_t{2} * slot.n_rows * round_up(layout.head.rank, 8) * sizeof(float);
    return slot;
}

uint64_t SlotSizes::fixed_bytes() const {
    return low_bytes + at_least(shadows ? shadows->n_bytes : 0) +
           at_least(n_shadow_items * sizeof(gpu::TrainRoundItem)) + at_least(dropped_bytes) + at_least(head_low_bytes) +
           at_least(n_norms * sizeof(float)) + at_least(n_biases * sizeof(float));
}

Result<std::unique_ptr<TrainSlot>> TrainSlot::create(gpu::Device& device, TrainModel model,
                                                     const TrainableAdapter& adapter, SlotSizes sizes,
                                                     uint32_t n_sets) {
    auto made = std::make_unique<TrainSlot>();
    TRY_ASSIGN(made->parameters, TrainParameters::create(device, adapter));
    const auto make = [&](gpu::Buffer& buffer, uint64_t n_bytes, const char* name,
                          gpu::MemoryKind kind = gpu::MemoryKind::kDeviceLocal) -> Status {
        TRY_ASSIGN(buffer, device.create_buffer(at_least(n_bytes), kind, name));
        return ok_status();
    };
    TRY(make(made->low, n_sets * sizes.low_bytes, "training low"));
    TRY(make(made->dlow, sizes.low_bytes, "training low"));
    TRY(make(made->shadows, sizes.shadows ? sizes.shadows->n_bytes : 0, "training shadows"));
    TRY(device.uploader().fill_zero(made->shadows, 0, made->shadows.size()));
    TRY(make(made->shadow_items, sizes.n_shadow_items * sizeof(gpu::TrainRoundItem), "training shadows"));
    TRY(make(made->dropped, sizes.dropped_bytes, "training dropout"));
    TRY(make(made->head_low, sizes.head_low_bytes, "training low"));
    TRY(make(made->inverse_norms, sizes.n_norms * sizeof(float), "training norms"));
    TRY(make(made->biases, sizes.n_biases * sizeof(float), "training biases"));
    TRY(make(made->norm_sums, kNormSumsMax * sizeof(float), "training norms", gpu::MemoryKind::kHostReadback));
    made->model = std::move(model);
    made->sizes = std::move(sizes);
    TRY(made->place_shadows(device));
    TRY(device.uploader().finish());
    return made;
}

Status TrainSlot::place_shadows(gpu::Device& device) {
    if (!sizes.shadows) return ok_status();
    const std::vector<gpu::TrainRoundItem> items = model::shadow_items(model, *parameters, *sizes.shadows, shadows);
    CHECK(items.size() == sizes.n_shadow_items);
    if (items.empty()) return ok_status();
    n_shadow_items = static_cast<uint32_t>(items.size());
    n_shadow_quads = items.back().first + items.back().rows * (items.back().columns / 4);
    return device.uploader().upload(shadow_items, 0, std::as_bytes(std::span(items)));
}

}  // namespace lorad::model
