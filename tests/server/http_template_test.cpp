// Chats of adapters that bring their own chat template, over real sockets.
#include <filesystem>

#include "tests/server/http_fixture.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::http_template_test {
namespace {

class TemplateTest : public HttpTest {
  protected:
    // A demo adapter with a template, registered by upload. The fake codec writes the template's text
    // before the messages.
    Answer register_with_template(const std::string& name, const std::string& text,
                                  const std::string& more = {}) {
        return post("/v1/adapters", "{\"name\":\"" + name + "\",\"files\":{" + files_of("pirate") +
                                        ",\"chat_template.jinja\":\"" + put_blob(text) + "\"}" +
                                        more + "}");
    }
    std::string files_of(const std::string& demo) {
        std::string files = uploaded_files(demo);  // "files":{...}
        return files.substr(files.find('{') + 1, files.rfind('}') - files.find('{') - 1);
    }
    std::string rendered(const std::string& fields) {
        Answer answer = post("/v1/chat/completions/render",
                             "{" + fields + R"("messages":[{"role":"user","content":"hi"}]})");
        Result<JsonDocument> document = parse_json(answer.body);
        if (!document.ok() || answer.status != 200) return answer.body;
        return std::string(*document->root().string_or("prompt", ""));
    }
};

TEST_F(TemplateTest, ChatsWithTheAdapterAreWrittenByItsTemplate) {
    load_pirate();
    ASSERT_EQ(register_with_template("own", "T1 ").status, 201);
    EXPECT_EQ(rendered(R"("model":"own",)"), "T1 hi");
    EXPECT_EQ(rendered(R"("model":"base:own",)"), "T1 hi");
    EXPECT_EQ(rendered(R"("adapters":[{"name":"own","scale":0.5}],)"), "T1 hi");
    EXPECT_EQ(rendered(R"("adapters":[{"name":"own","scale":0}],)"), "hi");
    EXPECT_EQ(rendered(R"("adapters":[{"name":"own"},{"name":"pirate"}],)"), "hi")
        << "of several none is preferred";
    EXPECT_EQ(rendered(R"("model":"pirate",)"), "hi");
    EXPECT_EQ(rendered(""), "hi");
    Answer chat = post("/v1/chat/completions",
                       R"({"model":"own","messages":[{"role":"user","content":"hi"}],"max_tokens":3})");
    EXPECT_NE(chat.body.find(text_of(fake_continuation(bytes_of("T1 hi"), slot_of("own"), 3))),
              std::string::npos)
        << chat.body;
    Answer counted = post("/v1/messages/count_tokens",
                          R"({"model":"own","messages":[{"role":"user","content":"hi"}]})");
    EXPECT_EQ(counted.body, R"({"input_tokens":5})");
}

TEST_F(TemplateTest, ATemplateBelongsToTheGenerationThatBroughtIt) {
    Answer first = register_with_template("own", "T1 ");
    ASSERT_EQ(first.status, 201) << first.body;
    EXPECT_EQ(first.generation,
              sha256_of(sha256_of(file_text(demo_folder("pirate") + "/adapter_config.json")) +
                        "  adapter_config.json\n" +
                        sha256_of(file_text(demo_folder("pirate") + "/adapter_model.safetensors")) +
                        "  adapter_model.safetensors\n" + sha256_of("T1 ") +
                        "  chat_template.jinja\n"));
    ASSERT_EQ(register_with_template("own", "T2 ", ",\"replace\":true").status, 201);
    EXPECT_EQ(rendered(R"("model":"own",)"), "T2 hi");
    ASSERT_EQ(post("/v1/adapters/own/rollback", "{}").status, 200);
    EXPECT_EQ(rendered(R"("model":"own",)"), "T1 hi");
    ASSERT_EQ(post("/v1/adapters", "{\"name\":\"half\",\"adapters\":[{\"name\":\"own\",\"scale\":0.5}]}").status, 201);
    EXPECT_EQ(rendered(R"("model":"half",)"), "T1 hi");
}

TEST_F(TemplateTest, FoldersBringTheTemplateInEitherFile) {
    const testing::TempDir folder;
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
        std::filesystem::copy(demo_folder("pirate") + "/" + file, folder.path() / file);
    auto load = [&](const std::string& name) {
        return post("/v1/load_lora_adapter", "{\"lora_name\":\"" + name + "\",\"lora_path\":\"" +
                                                 folder.path().string() + "\"}");
    };
    std::ofstream(folder.path() / "tokenizer_config.json")
        << R"({"chat_template":[{"name":"tool_use","template":"no"},{"name":"default","template":"C "}]})";
    ASSERT_EQ(load("configured").status, 200);
    EXPECT_EQ(rendered(R"("model":"configured",)"), "C hi");
    std::ofstream(folder.path() / "chat_template.jinja") << "F ";
    ASSERT_EQ(load("file").status, 200);
    EXPECT_EQ(rendered(R"("model":"file",)"), "F hi");
    std::filesystem::remove(folder.path() / "chat_template.jinja");
    std::ofstream(folder.path() / "tokenizer_config.json") << "{broken";
    ASSERT_EQ(load("broken").status, 200) << "a file that is none of the adapter's";
    EXPECT_EQ(rendered(R"("model":"broken",)"), "hi");
}

TEST_F(TemplateTest, ATemplateThatIsTooLongIsRefusedWithTheAdapter) {
    Answer refused = register_with_template("own", std::string((1 << 20) + 1, ' '));
    EXPECT_EQ(refused.status, 422);
    EXPECT_EQ(refused.code, "adapter_invalid");
    EXPECT_NE(refused.message.find("chat_template.jinja"), std::string::npos) << refused.message;
    EXPECT_NE(rendered(R"("model":"own",)").find("model_not_found"), std::string::npos);
}

}  // namespace
}  // namespace lorad::server::http_template_test
