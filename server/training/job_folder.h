// One job's folder, below that of all jobs: its record, events, the losses of its steps, prepared data, checkpoints.
//
//   job.json, job.copy.json     the record, twice; each replaced as a whole
//   events.jsonl, steps.csv     appended to; lines behind a checkpoint are cut off when the job goes on from it
//   data.tok, validation.tok    token_file.h
//   checkpoint                  checkpoint_file.h
//   start/                      a PEFT folder: the adapter that the job begins with, where there is one
//   best/, step-<n>/            PEFT folders
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "adapters/plan/trainable.h"
#include "proto/base/result.h"
#include "proto/training/training_write.h"
#include "server/training/job.h"

namespace lorad::server::training {

// What adapters::write_peft_folder() wrote. kNotFound, kStorageFailed.
Result<adapters::PeftFiles> read_peft_folder(const std::filesystem::path& folder);
// SHA-256 of both files, as hex digits.
std::string start_digest_of(const adapters::PeftFiles& files);

// One thread at a time.
class JobFolder {
  public:
    explicit JobFolder(std::filesystem::path path) : path_(std::move(path)) {}

    Status make() const;
    void remove() const;
    Status save(const Job& job) const;
    // The record, or its copy where that is damaged.
    Result<Job> load() const;

    // Neither is synced: what a crash takes is cut off, or was cut off anyway.
    Status append_event(const proto::JobEventObject& event) const;
    Status append_step(const StepResult& step) const;
    void append_valid(uint64_t step, const EvalResult& result) const;
    // Returns the readable events, the oldest first.
    std::vector<proto::JobEventObject> events() const;
    // Drops events and losses behind this state.
    Status cut_behind(const RunState& state) const;
    std::string steps_csv() const;

    std::filesystem::path data() const { return path_ / "data.tok"; }
    std::filesystem::path validation() const { return path_ / "validation.tok"; }
    std::filesystem::path checkpoint() const { return path_ / "checkpoint"; }
    std::filesystem::path start() const { return path_ / "start"; }
    std::filesystem::path best() const { return path_ / "best"; }
    std::filesystem::path step_folder(uint64_t step) const;
    std::filesystem::path result() const { return path_ / "result"; }
    // Removes files that only a continued job needs.
    void remove_work() const;
    // False: no record was ever finished in it.
    bool has_record() const;
    // Removes what a process that was killed left: files half written, folders of checkpoints that the record does not
    // name, and of a job that has ended what only a continued one needs.
    void remove_leftovers(const Job& job) const;
    uint64_t bytes() const;

  private:
    Status append(const char* file, const std::string& line) const;
    std::string text_of_file(const char* file) const;

    const std::filesystem::path path_;
};

}  // namespace lorad::server::training
