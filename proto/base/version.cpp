#include "proto/base/version.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include <elf.h>
#include <link.h>

namespace lorad {

namespace {

std::string hex(std::span<const unsigned char> bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : bytes) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

// Looks through the notes of the first object, which is the program.
int find_build_id(dl_phdr_info* object, size_t, void* found) {
    constexpr size_t kAlignment = 4;
    const auto up = [](size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
    for (const auto& header : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
        if (header.p_type != PT_NOTE) continue;
        const auto* at = reinterpret_cast<const unsigned char*>(object->dlpi_addr + header.p_vaddr);
        for (size_t left = header.p_memsz; left >= sizeof(ElfW(Nhdr));) {
            ElfW(Nhdr) note;
            std::copy_n(at, sizeof note, reinterpret_cast<unsigned char*>(&note));
            const size_t name = sizeof note, text = name + up(note.n_namesz), end = text + up(note.n_descsz);
            if (end > left) break;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
                std::string_view(reinterpret_cast<const char*>(at + name), 3) == "GNU") {
                *static_cast<std::string*>(found) = hex({at + text, note.n_descsz});
                return 1;
            }
            at += end;
            left -= end;
        }
    }
    return 1;
}

}  // namespace

const char* version() { return LORAD_VERSION; }

std::string build_id() {
    std::string found;
    dl_iterate_phdr(find_build_id, &found);
    return found;
}

}  // namespace lorad
