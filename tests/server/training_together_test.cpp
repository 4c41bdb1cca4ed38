// Jobs beside each other: each ends with the adapter that it has alone, whatever becomes of the others.
#include <filesystem>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/base/digest.h"
#include "server/training/piece_queue.h"
#include "tests/server/training_fixture.h"
#include "tests/support/training_goldens.h"

namespace lorad::server::training {
namespace {

// Jobs of the small golden model on the device.
class DeviceHost final : public FakeHost {
  public:
    using FakeHost::generation_of;
    Result<MadeTrainer> make_trainer(const RunPlan& plan, const std::filesystem::path&, StepTrainer* beside) override {
        TRY_ASSIGN(const model::TrainableAdapter adapter,
                   adapters::make_trainable(lora_recipe(plan.recipe), *golden_->base));
        model::TrainerOptions options;
        options.optimizer = plan.optimizer;
        options.n_rows = 256;
        options.n_positions_max = 64;
        options.lora_dropout = static_cast<float>(plan.recipe.lora_dropout);
        options.seed = plan.recipe.seed;
        std::unique_ptr<model::Trainer> trainer;
        if (beside != nullptr) {
            TRY_ASSIGN(trainer, model::Trainer::create_beside(*beside->of_model(), adapter, options));
        } else {
            TRY_ASSIGN(trainer, model::Trainer::create(lorad::testing::test_device(), golden_->base->config,
                                                       *golden_->weights, adapter, options));
        }
        return MadeTrainer{step_trainer_of(std::move(trainer)), adapter.n_parameters()};
    }
    adapters::PeftFiles files_of(const model::TrainableAdapter& adapter, const RunPlan&) const override {
        return adapters::peft_files(adapter, *golden_->base, {.base_name = "base"});
    }
    std::string generation_of(const adapters::PeftFiles& files) const override { return sha256_hex(files.tensors); }

  private:
    const std::unique_ptr<lorad::testing::TrainingGolden> golden_ =
        lorad::testing::TrainingGolden::load("llama-tied-plain");
};

class JobsTogether : public ::testing::Test {
  protected:
    // Jobs with data and rates of their own; the i-th is called "job-i".
    proto::FineTuningRequest request(TrainingService& service, int i) {
        auto stored = service.files().add({}, "data.jsonl", "fine-tune", token_lines(5 + 2 * i, 10 + 40 * i));
        EXPECT_TRUE(stored.ok());
        proto::FineTuningRequest wanted;
        wanted.model = "base";
        wanted.training_file = stored->object.id;
        wanted.suffix = "job-" + std::to_string(i);
        wanted.seed = 7 + static_cast<uint64_t>(i);
        wanted.recipe.batch_size = 2;
        wanted.recipe.n_epochs = 3;
        wanted.recipe.learning_rate = 0.01 * (i + 1);
        wanted.recipe.checkpoint_steps = 2;
        wanted.recipe.lora_r = 4 + 2 * static_cast<uint32_t>(i);
        if (i % 2 == 1) wanted.recipe.lora_trainable_modules = {"q_proj", "down_proj"};
        return wanted;
    }
    std::unique_ptr<TrainingService> open(TrainingHost& host, const std::filesystem::path& folder,
                                          uint32_t n_together) {
        TrainingLimits limits;
        limits.n_active_max = 10;
        limits.n_together = n_together;
        auto opened = TrainingService::open(folder, host, limits);
        EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message);
        return std::move(*opened);
    }
    std::vector<std::string> create(TrainingService& service, int n) {
        std::vector<std::string> ids;
        for (int i = 0; i < n; ++i) {
            const auto job = service.create({}, request(service, i));
            EXPECT_TRUE(job.ok()) << (job.ok() ? "" : job.error().message);
            ids.push_back(job->id);
        }
        return ids;
    }
    static void expect_all_succeed(const TrainingService& service, const std::vector<std::string>& ids) {
        for (const std::string& id : ids) {
            // On a software device a job of the golden model takes some seconds.
            for (int i = 0; i < 5 && !service.find({}, id)->finished_s; ++i) settled(service, id);
            EXPECT_EQ(service.find({}, id)->status, "succeeded");
        }
    }
    // What the names of n jobs stand for.
    static std::vector<std::string> generations(const FakeHost& host, int n) {
        std::vector<std::string> made;
        for (int i = 0; i < n; ++i) made.push_back(host.generation_of("job-" + std::to_string(i)));
        return made;
    }
    // Of jobs that run one after the other.
    template <typename Host>
    std::vector<std::string> generations_alone(int n) {
        Host host;
        const auto service = open(host, dir.path() / "alone", 1);
        const std::vector<std::string> ids = create(*service, n);
        service->start();
        expect_all_succeed(*service, ids);
        EXPECT_EQ(host.n_together_max, 1u);
        return generations(host, n);
    }
    static std::vector<std::string> messages(const TrainingService& service, const std::string& id) {
        std::vector<std::string> out;
        const TrainingService::Events found = *service.events({}, id, 0);
        for (const proto::JobEventObject& event : found.events) out.push_back(event.message);
        return out;
    }

