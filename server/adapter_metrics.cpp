#include "server/adapter_metrics.h"

#include <algorithm>
#include <map>

#include "proto/base/format.h"
#include "server/metrics.h"

namespace lorad::server {
namespace {

struct Series {
    std::string_view name, type, help;
    double value;
};

// Requests by name, what is draining included; the busiest names first, no others.
struct Traffic {
    std::string_view name;
    uint64_t n_running = 0, n_waiting = 0;
};
std::vector<Traffic> traffic_of(const std::vector<adapters::AdapterInfo>& adapters) {
    std::map<std::string_view, Traffic> by_name;
    for (const adapters::AdapterInfo& adapter : adapters) {
        if (adapter.n_leases + adapter.n_waiting == 0) continue;
        Traffic& traffic = by_name[adapter.name];
        traffic.name = adapter.name;
        traffic.n_running += adapter.n_leases;
        traffic.n_waiting += adapter.n_waiting;
    }
    std::vector<Traffic> busy;
    for (const auto& [name, traffic] : by_name) busy.push_back(traffic);
    std::stable_sort(busy.begin(), busy.end(), [](const Traffic& a, const Traffic& b) {
        return a.n_running + a.n_waiting > b.n_running + b.n_waiting;
    });
    if (busy.size() > kNamedSeriesMax) busy.resize(kNamedSeriesMax);
    return busy;
}

}  // namespace

std::string names_waiting_for_place(const std::vector<adapters::AdapterInfo>& adapters) {
    std::string names;
    for (const Traffic& traffic : traffic_of(adapters)) {
        if (traffic.n_waiting == 0) continue;
        if (!names.empty()) names += ',';
        names += traffic.name;
    }
    return names;
}

std::string adapter_metrics_text(const std::vector<adapters::AdapterInfo>& adapters,
                                 const adapters::RegistryStats& stats, std::string_view model_name) {
    std::string out;
    // vLLM's names for residency; the nearest copy counts.
    write_metric_head(out, "vllm:lora_adapter_loaded", "gauge",
                      "Adapters in device memory (gpu) or host memory (cpu).");
    size_t n_gpu = 0, n_cpu = 0;
    for (const adapters::AdapterInfo& adapter : adapters) {
        if (adapter.draining || adapter.tier == adapters::Tier::kDisk) continue;
        bool on_gpu = adapter.tier == adapters::Tier::kGpu;
        if (n_gpu + n_cpu < kNamedSeriesMax) {
            out += format("vllm:lora_adapter_loaded{{adapter_name=\"{}\",level=\"{}\",pinned=\"{}\"}} 1\n",
                          escaped_label(adapter.name), on_gpu ? "gpu" : "cpu", adapter.pinned);
        }
        ++(on_gpu ? n_gpu : n_cpu);
    }
    const std::vector<Traffic> busy = traffic_of(adapters);
    write_metric_head(out, "lorad_adapter_requests_running", "gauge", "Requests that hold the adapter.");
    for (const Traffic& traffic : busy) {
        out += format("lorad_adapter_requests_running{{adapter_name=\"{}\"}} {}\n", escaped_label(traffic.name),
                      traffic.n_running);
    }
    write_metric_head(out, "lorad_adapter_requests_waiting", "gauge",
                      "Requests that wait until the adapter is on the device.");
    for (const Traffic& traffic : busy) {
        out += format("lorad_adapter_requests_waiting{{adapter_name=\"{}\"}} {}\n", escaped_label(traffic.name),
                      traffic.n_waiting);
    }
    const Series series[] = {
        {"vllm:num_gpu_loaded_lora_adapters", "gauge", "Names whose adapter is on the device.",
         static_cast<double>(n_gpu)},
        {"vllm:num_cpu_loaded_lora_adapters", "gauge", "Names whose adapter is in host memory only.",
         static_cast<double>(n_cpu)},
        {"lorad_adapters_registered", "gauge", "Names.", static_cast<double>(stats.n_names)},
        {"lorad_adapter_generations", "gauge", "Different contents.", static_cast<double>(stats.n_generations)},
        {"lorad_adapter_leases", "gauge", "Requests that hold adapters.", static_cast<double>(stats.n_leases)},
        {"lorad_adapter_waiting", "gauge", "Requests that wait for a place on the device.",
         static_cast<double>(stats.n_waiting)},
        {"lorad_adapter_device_bytes", "gauge", "Device memory of all adapters.",
         static_cast<double>(stats.device_bytes)},
        {"lorad_adapter_ram_bytes", "gauge", "Host memory of packed adapters.", static_cast<double>(stats.ram_bytes)},
        {"lorad_adapter_stored_bytes", "gauge", "Files in the store.", static_cast<double>(stats.stored_bytes)},
        {"lorad_adapter_loads_total", "counter", "Adapters brought to the device.", static_cast<double>(stats.n_loads)},
        {"lorad_adapter_loads_from_ram_total", "counter", "Of those, from host memory.",
         static_cast<double>(stats.n_loads_from_ram)},
        {"lorad_adapter_load_failures_total", "counter", "Adapters that could not be brought there.",
         static_cast<double>(stats.n_load_failures)},
        {"lorad_adapter_load_seconds_total", "counter", "Time that this took.", stats.load_s},
        {"lorad_adapter_loaded_bytes_total", "counter", "Bytes brought to the device.",
         static_cast<double>(stats.bytes_loaded)},
        {"lorad_adapter_evictions_total", "counter", "Adapters that made room for others.",
         static_cast<double>(stats.n_evictions)},
        {"lorad_adapter_evicted_bytes_total", "counter", "Bytes of those.", static_cast<double>(stats.bytes_evicted)},
        {"lorad_adapter_waits_total", "counter", "Requests that had to wait for a place.",
         static_cast<double>(stats.n_waits)},
        {"lorad_adapter_wait_timeouts_total", "counter", "Of those, answered 429.",
         static_cast<double>(stats.n_wait_timeouts)},
        {"lorad_adapter_wait_seconds_total", "counter", "Time that they waited.", stats.wait_s},
    };
    std::string model = escaped_label(model_name);
    for (const Series& one : series) {
        write_metric_head(out, one.name, one.type, one.help);
        out += format("{}{{model_name=\"{}\"}} {}\n", one.name, model, one.value);
    }
    return out;
}

}  // namespace lorad::server
