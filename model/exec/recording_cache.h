// The last recordings of steps, by shape.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <list>
#include <utility>

#include "gpu/command.h"
#include "model/step/step_shape.h"

namespace lorad::model {

// Keeps kRecordingsMax recordings and drops the one not used for longest. That is far more than steps can be in flight,
// so a dropped recording is never pending. Engine thread only.
class RecordingCache {
  public:
    static constexpr size_t kRecordingsMax = 512;
    using Entries = std::list<std::pair<StepShape, gpu::CommandBuffer>>;

    const gpu::CommandBuffer* find(const StepShape& shape) {
        for (auto it = entries_.begin(); it != entries_.end(); ++it) {
            if (it->first != shape) continue;
            entries_.splice(entries_.begin(), entries_, it);
            return &it->second;
        }
        return nullptr;
    }

    const gpu::CommandBuffer* insert(const StepShape& shape, gpu::CommandBuffer recording) {
        if (entries_.size() == kRecordingsMax) entries_.pop_back();
        entries_.emplace_front(shape, std::move(recording));
        return &entries_.front().second;
    }

    // Takes out that of a shape which another recording is to replace, for the caller to keep as below.
    Entries take_one(const StepShape& shape) {
        Entries taken;
        const auto found = std::ranges::find(entries_, shape, &Entries::value_type::first);
        if (found != entries_.end()) taken.splice(taken.end(), entries_, found);
        return taken;
    }

    // Takes out those of one weight set, for the caller to keep until no step in flight runs them.
    Entries take(uint8_t weight_set) {
        Entries taken;
        for (auto it = entries_.begin(); it != entries_.end();) {
            const auto next = std::next(it);
            if (it->first.weight_set == weight_set) taken.splice(taken.end(), entries_, it);
            it = next;
        }
        return taken;
    }

  private:
    Entries entries_;  // the last used first
};

}  // namespace lorad::model
