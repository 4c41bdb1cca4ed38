// SHA-256 through OpenSSL: the functions of 1.1.0, whose state is a plain struct. Those that came after them allocate
// for each digest, and fail with that.
#define OPENSSL_API_COMPAT 10100

#include "proto/base/digest.h"

#include <openssl/sha.h>

#include "proto/base/check.h"

namespace lorad {
namespace {

constexpr size_t kBlockBytes = SHA256_CBLOCK;

SHA256_CTX* state_of(std::array<std::byte, 112>& bytes) { return reinterpret_cast<SHA256_CTX*>(bytes.data()); }

}  // namespace

Sha256::Sha256() {
    static_assert(sizeof(SHA256_CTX) <= sizeof state_ && alignof(SHA256_CTX) <= 8);
    CHECK(SHA256_Init(state_of(state_)) == 1);
}

void Sha256::add(std::span<const std::byte> bytes) {
    CHECK(SHA256_Update(state_of(state_), bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::digest() {
    Sha256Digest digest{};
    CHECK(SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), state_of(state_)) == 1);
    return digest;
}

std::string Sha256::hex() {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string hex;
    hex.reserve(2 * sizeof(Sha256Digest));
    for (const std::byte byte : digest()) {
        hex += kDigits[std::to_integer<size_t>(byte) >> 4];
        hex += kDigits[std::to_integer<size_t>(byte) & 15];
    }
    return hex;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
    Sha256 digest;
    digest.add(bytes);
    return digest.hex();
}

Sha256Digest hmac_sha256(std::string_view key, std::string_view text) {
    std::array<std::byte, kBlockBytes> block{};
    if (key.size() > block.size()) {
        Sha256 digest;
        digest.add(key);
        std::ranges::copy(digest.digest(), block.begin());
    } else {
        std::ranges::copy(std::as_bytes(std::span(key)), block.begin());
    }
    const auto begun_with = [&](Sha256& digest, std::byte pad) {
        std::array<std::byte, kBlockBytes> padded{};
        std::ranges::transform(block, padded.begin(), [&](std::byte byte) { return byte ^ pad; });
        digest.add(padded);
    };
    Sha256 inner, outer;
    begun_with(inner, std::byte{0x36});
    inner.add(text);
    begun_with(outer, std::byte{0x5c});
    outer.add(inner.digest());
    return outer.digest();
}

}  // namespace lorad
