// The last recordings of steps, by shape.
#pragma once

#include <cstdint>
#include <list>
#include <utility>

#include "gpu/command.h"
#include "model/forward.h"

namespace lorad::model {

// Keeps kRecordingsMax recordings and drops the one not used for longest. That is far more than steps can be in flight, so
// a dropped recording is never pending. Engine thread only.
class RecordingCache {
  public:
    static constexpr size_t kRecordingsMax = 128;

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

  private:
    std::list<std::pair<StepShape, gpu::CommandBuffer>> entries_;  // the last used first
};

}  // namespace lorad::model
