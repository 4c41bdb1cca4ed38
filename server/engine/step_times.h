// How many rows of prompts a step may have: beside decodes so that those do not wait, without any so
// that whoever comes meanwhile does not. From what steps have taken. A row costs more the longer the
// context that it sees, so what rows add is known by classes of context, each twice as long as the one
// before. Pure; engine thread only.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace lorad::server {

class StepTimes {
  public:
    // A step with prompts and decodes should take at most `stretch` times as long as one without prompts, a step of prompts alone `alone_s`.
    StepTimes(uint32_t n_rows_min, uint32_t n_rows_max, double stretch, double alone_s = 0.1)
        : n_rows_min_(n_rows_min), n_rows_max_(n_rows_max), stretch_(stretch), alone_s_(alone_s) {}

    // A step that had decodes; context: the longest that a row of a prompt saw; n_prefill_rows: as many such rows as cost what its rows of prompts do
    // (n_equivalent). Steps with a first recording of their shape, or whose pipelines are compiled first, are slow once, up to a hundred
    // times over: hence medians.
    void observe(double n_prefill_rows, uint32_t context, double seconds) {
        ++n_since_quiet_;
        if (n_prefill_rows == 0) {
            quiet_.add(seconds);
            n_since_quiet_ = 0;
        } else if (quiet_.known()) {
            rows_[class_of(context)].add(std::max(seconds - quiet_.value(), 0.0) / n_prefill_rows);
        }
    }

    // A step of prompts alone. What a small one takes says little about a large one.
    void observe_alone(double n_rows, uint32_t context, double seconds) {
        if (n_rows >= n_rows_alone(context) / 2.0) alone_rows_[class_of(context)].add(seconds / n_rows);
    }

    // Rows behind `at_context` that cost what n_rows behind `context` do.
    double n_equivalent(uint32_t n_rows, uint32_t context, uint32_t at_context) const {
        const Recent *row = nearest(rows_, class_of(context)), *at = nearest(rows_, class_of(at_context));
        if (!row || !at || at->value() <= 0) return n_rows;
        return n_rows * std::min(row->value() / at->value(), 1.0);
    }

    // For rows that come behind `context` tokens, in a step without decodes. As n_prefill_rows, but at least kAloneRowsMin where a step may have as many.
    uint32_t n_rows_alone(uint32_t context) const {
        const Recent* row = nearest(alone_rows_, class_of(context));
        double n = row ? alone_s_ / std::max(row->value(), 1e-12) : double(kAloneRowsFirst);
        return n >= n_rows_max_ ? n_rows_max_ : std::min(std::max(whole(n), kAloneRowsMin), n_rows_max_);
    }

    // For rows that come behind `context` tokens. Whole multiples of n_rows_min, so that steps have
    // few different shapes. 0 now and then where prompts never end: what a step takes without them
    // has to be known.
    uint32_t n_prefill_rows(uint32_t context) const {
        if (n_since_quiet_ >= (quiet_.known() ? 256u : 8u)) return 0;
        const Recent* row = nearest(rows_, class_of(context));
        if (!quiet_.known() || !row) return n_rows_min_;
        return std::max(whole((stretch_ - 1) * quiet_.value() / std::max(row->value(), 1e-12)), n_rows_min_);
    }

    static constexpr uint32_t kAloneRowsMin = 64;     // fewer cost the prompt more than they help others: the weights are read for them all the same
    static constexpr uint32_t kAloneRowsFirst = 256;  // before anything is known

  private:
    // The median of the last few values.
    class Recent {
      public:
        void add(double value) {
            values_[n_added_++ % kKept] = value;
            std::array<double, kKept> sorted = values_;
            auto end = sorted.begin() + std::min<ptrdiff_t>(ptrdiff_t(n_added_), kKept);
            auto middle = sorted.begin() + (end - sorted.begin()) / 2;
            std::nth_element(sorted.begin(), middle, end);
            median_ = *middle;
        }
        bool known() const { return n_added_ > 0; }
        double value() const { return median_; }

      private:
        static constexpr ptrdiff_t kKept = 15;
        std::array<double, kKept> values_{};
        size_t n_added_ = 0;
        double median_ = 0;
    };

    static constexpr uint32_t kClasses = 12, kFirstClass = 1024;  // tokens; the last has all that is longer

    static uint32_t class_of(uint32_t context) {
        return std::min(uint32_t(std::bit_width(context / kFirstClass)), kClasses - 1);
    }
    using ByClass = std::array<Recent, kClasses>;
    // Of the class, or of the next shorter context that is known, or else the next longer one.
    static const Recent* nearest(const ByClass& rows, uint32_t wanted) {
        for (uint32_t i = wanted + 1; i-- > 0;) {
            if (rows[i].known()) return &rows[i];
        }
        for (uint32_t i = wanted + 1; i < kClasses; ++i) {
            if (rows[i].known()) return &rows[i];
        }
        return nullptr;
    }
    uint32_t whole(double n_rows) const { return uint32_t(std::min(n_rows, double(n_rows_max_))) / n_rows_min_ * n_rows_min_; }

    const uint32_t n_rows_min_, n_rows_max_;
    const double stretch_, alone_s_;
    Recent quiet_;        // seconds of a step without prompts
    ByClass rows_;        // seconds that a row of a prompt adds
    ByClass alone_rows_;  // seconds of a step of prompts alone, by their rows
    uint32_t n_since_quiet_ = 0;
};

}  // namespace lorad::server
