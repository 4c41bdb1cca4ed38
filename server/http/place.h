// How calls of one kind are bounded, so that they leave HTTP workers to others.
#pragma once

#include <atomic>
#include <cstdint>

#include "server/access/principal.h"
#include "server/access/shared_places.h"
#include "server/http/http.h"

namespace lorad::server {

// Whose share of a pool a request uses.
inline access::Holder holder_of(const HttpRequest& http) { return {http.principal != nullptr ? http.principal->tenant : std::string(), {}}; }

// A place among those that may be taken at a time; given back when this ends.
class Place {
  public:
    Place(std::atomic<uint32_t>& n_taken, uint32_t n_max)
        : n_taken_(n_taken), taken_(n_taken.fetch_add(1) < n_max) {
        if (!taken_) n_taken_.fetch_sub(1);
    }
    ~Place() {
        if (taken_) n_taken_.fetch_sub(1);
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    bool taken() const { return taken_; }

  private:
    std::atomic<uint32_t>& n_taken_;
    const bool taken_;
};

}  // namespace lorad::server
