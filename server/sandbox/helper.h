// A process of this program that works on what clients sent, so that whatever a library does with it ends that process
// and one request: grammars are compiled there first, and adapters' chat templates are rendered there.
// docs/adr/0016-helper-processes.md.
//
// The daemon starts one (`lorad text-helper`), which never sees anything of a client: it holds the vocabulary, and
// forks a helper for each socket that it is sent. A helper says its process id, confines itself, and answers job after
// job until it is to retire or its socket ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/ids.h"
#include "server/sandbox/frame.h"

namespace lorad::server::sandbox {

// The limits of one job. For input that passed here, the daemon's own threads have at least twice as much.
struct JobLimits {
    uint64_t stack_bytes = uint64_t{32} << 20;  // half of kBigStackBytes
    uint64_t grammar_bytes = uint64_t{64} << 20;
    uint64_t template_bytes = uint64_t{192} << 20;  // includes the template, the conversation and the text
    uint32_t grammar_cpu_ms = 2000;
    uint32_t template_cpu_ms = 1000;
    uint32_t wall_ms = 20'000;  // on a busy machine
};

inline constexpr int kControlFd = 3;  // in the process that forks
inline constexpr char kHelperCommand[] = "text-helper";

// The first frame, from the daemon: what is the same for all jobs.
struct HelperSetup {
    std::string words;  // model::Tokenizer::words()
    uint32_t vocab_size = 0;
    std::vector<TokenId> eos_ids;  // prepared for; others take a job longer
    JobLimits limits;
    bool logs_json = false;
};
Frame setup_frame(const HelperSetup& setup);

enum JobKind : uint32_t {
    kSetup = 1,    // answered kDone
    kHello = 2,    // from a helper: its process id; 1 if calls are filtered
    kCompile = 3,  // kind, source, end tokens, size of the vocabulary: kDone with the bytes it took
    kRender = 4,   // special tokens, input, time, name and source of each template: kDone with the text
    kCheck = 5,    // template: kDone
    // Answers to jobs have one field more at the end: microseconds of a processor.
    kDone = 6,    // the result
    kFailed = 7,  // ErrorCode, message, parameter
};

std::string ids_field(const std::vector<TokenId>& ids);

// The process that forks: until the daemon closes the control socket. An exit status.
int run_helper();
// One helper, in a process of its own.
void serve_jobs(int socket, const HelperSetup& setup, uint64_t size_bytes);
// Before any helper is forked: the vocabulary's tree, which all of them then share.
bool prepare(const HelperSetup& setup);

// The number of jobs of one helper: it bounds leaks in libraries, and each grammar compiles in a fresh process.
inline constexpr uint32_t kTemplateJobsMax = 500;
inline constexpr uint32_t kGrammarJobsMax = 1;

}  // namespace lorad::server::sandbox
