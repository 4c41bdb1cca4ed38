// The table of settings: a row gives a field of Config its name, what may be in it, and what help says of it.
#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "server/config.h"

namespace lorad::server {

struct Setting {
    const char* name;  // the flag's name: max-num-seqs
    std::variant<std::string Config::*, std::vector<std::string> Config::*, bool Config::*, uint32_t Config::*,
                 double Config::*>
        field;
    const char* value_name;  // for help; empty for switches
    const char* help;
    struct Range {
        double min = 0, max = 0;
    };
    Range range = {};                                 // for numbers
    std::vector<std::string> (*choices)() = nullptr;  // valid texts; null: any text
};

// In the order in which help lists them.
std::span<const Setting> settings();

}  // namespace lorad::server
