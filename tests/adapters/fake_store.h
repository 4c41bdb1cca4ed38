// A weight store in host memory: addresses are pointers, so that tests read back what kernels would.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "adapters/pool/weight_store.h"
#include "proto/base/format.h"

namespace lorad::testing {

class FakeStore : public adapters::WeightStore {
  public:
    explicit FakeStore(uint32_t n_slots) : slots(n_slots) {}

    Result<std::unique_ptr<adapters::WeightBlock>> allocate(uint64_t size_bytes) override {
        const uint64_t before = allocated_bytes.fetch_add(size_bytes);
        if (before + size_bytes > capacity_bytes) {
            allocated_bytes -= size_bytes;
            return make_error(ErrorCode::kOutOfMemory,
                              format("{} bytes asked for, {} free", size_bytes, capacity_bytes - before));
        }
        return std::unique_ptr<adapters::WeightBlock>(std::make_unique<Block>(*this, size_bytes));
    }
    uint64_t block_bytes_max() const override { return block_bytes; }

    Status upload(adapters::WeightBlock& to, uint64_t to_offset, std::span<const std::byte> bytes) override {
        if (n_uploads_until_failure.fetch_sub(1) == 1) return make_error(ErrorCode::kDeviceLost, "upload failed");
        auto& block = static_cast<Block&>(to);
        if (to_offset + bytes.size() > block.bytes.size()) return make_error(ErrorCode::kInternal, "out of the block");
        std::memcpy(block.bytes.data() + to_offset, bytes.data(), bytes.size());
        const std::lock_guard lock(mutex);
        block.pending = true;
        pending.push_back(&block);
        return ok_status();
    }
    Status finish() override {
        const std::lock_guard lock(mutex);
        for (Block* block : std::exchange(pending, {})) block->pending = false;
        return ok_status();
    }

    uint32_t n_slots() const override { return static_cast<uint32_t>(slots.size()); }
    Status set_slot(uint32_t slot, const model::AdapterView& adapter) override {
        slots[slot] = adapter;
        return ok_status();
    }

    struct Block final : adapters::WeightBlock {
        Block(FakeStore& owner, uint64_t size) : store(owner), memory(size + 255, std::byte{0xee}) {
            void* begin = memory.data();
            size_t space = memory.size();
            bytes = {static_cast<std::byte*>(std::align(256, size, begin, space)), size};
        }
        ~Block() override {
            if (pending) store.n_freed_while_pending++;
            std::fill(memory.begin(), memory.end(), std::byte{0xdd});
            store.allocated_bytes -= bytes.size();
        }
        gpu::DeviceAddress address() const override { return reinterpret_cast<gpu::DeviceAddress>(bytes.data()); }
        uint64_t size() const override { return bytes.size(); }
        FakeStore& store;
        std::vector<std::byte> memory;
        std::span<std::byte> bytes;  // of memory, aligned as the device aligns
        bool pending = false;        // under FakeStore::mutex
    };

    std::vector<model::AdapterView> slots;
    uint64_t capacity_bytes = uint64_t{1} << 40;
    uint64_t block_bytes = uint64_t{1} << 40;
    std::atomic<uint64_t> allocated_bytes{0};
    std::atomic<int64_t> n_uploads_until_failure{0};  // 0: never
    std::atomic<uint32_t> n_freed_while_pending{0};
    std::mutex mutex;
    std::vector<Block*> pending;
};

}  // namespace lorad::testing
