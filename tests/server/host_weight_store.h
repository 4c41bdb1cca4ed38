// Adapters in host memory: the registry without a device.
#pragma once

#include <cstring>
#include <vector>

#include "adapters/pool/weight_store.h"

namespace lorad::server {

class HostBlock final : public adapters::WeightBlock {
  public:
    explicit HostBlock(uint64_t size_bytes) : bytes_(size_bytes) {}
    gpu::DeviceAddress address() const override {
        return gpu::DeviceAddress(reinterpret_cast<uintptr_t>(bytes_.data()));
    }
    uint64_t size() const override { return bytes_.size(); }

  private:
    std::vector<std::byte> bytes_;
};

class HostWeightStore final : public adapters::WeightStore {
  public:
    explicit HostWeightStore(uint32_t n_slots) : n_slots_(n_slots) {}
    Result<std::unique_ptr<adapters::WeightBlock>> allocate(uint64_t size_bytes) override {
        return std::unique_ptr<adapters::WeightBlock>(std::make_unique<HostBlock>(size_bytes));
    }
    uint64_t block_bytes_max() const override { return 1u << 30; }
    Status upload(adapters::WeightBlock&, uint64_t, std::span<const std::byte>) override { return ok_status(); }
    Status finish() override { return ok_status(); }
    uint32_t n_slots() const override { return n_slots_; }
    Status set_slot(uint32_t, const model::AdapterView&) override { return ok_status(); }

  private:
    const uint32_t n_slots_;
};

}  // namespace lorad::server
