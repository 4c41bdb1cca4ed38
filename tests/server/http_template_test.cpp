// Chats of adapters that bring their own chat template, over real sockets.
#include <algorithm>
#include <filesystem>

#include "tests/server/http_fixture.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::http_template_test {
namespace {

class TemplateTest : public HttpTest {
  protected:
    // A demo adapter with a template, registered by upload. The fake codec writes the template's text
    // before the messages.
    Answer register_with_template(const std::string& name, const std::string& text, const std::string& more = {}) {
        return post("/v1/adapters", "{\"name\":\"" + name + "\",\"files\":{" + files_of("pirate") +
                                        ",\"chat_template.jinja\":\"" + put_blob(text) + "\"}" + more + "}");
    }
    std::string files_of(const std::string& demo) {
        std::string files = uploaded_files(demo);  // "files":{...}
        return files.substr(files.find('{') + 1, files.rfind('}') - files.find('{') - 1);
    }
    std::string rendered(const std::string& fields) {
        Answer answer =
            post("/v1/chat/completions/render", "{" + fields + R"("messages":[{"role":"user","content":"hi"}]})");
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
    EXPECT_EQ(rendered(R"("adapters":[{"name":"own"},{"name":"pirate"}],)"), "hi") << "of several none is preferred";
    EXPECT_EQ(rendered(R"("model":"pirate",)"), "hi");
    EXPECT_EQ(rendered(""), "hi");
    Answer chat =
        post("/v1/chat/completions", R"({"model":"own","messages":[{"role":"user","content":"hi"}],"max_tokens":3})");
    EXPECT_NE(chat.body.find(text_of(fake_continuation(bytes_of("T1 hi"), slot_of("own"), 3))), std::string::npos)
        << chat.body;
    Answer counted =
        post("/v1/messages/count_tokens", R"({"model":"own","messages":[{"role":"user","content":"hi"}]})");
    EXPECT_EQ(counted.body, R"({"input_tokens":5})");
}

TEST_F(TemplateTest, ATemplateBelongsToTheGenerationThatBroughtIt) {
    Answer first = register_with_template("own", "T1 ");
    ASSERT_EQ(first.status, 201) << first.body;
    EXPECT_EQ(
        first.generation,
        sha256_of(sha256_of(file_text(demo_folder("pirate") + "/adapter_config.json")) + "  adapter_config.json\n" +
                  sha256_of(file_text(demo_folder("pirate") + "/adapter_model.safetensors")) +
                  "  adapter_model.safetensors\n" + sha256_of("T1 ") + "  chat_template.jinja\n"));
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
        return post("/v1/load_lora_adapter",
                    "{\"lora_name\":\"" + name + "\",\"lora_path\":\"" + folder.path().string() + "\"}");
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

TEST_F(TemplateTest, WhatATemplateDoesNotShowIsListedInAHeaderOrRefused) {
    ASSERT_EQ(register_with_template("deaf", "T?").status, 201);
    const auto header = [&](const std::string& path, const std::string& fields) {
        const auto result =
            client().Post(path, R"({"model":"deaf","max_tokens":2,"unknown":1,)" + fields + "}", "application/json");
        return std::to_string(result->status) + " " + result->get_header_value("x-lorad-ignored-fields");
    };
    const std::string chat = R"("messages":[{"role":"user","content":"hi"}])";
    for (const std::string path : {"/v1/chat/completions", "/v1/chat/completions/render", "/tokenize"})
        EXPECT_EQ(header(path, chat), "200 unknown, tools, messages[0].name") << path;
    EXPECT_EQ(header("/v1/chat/completions", chat + ",\"stream\":true"), "200 unknown, tools, messages[0].name");
    EXPECT_EQ(header("/v1/messages", chat), "200 unknown, tools, messages[0].name");
    const auto responses = client().Post(
        "/v1/responses", R"({"model":"deaf","input":[{"role":"user","content":"hi"}]})", "application/json");
    EXPECT_EQ(responses->get_header_value("x-lorad-ignored-fields"), "tools, input[0].name") << "by the client's names";
    context.strict = true;
    for (const std::string path : {"/v1/chat/completions", "/v1/chat/completions/render"}) {
        const Answer refused = post(path, R"({"model":"deaf",)" + chat + "}");
        EXPECT_EQ(refused.status, 400);
        EXPECT_EQ(refused.param, "tools") << refused.body;
    }
}

TEST_F(TemplateTest, AnAdaptersNamedTemplatesAreReadFromFoldersAndUploads) {
    const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}],)";
    const std::string names[] = {"chat_template.jinja", "additional_chat_templates/tool_use.jinja"};
    const Answer uploaded =
        post("/v1/adapters", R"({"name":"up","files":{)" + files_of("pirate") + ",\"" + names[0] + "\":\"" +
                                 put_blob("D ") + "\",\"" + names[1] + "\":\"" + put_blob("U ") + "\"}}");
    ASSERT_EQ(uploaded.status, 201) << uploaded.body;
    const testing::TempDir folder;
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
        std::filesystem::copy(demo_folder("pirate") + "/" + file, folder.path() / file);
    const auto load = [&](const std::string& name) {
        return post("/v1/load_lora_adapter",
                    "{\"lora_name\":\"" + name + "\",\"lora_path\":\"" + folder.path().string() + "\"}")
            .status;
    };
    std::ofstream(folder.path() / "tokenizer_config.json")
        << R"({"chat_template":[{"name":"tool_use","template":"U "},{"name":"default","template":"D "}]})";
    ASSERT_EQ(load("configured"), 200);
    std::filesystem::create_directory(folder.path() / "additional_chat_templates");
    for (const std::string& name : names) std::ofstream(folder.path() / name) << (name == names[0] ? "D " : "U ");
    ASSERT_EQ(load("folder"), 200);
    for (const std::string name : {"up", "configured", "folder"}) {
        const std::string model = "\"model\":\"" + name + "\",";
        EXPECT_EQ(rendered(model), "D hi") << name;
        EXPECT_EQ(rendered(model + tools), "U hi") << name;
        EXPECT_EQ(rendered(model + tools + R"("tool_choice":"none",)"), "D hi") << name;
    }
    for (const std::string bad :
         {"other/tool_use.jinja", "additional_chat_templates/../x.jinja", "additional_chat_templates/.jinja",
          "additional_chat_templates/a b.jinja", "additional_chat_templates/tool_use.txt"}) {
        const Answer refused = post("/v1/adapters", R"({"name":"bad","files":{)" + files_of("pirate") + ",\"" + bad +
                                                        "\":\"" + put_blob("U ") + "\"}}");
        EXPECT_TRUE(refused.status == 400 || refused.status == 422) << bad << refused.body;
    }
}

