// The tokenizer against the reference's ids and texts, and against damaged files.
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/model/text_goldens.h"

namespace lorad::model::text_tokenizer_test {
namespace {

using Json = nlohmann::ordered_json;

class TokenizerGolden : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, TokenizerGolden, ::testing::ValuesIn(golden_tokenizer_names()),
                         [](const auto& param) { return param.param; });

void expect_decodes(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, const Json& row, const char* plain,
                    const char* skipping) {
    EXPECT_EQ(tokenizer.decode(ids, false).value(), row[plain].get<std::string>()) << row.dump();
    EXPECT_EQ(tokenizer.decode(ids, true).value(), row[skipping].get<std::string>()) << row.dump();
}

TEST_P(TokenizerGolden, EncodesAndDecodesEveryStringAsTheReference) {
    const auto tokenizer = golden_tokenizer(GetParam());
    for (const Json& row : golden_lines("expected/tokenizers/" + GetParam() + ".jsonl")) {
        const std::string text = row["text"];
        const auto ids = row["ids"].get<std::vector<TokenId>>();
        const auto with_special = row["ids_with_special"].get<std::vector<TokenId>>();
        EXPECT_EQ(tokenizer->encode(text, false).value(), ids) << row.dump();
        EXPECT_EQ(tokenizer->encode(text, true).value(), with_special) << row.dump();
        expect_decodes(*tokenizer, ids, row, "decoded", "decoded_skip_special");
        if (row.contains("decoded_with_special")) {
            expect_decodes(*tokenizer, with_special, row, "decoded_with_special", "decoded_with_special_skip_special");
        }
    }
}

TEST_P(TokenizerGolden, DecodesArbitraryIdsAsTheReference) {
    const auto tokenizer = golden_tokenizer(GetParam());
    for (const Json& row : golden_lines("expected/tokenizers/" + GetParam() + "-decode.jsonl")) {
        expect_decodes(*tokenizer, row["ids"].get<std::vector<TokenId>>(), row, "decoded", "decoded_skip_special");
    }
}

TEST_P(TokenizerGolden, KnowsItsVocabulary) {
    const auto tokenizer = golden_tokenizer(GetParam());
    const Json index = golden_index();
    for (const auto& entry : index["tokenizers"]) {
        if (entry["name"] == GetParam()) {
            EXPECT_EQ(tokenizer->vocab_size(), entry["vocab_size"].get<uint32_t>());
        }
    }
    const TokenId size = static_cast<TokenId>(tokenizer->vocab_size());
    for (TokenId id = 0; id < size; ++id) {
        ASSERT_TRUE(tokenizer->exists(id)) << id;
        EXPECT_EQ(tokenizer->token_id(tokenizer->token_text(id).value()), id);
    }
    for (const TokenId none : {size, size + 1000, TokenId{-1}}) {
        EXPECT_FALSE(tokenizer->exists(none));
        EXPECT_FALSE(tokenizer->token_text(none).has_value());
        EXPECT_TRUE(tokenizer->token_bytes(none).empty());
    }
    EXPECT_FALSE(tokenizer->token_id("no such token at all").has_value());
}

TEST(Tokenizer, IsSharedByThreads) {
    const auto tokenizer = golden_tokenizer("qwen2");
    const auto rows = golden_lines("expected/tokenizers/qwen2.jsonl");
    std::vector<size_t> wrong(4, 0);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < wrong.size(); ++t) {
        threads.emplace_back([&, t] {
            for (const Json& row : rows) {
                const auto ids = tokenizer->encode(row["text"].get<std::string>(), false);
                if (!ids.ok() || ids.value() != row["ids"].get<std::vector<TokenId>>()) ++wrong[t];
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<size_t>(4, 0));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
    const auto tokenizer = golden_tokenizer("gpt2");
    const auto ids = tokenizer->encode("abc\xff", false);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.error().code, ErrorCode::kInvalidRequest);
}

TEST(Tokenizer, NamesTheFileThatIsMissing) {
    const auto tokenizer = Tokenizer::load(::testing::TempDir() + "no-such-folder");
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_EQ(tokenizer.error().code, ErrorCode::kInvalidModel);
    EXPECT_NE(tokenizer.error().message.find("no-such-folder/tokenizer.json"), std::string::npos);
}

void expect_refused(std::string_view json) {
    const auto tokenizer = Tokenizer::from_json(json, "damaged.json");
    ASSERT_FALSE(tokenizer.ok()) << json.substr(0, 200);
    EXPECT_EQ(tokenizer.error().code, ErrorCode::kInvalidModel);
    EXPECT_NE(tokenizer.error().message.find("damaged.json"), std::string::npos);
}

TEST(Tokenizer, RefusesWhatIsNotATokenizer) {
    for (const char* json :
         {"", "{}", "[]", "null", "42", "\"text\"", "{\"model\":{}}", "{\"model\":{\"type\":\"BPE\"}}",
          "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":{}}}"}) {
        expect_refused(json);
    }
    expect_refused(std::string(100000, '['));
    expect_refused("\xff\xfe not text");
}

TEST(Tokenizer, RefusesAnIdBeyondAnyVocabulary) {
    Json json = Json::parse(read_golden("tokenizers/gpt2/tokenizer.json"));
    json["added_tokens"].push_back({{"id", 4000000000u},
                                    {"content", "<far>"},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
    const auto tokenizer = Tokenizer::from_json(json.dump(), "far.json");
    // The library may also renumber the token; what counts is that no table of that size is made.
    if (tokenizer.ok()) {
        EXPECT_LT(tokenizer.value()->vocab_size(), 1000u);
    }
}

TEST(Tokenizer, RefusesEveryTruncation) {
    const std::string whole = read_golden("tokenizers/llama2/tokenizer.json");
    for (size_t size = 0; size + 2 < whole.size(); size += 1 + whole.size() / 150) {
        expect_refused(std::string_view(whole).substr(0, size));
    }
}

TEST(Tokenizer, RefusesOrLoadsWrongTypes) {
    const Json whole = Json::parse(read_golden("tokenizers/llama2/tokenizer.json"));
    const std::vector<Json> wrong = {nullptr, true, -1, 1e300, "text", Json::array({1}), Json::object({{"a", 1}})};
    size_t loaded = 0, refused = 0;
    for (const auto& [key, value] : whole.items()) {
        for (const Json& other : wrong) {
            Json damaged = whole;
            damaged[key] = other;
            Tokenizer::from_json(damaged.dump(), "wrong.json").ok() ? ++loaded : ++refused;
            if (!value.is_object()) continue;
            for (const auto& [inner, unused] : value.items()) {
                damaged = whole;
                damaged[key][inner] = other;
                Tokenizer::from_json(damaged.dump(), "wrong.json").ok() ? ++loaded : ++refused;
            }
        }
    }
    EXPECT_GT(refused, 50u);
    EXPECT_GT(loaded, 0u);  // a null where something is optional
}

TEST(Tokenizer, SurvivesFlippedBytes) {
    const std::string whole = read_golden("tokenizers/qwen2/tokenizer.json");
    std::mt19937 random(20261120);
    size_t refused = 0;
    for (int round = 0; round < 200; ++round) {
        std::string damaged = whole;
        for (int flips = 0; flips < 1 + round % 4; ++flips) {
            damaged[random() % damaged.size()] = static_cast<char>(random());
        }
        const auto tokenizer = Tokenizer::from_json(damaged, "flipped.json");
        if (!tokenizer.ok()) {
            ++refused;
            continue;
        }
        const auto ids = tokenizer.value()->encode("A text, 123 \xe4\xbd\xa0\xe5\xa5\xbd <|im_start|>", true);
        if (ids.ok()) {
            EXPECT_TRUE(tokenizer.value()->decode(ids.value(), false).ok());
        }
    }
    EXPECT_GT(refused, 20u);
}

}  // namespace
}  // namespace lorad::model::text_tokenizer_test
