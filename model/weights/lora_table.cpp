#include "model/weights/lora_table.h"

#include <algorithm>

#include "gpu/kernels/lora/extras.params.h"
#include "gpu/upload.h"
#include "proto/base/check.h"

namespace lorad::model {
Result<std::unique_ptr<LoraTable>> LoraTable::create(gpu::Device& device, const ModelConfig& config, uint32_t n_slots) {
    CHECK(n_slots > 0);
    std::unique_ptr<LoraTable> made(new LoraTable(device, n_slots, config.n_layers, config.lora_stride()));
    struct Wanted {
        gpu::Buffer& buffer;
        uint64_t n_bytes;
        const char* name;
    };
    const Wanted all[] = {
        {made->table_, uint64_t{n_slots} * config.n_layers * config.lora_stride() * sizeof(gpu::LoraModule),
         "lora table"},
        {made->extras_, n_slots * sizeof(gpu::SlotExtras), "lora extras"},
        {made->norms_, made->n_norm_rows() * made->norm_row_bytes(), "lora norms"},
    };
    for (const Wanted& wanted : all) {
        TRY_ASSIGN(wanted.buffer, device.create_buffer(wanted.n_bytes, gpu::MemoryKind::kDeviceLocal, wanted.name));
        TRY(device.uploader().fill_zero(wanted.buffer, 0, wanted.n_bytes));
    }
    TRY_ASSIGN(const uint64_t value, device.uploader().flush());
    made->upload_value_.store(value, std::memory_order_release);
    return made;
}

LoraTable::LoraTable(gpu::Device& device, uint32_t n_slots, uint32_t n_layers, uint32_t stride)
    : device_(device), n_slots_(n_slots), n_layers_(n_layers), stride_(stride), traits_(n_slots), adapters_(n_slots) {}

Status LoraTable::upload_extras(uint32_t slot, const AdapterExtrasView& from) {
    CHECK(from.embed_rank <= kLoraRankMax && from.head_rank <= kLoraRankMax);
    CHECK(from.norms.empty() || from.norms.size() == n_layers_);
    gpu::SlotExtras entry{};
    entry.embed_table = from.embed_table;
    entry.embed_a = from.embed_a;
    entry.embed_b = from.embed_b;
    entry.token_ids = from.token_ids;
    entry.token_rows = from.token_rows;
    entry.head_table = from.head_table;
    entry.head_a = from.head_a;
    entry.head_b = from.head_b;
    entry.head_bias = from.head_bias;
    entry.embed_type = from.embed_type;
    entry.embed_rank = from.embed_rank;
    entry.embed_lora_type = from.embed_lora_type;
    entry.embed_scale = from.embed_scale;
    entry.head_type = from.head_type;
    entry.head_rank = from.head_rank;
    entry.head_lora_type = from.head_lora_type;
    entry.head_scale = from.head_scale;
    entry.n_tokens = from.n_tokens;
    entry.tokens_in_head = from.tokens_in_head ? 1 : 0;
    std::vector<gpu::DeviceAddress> norms(n_norm_rows());
    for (uint32_t layer = 0; layer < from.norms.size(); ++layer) {
        const AdapterExtrasView::LayerNorms& own = from.norms[layer];
        const std::pair<Norm, gpu::DeviceAddress> all[] = {
            {Norm::kInput, own.input}, {Norm::kMixerAfter, own.mixer_after},
            {Norm::kFfn, own.ffn},     {Norm::kFfnAfter, own.ffn_after},
            {Norm::kQ, own.q},         {Norm::kK, own.k},
            {Norm::kMixer, own.mixer}};
        for (const auto& [norm, address] : all) norms[norm_row(layer, norm)] = address;
    }
    norms[size_t{n_layers_} * kStreamNorms] = from.final_norm;
    gpu::Uploader& uploader = device_.uploader();
    TRY(uploader.upload(extras_, slot * sizeof(entry), std::as_bytes(std::span(&entry, 1))));
    return uploader.upload_rows(norms_, slot * sizeof(gpu::DeviceAddress), norm_row_bytes(),
                                std::as_bytes(std::span(norms)), sizeof(gpu::DeviceAddress), norms.size());
}

Status LoraTable::set(uint32_t slot, const AdapterView& adapter) {
    const std::vector<LoraModuleView>& modules = adapter.modules;
    CHECK(slot < n_slots_ && modules.size() == size_t{n_layers_} * stride_);
    std::vector<gpu::LoraModule> entries(modules.size());
    SlotTraits traits;
    traits.has_extras = adapter.has_extras;
    for (size_t i = 0; i < modules.size(); ++i) {
        const LoraModuleView& from = modules[i];
        CHECK(from.rank <= kLoraRankMax && (from.rank == 0 || (from.a != 0 && from.b != 0)));
        entries[i] = {from.a, from.b, from.rank, from.scale, from.weight_type, 0, from.gain, from.bias, {}};
        traits.is_plain = traits.is_plain && from.gain == 0 && from.bias == 0;
        if (from.rank > 0) traits.types |= 1u << from.weight_type;
        uint32_t& rank = traits.ranks[group_of(static_cast<LinearModule>(i % stride_))];
        rank = std::max(rank, from.rank);
    }
    gpu::Uploader& uploader = device_.uploader();
    TRY(uploader.upload(table_, slot * entries.size() * sizeof(gpu::LoraModule), std::as_bytes(std::span(entries))));
    // The one before may have had some.
    if (adapter.has_extras || traits_[slot].has_extras)
        TRY(upload_extras(slot, adapter.has_extras ? adapter.extras : AdapterExtrasView()));
    TRY_ASSIGN(const uint64_t value, uploader.flush());
    traits_[slot] = traits;
    adapters_[slot] = adapter;
    uint64_t seen = upload_value_.load(std::memory_order_relaxed);
    while (seen < value && !upload_value_.compare_exchange_weak(seen, value, std::memory_order_release)) {
    }
    return ok_status();
}

}  // namespace lorad::model
