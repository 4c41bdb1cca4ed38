// The choosing half of the engine: from the outputs of a finished step to one token for each
// sequence. The engine's thread owns it; the work is shared by a few threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/output/logits.h"
#include "model/output/sampler.h"
#include "server/engine/mask_pool.h"
#include "server/engine/parallel_for.h"
#include "server/engine/request.h"
#include "server/engine/step_runner.h"

namespace lorad::server {

// One sequence's state for choosing tokens. It outlives preemption.
class ChoiceState {
  public:
    // With draws_on_device false: keeps every draw on the host, to compare.
    explicit ChoiceState(const Request& request, bool draws_on_device = true);

    // Returns true if the device chooses the token at this position: the next step may then begin before it is known
    // here, and no logits are copied to the host.
    bool device_chooses(const Request& request, uint32_t position) const;
    // Returns the rule that chooses the token, with the lists of changes() and the request's allowed tokens; nullopt:
    // the argmax of the model's own logits.
    std::optional<gpu::ChoiceRule> rule(const Request& request, uint32_t position) const;
    // The same for the device, with device_allowed(). If there is a grammar, its mask has the allowed tokens and the
    // ends that are too early.
    std::optional<gpu::ChoiceRule> device_rule(const Request& request, uint32_t position) const;
    std::span<const TokenId> device_allowed(const Request& request) const;
    std::span<const gpu::TokenChange> changes() const {
        return changes_ ? changes_->entries() : std::span<const gpu::TokenChange>();
    }

    // The chosen token becomes part of the answer. The grammar is told with its next mask, and not at all of the last
    // token.
    void accept(TokenId token);

    // Begins the mask of the next token, unless there is no grammar or it was begun. No step waits for a patient one.
    void begin_mask(MaskPool& pool, const std::string& tenant, bool is_patient);
    // Processor time of its masks; halves with each mask that takes less.
    double mask_seconds() const { return mask_seconds_; }
    bool is_patient() const { return job_ != nullptr && job_->is_patient; }
    bool has_mask() const { return job_ != nullptr && job_->done(); }
    void be_patient() { job_->is_patient = true; }
    // The next token cannot be chosen yet, and no step is to wait for it.
    bool is_held() const { return is_patient() && !job_->done(); }

    // For the prompt's tokens from the second on, as far as they have been computed.
    std::vector<proto::TokenLogprobs> prompt_logprobs;

  private:
    friend class TokenChooser;
    std::optional<model::TokenChanges> changes_;  // if the request has any
    uint32_t n_first_changes_ = 0;                // before the first token was generated
    std::shared_ptr<TokenConstraint> constraint_;
    std::shared_ptr<MaskJob> job_;   // for the next token; null: not begun
    std::optional<TokenId> untold_;  // the last token, where the grammar has not been told
    double mask_seconds_ = 0;
    bool draws_on_device_;
};

// One output of a step that becomes a token of a sequence, or that is compared with the prompt's token at its position.
struct TokenChoice {
    const Request* request = nullptr;
    ChoiceState* state = nullptr;
    uint32_t output = 0;        // index in the step's outputs
    uint32_t position = 0;      // of the chosen token
    TokenId prompt_token = -1;  // >= 0: nothing is chosen
    int32_t mask = -1;          // index in the step's masks, where the device waits for one
    // Set by choose(): where the request wants them; where bans and grammar leave no token.
    std::optional<proto::TokenLogprobs> logprobs = {};
    bool nothing_allowed = false;
    // with nothing_allowed: an error where the grammar did not take the token before, or its mask could not be made
    Status masked = ok_status();
    // The processor time of its mask, if the mask is ready.
    double mask_seconds() const;
    bool is_late = false;  // set by prepare(): its mask is not ready, so nothing is chosen in this step
};

class TokenChooser {
  public:
    explicit TokenChooser(uint32_t n_threads);  // the caller's own included

    // Called while the step runs on the device, once all tokens before it are known: waits for the masks of these
    // choices' grammars, for `at_most`, and writes the step's n_masks masks. A mask that is not ready then is late: it
    // allows nothing, like that of an ended sequence. Patient ones are waited for only with `for_patient`.
    void prepare(std::span<TokenChoice> choices, uint32_t n_masks, std::span<uint32_t> masks, MaskPool& pool,
                 std::chrono::steady_clock::duration at_most, bool for_patient);

    // Replaces the device's argmax in `result` where the host chooses; -1, logits that are not finite,
    // stays. What the device has said about its own choices goes into `choices` as well.
    void choose(std::span<TokenChoice> choices, StepResult& result);

  private:
    struct Scratch {
        model::SamplerScratch sampler;
        std::vector<float> logits;
        std::vector<uint32_t> mask;
    };
    TokenId choose_one(TokenChoice& choice, TokenId argmax, std::span<const float> logits, Scratch& scratch) const;
    static void take_mask(ChoiceState& state);
    static void note_nothing_allowed(TokenChoice& choice, bool nothing_allowed);
    static void write_mask(const TokenChoice& choice, std::span<uint32_t> to, Scratch& scratch);

    ParallelFor threads_;
    std::vector<Scratch> scratch_;  // by worker
    std::vector<TokenChoice*> chosen_here_;
    std::vector<TokenChoice*> mask_owners_;  // by mask, then those without one
    std::vector<std::shared_ptr<MaskJob>> awaited_;
};

}  // namespace lorad::server
