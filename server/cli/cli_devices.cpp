#include <algorithm>
#include <cstdio>

#include "gpu/facts/start_record.h"
#include "gpu/kernels/kernel_ladder.h"
#include "gpu/kernels/tuning/measured_products.h"
#include "proto/base/format.h"
#include "proto/json/json.h"
#include "server/cli/cli.h"

namespace lorad::server {
namespace {

double gib(uint64_t bytes) { return static_cast<double>(bytes) / (1u << 30); }
const char* yes_no(bool flag) { return flag ? "yes" : "no"; }

// Each part of a step with the best way that the device has, and what it lacks for better ones. Parts that are alike
// are one line.
std::string rungs_text(const gpu::DeviceCapabilities& capabilities) {
    struct Part {
        std::string name, best = "portable kernels", above;
    };
    std::vector<Part> parts;
    for (const gpu::Rung& rung : gpu::rungs_of(capabilities, gpu::KernelPath::kAuto)) {
        if (parts.empty() || std::ranges::find(parts, rung.part, &Part::name) == parts.end())
            parts.push_back({.name = rung.part, .above = {}});
        Part& part = *std::ranges::find(parts, rung.part, &Part::name);
        if (rung.missing.empty())
            part.best = rung.name;
        else
            part.above += format("       not {} ({}): needs {}\n", rung.name, rung.gain, fmt::join(rung.missing, "; "));
    }
    std::string out;
    for (size_t i = 0; i < parts.size(); ++i) {
        std::string names = parts[i].name;
        while (i + 1 < parts.size() && parts[i + 1].best == parts[i].best && parts[i + 1].above == parts[i].above)
            names += ", " + parts[++i].name;
        out += format("     kernels      {}: {}\n{}", names, parts[i].best, parts[i].above);
    }
    return out;
}

// What earlier starts have measured there, of each model's products.
std::vector<gpu::MeasuredProducts> measured_on(const gpu::DeviceReport& report) {
    std::vector<gpu::MeasuredProducts> all;
    if (report.record == nullptr) return all;
    for (const std::string& text : report.record->find_all(gpu::kMeasuredKey)) {
        if (std::optional<gpu::MeasuredProducts> measured = gpu::MeasuredProducts::parse(text))
            all.push_back(std::move(*measured));
    }
    return all;
}

std::string measured_text(const gpu::DeviceReport& report) {
    std::string out;
    for (const gpu::MeasuredProducts& measured : measured_on(report)) {
        for (const gpu::MeasuredProduct& product : measured.all()) {
            const std::string better = gpu::describe_better(product);
            out += format("     measured     {}: {}\n", gpu::describe(product),
                          better.empty() ? "nothing faster than the table's" : better);
        }
    }
    return out;
}

std::string table_entry(size_t index, const gpu::DeviceReport& report) {
    const gpu::DeviceCapabilities& c = report.capabilities;
    std::string out = format("{} {}: {}{}\n", report.chosen ? "*" : " ", index, c.name, c.is_cpu ? " (CPU)" : "");
    out += format("     verdict      {}: {}\n",
                  report.chosen   ? "chosen"
                  : report.usable ? "usable"
                                  : "rejected",
                  report.reason);
    out += format("     driver       {}, Vulkan {}\n", c.driver, c.api_version);
    out += format("     memory       {:.1f} GiB, {:.1f} free, at most {:.1f} in one allocation\n",
                  gib(c.device_local_bytes), gib(c.device_local_free_bytes), gib(c.max_allocation_bytes));
    out += format("     subgroups    {} (from {} to {}), {} KiB shared memory, {} bytes of push constants\n",
                  c.subgroup_size, c.subgroup_size_min, c.subgroup_size_max, c.shared_memory_bytes >> 10,
                  c.max_push_constant_bytes);
    out += format("     matrices     f16 arithmetic {}, cooperative matrix f16 {}, bf16 {}, NV matrix2 {} "
                  "(bf16 {}, functions {})\n",
                  yes_no(c.float16), yes_no(c.coopmat_f16), yes_no(c.bfloat16_coopmat), yes_no(c.coopmat2),
                  yes_no(c.coopmat2_bfloat16), yes_no(c.matrix_functions));
    out += format("     copies       {}\n", c.unified_memory       ? "none: the host writes the device's memory"
                                            : c.has_transfer_queue ? "own transfer queue"
                                                                   : "on the compute queue");
    return out + rungs_text(c) + measured_text(report);
}

void write_json(JsonWriter& writer, size_t index, const gpu::DeviceReport& report) {
    const gpu::DeviceCapabilities& c = report.capabilities;
    writer.begin_object()
        .field("index", static_cast<uint64_t>(index))
        .field("name", c.name)
        .field("driver", c.driver)
        .field("api_version", c.api_version)
        .field("is_cpu", c.is_cpu)
        .field("usable", report.usable)
        .field("chosen", report.chosen)
        .field("reason", report.reason)
        .field("device_local_bytes", c.device_local_bytes)
        .field("device_local_free_bytes", c.device_local_free_bytes)
        .field("max_allocation_bytes", c.max_allocation_bytes)
        .field("subgroup_size", c.subgroup_size)
        .field("subgroup_size_min", c.subgroup_size_min)
        .field("subgroup_size_max", c.subgroup_size_max)
        .field("shared_memory_bytes", c.shared_memory_bytes)
        .field("max_push_constant_bytes", c.max_push_constant_bytes)
        .field("compute_units", c.n_compute_units_hint)
        .field("transfer_queue", c.has_transfer_queue)
        .field("unified_memory", c.unified_memory)
        .field("float16", c.float16)
        .field("coopmat_f16", c.coopmat_f16)
        .field("bfloat16_coopmat", c.bfloat16_coopmat)
        .field("coopmat2", c.coopmat2)
        .field("coopmat2_bfloat16", c.coopmat2_bfloat16)
        .field("matrix_functions", c.matrix_functions)
        .key("rungs")
        .begin_array();
    for (const gpu::Rung& rung : gpu::rungs_of(c, gpu::KernelPath::kAuto)) {
        writer.begin_object()
            .field("part", rung.part)
            .field("name", rung.name)
            .field("gain", rung.gain)
            .field("available", rung.missing.empty())
            .key("missing")
            .begin_array();
        for (const std::string& what : rung.missing) writer.value(what);
        writer.end_array().end_object();
    }
    writer.end_array().key("measured").begin_array();
    for (const gpu::MeasuredProducts& measured : measured_on(report)) {
        for (const gpu::MeasuredProduct& product : measured.all()) {
            const gpu::MeasuredForm& table = product.forms.front();
            const gpu::MeasuredForm* const better = product.better();
            writer.begin_object()
                .field("product", gpu::describe(product))
                .field("n", product.n)
                .field("k", product.k)
                .field("rows", product.rows)
                .field("form", gpu::describe((better != nullptr ? *better : table).form))
                .field("us", (better != nullptr ? *better : table).us)
                .field("table_form", gpu::describe(table.form))
                .field("table_us", table.us)
                .end_object();
        }
    }
    writer.end_array().end_object();
}

}  // namespace

Status run_devices(const DeviceArguments& device, bool as_json) {
    TRY_ASSIGN(gpu::DeviceOptions options, device_options(device));
    options.lists_records = true;
    TRY_ASSIGN(std::vector<gpu::DeviceReport> reports, gpu::list_devices(options));
    if (as_json) {
        JsonWriter writer;
        writer.begin_array();
        for (size_t i = 0; i < reports.size(); ++i) write_json(writer, i, reports[i]);
        writer.end_array();
        std::printf("%s\n", writer.take().c_str());
        return ok_status();
    }
    for (size_t i = 0; i < reports.size(); ++i) std::fputs(table_entry(i, reports[i]).c_str(), stdout);
    if (reports.empty())
        std::puts("no Vulkan device; install a driver, or mesa-vulkan-drivers for the software device");
    return ok_status();
}

}  // namespace lorad::server
