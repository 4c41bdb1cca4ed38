// The version of this build: project() in CMakeLists.txt has it, CHANGELOG.md says what it brought. One file is
// compiled again when it changes.
#pragma once

namespace lorad {

const char* version();  // "0.2.0"

}  // namespace lorad
