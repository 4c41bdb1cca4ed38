// Grammars of clients. One not seen before is compiled in a helper (helper.h) first; what that takes within its limits
// is compiled here, on a thread with twice the stack, and kept for the next request that asks the same. What takes long
// is done on threads that give way to those that make tokens, under permits (admission.h). Any thread.
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "model/text/text.h"
#include "proto/base/mutex.h"
#include "proto/generate/structure.h"
#include "server/engine/token_constraint.h"
#include "server/sandbox/admission.h"
#include "server/sandbox/helper_pool.h"

namespace lorad::server::sandbox {

// Limits the memory of grammars: of one, and, in MiB, of all that answers follow, which is shared fairly.
class GrammarMemory {
  public:
    static constexpr uint64_t kOneBytesMax = uint64_t{64} << 20;
    // from here on copying and freeing one takes milliseconds
    static constexpr uint64_t kLargeBytes = uint64_t{4} << 20;
    static constexpr uint64_t kAllMibMax = 512;

    using Places = std::vector<access::SharedPlaces::Place>;

    GrammarMemory() = default;
    ~GrammarMemory();
    GrammarMemory(const GrammarMemory&) = delete;
    GrammarMemory& operator=(const GrammarMemory&) = delete;
    // Frees a grammar and its counted memory. A large one is freed on a thread of its own: the calling thread may be
    // the engine's.
    void let_go(std::unique_ptr<model::Grammar> grammar, Places counted);

    access::SharedPlaces all_mib{kAllMibMax};

  private:
    struct Left {
        std::unique_ptr<model::Grammar> grammar;
        Places counted;
    };
    void run();

    Mutex mutex_;
    Condition changed_;
    std::vector<Left> left_ GUARDED_BY(mutex_);
    bool stop_ GUARDED_BY(mutex_) = false;
    std::thread thread_;  // under mutex_ but for the end; with the first large one
};

// The tokens that may begin an answer, and the processor time it took to find them.
struct FirstMask {
    std::vector<uint32_t> words;
    double seconds = 0;
};

class GrammarCompiler {
  public:
    struct Options {
        uint64_t kept_bytes_max = uint64_t{128} << 20;
        uint32_t n_kept_max = 256;  // grammars and refusals
    };
    // helpers null: there are none, and every grammar is refused (kSandboxUnavailable).
    GrammarCompiler(std::shared_ptr<const model::Tokenizer> tokenizer, HelperPool* helpers, Admission& admission,
                    Options options);

    // kInvalidRequest for what is no grammar, kInputTooComplex for what takes too much, kOverloaded where too many are
    // under way; all name structure.param.
    Result<std::unique_ptr<TokenConstraint>> compile(const proto::Structure& structure,
                                                     std::span<const TokenId> eos_ids, uint32_t vocab_size,
                                                     const access::Holder& holder);

    // The number compiled in this process; for tests.
    uint64_t n_compiled() const;

  private:
    // A grammar that no answer has followed yet, or the reason why there is none.
    struct Kept {
        explicit Kept(std::shared_ptr<GrammarMemory> of) : memory(std::move(of)) {}
        ~Kept() { memory->let_go(std::move(grammar), {}); }
        Kept(const Kept&) = delete;
        Kept& operator=(const Kept&) = delete;
        const std::shared_ptr<GrammarMemory> memory;
        std::string key;
        Mutex mutex;  // guards the grammar
        std::unique_ptr<model::Grammar> grammar;
        std::shared_ptr<const FirstMask> first_mask;
        Error refusal;
        std::chrono::steady_clock::time_point made = std::chrono::steady_clock::now();
        uint64_t n_bytes = 0;
    };
    struct Source {
        model::GrammarKind kind;
        const proto::Structure& structure;
        std::vector<TokenId> eos_ids;
        uint32_t vocab_size;
    };
    std::shared_ptr<Kept> find(const std::string& key) REQUIRES(mutex_);
    // Finds a kept grammar, or makes it. Others who ask for the same meanwhile wait for that and take no permit.
    Result<std::shared_ptr<Kept>> find_or_make(const Source& source, const access::Holder& holder,
                                               const std::string& key);
    void keep(const std::shared_ptr<Kept>& made) REQUIRES(mutex_);
    Result<std::shared_ptr<Kept>> make(const Source& source, const access::Holder& holder);
    Status compile_here(const Source& source, Kept& made) const;
    Result<std::unique_ptr<TokenConstraint>> follow(Kept& kept, uint32_t vocab_size, const access::Holder& holder);

    const std::shared_ptr<const model::Tokenizer> tokenizer_;
    HelperPool* const helpers_;
    Admission& admission_;
    const Options options_;
    const std::shared_ptr<GrammarMemory> memory_;
    mutable Mutex mutex_;
    std::list<std::shared_ptr<Kept>> kept_ GUARDED_BY(mutex_);  // the last used first
    uint64_t kept_bytes_ GUARDED_BY(mutex_) = 0;
    std::set<std::string> making_ GUARDED_BY(mutex_);  // keys
    Condition made_;
    uint64_t n_compiled_ GUARDED_BY(mutex_) = 0;
};

model::GrammarKind grammar_kind(proto::StructureKind kind);

// One answer's state of a grammar. The first mask is the same for all answers; null: it is computed.
class GrammarConstraint final : public TokenConstraint {
  public:
    GrammarConstraint(std::unique_ptr<model::Grammar> grammar, uint32_t vocab_size,
                      std::shared_ptr<const FirstMask> first_mask = {}, std::shared_ptr<GrammarMemory> memory = {},
                      access::Holder holder = {})
        : grammar_(std::move(grammar)),
          vocab_size_(vocab_size),
          first_mask_(std::move(first_mask)),
          memory_(std::move(memory)),
          holder_(std::move(holder)) {}
    ~GrammarConstraint() override;
    Status next_mask(std::vector<uint32_t>& words) override;
    Status accept(TokenId token) override;
    double mask_seconds() const override { return first_mask_ != nullptr ? first_mask_->seconds : 0; }
    Result<std::unique_ptr<TokenConstraint>> duplicate() const override;
    // Counts its present memory.
    Status count();

  private:
    std::unique_ptr<model::Grammar> grammar_;
    const uint32_t vocab_size_;
    std::shared_ptr<const FirstMask> first_mask_;
    const std::shared_ptr<GrammarMemory> memory_;  // null: nobody counts
    const access::Holder holder_;
    GrammarMemory::Places counted_;
    uint64_t counted_mib_ = 0;
};

}  // namespace lorad::server::sandbox
