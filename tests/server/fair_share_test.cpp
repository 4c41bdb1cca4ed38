#include "server/engine/fair_share.h"

#include <random>

#include <gtest/gtest.h>

namespace lorad::server::fair_share_test {
namespace {

struct Waiting {
    FairShare::Ticket ticket;
    int32_t priority = 0;
    uint64_t arrived_ms = 0;
    uint64_t cost = 10;
    bool was_running = false;
    std::string name;
};

// Requests that wait, and who of them would be next.
struct Line {
    explicit Line(uint64_t starvation_ms = 1000) : fair(starvation_ms) {}

    void add(const std::string& tenant, const std::string& adapter, const std::string& name, int32_t priority = 0,
             uint64_t now_ms = 0) {
        waiting.push_back({fair.enter(tenant, adapter, priority), priority, now_ms, 10, false, name});
    }
    std::vector<FairShare::Candidate> order(uint64_t now_ms = 0, size_t n = 100) {
        std::vector<FairShare::Candidate> candidates;
        for (uint32_t i = 0; i < waiting.size(); ++i) {
            const Waiting& w = waiting[i];
            candidates.push_back({i, &w.ticket, w.priority, w.was_running, i, w.arrived_ms, w.cost});
        }
        fair.order(candidates, n, now_ms);
        return candidates;
    }
    std::string names(uint64_t now_ms = 0) {
        std::string out;
        for (const auto& candidate : order(now_ms)) out += waiting[candidate.index].name;
        return out;
    }

