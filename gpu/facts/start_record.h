// What earlier starts have found out of a device and of this build on it: which fast kernels passed their tests, how
// fast the device is. Kept in a file beside the pipeline cache, and worth nothing to another device, driver or build.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lorad::gpu {

// Whom a record is of.
struct RecordOwner {
    std::string device;  // what tells it from others, and its driver's version: one line
    std::string build;   // this program's digest; empty: unknown, and nothing is remembered
};

// Thread-safe.
class StartRecord {
  public:
    // Reads the file; without one (an empty path) everything lasts as long as the device. A file of another device or
    // driver, or one that is damaged, is ignored with a warning; one of another build of lorad is just not used.
    StartRecord(std::filesystem::path file, RecordOwner owner);

    // What an earlier start has put. Keys have no spaces, values no line ends.
    std::optional<std::string> find(std::string_view key) const;
    void put(const std::string& key, std::string value);
    // Of all keys with this beginning, what earlier starts have put.
    std::vector<std::string> find_all(std::string_view begin) const;
    // True if the file had something for this device and build.
    bool was_there() const { return was_there_; }
    // Writes what has changed; a file that cannot be written is only a warning.
    void save();

  private:
    std::string text() const;
    void read();

    const std::filesystem::path file_;
    const RecordOwner owner_;
    bool was_there_ = false;
    std::map<std::string, std::string> known_;  // by key, of earlier starts
    std::mutex mutex_;                          // guards the following
    std::map<std::string, std::string> facts_;  // what the file is to have
    bool is_changed_ = false;
};

}  // namespace lorad::gpu
