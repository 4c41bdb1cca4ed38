// The permissions of a key, and those that a route requires.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lorad::server::access {

enum class Scope : uint8_t {
    kGenerate,       // prompts in, answers out; the names of models
    kAdaptersRead,   // list adapters and their events
    kAdaptersWrite,  // upload, name, replace, activate, remove; includes kAdaptersRead
    kTrainingRead,   // one's own training files and jobs
    kTrainingWrite,  // upload files, make and end jobs; includes kTrainingRead
    kMetrics,        // /metrics, with the names of all adapters
    kAdmin,          // everything, also what reads files of the server
};
inline constexpr std::array kAllScopes = {Scope::kGenerate,     Scope::kAdaptersRead,  Scope::kAdaptersWrite,
                                          Scope::kTrainingRead, Scope::kTrainingWrite, Scope::kMetrics,
                                          Scope::kAdmin};

// The names in key files: "adapters:read".
std::string_view name_of(Scope scope);
std::optional<Scope> scope_of(std::string_view name);
// "generate, adapters:read, ... or admin"
std::string scope_names();

class Scopes {
  public:
    constexpr void add(Scope scope) { bits_ |= bit(scope); }
    constexpr bool has(Scope scope) const { return (bits_ & bit(scope)) != 0; }
    // Returns true also if another scope includes this one.
    constexpr bool allow(Scope scope) const {
        uint32_t granting = bit(scope) | bit(Scope::kAdmin);
        if (scope == Scope::kAdaptersRead) granting |= bit(Scope::kAdaptersWrite);
        if (scope == Scope::kTrainingRead) granting |= bit(Scope::kTrainingWrite);
        return (bits_ & granting) != 0;
    }
    constexpr bool empty() const { return bits_ == 0; }

  private:
    static constexpr uint32_t bit(Scope scope) { return 1u << uint32_t(scope); }
    uint32_t bits_ = 0;
};

// The callers that a route admits. There is no default: a route without it does not compile.
class Access {
  public:
    // No key is needed: probes, and files that say nothing about this server.
    static constexpr Access open() { return Access(Kind::kOpen, {}, {}); }
    static constexpr Access any_key() { return Access(Kind::kAnyKey, {}, {}); }
    static constexpr Access scope(Scope one) { return Access(Kind::kScoped, one, one); }
    static constexpr Access either(Scope one, Scope other) { return Access(Kind::kScoped, one, other); }

    constexpr bool is_open() const { return kind_ == Kind::kOpen; }
    constexpr bool allows(const Scopes& scopes) const {
        return kind_ != Kind::kScoped || scopes.allow(one_) || scopes.allow(other_);
    }
    constexpr bool is_for(Scope scope) const { return kind_ == Kind::kScoped && one_ == scope && other_ == scope; }
    // Changes adapters or the server: such routes may have a listener of their own, and their calls are told in the
    // log.
    constexpr bool is_administrative() const {
        return kind_ == Kind::kScoped && (one_ == Scope::kAdaptersWrite || one_ == Scope::kAdmin);
    }
    // "open", "any key", "generate", "generate or adapters:read".
    std::string text() const;

  private:
    enum class Kind : uint8_t { kOpen, kAnyKey, kScoped };
    constexpr Access(Kind kind, Scope one, Scope other) : kind_(kind), one_(one), other_(other) {}

    Kind kind_;
    Scope one_, other_;
};

}  // namespace lorad::server::access
