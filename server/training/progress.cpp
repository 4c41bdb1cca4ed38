#include "server/training/progress.h"

#include <algorithm>
#include <cstdio>

#include "proto/base/format.h"

namespace lorad::server::training {
namespace {

constexpr std::chrono::seconds kLogEvery{10};
constexpr std::chrono::milliseconds kTerminalEvery{100};

}  // namespace

std::string shown_duration(double seconds) {
    const auto whole = static_cast<uint64_t>(std::max(0.0, seconds) + 0.5);
    if (whole < 60) return format("{} s", whole);
    if (whole < 3600) return format("{}:{:02}", whole / 60, whole % 60);
    return format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string progress_line(const StepResult& step, uint64_t n_steps, const RunState& state, double tokens_per_s,
                          double seconds_left) {
    constexpr uint64_t kMarks = 20;
    const uint64_t n_marks = n_steps == 0 ? kMarks : std::min(kMarks, step.step * kMarks / n_steps);
    std::string line = format("step {}/{} [{}{}] loss {:.4f}", step.step, n_steps, std::string(n_marks, '#'),
                              std::string(kMarks - n_marks, '.'), step.loss);
    if (state.last_valid_loss) line += format(" val {:.4f}", *state.last_valid_loss);
    return line + format(" acc {:.2f} {:.0f} tok/s lr {:.1e} |g| {:.3g} {} left", step.accuracy, tokens_per_s,
                         step.learning_rate, step.grad_norm, shown_duration(seconds_left));
}

Progress::Progress(uint64_t n_steps, uint64_t n_done, bool is_terminal)
    : n_steps_(n_steps), n_done_(n_done), is_terminal_(is_terminal) {}

void Progress::show(const std::string& line, bool is_forced) {
    const Clock::time_point now = Clock::now();
    line_ = line;
    if (!is_forced && shown_ &&
        now - *shown_ <
            (is_terminal_ ? std::chrono::milliseconds(kTerminalEvery) : std::chrono::milliseconds(kLogEvery)))
        return;
    shown_ = now;
    if (is_terminal_) {
        // Blanks over what is left of a longer line.
        std::fprintf(stderr, "\r%s%s", line.c_str(),
                     std::string(width_ > line.size() ? width_ - line.size() : 0, ' ').c_str());
        width_ = line.size();
    } else {
        std::fprintf(stderr, "%s\n", line.c_str());
    }
    std::fflush(stderr);
    line_.clear();
}

void Progress::stepped(const StepResult& step, const RunState& state) {
    n_tokens_ += step.n_tokens;
    const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
    const double n_made = static_cast<double>(step.step - n_done_);
    show(progress_line(step, n_steps_, state, seconds > 0 ? static_cast<double>(n_tokens_) / seconds : 0.0,
                       n_made > 0 ? seconds / n_made * static_cast<double>(n_steps_ - step.step) : 0.0),
         step.step == n_steps_);
}

void Progress::evaluated(const EvalResult& result, const RunState& state) {
    if (state.step == 0)
        show(format("before step 1: val {:.4f} acc {:.2f}", result.loss, result.accuracy), true);
    else
        show(format("behind step {}: val {:.4f} acc {:.2f}", state.step, result.loss, result.accuracy), !is_terminal_);
}

void Progress::end() {
    if (!line_.empty()) show(std::string(line_), true);
    if (is_terminal_ && shown_) std::fputs("\n", stderr);
}

}  // namespace lorad::server::training
