// Jobs from the request to the adapter, on a trainer of one number: states, restarts at any moment, limits, whose they
// are.
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/training/checkpoint_file.h"
#include "tests/server/training_fixture.h"

namespace lorad::server::training {
namespace {

class Jobs : public ::testing::Test {
  protected:
    Jobs() { open(); }
    void open(const std::filesystem::path& folder = {}) {
        service.reset();
        auto opened = TrainingService::open(folder.empty() ? dir.path() / "training" : folder, host, limits);
        ASSERT_TRUE(opened.ok()) << opened.error().message;
        service = std::move(*opened);
    }
    std::string upload(const std::string& content, const std::string& tenant = {}) {
        auto stored = service->files().add(tenant, "data.jsonl", "fine-tune", content);
        EXPECT_TRUE(stored.ok()) << stored.error().message;
        return stored->object.id;
    }
    proto::FineTuningRequest request(const std::string& file, const std::string& suffix = "mine") {
        proto::FineTuningRequest wanted;
        wanted.model = "base";
        wanted.training_file = file;
        wanted.suffix = suffix;
        wanted.seed = 7;
        wanted.recipe.batch_size = 2;
        wanted.recipe.n_epochs = 3;
        wanted.recipe.learning_rate = 0.01;
        return wanted;
    }
    // Ends the service, and leaves the job as versions kept it that had no files of its start.
    JobFolder forget_start(const std::string& id) {
        service.reset();
        JobFolder folder(dir.path() / "training/jobs" / id);
        Job job = *folder.load();
        job.start_digest.clear();
        EXPECT_TRUE(folder.save(job).ok());
        std::filesystem::remove_all(folder.start());
        return folder;
    }
    std::string create(const proto::FineTuningRequest& wanted, const std::string& tenant = {}) {
        auto job = service->create(tenant, wanted);
        EXPECT_TRUE(job.ok()) << job.error().message;
        return job.ok() ? job->id : std::string();
    }
    std::vector<std::string> messages(const std::string& id) {
        std::vector<std::string> out;
        const TrainingService::Events found = *service->events({}, id, 0);
        for (const proto::JobEventObject& event : found.events) out.push_back(event.message);
        return out;
    }

