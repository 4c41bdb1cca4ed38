// The batches that come most, as traits: what a start records in advance is what the planner makes of them.
#include <algorithm>
#include <array>
#include <set>

#include "model/exec/kv_cache.h"
#include "model/step/step_planner.h"
#include "proto/base/rounding.h"

namespace lorad::model {

class StepPlanner::UsualBatches {
  public:
    UsualBatches(const StepPlanner& planner, ProgramSet programs, uint32_t n_context_max)
        : planner_(planner), programs_(programs), limits_(planner.limits_), n_context_max_(n_context_max) {}

    std::set<StepShape> shapes() {
        for (const uint32_t n_rows : buckets_up_to(std::min(limits_.n_sequences_max, limits_.n_outputs_max))) {
            add_decodes(n_rows, n_rows, std::min(n_context_max_, uint32_t{kBlockTokens}));
            add_decodes(n_rows, n_rows, n_context_max_);
        }
        for (const uint32_t n_rows : buckets_up_to(limits_.n_rows_max)) {
            if (planner_.tile_request(n_rows).tile_rows == 0 || n_rows < kTileRowsMin)
                add_decodes(n_rows, 1, n_rows);
            else
                add_prompts(n_rows);
        }
        // The pipelines of what only some requests want.
        insert({.n_rows = 1,
                .n_outputs = 1,
                .n_context = 1,
                .has_lone_rows = true,
                .has_rules = true,
                .has_changes = true,
                .has_logprobs = true},
               Adapters{});
        insert(
            {.n_rows = 1, .n_outputs = 1, .n_context = 1, .has_rules = true, .has_changes = true, .has_logprobs = true},
            Adapters{});
        shapes_.insert(StepShape{.row_bucket = 1, .output_bucket = 1}.draw_part());
        return std::move(shapes_);
    }

  private:
    // A batch's adapters, so that each method of adding them comes about where the step can have it.
    struct Adapters {
        gpu::LoraLevel lora = gpu::LoraLevel::kNone;
        uint32_t rank = 0;
        bool has_weights_type = true;
        uint32_t most_runs = 0;
        bool long_runs = false, stacked = false;
    };
    static constexpr uint32_t kFewRanks = gpu::kGatedLoraRanks, kSomeRanks = 32, kManyRanks = kLoraRankMax,
                              kManyRuns = gpu::kAdapterTileRows;
    static constexpr uint32_t kOtherTypes =
        1u << static_cast<uint32_t>(gpu::ScalarType::kF32) | 1u << static_cast<uint32_t>(gpu::ScalarType::kF16);

    void insert(BatchTraits traits, ProgramSet programs) { shapes_.insert(planner_.shape_of(traits, programs)); }
    BatchTraits with_adapters(BatchTraits traits, const Adapters& adapters) const {
        traits.lora = adapters.lora;
        traits.rank_max = adapters.rank;
        traits.types = adapters.lora == gpu::LoraLevel::kNone ? 0
                       : adapters.has_weights_type            ? 1u << planner_.decode_lora_type()
                                                              : kOtherTypes;
        traits.most_runs = adapters.most_runs;
        traits.has_long_runs = adapters.long_runs;
        if (adapters.stacked) traits.stacked_steps.emplace();
        return traits;
    }
    // Adds also the shapes for when a program's trial fails, or a grid barrier has timed out.
    void insert(const BatchTraits& batch, const Adapters& adapters) {
        const BatchTraits traits = with_adapters(batch, adapters);
        insert(traits, programs_);
        insert(traits, ProgramSet{});
    }

