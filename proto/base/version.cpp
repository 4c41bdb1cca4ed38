#include "proto/base/version.h"

namespace lorad {

const char* version() { return LORAD_VERSION; }

}  // namespace lorad