    lorad::testing::TempDir dir;
    FakeHost host;
    TrainingLimits limits;
    std::unique_ptr<TrainingService> service;
};

TEST(JobStates, EndedJobsStayAsTheyAreAndNothingLeavesARunningOneWithoutAnEnd) {
    using enum JobState;
    constexpr JobEvent kAll[] = {JobEvent::kValidated, JobEvent::kStarted, JobEvent::kLastStep, JobEvent::kPublished,
                                 JobEvent::kFault,     JobEvent::kPause,   JobEvent::kResume,   JobEvent::kUnread,
                                 JobEvent::kCancel,    JobEvent::kRestart, JobEvent::kGaveWay};
    for (const JobState ended : {kSucceeded, kFailed, kCancelled}) {
        for (const JobEvent event : kAll) EXPECT_FALSE(next_state(ended, event));
    }
    for (const JobState state : {kValidating, kQueued, kRunning, kPaused})
        EXPECT_EQ(next_state(state, JobEvent::kCancel), kCancelled);
    for (const JobState state : {kValidating, kQueued, kRunning, kPublishing})
        EXPECT_EQ(next_state(state, JobEvent::kFault), kFailed);
    // Its adapter may be there already.
    EXPECT_FALSE(next_state(kPublishing, JobEvent::kCancel));
    EXPECT_EQ(next_state(kPublishing, JobEvent::kRestart), kQueued);
    EXPECT_EQ(next_state(kRunning, JobEvent::kRestart), kQueued);
    for (const JobState state : {kValidating, kQueued, kRunning, kPublishing, kPaused})
        EXPECT_EQ(next_state(state, JobEvent::kUnread), state == kQueued ? std::optional(kValidating) : std::nullopt);
    EXPECT_FALSE(next_state(kPaused, JobEvent::kStarted));
    for (const JobState state : {kValidating, kQueued, kRunning, kPublishing, kPaused})
        EXPECT_EQ(next_state(state, JobEvent::kGaveWay), state == kRunning ? std::optional(kQueued) : std::nullopt);
    for (const JobState state : {kValidating, kQueued, kRunning, kPublishing, kPaused, kSucceeded, kFailed, kCancelled})
        EXPECT_EQ(state_of(state_name(state)), state);
}

TEST(SampleOrders, EachEpochHasEverySequenceOnceInAnOrderOfItsOwn) {
    for (const uint64_t n : {1, 2, 3, 5, 14, 64, 1000}) {
        const SampleOrder order{n, 4, 42, true, 3 * n};
        std::vector<std::vector<uint64_t>> epochs;
        for (uint64_t epoch = 0; epoch < 3; ++epoch) {
            std::set<uint64_t> seen;
            std::vector<uint64_t> list;
            for (uint64_t i = 0; i < n; ++i) seen.insert(list.emplace_back(order.sequence_at(epoch * n + i)));
            EXPECT_EQ(seen.size(), n);
            EXPECT_EQ(*seen.rbegin(), n - 1);
            epochs.push_back(list);
        }
        if (n < 14) continue;
        EXPECT_NE(epochs[0], epochs[1]);
        std::vector<uint64_t> other;
        for (uint64_t i = 0; i < n; ++i) other.push_back(SampleOrder{n, 4, 43, true, n}.sequence_at(i));
        EXPECT_NE(epochs[0], other);
    }
}

TEST(SampleOrders, StepsGoAcrossEpochsInTheFilesOrder) {
    const SampleOrder order{14, 4, 1, false, 48};
    EXPECT_EQ(order.n_steps(), 12u);
    EXPECT_EQ(order.batch(0), (std::vector<uint64_t>{0, 1, 2, 3}));
    EXPECT_EQ(order.batch(3), (std::vector<uint64_t>{12, 13, 0, 1}));
    EXPECT_TRUE(order.ends_epoch(3));
    EXPECT_FALSE(order.ends_epoch(2));
    EXPECT_EQ((SampleOrder{5, 4, 1, false, 5}.batch(1)), (std::vector<uint64_t>{4}));
}

TEST(RunPlans, WhatIsLeftToTheServerIsChosenByTheNumberOfSequences) {
    const RunPlan few = *plan_run({}, 200), many = *plan_run({}, 2000), most = *plan_run({}, 20'000);
    EXPECT_EQ(few.recipe.n_epochs, 3u);
    EXPECT_EQ(few.recipe.batch_size, 4u);
    EXPECT_EQ(few.n_steps(), 150u);
    EXPECT_EQ(few.schedule.n_warmup_steps, 5u);
    EXPECT_DOUBLE_EQ(*few.recipe.learning_rate, 2e-4);
    EXPECT_EQ(few.recipe.lora_alpha, 32.0);
    EXPECT_EQ(many.recipe.n_epochs, 2u);
    EXPECT_EQ(many.recipe.batch_size, 31u);
    EXPECT_EQ(most.recipe.n_epochs, 1u);
    EXPECT_EQ(most.recipe.batch_size, 32u);
    proto::TrainingRecipe split;
    split.validation_split = 0.1;
    const RunPlan held = *plan_run(split, 100);
    EXPECT_EQ(held.n_held_out, 10u);
    std::set<uint64_t> all;
    for (uint64_t i = 0; i < 10; ++i) all.insert(held.held_out_sequence(i));
    for (uint64_t i = 0; i < 90; ++i) all.insert(held.trained_sequence(i));
    EXPECT_EQ(all.size(), 100u);
    EXPECT_FALSE(plan_run(split, 1).ok());
}

TEST_F(Jobs, AJobEndsWithAnAdapterUnderItsName) {
    const std::string id = create(request(upload(token_lines(6))));
    service->start();
    ASSERT_EQ(settled(*service, id), "succeeded");
    const proto::JobObject job = *service->find({}, id);
    EXPECT_EQ(job.fine_tuned_model, "mine");
    EXPECT_EQ(job.step, 9u);
    EXPECT_EQ(job.n_steps, 9u);
    EXPECT_EQ(job.trained_tokens, 18u);
    EXPECT_EQ(job.generation, host.generation_of("mine"));
    EXPECT_FALSE(job.generation.empty());
    ASSERT_EQ(job.result_files.size(), 1u);
    std::ifstream csv(service->files().content_of(job.result_files[0]));
    std::string line;
    std::getline(csv, line);
    EXPECT_EQ(line, "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy");
    int n_rows = 0;
    while (std::getline(csv, line)) ++n_rows;
    EXPECT_EQ(n_rows, 9);
    EXPECT_EQ(service->checkpoints({}, id)->size(), 3u);
    EXPECT_EQ(service->adapter_files({}, id, {})->size(), 4u);
    EXPECT_EQ(messages(id).back(), "The job has successfully completed");
}

TEST_F(Jobs, WhateverMomentTheProcessEndsAtTheBitsAreThoseOfAnUndisturbedRun) {
    proto::FineTuningRequest wanted = request(upload(token_lines(11)));
    wanted.recipe.validation_split = 0.2;
    wanted.recipe.checkpoint_steps = 2;
    wanted.recipe.n_epochs = 4;
    const std::string id = create(wanted);
    service.reset();
    const auto copy_named = [&](const std::string& name) {
        std::filesystem::copy(dir.path() / "training", dir.path() / name, std::filesystem::copy_options::recursive);
        return dir.path() / name;
    };
    const std::filesystem::path begin = copy_named("begin");
    open();
    service->start();
    ASSERT_EQ(settled(*service, id), "succeeded");
    const proto::JobObject undisturbed = *service->find({}, id);
    ASSERT_FALSE(undisturbed.generation.empty());
    service.reset();
    // It is killed as it trains, and as its files are written: the disk has whatever it has then.
    std::mt19937 random(20261129);
    int n_killed = 0;
    for (int i = 0; i < 24; ++i) {
        const std::filesystem::path copy = dir.path() / ("copy-" + std::to_string(i));
        std::filesystem::copy(begin, copy, std::filesystem::copy_options::recursive);
        const bool is_piece = i % 2 == 0;
        const int moment = 1 + static_cast<int>(random() % (is_piece ? 80 : 9));
        const auto delay = std::chrono::microseconds(random() % 2000);
        SCOPED_TRACE(std::string(is_piece ? "piece " : "file ") + std::to_string(moment));
        std::atomic<int> n{0};
        const auto count = [&] {
            if (++n != moment) return;
            std::thread([&] { std::this_thread::sleep_for(delay), die(); }).detach();
        };
        service.reset();  // a process that is forked has none of its threads
        const bool was_killed = is_killed_in([&] {
            (is_piece ? host.on_piece : host.on_write) = count;
            open(copy);
            service->start();
            settled(*service, id);
        });
        n_killed += was_killed;
        open(copy);
        service->start();
        ASSERT_EQ(settled(*service, id), "succeeded");
        const proto::JobObject job = *service->find({}, id);
        EXPECT_EQ(job.step, undisturbed.step);
        EXPECT_EQ(job.trained_tokens, undisturbed.trained_tokens);
        EXPECT_EQ(job.generation, undisturbed.generation);
        EXPECT_EQ(job.valid_loss, undisturbed.valid_loss);
        EXPECT_EQ(service->checkpoints({}, id)->size(), 3u);
        std::ifstream csv(service->files().content_of(job.result_files.at(0)));
        int n_rows = -1;
        for (std::string line; std::getline(csv, line);) ++n_rows;
        EXPECT_EQ(uint64_t(n_rows), undisturbed.n_steps + 1);  // and the evaluation before the first step
    }
    EXPECT_GT(n_killed, 12);
}

TEST_F(Jobs, PauseKeepsWhatIsThereAndResumeGoesOnWithIt) {
    const std::string file = upload(token_lines(8));
    const std::string whole = create(request(file, "whole"));
    service->start();
    ASSERT_EQ(settled(*service, whole), "succeeded");
    std::atomic<int> n_pieces{0};
    host.on_piece = [&] {
        if (++n_pieces > 10) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    const std::string id = create(request(file, "paused"));
    ASSERT_EQ(settled(*service, id, {}, {"running"}), "running");
    while (n_pieces < 12) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_TRUE(service->change({}, id, JobEvent::kPause).ok());
    EXPECT_EQ(service->find({}, id)->status, "paused");
    EXPECT_EQ(service->find({}, id)->paused_by, "user");
    EXPECT_FALSE(service->change({}, id, JobEvent::kPause).ok());
    host.on_piece = {};
    ASSERT_TRUE(service->change({}, id, JobEvent::kResume).ok());
    ASSERT_EQ(settled(*service, id), "succeeded");
    EXPECT_EQ(host.generation_of("paused"), host.generation_of("whole"));
}

TEST_F(Jobs, AJobMayBeCancelledInEveryStateButTheEnds) {
    const std::string file = upload(token_lines(4));
    const std::string waiting = create(request(file, "a"));
    ASSERT_TRUE(service->change({}, waiting, JobEvent::kCancel).ok());
    const std::string paused = create(request(file, "b"));
    ASSERT_TRUE(service->change({}, paused, JobEvent::kPause).ok());
    ASSERT_TRUE(service->change({}, paused, JobEvent::kCancel).ok());
    host.on_piece = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
    const std::string running = create(request(file, "c"));
    service->start();
    ASSERT_EQ(settled(*service, running, {}, {"running"}), "running");
    ASSERT_TRUE(service->change({}, running, JobEvent::kCancel).ok());
    for (const std::string& id : {waiting, paused, running}) {
        EXPECT_EQ(service->find({}, id)->status, "cancelled");
        EXPECT_TRUE(service->find({}, id)->finished_s.has_value());
        const auto again = service->change({}, id, JobEvent::kCancel);
        ASSERT_FALSE(again.ok());
        EXPECT_EQ(again.error().message, "a job that is cancelled cannot be cancelled");
    }
    EXPECT_TRUE(host.generation_of("c").empty());
    // Nothing holds the thread: the next job runs.
    host.on_piece = {};
    EXPECT_EQ(settled(*service, create(request(file, "d"))), "succeeded");
}

TEST_F(Jobs, BadLinesFailTheJobWithNumberAndReasonUnlessTheyMayBeSkipped) {
    const std::string file = upload(token_lines(3) + "{\"tokens\":[1]}\n" + token_lines(3, 50));
    const std::string id = create(request(file));
    service->start();
    ASSERT_EQ(settled(*service, id), "failed");
    const proto::JobObject job = *service->find({}, id);
    ASSERT_TRUE(job.error.has_value());
    EXPECT_EQ(job.error->code, "invalid_training_file");
    EXPECT_EQ(job.error->param, "training_file");
    EXPECT_TRUE(job.error->message.starts_with("line 4: expected labels or mask")) << job.error->message;
    proto::FineTuningRequest lenient = request(file);
    lenient.recipe.skip_bad_lines = true;
    EXPECT_EQ(settled(*service, create(lenient)), "succeeded");
}

TEST_F(Jobs, ALossThatIsNotFiniteFailsTheJobWithStepAndLine) {
    proto::FineTuningRequest wanted =
        request(upload(token_lines(4) + R"({"tokens":[1,666],"labels":[-100,666]})" + "\n"));
    wanted.recipe.shuffle = false;
    const std::string id = create(wanted);
    service->start();
    ASSERT_EQ(settled(*service, id), "failed");
    EXPECT_EQ(service->find({}, id)->error->message,
              "step 3: the loss is not finite (line 5); a lower learning_rate may help");
}

TEST_F(Jobs, TheBestStepIsPublishedAndAJobThatGetsNoBetterEndsEarly) {
    // The validation file wants another number than the training file: the longer it is trained, the worse.
    proto::FineTuningRequest wanted = request(upload(token_lines(8, 100)));
    wanted.validation_file = upload(token_lines(2, 20));
    wanted.recipe.learning_rate = 0.05;
    wanted.recipe.n_epochs = 20;
    wanted.recipe.early_stopping_patience = 2;
    const std::string id = create(wanted);
    service->start();
    ASSERT_EQ(settled(*service, id), "succeeded");
    const proto::JobObject job = *service->find({}, id);
    EXPECT_LT(job.step, job.n_steps);
    EXPECT_EQ(job.step, 12u);  // the best epoch is the first
    const std::vector<NamedBytes> files = *service->adapter_files({}, id, {});
    const auto papers = std::find_if(files.begin(), files.end(),
                                     [](const NamedBytes& file) { return file.name == "lorad_training.json"; });
    ASSERT_NE(papers, files.end());
    EXPECT_NE(papers->content.find("\"used_step\":4"), std::string::npos) << papers->content;
}

TEST_F(Jobs, AnAdapterSaysWhatItsDataHeldButNoneOfItsTexts) {
    proto::FineTuningRequest wanted =
        request(upload(token_lines(3) + "{\"tokens\": \"my secret\"}\n" + token_lines(1)));
    wanted.recipe.skip_bad_lines = true;
    const std::string id = create(wanted);
    service->start();
    ASSERT_EQ(settled(*service, id), "succeeded");
    EXPECT_THAT(service->find({}, id)->report_json, ::testing::HasSubstr("my secret"));
    const std::vector<NamedBytes> files = *service->adapter_files({}, id, {});
    const auto papers = std::find_if(files.begin(), files.end(),
                                     [](const NamedBytes& file) { return file.name == "lorad_training.json"; });
    ASSERT_NE(papers, files.end());
    EXPECT_THAT(
        papers->content,
        ::testing::HasSubstr(
            R"("data":{"format":"tokens","lines":5,"sequences":4,"tokens":8,"trained_tokens":4,"longest":2,"bad_lines":1,"duplicates":1,)"));
    EXPECT_THAT(papers->content, ::testing::Not(::testing::HasSubstr("my secret")));
}

// The number of this thread's sleeps that the kernel has counted.
uint64_t n_training_sleeps() {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream comm(task.path() / "comm"), status(task.path() / "status");
        std::string line;
        std::getline(comm, line);
        if (line != "lorad-training") continue;
        while (std::getline(status, line)) {
            if (line.starts_with("voluntary_ctxt_switches:"))
                return std::stoull(line.substr(line.find_last_of(" \t") + 1));
        }
    }
    return 0;
}

TEST(JobRecords, HoldEveryFieldThatAJobHas) {
    Job job;
    job.id = "ftjob-1";
    job.state = JobState::kFailed;
    job.number = 7;
    job.created_s = 1;
    int n_texts = 0;
    for (std::string* text : {&job.tenant, &job.paused_by, &job.model, &job.training_file, &job.validation_file,
                              &job.suffix, &job.init_from, &job.start_digest, &job.name, &job.expected_generation,
                              &job.data_digest, &job.validation_digest, &job.base_fingerprint, &job.generation})
        *text = "text " + std::to_string(++n_texts);
    job.metadata = {{"a", "b"}, {"", "\xc3\xa9"}};
    job.replace = job.activate = false;
    job.recipe.lora_r = 3;
    job.finished_s = 9;
    job.error = {"code", "message", ""};
    job.report_json = R"({"lines":3})";
    job.n_sequences = 11, job.n_steps = 12, job.n_parameters = 13, job.device_bytes = 14;
    job.seconds = 0.1;
    job.run = {1, 2, 3, 0.1, 0.2, 0.3, 0.4, 0.5, 6, 7, true, 8};
    job.result_files = {"file-1"};
    job.checkpoints.resize(2);
    job.checkpoints[1] = {"ftckpt-1", job.id, "m", 5, {.step = 4, .train_loss = 0.1, .full_valid_accuracy = 0.2}};
    const std::string text = job.json();
    const Result<Job> read = Job::parse(text);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->json(), text);
    EXPECT_EQ(read->checkpoints[1].job, job.id);
    EXPECT_EQ(read->error->message, "message");
    EXPECT_EQ(read->run.evaluated_step, 8u);
    // Whatever is cut off is no record.
    for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(Job::parse(text.substr(0, n)).ok());
    EXPECT_FALSE(Job::parse(R"({"state":"asleep","recipe":{"seed":1}})").ok());
}

TEST_F(Jobs, TheThreadSleepsWhileThereIsNothingToDo) {
    service->start();
    ASSERT_EQ(settled(*service, create(request(upload(token_lines(4))))), "succeeded");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const uint64_t before = n_training_sleeps();
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_GT(before, 0u);
    EXPECT_EQ(n_training_sleeps(), before);
    EXPECT_EQ(settled(*service, create(request(upload(token_lines(4)), "next"))), "succeeded");
    service->stop();  // and wakes for its end
}

TEST_F(Jobs, AJobThatWasPausedBeforeItsDataWasReadReadsItAtItsTurn) {
    const std::string id = create(request(upload(token_lines(4))));
    ASSERT_TRUE(service->change({}, id, JobEvent::kPause).ok());
    ASSERT_TRUE(service->change({}, id, JobEvent::kResume).ok());
    EXPECT_EQ(service->find({}, id)->status, "queued");
    service->start();
    ASSERT_EQ(settled(*service, id), "succeeded");
    EXPECT_EQ(service->find({}, id)->n_steps, 6u);
    // Whatever was first: a job that is cancelled beside it stays so.
    for (int i = 0; i < 50; ++i) {
        const std::string other = create(request(upload(token_lines(4)), "other"));
        ASSERT_TRUE(service->change({}, other, JobEvent::kPause).ok() ||
                    service->find({}, other)->status != "validating_files");
        (void)service->change({}, other, JobEvent::kResume);
        const bool is_cancelled = service->change({}, other, JobEvent::kCancel).ok();
        const std::string end = settled(*service, other);
        EXPECT_EQ(end, is_cancelled ? "cancelled" : "succeeded");
    }
}

TEST_F(Jobs, TenantsSeeTheirOwnAlone) {
    const std::string file = upload(token_lines(3), "alice");
    const std::string id = create(request(file), "alice");
    EXPECT_FALSE(service->find("bob", id).has_value());
    EXPECT_TRUE(service->list("bob").empty());
    EXPECT_EQ(service->list("alice").size(), 1u);
    EXPECT_FALSE(service->change("bob", id, JobEvent::kCancel).ok());
    EXPECT_FALSE(service->events("bob", id, 0).ok());
    EXPECT_FALSE(service->checkpoints("bob", id).ok());
    EXPECT_FALSE(service->files().find("bob", file).has_value());
    EXPECT_FALSE(*service->remove_file("bob", file));
    const auto refused = service->create("bob", request(file));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().param, "training_file");
}

TEST_F(Jobs, ABaseThatIsNotTrainedIsToldBeforeAnythingIsRead) {
    const std::string file = upload(token_lines(3));
    host.untrained = make_error(ErrorCode::kInvalidConfig, "Gemma: models with capped scores are not trained on");
    const auto refused = service->create({}, request(file));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidRequest);
    EXPECT_EQ(refused.error().param, "model");
    EXPECT_EQ(refused.error().message, host.untrained->message);
    EXPECT_TRUE(service->list({}).empty());
}

