// Training files: what lines become, what is refused, and what is told of a file.
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/files/model_files.h"
#include "server/training/dataset.h"
#include "server/training/line_encoder.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::training {
namespace {

using nlohmann::json;
using proto::kUntrained;

const std::filesystem::path kGoldens = lorad::testing::source_dir() / "tests/goldens/training-chat";
constexpr uint32_t kVocab = 4096;

std::vector<std::string> lines_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

std::shared_ptr<const model::Tokenizer> demo_tokenizer() {
    static const auto kTokenizer = *model::Tokenizer::load(lorad::testing::source_dir() / "deploy/demo-model/base");
    return kTokenizer;
}

// The demo model's tokenizer with a template of its own; empty: the model's.
TrainingText demo_text(const std::string& source = {}) {
    const auto folder = lorad::testing::source_dir() / "deploy/demo-model/base";
    const auto chat = source.empty() ? *model::ChatTemplate::load(folder)
                                     : *model::ChatTemplate::from_source(source, R"({"eos_token":"<|im_end|>"})");
    return TrainingText(demo_tokenizer(), chat, {*demo_tokenizer()->token_id("<|im_end|>")});
}

EncodeOptions options_of(TrainOn train_on = TrainOn::kAssistant) {
    EncodeOptions options;
    options.train_on = train_on;
    options.max_seq_length = 2048;
    options.vocab_size = kVocab;
    return options;
}

// What of a line is trained, sequence by sequence; or what is wrong with it.
std::string trained(const TrainingText& text, const std::string& line, EncodeOptions options = options_of(),
                    proto::LineFormat format = proto::LineFormat::kChat) {
    const Result<EncodedLine> encoded = LineEncoder(text, options).encode(line, format);
    if (!encoded.ok()) return "error: " + encoded.error().message;
    std::string out;
    for (const TrainingSequence& one : encoded->sequences) {
        for (size_t i = 0; i < one.tokens.size(); ++i) {
            if (one.labels[i] != kUntrained) out += text.decode(one.tokens[i]);
        }
        out += '|';
    }
    return out;
}

std::string chat(const std::vector<std::pair<std::string, std::string>>& messages) {
    json list = json::array();
    for (const auto& [role, content] : messages) list.push_back({{"role", role}, {"content", content}});
    return json{{"messages", list}}.dump();
}

class DataFile {
  public:
    explicit DataFile(const std::string& content) { std::ofstream(path()) << content; }
    std::filesystem::path path() const { return dir_.path() / "data.jsonl"; }
    std::filesystem::path tokens() const { return dir_.path() / "data.tok"; }

  private:
    lorad::testing::TempDir dir_;
};

DataReport report_of(const std::string& content, const TrainingText& text,
                     DataOptions options = {.encode = options_of()}) {
    const DataFile file(content);
    Result<DataReport> report = prepare_data(file.path(), text, options, nullptr);
    EXPECT_TRUE(report.ok()) << report.error().message;
    return report.ok() ? *report : DataReport();
}

// Marks what the assistant says, as templates for training do.
const std::string kMarked = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == "
                            "'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
                            "{{ '\\n' }}{% else %}{{ m['content'] + '<|im_end|>' + '\\n' }}{% endif %}{% endfor %}";

TEST(TrainingChats, HaveTheReferencesTokensAndLabels) {
    const TrainingText own = demo_text(), marked = demo_text(kMarked);
    const std::vector<std::string> lines = lines_of(kGoldens / "train.jsonl"),
                                   expected = lines_of(kGoldens / "expected.jsonl");
    ASSERT_EQ(lines.size(), expected.size());
    ASSERT_GT(lines.size(), 30u);
    for (size_t i = 0; i < lines.size(); ++i) {
        const json wanted = json::parse(expected[i]);
        SCOPED_TRACE(wanted.at("note").get<std::string>());
        for (const TrainingText* text : {&own, &marked}) {
            const Result<EncodedLine> encoded =
                LineEncoder(*text, options_of()).encode(lines[i], proto::LineFormat::kChat);
            ASSERT_TRUE(encoded.ok()) << encoded.error().message;
            ASSERT_EQ(encoded->sequences.size(), 1u);
            EXPECT_EQ(json(encoded->sequences[0].tokens), wanted.at("ids"));
            EXPECT_EQ(json(encoded->sequences[0].labels), wanted.at("labels"));
            EXPECT_EQ(encoded->sequences[0].n_trained(), wanted.at("trained_tokens"));
            EXPECT_FALSE(encoded->lacks_end);
        }
    }
}

TEST(TrainingChats, MalformedLinesAreAllToldByNumberAndReason) {
    std::string content = lines_of(kGoldens / "train.jsonl").front() + "\n";
    for (const std::string& line : lines_of(kGoldens / "malformed.jsonl")) content += line + "\n";
    const std::vector<std::string> reasons = {"not valid JSON",
                                              "expected an object with messages, found array",
                                              "found one with prompt and completion",
                                              "messages: expected messages, found an empty list",
                                              "no message of the assistant: nothing to train",
                                              "messages[1].role: expected system",
                                              "needs content or tool_calls",
                                              "messages[0].content: expected a text",
                                              "messages[1].weight: expected 0 or 1",
                                              "has weight 0: nothing to train",
                                              "messages: expected a list of messages, found a string",
                                              "messages[0].role"};
    const DataReport report = report_of(content, demo_text());
    EXPECT_EQ(report.n_sequences, 1u);
    EXPECT_EQ(report.n_bad_lines, reasons.size());
    ASSERT_EQ(report.problems.size(), reasons.size());
    for (size_t i = 0; i < reasons.size(); ++i) {
        EXPECT_EQ(report.problems[i].line, i + 2);
        EXPECT_NE(report.problems[i].reason.find(reasons[i]), std::string::npos)
            << report.problems[i].line << ": " << report.problems[i].reason;
    }
}

TEST(TrainingChats, TheFileOfMalformedLinesAloneHasNothingToTrain) {
    const Result<DataReport> report =
        prepare_data(kGoldens / "malformed.jsonl", demo_text(), {.encode = options_of()}, nullptr);
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->n_bad_lines, lines_of(kGoldens / "malformed.jsonl").size());
    EXPECT_EQ(report->n_sequences, 0u);
}

