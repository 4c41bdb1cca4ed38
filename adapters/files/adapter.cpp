#include "adapters/files/adapter.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "proto/base/format.h"
#include "proto/base/printable.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

struct Transition {
    AdapterState from;
    StateChange change;
    AdapterState to;
};

using enum AdapterState;
using enum StateChange;
constexpr std::array kTransitions = {
    Transition{kStored, kLoadBegins, kLoading},     //
    Transition{kStored, kFoundDamaged, kDamaged},   //
    Transition{kStored, kDropped, kGone},           //
    Transition{kLoading, kLoadEnds, kResident},     //
    Transition{kLoading, kLoadFails, kStored},      //
    Transition{kLoading, kFoundDamaged, kDamaged},  //
    Transition{kResident, kEvicted, kStored},       //
    Transition{kResident, kDropped, kGone},         //
    Transition{kDamaged, kStoredAgain, kStored},    //
    Transition{kDamaged, kDropped, kGone},          //
};

constexpr std::array kModes = {ActivationMode::kNone, ActivationMode::kUnmerged, ActivationMode::kMerged,
                               ActivationMode::kAuto};

}  // namespace

std::string_view name_of(AdapterState state) {
    switch (state) {
        case kStored: return "stored";
        case kLoading: return "loading";
        case kResident: return "resident";
        case kDamaged: return "damaged";
        case kGone: return "gone";
    }
    return "";
}

std::string_view name_of(StateChange change) {
    switch (change) {
        case kLoadBegins: return "load_begins";
        case kLoadEnds: return "load_ends";
        case kLoadFails: return "load_fails";
        case kEvicted: return "evicted";
        case kFoundDamaged: return "found_damaged";
        case kStoredAgain: return "stored_again";
        case kDropped: return "dropped";
    }
    return "";
}

std::optional<AdapterState> next_state(AdapterState state, StateChange change) {
    for (const Transition& transition : kTransitions) {
        if (transition.from == state && transition.change == change) return transition.to;
    }
    return std::nullopt;
}

std::string_view name_of(Tier tier) {
    switch (tier) {
        case Tier::kDisk: return "disk";
        case Tier::kRam: return "ram";
        case Tier::kGpu: return "gpu";
    }
    return "";
}

std::string_view name_of(ActivationMode mode) {
    switch (mode) {
        case ActivationMode::kNone: return "none";
        case ActivationMode::kUnmerged: return "unmerged";
        case ActivationMode::kMerged: return "merged";
        case ActivationMode::kAuto: return "auto";
    }
    return "";
}

std::optional<ActivationMode> activation_mode_of(std::string_view name) {
    for (const ActivationMode mode : kModes) {
        if (name_of(mode) == name) return mode;
    }
    return std::nullopt;
}

Status check_adapter_name(std::string_view name, std::string_view base_name) {
    const auto refuse = [](std::string_view what) {
        return make_error(ErrorCode::kInvalidAdapterName, format("lora_name: {}", what), "lora_name");
    };
    if (name.empty() || name.size() > kAdapterNameBytesMax) {
        return refuse(format("expected 1 to {} bytes, found {}", kAdapterNameBytesMax, name.size()));
    }
    if (replace_invalid_utf8(name) != name) return refuse("expected UTF-8");
    if (!is_printable(name)) {
        return refuse(format(
            "expected no control characters, line separators, marks of direction or invisible characters, found {}",
            json_quote(name)));
    }
    if (name.front() == ' ' || name.back() == ' ') return refuse("expected no space at either end");
    if (name.front() == '/') return refuse("expected no / at the beginning");
    for (size_t begin = 0; begin <= name.size();) {
        const size_t end = std::min(name.find('/', begin), name.size());
        // Clients and proxies take these out of a path.
        const std::string_view part = name.substr(begin, end - begin);
        if (part == "." || part == "..") return refuse("expected no part \".\" or \"..\"");
        begin = end + 1;
    }
    if (name == base_name) return refuse(format("{} is the base model", json_quote(name)));
    // BASE:NAME in a request means the adapter NAME.
    if (!base_name.empty() && name.starts_with(base_name) && name.substr(base_name.size()).starts_with(':')) {
        return refuse(format("expected a name that does not begin with that of the base model and a colon, found {}",
                             json_quote(name)));
    }
    return ok_status();
}

Status check_terms(std::span<const AdapterTerm> terms) {
    const auto refuse = [](std::string what) {
        return make_error(ErrorCode::kInvalidRequest, format("adapters: {}", what), "adapters");
    };
    if (terms.empty() || terms.size() > kMixTermsMax) {
        return refuse(format("expected 1 to {} adapters, found {}", kMixTermsMax, terms.size()));
    }
    for (const AdapterTerm& term : terms) {
        if (!std::isfinite(term.scale) || std::abs(term.scale) > kMixScaleMax) {
            return refuse(format("the scale of {} is {}, expected -{} to {}", json_quote(term.name), term.scale,
                                 kMixScaleMax, kMixScaleMax));
        }
    }
    return ok_status();
}

}  // namespace lorad::adapters