    FairShare fair;
    std::vector<Waiting> waiting;
};

TEST(FairShare, TenantsTakeTurnsHoweverManyRequestsOneOfThemHas) {
    Line line;
    for (const char* name : {"a", "b", "c", "d"}) line.add("one", "", name);
    line.add("two", "", "X");
    line.add("three", "", "Y");
    line.add("three", "", "Z");
    EXPECT_EQ(line.names(), "aXYbZcd");
}

TEST(FairShare, AdaptersOfATenantTakeTurnsWithinItsShare) {
    Line line;
    for (const char* name : {"a", "b", "c"}) line.add("one", "sql", name);
    line.add("one", "chat", "d");
    line.add("two", "sql", "X");
    line.add("two", "sql", "Y");
    EXPECT_EQ(line.names(), "aXdYbc");
}

TEST(FairShare, CostCountsNotTheNumberOfRequests) {
    Line line;
    for (const char* name : {"a", "b", "c"}) line.add("long", "", name);
    for (Waiting& w : line.waiting) w.cost = 30;
    for (const char* name : {"U", "V", "W", "X", "Y"}) line.add("short", "", name);
    EXPECT_EQ(line.names(), "aUVWbXYc");
}

TEST(FairShare, WhatWasChargedPutsATenantBehind) {
    Line line;
    line.add("one", "", "a");
    line.add("two", "", "X");
    line.fair.charge(line.waiting[0].ticket, 5);
    EXPECT_EQ(line.names(), "Xa");
}

TEST(FairShare, AnIdleTenantSavesNothingUp) {
    Line line;
    line.add("busy", "", "a");
    line.fair.start(line.waiting[0].ticket);
    line.fair.charge(line.waiting[0].ticket, 1000000);
    line.add("busy", "", "b");
    line.add("idle", "", "X");
    line.waiting.erase(line.waiting.begin());
    // It begins at what the busy one has had, not a million tokens ahead.
    EXPECT_EQ(line.fair.cost_of("idle"), 1000000u);
    EXPECT_EQ(line.names(), "bX");
}

TEST(FairShare, ATenantThatIsAheadStaysSoWhenItComesBack) {
    Line line;
    line.add("other", "", "X");
    line.add("greedy", "", "a");
    line.fair.charge(line.waiting[1].ticket, 500);
    line.fair.leave(line.waiting[1].ticket, 0);
    line.waiting.pop_back();
    for (int i = 0; i < 40; ++i) {  // names of others do not wash it away
        FairShare::Ticket ticket = line.fair.enter("t" + std::to_string(i), "", 0);
        line.fair.leave(ticket, 0);
    }
    line.add("greedy", "", "b");
    EXPECT_EQ(line.names(), "Xb");
    EXPECT_EQ(line.fair.cost_of("greedy"), 500u);
}

TEST(FairShare, RemembersABoundedNumberOfTenants) {
    FairShare fair(0);
    for (int i = 0; i < 100000; ++i) {
        FairShare::Ticket ticket = fair.enter("t" + std::to_string(i), "a" + std::to_string(i), i);
        fair.start(ticket);
        fair.charge(ticket, 1000000 + uint64_t(i));
        fair.leave(ticket, 0);
    }
    EXPECT_LE(fair.n_tenants(), 1100u);
}

TEST(FairShare, PrioritiesComeBeforeShares) {
    Line line;
    line.add("one", "", "a", 5);
    line.add("two", "", "X", 5);
    line.add("one", "", "b", -1);
    line.add("one", "", "c", -1);
    EXPECT_EQ(line.names(), "bcXa") << "tenant one has had its two urgent ones before";
}

TEST(FairShare, WhoLostItsBlocksComesBeforeThoseThatNeverRan) {
    Line line;
    line.add("one", "", "a");
    line.add("two", "", "X");
    line.add("one", "", "b");
    line.waiting[2].was_running = true;
    EXPECT_EQ(line.names(), "baX");
}

TEST(FairShare, WhoIsPassedOverForTooLongIsPromotedOneOfATenantAtATime) {
    Line line(1000);
    for (int i = 0; i < 3; ++i) line.add("slow", "", std::string(1, char('a' + i)), 10, 100);
    line.add("fast", "", "X", 0, 900);
    EXPECT_EQ(line.names(1099), "Xabc");
    EXPECT_EQ(line.names(1100), "aXbc");
    line.fair.start(line.waiting[0].ticket);
    line.fair.promote(line.waiting[0].ticket);
    line.waiting.erase(line.waiting.begin());
    EXPECT_EQ(line.names(5000), "Xbc") << "while one runs the others are not passed over";
}

TEST(FairShare, TheTimeCountsFromWhenTheLastOneOfItsKindRan) {
    Line line(1000);
    line.add("slow", "", "a", 10, 0);
    line.add("slow", "", "b", 10, 0);
    line.add("fast", "", "X", 0, 0);
    line.waiting[2].arrived_ms = 1900;
    line.fair.start(line.waiting[0].ticket);
    line.fair.leave(line.waiting[0].ticket, 1500);
    line.waiting.erase(line.waiting.begin());
    EXPECT_EQ(line.names(2000), "Xb");
    EXPECT_EQ(line.names(2500), "bX");
    EXPECT_EQ(Line(0).fair.starvation_ms(), 0u);
}

TEST(FairShare, WithoutABoundNobodyIsPromoted) {
    Line line(0);
    line.add("slow", "", "a", 10);
    line.add("fast", "", "X", 0);
    EXPECT_EQ(line.names(1u << 30), "Xa");
}

// Two tenants that always have requests waiting, of very different sizes, on a server of a few
// places: what they have been given never differs by more than the running requests of one and one
// more, whatever their sizes.
TEST(FairShare, TheServiceOfTwoBackloggedTenantsStaysWithinTheBound) {
    uint32_t seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    double worst = 0;  // of the largest batch's cost
    for (int round = 0; round < 200; ++round) {
        const uint32_t n_places = 1 + random() % 8;
        const uint32_t sizes[2] = {1 + uint32_t(random() % 2000), 1 + uint32_t(random() % 50)};
        const uint32_t n_generated_max = 1 + random() % 100;
        Line line(0);
        struct Running {
            FairShare::Ticket ticket;
            uint32_t tenant, n_left;
        };
        std::vector<Running> running;
        uint64_t given[2] = {0, 0}, cost_max = 0;
        uint32_t n_waiting[2] = {0, 0};
        for (uint32_t t : {0u, 1u}) cost_max = std::max<uint64_t>(cost_max, sizes[t] + 2 * n_generated_max);
        for (int step = 0; step < 2000; ++step) {
            for (uint32_t t : {0u, 1u}) {
                for (; n_waiting[t] < 5; ++n_waiting[t]) {
                    line.add(t == 0 ? "A" : "B", "", t == 0 ? "A" : "B");
                    line.waiting.back().cost = sizes[t];
                }
            }
            auto order = line.order(0, n_places - running.size());
            std::vector<uint32_t> started;
            for (size_t i = 0; i < n_places - running.size() && i < order.size(); ++i) {
                Waiting& next = line.waiting[order[i].index];
                uint32_t t = next.name == "B";
                line.fair.start(next.ticket);
                line.fair.charge(next.ticket, sizes[t]);
                given[t] += sizes[t];
                running.push_back({next.ticket, t, 1 + uint32_t(random() % n_generated_max)});
                started.push_back(order[i].index);
                --n_waiting[t];
            }
            std::sort(started.rbegin(), started.rend());
            for (uint32_t index : started) line.waiting.erase(line.waiting.begin() + index);
            for (Running& one : running) {
                line.fair.charge(one.ticket, kGeneratedTokenCost);
                given[one.tenant] += kGeneratedTokenCost;
                if (--one.n_left == 0) line.fair.leave(one.ticket, 0);
            }
            std::erase_if(running, [](const Running& one) { return one.n_left == 0; });
            uint64_t gap = given[0] > given[1] ? given[0] - given[1] : given[1] - given[0];
            ASSERT_LE(gap, (n_places + 1) * cost_max) << "round " << round << " step " << step;
            worst = std::max(worst, double(gap) / double(n_places * cost_max));
        }
    }
    RecordProperty("service gap in batches", std::to_string(worst).substr(0, 4));
    EXPECT_LE(worst, 2.0);
}

}  // namespace
}  // namespace lorad::server::fair_share_test
