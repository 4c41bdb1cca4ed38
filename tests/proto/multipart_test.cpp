#include "proto/multipart.h"

#include <random>

#include <gtest/gtest.h>

namespace lorad::proto::multipart_test {
namespace {

const std::string kForm =
    "--xyz\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nsql\r\n"
    "--xyz\r\ncontent-disposition: form-data; filename=\"a;\\\"b.json\"; name=file\r\nContent-Type: a/b\r\n\r\n"
    "line\r\n--xy\r\nmore\r\n"
    "--xyz\r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n--xyz--\r\n";

TEST(Multipart, PartsAreTakenApartInPlace) {
    auto parts = parse_multipart(kForm, "xyz");
    ASSERT_TRUE(parts.ok()) << parts.error().message;
    ASSERT_EQ(parts->size(), 3u);
    EXPECT_EQ(parts->at(0).name, "name");
    EXPECT_FALSE(parts->at(0).has_filename);
    EXPECT_EQ(parts->at(0).content, "sql");
    EXPECT_EQ(parts->at(1).name, "file");
    EXPECT_EQ(parts->at(1).filename, "a;\"b.json");
    EXPECT_EQ(parts->at(1).content, "line\r\n--xy\r\nmore");
    EXPECT_EQ(parts->at(2).content, "");
    auto preamble = parse_multipart("hello\r\n" + kForm + "epilogue", "xyz");
    ASSERT_TRUE(preamble.ok());
    EXPECT_EQ(preamble->size(), 3u);
    EXPECT_TRUE(parse_multipart("--xyz--", "xyz")->empty());
}

TEST(Multipart, EveryTruncationIsRefused) {
    size_t n_whole = kForm.find("--xyz--") + 7;
    for (size_t n = 0; n < n_whole; ++n)
        EXPECT_FALSE(parse_multipart(std::string_view(kForm).substr(0, n), "xyz").ok()) << n;
}

TEST(Multipart, BrokenPartsAreRefused) {
    const auto part = [](const std::string& header) {
        return parse_multipart("--b\r\n" + header + "\r\n\r\nx\r\n--b--", "b");
    };
    EXPECT_TRUE(part("Content-Disposition: form-data; name=a").ok());
    for (const char* header :
         {"Content-Type: a/b", "Content-Disposition: form-data", "Content-Disposition: attachment; name=a",
          "Content-Disposition: form-data; name=\"a", "Content-Disposition: form-data; name",
          "Content-Disposition: form-data; name=a; name=b",
          "Content-Disposition: form-data; name=a; filename=b; filename=c",
          "Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b", "no colon",
          "Content-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64"}) {
        EXPECT_FALSE(part(header).ok()) << header;
    }
    EXPECT_FALSE(part("Content-Disposition: form-data; name=a\r\nX: " + std::string(kFormHeaderBytesMax, 'y')).ok());
    std::string many;
    for (size_t i = 0; i <= kFormPartsMax; ++i) many += "--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n";
    EXPECT_FALSE(parse_multipart(many + "--b--", "b").ok());
}

TEST(Multipart, TheBoundaryComesFromTheContentType) {
    EXPECT_EQ(*multipart_boundary("multipart/form-data; boundary=xyz"), "xyz");
    EXPECT_EQ(*multipart_boundary("Multipart/Form-Data; charset=utf-8; Boundary=\"a b\""), "a b");
    EXPECT_EQ(*multipart_boundary("application/json"), "");
    EXPECT_EQ(*multipart_boundary(""), "");
    EXPECT_FALSE(multipart_boundary("multipart/form-data").ok());
    EXPECT_FALSE(multipart_boundary("multipart/form-data; boundary=").ok());
    EXPECT_FALSE(multipart_boundary("multipart/form-data; boundary=" + std::string(71, 'b')).ok());
}

TEST(Multipart, RandomDamageNeverReadsOutside) {
    const uint32_t seed = std::random_device{}();
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 5000; ++round) {
        std::string damaged = kForm;
        for (int i = 0; i < 3; ++i) {
            size_t at = random() % damaged.size();
            if (random() % 2) {
                damaged[at] = char(random());
            } else {
                damaged.erase(at, random() % 8);
            }
            if (damaged.empty()) damaged = "-";
        }
        auto parts = parse_multipart(damaged, "xyz");
        if (!parts.ok()) continue;
        for (const FormPart& part : *parts) {
            EXPECT_GE(part.content.data(), damaged.data());
            EXPECT_LE(part.content.data() + part.content.size(), damaged.data() + damaged.size());
        }
    }
}

}  // namespace
}  // namespace lorad::proto::multipart_test
