// Samples of Tinker's clients that are under way, and those that nobody has fetched for long enough: a client asks for
// one, and fetches it by the future's id. Bounded per tenant in number and age. HTTP workers.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "proto/base/mutex.h"
#include "server/http/generate/generation.h"

namespace lorad::server {

class TinkerSamples {
  public:
    using Clock = std::chrono::steady_clock;
    static constexpr size_t kTenantMax = 512;
    static constexpr std::chrono::seconds kAgeMax{600};  // without a look

    // key: by which a repeated request is known; empty: none. n_unscored: of the prompt's first tokens.
    // Returns the id of the future. kOverloaded.
    Result<std::string> add(const std::string& tenant, const std::string& key, std::unique_ptr<Generation> generation,
                            size_t n_unscored);
    // kOverloaded: the tenant has as many as it may have. Those that nobody looks at any more end.
    Status check_room(std::string_view tenant);
    // The future of a request that came before; nothing: it is new.
    std::optional<std::string> find(std::string_view tenant, std::string_view key) const;
    // False: this tenant has none of that id.
    bool remove(std::string_view tenant, std::string_view id);

    struct Outcome {
        bool is_known = false;
        std::optional<Error> error;
        std::optional<std::string> output;  // nothing: not done yet
    };
    // Waits for it until the deadline, or until `gone` says that nobody waits any more.
    Outcome wait(std::string_view tenant, std::string_view id, Clock::time_point deadline,
                 const std::function<bool()>& gone);

  private:
    struct Sample;
    using SamplePtr = std::shared_ptr<Sample>;
    void forget_old() REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::map<std::string, SamplePtr, std::less<>> samples_ GUARDED_BY(mutex_);
};

}  // namespace lorad::server
