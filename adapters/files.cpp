#include "adapters/files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/format.h"
#include "proto/json.h"

namespace lorad::adapters {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kConfigBytesMax = uint64_t{4} << 20;
constexpr size_t kReadBytes = size_t{64} << 20;  // of one read()

// Files under which adapters come that are not read, and why.
struct ForeignFile {
    std::string_view name, reason;
};
constexpr std::array<ForeignFile, 4> kForeignFiles = {{
    {"adapter_model.bin", "a pickle, which can run code when it is read; save the adapter as safetensors"},
    {"adapter_model.safetensors.index.json", "the index of a sharded adapter; save it as one file"},
    {"adapters.safetensors", "an MLX adapter; convert it to PEFT"},
    {"adapters.npz", "an MLX adapter; convert it to PEFT"},
}};

class Descriptor {
  public:
    explicit Descriptor(const fs::path& file) : fd_(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return fd_; }

  private:
    int fd_;
};

bool is_there(const fs::path& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}

std::string system_text(int error) { return std::error_code(error, std::generic_category()).message(); }

// What torch.save wrote: a zip archive, or a bare pickle. A safetensors file begins with the length of its header, whose upper
// half is zero.
bool is_pickle(std::string_view file) {
    if (file.starts_with("PK\x03\x04")) return true;
    const bool magic = file.starts_with("\x80\x02") || file.starts_with("\x80\x03") || file.starts_with("\x80\x04");
    return magic && file.size() >= 8 && file.substr(4, 4) != std::string_view("\0\0\0\0", 4);
}

Result<FileBytes> read_file(const fs::path& folder, std::string_view name, uint64_t bytes_max) {
    const Descriptor file(folder / name);
    if (file.get() < 0) {
        if (errno == ENOENT) return make_error(ErrorCode::kAdapterInvalid, format("{}: the file is missing", name));
        return make_error(ErrorCode::kIo, format("{}: cannot open: {}", name, system_text(errno)));
    }
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) {
        return make_error(ErrorCode::kIo, format("{}: cannot read: {}", name, system_text(errno)));
    }
    if (!S_ISREG(status.st_mode)) {
        return make_error(ErrorCode::kAdapterInvalid, format("{}: expected a regular file, found something else", name));
    }
    const auto size = static_cast<uint64_t>(status.st_size);
    if (size > bytes_max) {
        return make_error(ErrorCode::kAdapterInvalid, format("{}: {} bytes, at most {} are read", name, size, bytes_max));
    }
    FileBytes contents;
    contents.bytes.reset(new (std::nothrow) std::byte[std::max<size_t>(size, 1)]);
    if (!contents.bytes) {
        return make_error(ErrorCode::kOutOfMemory, format("{}: {} bytes of host memory are not there", name, size));
    }
    while (contents.size < size) {
        const ssize_t got = ::read(file.get(), contents.bytes.get() + contents.size,
                                   std::min<size_t>(size - contents.size, kReadBytes));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return make_error(ErrorCode::kIo, format("{}: cannot read: {}", name, system_text(errno)));
        if (got == 0) {
            return make_error(ErrorCode::kIo, format("{}: it shrank from {} to {} bytes while it was read", name, size,
                                                     contents.size));
        }
        contents.size += static_cast<size_t>(got);
    }
    return contents;
}

}  // namespace

Result<AdapterFiles> read_adapter_files(const fs::path& folder) {
    std::error_code error;
    const fs::file_status status = fs::status(folder, error);
    const bool has_nul = folder.native().find('\0') != std::string::npos;  // the system would read on the part before it
    if (has_nul || !fs::exists(status)) {
        return make_error(ErrorCode::kAdapterNotFound, format("no adapter folder {}", json_quote(folder.string())), "lora_path");
    }
    if (!fs::is_directory(status)) {
        return make_error(ErrorCode::kAdapterUnsupported,
                          format("{}: expected a folder with {} and {}, found a file", json_quote(folder.string()), kConfigFile,
                                 kWeightsFile),
                          "lora_path");
    }
    if (!is_there(folder / kWeightsFile)) {
        for (const ForeignFile& foreign : kForeignFiles) {
            if (!is_there(folder / foreign.name)) continue;
            return make_error(ErrorCode::kAdapterUnsupported,
                              format("{} is missing, and {} is {}", kWeightsFile, foreign.name, foreign.reason));
        }
    }
    AdapterFiles files;
    TRY_ASSIGN(files.config, read_file(folder, kConfigFile, kConfigBytesMax));
    TRY_ASSIGN(files.weights, read_file(folder, kWeightsFile, kWeightsBytesMax));
    if (is_pickle(files.weights.text())) {
        return make_error(ErrorCode::kAdapterUnsupported,
                          format("{}: a pickle under the name of a safetensors file; pickles can run code and are not read",
                                 kWeightsFile));
    }
    files.generation = generation_of(files.config.span(), files.weights.span());
    return files;
}

}  // namespace lorad::adapters
