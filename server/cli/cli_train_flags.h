// The flags of lorad train. main.cpp only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/cli/cli_train.h"

namespace CLI {
class App;
}

namespace lorad::server {

// Reads its command line into TrainArguments; outlives the parsing.
class TrainCommandFlags {
  public:
    explicit TrainCommandFlags(CLI::App& app);
    Result<int> run();

  private:
    void add_data_flags(CLI::App& app);
    void add_adapter_flags(CLI::App& app);
    void add_optimizer_flags(CLI::App& app);

    TrainArguments arguments_;
    std::string modules_ = "all-linear", saved_, overlong_ = "truncate";
    bool no_shuffle_ = false;
    uint32_t max_steps_ = 0, epochs_ = 0, batch_size_ = 0, max_seq_length_ = 0, eval_steps_ = 0;  // 0: not given
    double learning_rate_ = kNotGiven, alpha_ = kNotGiven;
    int64_t warmup_steps_ = -1;

    static constexpr double kNotGiven = -1.0;
};

}  // namespace lorad::server
