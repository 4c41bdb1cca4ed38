#include "model/lora_table.h"

#include <algorithm>

#include "gpu/upload.h"
#include "proto/base/check.h"

namespace lorad::model {
namespace {

// Group of lora_shrink that a module belongs to: q k v, o, gate up, down.
constexpr uint32_t kGroupOf[kLinearModules] = {0, 0, 0, 1, 2, 2, 3};

}  // namespace

Result<std::unique_ptr<LoraTable>> LoraTable::create(gpu::Device& device, const ModelConfig& config, uint32_t n_slots) {
    CHECK(n_slots > 0);
    const uint64_t n_bytes = uint64_t{n_slots} * config.n_layers * kLinearModules * sizeof(gpu::LoraModule);
    TRY_ASSIGN(gpu::Buffer table, device.create_buffer(n_bytes, gpu::MemoryKind::kDeviceLocal, "lora table"));
    TRY(device.uploader().fill_zero(table, 0, n_bytes));
    TRY_ASSIGN(const uint64_t value, device.uploader().flush());
    std::unique_ptr<LoraTable> made(new LoraTable(device, std::move(table), n_slots, config.n_layers));
    made->upload_value_.store(value, std::memory_order_release);
    return made;
}

LoraTable::LoraTable(gpu::Device& device, gpu::Buffer table, uint32_t n_slots, uint32_t n_layers)
    : device_(device), table_(std::move(table)), n_slots_(n_slots), n_layers_(n_layers), traits_(n_slots), adapters_(n_slots) {}

Status LoraTable::set(uint32_t slot, const AdapterView& adapter) {
    const std::vector<LoraModuleView>& modules = adapter.modules;
    CHECK(slot < n_slots_ && modules.size() == size_t{n_layers_} * kLinearModules);
    std::vector<gpu::LoraModule> entries(modules.size());
    SlotTraits traits;
    traits.has_extras = adapter.has_extras;
    for (size_t i = 0; i < modules.size(); ++i) {
        const LoraModuleView& from = modules[i];
        CHECK(from.rank <= kLoraRankMax && (from.rank == 0 || (from.a != 0 && from.b != 0)));
        entries[i] = {from.a, from.b, from.rank, from.scale, from.weight_type, 0, from.gain, from.bias, {}};
        traits.is_plain = traits.is_plain && from.gain == 0 && from.bias == 0;
        uint32_t& rank = traits.ranks[kGroupOf[i % kLinearModules]];
        rank = std::max(rank, from.rank);
    }
    gpu::Uploader& uploader = device_.uploader();
    TRY(uploader.upload(table_, slot * entries.size() * sizeof(gpu::LoraModule), std::as_bytes(std::span(entries))));
    TRY_ASSIGN(const uint64_t value, uploader.flush());
    traits_[slot] = traits;
    adapters_[slot] = adapter;
    uint64_t seen = upload_value_.load(std::memory_order_relaxed);
    while (seen < value && !upload_value_.compare_exchange_weak(seen, value, std::memory_order_release)) {
    }
    return ok_status();
}

}  // namespace lorad::model