TEST(TrainingChats, AnAnswerThatTheTemplateRewritesLaterIsRefusedOrExpanded) {
    // As templates of models that think: only the last answer keeps its thoughts.
    const TrainingText text =
        demo_text("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' and "
                  "loop.last %}<think></think>{% endif %}{{ m.content + '<|im_end|>\\n' }}"
                  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
    const std::string line = chat({{"user", "a"}, {"assistant", "one"}, {"user", "b"}, {"assistant", "two"}});
    EXPECT_NE(trained(text, line).find("use train_on: last, or expand"), std::string::npos) << trained(text, line);
    EXPECT_EQ(trained(text, line, options_of(TrainOn::kLast)), "<think></think>two<|im_end|>|");
    EXPECT_EQ(trained(text, line, options_of(TrainOn::kExpand)),
              "<think></think>one<|im_end|>|<think></think>two<|im_end|>|");
}

TEST(TrainingChats, AHeadThatAnswersDoNotBeginWithIsFoundByOtherAnswers) {
    // What makes the assistant speak opens a thought that no answer has.
    const TrainingText text =
        demo_text("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor "
                  "%}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}");
    EXPECT_EQ(trained(text, chat({{"user", "a"}, {"assistant", "one"}, {"user", "b"}, {"assistant", "two"}})),
              "one<|im_end|>two<|im_end|>|");
}

TEST(TrainingChats, WithoutAnEndTokenThatIsTold) {
    const TrainingText text = demo_text("{% for m in messages %}{{ m.role + ':\\n' + m.content + '\\n' }}{% endfor "
                                        "%}{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}");
    const Result<EncodedLine> encoded =
        LineEncoder(text, options_of()).encode(chat({{"user", "a"}, {"assistant", "one"}}), proto::LineFormat::kChat);
    ASSERT_TRUE(encoded.ok()) << encoded.error().message;
    EXPECT_TRUE(encoded->lacks_end);
}

TEST(TrainingChats, AToolCallIsAnAnswer) {
    const TrainingText text =
        demo_text("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{{ m.content or '' }}{% for c in "
                  "m.tool_calls or [] %}{{ '<call>' + c.function.name }}{% endfor %}{{ '<|im_end|>\\n' }}"
                  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
    const std::string line =
        R"({"messages":[{"role":"user","content":"t?"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"now","arguments":"{}"}}]},)"
        R"({"role":"tool","content":"12","tool_call_id":"1"},{"role":"assistant","content":"noon"}]})";
    EXPECT_EQ(trained(text, line), "<call>now<|im_end|>noon<|im_end|>|");
}

TEST(TrainingLines, CompletionsTrainWhatBeginsInTheCompletionAndTheEnd) {
    const TrainingText text = demo_text();
    EXPECT_EQ(
        trained(text, R"({"prompt":"The sky is","completion":" blue."})", options_of(), proto::LineFormat::kCompletion),
        " blue.<|im_end|>|");
    EXPECT_EQ(
        trained(
            text,
            R"({"prompt":[{"role":"user","content":"a"},{"role":"assistant","content":"no"}],"completion":[{"role":"assistant","content":"yes"}]})",
            options_of(), proto::LineFormat::kCompletion),
        "yes<|im_end|>|");
}

TEST(TrainingLines, TextsAreCutIntoPieces) {
    EncodeOptions options = options_of();
    options.max_seq_length = 8;
    const std::string line = R"({"text":"one two three four five six seven eight nine ten"})";
    const Result<EncodedLine> encoded = LineEncoder(demo_text(), options).encode(line, proto::LineFormat::kText);
    ASSERT_TRUE(encoded.ok());
    EXPECT_GT(encoded->sequences.size(), 1u);
    EXPECT_TRUE(encoded->is_overlong);
    EXPECT_EQ(encoded->n_cut_tokens, 0u);
    size_t n_tokens = 0;
    for (const TrainingSequence& one : encoded->sequences) {
        EXPECT_LE(one.tokens.size(), 8u);
        EXPECT_EQ(one.n_trained(), one.tokens.size() - 1);
        n_tokens += one.tokens.size();
    }
    options.refuse_overlong = true;
    EXPECT_EQ(trained(demo_text(), line, options, proto::LineFormat::kText),
              "error: " + std::to_string(n_tokens) + " tokens, max_seq_length is 8");
}

TEST(TrainingLines, TokensAreTakenAsTheyAreAndChecked) {
    const TrainingText text(nullptr, nullptr, {});
    const auto of = [&](const std::string& line) {
        return trained(text, line, options_of(), proto::LineFormat::kTokens);
    };
    const Result<EncodedLine> masked =
        LineEncoder(text, options_of()).encode(R"({"tokens":[5,6,7],"mask":[1,0,1]})", proto::LineFormat::kTokens);
    ASSERT_TRUE(masked.ok()) << masked.error().message;
    EXPECT_EQ(masked->sequences[0].labels, (std::vector<int32_t>{kUntrained, kUntrained, 7}));
    const Result<EncodedLine> labelled =
        LineEncoder(text, options_of())
            .encode(R"({"input_ids":[5,6,7],"labels":[-100,6,-100]})", proto::LineFormat::kTokens);
    ASSERT_TRUE(labelled.ok()) << labelled.error().message;
    EXPECT_EQ(labelled->sequences[0].labels, (std::vector<int32_t>{kUntrained, 6, kUntrained}));
    EXPECT_NE(of(R"({"tokens":[5,4096],"labels":[5,4096]})")
                  .find("tokens[1]: expected a token of the vocabulary, 0 to 4095, found 4096"),
              std::string::npos);
    EXPECT_NE(of(R"({"tokens":[5,6],"labels":[5,9999]})").find("labels[1]: expected -100 or a token of the vocabulary"),
              std::string::npos);
    EXPECT_NE(of(R"({"tokens":[5,6],"labels":[5,-1]})").find("labels[1]: expected -100 or a token"), std::string::npos);
    EXPECT_NE(of(R"({"tokens":[5,6],"labels":[5,7]})").find("or the token at that place, 6"), std::string::npos);
    EXPECT_NE(of(R"({"tokens":[5,6],"labels":[5]})").find("labels: expected as many as there are tokens, 2, found 1"),
              std::string::npos);
    EXPECT_NE(of(R"({"tokens":[5,6],"labels":[5,-100]})").find("no token of the line is trained"), std::string::npos);
    EXPECT_NE(of(R"({"tokens":[5,6]})").find("expected labels or mask"), std::string::npos);
    EXPECT_NE(of(R"({"tokens":[],"labels":[]})").find("empty list"), std::string::npos);
}

TEST(TrainingLines, OverlongAnswersAreCutOrRefusedByChoice) {
    EncodeOptions options = options_of();
    options.max_seq_length = 16;
    const std::string line =
        chat({{"user", "Hi"}, {"assistant", "one two three four five six seven eight nine ten eleven"}});
    const Result<EncodedLine> encoded = LineEncoder(demo_text(), options).encode(line, proto::LineFormat::kChat);
    ASSERT_TRUE(encoded.ok()) << encoded.error().message;
    EXPECT_EQ(encoded->sequences[0].tokens.size(), 16u);
    EXPECT_TRUE(encoded->is_overlong);
    EXPECT_GT(encoded->n_cut_tokens, 0u);
    options.max_seq_length = 4;
    EXPECT_EQ(trained(demo_text(), line, options),
              "error: no token of the line is trained once it is cut to max_seq_length, 4 tokens");
    options.refuse_overlong = true;
    EXPECT_NE(trained(demo_text(), line, options).find("max_seq_length is 4"), std::string::npos);
}

TEST(TrainingFiles, CountDuplicatesEmptyAnswersAndWhatTheTemplateHides) {
    const std::string one = chat({{"user", "a"}, {"assistant", "b"}});
    const std::string tools =
        R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"c"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]})";
    const DataReport report = report_of(
        "\xef\xbb\xbf" + one + "\r\n\n" + one + "\n" + chat({{"user", "a"}, {"assistant", " "}}) + "\n" + tools,
        demo_text());
    EXPECT_EQ(report.n_lines, 4u);
    EXPECT_EQ(report.n_sequences, 4u);
    EXPECT_EQ(report.n_duplicates, 1u);
    EXPECT_EQ(report.n_empty_answers, 1u);
    ASSERT_EQ(report.unread.size(), 1u);
    EXPECT_EQ(report.unread[0], std::pair(std::string("tools"), uint64_t(1)));
    EXPECT_NE(report.text().find("4 lines of messages: 4 sequences"), std::string::npos) << report.text();
}

