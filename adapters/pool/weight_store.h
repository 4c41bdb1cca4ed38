// Where packed adapters live: device memory, copies into it, and the slot table. An interface, so that the registry's
// logic is tested without a device and under many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "gpu/device.h"
#include "model/exec/executor.h"
#include "model/weights/lora_table.h"
#include "proto/base/mutex.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// A range of memory that is freed when this is destroyed.
class WeightBlock {
  public:
    virtual ~WeightBlock() = default;
    virtual gpu::DeviceAddress address() const = 0;
    virtual uint64_t size() const = 0;
};

// All calls from any thread.
class WeightStore {
  public:
    virtual ~WeightStore() = default;

    // kOutOfMemory names the bytes asked for and those there are.
    virtual Result<std::unique_ptr<WeightBlock>> allocate(uint64_t size_bytes) = 0;
    virtual uint64_t block_bytes_max() const = 0;  // the largest single allocation

    // The bytes are taken now and arrive before finish() returns. A block with uploads pending must not be freed.
    virtual Status upload(WeightBlock& to, uint64_t to_offset, std::span<const std::byte> bytes) = 0;
    virtual Status finish() = 0;

    // DoRA: magnitudes lie at the gains of the view, uploaded and arrived; on return the gains do (see
    // model/weights/lora_table.h).
    virtual Status finish_gains(const model::AdapterView& adapter);

    virtual uint32_t n_slots() const = 0;
    // Steps submitted afterwards see it. No pending step names the slot.
    virtual Status set_slot(uint32_t slot, const model::AdapterView& adapter) = 0;
};

// The real one. Outlived by the device and the executor.
class DeviceWeightStore final : public WeightStore {
  public:
    DeviceWeightStore(gpu::Device& device, model::Executor& executor) : device_(device), executor_(executor) {}

    Result<std::unique_ptr<WeightBlock>> allocate(uint64_t size_bytes) override;
    uint64_t block_bytes_max() const override;
    Status upload(WeightBlock& to, uint64_t to_offset, std::span<const std::byte> bytes) override;
    Status finish() override;
    Status finish_gains(const model::AdapterView& adapter) override;
    uint32_t n_slots() const override;
    Status set_slot(uint32_t slot, const model::AdapterView& adapter) override;

  private:
    gpu::Device& device_;
    model::Executor& executor_;
    Mutex table_mutex_;  // LoraTable::set is for one thread at a time
};

}  // namespace lorad::adapters
