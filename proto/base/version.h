// The version of this build: project() in CMakeLists.txt has it, CHANGELOG.md says what it brought. One file is
// compiled again when it changes.
#pragma once

#include <string>

namespace lorad {

const char* version();  // "0.2.0"

// The digest that the linker has written into this program: another one for every change of what is in it. Hex; empty
// if it wrote none.
std::string build_id();

}  // namespace lorad
