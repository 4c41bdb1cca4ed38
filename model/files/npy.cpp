#include "model/files/npy.h"

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "proto/base/check.h"
#include "proto/base/format.h"

namespace lorad::model {

Status write_npy(const std::filesystem::path& file, std::span<const uint64_t> shape, std::span<const float> values) {
    static_assert(std::endian::native == std::endian::little);
    uint64_t n_values = 1;
    std::string shape_list;
    for (const uint64_t size : shape) {
        n_values *= size;
        shape_list += format("{}, ", size);
    }
    CHECK(n_values == values.size());

    // Magic, version 1.0, u16 length of the text that follows; the text ends in a newline and the data begins at a
    // multiple of 64.
    constexpr size_t kAlign = 64, kFixedBytes = 10;
    std::string text = format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", shape_list);
    text.append((kAlign - (kFixedBytes + text.size() + 1) % kAlign) % kAlign, ' ');
    text += '\n';
    std::string head("\x93NUMPY\x01\x00", 8);
    head += static_cast<char>(text.size() & 0xff);
    head += static_cast<char>(text.size() >> 8);
    head += text;

    struct Closer {
        void operator()(std::FILE* f) const { std::fclose(f); }
    };
    std::unique_ptr<std::FILE, Closer> out(std::fopen(file.c_str(), "wb"));
    const bool is_written = out && std::fwrite(head.data(), 1, head.size(), out.get()) == head.size() &&
                            std::fwrite(values.data(), sizeof(float), values.size(), out.get()) == values.size() &&
                            std::fflush(out.get()) == 0;
    if (!is_written) return make_error(ErrorCode::kIo, format("{}: {}", file.string(), std::strerror(errno)));
    return ok_status();
}

}  // namespace lorad::model
