// Handles the masks of a step's rows with grammars: when they are begun, how long the step waits for them, and who owes
// that time.
#include <algorithm>

#include "server/engine/engine.h"

namespace lorad::server {

using Clock = std::chrono::steady_clock;

// Returns true if a mask could keep somebody else waiting: a request without a grammar, or of another tenant.
bool Engine::has_others_to_keep_waiting() const {
    const std::string* tenant = nullptr;
    const auto is_other = [&](const std::unique_ptr<Sequence>& sequence) {
        const Request& request = sequence->request;
        if (!request.constraint || (tenant != nullptr && *tenant != request.tenant)) return true;
        tenant = &request.tenant;
        return false;
    };
    return std::ranges::any_of(running_, is_other) || std::ranges::any_of(waiting_, is_other);
}

// A slow mask is predicted from the sequence's earlier masks, or from the first, which was made when the grammar was
// compiled.
void Engine::begin_mask(Sequence& sequence) {
    if (!sequence.request.constraint) return;
    constexpr double kPatientSeconds = 0.004;
    const std::string& tenant = sequence.request.tenant;
    const bool is_slow = sequence.choice.mask_seconds() > kPatientSeconds || mask_debts_.is_over(tenant, time_now());
    // A late mask means computing its row again, which a recurrent state forbids: the row waits for the mask.
    sequence.choice.begin_mask(masks_, tenant, options_.has_state || (is_slow && has_others_to_keep_waiting_));
}

bool Engine::has_rows_that_wait_for_no_mask(const Flight& flight) const {
    return std::ranges::any_of(flight.planned, [](const Planned& planned) {
        const Sequence& sequence = *planned.sequence;
        return !sequence.ended && (planned.output < 0 || !sequence.request.constraint || sequence.choice.has_mask());
    });
}

// Prepares the youngest step once all tokens before it are known: waits for the masks of its grammars, and submits its
// draw if that waits for them.
Status Engine::prepare_draw() {
    if (in_flight_.size() != 1 || in_flight_.front().is_prepared) return ok_status();
    constexpr std::chrono::milliseconds kWaitAmongThemselves{50};  // if nobody else waits
    Flight& flight = in_flight_.front();
    flight.is_prepared = true;
    list_choices(flight);
    const bool has_others = has_others_to_keep_waiting_ && has_rows_that_wait_for_no_mask(flight);
    const Clock::time_point begin = Clock::now();
    chooser_.prepare(choices_, flight.n_masks, flight.n_masks > 0 ? runner_.masks() : std::span<uint32_t>(), masks_,
                     has_others ? options_.mask_wait : std::max(options_.mask_wait, kWaitAmongThemselves), !has_others);
    const double waited_s = std::chrono::duration<double>(Clock::now() - begin).count();
    flight.metrics.mask_seconds = waited_s;
    bool holds_up = has_others;
    if (flight.n_masks > 0) {
        TRY_ASSIGN(flight.metrics.has_waited, runner_.submit_draw());
        note_recordings();
        holds_up = holds_up && flight.metrics.has_waited;
    }
    if (holds_up) charge_masks(waited_s);
    leave_out_late(flight, has_others ? waited_s : 0);
    return ok_status();
}

// Divides the waited time among the tenants by the time of their masks.
void Engine::charge_masks(double waited_s) {
    double all_s = 0;
    for (const TokenChoice& choice : choices_) all_s += choice.mask_seconds();
    if (all_s <= 0) return;
    for (const TokenChoice& choice : choices_)
        mask_debts_.charge(choice.request->tenant, waited_s * choice.mask_seconds() / all_s, time_now());
}

// Takes the rows without masks out of the step. The row that chooses the next token is computed again once its mask is
// there.
void Engine::leave_out_late(Flight& flight, double waited_s) {
    auto choice = choices_.begin();
    for (Planned& planned : flight.planned) {
        if (planned.output < 0 || planned.sequence->ended) continue;
        if (!(choice++)->is_late) continue;
        Sequence& sequence = *planned.sequence;
        if (sequence.tokens.back() < 0) sequence.tokens.pop_back();
        if (options_.has_state) {
            // The recurrent state includes the row and cannot go back; an earlier snapshot may exist.
            release_blocks(sequence);
            take_prefix(sequence, find_prefix(sequence));
            fair_share_.begin_prompt(sequence.ticket, sequence.n_known() - sequence.n_computed);
        } else {
            --sequence.n_computed;
        }
        planned.output = -1;
        sequence.choice.be_patient();
        mask_debts_.charge(sequence.request.tenant, waited_s, time_now());
        ++flight.metrics.n_masks_late;
    }
}

}  // namespace lorad::server
