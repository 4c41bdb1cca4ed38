#include "server/http/tar.h"

#include <algorithm>
#include <cstdint>

#include "proto/base/check.h"
#include "proto/base/format.h"

namespace lorad::server {
namespace {

constexpr size_t kTarBlock = 512;
constexpr size_t kTarNameMax = 100;
constexpr uint64_t kOctalSizeMax = uint64_t{1} << 33;  // eleven octal digits

void put(std::string& header, size_t at, std::string_view text) { header.replace(at, text.size(), text); }

}  // namespace

void add_tar_file(std::string& archive, std::string_view name, std::string_view content) {
    CHECK(name.size() <= kTarNameMax);
    std::string header(kTarBlock, '\0');
    put(header, 0, name);
    put(header, 100, "0000644");
    put(header, 108, "0000000");
    put(header, 116, "0000000");
    if (content.size() < kOctalSizeMax) {
        put(header, 124, lorad::format("{:011o}", content.size()));
    } else {
        // GNU's form of larger sizes, which pax readers know: a number of twelve bytes with the first bit set.
        header[124] = static_cast<char>(0x80);
        for (size_t i = 0; i < 8; ++i)
            header[124 + 11 - i] = static_cast<char>((static_cast<uint64_t>(content.size()) >> (8 * i)) & 0xff);
    }
    put(header, 136, "00000000000");
    put(header, 148, "        ");  // the sum counts its own place as blanks
    header[156] = '0';
    put(header, 257,
        std::string_view("ustar\0"
                         "00",
                         8));
    uint32_t sum = 0;
    for (const char c : header) sum += static_cast<uint8_t>(c);
    put(header, 148, lorad::format("{:06o}", sum));
    header[154] = '\0';
    archive += header;
    archive += content;
    archive.append((kTarBlock - content.size() % kTarBlock) % kTarBlock, '\0');
}

void end_tar(std::string& archive) { archive.append(2 * kTarBlock, '\0'); }

}  // namespace lorad::server
