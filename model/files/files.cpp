#include "model/files/files.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "proto/base/owned_fd.h"

namespace lorad::model {

Result<std::string> read_text_file(const std::filesystem::path& file, uint64_t n_bytes_max, ErrorCode code) {
    const std::string name = file.filename().string();
    // O_NONBLOCK: a named pipe must not hold the caller up before it is recognised as one.
    const OwnedFd opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!opened.ok()) {
        return make_error(code, errno == ENOENT ? format("{}: no such file in {}", name, file.parent_path().string())
                                                : format("{}: {}", file.string(), std::strerror(errno)));
    }
    struct ::stat status{};
    if (::fstat(opened.get(), &status) != 0 || !S_ISREG(status.st_mode))
        return make_error(code, format("{}: not a regular file", name));
    const auto size = static_cast<uint64_t>(status.st_size);
    if (size > n_bytes_max) {
        return make_error(code, format("{}: expected at most {} bytes, found {}", name, n_bytes_max, size));
    }
    std::string text(size, '\0');
    size_t n_read = 0;
    while (n_read < size) {
        const ssize_t n = ::read(opened.get(), text.data() + n_read, size - n_read);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return make_error(code, format("{}: {}", name, std::strerror(errno)));
        if (n == 0) break;
        n_read += static_cast<size_t>(n);
    }
    text.resize(n_read);
    return text;
}

}  // namespace lorad::model
