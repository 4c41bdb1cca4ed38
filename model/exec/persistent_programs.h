// The programs of a step that use a grid barrier, each with its state: offered by the device and the model, at work
// after its trial (model/exec/executor_trials.cpp), or given up for good. Vulkan does not promise that workgroups run
// side by side, so none of the programs is used untried. Engine thread only, but for `refusal`, which the thread that
// warms up writes before the trials.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "model/forward/given_up.h"

namespace lorad::model {

enum class PersistentProgram : uint8_t {
    kDecodeLayers,         // one row: LayerSchedule::kOneDispatch, kApart
    kDecodeLayersAdapter,  // the former also of a row with an adapter of few ranks
    kDecodeRows,           // a few rows: LayerSchedule::kBetween
    kGatedLora,            // AdapterMethod::kGatedProduct
};

// A set of them.
class ProgramSet {
  public:
    constexpr ProgramSet() = default;
    constexpr ProgramSet(std::initializer_list<PersistentProgram> programs) {
        for (const PersistentProgram program : programs) add(program);
    }
    constexpr bool has(PersistentProgram program) const { return (bits_ & bit(program)) != 0; }
    constexpr void add(PersistentProgram program) { bits_ |= bit(program); }

  private:
    static constexpr uint32_t bit(PersistentProgram program) { return 1u << static_cast<uint32_t>(program); }
    uint32_t bits_ = 0;
};

struct ProgramState {
    const char* kernel = "";            // as logs name it
    const GivenUp* given_up = nullptr;  // null: the device or the model has no such program
    std::string refusal;                // the driver's, of a kernel that its usual steps need; empty: none
    bool works = false;                 // it has passed its trial, and no grid barrier of it has timed out
};

class ProgramStates {
  public:
    ProgramState& operator[](PersistentProgram program) { return states_[static_cast<size_t>(program)]; }
    const ProgramState& operator[](PersistentProgram program) const { return states_[static_cast<size_t>(program)]; }

    void offer(PersistentProgram program, const char* kernel, const GivenUp& given_up) {
        (*this)[program] = {.kernel = kernel, .given_up = &given_up, .refusal = {}};
    }
    ProgramSet offered() const {
        return those([](const ProgramState& state) { return state.given_up != nullptr; });
    }
    ProgramSet at_work() const {
        return those([](const ProgramState& state) { return state.works; });
    }
    bool any_works() const { return std::ranges::any_of(states_, &ProgramState::works); }
    // The kernel of a program at work whose grid barrier has timed out; null: there is none.
    const char* waited_in_vain() const {
        const auto found = std::ranges::find_if(
            states_, [](const ProgramState& state) { return state.works && state.given_up->is_set(); });
        return found == states_.end() ? nullptr : found->kernel;
    }
    // Gives up all: if one grid barrier timed out, the device does not run workgroups side by side.
    void give_up() {
        for (ProgramState& state : states_) state.works = false;
    }

  private:
    template <typename Condition>
    ProgramSet those(Condition condition) const {
        ProgramSet set;
        for (size_t i = 0; i < states_.size(); ++i) {
            if (condition(states_[i])) set.add(static_cast<PersistentProgram>(i));
        }
        return set;
    }
    std::array<ProgramState, 4> states_;  // by PersistentProgram
};

}  // namespace lorad::model
