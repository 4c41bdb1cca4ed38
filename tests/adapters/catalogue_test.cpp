#include "adapters/store/catalogue.h"

#include <cmath>
#include <map>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adapters/files/files.h"
#include "proto/base/format.h"

namespace lorad::adapters::catalogue_test {
namespace {

using ::testing::ElementsAre;

std::string id_of(int i) {
    const std::string text = format("generation {}", i);
    return sha256_hex(std::as_bytes(std::span(text)));
}

Target target_of(int i) {
    Target target;
    target.parts = {{"n", id_of(i), 1.0f}};
    target.since_s = i;
    return target;
}

GenerationRecord record_of(int i, const std::string& shared_blob = {}) {
    GenerationRecord record;
    record.id = id_of(i);
    record.files = {{"adapter_config.json", shared_blob.empty() ? id_of(1000 + i) : shared_blob, 10},
                    {"adapter_model.safetensors", id_of(2000 + i), 100}};
    record.rank = 8;
    record.device_bytes = 4096;
    return record;
}

TEST(AdapterStates, TheTableAllowsExactlyTheLifeThatTheHeaderDraws) {
    using enum AdapterState;
    using enum StateChange;
    const std::map<std::pair<AdapterState, StateChange>, AdapterState> drawn = {
        {{kStored, kLoadBegins}, kLoading},   {{kLoading, kLoadEnds}, kResident},
        {{kLoading, kLoadFails}, kStored},    {{kResident, kEvicted}, kStored},
        {{kStored, kFoundDamaged}, kDamaged}, {{kLoading, kFoundDamaged}, kDamaged},
        {{kDamaged, kStoredAgain}, kStored},  {{kStored, kDropped}, kGone},
        {{kResident, kDropped}, kGone},       {{kDamaged, kDropped}, kGone},
    };
    std::map<AdapterState, std::vector<AdapterState>> ways;
    for (const AdapterState state : {kStored, kLoading, kResident, kDamaged, kGone}) {
        for (const StateChange change :
             {kLoadBegins, kLoadEnds, kLoadFails, kEvicted, kFoundDamaged, kStoredAgain, kDropped}) {
            const auto expected = drawn.find({state, change});
            const auto found = next_state(state, change);
            ASSERT_EQ(found.has_value(), expected != drawn.end()) << name_of(state) << " " << name_of(change);
            if (!found) continue;
            EXPECT_EQ(*found, expected->second) << name_of(state) << " " << name_of(change);
            ways[state].push_back(*found);
        }
    }
    EXPECT_TRUE(ways[kGone].empty());
    // A step may only ever name a resident one, which nothing but a finished load makes; and all end.
    for (const auto& [pair, to] : drawn) EXPECT_EQ(to == kResident, pair.second == kLoadEnds);
    for (const AdapterState state : {kStored, kLoading, kResident, kDamaged}) {
        std::set<AdapterState> reached = {state};
        for (int i = 0; i < 5; ++i) {
            for (const AdapterState from : std::set(reached)) reached.insert(ways[from].begin(), ways[from].end());
        }
        EXPECT_TRUE(reached.contains(kGone)) << name_of(state);
    }
}

TEST(Catalogue, NamesHaveAHistoryAndGoBackInIt) {
    Catalogue catalogue;
    const ChangeOptions replace{.replace = true};
    for (int i = 0; i < 7; ++i) ASSERT_TRUE(catalogue.set("n", target_of(i), replace).ok());
    const Alias& alias = catalogue.aliases.at("n");
    EXPECT_EQ(alias.target, target_of(6));
    EXPECT_THAT(alias.history, ElementsAre(target_of(5), target_of(4), target_of(3), target_of(2))) << "kHistoryMax";
    EXPECT_EQ(catalogue.rollback("n", id_of(1), 9).error().code, ErrorCode::kGenerationConflict) << "forgotten";
    ASSERT_TRUE(catalogue.rollback("n", {}, 100).ok());
    EXPECT_EQ(alias.target.generation(), id_of(5));
    EXPECT_EQ(alias.target.since_s, 100);
    EXPECT_EQ(alias.history.front(), target_of(6)) << "and forth again";
    ASSERT_TRUE(catalogue.rollback("n", id_of(2), 101).ok());
    EXPECT_EQ(alias.target.generation(), id_of(2));
    EXPECT_EQ(alias.history.size(), 4u);
    EXPECT_EQ(catalogue.rollback("m", {}, 9).error().code, ErrorCode::kAdapterNotFound);
    ASSERT_TRUE(catalogue.set("m", target_of(1), {}).ok());
    EXPECT_EQ(catalogue.rollback("m", {}, 9).error().code, ErrorCode::kGenerationConflict);
}

TEST(Catalogue, ChangesCompareTheGenerationFirst) {
    Catalogue catalogue;
    EXPECT_EQ(catalogue.set("n", target_of(1), {true, id_of(0)}).error().code, ErrorCode::kGenerationMismatch)
        << "not there";
    ASSERT_TRUE(catalogue.set("n", target_of(1), {}).ok());
    EXPECT_EQ(catalogue.set("n", target_of(2), {}).error().code, ErrorCode::kAdapterExists);
    EXPECT_EQ(catalogue.set("n", target_of(2), {true, id_of(0)}).error().code, ErrorCode::kGenerationMismatch);
    EXPECT_EQ(catalogue.remove("n", id_of(0)).error().code, ErrorCode::kGenerationMismatch);
    const Catalogue before = catalogue;
    EXPECT_EQ(catalogue, before);
    EXPECT_TRUE(catalogue.set("n", target_of(2), {true, id_of(1)}).ok());
    EXPECT_TRUE(catalogue.remove("n", id_of(2)).ok());
    EXPECT_EQ(catalogue.remove("n", {}).error().code, ErrorCode::kAdapterNotFound);
}

TEST(Catalogue, ContentStaysWhileANameStandsOrStoodForIt) {
    Catalogue catalogue;
    const std::string shared = id_of(77);
    for (int i = 0; i < 3; ++i) catalogue.generations[id_of(i)] = record_of(i, i < 2 ? shared : std::string());
    ASSERT_TRUE(catalogue.set("a", target_of(0), {}).ok());
    ASSERT_TRUE(catalogue.set("a", target_of(1), {.replace = true}).ok());
    ASSERT_TRUE(catalogue.set("b", target_of(1), {}).ok());
    catalogue.drop_unused();
    EXPECT_TRUE(catalogue.generations.contains(id_of(0))) << "history";
    EXPECT_FALSE(catalogue.generations.contains(id_of(2)));
    EXPECT_EQ(catalogue.trash, (std::set<std::string>{id_of(1002), id_of(2002)}));
    EXPECT_EQ(catalogue.stored_bytes(), 210u) << "the shared blob counts once";
    ASSERT_TRUE(catalogue.remove("a", {}).ok());
    catalogue.drop_unused();
    EXPECT_FALSE(catalogue.generations.contains(id_of(0)));
    EXPECT_TRUE(catalogue.trash.contains(id_of(2000)));
    EXPECT_FALSE(catalogue.trash.contains(shared)) << "still of the other";
}

TEST(Catalogue, AMixIsNamedByItsContentAndScales) {
    const std::vector<Part> one = {{"a", id_of(1), 1.0f}}, half = {{"a", id_of(1), 0.5f}};
    const std::vector<Part> two = {{"a", id_of(1), 0.5f}, {"b", id_of(2), 0.5f}};
    EXPECT_EQ(mix_generation(one), id_of(1));
    EXPECT_EQ(mix_generation({}), "");
    EXPECT_NE(mix_generation(half), id_of(1));
    EXPECT_EQ(mix_generation(two).size(), 64u);
    std::vector<Part> other_names = two;
    other_names[0].name = "x";
    EXPECT_EQ(mix_generation(two), mix_generation(other_names));
    std::vector<Part> nearly = two;
    nearly[1].scale = std::nextafter(0.5f, 1.0f);
    EXPECT_NE(mix_generation(two), mix_generation(nearly));
    EXPECT_THAT(simplified({{"a", id_of(1), 0.75f}, {"b", id_of(2), 0.0f}, {"c", id_of(1), 0.25f}}),
                ElementsAre(Part{"a", id_of(1), 1.0f}));
    EXPECT_TRUE(simplified({{"a", id_of(1), 2.0f}, {"c", id_of(1), -2.0f}}).empty());
}

TEST(Manifest, ReadsBackWhatWasWrittenAndNothingElse) {
    std::mt19937_64 random(30);
    for (int round = 0; round < 30; ++round) {
        Catalogue catalogue;
        catalogue.sequence = random();
        const int n = 1 + static_cast<int>(random() % 5);
        for (int i = 0; i < n; ++i) {
            GenerationRecord record = record_of(i);
            record.n_modules = static_cast<uint32_t>(random() % 400);
            record.replaces_parts = random() % 2 == 0;
            record.invocation_tokens.assign(random() % 3, static_cast<TokenId>(random() % 1000));
            catalogue.generations[record.id] = record;
            Target target = target_of(i);
            target.path = "/some where/\"quoted\"\n";
            target.parts.front().scale = std::uniform_real_distribution<float>(-3, 3)(random);
            ASSERT_TRUE(catalogue.set(format("name \xc3\xa9 {}", random() % 3), target, {.replace = true}).ok());
        }
        for (auto& [name, alias] : catalogue.aliases) {
            alias.mode = static_cast<ActivationMode>(random() % 4);
            alias.pinned = random() % 2 == 0;
        }
        catalogue.trash.insert(id_of(99));
        const std::string text = manifest_text(catalogue);
        const auto read = parse_manifest(text);
        ASSERT_TRUE(read.ok()) << read.error().message;
        EXPECT_EQ(*read, catalogue);
        for (int i = 0; i < 30; ++i) {
            std::string changed = text;
            changed[random() % changed.size()] ^= char(1 << random() % 8);
            EXPECT_FALSE(parse_manifest(changed).ok());
            EXPECT_FALSE(parse_manifest(text.substr(0, random() % text.size())).ok());
        }
    }
    EXPECT_FALSE(parse_manifest("").ok());
    EXPECT_FALSE(parse_manifest("{}").ok());
}

}  // namespace
}  // namespace lorad::adapters::catalogue_test