    lorad::testing::TempDir dir;
};

TEST_F(JobsTogether, RunAsManyAsMayAndEndWithWhatTheyHaveAlone) {
    const std::vector<std::string> wanted = generations_alone<FakeHost>(4);
    FakeHost host;
    const auto service = open(host, dir.path() / "together", 3);
    const std::vector<std::string> ids = create(*service, 4);
    for (const std::string& id : ids) EXPECT_FALSE(service->find({}, id)->finished_s);
    host.on_piece = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
    service->start();
    expect_all_succeed(*service, ids);
    EXPECT_EQ(host.n_together_max, 3u);
    EXPECT_EQ(generations(host, 4), wanted);
    EXPECT_EQ(std::set<std::string>(wanted.begin(), wanted.end()).size(), 4u);
}

TEST_F(JobsTogether, OnADeviceTheAdaptersAreThoseOfJobsAlone) {
    const std::vector<std::string> wanted = generations_alone<DeviceHost>(2);
    EXPECT_NE(wanted[0], wanted[1]);
    DeviceHost host;
    const auto service = open(host, dir.path() / "together", 2);
    const std::vector<std::string> ids = create(*service, 2);
    service->start();
    expect_all_succeed(*service, ids);
    EXPECT_EQ(host.n_together_max, 2u);
    EXPECT_EQ(generations(host, 2), wanted);
}

TEST_F(JobsTogether, WhoCannotBeBesideOthersWaitsAndIsToldWhyAndHoldsBackThoseBehind) {
    FakeHost host;
    host.refusal_beside = make_error(ErrorCode::kInvalidConfig, "the job is trained alone (DoRA)");
    const auto service = open(host, dir.path() / "together", 3);
    const std::vector<std::string> ids = create(*service, 3);
    host.on_piece = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
    service->start();
    expect_all_succeed(*service, ids);
    EXPECT_EQ(host.n_together_max, 1u);
    for (const size_t waiting : {1u, 2u}) {
        EXPECT_THAT(messages(*service, ids[waiting]),
                    ::testing::Contains("Waits for the jobs under way: the job is trained alone (DoRA)"));
        EXPECT_LE(service->find({}, ids[waiting - 1])->finished_s, service->find({}, ids[waiting])->finished_s);
    }
    // What is wrong with a job itself fails it, whoever is beside.
    host.refusal_beside = make_error(ErrorCode::kNotFound, "no adapter is called x");
    const std::vector<std::string> more = create(*service, 2);
    EXPECT_EQ(settled(*service, more[0]), "succeeded");
    EXPECT_EQ(settled(*service, more[1]), "failed");
}

TEST_F(JobsTogether, OneThatIsCancelledOrPausedOrFailsIsNothingToTheOthers) {
    const std::vector<std::string> wanted = generations_alone<FakeHost>(4);
    FakeHost host;
    const auto service = open(host, dir.path() / "together", 5);
    std::vector<std::string> ids = create(*service, 4);
    proto::FineTuningRequest poisoned = request(*service, 9);
    poisoned.training_file =
        service->files()
            .add({}, "data.jsonl", "fine-tune", token_lines(4) + R"({"tokens":[1,666],"labels":[-100,666]})" + "\n")
            ->object.id;
    ids.push_back(service->create({}, poisoned)->id);
    host.on_piece = [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
    service->start();
    for (const std::string& id : ids) ASSERT_EQ(settled(*service, id, {}, {"running", "failed"}).empty(), false);
    ASSERT_TRUE(service->change({}, ids[0], JobEvent::kCancel).ok());
    ASSERT_TRUE(service->change({}, ids[2], JobEvent::kPause).ok());
    EXPECT_EQ(settled(*service, ids[1]), "succeeded");
    EXPECT_EQ(settled(*service, ids[3]), "succeeded");
    EXPECT_EQ(settled(*service, ids[4]), "failed");
    EXPECT_THAT(service->find({}, ids[4])->error->message, ::testing::HasSubstr("the loss is not finite (line 5"));
    EXPECT_EQ(service->find({}, ids[2])->status, "paused");
    EXPECT_TRUE(host.generation_of("job-0").empty());
    ASSERT_TRUE(service->change({}, ids[2], JobEvent::kResume).ok());
    EXPECT_EQ(settled(*service, ids[2]), "succeeded");
    for (const size_t i : {1u, 2u, 3u}) EXPECT_EQ(generations(host, 4)[i], wanted[i]) << i;
}

TEST_F(JobsTogether, OneThatIsPausedAndResumedAtOnceRunsOnceToTheSameBits) {
    const std::vector<std::string> wanted = generations_alone<FakeHost>(1);
    FakeHost host;
    const auto service = open(host, dir.path() / "together", 3);
    const std::vector<std::string> ids = create(*service, 1);
    int n_pieces = 0;
    host.on_piece = [&] {
        if (++n_pieces != 8) return;
        EXPECT_TRUE(service->change({}, ids[0], JobEvent::kPause).ok());
        EXPECT_TRUE(service->change({}, ids[0], JobEvent::kResume).ok());
    };
    service->start();
    expect_all_succeed(*service, ids);
    EXPECT_EQ(host.n_together_max, 1u);
    EXPECT_EQ(generations(host, 1), wanted);
}

// The update of a step is submitted behind a served step, and nobody has waited for it when the job is to stop.
TEST(PieceQueues, WhatIsSubmittedCountsWhenTheWorkStops) {
    class Submitted final : public NumberTrainer {
      public:
        Submitted() : NumberTrainer(1) {}
        Result<bool> start_piece(std::chrono::microseconds) override { return false; }
        Status settle() override {
            TRY(run_piece(std::chrono::microseconds(1)));
            return ok_status();
        }
    };
    Submitted trainer;
    ASSERT_TRUE(trainer.begin_step({model::TrainExample{.tokens = {1, 2}, .weights = {0, 1}}}, 0.1).ok());
    StepTrainer* trainers[] = {&trainer};
    PieceQueue pieces;
    const auto wake = [&] { (void)pieces.run(std::chrono::microseconds(1), false); };
    const Result<bool> ran = pieces.run_all(trainers, [] { return true; }, wake);
    ASSERT_TRUE(ran.ok());
    EXPECT_TRUE(*ran);
    EXPECT_FALSE(pieces.has_work());
}

TEST_F(JobsTogether, WhateverMomentTheProcessEndsAtEachHasTheBitsOfAnUndisturbedRun) {
    const std::vector<std::string> wanted = generations_alone<FakeHost>(3);
    const std::filesystem::path folder = dir.path() / "together";
    std::vector<std::string> ids;
    {
        FakeHost host;
        ids = create(*open(host, folder, 3), 3);
    }
    std::mt19937 random(20261130);
    for (int i = 0; i < 6; ++i) {
        const std::filesystem::path copy = dir.path() / ("copy-" + std::to_string(i));
        std::filesystem::copy(folder, copy, std::filesystem::copy_options::recursive);
        const int moment = 1 + static_cast<int>(random() % 90);
        EXPECT_TRUE(is_killed_in([&] {
            FakeHost host;
            std::atomic<int> n_pieces{0};
            host.on_piece = [&] {
                if (++n_pieces == moment) die();
            };
            const auto service = open(host, copy, 3);
            service->start();
            for (const std::string& id : ids) settled(*service, id);
        }));
        FakeHost host;
        const auto service = open(host, copy, 3);
        service->start();
        expect_all_succeed(*service, ids);
        const std::vector<std::string> made = generations(host, 3);
        // One that had been published before is in the other server's registry.
        for (size_t one = 0; one < 3; ++one) EXPECT_TRUE(made[one] == wanted[one] || made[one].empty()) << copy << one;
    }
}

}  // namespace
}  // namespace lorad::server::training
