// What an assembler would say first of a program in text.
#pragma once

#include <cstdint>
#include <map>
#include <regex>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace lorad::gpu::testing {

// Each label stands once, each of the targets, at least so many, is there, and no place was left unfilled. Returns the
// bytes of shared memory.
inline uint32_t check_program_text(const std::string& text, size_t targets_min) {
    std::map<std::string, int> labels;
    std::set<std::string> targets;
    const std::regex label("(^|\\n)([a-z_0-9]+):"), target("bra ([a-z_0-9]+);"),
        shared("\\.shared [^\\[]*\\[(\\d+)\\]");
    for (std::sregex_iterator i(text.begin(), text.end(), label), end; i != end; ++i) ++labels[(*i)[2]];
    for (std::sregex_iterator i(text.begin(), text.end(), target), end; i != end; ++i) targets.insert((*i)[1]);
    EXPECT_GE(targets.size(), targets_min);
    for (const auto& [name, n] : labels) EXPECT_EQ(n, 1) << name;
    for (const std::string& name : targets) EXPECT_TRUE(labels.contains(name)) << name;
    EXPECT_EQ(text.find("{}"), std::string::npos);
    uint32_t bytes = 0;
    for (std::sregex_iterator i(text.begin(), text.end(), shared), end; i != end; ++i)
        bytes += static_cast<uint32_t>(std::stoul((*i)[1]));
    return bytes;
}

}  // namespace lorad::gpu::testing
