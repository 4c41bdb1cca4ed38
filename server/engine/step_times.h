// Decides how many prompt rows a step may have: beside decodes so that those do not wait, without decodes so that
// arriving requests do not. It learns from past steps: beside decodes by the size of the step (row_sizes.h), without
// them by the row. A row costs more the longer its context, so both are kept by class of context, each twice as long as
// the one before. Pure; engine thread only.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "server/engine/row_sizes.h"

namespace lorad::server {

class StepTimes {
  public:
    // A step with prompts and decodes should take at most `stretch` times as long as the last ones without prompts did,
    // or as one of as many decodes or fewer where that takes longer; a step of prompts alone `alone_s`.
    // n_beside_min: about as many rows of prompts there are beside decodes, whatever they take.
    StepTimes(RowSizes sizes, uint32_t n_beside_min, double stretch, double alone_s = 0.1)
        : sizes_(std::move(sizes)),
          n_beside_min_(n_beside_min),
          stretch_(stretch),
          alone_s_(alone_s),
          quiet_by_size_(sizes_.n()),
          sized_(sizes_.n()) {}

    // The prompts of a step beside decodes: how many rows they have, and behind how many tokens the first rows of the
    // prompts come.
    struct Prompts {
        uint32_t n_rows = 0, least_context = 0, most_context = 0;
    };

    // A step of n_rows that had decodes. Some steps are slow for no reason of their own: hence medians.
    void observe(uint32_t n_rows, const Prompts& prompts, double seconds) {
        ++n_since_quiet_;
        ++n_steps_;
        const uint32_t n_decodes = n_rows - prompts.n_rows;
        if (prompts.n_rows == 0) {
            quiet_.add(seconds);
            Quiet& own = quiet_by_size_[size_of(n_decodes)];
            if (n_steps_ - own.seen >= kQuietKept) own.seconds = {};
            own.seconds.add(seconds);
            own.seen = n_steps_;
            n_since_quiet_ = 0;
            return;
        }
        ++n_mixed_;
        const double longest = longest_beside(n_decodes);
        const size_t i = sizes_.index_of(n_rows);
        if (i == sizes_.n()) return;
        // Any step can show that a size takes too long; only a full one whose prompts are all of one class can show
        // that it does not.
        const uint32_t context_class = class_of(prompts.most_context);
        Timed& timed = sized_[i][context_class];
        const bool is_slow = seconds > longest, did_fit = timed.known() && fits(timed, longest);
        const bool is_whole = sizes_[i] == n_rows && class_of(prompts.least_context) == context_class;
        if (!is_slow && !did_fit) {
            if (!is_whole) {
                // Counts only while there are few measurements.
                if (timed.known() && static_cast<ptrdiff_t>(timed.seconds.n_added()) < Recent::kKept)
                    timed.seconds.add(seconds);
                return;
            }
            timed.seconds = {};  // no longer too slow
        }
        const bool was_too_slow = was_found_slow(timed, longest) && is_recent(timed);
        timed.seconds.add(seconds);
        if (was_too_slow) return;  // not a trial: it must not delay the next one
        timed.last = n_mixed_;
        if (is_slow && timed.seconds.n_added() > kTrials && !fits(timed, longest))
            next_trial_ = n_mixed_ + kTrialEvery / 2;
    }

    // A step of prompts alone; n_rows: as many rows behind `context` as cost what its rows do (n_equivalent). What a
    // small one takes says little about a large one.
    void observe_alone(double n_rows, uint32_t context, double seconds) {
        if (n_rows >= n_rows_alone(context) / 2.0) alone_rows_[class_of(context)].add(seconds / n_rows);
    }

    // Returns the number of rows behind `at_context` that cost as much as n_rows behind `context`.
    double n_equivalent(uint32_t n_rows, uint32_t context, uint32_t at_context) const {
        const Recent *row = nearest(alone_rows_, class_of(context)), *at = nearest(alone_rows_, class_of(at_context));
        if (!row || !at || at->value() <= 0) return n_rows;
        return n_rows * std::min(row->value() / at->value(), 1.0);
    }

