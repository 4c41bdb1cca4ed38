// One life of a registry on a real disk, whose calls are told one by one as they are acknowledged: for tests that end
// it anywhere.
#pragma once

#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "adapters/pool/registry.h"
#include "tests/adapters/adapter_folder.h"
#include "tests/adapters/fake_store.h"

namespace lorad::testing {

// What an observer knows: the generation of each name, whether it is pinned, and how many are in its history; and blobs
// that were uploaded.
struct KnownState {
    std::map<std::string, std::string> names;
    std::set<std::string> blobs;
    bool operator==(const KnownState&) const = default;
};

class StoreLife {
  public:
    static constexpr int kSteps = 10;

    static std::string file_text(const std::filesystem::path& path) {
        std::ifstream file(path, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(file), {});
    }
    static std::string digest(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

    static Result<std::unique_ptr<adapters::Store>> open(const std::filesystem::path& folder) {
        TRY_ASSIGN(std::unique_ptr<adapters::FileSystem> files, adapters::open_file_system(folder));
        return adapters::disk_store(std::move(files), {});
    }

    static KnownState state_of(const adapters::Registry& registry) {
        KnownState state;
        for (const adapters::AdapterInfo& info : registry.list()) {
            if (info.draining) continue;
            state.names[info.name] =
                format("{} {} {}", info.generation, info.pinned ? "pinned" : "-", info.history.size());
        }
        return state;
    }

    // Uploads, registers, replaces, activates, rolls back, deletes. After step n succeeded, done(n, state) is called.
    // False: a step failed.
    bool run(const std::filesystem::path& folder, const std::function<void(int, const KnownState&)>& done) const {
        auto store = open(folder);
        if (!store.ok()) return false;
        FakeStore weights(2);
        adapters::Registry registry(small_config(), weights, {.base_name = "base"}, std::move(store).value());
        const std::string config = file_text(two_.path() / adapters::kConfigFile),
                          tensors = file_text(two_.path() / adapters::kPeftFile);
        std::set<std::string> blobs;
        const auto upload = [&](const std::string& text) {
            auto begun = registry.put_blob(digest(text), text.size());
            if (!begun.ok()) return false;
            // In two pieces, as they come from the network.
            const auto bytes = std::as_bytes(std::span(text));
            if (!(*begun)->write(bytes.first(bytes.size() / 2)).ok() ||
                !(*begun)->write(bytes.subspan(bytes.size() / 2)).ok())
                return false;
            if (!(*begun)->finish().ok()) return false;
            blobs.insert(digest(text));
            return true;
        };
        const std::vector<adapters::UploadedFile> files_of_two = {{std::string(adapters::kConfigFile), digest(config)},
                                                                  {std::string(adapters::kPeftFile), digest(tensors)}};
        const std::function<bool()> steps[kSteps] = {
            [&] { return registry.load("a", one_.path(), {}).ok(); },
            [&] { return upload(config); },
            [&] { return upload(tensors); },
            [&] { return registry.register_adapter("b", files_of_two, {}).ok(); },
            [&] { return registry.load("a", three_.path(), {.load_inplace = true}).ok(); },  // replaces
            [&] { return registry.activate("b", {.pin = true}).ok(); },
            [&] { return registry.deactivate("b").ok(); },
            [&] { return registry.rollback("a").ok(); },
            [&] {
                blobs.clear();  // they go with their adapter, also where that is not acknowledged any more
                return registry.remove("b").ok();
            },
            [&] { return upload("only uploaded"); },
        };
        for (int n = 0; n < kSteps; ++n) {
            if (!steps[n]()) return false;
            KnownState state = state_of(registry);
            state.blobs = blobs;
            done(n, state);
        }
        return true;
    }

    // The states after each step, of a life that nothing disturbs; [0] is before the first.
    std::vector<KnownState> states(const std::filesystem::path& scratch) const {
        std::vector<KnownState> all(1);
        EXPECT_TRUE(run(scratch, [&](int, const KnownState& state) { all.push_back(state); }));
        EXPECT_EQ(all.size(), size_t{kSteps} + 1);
        return all;
    }

    // A folder as somebody finds it after `n_done` steps were acknowledged and something happened: it opens, is as it
    // was then or as the next step would leave it, nothing in it is half or left over, and every adapter can be used.
    // Returns what is wrong, or nothing.
    static std::string problem(const std::filesystem::path& folder, const std::vector<KnownState>& states,
                               size_t n_done) {
        auto store = open(folder);
        if (!store.ok()) return "does not open: " + store.error().message;
        if (!std::filesystem::is_empty(folder / "incoming")) return "something is left in incoming";
        if (!std::filesystem::is_empty(folder / "damaged")) return "something was damaged";
        for (const auto& entry : std::filesystem::directory_iterator(folder)) {
            if (entry.path().extension() == ".new") return "left over: " + entry.path().filename().string();
        }
        std::set<std::string> expected_blobs = states[n_done].blobs;
        if (n_done < kSteps && states[n_done + 1].blobs.size() < expected_blobs.size())
            expected_blobs = states[n_done + 1].blobs;
        for (const std::string& blob : expected_blobs) {
            if (!(*store)->blob_bytes(blob)) return "an acknowledged upload is gone: " + blob;
        }
        FakeStore weights(4);
        adapters::Registry registry(small_config(), weights, {.base_name = "base"}, std::move(store).value());
        const KnownState found = state_of(registry);
        const bool is_before = found.names == states[n_done].names;
        const bool is_after = n_done < kSteps && found.names == states[n_done + 1].names;
        if (!is_before && !is_after) {
            std::string text = format("after step {} found", n_done);
            for (const auto& [name, what] : found.names) text += format(" {}={}", name, what);
            return text;
        }
        for (const adapters::AdapterInfo& info : registry.list()) {
            if (!registry.acquire(info.name).ok()) return info.name + " is half there";
            for (size_t back = 0; back < info.history.size(); ++back) {
                if (!registry.rollback(info.name).ok() || !registry.acquire(info.name).ok())
                    return "the history of " + info.name + " is half there";
            }
        }
        return "";
    }

  private:
    AdapterFolder one_{kPlainConfig, plain_tensors(4, 1)};
    AdapterFolder two_{kPlainConfig, plain_tensors(4, 2)};
    AdapterFolder three_{kPlainConfig, plain_tensors(4, 3)};
};

}  // namespace lorad::testing
