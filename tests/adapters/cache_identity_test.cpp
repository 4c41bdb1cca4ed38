#include "adapters/pool/cache_identity.h"

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "proto/base/format.h"

namespace lorad::adapters::cache_identity_test {
namespace {

const std::string kBase(64, 'b'), kOne(64, '1'), kTwo(64, '2');
const std::vector<TokenId> kTokens{1, 2, 3, 4};

std::string identity(std::vector<CacheAdapter> adapters, std::string_view tenant = "", std::string_view parent = "",
                     const std::vector<TokenId>& tokens = kTokens, std::string_view base = kBase) {
    return cache_identity(base, adapters, tenant, parent, tokens);
}

TEST(CacheIdentity, IsContentAndNeverAName) {
    // The same content is the same identity under any name: no name goes in at all. A replaced content is another one,
    // and back.
    const std::string before = identity({{kOne}});
    EXPECT_EQ(before.size(), 64u);
    for (int i = 0; i < 1000; ++i) {
        const std::string generation = format("{:064x}", i);
        EXPECT_NE(identity({{generation}}), before);
        EXPECT_EQ(identity({{generation}}), identity({{generation}}));
    }
    EXPECT_EQ(identity({{kOne}}), before);
}

TEST(CacheIdentity, BaseAdaptersScalesTenantsPrefixesAndTokensAllCount) {
    const std::string plain = identity({{kOne, 1.0f}}, "t", "p");
    EXPECT_NE(plain, identity({}, "t", "p"));
    EXPECT_NE(plain, identity({{kTwo, 1.0f}}, "t", "p"));
    EXPECT_NE(plain, identity({{kOne, 0.5f}}, "t", "p"));
    EXPECT_NE(plain, identity({{kOne, std::nextafter(1.0f, 2.0f)}}, "t", "p"));
    EXPECT_NE(plain, identity({{kOne, -1.0f}}, "t", "p"));
    EXPECT_NE(plain, identity({{kOne, 1.0f}}, "u", "p"));
    EXPECT_NE(plain, identity({{kOne, 1.0f}}, "t", "q"));
    EXPECT_NE(plain, identity({{kOne, 1.0f}}, "t", "p", {1, 2, 3}));
    EXPECT_NE(plain, identity({{kOne, 1.0f}}, "t", "p", {1, 2, 4, 3}));
    EXPECT_NE(plain, identity({{kOne, 1.0f}}, "t", "p", kTokens, kTwo));
    // Sums are computed in the order of the request.
    EXPECT_NE(identity({{kOne}, {kTwo}}), identity({{kTwo}, {kOne}}));
    EXPECT_NE(identity({{kOne}, {kOne}}), identity({{kOne, 2.0f}}));
}

TEST(CacheIdentity, AScaleOfZeroIsTheBase) {
    EXPECT_EQ(identity({{kOne, 0.0f}}), identity({}));
    EXPECT_EQ(identity({{kOne, -0.0f}, {kTwo, 0.5f}}), identity({{kTwo, 0.5f}}));
}

// Fields that hold each other's texts, ends and beginnings never meet: all pairs of adversarial strings in all fields.
TEST(CacheIdentity, NoTextOfOneFieldPassesForAnother) {
    std::vector<std::string> texts{"", kBase, kOne, "lorad cache 1", std::string(1, '\0'), std::string("\0\0", 2)};
    for (int tag = 1; tag <= 7; ++tag) {
        for (const int length : {0, 1, 8, 64, 255}) {
            texts.push_back(std::string(1, char(tag)) + std::string(1, char(length)) + std::string(7, '\0') +
                            kOne.substr(0, 8));
        }
    }
    for (const std::string text : {"a", "aa", "ab", "b", "1", "01", "10", "tenant", "{}"}) texts.push_back(text);
    // Pairs that would run into each other were the first field written bare: its text is what stands before the second
    // one, whose text is the rest.
    const auto length = [](uint64_t n) { return std::string(1, char(n)) + std::string(7, '\0'); };
    std::vector<std::string> between{std::string("\2") + length(0) + "\5"};
    for (int tag = 1; tag <= 7; ++tag) between.push_back(std::string(1, char(tag)));
    for (const std::string& head : between) {
        const std::string rest = "a" + head + length(1) + "b";
        texts.push_back(rest);
        texts.push_back(head + length(rest.size()) + "a");
    }
    ASSERT_GE(texts.size(), 50u);
    std::map<std::string, std::string> seen;
    size_t n = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
        for (size_t k = 0; k < texts.size(); ++k) {
            const std::string &a = texts[i], &b = texts[k];
            const std::pair<std::string, std::string> cases[] = {
                {cache_identity(a, {}, b, "", {}), format("base {} tenant {}", i, k)},
                {cache_identity("x", std::vector<CacheAdapter>{{a}}, b, "", {}), format("adapter {} tenant {}", i, k)},
                {cache_identity("x", std::vector<CacheAdapter>{{a}, {b}}, "", "", {}), format("adapters {} {}", i, k)},
                {cache_identity("x", {}, a, b, {}), format("tenant {} parent {}", i, k)},
            };
            for (const auto& [digest, what] : cases) {
                const auto [known, is_new] = seen.emplace(digest, what);
                // The empty tenant and parent of one case are those of another.
                const bool is_same = what.starts_with("tenant 0 parent 0") || known->second == what;
                EXPECT_TRUE(is_new || is_same) << what << " is " << known->second;
                ++n;
            }
        }
    }
    EXPECT_GE(n, 10'000u);
}

TEST(CacheIdentity, ChainsOfBlocksEqualOnlyWhereEverythingBeforeIsEqual) {
    std::string one, other;
    std::set<std::string> seen;
    for (int block = 0; block < 8; ++block) {
        one = identity({{kOne}}, "t", one, {block});
        other = identity({{kOne}}, "t", other, {block == 3 ? 99 : block});
        EXPECT_EQ(one == other, block < 3);
        EXPECT_TRUE(seen.insert(one).second);
    }
}

}  // namespace
}  // namespace lorad::adapters::cache_identity_test
