#include "model/train/train_shadows.h"

#include "gpu/kernels/kernel_options.h"

namespace lorad::model {
namespace {

constexpr uint64_t kShadowAlign = 256;

uint32_t column_of(const GroupShadow& shadow) { return gpu::padded(shadow.n_ranks); }

}  // namespace

std::optional<ShadowPlaces> ShadowPlaces::plan(const TrainModel& model, const TrainLayout& layout) {
    ShadowPlaces places;
    places.rank_begins.resize(layout.linears.size());
    for (const TrainLayer& layer : model.layers) {
        for (const TrainGroup& group : layer.groups) {
            GroupShadow shadow;
            for (const TrainPart& part : group.parts) {
                if (!part.linear) continue;
                places.rank_begins[*part.linear] = shadow.n_ranks;
                shadow.n_ranks += round_up(layout.linears[*part.linear].rank, kShadowRankAlign);
            }
            if (shadow.n_ranks > gpu::kTrainMoreKMax) return std::nullopt;
            const auto take = [&](uint64_t n_elements) {
                const uint64_t begin = places.n_bytes;
                places.n_bytes += round_up(n_elements * 2, kShadowAlign);
                return begin;
            };
            shadow.a = take(uint64_t{column_of(shadow)} * group.w->k_stride);
            shadow.b = take(uint64_t{column_of(shadow)} * group.w->n_padded);
            places.groups.push_back(shadow);
        }
    }
    return places;
}

std::vector<gpu::TrainRoundItem> shadow_items(const TrainModel& model, const TrainParameters& parameters,
                                              const ShadowPlaces& places, const gpu::Buffer& shadows) {
    std::vector<gpu::TrainRoundItem> items;
    uint32_t n_quads = 0;
    const auto add = [&](gpu::TrainRoundItem item) {
        item.first = n_quads;
        n_quads += item.rows * (item.columns / 4);
        items.push_back(item);
    };
    for (uint32_t layer = 0; layer < model.layers.size(); ++layer) {
        for (uint32_t g = 0; g < kTrainGroups; ++g) {
            const TrainGroup& group = model.layers[layer].groups[g];
            const GroupShadow& shadow = places.at(layer, g);
            for (const TrainPart& part : group.parts) {
                if (!part.linear) continue;
                const TrainedPairPlaces& pair = parameters.layout().linears[*part.linear];
                const uint32_t rank_begin = places.rank_begins[*part.linear], k_stride = group.w->k_stride,
                               b_stride = column_of(shadow);
                add({.from = parameters.value(pair.a),
                     .to = shadows.address() + shadow.a + uint64_t{rank_begin} * k_stride * 2,
                     .rows = pair.rank,
                     .columns = pair.a.stride,
                     .from_stride = pair.a.stride,
                     .to_stride = k_stride,
                     .factor = 1.0f,
                     .first = 0});
                add({.from = parameters.value(pair.b),
                     .to = shadows.address() + shadow.b + (uint64_t{part.begin} * b_stride + rank_begin) * 2,
                     .rows = part.n,
                     .columns = pair.b.stride,
                     .from_stride = pair.b.stride,
                     .to_stride = b_stride,
                     .factor = pair.scale,
                     .first = 0});
            }
        }
    }
    return items;
}

}  // namespace lorad::model
