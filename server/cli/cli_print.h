// Prints files that a package ships with the program, made from the program's own tables so that they are never stale.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"
#include "server/config.h"

namespace CLI {
class App;
}

namespace lorad::server {

inline constexpr const char* kPrintTopics[] = {"config", "lorad.1", "lorad.toml.5", "bash", "zsh", "fish"};

// A lorad.toml with every setting, its help and its default as comments; those of `values` ("model=/models/x") are set.
// kInvalidConfig for a setting that there is not.
Result<std::string> print_config(const std::vector<ConfigOption>& options, const std::vector<std::string>& values);
// Man pages, in man(7)'s roff.
std::string print_man_lorad(const CLI::App& app);
std::string print_man_config(const std::vector<ConfigOption>& options);
// Completion of commands, flags and values for one of bash, zsh and fish.
std::string print_completion(const CLI::App& app, const std::vector<ConfigOption>& options, std::string_view shell);

}  // namespace lorad::server