TEST(TrainingFiles, LinesAndFilesAreBounded) {
    const std::string one = chat({{"user", "a"}, {"assistant", "b"}});
    const DataReport report =
        report_of(one + "\n" + std::string(proto::kTrainingLineBytesMax + 2, 'x') + "\n" + one + "x\n", demo_text());
    EXPECT_EQ(report.n_sequences, 1u);
    ASSERT_EQ(report.problems.size(), 2u);
    EXPECT_EQ(report.problems[0].line, 2u);
    EXPECT_NE(report.problems[0].reason.find("longer than"), std::string::npos);
    const DataFile file(one + "\n" + one + "\n");
    const Result<DataReport> refused =
        prepare_data(file.path(), demo_text(), {.encode = options_of(), .n_sequences_max = 1}, nullptr);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().message, "line 2: more than 1 sequences");
    EXPECT_FALSE(prepare_data(DataFile("").path(), demo_text(), {.encode = options_of()}, nullptr).ok());
}

TEST(TokenFile, GivesBackWhatWasWrittenAndRefusesDamage) {
    const DataFile file("");
    std::string digest;
    {
        auto writer = *TokenFileWriter::create(file.tokens());
        ASSERT_TRUE(writer->add({{1, 2, 3}, {kUntrained, 2, 3}, 1}).ok());
        ASSERT_TRUE(writer->add({{4, 5}, {kUntrained, 5}, 7}).ok());
        digest = *writer->finish();
    }
    auto read = TokenFile::open(file.tokens(), digest);
    ASSERT_TRUE(read.ok()) << read.error().message;
    ASSERT_EQ((*read)->size(), 2u);
    EXPECT_EQ((*read)->longest(), 3u);
    EXPECT_EQ((*read)->at(1).line, 7u);
    EXPECT_EQ(std::vector<TokenId>((*read)->at(1).tokens.begin(), (*read)->at(1).tokens.end()),
              (std::vector<TokenId>{4, 5}));
    std::ifstream in(file.tokens(), std::ios::binary);
    const std::string whole{std::istreambuf_iterator<char>(in), {}};
    for (size_t n = 0; n < whole.size(); n += 3) {
        std::ofstream(file.tokens(), std::ios::binary) << whole.substr(0, n);
        EXPECT_FALSE(TokenFile::open(file.tokens(), "").ok()) << n;
    }
    for (size_t n = 0; n < whole.size(); ++n) {
        std::string damaged = whole;
        damaged[n] = char(damaged[n] ^ 0x41);
        std::ofstream(file.tokens(), std::ios::binary) << damaged;
        EXPECT_FALSE(TokenFile::open(file.tokens(), digest).ok()) << n;
    }
}

TEST(TokenFile, LeavesNothingWhereItIsNotFinished) {
    const DataFile file("");
    {
        ASSERT_TRUE((*TokenFileWriter::create(file.tokens()))->add({{1, 2}, {kUntrained, 2}, 1}).ok());
    }
    EXPECT_FALSE(std::filesystem::exists(file.tokens()));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(file.tokens().parent_path()), {}), 1);
}

}  // namespace
}  // namespace lorad::server::training
