// Whose jobs run when several keys have some, and that a slow disk is nothing to those whose files it does not have.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/training/jobs/disk_thread.h"
#include "server/training/jobs/turns.h"
#include "tests/server/training_fixture.h"

namespace lorad::server::training {
namespace {

using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TurnOrder : public ::testing::Test {
  protected:
    const Turns::Clock::time_point now = Turns::Clock::now();
    // A running one began so many seconds ago.
    TurnJob job(const std::string& tenant, uint64_t number, int age_s = 0) const {
        return {tenant + std::to_string(number), tenant, number, now - seconds(age_s)};
    }
    Turns turns{2, seconds(60)};
};

TEST_F(TurnOrder, TheKeyWithTheFewestRunningJobsIsNextWithItsOldest) {
    const std::vector<TurnJob> waiting = {job("a", 1), job("b", 5), job("a", 2), job("c", 7), job("b", 4)};
    EXPECT_THAT(turns.order(waiting, {}), ElementsAre(0, 4, 3));
    EXPECT_THAT(turns.order(waiting, std::vector{job("a", 0)}), ElementsAre(4, 3, 0));
    turns.begun(job("b", 3));
    EXPECT_THAT(turns.order(waiting, {}), ElementsAre(0, 3, 4)) << "its last turn is not so long ago";
    std::vector<TurnJob> unready = waiting;
    unready[4].is_ready = false;
    EXPECT_THAT(turns.order(unready, {}), ElementsAre(0, 3)) << "those behind it do not go before it";
    turns.begun(job("c", 6));
    turns.begun(job("a", 0));
    EXPECT_THAT(turns.order(waiting, {}), ElementsAre(4, 3, 0));
}

TEST_F(TurnOrder, WhereAKeyHasMorePlacesThanItsShareItsLatestJobGivesWayAtOnce) {
    const std::vector<TurnJob> of_one = {job("a", 1), job("a", 2)};
    EXPECT_THAT(turns.who_gives_way(job("b", 3), of_one, false, now), ElementsAre(1));
    EXPECT_THAT(turns.who_gives_way(job("a", 3), of_one, false, now), IsEmpty()) << "its own key's";
    EXPECT_THAT(turns.who_gives_way(job("b", 3), std::vector{job("a", 1)}, false, now), IsEmpty()) << "a place is free";
    EXPECT_THAT(turns.who_gives_way(job("b", 3), std::vector{job("a", 1, 99)}, false, now, 1), ElementsAre(0))
        << "a model that is trained by calls has the other place";
    EXPECT_TRUE(turns.has_place({}, 5)) << "such models leave jobs a place";
    Turns four(4, seconds(60));
    const std::vector<TurnJob> most = {job("a", 1), job("a", 2), job("a", 3), job("b", 4)};
    EXPECT_THAT(four.who_gives_way(job("b", 5), most, false, now), ElementsAre(2));
    EXPECT_THAT(four.who_gives_way(job("c", 5), most, false, now), ElementsAre(2));
    const std::vector<TurnJob> even = {job("a", 1, 99), job("a", 2, 99), job("b", 3, 99), job("b", 4, 99)};
    EXPECT_THAT(four.who_gives_way(job("b", 5), even, false, now), IsEmpty());
    EXPECT_THAT(four.who_gives_way(job("c", 5), even, false, now), ElementsAre(3));
    Turns three(3, seconds(60));
    EXPECT_THAT(
        three.who_gives_way(job("b", 5), std::vector{job("a", 1, 99), job("a", 2, 99), job("b", 3, 99)}, false, now),
        IsEmpty())
        << "the odd place stays where it is";
}

TEST_F(TurnOrder, AsManyKeysAsPlacesTakeTurnsOfALength) {
    EXPECT_THAT(turns.who_gives_way(job("c", 3), std::vector{job("a", 1, 59), job("b", 2, 10)}, false, now), IsEmpty());
    EXPECT_THAT(turns.who_gives_way(job("c", 3), std::vector{job("a", 1, 60), job("b", 2, 70)}, false, now),
                ElementsAre(1));
}

TEST_F(TurnOrder, OneThatHasToBeAloneWaitsForTheTurnsOfAllAndForItsOwnKeysJobs) {
    EXPECT_THAT(turns.who_gives_way(job("c", 3), std::vector{job("a", 1, 60), job("b", 2, 59)}, true, now), IsEmpty());
    EXPECT_THAT(turns.who_gives_way(job("c", 3), std::vector{job("a", 1, 60), job("b", 2, 60)}, true, now),
                ElementsAre(0, 1));
    EXPECT_THAT(turns.who_gives_way(job("a", 3), std::vector{job("a", 1, 60), job("b", 2, 60)}, true, now), IsEmpty());
    EXPECT_THAT(turns.who_gives_way(job("a", 3), {}, true, now), IsEmpty());
}

TEST(DiskThreads, RunTasksInOrderAndDropThoseBehindOneThatFailed) {
    std::vector<std::string> done, ended;
    Gate gate;
    gate.set_closed(true);
    DiskThread disk([&](const std::string& job, const Status& how) {
        const bool is_dropped = !how.ok() && how.error().code == ErrorCode::kClientClosed;
        ended.push_back(job + (how.ok() ? "" : is_dropped ? "-" : "!"));
        // Who waits until nothing of a job is left looks when it is called, and at no other time.
        if (job == "a" && !disk.is_busy("a")) ended.push_back("a rests");
    });
    const auto task = [&](const std::string& what, bool fails = false) {
        return [&, what, fails]() -> Status {
            gate.pass();
            done.push_back(what);
            return fails ? Status(make_error(ErrorCode::kStorageFull, "full")) : ok_status();
        };
    };
    disk.start();
    disk.put("a", task("a1"));
    disk.put("b", task("b1"));
    disk.put("a", task("a2", true));
    EXPECT_TRUE(disk.has_room("a"));
    disk.put("a", task("a3"));
    disk.put("a", task("a4"));
    EXPECT_FALSE(disk.has_room("a"));
    EXPECT_TRUE(disk.has_room("b") && disk.is_busy("b"));
    EXPECT_FALSE(disk.is_busy("c"));
    disk.put("b", task("b2"));
    gate.set_closed(false);
    disk.stop();
    EXPECT_THAT(done, ElementsAre("a1", "b1", "a2", "b2"));
    EXPECT_THAT(ended, ElementsAre("a", "b", "a!", "a-", "a-", "a rests", "b"));
    EXPECT_FALSE(disk.is_busy("a") || disk.is_busy("b"));
    disk.put("a", task("a5"));  // there is no thread any more
    disk.forgive("a");
    disk.put("a", task("a6"));
    EXPECT_EQ(done.back(), "a6");
    EXPECT_EQ(done.size(), 5u);
}

class JobsOfKeys : public ::testing::Test {
  protected:
    std::unique_ptr<TrainingService> open(TrainingHost& host, const char* folder, uint32_t n_together,
                                          std::chrono::milliseconds turn) {
        TrainingLimits limits;
        limits.n_active_max = 10;
        limits.n_together = n_together;
        limits.turn = turn;
        auto opened = TrainingService::open(dir.path() / folder, host, limits);
        EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message);
        return std::move(*opened);
    }
    // name: of its adapter, and what its data depends on. Each epoch has so many steps, and an adapter at its end.
    static std::string create(TrainingService& service, const std::string& tenant, const std::string& name,
                              int n_steps = 5, uint32_t n_epochs = 1) {
        const int from = 10 + static_cast<int>(name.back()) % 7 * 40;
        std::string lines;
        for (int i = 0; i < 2 * n_steps; ++i) lines += token_lines(1, from + i % 50);
        const auto stored = service.files().add(tenant, "data.jsonl", "fine-tune", lines);
        EXPECT_TRUE(stored.ok());
        proto::FineTuningRequest wanted;
        wanted.model = "base";
        wanted.training_file = stored->object.id;
        wanted.suffix = name;
        wanted.seed = 7;
        wanted.recipe.batch_size = 2;
        wanted.recipe.n_epochs = n_epochs;
        wanted.recipe.learning_rate = 0.01;
        wanted.recipe.checkpoint_steps = 1000;
        const auto job = service.create(tenant, wanted);
        EXPECT_TRUE(job.ok()) << (job.ok() ? "" : job.error().message);
        return job->id;
    }
    static std::vector<std::string> messages(const TrainingService& service, const std::string& tenant,
                                             const std::string& id) {
        std::vector<std::string> out;
        const TrainingService::Events found = *service.events(tenant, id, 0);
        for (const proto::JobEventObject& event : found.events) out.push_back(event.message);
        return out;
    }
    // Of a job alone.
    std::string generation_alone(const std::string& name, int n_steps = 5, uint32_t n_epochs = 1) {
        FakeHost host;
        const auto service = open(host, ("alone-" + name).c_str(), 1, seconds(60));
        const std::string id = create(*service, {}, name, n_steps, n_epochs);
        service->start();
        EXPECT_EQ(settled(*service, id), "succeeded");
        return host.generation_of(name);
    }
    static void wait_for_step(const TrainingService& service, const std::string& tenant, const std::string& id,
                              uint64_t step) {
        for (int i = 0; i < 12'000 && service.find(tenant, id)->step < step; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_GE(service.find(tenant, id)->step, step);
    }

    lorad::testing::TempDir dir;
};

TEST_F(JobsOfKeys, OneKeysJobDoesNotWaitForTheEndOfAnothersThatHasAllPlaces) {
    FakeHost host;
    const auto service = open(host, "keys", 2, seconds(60));
    host.on_piece = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    const std::string a1 = create(*service, "a", "a1", 400), a2 = create(*service, "a", "a2", 400);
    service->start();
    ASSERT_EQ(settled(*service, a2, "a", {"running"}), "running");
    wait_for_step(*service, "a", a2, 2);
    const std::string b1 = create(*service, "b", "b1"), b2 = create(*service, "b", "b2");
    EXPECT_EQ(settled(*service, b1, "b"), "succeeded");
    EXPECT_EQ(settled(*service, b2, "b"), "succeeded");
    EXPECT_EQ(service->find("a", a1)->status, "running") << "nobody took its place";
    EXPECT_THAT(messages(*service, "a", a2), Contains(HasSubstr("Gives way to a job of another key behind step ")));
    EXPECT_THAT(messages(*service, "a", a1), ::testing::Not(Contains(HasSubstr("Gives way"))));
    host.on_piece = {};
    EXPECT_EQ(settled(*service, a1, "a"), "succeeded");
    EXPECT_EQ(settled(*service, a2, "a"), "succeeded");
    EXPECT_EQ(host.generation_of("a2"), generation_alone("a2", 400));
    EXPECT_EQ(service->find("a", a2)->trained_tokens, 800u) << "no step was made twice";
}

TEST_F(JobsOfKeys, MoreKeysThanPlacesTakeTurnsToTheBitsOfEachAlone) {
    FakeHost host;
    const auto service = open(host, "keys", 1, std::chrono::milliseconds(20));
    host.on_piece = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    const std::string a1 = create(*service, "a", "a1", 90), a2 = create(*service, "a", "a2"),
                      b1 = create(*service, "b", "b1", 20), c1 = create(*service, "c", "c1", 20);
    service->start();
    EXPECT_EQ(settled(*service, b1, "b"), "succeeded");
    EXPECT_EQ(settled(*service, c1, "c"), "succeeded");
    EXPECT_EQ(service->find("a", a2)->step, 0u) << "it waits for its own key's first job alone";
    EXPECT_EQ(settled(*service, a1, "a"), "succeeded");
    EXPECT_EQ(settled(*service, a2, "a"), "succeeded");
    EXPECT_EQ(host.n_together_max, 1u);
    for (const std::string& id : {a1, b1, c1})
        EXPECT_THAT(messages(*service,
                             std::string(1, id == a1   ? 'a'
                                            : id == b1 ? 'b'
                                                       : 'c'),
                             id),
                    Contains(HasSubstr("Gives way to a job of another key behind step ")));
    EXPECT_EQ(host.generation_of("a1"), generation_alone("a1", 90));
    EXPECT_EQ(host.generation_of("b1"), generation_alone("b1", 20));
}

TEST_F(JobsOfKeys, OneThatHasToBeAloneHasItsTurnAndHoldsBackItsOwnKeyBehindItsOwnJobs) {
    FakeHost host;
    host.refusal_beside = make_error(ErrorCode::kInvalidConfig, "the job is trained alone (DoRA)");
    const auto service = open(host, "keys", 3, std::chrono::milliseconds(20));
    host.on_piece = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    const std::string a1 = create(*service, "a", "a1", 200), a2 = create(*service, "a", "a2"),
                      b1 = create(*service, "b", "b1");
    service->start();
    EXPECT_EQ(settled(*service, b1, "b"), "succeeded");
    EXPECT_NE(service->find("a", a1)->status, "succeeded");
    EXPECT_THAT(messages(*service, "b", b1), Contains("Waits for the jobs under way: the job is trained alone (DoRA)"));
    EXPECT_EQ(settled(*service, a1, "a"), "succeeded");
    EXPECT_EQ(settled(*service, a2, "a"), "succeeded");
    EXPECT_EQ(host.n_together_max, 1u);
    EXPECT_EQ(host.generation_of("a1"), generation_alone("a1", 200));
}

TEST_F(JobsOfKeys, ASlowDiskHoldsUpTheJobWhoseFilesTheyAreAndNoOthersSteps) {
    const std::string wanted = generation_alone("a1", 3, 8);
    FakeHost host;
    Gate gate;
    gate.set_closed(true);
    host.on_write = [&] { gate.pass(); };
    const auto service = open(host, "keys", 2, seconds(60));
    const std::string a1 = create(*service, "a", "a1", 3, 8);
    service->start();
    gate.wait_for_one();  // the adapter of its first epoch
    const std::string b1 = create(*service, "b", "b1");
    wait_for_step(*service, "b", b1, 5);  // its last
    EXPECT_LT(service->find("a", a1)->step, 9u) << "what is to be written would fill the memory";
    EXPECT_EQ(service->find("a", a1)->status, "running");
    EXPECT_EQ(service->find("b", b1)->status, "running");
    gate.set_closed(false);
    EXPECT_EQ(settled(*service, a1, "a"), "succeeded");
    EXPECT_EQ(settled(*service, b1, "b"), "succeeded");
    EXPECT_EQ(host.generation_of("a1"), wanted);
}

TEST_F(JobsOfKeys, WhileAnAdapterIsPublishedOthersTrain) {
    FakeHost host;
    Gate gate;
    gate.set_closed(true);
    host.on_publish = [&] { gate.pass(); };
    const auto service = open(host, "keys", 1, seconds(60));
    const std::string a1 = create(*service, "a", "a1");
    service->start();
    gate.wait_for_one();
    const std::string a2 = create(*service, "a", "a2");
    wait_for_step(*service, "a", a2, 5);
    EXPECT_EQ(service->find("a", a1)->status, "running");
    EXPECT_FALSE(service->change("a", a1, JobEvent::kCancel).ok()) << "its adapter may be there";
    gate.set_closed(false);
    EXPECT_EQ(settled(*service, a1, "a"), "succeeded");
    EXPECT_EQ(settled(*service, a2, "a"), "succeeded");
}

TEST_F(JobsOfKeys, AWriteThatFailsFailsItsJobWithItsName) {
    FakeHost host;
    const auto service = open(host, "keys", 2, seconds(60));
    host.on_piece = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    const std::string a1 = create(*service, "a", "a1", 3, 40), b1 = create(*service, "b", "b1");
    // No file can be made beside the checkpoint's.
    std::filesystem::create_directories(dir.path() / "keys" / "jobs" / a1 / "checkpoint.new");
    service->start();
    EXPECT_EQ(settled(*service, a1, "a"), "failed");
    EXPECT_EQ(service->find("a", a1)->error->message,
              "the checkpoint at step 3 cannot be written: the training store cannot make a file: Is a directory");
    EXPECT_EQ(settled(*service, b1, "b"), "succeeded");
    EXPECT_EQ(host.generation_of("b1"), generation_alone("b1"));
}

TEST_F(JobsOfKeys, OneThatIsPausedWhileTheDiskIsSlowGoesOnFromWhatItWrote) {
    const std::string wanted = generation_alone("a1", 3, 8);
    FakeHost host;
    Gate gate;
    gate.set_closed(true);
    host.on_write = [&] { gate.pass(); };
    const auto service = open(host, "keys", 1, seconds(60));
    const std::string a1 = create(*service, "a", "a1", 3, 8);
    service->start();
    gate.wait_for_one();
    ASSERT_TRUE(service->change("a", a1, JobEvent::kPause).ok());
    ASSERT_TRUE(service->change("a", a1, JobEvent::kResume).ok());
    EXPECT_EQ(settled(*service, a1, "a", {"queued"}), "queued") << "its checkpoint is not written yet";
    gate.set_closed(false);
    EXPECT_EQ(settled(*service, a1, "a"), "succeeded");
    EXPECT_THAT(messages(*service, "a", a1), Contains(HasSubstr("Resumed from step ")));
    EXPECT_EQ(host.generation_of("a1"), wanted);
}

TEST_F(JobsOfKeys, OneThatIsCancelledWhileItsFilesAreWrittenLeavesNoWork) {
    FakeHost host;
    Gate gate;
    gate.set_closed(true);
    host.on_write = [&] { gate.pass(); };
    const auto service = open(host, "keys", 1, seconds(60));
    const std::string a1 = create(*service, "a", "a1", 3, 8);
    service->start();
    gate.wait_for_one();
    ASSERT_TRUE(service->change("a", a1, JobEvent::kCancel).ok());
    gate.set_closed(false);
    service->stop();
    EXPECT_EQ(service->find("a", a1)->status, "cancelled");
    EXPECT_FALSE(std::filesystem::exists(dir.path() / "keys" / "jobs" / a1 / "checkpoint"));
}

}  // namespace
}  // namespace lorad::server::training