TEST_F(Jobs, LimitsAndWrongFilesAreToldBeforeAnythingRuns) {
    const std::string file = upload(token_lines(3));
    const auto results = service->files().add({}, "r.csv", "fine-tune-results", "step\n");
    const auto wrong = service->create({}, request(results->object.id));
    ASSERT_FALSE(wrong.ok());
    EXPECT_NE(wrong.error().message.find("expected a file of the purpose fine-tune"), std::string::npos);
    for (uint32_t i = 0; i < limits.n_active_max; ++i) create(request(file));
    const auto more = service->create({}, request(file));
    ASSERT_FALSE(more.ok());
    EXPECT_EQ(more.error().code, ErrorCode::kRateLimited);
    EXPECT_TRUE(service->create("other", request(upload(token_lines(3), "other"))).ok());
    const auto held = service->remove_file({}, file);
    ASSERT_FALSE(held.ok());
    EXPECT_EQ(held.error().code, ErrorCode::kGenerationConflict);
}

TEST_F(Jobs, ANameThatOthersChangedMeanwhileIsLeftToThem) {
    const std::string file = upload(token_lines(3));
    host.on_piece = [this, done = false]() mutable {
        if (!std::exchange(done, true))
            (void)host.publish("mine", {"{}", std::vector<std::byte>(4)}, true, {}, true).ok();
    };
    const std::string id = create(request(file));
    service->start();
    ASSERT_EQ(settled(*service, id), "succeeded");
    EXPECT_EQ(service->find({}, id)->fine_tuned_model, "mine-" + id.substr(6, 8));
}

