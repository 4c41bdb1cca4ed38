#include "server/http/request_id.h"

#include <algorithm>

#include "proto/base/format.h"
#include "server/http/generate/generation.h"

namespace lorad::server {

std::string request_id_of(std::string_view sent) {
    const bool is_well_formed = !sent.empty() && sent.size() <= kRequestIdBytesMax &&
                                std::ranges::all_of(sent, [](char c) { return c > ' ' && c < 0x7f; });
    if (is_well_formed) return std::string(sent);
    return format("req_{:016x}{:016x}", random_number(), random_number());
}

}  // namespace lorad::server
