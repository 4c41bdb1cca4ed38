// Incremental text equals the text of all tokens at once, never cuts a character, and ends before a
// stop string.
#include "model/text/detokenizer.h"

#include <random>

#include "tests/model/text_goldens.h"

namespace lorad::model::detokenizer_test {
namespace {

using Json = nlohmann::ordered_json;

bool is_utf8(std::string_view text) {
    std::string quoted = "\"";
    for (char c : text) quoted += (static_cast<uint8_t>(c) < 0x20 || c == '"' || c == '\\') ? '.' : c;
    quoted += '"';
    return nlohmann::json::accept(quoted);
}

struct Streamed {
    std::string text;
    bool stopped = false;
    std::string stop;
};

Streamed stream(const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<TokenId>& ids, bool skip,
                std::vector<std::string> stops = {}) {
    Detokenizer detokenizer(tokenizer, skip, std::move(stops));
    Streamed result;
    for (const TokenId id : ids) {
        const std::string piece = detokenizer.push(id).value();
        EXPECT_TRUE(is_utf8(piece)) << Json(ids).dump();
        result.text += piece;
    }
    const std::string rest = detokenizer.flush().value();
    EXPECT_TRUE(is_utf8(rest)) << Json(ids).dump();
    result.text += rest;
    result.stopped = detokenizer.stopped();
    result.stop = detokenizer.matched_stop();
    return result;
}

// The reference's sequences, joined ones of them, and sequences of random ids.
std::vector<std::vector<TokenId>> sequences(const std::string& name, const Tokenizer& tokenizer) {
    std::vector<std::vector<TokenId>> all;
    for (const Json& row : golden_lines("expected/tokenizers/" + name + ".jsonl")) {
        all.push_back(row["ids_with_special"].get<std::vector<TokenId>>());
    }
    for (const Json& row : golden_lines("expected/tokenizers/" + name + "-decode.jsonl")) {
        all.push_back(row["ids"].get<std::vector<TokenId>>());
    }
    std::mt19937 random(7);
    const size_t from_goldens = all.size();
    for (int i = 0; i < 100; ++i) {
        std::vector<TokenId> joined = all[random() % from_goldens];
        const auto& other = all[random() % from_goldens];
        joined.insert(joined.end(), other.begin(), other.end());
        all.push_back(std::move(joined));
        std::vector<TokenId> ids(1 + random() % 40);
        for (TokenId& id : ids) id = static_cast<TokenId>(random() % (tokenizer.vocab_size() + 3));
        all.push_back(std::move(ids));
    }
    return all;
}

class DetokenizerOf : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, DetokenizerOf, ::testing::ValuesIn(golden_tokenizer_names()),
                         [](const auto& param) { return param.param; });

TEST_P(DetokenizerOf, JoinedPiecesEqualTheFullDecode) {
    const auto tokenizer = golden_tokenizer(GetParam());
    for (const auto& ids : sequences(GetParam(), *tokenizer)) {
        for (const bool skip : {false, true}) {
            EXPECT_EQ(stream(tokenizer, ids, skip).text, tokenizer->decode(ids, skip).value())
                << Json(ids).dump() << " skip " << skip;
        }
    }
}

TEST_P(DetokenizerOf, EndsBeforeTheFirstStopString) {
    const auto tokenizer = golden_tokenizer(GetParam());
    std::mt19937 random(11);
    size_t stopped = 0;
    for (const auto& ids : sequences(GetParam(), *tokenizer)) {
        const std::string full = tokenizer->decode(ids, true).value();
        if (full.size() < 4) continue;
        // A stop string cut out of the text at character boundaries, one that nearly matches, and
        // one that never does.
        size_t begin = random() % (full.size() - 1);
        while (begin > 0 && (static_cast<uint8_t>(full[begin]) & 0xc0) == 0x80) --begin;
        size_t end = std::min(full.size(), begin + 1 + random() % 6);
        while (end < full.size() && (static_cast<uint8_t>(full[end]) & 0xc0) == 0x80) ++end;
        const std::string stop = full.substr(begin, end - begin);
        const Streamed result = stream(tokenizer, ids, true, {stop + "\x01", stop, "", "never there"});
        EXPECT_TRUE(result.stopped);
        EXPECT_EQ(result.stop, stop);
        EXPECT_EQ(result.text, full.substr(0, full.find(stop))) << Json(ids).dump() << " stop " << stop;
        ++stopped;
    }
    EXPECT_GT(stopped, 100u);
}

TEST_P(DetokenizerOf, HoldsBackNothingThatNoStopStringBeginsWith) {
    const auto tokenizer = golden_tokenizer(GetParam());
    for (const auto& ids : sequences(GetParam(), *tokenizer)) {
        const Streamed result = stream(tokenizer, ids, true, {std::string("\x01\x02") + "never"});
        EXPECT_FALSE(result.stopped);
        EXPECT_EQ(result.text, tokenizer->decode(ids, true).value());
    }
}

TEST(Detokenizer, GivesPlainTextOutAtOnce) {
    const auto tokenizer = golden_tokenizer("qwen2");
    const auto ids = tokenizer->encode("Hello there, this is plain text.", false).value();
    Detokenizer detokenizer(tokenizer, true);
    std::string text;
    for (const TokenId id : ids) {
        const std::string piece = detokenizer.push(id).value();
        EXPECT_FALSE(piece.empty());
        text += piece;
    }
    EXPECT_EQ(text, "Hello there, this is plain text.");
    EXPECT_EQ(detokenizer.flush().value(), "");
}

TEST(Detokenizer, WaitsForTheRestOfACharacter) {
    const auto tokenizer = golden_tokenizer("gpt2");
    const auto ids = tokenizer->encode("\xf0\x9f\x98\x80", false).value();
    ASSERT_GT(ids.size(), 1u);
    Detokenizer detokenizer(tokenizer, true);
    for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(detokenizer.push(ids[i]).value(), "");
    EXPECT_EQ(detokenizer.push(ids.back()).value(), "\xf0\x9f\x98\x80");
}

TEST(Detokenizer, HoldsTheBeginningOfAStopStringAndReleasesItWhenItGoesOnOtherwise) {
    const auto tokenizer = golden_tokenizer("gpt2");
    const auto push_text = [&](Detokenizer& detokenizer, std::string_view text) {
        std::string out;
        const auto ids = tokenizer->encode(text, false).value();
        for (const TokenId id : ids) out += detokenizer.push(id).value();
        return out;
    };
    Detokenizer detokenizer(tokenizer, true, {"###"});
    EXPECT_EQ(push_text(detokenizer, "a#"), "a");
    EXPECT_EQ(push_text(detokenizer, "#"), "");
    EXPECT_EQ(push_text(detokenizer, "b"), "##b");
    EXPECT_EQ(push_text(detokenizer, "##"), "");
    EXPECT_EQ(detokenizer.flush().value(), "##");
    Detokenizer stopping(tokenizer, true, {"###"});
    EXPECT_EQ(push_text(stopping, "x##"), "x");
    EXPECT_EQ(push_text(stopping, "#y"), "");
    EXPECT_TRUE(stopping.stopped());
    EXPECT_EQ(stopping.matched_stop(), "###");
    EXPECT_EQ(push_text(stopping, "more"), "");
    EXPECT_EQ(stopping.flush().value(), "");
}

TEST(Detokenizer, WorksWithoutADecoder) {
    Json json = Json::parse(read_golden("tokenizers/gpt2/tokenizer.json"));
    json["decoder"] = nullptr;  // the library then joins tokens by spaces
    const auto tokenizer = Tokenizer::from_json(json.dump(), "plain.json").value();
    EXPECT_EQ(tokenizer->decoder_kind(), DecoderKind::kOther);
    for (const Json& row : golden_lines("expected/tokenizers/gpt2.jsonl")) {
        const auto ids = row["ids"].get<std::vector<TokenId>>();
        EXPECT_EQ(stream(tokenizer, ids, true).text, tokenizer->decode(ids, true).value());
    }
}

TEST(Detokenizer, WorksWithTheMetaspaceAndWordPieceDecoders) {
    for (const char* decoder : {R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true})",
                                R"({"type":"WordPiece","prefix":"##","cleanup":true})"}) {
        Json json = Json::parse(read_golden("tokenizers/metaspace/tokenizer.json"));
        json["decoder"] = Json::parse(decoder);
        const auto tokenizer = Tokenizer::from_json(json.dump(), "other.json").value();
        for (const auto& ids : sequences("metaspace", *tokenizer)) {
            EXPECT_EQ(stream(tokenizer, ids, false).text, tokenizer->decode(ids, false).value()) << decoder;
        }
    }
}

}  // namespace
}  // namespace lorad::model::detokenizer_test