    // Returns the rows of a full step without decodes, for rows behind `context` tokens; at least kAloneRowsMin if a
    // step may have as many.
    uint32_t n_rows_alone(uint32_t context) const {
        const Recent* row = nearest(alone_rows_, class_of(context));
        const double n = row ? alone_s_ / std::max(row->value(), 1e-12) : static_cast<double>(kAloneRowsFirst);
        const uint32_t n_rows =
            sizes_.rounded_down(static_cast<uint32_t>(std::min(n, static_cast<double>(sizes_.largest()))));
        return std::min(std::max(n_rows, kAloneRowsMin), sizes_.largest());
    }

    // Returns the prompt rows beside n_decodes, for rows behind `context` tokens: those that fill the largest step
    // known not to take too long, or the next larger one if that is unknown or was last tried kTrialEvery steps ago. At
    // the least those that fill the smallest step with n_beside_min rows, or an eighth less; n_beside_min if that step
    // is known to take too long. 0 in one step of many while prompts never end: the time of a step of about as many
    // decodes alone has to be known.
    uint32_t n_rows_beside(uint32_t n_decodes, uint32_t context) const {
        // Whom it was asked for in vain often, as some prompts leave no step without any, is asked seldom.
        const bool knows = quiet_.is_settled() && (knows_as_many(n_decodes) || n_since_quiet_ >= 64);
        const uint32_t n_between = knows ? 256 : 8;
        if (n_since_quiet_ % n_between == n_between - 1) return 0;
        const uint32_t context_class = class_of(context),
                       smallest = sizes_.rounded_up(n_decodes + n_beside_min_ - n_beside_min_ / 8);
        const size_t first = sizes_.index_of(smallest);
        if (!quiet_.known() || first == sizes_.n()) return smallest - n_decodes;
        const double longest = longest_beside(n_decodes);
        size_t next = sizes_.n();  // above the largest one that fits
        while (next > first && !is_known_to_fit(next - 1, context_class, longest)) --next;
        if (next == sizes_.n() || (next > first && is_too_slow(next, context_class, longest)))
            return sizes_[next - 1] - n_decodes;
        if (next == first && is_too_slow(first, context_class, longest))
            return std::min(n_beside_min_, smallest - n_decodes);
        return sizes_[next] - n_decodes;
    }

    static uint32_t class_of(uint32_t context) {
        return std::min(static_cast<uint32_t>(std::bit_width(context / kFirstClass)), kClasses - 1);
    }

    // fewer cost the prompt more than they help others: the weights are read for them all the same
    static constexpr uint32_t kAloneRowsMin = 64;
    static constexpr uint32_t kAloneRowsFirst = 256;  // before anything is known
    static constexpr uint32_t kTrialEvery = 512;      // steps with prompts and decodes

  private:
    // The median of the last kValues values.
    template <ptrdiff_t kValues>
    class Median {
      public:
        void add(double value) {
            values_[n_added_++ % kKept] = value;
            std::array<double, kKept> sorted = values_;
            auto end = sorted.begin() + std::min<ptrdiff_t>(static_cast<ptrdiff_t>(n_added_), kKept);
            auto middle = sorted.begin() + (end - sorted.begin()) / 2;
            std::nth_element(sorted.begin(), middle, end);
            median_ = *middle;
        }
        bool known() const { return n_added_ > 0; }
        size_t n_added() const { return n_added_; }
        double value() const { return median_; }
        // Returns true if the newest value is about the median.
        bool is_settled() const {
            return known() && std::abs(values_[(n_added_ - 1) % kKept] - median_) <= kQuietChange * median_;
        }

        static constexpr ptrdiff_t kKept = kValues;

      private:
        std::array<double, kKept> values_{};
        size_t n_added_ = 0;
        double median_ = 0;
    };
    using Recent = Median<15>;
    // Steps of one size without prompts.
    struct Quiet {
        Median<5> seconds;
        uint64_t seen = 0;  // n_steps_ then
        bool known() const { return seconds.n_added() >= kQuietLeast; }
    };
    // Steps of one size and class of contexts, with prompts.
    struct Timed {
        Recent seconds;
        uint64_t last = 0;  // n_mixed_ then
        bool known() const { return seconds.known(); }
    };