TEST_F(Jobs, TwoJobsWithOneSuffixAreTwoGenerationsOfIt) {
    const std::string first = create(request(upload(token_lines(3)))),
                      second = create(request(upload(token_lines(3, 50))));
    service->start();
    ASSERT_EQ(settled(*service, first), "succeeded");
    ASSERT_EQ(settled(*service, second), "succeeded");
    EXPECT_EQ(service->find({}, second)->fine_tuned_model, "mine");
    EXPECT_NE(service->find({}, first)->generation, service->find({}, second)->generation);
    EXPECT_EQ(host.generation_of("mine"), service->find({}, second)->generation);
}

TEST_F(Jobs, WhatTheServerRefusesFailsTheJobWithItsWords) {
    host.refusal = make_error(ErrorCode::kOutOfMemory, "1 GiB is needed, 1 MiB is free");
    const std::string id = create(request(upload(token_lines(3))));
    service->start();
    ASSERT_EQ(settled(*service, id), "failed");
    EXPECT_EQ(service->find({}, id)->error->code, "out_of_memory");
    host.refusal.reset();
    host.publish_refusal = make_error(ErrorCode::kStorageFull, "the disk is full");
    const std::string other = create(request(service->list({}).at(0).training_file));
    ASSERT_EQ(settled(*service, other), "failed");
    EXPECT_EQ(service->find({}, other)->error->message, "the adapter cannot be published: the disk is full");
}

