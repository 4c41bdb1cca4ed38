// The helpers' side.
#include "server/sandbox/helper.h"

#include <csignal>
#include <cstdlib>
#include <cstring>

#include <sys/prctl.h>
#include <unistd.h>

#include "model/output/logits.h"
#include "model/text/text.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "server/sandbox/confine.h"
#include "server/sandbox/socket_passing.h"

namespace lorad::server::sandbox {
namespace {

constexpr size_t kRenderFields = 3;  // in front of the templates
static_assert(kRenderFields + 2 * (model::kNamedTemplatesMax + 1) <= kFrameFieldsMax,
              "a name and a source of each, and of the default one");

std::vector<TokenId> field_ids(const std::string& field) {
    std::vector<TokenId> ids(field.size() / sizeof(TokenId));
    std::memcpy(ids.data(), field.data(), ids.size() * sizeof(TokenId));
    return ids;
}

// Everything that jobs share; set up once, before the first fork.
std::shared_ptr<const model::Words>& words() {
    static std::shared_ptr<const model::Words> all;
    return all;
}

Frame failed(const Error& error) {
    return {kFailed, {number_field(static_cast<uint64_t>(error.code)), error.message, error.param}};
}

// Also the first mask, since that is computed in any case.
Frame compile(const Frame& job) {
    const auto vocab_size = static_cast<uint32_t>(field_number(job.fields[3]));
    const std::vector<TokenId> eos_ids = field_ids(job.fields[2]);
    auto grammar = model::Grammar::create(*words(), model::GrammarKind(field_number(job.fields[0])), job.fields[1],
                                          eos_ids, vocab_size);
    if (!grammar.ok()) return failed(grammar.error());
    std::vector<uint32_t> mask(model::mask_words(vocab_size), 0);
    const Status begun = (*grammar)->mask(mask);
    if (!begun.ok()) return failed(begun.error());
    return {kDone, {number_field((*grammar)->n_bytes_compiling())}};
}

Frame render(const Frame& job) {
    std::vector<model::NamedTemplate> templates;
    for (size_t i = kRenderFields; i < job.fields.size(); i += 2)
        templates.push_back({job.fields[i], job.fields[i + 1]});
    auto chat_template = model::ChatTemplate::from_sources(templates, job.fields[0]);
    if (!chat_template.ok()) return failed(chat_template.error());
    Result<std::string> text =
        (*chat_template)->render(job.fields[1], static_cast<int64_t>(field_number(job.fields[2])));
    if (!text.ok()) return failed(text.error());
    return {kDone, {std::move(*text)}};
}

Frame check(const Frame& job) {
    const Status status = model::ChatTemplate::check_source(job.fields[0]);
    return status.ok() ? Frame{kDone, {}} : failed(status.error());
}

HelperSetup setup_of(const Frame& frame) {
    HelperSetup setup;
    setup.words = frame.fields[0];
    setup.vocab_size = static_cast<uint32_t>(field_number(frame.fields[1]));
    setup.eos_ids = field_ids(frame.fields[2]);
    setup.limits.stack_bytes = field_number(frame.fields[3]);
    setup.limits.grammar_bytes = field_number(frame.fields[4]);
    setup.limits.template_bytes = field_number(frame.fields[5]);
    setup.limits.grammar_cpu_ms = static_cast<uint32_t>(field_number(frame.fields[6]));
    setup.limits.template_cpu_ms = static_cast<uint32_t>(field_number(frame.fields[7]));
    setup.limits.wall_ms = static_cast<uint32_t>(field_number(frame.fields[8]));
    setup.logs_json = field_number(frame.fields[9]) != 0;
    return setup;
}

}  // namespace

std::string ids_field(const std::vector<TokenId>& ids) {
    return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(TokenId)};
}