    static constexpr uint32_t kClasses = 12, kFirstClass = 1024;  // tokens; the last has all that is longer
    static constexpr size_t kTrials = 3;                          // steps that prove a size too slow
    // steps of one size without prompts, so that one that was slow for no reason does not count
    static constexpr size_t kQuietLeast = 3;
    // steps with decodes that the time of a size without prompts is good for
    static constexpr uint64_t kQuietKept = 512;
    // of the time without prompts, until the median has followed
    static constexpr double kQuietChange = 0.1;

    template <typename T>
    using ByClass = std::array<T, kClasses>;
    // Returns the known value of the class, or of the next shorter context.
    template <typename T>
    static const T* shorter(const ByClass<T>& by_class, uint32_t wanted) {
        for (uint32_t i = wanted + 1; i-- > 0;) {
            if (by_class[i].known()) return &by_class[i];
        }
        return nullptr;
    }
    // The same, or else the value of the next longer context.
    static const Recent* nearest(const ByClass<Recent>& by_class, uint32_t wanted) {
        if (const Recent* known = shorter(by_class, wanted)) return known;
        for (uint32_t i = wanted + 1; i < kClasses; ++i) {
            if (by_class[i].known()) return &by_class[i];
        }
        return nullptr;
    }
    size_t size_of(uint32_t n_decodes) const { return std::min(sizes_.index_of(n_decodes), sizes_.n() - 1); }
    bool is_fresh(const Quiet& quiet) const { return quiet.known() && n_steps_ - quiet.seen < kQuietKept; }
    // Returns true if the time without prompts is known for these decodes, or for more decodes.
    bool knows_as_many(uint32_t n_decodes) const {
        return std::any_of(quiet_by_size_.begin() + static_cast<ptrdiff_t>(size_of(n_decodes)), quiet_by_size_.end(),
                           [&](const Quiet& quiet) { return is_fresh(quiet) && quiet.seconds.is_settled(); });
    }
    // The longest time that a step with prompts and n_decodes decodes should take, in seconds.
    double longest_beside(uint32_t n_decodes) const {
        if (!quiet_.known()) return std::numeric_limits<double>::infinity();
        double quiet = quiet_.value();
        for (size_t i = 0; i <= size_of(n_decodes); ++i) {
            if (is_fresh(quiet_by_size_[i])) quiet = std::max(quiet, quiet_by_size_[i].seconds.value());
        }
        return stretch_ * quiet;
    }
    static bool fits(const Timed& timed, double longest) { return timed.seconds.value() <= longest; }
    // A size that fits a longer context fits a shorter one; an unknown class has the value of the next shorter one.
    bool is_known_to_fit(size_t size, uint32_t context_class, double longest) const {
        const ByClass<Timed>& by_class = sized_[size];
        if (const Timed* timed = shorter(by_class, context_class)) return fits(*timed, longest);
        return std::any_of(by_class.begin() + context_class, by_class.end(),
                           [&](const Timed& timed) { return timed.known() && fits(timed, longest); });
    }
    static bool was_found_slow(const Timed& timed, double longest) {
        return timed.seconds.n_added() >= kTrials && !fits(timed, longest);
    }
    bool is_recent(const Timed& timed) const { return n_mixed_ - timed.last < kTrialEvery; }
    // True for a while after its own last trial, or that of another class or size.
    bool is_too_slow(size_t size, uint32_t context_class, double longest) const {
        const Timed* timed = shorter(sized_[size], context_class);
        return timed != nullptr && was_found_slow(*timed, longest) && (is_recent(*timed) || n_mixed_ < next_trial_);
    }

    const RowSizes sizes_;
    const uint32_t n_beside_min_;
    const double stretch_, alone_s_;
    Recent quiet_;                       // seconds of a step without prompts, whatever its decodes
    std::vector<Quiet> quiet_by_size_;   // by the size that the decodes alone have
    std::vector<ByClass<Timed>> sized_;  // steps with prompts and decodes, by size
    ByClass<Recent> alone_rows_;         // seconds of a step of prompts alone, by their rows
    uint64_t n_steps_ = 0;               // steps with decodes
    uint64_t n_mixed_ = 0;               // steps with prompts and decodes
    uint64_t next_trial_ = 0;            // n_mixed_ before which no size that was too slow is tried again
    uint32_t n_since_quiet_ = 0;
};

}  // namespace lorad::server
