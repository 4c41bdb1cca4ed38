#include <cstdio>

#include "adapters/report.h"
#include "server/cli.h"

namespace lorad::server {

Result<bool> run_check(const CheckArguments& arguments) {
    TRY_ASSIGN(const adapters::BaseModel base, adapters::BaseModel::load(arguments.model));
    const adapters::AdapterReport report = adapters::inspect_adapter(arguments.adapter, base);
    if (arguments.as_json) {
        std::printf("%s\n", adapters::report_json(report).c_str());
    } else {
        std::fputs(adapters::report_text(report).c_str(), stdout);
    }
    return report.fits();
}

}  // namespace lorad::server
