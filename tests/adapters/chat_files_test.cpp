#include "adapters/files/chat_files.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace lorad::adapters::chat_files_test {
namespace {

class ChatFolder : public ::testing::Test {
  protected:
    void write(const std::string& name, const std::string& content) {
        std::filesystem::create_directories((folder_.path() / name).parent_path());
        std::ofstream(folder_.path() / name) << content;
    }
    // "name=content" of each.
    std::vector<std::string> read() {
        std::vector<std::string> out;
        const auto files = read_chat_files(*SourceFolder::open(folder_.path()));
        EXPECT_TRUE(files.ok());
        for (const SourceFile& file : *files) out.push_back(file.name + "=" + std::string(file.bytes.text()));
        return out;
    }
    const lorad::testing::TempDir folder_;
};
using Files = std::vector<std::string>;

TEST_F(ChatFolder, TemplatesOfTheConfigBecomeTheFilesThatSavePretrainedWrites) {
    EXPECT_EQ(read(), Files{});
    write("tokenizer_config.json", R"({"chat_template":"T","added_tokens_decoder":{"0":{"content":"x"}}})");
    EXPECT_EQ(read(), Files{"chat_template.jinja=T"});
    write(
        "tokenizer_config.json",
        R"({"chat_template":[{"name":"tool_use","template":"U"},{"name":"default","template":"D"},{"name":"../x","template":"X"},{"name":"y"}]})");
    EXPECT_EQ(read(), (Files{"additional_chat_templates/tool_use.jinja=U", "chat_template.jinja=D"}));
    write("additional_chat_templates/rag.jinja", "R");
    EXPECT_EQ(read(), Files{"additional_chat_templates/rag.jinja=R"}) << "files count, not the config";
    write("chat_template.jinja", "F");
    EXPECT_EQ(read(), (Files{"chat_template.jinja=F", "additional_chat_templates/rag.jinja=R"}));
}

TEST_F(ChatFolder, OfConfigsOnlyWhatEndsAnAnswerIsKept) {
    write("tokenizer_config.json", R"({"eos_token":{"content":"<e>","special":true},"pad_token":"<p>"})");
    EXPECT_EQ(read(), Files{R"(tokenizer_config.json={"eos_token":"<e>"})"});
    write("tokenizer_config.json", R"({"eos_token":"<e>","chat_template":"T"})");
    EXPECT_EQ(read(), (Files{"chat_template.jinja=T", R"(tokenizer_config.json={"eos_token":"<e>"})"}));
    write("generation_config.json", R"({"eos_token_id":7,"temperature":0.5})");
    EXPECT_EQ(read(), (Files{"chat_template.jinja=T", R"(generation_config.json={"eos_token_id":[7]})"}));
    write("generation_config.json", R"({"eos_token_id":[7,-1,"x",8]})");
    EXPECT_EQ(read().back(), R"(generation_config.json={"eos_token_id":[7,8]})");
    for (const char* nothing :
         {"{}", "[]", "{broken", R"({"eos_token_id":null})", R"({"eos_token_id":{}})", R"({"eos_token_id":1.5})"}) {
        write("generation_config.json", nothing);
        EXPECT_EQ(read().back(), R"(tokenizer_config.json={"eos_token":"<e>"})") << nothing;
    }
    for (const char* nothing :
         {"{}", "[]", "{broken", R"({"eos_token":null})", R"({"eos_token":5})", R"({"eos_token":{"content":[]}})"}) {
        write("tokenizer_config.json", nothing);
        EXPECT_EQ(read(), Files{}) << nothing;
    }
}

TEST_F(ChatFolder, UploadedConfigsSayTheSameAsFolders) {
    const std::pair<std::string_view, std::string_view> config[] = {
        {"tokenizer_config.json", R"({"chat_template":{"default":"D","tool_use":"U"},"eos_token":"<e>"})"}};
    EXPECT_EQ(chat_templates(config), (std::vector<model::NamedTemplate>{{"default", "D"}, {"tool_use", "U"}}));
    EXPECT_EQ(chat_ends(config), (ChatEnds{{}, "<e>"}));
    const std::pair<std::string_view, std::string_view> both[] = {config[0], {"chat_template.jinja", "F"}};
    EXPECT_EQ(chat_templates(both), (std::vector<model::NamedTemplate>{{"default", "F"}}));
    for (const char* name : {"tokenizer_config.json", "generation_config.json", "chat_template.jinja",
                             "additional_chat_templates/a-b_1.2.jinja"})
        EXPECT_TRUE(is_chat_file(name)) << name;
    for (const char* name : {"additional_chat_templates/.jinja", "additional_chat_templates/a/b.jinja",
                             "additional_chat_templates/.x.jinja", "additional_chat_templatesx.jinja",
                             "additional_chat_templates", "tokenizer.json"})
        EXPECT_FALSE(is_chat_file(name)) << name;
}

TEST(ChatFiles, TheDigestIsThatOfTheTemplates) {
    GenerationRecord record;
    EXPECT_EQ(chat_files_of(record).digest, "");
    record.files = {
        {"adapter_config.json", "1", 0}, {"chat_template.jinja", "2", 0}, {"tokenizer_config.json", "3", 0}};
    record.ends.token = "<e>";
    EXPECT_EQ(chat_files_of(record).digest, "2");
    EXPECT_EQ(chat_files_of(record).ends.token, "<e>");
    record.files.push_back({"additional_chat_templates/tool_use.jinja", "4", 0});
    EXPECT_EQ(chat_files_of(record).digest,
              generation_of({{"chat_template.jinja", "2"}, {"additional_chat_templates/tool_use.jinja", "4"}}));
    record.files = {{"tokenizer_config.json", "3", 0}};
    EXPECT_EQ(chat_files_of(record).digest, "3") << "whether it has a template only its content says";
}

}  // namespace
}  // namespace lorad::adapters::chat_files_test
