#include "server/training/dataset.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <unordered_set>

#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/printable.h"
#include "proto/json/json_fields.h"

namespace lorad::server::training {
namespace {

constexpr size_t kFormatLines = 100;  // that decide the file's format
constexpr uint32_t kUsualSequenceTokens = 4096;

// The lines of a file, one at a time.
class LineReader {
  public:
    static Result<LineReader> open(const std::filesystem::path& path) {
        LineReader reader;
        reader.file_.reset(std::fopen(path.c_str(), "rbe"));
        if (!reader.file_)
            return make_error(ErrorCode::kInvalidRequest,
                              format("the file cannot be opened: {}", std::strerror(errno)));
        return reader;
    }

    // False at the end. A line beyond the bound is empty, and told.
    Result<bool> next() {
        line_.clear();
        is_too_long_ = false;
        bool is_any = false;
        for (int c = get(); c != EOF; c = get()) {
            is_any = true;
            if (c == '\n') break;
            if (line_.size() > proto::kTrainingLineBytesMax)
                is_too_long_ = true;
            else
                line_ += static_cast<char>(c);
        }
        if (std::ferror(file_.get()) != 0) return make_error(ErrorCode::kIo, "the file cannot be read to its end");
        if (!is_any) return false;
        ++number_;
        if (number_ == 1 && line_.starts_with("\xef\xbb\xbf")) line_.erase(0, 3);
        if (is_too_long_) line_.clear();
        return true;
    }
    std::string_view line() const { return line_; }
    uint32_t number() const { return number_; }
    bool is_too_long() const { return is_too_long_; }
    bool is_blank() const { return !is_too_long_ && line_.find_first_not_of(" \t\r") == std::string::npos; }

  private:
    int get() { return ::getc_unlocked(file_.get()); }

    struct Closer {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    std::unique_ptr<std::FILE, Closer> file_;
    std::string line_;
    uint32_t number_ = 0;
    bool is_too_long_ = false;
};

// Returns the most frequent format of the first lines; of two equally frequent ones, the earlier one.
Result<proto::LineFormat> find_format(const std::filesystem::path& file) {
    TRY_ASSIGN(LineReader reader, LineReader::open(file));
    std::vector<std::pair<proto::LineFormat, size_t>> found;
    for (size_t n = 0; n < kFormatLines;) {
        TRY_ASSIGN(const bool is_line, reader.next());
        if (!is_line) break;
        if (reader.is_blank()) continue;
        ++n;
        const std::optional<proto::LineFormat> one = proto::line_format_of(reader.line());
        if (!one) continue;
        auto entry = std::ranges::find(found, *one, [](const auto& e) { return e.first; });
        if (entry == found.end())
            found.emplace_back(*one, 1);
        else
            ++entry->second;
    }
    if (found.empty()) return proto::LineFormat::kChat;
    return std::ranges::max_element(found, {}, [](const auto& e) { return e.second; })->first;
}

constexpr auto kCountFields = [](auto& fields, auto& report) {
    fields("lines", report.n_lines);
    fields("sequences", report.n_sequences);
    fields("tokens", report.n_tokens);
    fields("trained_tokens", report.n_trained_tokens);
    fields("longest", report.longest);
    fields("bad_lines", report.n_bad_lines);
    fields("duplicates", report.n_duplicates);
    fields("empty_answers", report.n_empty_answers);
    fields("overlong", report.n_overlong);
    fields("cut_tokens", report.n_cut_tokens);
    fields("without_end", report.n_without_end);
};

constexpr auto kUnreadFields = [](auto& fields, auto& report) { fields("not_shown", report.unread); };

uint64_t digest_of(const std::vector<TrainingSequence>& sequences) {
    Sha256 sha;
    for (const TrainingSequence& one : sequences) {
        sha.add(std::as_bytes(std::span(one.tokens)));
        sha.add(std::as_bytes(std::span(one.labels)));
    }
    const Sha256Digest digest = sha.digest();
    uint64_t first = 0;
    std::memcpy(&first, digest.data(), sizeof(first));
    return first;
}

// Reads lines into the report.
class Preparation {
  public:
    Preparation(const TrainingText& text, const DataOptions& options, TokenFileWriter* writer)
        : encoder_(text, options.encode), options_(options), writer_(writer) {}

