// How many rows of prompts a step may have beside decodes so that those do not wait: from what steps
// have taken. A row costs more the longer the context that it sees, so what rows add is known by
// classes of context, each twice as long as the one before. Pure; engine thread only.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace lorad::server {

class StepTimes {
  public:
    // A step with prompts should take at most `stretch` times as long as one without.
    StepTimes(uint32_t n_rows_min, uint32_t n_rows_max, double stretch)
        : n_rows_min_(n_rows_min), n_rows_max_(n_rows_max), stretch_(stretch) {}

    // A step that had decodes; context: the longest that a row of a prompt saw. Steps with a first
    // recording of their shape, or whose pipelines are compiled first, are slow once, up to a hundred
    // times over: hence medians.
    void observe(uint32_t n_prefill_rows, uint32_t context, double seconds) {
        ++n_since_quiet_;
        if (n_prefill_rows == 0) {
            quiet_.add(seconds);
            n_since_quiet_ = 0;
        } else if (quiet_.known()) {
            rows_[class_of(context)].add(std::max(seconds - quiet_.value(), 0.0) / n_prefill_rows);
        }
    }

    // For rows that come behind `context` tokens. Whole multiples of n_rows_min, so that steps have
    // few different shapes. 0 now and then where prompts never end: what a step takes without them
    // has to be known.
    uint32_t n_prefill_rows(uint32_t context) const {
        if (n_since_quiet_ >= (quiet_.known() ? 256u : 8u)) return 0;
        const Recent* row = nearest(class_of(context));
        if (!quiet_.known() || !row) return n_rows_min_;
        double n = std::min((stretch_ - 1) * quiet_.value() / std::max(row->value(), 1e-12),
                            double(n_rows_max_));
        return std::clamp(uint32_t(n) / n_rows_min_ * n_rows_min_, n_rows_min_,
                          std::max(n_rows_min_, n_rows_max_));
    }

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
    // Of the class, or of the next shorter context that is known, or else the next longer one.
    const Recent* nearest(uint32_t wanted) const {
        for (uint32_t i = wanted + 1; i-- > 0;) {
            if (rows_[i].known()) return &rows_[i];
        }
        for (uint32_t i = wanted + 1; i < kClasses; ++i) {
            if (rows_[i].known()) return &rows_[i];
        }
        return nullptr;
    }

    const uint32_t n_rows_min_, n_rows_max_;
    const double stretch_;
    Recent quiet_;                       // seconds of a step without prompts
    std::array<Recent, kClasses> rows_;  // seconds that a row of a prompt adds
    uint32_t n_since_quiet_ = 0;
};

}  // namespace lorad::server
