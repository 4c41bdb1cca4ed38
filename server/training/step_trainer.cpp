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
    Result<bool> run_piece(std::chrono::microseconds budget) override { return trainer_->run_piece(budget); }
    Result<bool> start_piece(std::chrono::microseconds budget) override { return trainer_->start_piece(budget); }
    double device_seconds() const override { return trainer_->device_seconds(); }
    Result<model::TrainReport> finish() override { return trainer_->finish(); }
    void abandon() override { trainer_->abandon(); }
    Result<model::TrainableAdapter> adapter() const override { return trainer_->adapter(); }
    Result<std::vector<std::byte>> checkpoint() const override { return trainer_->checkpoint(); }
    Status restore(std::span<const std::byte> checkpoint) override { return trainer_->restore(checkpoint); }
    uint64_t device_bytes() const override { return trainer_->memory().sum(); }

  private:
    std::unique_ptr<model::Trainer> trainer_;
};

}  // namespace

std::unique_ptr<StepTrainer> step_trainer_of(std::unique_ptr<model::Trainer> trainer) {
    return std::make_unique<ModelTrainer>(std::move(trainer));
}

}  // namespace lorad::server::training
