// Adapters for races and simulations: several names with several versions each, and what every one of them does on the
// fake device.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "adapters/pool/registry.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/fake_store.h"
#include "tests/server/fake_runner.h"
#include "tests/server/slot_digest.h"

namespace lorad::server {

struct AdapterVersions {
    AdapterVersions(uint32_t n_names, uint32_t n_versions) : n_versions_(n_versions) {
        testing::FakeStore store(1);
        adapters::Registry alone{testing::small_config(), store, {.base_name = "base"}};
        for (uint32_t i = 0; i < n_names * n_versions; ++i) {
            all_.push_back(std::make_unique<testing::AdapterFolder>(testing::kPlainConfig,
                                                                    testing::plain_tensors(4, 100 + i * 50)));
            auto loaded = alone.load("x", all_.back()->path());
            EXPECT_TRUE(loaded.ok());
            auto lease = alone.acquire("x");
            EXPECT_TRUE(lease.ok());
            digests_[lease->generation()] = digest_of(lease->view(0));
            *lease = adapters::MixLease();
            EXPECT_TRUE(alone.remove("x").ok());
        }
        EXPECT_EQ(digests_.size(), size_t{n_names} * n_versions);
    }

    const std::filesystem::path& of(uint32_t name, uint32_t version) const {
        return all_[name * n_versions_ + version]->path();
    }

    // What a request must answer, from the contents that it was given.
    std::vector<TokenId> expected(const std::vector<TokenId>& prompt, const adapters::MixLease& lease,
                                  uint32_t n) const {
        std::vector<LoraUse> uses;
        std::vector<uint64_t> contents;
        for (const adapters::LeasedContent& content : lease.content()) {
            uses.push_back({uint32_t(contents.size()), content.scale});
            contents.push_back(digests_.at(content.generation));
        }
        return fake_continuation(prompt, model::RowAdapters{uses}, n, [&](uint32_t slot) { return contents[slot]; });
    }

  private:
    const uint32_t n_versions_;
    std::vector<std::unique_ptr<testing::AdapterFolder>> all_;
    std::map<std::string, uint64_t> digests_;  // by generation
};

}  // namespace lorad::server
