#include "server/access/scope.h"

namespace lorad::server::access {

std::string_view name_of(Scope scope) {
    switch (scope) {
        case Scope::kGenerate: return "generate";
        case Scope::kAdaptersRead: return "adapters:read";
        case Scope::kAdaptersWrite: return "adapters:write";
        case Scope::kTrainingRead: return "training:read";
        case Scope::kTrainingWrite: return "training:write";
        case Scope::kMetrics: return "metrics";
        case Scope::kAdmin: return "admin";
    }
    return {};
}

std::optional<Scope> scope_of(std::string_view name) {
    for (Scope scope : kAllScopes) {
        if (name == name_of(scope)) return scope;
    }
    return std::nullopt;
}

std::string scope_names() {
    std::string out;
    for (Scope scope : kAllScopes) {
        if (!out.empty()) out += scope == kAllScopes.back() ? " or " : ", ";
        out += name_of(scope);
    }
    return out;
}

std::string Access::text() const {
    if (kind_ == Kind::kOpen) return "open";
    if (kind_ == Kind::kAnyKey) return "any key";
    std::string out(name_of(one_));
    if (other_ != one_) out += " or " + std::string(name_of(other_));
    return out;
}

}  // namespace lorad::server::access