TEST_F(TemplateTest, AnAdaptersAnswersEndWithItsOwnTokenToo) {
    load_pirate();
    const auto with_end = [&](const std::string& name, const std::string& file, const std::string& content) {
        const Answer answer = post("/v1/adapters", "{\"name\":\"" + name + "\",\"files\":{" + files_of("pirate") +
                                                       ",\"" + file + "\":\"" + put_blob(content) + "\"}}");
        EXPECT_EQ(answer.status, 201) << answer.body;
    };
    uint32_t slot = slot_of("pirate") + 1;
    const auto said = [&] { return fake_continuation(bytes_of("hi"), slot, 6); };
    const auto text = [&](const std::string& fields) {
        return completion_text(R"({"prompt":"hi","max_tokens":6,)" + fields + "}");
    };
    with_end("plain", "chat_template.jinja", "T ");
    ASSERT_EQ(slot_of("plain"), slot);
    EXPECT_EQ(text(R"("model":"plain")"), text_of(said())) << "a template says nothing of ends";
    // The third token of its answer is the end; N stands for it.
    const std::pair<std::string, std::string> files[] = {
        {"tokenizer_config.json", R"({"eos_token":"<N>"})"},
        {"tokenizer_config.json", R"({"eos_token":{"content":"<N>","lstrip":false}})"},
        {"generation_config.json", R"({"eos_token_id":N})"},
        {"generation_config.json", R"({"eos_token_id":[5,N,99999999]})"}};
    for (const auto& [file, content] : files) {
        ++slot;
        const std::string name = "own" + std::to_string(slot), model = "\"model\":\"" + name + "\"";
        std::vector<TokenId> all = said(), cut = all;
        cut.resize(size_t(std::ranges::find(all, all[2]) - all.begin()));
        std::string its = content;
        with_end(name, file, its.replace(its.find('N'), 1, std::to_string(all[2])));
        ASSERT_EQ(slot_of(name), slot);
        EXPECT_EQ(text(model), text_of(cut)) << content;
        EXPECT_EQ(text(model + R"(,"ignore_eos":true)"), text_of(all)) << content;
        EXPECT_EQ(text("\"adapters\":[{\"name\":\"" + name + "\"}]"), text_of(cut)) << content;
    }
    const Answer report = post("/v1/adapters/own" + std::to_string(slot) + "/validate", "{}");
    EXPECT_NE(report.body.find("\"end_token\":null,\"end_token_ids\":[5,"), std::string::npos) << report.body;
    EXPECT_NE(report.body.find("eos_token_id 99999999 is not in the base's vocabulary"), std::string::npos)
        << report.body;
}

// A grammar is another one with other ends: what is rendered or tokenized first compiles the one that generating then
// finds.
TEST_F(TemplateTest, ARequestsChecksReadItsGrammarWithTheEndsOfItsAnswer) {
    load_pirate();
    const Answer made =
        post("/v1/adapters", R"({"name":"own","files":{)" + files_of("pirate") + R"(,"generation_config.json":")" +
                                 put_blob(R"({"eos_token_id":[7]})") + "\"}}");
    ASSERT_EQ(made.status, 201) << made.body;
    for (const char* model : {"base", "own"}) {
        codec.asked_ends.clear();
        const std::string body = std::string(R"({"model":")") + model +
                                 R"(","messages":[{"role":"user","content":"hi"}],"structured_outputs":{"regex":"a"}})";
        for (const char* route : {"/v1/chat/completions/render", "/tokenize", "/v1/chat/completions"})
            EXPECT_NE(post(route, body).body.find("no grammars here"), std::string::npos) << route;
        ASSERT_EQ(codec.asked_ends.size(), 3u) << model;
        std::vector<TokenId> expected = {kEos};
        if (model == std::string_view("own")) expected.push_back(7);
        for (const std::vector<TokenId>& ends : codec.asked_ends) EXPECT_EQ(ends, expected) << model;
    }
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
