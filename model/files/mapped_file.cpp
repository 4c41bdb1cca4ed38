#include "model/files/mapped_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "proto/base/owned_fd.h"

namespace lorad::model {

Result<std::shared_ptr<const MappedFile>> MappedFile::map(const std::filesystem::path& file, ErrorCode code) {
    const std::string name = file.filename().string();
    // O_NONBLOCK: a named pipe must not hold the caller up before it is recognised as one.
    const OwnedFd opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!opened.ok()) return make_error(code, format("{}: {}", file.string(), std::strerror(errno)));
    struct ::stat status{};
    if (::fstat(opened.get(), &status) != 0 || !S_ISREG(status.st_mode))
        return make_error(code, format("{}: not a regular file", name));
    const auto size = static_cast<size_t>(status.st_size);
    if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile({}));
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, opened.get(), 0);
    if (address == MAP_FAILED)
        return make_error(code, format("{}: mmap of {} bytes: {}", name, size, std::strerror(errno)));
    ::madvise(address, size, MADV_WILLNEED);
    return std::shared_ptr<const MappedFile>(new MappedFile({static_cast<const std::byte*>(address), size}));
}

MappedFile::~MappedFile() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace lorad::model
