// SHA-256 and HMAC against the vectors of FIPS 180-4 and RFC 4231.
#include "proto/base/digest.h"

#include <gtest/gtest.h>

namespace lorad::digest_test {
namespace {

std::string hex_of(const Sha256Digest& digest) {
    std::string hex;
    for (const std::byte byte : digest) {
        char two[3];
        std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(byte));
        hex += two;
    }
    return hex;
}

TEST(Digest, IsThatOfTheStandardHoweverItIsCut) {
    EXPECT_EQ(Sha256().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    const std::string text = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    for (size_t cut = 0; cut <= text.size(); ++cut) {
        Sha256 digest;
        digest.add(std::string_view(text).substr(0, cut));
        digest.add(std::string_view(text).substr(cut));
        EXPECT_EQ(digest.hex(), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1") << cut;
    }
    Sha256 million;
    for (int i = 0; i < 1000; ++i) million.add(std::string(1000, 'a'));
    EXPECT_EQ(million.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Digest, HmacIsThatOfTheStandard) {
    EXPECT_EQ(hex_of(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
              "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    EXPECT_EQ(hex_of(hmac_sha256("Jefe", "what do ya want for nothing?")),
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    EXPECT_EQ(hex_of(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace lorad::digest_test
