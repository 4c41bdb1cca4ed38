// The store in memory, watched: how often blobs are read back, and something to happen before a catalogue is saved.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "adapters/store/store.h"

namespace lorad::testing {

// What before_save returns, if it is no success, is the save's answer. It must not be changed while others may save.
class WatchedStore final : public adapters::Store {
  public:
    const adapters::Catalogue& found() const override { return store_->found(); }
    Status save(const adapters::Catalogue& catalogue) override {
        if (before_save) TRY(before_save(catalogue));
        return store_->save(catalogue);
    }
    Status is_settled() const override { return store_->is_settled(); }
    Result<std::unique_ptr<adapters::BlobUpload>> begin(std::string_view sha256, std::optional<uint64_t> bytes,
                                                        const adapters::Holder* holder, bool may_know) override {
        return store_->begin(sha256, bytes, holder, may_know);
    }
    Status put(std::string_view sha256, const adapters::FileBytes& bytes) override {
        return store_->put(sha256, bytes);
    }
    std::optional<uint64_t> blob_bytes(std::string_view sha256) const override { return store_->blob_bytes(sha256); }
    Result<adapters::FileBytes> read(std::string_view sha256) override {
        auto bytes = store_->read(sha256);
        n_reads += bytes.ok();
        return bytes;
    }
    void remove(std::string_view sha256) override { store_->remove(sha256); }
    uint64_t bytes() const override { return store_->bytes(); }
    bool is_held(std::string_view sha256) const override { return store_->is_held(sha256); }
    bool is_held_by(std::string_view sha256, std::string_view holder) const override {
        return store_->is_held_by(sha256, holder);
    }
    void keep_promise(std::string_view sha256, std::string_view holder) override {
        store_->keep_promise(sha256, holder);
    }
    void mark_tried(std::string_view sha256, std::string_view holder) override { store_->mark_tried(sha256, holder); }
    std::vector<std::string> expire(int64_t now_s) override { return store_->expire(now_s); }
    Status is_in_place() const override { return store_->is_in_place(); }

    uint32_t n_reads = 0;
    std::function<Status(const adapters::Catalogue&)> before_save;

  private:
    const std::unique_ptr<adapters::Store> store_ = adapters::memory_store({});
};

}  // namespace lorad::testing
