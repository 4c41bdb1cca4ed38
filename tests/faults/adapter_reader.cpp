// Reads adapter files from standard input as the server reads uploads, one case after another, each on a thread with a
// small stack; prints what became of each as a line of JSON. tests/scorecard/t01, t02 and t03 generate the cases and
// judge the answers. There is no device in it, so that it can be built with sanitizers by itself (adapter_reader_asan).
//
//   adapter_reader [--stack-kib 256] [--rss]
//
// A case: u32 n_files, then of each u32 n_name_bytes, name, u64 n_bytes, bytes (little endian). One file called
// "header": a safetensors file by itself, whose tensors are listed. Else an adapter for a small base (hidden 8, q 8, k
// and v 4, ffn 16, 2 layers, vocabulary 16).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include <pthread.h>

#include "proto/error.h"
#include "proto/json/json.h"
#include "tests/fuzz/adapter_input.h"

namespace lorad {
namespace {

bool read_exactly(void* to, size_t n) { return std::fread(to, 1, n, stdin) == n; }

struct File {
    std::string name, bytes;
};

bool read_case(std::vector<File>& files) {
    uint32_t n_files = 0;
    if (!read_exactly(&n_files, sizeof(n_files))) return false;
    files.assign(n_files, {});
    for (File& file : files) {
        uint32_t n_name = 0;
        uint64_t n_bytes = 0;
        CHECK(read_exactly(&n_name, sizeof(n_name)));
        file.name.resize(n_name);
        CHECK(read_exactly(file.name.data(), n_name) && read_exactly(&n_bytes, sizeof(n_bytes)));
        file.bytes.resize(n_bytes);
        CHECK(read_exactly(file.bytes.data(), n_bytes));
    }
    return true;
}

// Of the process, in KiB; 0 where the system does not say.
uint64_t peak_rss_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10);
    }
    return 0;
}
void forget_peak_rss() { std::ofstream("/proc/self/clear_refs") << "5"; }

void write_error(JsonWriter& writer, const Error& error) {
    const proto::ErrorInfo& info = proto::error_info(error.code);
    writer.field("code", info.wire_code).field("status", info.http_status).field("message", error.message);
}

// What a parser of others' says about the same bytes is compared with this.
void read_header(const std::string& bytes, JsonWriter& writer) {
    const auto tensors = model::parse_safetensors(std::as_bytes(std::span(bytes)), ErrorCode::kAdapterInvalid);
    if (!tensors.ok()) return write_error(writer, adapters::one_line(tensors.error()));
    writer.key("tensors").begin_array();
    for (const model::Tensor& tensor : *tensors) {
        writer.begin_object()
            .field("name", tensor.name)
            .field("dtype", model::name_of(tensor.dtype))
            .key("shape")
            .begin_array();
        for (const uint64_t size : tensor.shape) writer.value(size);
        writer.end_array().field(
            "begin", static_cast<uint64_t>(tensor.data.data() - reinterpret_cast<const std::byte*>(bytes.data())));
        writer.field("bytes", static_cast<uint64_t>(tensor.data.size())).end_object();
    }
    writer.end_array();
}

double ms_since(std::chrono::steady_clock::time_point began) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
}

// As a registration does, then as a validation does; the longer one counts.
double read_adapter(const std::vector<File>& files, const adapters::BaseModel& base, JsonWriter& writer) {
    const auto began = std::chrono::steady_clock::now();
    std::vector<adapters::SourceFile> sources;
    for (const File& file : files) sources.push_back(fuzz::file(file.name, file.bytes));
    auto source = adapters::make_adapter_source(std::move(sources));
    if (!source.ok()) {
        write_error(writer, source.error());
        return ms_since(began);
    }
    adapters::Inspection inspection = adapters::compare_adapter(*std::move(source), base);
    const std::optional<Error> error = inspection.error;
    if (!error) CHECK(adapters::pack(*inspection.adapter).ok());
    const double registration_ms = ms_since(began);
    const auto again = std::chrono::steady_clock::now();
    const adapters::AdapterReport report = adapters::inspect_adapter(std::move(inspection.adapter->source), base);
    CHECK(report.error.has_value() == error.has_value());
    const std::string text = adapters::report_json(report);
    const double validation_ms = ms_since(again);
    CHECK(parse_json(text).ok());
    if (error) write_error(writer, *error);
    writer.key("report").raw(text);
    return std::max(registration_ms, validation_ms);
}

struct Task {
    const std::vector<File>& files;
    const adapters::BaseModel& base;
    bool wants_rss;
    std::string line;
};

void* run_task(void* argument) {
    Task& task = *static_cast<Task*>(argument);
    JsonWriter writer;
    writer.begin_object();
    if (task.wants_rss) forget_peak_rss();
    const uint64_t rss_before = task.wants_rss ? peak_rss_kib() : 0;
    const auto began = std::chrono::steady_clock::now();
    double ms = 0;
    if (task.files.size() == 1 && task.files[0].name == "header") {
        read_header(task.files[0].bytes, writer);
        ms = ms_since(began);
    } else {
        ms = read_adapter(task.files, task.base, writer);
    }
    writer.field("ms", ms);
    if (task.wants_rss) writer.field("rss_kib", peak_rss_kib() - rss_before);
    task.line = writer.end_object().take();
    return nullptr;
}

}  // namespace
}  // namespace lorad

int main(int argc, char** argv) {
    using namespace lorad;
    size_t stack_kib = 256;
    bool wants_rss = false;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--rss") == 0) {
            wants_rss = true;
        } else if (std::strcmp(argv[i], "--stack-kib") == 0 && i + 1 < argc) {
            stack_kib = std::strtoul(argv[++i], nullptr, 10);
        } else {
            std::fprintf(stderr, "adapter_reader: unknown argument %s\n", argv[i]);
            return 2;
        }
    }
    const adapters::BaseModel base(fuzz::small_config());
    for (std::vector<File> files; read_case(files);) {
        Task task{files, base, wants_rss, {}};
        pthread_attr_t attributes;
        pthread_t thread{};
        pthread_attr_init(&attributes);
        CHECK(pthread_attr_setstacksize(&attributes, stack_kib << 10) == 0);
        CHECK(pthread_create(&thread, &attributes, run_task, &task) == 0);
        pthread_join(thread, nullptr);
        pthread_attr_destroy(&attributes);
        std::printf("%s\n", task.line.c_str());
        std::fflush(stdout);
    }
    return 0;
}
