#include "server/http/guard/guard_metrics.h"

#include "proto/base/format.h"
#include "server/metrics.h"

namespace lorad::server {

std::string guard_metrics_text(const GuardCounts& counts) {
    std::string out;
    write_metric_head(out, "lorad_http_connections", "gauge", "Open connections; those that a worker has.");
    out += format("lorad_http_connections{{state=\"open\"}} {}\nlorad_http_connections{{state=\"working\"}} {}\n",
                  counts.n_open, counts.n_working);
    write_metric_head(out, "lorad_http_connections_accepted_total", "counter", "Connections accepted.");
    out += format("lorad_http_connections_accepted_total {}\n", counts.n_accepted);
    write_metric_head(out, "lorad_http_connections_refused_total", "counter",
                      "Connections ended by the HTTP guard, by reason.");
    for (size_t i = 0; i < counts.ends.size(); ++i) {
        out += format("lorad_http_connections_refused_total{{reason=\"{}\"}} {}\n", guard_end_name(GuardEnd(i)),
                      counts.ends[i]);
    }
    return out;
}

}  // namespace lorad::server
