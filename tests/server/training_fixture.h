// Jobs without a device: a trainer of one number, and a server that remembers what is published.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/training/training_service.h"
#include "tests/support/gate.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::training {

// Fits a number w to the mean token of what is trained: loss (w - mean)^2. Each step is `n_pieces` pieces. Where there
// are targets beside the tokens, the log-probability of each is -(w - target)^2 / 1000, and updates go along the
// gradient.
class NumberTrainer : public StepTrainer {
  public:
    explicit NumberTrainer(int n_pieces, std::function<void()> on_piece = {})
        : n_pieces_(n_pieces), on_piece_(std::move(on_piece)) {}

    Status begin_step(std::vector<model::TrainExample> examples, double learning_rate) override {
        learning_rate_ = learning_rate;
        is_step_ = true;
        return begin(std::move(examples));
    }
    Status begin_evaluation(std::vector<model::TrainExample> examples) override {
        is_step_ = false;
        return begin(std::move(examples));
    }
    Status begin_gradients(std::vector<model::TrainExample> examples) override {
        adds_ = true;
        is_step_ = false;
        return begin(std::move(examples));
    }
    Status begin_update(const model::OptimizerSettings&, double learning_rate) override {
        is_update_ = true;
        learning_rate_ = learning_rate;
        return begin({});
    }
    Status reset_optimizer() override {
        momentum_ = 0.0;
        return ok_status();
    }
    Result<bool> run_piece(std::chrono::microseconds) override {
        if (on_piece_) on_piece_();
        return --n_left_ <= 0;
    }
    Result<bool> start_piece(std::chrono::microseconds budget) override { return run_piece(budget); }
    double device_seconds() const override { return 0; }
    bool is_done() const override { return n_left_ <= 0; }
    Result<model::TrainReport> finish() override {
        model::TrainReport report;
        if (std::exchange(is_update_, false)) {
            report.grad_norm = std::abs(added_);
            report.is_applied = std::isfinite(added_);
            if (report.is_applied) w_ -= learning_rate_ * added_;
            added_ = 0.0;
            return report;
        }
        if (!examples_.empty() && !examples_[0].targets.empty()) return finish_targets();
        double gradient = 0.0;
        for (const model::TrainExample& example : examples_) {
            model::ExampleLoss loss;
            for (size_t t = 0; t < example.tokens.size(); ++t) {
                if (example.weights[t] == 0.0f) continue;
                const double token = example.tokens[t];
                // A token of this number stands for a loss that is none.
                loss.loss_sum +=
                    token == kPoison ? std::numeric_limits<double>::quiet_NaN() : (w_ - token) * (w_ - token);
                gradient += 2 * (w_ - token);
                ++loss.n_trained;
            }
            report.n_trained_tokens += loss.n_trained;
            report.n_tokens += example.tokens.size();
            report.loss += loss.loss_sum;
            report.examples.push_back(loss);
        }
        report.loss /= double(report.n_trained_tokens);
        report.is_applied = is_step_ && std::isfinite(report.loss);
        if (report.is_applied)
            w_ -= learning_rate_ * (gradient / double(report.n_trained_tokens) + 0.01 * momentum_),
                momentum_ = gradient;
        return report;
    }
    void abandon() override {}
    Result<model::TrainableAdapter> adapter() const override {
        model::TrainableAdapter adapter;
        adapter.wholes.push_back({model::TrainedPart::kFinalNorm, 0, {"norm", {1}, {float(w_)}}});
        return adapter;
    }
    Result<std::vector<std::byte>> checkpoint() const override {
        std::vector<std::byte> bytes(2 * sizeof(double));
        std::memcpy(bytes.data(), &w_, sizeof(w_));
        std::memcpy(bytes.data() + sizeof(w_), &momentum_, sizeof(momentum_));
        return bytes;
    }
    Status restore(std::span<const std::byte> checkpoint) override {
        std::memcpy(&w_, checkpoint.data(), sizeof(w_));
        std::memcpy(&momentum_, checkpoint.data() + sizeof(w_), sizeof(momentum_));
        return ok_status();
    }
    uint64_t device_bytes() const override { return 8; }

    static constexpr TokenId kPoison = 666;
    static constexpr size_t kTokensMax = 1000;

  private:
    Result<model::TrainReport> finish_targets() {
        model::TrainReport report;
        for (const model::TrainExample& example : examples_) {
            model::ExampleLoss loss;
            for (size_t t = 0; t < example.targets.size(); ++t) {
                const double apart = w_ - example.targets[t], log_probability = -apart * apart / 1000;
                const bool has_ratio = !example.sampled.empty();
                const double weight = has_ratio ? example.weights[t] * std::exp(log_probability - example.sampled[t])
                                                : double{example.weights[t]};
                loss.loss_sum -= has_ratio ? weight : weight * log_probability;
                if (adds_) added_ += weight * 2 * apart / 1000;
                loss.log_probabilities.push_back(float(log_probability));
            }
            report.loss += loss.loss_sum;
            report.examples.push_back(std::move(loss));
        }
        adds_ = false;
        return report;
    }
    Status begin(std::vector<model::TrainExample> examples) {
        for (size_t i = 0; i < examples.size(); ++i) {
            if (examples[i].tokens.size() > kTokensMax)
                return make_error(ErrorCode::kInvalidRequest, "example " + std::to_string(i) + ": too long");
        }
        examples_ = std::move(examples);
        n_left_ = n_pieces_;
        return ok_status();
    }