// It was deleted, or is nothing that can be trained on: the request is refused, and leaves nothing.
TEST_F(Jobs, AnAdapterThatAJobCannotBeginWithIsToldWhenTheJobIsMade) {
    proto::FineTuningRequest wanted = request(upload(token_lines(2)));
    wanted.init_from = "7bc4";
    for (const ErrorCode code : {ErrorCode::kAdapterNotFound, ErrorCode::kAdapterUnsupported}) {
        host.start_refusal = make_error(code, "no", "lora_name");
        const auto refused = service->create({}, wanted);
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().code, code);
        EXPECT_EQ(refused.error().param, "init_from");
    }
    EXPECT_TRUE(std::filesystem::is_empty(dir.path() / "training/jobs"));
    EXPECT_TRUE(service->list({}).empty());
}

TEST_F(Jobs, AJobHasWhatItBeginsWithWhateverBecomesOfThatAdapter) {
    proto::FineTuningRequest wanted = request(upload(token_lines(9)));
    wanted.init_from = "7bc4";
    const std::string id = create(wanted), other = create(wanted), cancelled = create(wanted);
    const std::filesystem::path jobs = dir.path() / "training/jobs";
    ASSERT_TRUE(service->change({}, cancelled, JobEvent::kCancel).ok());
    EXPECT_FALSE(std::filesystem::exists(jobs / cancelled / "start"));
    host.start_refusal = make_error(ErrorCode::kAdapterNotFound, "no adapter is called \"7bc4\"", "lora_name");
    std::ofstream(jobs / other / "start/adapter_model.safetensors") << "other bytes";
    open();  // as a restart does
    service->start();
    EXPECT_EQ(settled(*service, id), "succeeded");
    EXPECT_EQ(host.n_starts, 1);
    EXPECT_EQ(settled(*service, other), "failed");
    EXPECT_EQ(service->find({}, other)->error->message,
              "the files of the adapter that the job begins with are damaged");
    service->stop();  // what a job no longer needs is removed behind its end
    EXPECT_FALSE(std::filesystem::exists(jobs / id / "start"));
}

