// The few file operations that the store is made of, below one folder. An interface, so that tests end the program, or
// fail the disk, at each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapters/files/files.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// A new file that is being written. Closed when it is destroyed. One thread.
class NewFile {
  public:
    virtual ~NewFile() = default;
    virtual Status write(std::span<const std::byte> bytes) = 0;
    virtual Status sync() = 0;  // the bytes survive a loss of power
};

// Paths are "name" or "folder/name" below the root; nothing is followed out of it: links are errors. Any thread.
// Errors: kAdapterFileNotFound where there is no such file; kStorageFull; kStoreReadOnly of a disk that is;
// kOutOfMemory; read(): kIo where the disk fails; else kStorageFailed.
class FileSystem {
  public:
    struct Entry {
        std::string name;
        bool is_file = false;  // a regular one
        uint64_t bytes = 0;
        int64_t modified_s = 0;  // Unix time
    };
    virtual ~FileSystem() = default;

    virtual Status make_folder(const std::string& path) = 0;                       // nothing if it is there
    virtual Result<std::unique_ptr<NewFile>> create(const std::string& path) = 0;  // an error if it is there
    virtual Result<FileBytes> read(const std::string& path, uint64_t bytes_max) = 0;
    virtual Status rename(const std::string& from, const std::string& to) = 0;  // replaces `to`
    virtual Status remove(const std::string& path) = 0;
    virtual Status sync_folder(const std::string& folder) = 0;  // names made, renamed and removed survive; "": the root
    virtual Result<std::vector<Entry>> list(const std::string& folder) = 0;
    // For as long as this lives; an error if another process has it.
    virtual Status lock(const std::string& path) = 0;
    // Returns ok if the root and its folders are still reached by their names: writes to a folder that was moved or
    // removed succeed silently.
    virtual Status is_in_place() const { return ok_status(); }
};

// The operating system's, below `root`, which is made if it is not there. Readable by this user only.
Result<std::unique_ptr<FileSystem>> open_file_system(const std::filesystem::path& root);

// A file of the root becomes these bytes, which are written beside it first: a reader, and a restart, see the old ones
// or the new ones. Durable when this returns; on an error `beside` is gone.
Status replace_file(FileSystem& files, const std::string& name, const std::string& beside,
                    std::span<const std::byte> bytes);

}  // namespace lorad::adapters
