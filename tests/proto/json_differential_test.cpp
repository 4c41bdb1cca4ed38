// The reader of JSON against another implementation, on texts that are nearly right.
#include <bit>
#include <cmath>
#include <cstdio>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "proto/json/json.h"

namespace lorad::json_differential_test {
namespace {

using nlohmann::json;

json value_of(const JsonValue& value) {
    switch (value.type()) {
        case JsonType::kNull: return nullptr;
        case JsonType::kBool: return *value.as_bool();
        case JsonType::kInteger:
            if (const auto number = value.as_int(); number.ok()) return *number;
            return *value.as_uint();
        case JsonType::kNumber: return *value.as_number();
        case JsonType::kString: return std::string(*value.as_string());
        case JsonType::kArray: {
            json out = json::array();
            for (const JsonValue& element : *value.as_array()) out.push_back(value_of(element));
            return out;
        }
        case JsonType::kObject: {
            json out = json::object();
            for (const JsonMember& member : *value.as_object()) out[std::string(member.key)] = value_of(member.value);
            return out;
        }
    }
    return nullptr;
}

// Valid texts with what is easily got wrong, of lengths around eight bytes.
std::string random_text(std::mt19937& random, int depth) {
    const auto pick = [&](auto... texts) {
        const std::string all[] = {texts...};
        return all[random() % std::size(all)];
    };
    const auto blank = [&] { return random() % 4 == 0 ? pick(" ", "\n", "\t", "\r\n", "  ") : std::string(); };
    const auto string = [&] {
        std::string out = "\"";
        for (uint32_t i = random() % 20; i > 0; --i)
            out += pick("a", "bc", " ", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\\n", "\\\"", "\\\\",
                        "\\u00e9", "\\ud83d\\ude00", "\\u0000", "/", "\x7f", "0");
        return out + "\"";
    };
    switch (random() % (depth > 0 ? 10 : 7)) {
        case 0:
            return pick("0", "-0", "7", "-12", "9223372036854775807", "9223372036854775808", "18446744073709551615",
                        "18446744073709551616", "-9223372036854775809");
        case 1:
            return pick("0.5", "1e5", "-1.25E-3", "1e-400", "1.7976931348623157e308", "123456789012345678901234567890",
                        "4.9e-324", "0.1", "1E+2");
        case 2: return pick("true", "false", "null");
        case 7:
        case 8: {
            std::string out = "[" + blank();
            for (uint32_t i = random() % 4; i > 0; --i)
                out += random_text(random, depth - 1) + blank() + (i > 1 ? "," + blank() : "");
            return out + "]";
        }
        case 9: {
            std::string out = "{" + blank();
            for (uint32_t i = random() % 4; i > 0; --i)
                out += "\"k" + std::to_string(i) + string().substr(1) + blank() + ":" + blank() +
                       random_text(random, depth - 1) + blank() + (i > 1 ? "," + blank() : "");
            return out + "}";
        }
        default: return string();
    }
}

TEST(JsonDifferential, AgreesWithAnotherReaderOnTextsThatAreNearlyRight) {
    constexpr uint32_t kSeed = 20261121;
    std::mt19937 random(kSeed);
    uint32_t n_accepted = 0, n_refused = 0;
    for (uint32_t round = 0; round < 60000; ++round) {
        std::string text = random_text(random, 4);
        for (uint32_t i = round % 3; i > 0; --i) {
            const size_t at = random() % (text.size() + 1);
            constexpr std::string_view kBytes = "{}[],:\"\\ue0-+.1tfn \x01\x80\xc3\xed\xa0\xf5";
            const uint32_t what = random() % 4;
            if (what == 0)
                text.insert(at, 1, kBytes[random() % kBytes.size()]);
            else if (what == 1 && at < text.size())
                text.erase(at, 1 + random() % 3);
            else if (what == 2 && at < text.size())
                text[at] = kBytes[random() % kBytes.size()];
            else
                text = text.substr(0, at) + text.substr(at / 2);
        }
        const auto read = parse_json(text, {.allow_duplicate_keys = true});
        const json expected = json::parse(text, nullptr, false);
        ASSERT_EQ(read.ok(), !expected.is_discarded())
            << "seed " << kSeed << " round " << round << ": " << text << (read.ok() ? "" : "\n" + read.error().message);
        if (!read.ok()) {
            ++n_refused;
            continue;
        }
        ++n_accepted;
        ASSERT_EQ(value_of(read->root()), expected) << text;
    }
    EXPECT_GT(n_accepted, 20000u);
    EXPECT_GT(n_refused, 20000u);
}

TEST(JsonDifferential, NumbersHaveTheSameBits) {
    std::mt19937_64 random(7);
    for (uint32_t round = 0; round < 20000; ++round) {
        const double number = std::bit_cast<double>(random());
        if (!std::isfinite(number)) continue;
        char text[40];
        std::snprintf(text, sizeof text, "%.*e", int(random() % 20), number);
        const json expected = json::parse(text, nullptr, false);
        const auto read = parse_json(text);
        ASSERT_EQ(read.ok(), !expected.is_discarded()) << text;
        if (!read.ok()) continue;
        EXPECT_EQ(std::bit_cast<uint64_t>(*read->root().as_number()), std::bit_cast<uint64_t>(expected.get<double>()))
            << text;
    }
}

TEST(Json, ErrorsOfSyntaxNameTheFieldThatWasBeingRead) {
    const auto param_of = [](std::string_view text) {
        const auto read = parse_json(text);
        return read.ok() ? "(read)" : read.error().param;
    };
    EXPECT_EQ(param_of(R"({"a": NaN})"), "a");
    EXPECT_EQ(param_of(R"({"x": 1, "a": {"b": [1, 1e999]}})"), "a.b[1]");
    EXPECT_EQ(param_of(R"({"a": 01})"), "a");
    EXPECT_EQ(param_of(R"({"a": "\ud800"})"), "a");
    EXPECT_EQ(param_of(R"({"a": [1, )"), "a[1]");
    EXPECT_EQ(param_of(R"({"a": 1 "b")"), "");
    EXPECT_EQ(param_of(R"({"a": 1, b)"), "");
    EXPECT_EQ(param_of(std::string(R"({"a": )") + std::string(100, '[')).substr(0, 5), "a[0][");
    EXPECT_EQ(param_of("nonsense"), "");
}

}  // namespace
}  // namespace lorad::json_differential_test
