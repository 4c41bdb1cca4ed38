#include "server/sandbox/grammar_compiler.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "model/output/logits.h"
#include "proto/base/clock.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/mutex.h"
#include "proto/base/thread.h"

namespace lorad::server::sandbox {
namespace {

// The key has everything that the result depends on.
std::string key_of(model::GrammarKind kind, const std::string& source, const std::vector<TokenId>& eos_ids,
                   uint32_t vocab_size) {
    Sha256 digest;
    digest.add(format("{} {} {} ", static_cast<int>(kind), vocab_size, eos_ids.size()));
    digest.add(ids_field(eos_ids));
    digest.add(source);
    return digest.hex();
}

// A helper may also die because the system is out of memory, so the grammar may be tried again after this time.
constexpr std::chrono::minutes kTooComplexFor{1};

// Returns true if the same grammar would be refused again soon.
bool is_lasting(const Error& error) {
    return error.code == ErrorCode::kInvalidRequest || error.code == ErrorCode::kInputTooComplex;
}

// On a thread with twice the stack that gives way to others; its processor time is the permit's.
Status run_aside(Admission::Permit& permit, const std::function<Status()>& work) {
    Status done = ok_status();
    double took_s = 0;
    std::thread thread;
    const bool runs = start_thread(
        thread,
        [&] {
            name_thread("lorad-grammar");
            give_way(permit.niceness());
            done = work();
            took_s = thread_seconds();
        },
        kBigStackBytes);
    if (!runs) return make_error(ErrorCode::kOverloaded, "the system gives no more threads");
    thread.join();
    permit.charge(took_s);
    return done;
}

Error named(Error error, const std::string& param) {
    error.message = format("{}: {}", param, error.message);
    error.param = param;
    return error;
}

}  // namespace

model::GrammarKind grammar_kind(proto::StructureKind kind) {
    switch (kind) {
        case proto::StructureKind::kJsonSchema: return model::GrammarKind::kJsonSchema;
        case proto::StructureKind::kRegex: return model::GrammarKind::kRegex;
        case proto::StructureKind::kLark: return model::GrammarKind::kLark;
    }
    return model::GrammarKind::kJsonSchema;
}

GrammarCompiler::GrammarCompiler(std::shared_ptr<const model::Tokenizer> tokenizer, HelperPool* helpers,
                                 Admission& admission, Options options)
    : tokenizer_(std::move(tokenizer)),
      helpers_(helpers),
      admission_(admission),
      options_(options),
      memory_(std::make_shared<GrammarMemory>()) {}

uint64_t GrammarCompiler::n_compiled() const {
    MutexLock lock(mutex_);
    return n_compiled_;
}

std::shared_ptr<GrammarCompiler::Kept> GrammarCompiler::find(const std::string& key) {
    const auto found = std::ranges::find(kept_, key, [](const std::shared_ptr<Kept>& kept) { return kept->key; });
    if (found == kept_.end()) return nullptr;
    if (!(*found)->grammar && (*found)->refusal.code == ErrorCode::kInputTooComplex &&
        std::chrono::steady_clock::now() > (*found)->made + kTooComplexFor) {
        kept_.erase(found);
        return nullptr;
    }
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front();
}

void GrammarCompiler::keep(const std::shared_ptr<Kept>& made) {
    n_compiled_ += made->grammar != nullptr;
    kept_.push_front(made);
    kept_bytes_ += made->n_bytes;
    while (kept_.size() > options_.n_kept_max || (kept_bytes_ > options_.kept_bytes_max && kept_.size() > 1)) {
        kept_bytes_ -= kept_.back()->n_bytes;
        kept_.pop_back();
    }
}

// Computes the first mask, too.
Status GrammarCompiler::compile_here(const Source& source, Kept& made) const {
    TRY_ASSIGN(
        std::unique_ptr<model::Grammar> grammar,
        model::Grammar::create(*tokenizer_, source.kind, source.structure.source, source.eos_ids, source.vocab_size));
    std::vector<uint32_t> mask(model::mask_words(source.vocab_size), 0);
    const double begin_s = thread_seconds();
    TRY(grammar->mask(mask));
    made.first_mask = std::make_shared<const FirstMask>(FirstMask{std::move(mask), thread_seconds() - begin_s});
    made.n_bytes = grammar->n_bytes();
    made.grammar = std::move(grammar);
    return ok_status();
}

Result<std::shared_ptr<GrammarCompiler::Kept>> GrammarCompiler::make(const Source& source,
                                                                     const access::Holder& holder) {
    TRY_ASSIGN(Admission::Permit permit, admission_.enter(holder));
    auto made = std::make_shared<Kept>(memory_);
    Frame job{kCompile,
              {number_field(static_cast<uint64_t>(source.kind)), source.structure.source, ids_field(source.eos_ids),
               number_field(source.vocab_size)}};
    const Result<std::vector<std::string>> tried = helpers_->run(job, permit);
    const Status done =
        tried.ok() ? run_aside(permit, [&] { return compile_here(source, *made); }) : Status(tried.error());
    if (done.ok()) return made;
    if (!is_lasting(done.error())) return done.error();
    made->refusal = done.error();
    return made;
}

Result<std::shared_ptr<GrammarCompiler::Kept>> GrammarCompiler::find_or_make(const Source& source,
                                                                             const access::Holder& holder,
                                                                             const std::string& key) {
    const auto end = std::chrono::steady_clock::now() + 2 * Admission::kWaitMax;
    MutexLock lock(mutex_);
    for (;;) {
        if (std::shared_ptr<Kept> kept = find(key)) return kept;
        if (making_.insert(key).second) break;
        // The first one's refusal may have its own reason, such as its share of the places: then the next one tries.
        if (!made_.wait_until(lock, end, [&]() REQUIRES(mutex_) { return !making_.contains(key); }))
            return make_error(ErrorCode::kOverloaded,
                              "the same grammar is still being read for others; try again in a moment");
    }
    lock.unlock();
    // Also where no memory is left for it and what follows is not reached.
    struct Ended {
        GrammarCompiler& compiler;
        const std::string& key;
        ~Ended() {
            MutexLock ended(compiler.mutex_);
            compiler.making_.erase(key);
            compiler.made_.notify_all();
        }
    };
    const Ended ended{*this, key};
    Result<std::shared_ptr<Kept>> made = make(source, holder);
    if (made.ok()) {
        (*made)->key = key;
        MutexLock keeping(mutex_);
        keep(*made);
    }
    return made;
}

Result<std::unique_ptr<TokenConstraint>> GrammarCompiler::follow(Kept& kept, uint32_t vocab_size,
                                                                 const access::Holder& holder) {
    if (!kept.grammar) return kept.refusal;
    std::unique_ptr<model::Grammar> copy;
    const auto duplicate = [&]() -> Status {
        MutexLock lock(kept.mutex);
        TRY_ASSIGN(copy, kept.grammar->duplicate());
        return ok_status();
    };
    if (kept.n_bytes < GrammarMemory::kLargeBytes) {
        TRY(duplicate());
    } else {
        TRY_ASSIGN(Admission::Permit permit, admission_.enter(holder));
        TRY(run_aside(permit, duplicate));
    }
    auto constraint =
        std::make_unique<GrammarConstraint>(std::move(copy), vocab_size, kept.first_mask, memory_, holder);
    TRY(constraint->count());
    return std::unique_ptr<TokenConstraint>(std::move(constraint));
}

Result<std::unique_ptr<TokenConstraint>> GrammarCompiler::compile(const proto::Structure& structure,
                                                                  std::span<const TokenId> eos_ids, uint32_t vocab_size,
                                                                  const access::Holder& holder) {
    if (helpers_ == nullptr) {
        return named(
            make_error(ErrorCode::kSandboxUnavailable,
                       "the process that compiles what clients send could not be started; the server's log says why"),
            structure.param);
    }
    const Source source{grammar_kind(structure.kind), structure, {eos_ids.begin(), eos_ids.end()}, vocab_size};
    const std::string key = key_of(source.kind, structure.source, source.eos_ids, vocab_size);
    Result<std::shared_ptr<Kept>> kept = find_or_make(source, holder, key);
    if (!kept.ok()) return named(kept.error(), structure.param);
    Result<std::unique_ptr<TokenConstraint>> constraint = follow(**kept, vocab_size, holder);
    if (!constraint.ok()) return named(constraint.error(), structure.param);
    return constraint;
}

}  // namespace lorad::server::sandbox
