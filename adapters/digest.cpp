// SHA-256 through OpenSSL, which appears nowhere else.
#include <array>

#include <openssl/evp.h>

#include "adapters/files.h"
#include "proto/base/format.h"

namespace lorad::adapters {

std::string sha256_hex(std::span<const std::byte> bytes) {
    std::array<unsigned char, 32> digest{};
    unsigned int size = 0;
    CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1);
    CHECK(size == digest.size());
    std::string hex;
    for (const unsigned char byte : digest) hex += format("{:02x}", byte);
    return hex;
}

std::string generation_of(std::span<const std::byte> config, std::span<const std::byte> weights) {
    const std::string list =
        format("{}  {}\n{}  {}\n", sha256_hex(config), kConfigFile, sha256_hex(weights), kWeightsFile);
    return sha256_hex(std::as_bytes(std::span(list)));
}

}  // namespace lorad::adapters
