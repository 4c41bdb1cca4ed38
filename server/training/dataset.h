// Preparing a training file: every line is read, checked and tokenized once; what is wrong is told by line and reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/base/result.h"
#include "proto/training/fine_tuning_request.h"
#include "proto/training/training_line.h"
#include "server/training/line_encoder.h"
#include "server/training/token_file.h"

namespace lorad::server::training {

struct LineProblem {
    uint32_t line = 0;  // from 1
    std::string reason;
};

// A summary of a file. Texts of the file appear in `problems` alone, as part of a problem.
struct DataReport {
    proto::LineFormat format = proto::LineFormat::kChat;
    uint64_t n_lines = 0;  // lines that are not empty
    uint64_t n_sequences = 0, n_tokens = 0, n_trained_tokens = 0;
    uint64_t n_bad_lines = 0, n_duplicates = 0, n_empty_answers = 0, n_overlong = 0, n_cut_tokens = 0,
             n_without_end = 0;
    uint32_t longest = 0;               // tokens
    std::vector<LineProblem> problems;  // the first kProblemsMax
    // fields that the template does not show, and of how many lines
    std::vector<std::pair<std::string, uint64_t>> unread;
    std::string digest;  // of the prepared data

    static constexpr size_t kProblemsMax = 100;
    // Lines for people: counts, then what is wrong.
    std::string text() const;
    std::string json() const;
    // Without what the file's texts are in, for what goes with an adapter.
    std::string counts_json() const;
    // Format, counts and fields of a report that json() or counts_json() wrote; problems and the digest stay there.
    static Result<DataReport> parse(std::string_view json);
};

struct DataOptions {
    EncodeOptions encode;
    uint64_t n_tokens_max = uint64_t{1} << 32;
    uint32_t n_sequences_max = 4'000'000;
    std::function<bool()> cancelled;  // asked at each line; may be empty
};

// The part of a recipe that is about data; max_seq_length as chosen where it says none.
DataOptions data_options(const proto::TrainingRecipe& recipe, uint32_t n_positions_max, uint32_t vocab_size);

// `writer` null: only the report. A file of which no line can be trained on, with more than there may be, or that
// cannot be read, is an error; bad lines are in the report, and whether they matter is the caller's to say. Takes one
// line's memory, and 8 bytes of each sequence.
Result<DataReport> prepare_data(const std::filesystem::path& file, const TrainingText& text, const DataOptions& options,
                                TokenFileWriter* writer);

// The sequences of the first n lines that are good, for people to look at.
Result<std::vector<TrainingSequence>> first_sequences(const std::filesystem::path& file, const TrainingText& text,
                                                      const DataOptions& options, size_t n);

}  // namespace lorad::server::training
