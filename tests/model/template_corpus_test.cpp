// Expressions of templates against Jinja2's own answers: tests/goldens/jinja, made by make.py there.
#include "tests/model/text_goldens.h"

namespace lorad::model::template_corpus_test {
namespace {

constexpr int64_t kNow = 1772694489;  // 2026-03-05 07:08:09, the clock of the corpus

TEST(TemplateCorpus, GivesJinjasTextOrFailsWhereItRaises) {
    std::ifstream file(golden_path("jinja/cases.jsonl"));
    std::string variables;
    ASSERT_TRUE(std::getline(file, variables));
    const std::string input = R"({"messages":[],"extra":)" + variables + "}";
    int n_texts = 0;
    int n_errors = 0;
    int n_not_supported = 0;
    for (std::string line; std::getline(file, line);) {
        const auto row = nlohmann::ordered_json::parse(line);
        const std::string source = row["source"];
        const auto chat = ChatTemplate::from_source(source, "{}");
        ASSERT_TRUE(chat.ok()) << source;
        const Result<std::string> text = chat.value()->render(input, kNow);
        if (row.contains("error")) {
            EXPECT_FALSE(text.ok()) << source << "\n" << row["error"] << " expected, found " << *text;
            ++n_errors;
            continue;
        }
        // A name that Python's type has, and this evaluator may lack.
        if (row.contains("or_error") && !text.ok()) {
            EXPECT_NE(text.error().message.find("is not supported in chat templates"), std::string::npos)
                << source << "\n"
                << text.error().message;
            ++n_not_supported;
            continue;
        }
        ASSERT_TRUE(text.ok()) << source << "\n" << text.error().message;
        EXPECT_EQ(*text, row["text"].get<std::string>()) << source;
        ++n_texts;
    }
    EXPECT_GT(n_texts, 3000);
    EXPECT_GT(n_errors, 1000);
    EXPECT_LT(n_not_supported, 60);
}

// What Python has and the evaluator lacks is refused by its name; an empty text would be another prompt.
TEST(TemplateCorpus, NamesWhatItDoesNotHave) {
    for (const auto& [source, name] : std::vector<std::pair<std::string, std::string>>{
             {"{{ (1.5).as_integer_ratio }}", "as_integer_ratio"},
             {"{{ (1).to_bytes }}", "to_bytes"},
             {"{{ {}.keys().isdisjoint }}", "isdisjoint"},
             {"{{ ('a' | safe).unescape }}", "unescape"},
             {"{% macro m() %}{% endmacro %}{{ m.arguments }}", "arguments"},
             {"{{ self.body }}", "body"},
             {"{{ lipsum() }}", "lipsum"},
             {"{{ 'a b' | wordwrap(1) }}", "wordwrap"},
             {"{{ 'a'.encode() }}", "bytes"},
             {"{{ [1] | map('upper') | attr('send') }}", "send"}}) {
        const auto text = ChatTemplate::from_source(source, "{}").value()->render(R"({"messages":[]})");
        ASSERT_FALSE(text.ok()) << source << ": " << *text;
        EXPECT_EQ(text.error().code, ErrorCode::kInvalidRequest);
        EXPECT_NE(text.error().message.find(name), std::string::npos) << source << ": " << text.error().message;
    }
}

}  // namespace
}  // namespace lorad::model::template_corpus_test