Frame setup_frame(const HelperSetup& setup) {
    const JobLimits& limits = setup.limits;
    return {
        kSetup,
        {setup.words, number_field(setup.vocab_size), ids_field(setup.eos_ids), number_field(limits.stack_bytes),
         number_field(limits.grammar_bytes), number_field(limits.template_bytes), number_field(limits.grammar_cpu_ms),
         number_field(limits.template_cpu_ms), number_field(limits.wall_ms), number_field(setup.logs_json ? 1 : 0)}};
}

bool prepare(const HelperSetup& setup) {
    auto read = model::Words::from_list(setup.words);
    if (!read.ok()) return false;
    words() = *read;
    if (setup.eos_ids.empty()) return true;
    // Any grammar brings the vocabulary's tree about.
    auto grammar = model::Grammar::create(*words(), model::GrammarKind::kRegex, "a", setup.eos_ids, setup.vocab_size);
    std::vector<uint32_t> mask(model::mask_words(setup.vocab_size), 0);
    return grammar.ok() && (*grammar)->mask(mask).ok();
}

void serve_jobs(int socket, const HelperSetup& setup, uint64_t size_bytes) {
    model::give_up_text_reserve();
    const bool is_filtered = filter_calls();
    if (write_frame(socket,
                    {kHello, {number_field(static_cast<uint64_t>(getpid())), number_field(is_filtered ? 1 : 0)}}) !=
        Transfer::kDone)
        return;
    const JobLimits& limits = setup.limits;
    uint32_t n_templates = 0, n_grammars = 0;
    Frame job;
    while (n_templates < kTemplateJobsMax && n_grammars < kGrammarJobsMax &&
           read_frame(socket, job) == Transfer::kDone) {
        const bool is_grammar = job.kind == kCompile && job.fields.size() == 4;
        const bool is_render =
            job.kind == kRender && job.fields.size() > kRenderFields && (job.fields.size() - kRenderFields) % 2 == 0;
        if (!is_grammar && !is_render && !(job.kind == kCheck && job.fields.size() == 1)) return;
        ++(is_grammar ? n_grammars : n_templates);
        if (!limit_memory(size_bytes, limits.stack_bytes + (is_grammar ? limits.grammar_bytes : limits.template_bytes)))
            return;
        if (!limit_time(is_grammar ? limits.grammar_cpu_ms : limits.template_cpu_ms, limits.wall_ms)) return;
        const double begin_s = thread_seconds();
        Frame answer = is_grammar ? compile(job) : is_render ? render(job) : check(job);
        answer.fields.push_back(number_field(static_cast<uint64_t>((thread_seconds() - begin_s) * 1e6)));
        (void)limit_time(0, 0);
        if (write_frame(socket, answer) != Transfer::kDone) return;
    }
}

int run_helper() {
    // A terminal's Ctrl-C is for the daemon, which goes on with what is under way.
    for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(ignored, SIG_IGN);
    std::signal(SIGCHLD, SIG_IGN);  // helpers leave nothing behind
    limit_process();
    Frame frame;
    if (read_frame(kControlFd, frame) != Transfer::kDone || frame.kind != kSetup || frame.fields.size() != 10) {
        log_error("{} is started by lorad serve, not by hand", kHelperCommand);
        return 1;
    }
    HelperSetup setup = setup_of(frame);
    frame = {};
    set_log_level(LogLevel::kWarn);
    if (setup.logs_json) set_log_format(LogFormat::kJson);
    limit_stack(setup.limits.stack_bytes);
    if (!prepare(setup)) return 1;
    setup.words = {};
    const uint64_t size_bytes = process_bytes();
    if (write_frame(kControlFd, {kDone, {}}) != Transfer::kDone) return 0;
    const pid_t self = getpid();
    for (int socket = receive_socket(kControlFd); socket >= 0; socket = receive_socket(kControlFd)) {
        const pid_t child = fork();
        if (child == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
            if (getppid() == self) {
                close(kControlFd);
                serve_jobs(socket, setup, size_bytes);
            }
            _exit(0);
        }
        // Without a helper its socket ends, which the daemon sees.
        close(socket);
    }
    return 0;
}

}  // namespace lorad::server::sandbox