    Result<DataReport> run(const std::filesystem::path& file) {
        TRY_ASSIGN(report_.format, find_format(file));
        TRY_ASSIGN(LineReader reader, LineReader::open(file));
        for (;;) {
            TRY_ASSIGN(const bool is_line, reader.next());
            if (!is_line) break;
            if (options_.cancelled && options_.cancelled())
                return make_error(ErrorCode::kClientClosed, "preparing the data was ended");
            if (reader.is_blank()) continue;
            ++report_.n_lines;
            if (reader.is_too_long()) {
                add_problem(reader.number(), format("longer than {} bytes", proto::kTrainingLineBytesMax));
                continue;
            }
            TRY(add_line(reader));
        }
        for (const auto& [field, n] : unread_) report_.unread.emplace_back(field, n);
        if (report_.n_lines == 0) return make_error(ErrorCode::kInvalidRequest, "the file has no lines");
        return std::move(report_);
    }

  private:
    void add_problem(uint32_t line, std::string reason) {
        ++report_.n_bad_lines;
        if (report_.problems.size() < DataReport::kProblemsMax) report_.problems.push_back({line, std::move(reason)});
    }

    Status add_line(const LineReader& reader) {
        Result<EncodedLine> encoded = encoder_.encode(reader.line(), report_.format);
        if (!encoded.ok()) {
            // A failure that is not the line's fault, such as out of memory, is reported as such.
            const ErrorCode code = encoded.error().code;
            if (code != ErrorCode::kInvalidRequest && code != ErrorCode::kInputTooComplex &&
                code != ErrorCode::kUnsupportedParameter)
                return encoded.error();
            add_problem(reader.number(), encoded.error().message);
            return ok_status();
        }
        if (!seen_.insert(digest_of(encoded->sequences)).second) ++report_.n_duplicates;
        report_.n_empty_answers += encoded->has_empty_answer ? 1 : 0;
        report_.n_overlong += encoded->is_overlong ? 1 : 0;
        report_.n_cut_tokens += encoded->n_cut_tokens;
        report_.n_without_end += encoded->lacks_end ? 1 : 0;
        for (const std::string& field : encoded->unread) add_unread(field);
        for (TrainingSequence& sequence : encoded->sequences) {
            sequence.line = reader.number();
            ++report_.n_sequences;
            report_.n_tokens += sequence.tokens.size();
            report_.n_trained_tokens += sequence.n_trained();
            report_.longest = std::max(report_.longest, static_cast<uint32_t>(sequence.tokens.size()));
            if (writer_ != nullptr) TRY(writer_->add(sequence));
        }
        if (report_.n_sequences > options_.n_sequences_max)
            return make_error(ErrorCode::kInvalidRequest,
                              format("line {}: more than {} sequences", reader.number(), options_.n_sequences_max));
        if (report_.n_tokens > options_.n_tokens_max)
            return make_error(ErrorCode::kInvalidRequest,
                              format("line {}: more than {} tokens", reader.number(), options_.n_tokens_max));
        return ok_status();
    }

    // "messages[3].name" and "messages[5].name" are the same to people.
    void add_unread(const std::string& field) {
        constexpr size_t kFieldsMax = 32;
        std::string name;
        for (size_t i = 0; i < field.size(); ++i) {
            name += field[i];
            if (field[i] != '[') continue;
            i = std::min(field.find(']', i), field.size() - 1);
            name += ']';
        }
        if (unread_.size() < kFieldsMax || unread_.contains(name)) ++unread_[name];
    }

