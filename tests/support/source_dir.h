#pragma once

#include <filesystem>

namespace lorad::testing {

// The folder of this source tree, absolute, so that tests read its files from wherever they are run. One source file
// knows it: as a definition of all of them, or by __FILE__, no compiler cache would serve two checkouts.
std::filesystem::path source_dir();

}  // namespace lorad::testing
