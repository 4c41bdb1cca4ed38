// Which adapters of the registry are weights that models were saved as, and whose: a record each in one folder, written
// before the adapter is there. So a tenant keeps no more than it may, over restarts, and weights that go with their
// model go at the next start where the process was killed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad::server::tinker {

struct WeightLimits {
    uint32_t n_max = 128;  // of a tenant, with names of their own
    uint64_t bytes_max = uint64_t{4} << 30;
};

struct WeightRecord {
    std::string tenant;
    uint64_t n_bytes = 0;
    bool is_temporary = false;  // it goes with its model, and does not count
};

// One thread at a time.
class SavedWeights {
  public:
    // Reads what is there. A record that is damaged is removed: its adapter stays, and does not count.
    static Result<SavedWeights> open(const std::filesystem::path& folder, const WeightLimits& limits);

    // Before the adapter is registered. Durable when this returns. kForbidden over the limits, whose adapters are
    // counted if is_there(name). kStorageFull, kStorageFailed.
    Status add(const std::string& name, const WeightRecord& record,
               const std::function<bool(const std::string& name)>& is_there);
    // Behind the adapter's removal.
    void remove(const std::string& name);
    std::vector<std::string> temporary() const;

  private:
    SavedWeights(std::filesystem::path folder, const WeightLimits& limits)
        : folder_(std::move(folder)), limits_(limits) {}
    std::filesystem::path file_of(std::string_view name) const;
    Status check_room(const std::string& name, const WeightRecord& record) const;
    void remove_gone(std::string_view tenant, const std::function<bool(const std::string& name)>& is_there);

    std::filesystem::path folder_;
    WeightLimits limits_;
    std::map<std::string, WeightRecord, std::less<>> records_;  // by the adapter's name
};

}  // namespace lorad::server::tinker
