// Where the files of an adapter are read from: opened once, so that what is checked is what is read.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapters/files/files.h"
#include "proto/base/owned_fd.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// A folder or file as somebody named it.
struct AdapterLocation {
    // Opens `given` as the system does: links are followed.
    template <typename Path>
        requires std::convertible_to<Path, std::filesystem::path>
    AdapterLocation(Path&& given) : path(std::forward<Path>(given)) {}  // NOLINT(implicit)
    // `inside` must not lead out of `folder`: no link is followed, neither on the way nor at the end.
    AdapterLocation(std::filesystem::path folder, std::filesystem::path inside)
        : path(folder / inside), root(std::move(folder)), below(std::move(inside)) {}

    std::filesystem::path path;
    std::filesystem::path root;   // empty: links are followed
    std::filesystem::path below;  // of the root; normal, without ".."
};

// Opens `path` below the folder `root` without following links; on failure errno is set, ELOOP for a link.
// walk_beneath() opens part by part, for kernels and sandboxes without openat2.
OwnedFd open_beneath(int root, const std::filesystem::path& path, int flags);
OwnedFd walk_beneath(int root, const std::filesystem::path& path, int flags);

// One thread.
class SourceFolder {
  public:
    // Opens the folder at `location`, or the one that holds the file there. kAdapterNotFound; kAdapterPathForbidden:
    // the path has a link and links are not followed.
    static Result<SourceFolder> open(const AdapterLocation& location);

    bool is_file() const { return !file_name_.empty(); }  // a file was named, and not a folder
    const std::string& file_name() const { return file_name_; }

    // A folder in this one, by its name. kAdapterPathForbidden for a link that is not followed.
    Result<SourceFolder> inner(std::string_view name) const;
    bool has(std::string_view name) const;  // a link counts, wherever it leads
    // FileReader::open(); kAdapterPathForbidden for a link that is not followed.
    Result<FileReader> reader(std::string_view name, std::string_view called, uint64_t bytes_max) const;
    Result<FileBytes> read(std::string_view name, uint64_t bytes_max) const;
    Result<std::vector<std::string>> names_ending(std::string_view end) const;

  private:
    OwnedFd folder_;
    std::string file_name_;
    bool follows_links_ = true;
};

}  // namespace lorad::adapters
