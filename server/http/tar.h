// Files in one archive, as POSIX's ustar has them (IEEE Std 1003.1, pax).
#pragma once

#include <string>
#include <string_view>

namespace lorad::server {

// name: at most 100 bytes. The file is readable by everybody, and of no date.
void add_tar_file(std::string& archive, std::string_view name, std::string_view content);
void end_tar(std::string& archive);

}  // namespace lorad::server
