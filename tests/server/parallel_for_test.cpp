#include "server/engine/parallel_for.h"

#include <gtest/gtest.h>

namespace lorad::server::parallel_for_test {
namespace {

TEST(ParallelFor, EveryIndexIsDoneExactlyOnceInEveryRound) {
    ParallelFor pool(4);
    for (uint32_t n_jobs : {0u, 1u, 2u, 3u, 100u, 1000u, 5u}) {
        std::vector<std::atomic<uint32_t>> counts(n_jobs);
        std::atomic<uint32_t> n_bad_workers{0};
        pool.run(n_jobs, [&](uint32_t index, uint32_t worker) {
            counts[index].fetch_add(1);
            if (worker >= 4) n_bad_workers.fetch_add(1);
        });
        for (auto& count : counts) EXPECT_EQ(count.load(), 1u);
        EXPECT_EQ(n_bad_workers.load(), 0u);
    }
}

TEST(ParallelFor, AWorkerNeverRunsTwoJobsAtOnce) {
    ParallelFor pool(3);
    std::vector<std::atomic<bool>> busy(3);
    std::atomic<uint32_t> n_overlaps{0};
    for (int round = 0; round < 50; ++round) {
        pool.run(20, [&](uint32_t, uint32_t worker) {
            if (busy[worker].exchange(true)) n_overlaps.fetch_add(1);
            std::this_thread::yield();
            busy[worker] = false;
        });
    }
    EXPECT_EQ(n_overlaps.load(), 0u);
}

TEST(ParallelFor, OneWorkerIsTheCaller) {
    ParallelFor pool(1);
    std::thread::id caller = std::this_thread::get_id();
    uint32_t n_calls = 0;
    pool.run(10, [&](uint32_t, uint32_t worker) { n_calls += worker == 0 && std::this_thread::get_id() == caller; });
    EXPECT_EQ(n_calls, 10u);
}

}  // namespace
}  // namespace lorad::server::parallel_for_test
