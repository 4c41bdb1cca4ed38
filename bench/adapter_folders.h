// Adapters that a benchmark loads, by folder or pattern.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "adapters/pool/lease.h"
#include "server/loaded_model.h"

namespace lorad::bench {

struct LoadedAdapters {
    std::vector<adapters::MixLease> leases;
    std::vector<uint32_t> slots;
    std::vector<uint64_t> bytes;  // of each one's weights
};

// The first n of the folders named, or of a pattern DIR{}: DIR1, DIR2, ... Ends the program where there are fewer.
std::vector<std::string> adapter_folders(const std::vector<std::string>& names, uint32_t n);
LoadedAdapters load_adapters(server::LoadedModel& loaded, const std::vector<std::string>& folders);

}  // namespace lorad::bench
