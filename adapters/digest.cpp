// SHA-256 through OpenSSL, which appears nowhere else.
#include <array>

#include <openssl/evp.h>

#include "adapters/files.h"
#include "proto/base/format.h"

namespace lorad::adapters {

struct Sha256::Context {
    EVP_MD_CTX* md = EVP_MD_CTX_new();
    ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
    CHECK(context_->md != nullptr && EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
    CHECK(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) == 1);
}

std::array<std::byte, 32> Sha256::digest() {
    std::array<std::byte, 32> digest{};
    unsigned int size = 0;
    CHECK(EVP_DigestFinal_ex(context_->md, reinterpret_cast<unsigned char*>(digest.data()), &size) == 1 &&
          size == digest.size());
    return digest;
}

std::string Sha256::hex() {
    std::string hex;
    for (const std::byte byte : digest()) hex += format("{:02x}", static_cast<unsigned>(byte));
    return hex;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
    Sha256 digest;
    digest.add(bytes);
    return digest.hex();
}

}  // namespace lorad::adapters
