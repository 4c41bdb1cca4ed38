#include "server/training/job_folder.h"

#include <cerrno>
#include <charconv>
#include <set>
#include <system_error>

#include <fcntl.h>

#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/owned_fd.h"
#include "server/training/durable_file.h"

namespace lorad::server::training {
namespace {

constexpr uint64_t kJobBytesMax = uint64_t{4} << 20;
constexpr uint64_t kAppendedBytesMax = uint64_t{256} << 20;
constexpr std::string_view kCsvHead = "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n";

// Lines without the one that a crash has cut off.
std::vector<std::string_view> whole_lines(std::string_view text) {
    std::vector<std::string_view> lines;
    for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
        lines.push_back(text.substr(0, end));
        text.remove_prefix(end + 1);
    }
    return lines;
}

uint64_t step_of_row(std::string_view row) {
    uint64_t step = 0;
    std::from_chars(row.data(), row.data() + row.size(), step);
    return step;
}

bool is_evaluation_row(std::string_view row) {
    return row.substr(std::min(row.find(','), row.size())).starts_with(",,,");
}

}  // namespace

Result<adapters::PeftFiles> read_peft_folder(const std::filesystem::path& folder) {
    constexpr uint64_t kConfigBytesMax = uint64_t{1} << 20, kTensorBytesMax = uint64_t{64} << 30;
    adapters::PeftFiles files;
    TRY_ASSIGN(files.config, read_whole(folder / "adapter_config.json", kConfigBytesMax));
    TRY_ASSIGN(const std::string tensors, read_whole(folder / "adapter_model.safetensors", kTensorBytesMax));
    const auto* bytes = reinterpret_cast<const std::byte*>(tensors.data());
    files.tensors.assign(bytes, bytes + tensors.size());
    return files;
}

std::string start_digest_of(const adapters::PeftFiles& files) {
    const std::string both = sha256_hex(std::as_bytes(std::span(files.config))) + sha256_hex(files.tensors);
    return sha256_hex(std::as_bytes(std::span(both)));
}

Status JobFolder::make() const { return make_folder(path_); }

void JobFolder::remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

Status JobFolder::save(const Job& job) const {
    const std::string text = job.json();
    TRY(write_durably(path_ / "job.json", text));
    return write_durably(path_ / "job.copy.json", text);
}

Result<Job> JobFolder::load() const {
    Result<Job> job = make_error(ErrorCode::kNotFound, "there is no record of the job");
    for (const char* name : {"job.json", "job.copy.json"}) {
        const Result<std::string> text = read_whole(path_ / name, kJobBytesMax);
        job = text.ok() ? Job::parse(*text) : Result<Job>(text.error());
        if (job.ok()) break;
    }
    return job;
}

Status JobFolder::append(const char* file, const std::string& line) const {
    const OwnedFd fd(::open((path_ / file).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd.ok()) return disk_error("open a file", errno);
    return write_all(fd.get(), std::as_bytes(std::span(line)));
}

std::string JobFolder::text_of_file(const char* file) const {
    Result<std::string> text = read_whole(path_ / file, kAppendedBytesMax);
    return text.ok() ? std::move(*text) : std::string();
}

Status JobFolder::append_event(const proto::JobEventObject& event) const {
    return append("events.jsonl", proto::job_event_json(event) + "\n");
}

Status JobFolder::append_step(const StepResult& step) const {
    return append("steps.csv", format("{},{},{},,\n", step.step, step.loss, step.accuracy));
}

void JobFolder::append_valid(uint64_t step, const EvalResult& result) const {
    (void)append("steps.csv", format("{},,,{},{}\n", step, result.loss, result.accuracy)).ok();
}

std::vector<proto::JobEventObject> JobFolder::events() const {
    std::vector<proto::JobEventObject> events;
    const std::string text = text_of_file("events.jsonl");
    for (const std::string_view line : whole_lines(text)) {
        if (Result<proto::JobEventObject> event = proto::parse_job_event(line); event.ok())
            events.push_back(std::move(*event));
    }
    return events;
}

Status JobFolder::cut_behind(const RunState& state) const {
    const auto is_before = [&](uint64_t step, bool is_evaluation) {
        return step < state.step || (step == state.step && (!is_evaluation || state.is_evaluated()));
    };
    std::string kept;
    for (const proto::JobEventObject& event : events()) {
        if (!event.metrics || is_before(event.metrics->step, !event.metrics->train_loss))
            kept += proto::job_event_json(event) + "\n";
    }
    TRY(write_durably(path_ / "events.jsonl", kept));
    kept.clear();
    const std::string rows = text_of_file("steps.csv");
    for (const std::string_view row : whole_lines(rows)) {
        if (is_before(step_of_row(row), is_evaluation_row(row))) kept += format("{}\n", row);
    }
    return write_durably(path_ / "steps.csv", kept);
}

// Rows of one step are one row.
std::string JobFolder::steps_csv() const {
    std::string out(kCsvHead);
    std::string pending;
    const std::string text = text_of_file("steps.csv");
    for (const std::string_view row : whole_lines(text)) {
        if (is_evaluation_row(row) && !pending.empty() && step_of_row(pending) == step_of_row(row) &&
            pending.ends_with(",,")) {
            pending.resize(pending.size() - 2);
            pending += row.substr(row.find(",,,") + 2);
            continue;
        }
        if (!pending.empty()) out += pending + "\n";
        pending = row;
    }
    if (!pending.empty()) out += pending + "\n";
    return out;
}

std::filesystem::path JobFolder::step_folder(uint64_t step) const { return path_ / format("step-{}", step); }

void JobFolder::remove_work() const {
    for (const std::filesystem::path& path : {data(), validation(), checkpoint()}) remove_quietly(path);
    std::error_code ignored;
    std::filesystem::remove_all(start(), ignored);
}

bool JobFolder::has_record() const {
    std::error_code ignored;
    return std::filesystem::exists(path_ / "job.json", ignored) ||
           std::filesystem::exists(path_ / "job.copy.json", ignored);
}

void JobFolder::remove_leftovers(const Job& job) const {
    std::set<std::filesystem::path> steps;
    for (const proto::JobCheckpointObject& one : job.checkpoints) steps.insert(step_folder(one.metrics.step));
    std::vector<std::filesystem::path> gone;
    std::error_code error;
    for (auto entry = std::filesystem::recursive_directory_iterator(path_, error);
         !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
        const std::filesystem::path& path = entry->path();
        const bool is_step = entry.depth() == 0 && path.filename().string().starts_with("step-");
        if (path.extension() == ".new" || (is_step && !steps.contains(path))) gone.push_back(path);
    }
    for (const std::filesystem::path& path : gone) std::filesystem::remove_all(path, error);
    if (is_ended(job.state)) remove_work();
}

uint64_t JobFolder::bytes() const {
    uint64_t sum = 0;
    std::error_code error;
    for (auto entry = std::filesystem::recursive_directory_iterator(path_, error);
         !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
        std::error_code ignored;
        const uint64_t size = entry->is_regular_file(ignored) ? entry->file_size(ignored) : 0;
        if (!ignored) sum += size;
    }
    return sum;
}

}  // namespace lorad::server::training
