#include "gpu/facts/cache_file.h"

#include <cstdint>
#include <fstream>
#include <system_error>

#include <unistd.h>

#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::gpu {

std::vector<char> read_cache_file(const std::filesystem::path& path) {
    constexpr uintmax_t kFileBytesMax = uintmax_t{1} << 30;
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) return {};
    const uintmax_t size = std::filesystem::file_size(path, error);
    if (error || size > kFileBytesMax) return {};
    std::vector<char> bytes(size);
    std::ifstream in(path, std::ios::binary);
    in.read(bytes.data(), static_cast<std::streamsize>(size));
    bytes.resize(static_cast<size_t>(in.gcount()));
    return bytes;
}

void write_cache_file(const std::filesystem::path& path, std::string_view bytes, const char* what) {
    std::error_code error;
    if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
        log_warn("{} {} is not written: it is no regular file", what, path.string());
        return;
    }
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
    const std::filesystem::path partial = path.string() + format(".{}.partial", getpid());
    {
        std::ofstream out(partial, std::ios::binary | std::ios::trunc);
        out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        out.close();
        if (!out) {
            log_warn("{} {} could not be written", what, path.string());
            std::filesystem::remove(partial, error);
            return;
        }
    }
    std::filesystem::rename(partial, path, error);
    if (error) {
        log_warn("{} {} could not be written: {}", what, path.string(), error.message());
        std::filesystem::remove(partial, error);
    }
}

}  // namespace lorad::gpu