    const LineEncoder encoder_;
    const DataOptions& options_;
    TokenFileWriter* writer_;
    DataReport report_;
    std::unordered_set<uint64_t> seen_;
    std::map<std::string, uint64_t> unread_;
};

}  // namespace

std::string DataReport::text() const {
    std::string out = lorad::format("{} lines of {}: {} sequences, {} tokens ({} trained), the longest {}\n", n_lines,
                                    proto::line_format_name(format), n_sequences, n_tokens, n_trained_tokens, longest);
    const auto count = [&](uint64_t n, std::string_view what) {
        if (n > 0) out += lorad::format("{} {}\n", n, what);
    };
    count(n_duplicates, "lines are the same as an earlier one");
    count(n_empty_answers, "lines have an empty answer: only its end is trained");
    if (n_overlong > 0)
        out +=
            lorad::format("{} lines are longer than max_seq_length ({} tokens were cut)\n", n_overlong, n_cut_tokens);
    count(n_without_end, "lines have an answer without a token that ends it: the model does not learn to stop");
    for (const auto& [field, n] : unread)
        out += lorad::format("{}: the chat template does not show it ({} lines)\n", escape_unprintable(field), n);
    count(n_bad_lines, "lines cannot be used:");
    for (const LineProblem& problem : problems)
        out += lorad::format("line {}: {}\n", problem.line, escape_unprintable(problem.reason));
    if (n_bad_lines > problems.size()) out += lorad::format("and {} more\n", n_bad_lines - problems.size());
    return out;
}

std::string DataReport::json() const {
    JsonWriter writer;
    writer.begin_object().field("format", proto::line_format_name(format));
    write_fields(writer, *this, kCountFields).key("problems").begin_array();
    for (const LineProblem& problem : problems)
        writer.begin_object().field("line", problem.line).field("reason", problem.reason).end_object();
    return write_fields(writer.end_array(), *this, kUnreadFields).end_object().take();
}

std::string DataReport::counts_json() const {
    JsonWriter writer;
    writer.begin_object().field("format", proto::line_format_name(format));
    return write_fields(write_fields(writer, *this, kCountFields), *this, kUnreadFields).end_object().take();
}

Result<DataReport> DataReport::parse(std::string_view json) {
    TRY_ASSIGN(const JsonDocument document, parse_json(json, {.name = "report"}));
    const JsonValue root = document.root();
    DataReport report;
    TRY_ASSIGN(const std::string_view name, root.string_or("format", ""));
    const std::optional<proto::LineFormat> known = proto::line_format_named(name);
    if (!known) return root.error(lorad::format("there is no format {}", json_quote_short(name)));
    report.format = *known;
    TRY(read_fields(root, report, kCountFields));
    TRY(read_fields(root, report, kUnreadFields));
    return report;
}

DataOptions data_options(const proto::TrainingRecipe& recipe, uint32_t n_positions_max, uint32_t vocab_size) {
    DataOptions options;
    options.encode.train_on = train_on_of(recipe.train_on).value_or(TrainOn::kAssistant);
    options.encode.max_seq_length = recipe.max_seq_length.value_or(std::min(kUsualSequenceTokens, n_positions_max));
    options.encode.refuse_overlong = recipe.refuse_overlong;
    options.encode.vocab_size = vocab_size;
    return options;
}

Result<DataReport> prepare_data(const std::filesystem::path& file, const TrainingText& text, const DataOptions& options,
                                TokenFileWriter* writer) {
    TRY_ASSIGN(DataReport report, Preparation(text, options, writer).run(file));
    if (writer != nullptr) {
        TRY_ASSIGN(report.digest, writer->finish());
    }
    return report;
}

Result<std::vector<TrainingSequence>> first_sequences(const std::filesystem::path& file, const TrainingText& text,
                                                      const DataOptions& options, size_t n) {
    TRY_ASSIGN(const proto::LineFormat form, find_format(file));
    TRY_ASSIGN(LineReader reader, LineReader::open(file));
    const LineEncoder encoder(text, options.encode);
    std::vector<TrainingSequence> sequences;
    for (size_t lines = 0; lines < n;) {
        TRY_ASSIGN(const bool is_line, reader.next());
        if (!is_line) break;
        if (reader.is_blank() || reader.is_too_long()) continue;
        Result<EncodedLine> encoded = encoder.encode(reader.line(), form);
        if (!encoded.ok()) continue;
        ++lines;
        for (TrainingSequence& one : encoded->sequences) {
            one.line = reader.number();
            sequences.push_back(std::move(one));
        }
    }
    return sequences;
}

}  // namespace lorad::server::training
