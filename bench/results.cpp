#include "bench/results.h"

#include <ctime>

#include "bench/build_commit.h"
#include "proto/base/format.h"
#include "proto/base/rounding.h"

namespace lorad::bench {
namespace {

constexpr size_t kValuesMax = 200;

std::string now_utc() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char text[32];
    std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

}  // namespace

std::string build_commit() { return kBuildCommit; }

Row& Row::samples(const char* unit, const std::vector<double>& values) {
    summary_ = summarize(values);
    writer_.field("unit", unit).field("median", summary_.median).field("p10", summary_.p10).field("p90", summary_.p90);
    writer_.field("samples", values.size()).key("values").begin_array();
    const size_t step = ceil_div(values.size(), kValuesMax);
    for (size_t i = 0; i < values.size(); i += step) writer_.raw(lorad::format("{:.5g}", values[i]));
    writer_.end_array();
    return *this;
}

Results::Results(const std::string& json_path, const gpu::DeviceCapabilities& device)
    : device_(device.name), driver_(device.driver) {
    if (json_path.empty()) return;
    file_ = std::fopen(json_path.c_str(), "a");
    if (file_ == nullptr) {
        std::fprintf(stderr, "lorad-bench stopped: --json %s: cannot be opened for writing\n", json_path.c_str());
        std::exit(1);
    }
}

Results::~Results() {
    if (file_ != nullptr) std::fclose(file_);
}

void Results::add(Row&& row, const std::string& line) {
    if (!line.empty()) say(line);
    if (file_ == nullptr) return;
    row.writer_.field("engine", "lorad").field("git", kBuildCommit).field("date", now_utc());
    row.writer_.field("device", device_).field("driver", driver_).end_object();
    std::fprintf(file_, "%s\n", row.writer_.take().c_str());
    std::fflush(file_);
}

void Results::say(const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

}  // namespace lorad::bench