TEST_F(Jobs, AJobWithoutFilesOfItsStartTakesThemOrSaysThatTheAdapterIsGone) {
    proto::FineTuningRequest wanted = request(upload(token_lines(2)));
    wanted.init_from = "7bc4";
    for (const bool is_gone : {false, true}) {
        host.start_refusal.reset();
        const std::string id = create(wanted);
        forget_start(id);
        if (is_gone) host.start_refusal = make_error(ErrorCode::kAdapterNotFound, "no adapter is called that");
        open();
        service->start();
        EXPECT_EQ(settled(*service, id), is_gone ? "failed" : "succeeded");
        if (!is_gone) continue;
        const proto::JobObject failed = *service->find({}, id);
        EXPECT_EQ(failed.error->param, "init_from");
        EXPECT_EQ(failed.error->message,
                  "init_from: the adapter that the job begins with was deleted (generation 7bc4)");
    }
}

TEST_F(Jobs, AJobThatIsCancelledWhileItTakesTheFilesOfItsStartLeavesNone) {
    proto::FineTuningRequest wanted = request(upload(token_lines(2)));
    wanted.init_from = "7bc4";
    const std::string id = create(wanted);
    const JobFolder folder = forget_start(id);
    open();
    bool is_cancelled = false;
    host.on_start_files = [&] { is_cancelled = service->change({}, id, JobEvent::kCancel).ok(); };
    service->start();
    EXPECT_EQ(settled(*service, id), "cancelled");
    service->stop();
    EXPECT_TRUE(is_cancelled);
    EXPECT_FALSE(std::filesystem::exists(folder.start()));
}

