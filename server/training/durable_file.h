// Files of training that survive a loss of power: written beside, synced, renamed, their folder synced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace lorad::server::training {

// kStorageFull where the disk or a quota is, kStoreReadOnly of a disk that is, else kStorageFailed. No path is told.
// error: of errno.
Error disk_error(std::string_view what, int error);
Status write_all(int fd, std::span<const std::byte> bytes);
// Names in the folder of `path` that were made, renamed and removed survive.
Status sync_parent(const std::filesystem::path& path);

// The file that was written beside takes the name, with its content on the disk. Durable when this returns.
Status put_in_place(int fd, const std::filesystem::path& beside, const std::filesystem::path& path);
// Replaces what is there. Durable when this returns; on an error the one before is still there.
Status write_durably(const std::filesystem::path& path, std::span<const std::byte> bytes);
Status write_durably(const std::filesystem::path& path, std::string_view text);
// The whole file of at most bytes_max bytes. kNotFound; kStorageFailed.
Result<std::string> read_whole(const std::filesystem::path& path, uint64_t bytes_max);
// Removes the file if it is there.
void remove_quietly(const std::filesystem::path& path);
// Makes a folder with its parents, readable by this user only.
Status make_folder(const std::filesystem::path& path);

}  // namespace lorad::server::training
