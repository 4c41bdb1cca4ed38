#include "tests/support/source_dir.h"

namespace lorad::testing {

std::filesystem::path source_dir() { return LORAD_SOURCE_DIR; }

}  // namespace lorad::testing