    // Each row of a sequence of its own, or the end of a prompt among them.
    void add_decodes(uint32_t n_rows, uint32_t n_outputs, uint32_t n_context) {
        constexpr auto kPlain = gpu::LoraLevel::kPlain;
        constexpr std::array kCommon = {
            Adapters{}, Adapters{kPlain, kSomeRanks, true, kManyRuns}, Adapters{kPlain, kSomeRanks, false, kManyRuns},
            Adapters{kPlain, kFewRanks, true, kManyRuns}, Adapters{gpu::LoraLevel::kFull, kSomeRanks, true, kManyRuns}};
        constexpr std::array kOthers = {Adapters{kPlain, kSomeRanks, false, 1},
                                        Adapters{kPlain, kManyRanks, true, kManyRuns},
                                        Adapters{kPlain, kSomeRanks, true, 1, false, true}};
        for (const bool lone_rows : {true, false}) {
            if (!lone_rows && bucket_for(n_rows) == 1) continue;
            BatchTraits batch{
                .n_rows = n_rows, .n_outputs = n_outputs, .n_context = n_context, .has_lone_rows = lone_rows};
            for (const Adapters& adapters : kOthers) insert(batch, adapters);
            for (const bool rules : {false, true}) {
                batch.has_rules = rules;
                for (const Adapters& adapters : kCommon) insert(batch, adapters);
            }
        }
        if (bucket_for(n_rows) != 1) return;
        // A context that grows up to this one goes through all powers of two of parts.
        for (uint32_t shorter = std::min(n_context, limits_.one_dispatch_context_max); shorter > 0; shorter /= 2) {
            for (const bool rules : {false, true}) {
                const BatchTraits batch{.n_rows = 1,
                                        .n_outputs = n_outputs,
                                        .n_context = shorter,
                                        .has_lone_rows = true,
                                        .has_rules = rules};
                // Without fallbacks, which other lengths bring.
                for (const Adapters& adapters : {kCommon[0], kCommon[1], kCommon[2]})
                    insert(with_adapters(batch, adapters), programs_);
            }
        }
    }

    void add_prompts(uint32_t n_rows) {
        constexpr auto kNone = gpu::LoraLevel::kNone, kPlain = gpu::LoraLevel::kPlain, kFull = gpu::LoraLevel::kFull;
        const uint32_t tile_rows = planner_.tile_request(n_rows).tile_rows, n_tiles = ceil_div(n_rows, tile_rows);
        // The end of a long prompt.
        insert({.n_rows = n_rows, .n_outputs = 1, .n_context = n_context_max_, .runs = {.n_tiles = n_tiles}},
               Adapters{});
        // A whole one, of a base, of one adapter, of several in turns.
        BatchTraits whole{.n_rows = n_rows, .n_outputs = 1, .n_context = n_rows, .runs = {.n_tiles = n_tiles}};
        for (const Adapters& adapters :
             {Adapters{}, Adapters{kPlain, kSomeRanks, true, 1, true}, Adapters{kPlain, kFewRanks, true, 1, true},
              Adapters{kPlain, 1, true, 1, true}, Adapters{kPlain, kSomeRanks, true, 1, true, true},
              Adapters{kFull, kSomeRanks, true, 1, true}}) {
            insert(whole, adapters);
        }
        // A chunk beside decodes: the rows outside of tiles have a pipeline of their own.
        constexpr uint32_t kRowsMin = 64, kSingleRows = 64;
        if (n_rows < kRowsMin) return;
        BatchTraits beside{.n_rows = n_rows,
                           .n_outputs = std::min(n_rows / 2, limits_.n_outputs_max),
                           .n_context = n_rows,
                           .runs = {.n_single_rows = kSingleRows, .n_tiles = n_tiles}};
        for (const Adapters& adapters :
             {Adapters{}, Adapters{kPlain, kSomeRanks, false, kManyRuns}, Adapters{kPlain, kSomeRanks, false, 1},
              Adapters{kPlain, kSomeRanks, true, kManyRuns, false, true},
              Adapters{kFull, kSomeRanks, true, kManyRuns}}) {
            insert(beside, adapters);
        }
        if (!planner_.takes_argmax(bucket_for(beside.n_outputs))) return;
        beside.wants_logits = true;  // of a prompt's log-probabilities, more than there are sequences
        insert(beside, Adapters{.lora = kNone});
    }

    const StepPlanner& planner_;
    const ProgramSet programs_;
    const PlannerLimits& limits_;
    const uint32_t n_context_max_;
    std::set<StepShape> shapes_;
};

std::vector<StepShape> StepPlanner::usual_shapes(ProgramSet programs, uint32_t n_context_max) const {
    const std::set<StepShape> shapes = UsualBatches(*this, programs, n_context_max).shapes();
    return {shapes.begin(), shapes.end()};
}

}  // namespace lorad::model
