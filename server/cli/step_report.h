// The file of `lorad train --report`: one JSON object a step.
#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "proto/base/format.h"
#include "proto/base/result.h"
#include "proto/json/json.h"
#include "server/training/training_run.h"

namespace lorad::server::training {

// One thread.
class StepReport {
  public:
    // n_steps: made before, by a run that goes on; lines of those behind come again.
    Status open(const std::string& path, uint64_t n_steps) {
        if (path.empty()) return ok_status();
        path_ = path;
        const std::string kept = n_steps == 0 ? std::string() : lines_up_to(n_steps);
        file_.reset(std::fopen(path.c_str(), "we"));
        if (!file_ || std::fwrite(kept.data(), 1, kept.size(), file_.get()) != kept.size())
            return make_error(ErrorCode::kInvalidConfig, format("--report: {} cannot be written", path), "report");
        return ok_status();
    }
    // Nothing ends a run for it.
    void close() {
        if (!file_) return;
        const bool has_failed = std::ferror(file_.get()) != 0;
        if (std::fclose(file_.release()) != 0 || has_failed)
            std::fprintf(stderr, "%s is not complete: it could not be written\n", path_.c_str());
    }
    void add(const StepResult& step, const std::optional<EvalResult>& before, const std::optional<EvalResult>& after,
             double seconds) {
        if (!file_) return;
        JsonWriter writer;
        writer.begin_object()
            .field("step", step.step)
            .field("loss", step.loss)
            .field("grad_norm", step.grad_norm)
            .field("lr", step.learning_rate);
        writer.field("tokens", step.n_trained_tokens)
            .field("all_tokens", step.n_tokens)
            .field("accuracy", step.accuracy)
            .field("s", seconds);
        if (before) writer.field("valid_loss_before", before->loss);
        if (after) writer.field("valid_loss", after->loss);
        std::fprintf(file_.get(), "%s\n", writer.end_object().take().c_str());
        std::fflush(file_.get());
    }

  private:
    struct Closer {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    std::string lines_up_to(uint64_t n_steps) const {
        std::ifstream in(path_);
        std::string kept;
        for (std::string line; std::getline(in, line);) {
            unsigned long long step = 0;
            if (std::sscanf(line.c_str(), "{\"step\":%llu,", &step) == 1 && step <= n_steps) kept += line + "\n";
        }
        return kept;
    }

    std::string path_;
    std::unique_ptr<std::FILE, Closer> file_;
};

}  // namespace lorad::server::training
