#include "server/training/step_trainer.h"

#include <utility>

namespace lorad::server::training {
namespace {

class ModelTrainer final : public StepTrainer {
  public:
    explicit ModelTrainer(std::unique_ptr<model::Trainer> trainer) : trainer_(std::move(trainer)) {}
    Status begin_step(std::vector<model::TrainExample> examples, double learning_rate) override {
        return trainer_->begin_step(std::move(examples), learning_rate);
    }
    Status begin_evaluation(std::vector<model::TrainExample> examples) override {
        return trainer_->begin_evaluation(std::move(examples));
    }
    Status begin_gradients(std::vector<model::TrainExample> examples) override {
        return trainer_->begin_gradients(std::move(examples));
    }
    Status begin_update(const model::OptimizerSettings& optimizer, double learning_rate) override {
        return trainer_->begin_update(optimizer, learning_rate);
    }
    Result<bool> run_piece(std::chrono::microseconds budget) override { return trainer_->run_piece(budget); }
    Result<bool> start_piece(std::chrono::microseconds budget) override { return trainer_->start_piece(budget); }
    Status settle() override { return trainer_->settle(); }
    double device_seconds() const override { return trainer_->device_seconds(); }
    bool is_done() const override { return trainer_->is_done(); }
    Result<model::TrainReport> finish() override { return trainer_->finish(); }
    void abandon() override { trainer_->abandon(); }
    Result<model::TrainableAdapter> adapter() const override { return trainer_->adapter(); }
    Result<std::vector<std::byte>> checkpoint() const override { return trainer_->checkpoint(); }
    Status restore(std::span<const std::byte> checkpoint) override { return trainer_->restore(checkpoint); }
    Status reset_optimizer() override { return trainer_->reset_optimizer(); }
    uint64_t device_bytes() const override { return trainer_->memory().sum(); }
    model::Trainer* of_model() override { return trainer_.get(); }

  private:
    std::unique_ptr<model::Trainer> trainer_;
};

}  // namespace

std::unique_ptr<StepTrainer> step_trainer_of(std::unique_ptr<model::Trainer> trainer) {
    return std::make_unique<ModelTrainer>(std::move(trainer));
}

Result<bool> run_pieces_of(std::span<StepTrainer* const> trainers, std::chrono::microseconds budget, bool waits) {
    std::vector<model::Trainer*> of_model;
    for (StepTrainer* trainer : trainers) {
        if (trainer->of_model() != nullptr) of_model.push_back(trainer->of_model());
    }
    if (of_model.size() > 1) {
        CHECK(of_model.size() == trainers.size());
        return model::Trainer::run_together(of_model, budget, waits);
    }
    bool is_any_done = false;
    for (StepTrainer* trainer : trainers) {
        const auto part = budget / trainers.size();
        if (!trainer->is_done()) TRY(waits ? trainer->run_piece(part) : trainer->start_piece(part));
        is_any_done |= trainer->is_done();
    }
    return is_any_done;
}

}  // namespace lorad::server::training
