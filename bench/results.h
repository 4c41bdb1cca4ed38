// Where results go: a line for people on stdout, and a JSON line with all that is needed to compare it with another
// run.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "bench/bench_util.h"
#include "gpu/device.h"
#include "proto/json/json.h"

namespace lorad::bench {

std::string build_commit();

// One measured case: what it was, and samples in one unit.
class Row {
  public:
    explicit Row(std::string_view name) { writer_.begin_object().field("case", name); }
    template <typename T>
    Row& field(std::string_view name, const T& value) {
        writer_.field(name, value);
        return *this;
    }
    // unit, median, p10, p90, samples (their number) and values (at most 200 of them, evenly chosen).
    Row& samples(const char* unit, const std::vector<double>& values);

    const Summary& summary() const { return summary_; }

  private:
    friend class Results;
    JsonWriter writer_;
    Summary summary_;
};

// One thread. The file is written line by line, so that what was measured is there when a later case fails.
class Results {
  public:
    // Appends to the file; no file without a name.
    Results(const std::string& json_path, const gpu::DeviceCapabilities& device);
    ~Results();
    Results(const Results&) = delete;
    Results& operator=(const Results&) = delete;

    // Adds commit, date, device and driver.
    void add(Row&& row, const std::string& line);
    static void say(const std::string& line);  // for people alone

  private:
    std::FILE* file_ = nullptr;
    std::string device_, driver_;
};

}  // namespace lorad::bench
