// Decides which adapter or mix, if any, is worth keeping merged into the base weights, from what the last steps
// computed. Pure: no clock, no device, no lock; the same steps give the same decisions.
//
// Merged weights serve steps whose rows all belong to one mix, so that is what counts: the share of recent rows that
// were in such steps. Shares fade by halves: a window's worth of rows weighs twice as much as the one before it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace lorad::server {

struct MergePolicyOptions {
    uint64_t n_window_rows = 4096;  // rows that have to be seen before a first decision, and between two
    double promote_share = 0.8;     // merge a mix with this share of the rows, in steps of this mix alone
    // less than this: unmerge; well below promote_share, so that it does not go to and fro
    double demote_share = 0.3;
};

// One thread (the engine's).
class MergePolicy {
  public:
    explicit MergePolicy(const MergePolicyOptions& options) : options_(options) {}

    // A step of n_rows rows. `mix` names the adapter or mix that all of them belong to; empty if they differ, run with
    // the base, or if the mix must not be merged. Names are not looked into.
    void observe(std::string_view mix, uint32_t n_rows);

    // The mix to keep merged from now on; nothing: none.
    const std::optional<std::string>& wanted() const { return wanted_; }
    // The mix was unloaded or taken off automatic merging: it is forgotten, and unmerged if it was wanted.
    void forget(std::string_view mix);

  private:
    double share(const std::string& mix) const;
    void decide();
    void fade();

    const MergePolicyOptions options_;
    std::map<std::string, double, std::less<>> rows_;  // by mix, faded; bounded by n_window_rows entries
    double n_rows_ = 0;                                // of all steps, faded like rows_
    uint64_t n_since_fade_ = 0;
    uint64_t n_since_change_ = 0;
    std::optional<std::string> wanted_;
};

}  // namespace lorad::server
