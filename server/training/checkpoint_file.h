// A checkpoint of a run in one file, so that it is there whole or not at all:
//
//   8 bytes that name the format, n (u64), n bytes of JSON (whose run it is, and its RunState), m (u64), m bytes of the
//       trainer's, SHA-256 of all before (32 bytes)
//
// Numbers are little-endian.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "proto/base/result.h"
#include "server/training/training_run.h"

namespace lorad::server::training {

// All that must be equal for a run to continue with the same bits.
struct RunIdentity {
    std::string data_digest, validation_digest;  // of prepared data; validation_digest may be empty
    std::string base_fingerprint;
    std::string recipe;   // JSON, as resolved
    std::string version;  // lorad's
    bool operator==(const RunIdentity&) const = default;
};

struct Checkpoint {
    RunIdentity identity;
    RunState state;
    std::vector<std::byte> trainer;
};

// Durable when this returns. kStorageFull, kStorageFailed; the one before is still there then.
Status write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);
// kNotFound; kStorageFailed where it is damaged.
Result<Checkpoint> read_checkpoint(const std::filesystem::path& path);
// The first difference, for people: "the base model"; empty: none that changes a bit.
std::string difference(const RunIdentity& kept, const RunIdentity& present);

}  // namespace lorad::server::training
