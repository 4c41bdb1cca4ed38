// Pools that many share: nobody takes all of one.
#include "server/access/shared_places.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace lorad::server::shared_places_test {
namespace {

using access::Holder;
using access::SharedPlaces;
using std::chrono::milliseconds;

// As many as it gets.
std::vector<SharedPlaces::Place> take_all(SharedPlaces& pool, const Holder& holder, uint64_t n = 1) {
    std::vector<SharedPlaces::Place> out;
    for (;;) {
        SharedPlaces::Place place = pool.take(holder, n);
        if (!place.taken()) return out;
        out.push_back(std::move(place));
    }
}

TEST(SharedPlaces, OneTenantLeavesHalfToOthersAndTheNextAlwaysFindsAPlace) {
    SharedPlaces pool(16);
    auto a = take_all(pool, {"a", ""});
    EXPECT_EQ(a.size(), 8u);
    auto b = take_all(pool, {"b", ""});
    EXPECT_EQ(b.size(), 4u);
    auto c = take_all(pool, {"c", ""});
    EXPECT_EQ(c.size(), 2u);
    EXPECT_TRUE(pool.take({"d", ""}).taken()) << "whoever has none";
    a.clear();
    EXPECT_EQ(pool.n_taken(), 6u);
    EXPECT_EQ(take_all(pool, {"b", ""}).size(), 3u) << "it has what others have let go, up to what it leaves free";
}

TEST(SharedPlaces, AddressesHaveSharesWhateverTheirKeys) {
    SharedPlaces pool(16);
    std::vector<SharedPlaces::Place> held;
    for (int i = 0; i < 100; ++i) {
        SharedPlaces::Place place = pool.take({"tenant " + std::to_string(i), "192.0.2.1"});
        if (place.taken()) held.push_back(std::move(place));
    }
    EXPECT_EQ(held.size(), 12u) << "three times what it leaves free";
    EXPECT_TRUE(pool.take({"b", "192.0.2.2"}).taken());
    EXPECT_FALSE(pool.take({"b", "192.0.2.1"}).taken());
}

TEST(SharedPlaces, OneTenantDoesNotUseUpWhatAProxysAddressHasForAll) {
    SharedPlaces pool(16);
    auto a = take_all(pool, {"a", "192.0.2.1"});
    EXPECT_EQ(a.size(), 8u);
    EXPECT_EQ(take_all(pool, {"b", "192.0.2.1"}).size(), 4u);
}

TEST(SharedPlaces, WhoHasNoNameHasNoShareButTheTotalHolds) {
    SharedPlaces pool(16);
    EXPECT_EQ(take_all(pool, {}).size(), 16u);
    EXPECT_EQ(pool.n_taken(), 0u);
}

TEST(SharedPlaces, BytesAreCountedAsPlacesAre) {
    SharedPlaces pool(100);
    auto a = take_all(pool, {"a", ""}, 16);
    EXPECT_EQ(a.size(), 3u);
    EXPECT_TRUE(pool.take({"b", ""}, 52).taken()) << "the first may have all that is free";
    EXPECT_FALSE(pool.take({"b", ""}, 53).taken());
}

TEST(SharedPlaces, ALargerShareLeavesOneForWhoHasNone) {
    SharedPlaces pool(4, 3);
    auto a = take_all(pool, {"a", ""});
    EXPECT_EQ(a.size(), 3u);
    EXPECT_TRUE(pool.take({"b", ""}).taken());
}

TEST(SharedPlaces, AWaitEndsWithAPlaceWithTheTimeOrWhenNobodyWantsItAnyMore) {
    SharedPlaces pool(1);
    SharedPlaces::Place held = pool.take({"a", ""});
    EXPECT_FALSE(pool.wait({"b", ""}, 1, milliseconds(20)).taken());
    EXPECT_FALSE(pool.wait({"b", ""}, 1, std::chrono::minutes(10), [] { return true; }).taken());
    std::thread other([&] {
        std::this_thread::sleep_for(milliseconds(20));
        held.give_back();
    });
    EXPECT_TRUE(pool.wait({"b", ""}, 1, std::chrono::minutes(10)).taken());
    other.join();
    EXPECT_EQ(pool.n_taken(), 0u);
}

}  // namespace
}  // namespace lorad::server::shared_places_test