TEST_F(Jobs, WrongModulesAreToldByTheFieldThatNamesThem) {
    proto::FineTuningRequest wanted = request(upload(token_lines(2)));
    wanted.recipe.lora_trainable_modules = {"wq"};
    for (const std::string field : {"lora_trainable_modules", "target_modules"}) {
        wanted.form_fields = {field};
        const auto refused = service->create({}, wanted);
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().message, field + ": \"wq\": expected others");
        EXPECT_EQ(refused.error().param, field);
    }
    EXPECT_TRUE(std::filesystem::is_empty(dir.path() / "training/jobs"));
}

TEST_F(Jobs, RecordsComeBackAsTheyWere) {
    Job job;
    job.id = new_id("ftjob-");
    job.state = JobState::kPaused;
    job.paused_by = "user";
    job.model = "base";
    job.training_file = "file-x";
    job.name = "n";
    job.metadata = {{"a", "b"}};
    job.recipe.rank_pattern = {{"q_proj", 4}};
    job.recipe.layers_to_transform = {1, 2};
    job.recipe.max_grad_norm = 0;
    job.recipe.seed = 9;
    job.run.step = 5;
    job.run.best_valid_loss = 1.5;
    job.error = proto::JobError{"c", "m", "p"};
    job.checkpoints.push_back({"ftckpt-1", job.id, "n:ckpt-step-5", 3, {.step = 5, .train_loss = 0.5}});
    const Result<Job> again = Job::parse(job.json());
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(again->json(), job.json());
}

TEST(FileStores, ForgetWhatWasNotFinishedAndRefuseWhatIsTooMuch) {
    lorad::testing::TempDir dir;
    FileLimits limits;
    limits.file_bytes_max = 100;
    limits.tenant_bytes_max = 150;
    std::string kept;
    {
        auto store = *FileStore::open(dir.path() / "files", limits);
        kept = store->add("a", "one", "fine-tune", std::string(80, 'x'))->object.id;
        auto upload = *store->begin("a", "two", "fine-tune", std::nullopt);
        ASSERT_TRUE(upload->write(std::string(60, 'y')).ok());
        const Status more = upload->write(std::string(30, 'y'));
        ASSERT_FALSE(more.ok());
        EXPECT_EQ(more.error().code, ErrorCode::kStorageFull);
        EXPECT_TRUE(store->add("b", "three", "fine-tune", std::string(90, 'z')).ok());
        EXPECT_EQ(store->add("b", "four", "fine-tune", std::string(101, 'z')).error().code,
                  ErrorCode::kPayloadTooLarge);
    }
    auto store = *FileStore::open(dir.path() / "files", limits);
    ASSERT_EQ(store->list("a").size(), 1u);
    EXPECT_EQ(store->list("a")[0].object.id, kept);
    EXPECT_EQ(store->bytes(), 170u);
    EXPECT_TRUE(*store->remove("a", kept));
    EXPECT_FALSE(*store->remove("a", kept));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path() / "files"), {}), 2);  // b's
    for (const char* id : {"file-../../etc/passwd", "file-", "ftjob-0123456789abcdefghijklmn"})
        EXPECT_FALSE(is_id(id, "file-"));
}

