// Reading of the text goldens: tests/goldens/text.json and JSON lines.
#pragma once

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/text/text.h"
#include "tests/support/source_dir.h"

namespace lorad::model {

inline std::string golden_path(const std::string& relative) {
    return (lorad::testing::source_dir() / "tests/goldens" / relative).string();
}

inline std::string read_golden(const std::string& relative) {
    std::ifstream file(golden_path(relative), std::ios::binary);
    EXPECT_TRUE(file.good()) << golden_path(relative);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline nlohmann::ordered_json golden_index() { return nlohmann::ordered_json::parse(read_golden("text.json")); }

inline std::vector<nlohmann::ordered_json> golden_lines(const std::string& relative) {
    std::ifstream file(golden_path(relative));
    EXPECT_TRUE(file.good()) << golden_path(relative);
    std::vector<nlohmann::ordered_json> rows;
    for (std::string line; std::getline(file, line);) {
        if (!line.empty()) rows.push_back(nlohmann::ordered_json::parse(line));
    }
    EXPECT_FALSE(rows.empty()) << relative;
    return rows;
}

inline std::vector<std::string> golden_tokenizer_names() {
    std::vector<std::string> names;
    const auto index = golden_index();
    for (const auto& entry : index["tokenizers"]) names.push_back(entry["name"]);
    return names;
}

inline std::shared_ptr<const Tokenizer> golden_tokenizer(const std::string& name) {
    auto tokenizer = Tokenizer::load(golden_path("tokenizers/" + name));
    EXPECT_TRUE(tokenizer.ok()) << (tokenizer.ok() ? "" : tokenizer.error().message);
    return tokenizer.ok() ? tokenizer.value() : nullptr;
}

}  // namespace lorad::model