    const int n_pieces_;
    const std::function<void()> on_piece_;
    std::vector<model::TrainExample> examples_;
    double w_ = 0.0, momentum_ = 0.0, learning_rate_ = 0.0;
    bool is_step_ = false, is_update_ = false, adds_ = false;
    double added_ = 0.0;  // gradients
    int n_left_ = 0;
};

class FakeHost : public TrainingHost {
  public:
    FakeHost() { facts_ = {"base", "fingerprint", "no device", "0.0", 1000, 64}; }
    const HostFacts& facts() const override { return facts_; }
    const TrainingText& text() const override { return text_; }
    Status check_trains() const override { return untrained ? Status(*untrained) : ok_status(); }
    Status check_recipe(const proto::TrainingRecipe& recipe) const override {
        if (recipe.lora_trainable_modules != std::vector<std::string>{"wq"}) return ok_status();
        return make_error(ErrorCode::kInvalidRequest, "target_modules: \"wq\": expected others", "target_modules");
    }
    Result<adapters::PeftFiles> start_files(const std::string& init_from) const override {
        if (on_start_files) on_start_files();
        if (start_refusal) return *start_refusal;
        return adapters::PeftFiles{"{}", {std::byte(init_from.size())}};
    }
    Result<MadeTrainer> make_trainer(const RunPlan&, const std::filesystem::path& start, StepTrainer* beside) override {
        n_starts += start.empty() ? 0 : 1;
        if (refusal) return *refusal;
        if (beside != nullptr && refusal_beside) return *refusal_beside;
        return MadeTrainer{std::make_unique<NumberTrainer>(3, on_piece), 1};
    }
    Result<bool> run_pieces(std::span<StepTrainer* const> trainers, const std::function<bool()>& stop) override {
        n_together_max = std::max(n_together_max.load(), trainers.size());
        for (;;) {
            if (stop()) return false;
            TRY_ASSIGN(const bool is_over, run_pieces_of(trainers, std::chrono::microseconds(1), true));
            if (is_over) return true;
        }
    }
    adapters::PeftFiles files_of(const model::TrainableAdapter& adapter, const RunPlan&) const override {
        if (on_write) on_write();
        adapters::PeftFiles files{"{}", {}};
        const auto* bytes = reinterpret_cast<const std::byte*>(adapter.wholes[0].weight.values.data());
        files.tensors.assign(bytes, bytes + sizeof(float));
        return files;
    }
    std::string generation_of(std::string_view name) const override {
        std::lock_guard lock(mutex_);
        const auto found = published_.find(std::string(name));
        return found == published_.end() ? std::string() : found->second;
    }
    std::string generation_of(const adapters::PeftFiles& files) const override {
        float w = 0;
        std::memcpy(&w, files.tensors.data(), sizeof(w));
        return std::to_string(w);
    }
    Result<std::string> publish(const std::string& name, const adapters::PeftFiles& files, bool, const std::string&,
                                bool) override {
        if (on_publish) on_publish();
        if (publish_refusal) return *publish_refusal;
        std::lock_guard lock(mutex_);
        return published_[name] = generation_of(files);
    }
    void remove(const std::string& name) override {
        std::lock_guard lock(mutex_);
        published_.erase(name);
    }

    std::optional<Error> untrained, refusal, refusal_beside, publish_refusal, start_refusal;
    std::atomic<int> n_starts{0};           // trainers that began with an adapter
    std::atomic<size_t> n_together_max{0};  // trainers that ran beside each other
    std::function<void()> on_piece, on_start_files;
    std::function<void()> on_write, on_publish;  // on the disk's thread: of an adapter

  private:
    HostFacts facts_;
    TrainingText text_{nullptr, nullptr, {}};
    mutable std::mutex mutex_;
    std::map<std::string, std::string> published_;
};

// Lines of two tokens each, the second trained.
inline std::string token_lines(int n, int from = 10) {
    std::string lines;
    for (int i = 0; i < n; ++i)
        lines +=
            R"({"tokens":[1,)" + std::to_string(from + i) + R"(],"labels":[-100,)" + std::to_string(from + i) + "]}\n";
    return lines;
}

// Waits until the job is in such a state; its state then, whatever it is after a minute.
inline std::string settled(const TrainingService& service, const std::string& id, const std::string& tenant = {},
                           std::vector<std::string> states = {"succeeded", "failed", "cancelled"}) {
    for (int i = 0; i < 12'000; ++i) {
        const std::optional<proto::JobObject> job = service.find(tenant, id);
        if (!job) return "gone";
        if (std::find(states.begin(), states.end(), job->status) != states.end()) return job->status;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return service.find(tenant, id)->status;
}

// Runs it in a process of its own. True: that was killed, else it came to its end.
inline bool is_killed_in(const std::function<void()>& work) {
    const pid_t child = ::fork();
    EXPECT_GE(child, 0);
    if (child == 0) {
        work();
        ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}
inline void die() { ::kill(::getpid(), SIGKILL); }

using lorad::testing::Gate;

}  // namespace lorad::server::training