TEST(CheckpointFiles, DamageIsFound) {
    lorad::testing::TempDir dir;
    const std::filesystem::path path = dir.path() / "checkpoint";
    Checkpoint checkpoint{{"d", "", "f", "{}", "v"}, {}, std::vector<std::byte>(40, std::byte(7))};
    checkpoint.state.step = 3;
    ASSERT_TRUE(write_checkpoint(path, checkpoint).ok());
    const Result<Checkpoint> read = read_checkpoint(path);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->state.step, 3u);
    EXPECT_EQ(read->trainer, checkpoint.trainer);
    EXPECT_EQ(read->identity, checkpoint.identity);
    std::ifstream in(path, std::ios::binary);
    const std::string whole{std::istreambuf_iterator<char>(in), {}};
    for (size_t at = 0; at < whole.size(); ++at) {
        std::string damaged = whole;
        damaged[at] = char(damaged[at] ^ 1);
        std::ofstream(path, std::ios::binary) << damaged;
        EXPECT_FALSE(read_checkpoint(path).ok()) << at;
        std::ofstream(path, std::ios::binary) << whole.substr(0, at);
        EXPECT_FALSE(read_checkpoint(path).ok()) << at;
    }
}

TEST_F(Jobs, AStartRemovesWhatAKilledProcessLeft) {
    using std::filesystem::exists;
    service->start();
    const std::string file = upload(token_lines(6));
    const std::string done = create(request(file));
    ASSERT_EQ(settled(*service, done), "succeeded");
    const size_t n_checkpoints = service->checkpoints({}, done)->size();
    ASSERT_GT(n_checkpoints, 0u);
    const uint64_t kept_step = service->checkpoints({}, done)->front().metrics.step;
    service->stop();
    const std::string waiting = create(request(file, "other"));
    service.reset();
    const std::filesystem::path jobs = dir.path() / "training" / "jobs";
    const std::filesystem::path unmade = jobs / new_id("ftjob-");
    std::filesystem::create_directories(jobs / done / "step-999");
    std::filesystem::create_directories(unmade);
    const std::vector<std::filesystem::path> leftovers = {
        jobs / done / "step-999" / "adapter_config.json", jobs / done / "best" / "adapter_model.safetensors.new",
        jobs / done / "data.tok",  // it was to go when the job had ended
        jobs / waiting / "checkpoint.new", unmade / "job.json.new"};
    std::filesystem::create_directories(jobs / done / "best");
    for (const std::filesystem::path& path : leftovers) std::ofstream(path) << "half";
    std::ofstream(jobs / waiting / "data.tok") << "it is read again";
    open();
    for (const std::filesystem::path& path : leftovers) EXPECT_FALSE(exists(path)) << path;
    EXPECT_FALSE(exists(jobs / done / "step-999") || exists(unmade));
    EXPECT_TRUE(exists(jobs / waiting / "data.tok")) << "a job that goes on needs it";
    EXPECT_TRUE(exists(jobs / done / ("step-" + std::to_string(kept_step)) / "adapter_config.json"));
    EXPECT_EQ(service->adapter_files({}, done, {})->size(), 4u);
    EXPECT_EQ(service->checkpoints({}, done)->size(), n_checkpoints);
    service->start();
    EXPECT_EQ(settled(*service, waiting), "succeeded");
}

TEST_F(Jobs, AFullDiskKeepsNoServerFromStarting) {
    const std::string id = create(request(upload(token_lines(6))));
    service.reset();
    const std::filesystem::path in_the_way = dir.path() / "training" / "jobs" / id / "job.json.new";
    std::filesystem::create_directories(in_the_way / "full");  // the record cannot be written
    open();
    ASSERT_TRUE(service);
    EXPECT_TRUE(service->find({}, id));
    std::filesystem::remove_all(in_the_way);
    service->start();
    EXPECT_EQ(settled(*service, id), "succeeded");
}

TEST_F(Jobs, WhereTooManyAreKeptThoseOfTheKeyThatHasMostAreForgotten) {
    limits.n_kept_max = 4;
    open();
    const auto cancelled = [&](const std::string& tenant) {
        const std::string id = create(request(upload(token_lines(2), tenant)), tenant);
        EXPECT_TRUE(service->change(tenant, id, JobEvent::kCancel).ok());
        return id;
    };
    const std::string others = cancelled("other"), first = cancelled("many"), second = cancelled("many");
    cancelled("many");
    cancelled("many");
    EXPECT_TRUE(service->find("other", others)) << "although it is the oldest";
    EXPECT_FALSE(service->find("many", first));
    EXPECT_TRUE(service->find("many", second));
}

TEST_F(Jobs, NobodyFillsTheMemoryByPausingAndResuming) {
    limits.n_events_max = 6;
    open();
    const std::string id = create(request(upload(token_lines(2))));
    for (int i = 0; i < 2; ++i) {
        EXPECT_TRUE(service->change({}, id, JobEvent::kPause).ok());
        EXPECT_TRUE(service->change({}, id, JobEvent::kResume).ok());
    }
    const auto refused = service->change({}, id, JobEvent::kPause);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kRateLimited);
    EXPECT_TRUE(service->change({}, id, JobEvent::kCancel).ok());
}

}  // namespace
}  // namespace lorad::server::training
