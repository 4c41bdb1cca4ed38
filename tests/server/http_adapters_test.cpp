// Adapters over HTTP: uploads, names and generations, mixes, removal, and every bad input.
#include <gmock/gmock.h>

#include "tests/server/http_fixture.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"

namespace lorad::server::http_adapters_test {
namespace {

using ::testing::HasSubstr;

const std::string kHex(64, 'a');

// What must be as before after a refused call.
struct State {
    std::vector<std::string> names;
    uint64_t stored_bytes = 0, device_bytes = 0;
    bool operator==(const State&) const = default;
};

class HttpAdapters : public HttpTest {
  protected:
    using HttpTest::HttpTest;
    State state() {
        State now;
        for (const auto& info : registry.list()) now.names.push_back(info.name + " " + info.generation);
        now.stored_bytes = registry.stats().stored_bytes;
        now.device_bytes = registry.device_bytes();
        return now;
    }
    void expect_error(const Answer& answer, int status, const std::string& code, const std::string& param) {
        EXPECT_EQ(answer.status, status) << answer.body;
        EXPECT_EQ(answer.code, code) << answer.body;
        EXPECT_EQ(answer.param, param) << answer.body;
    }
    // A form of fields and files.
    Answer post_form(const httplib::MultipartFormDataItems& items) {
        return read(client().Post("/v1/adapters", items));
    }
    static httplib::MultipartFormDataItems demo_form(const std::string& name, const std::string& demo) {
        const auto file = [&](const std::string& f) { return file_text(demo_folder(demo) + "/" + f); };
        return {{"name", name, "", ""},
                {"file", file("adapter_config.json"), "adapter_config.json", "application/json"},
                {"file", file("adapter_model.safetensors"), "adapter_model.safetensors", "application/octet-stream"}};
    }
};

TEST_F(HttpAdapters, AnUploadedAdapterAnswersUnderItsNameAndGeneration) {
    Answer created = register_demo("sql", "pirate");
    ASSERT_EQ(created.status, 201) << created.body;
    EXPECT_EQ(created.generation.size(), 64u);
    EXPECT_THAT(created.body, HasSubstr(R"("id":"sql")"));
    EXPECT_EQ(completed(R"("model":"sql")"), std::pair(continued({{slot_of("sql"), 1.0f}}), created.generation));
    EXPECT_EQ(completed(R"("model":"base")").second, "");
    Answer streamed =
        post("/v1/completions",
             R"({"model":"sql","prompt":[5,6],"max_tokens":4,"stream":true,"stream_options":{"include_usage":true}})");
    size_t n_chunks = 0, n_named = 0;
    for (size_t at = 0; (at = streamed.body.find("data: {", at)) != std::string::npos; ++at) ++n_chunks;
    for (size_t at = 0; (at = streamed.body.find(created.generation, at)) != std::string::npos; ++at) ++n_named;
    EXPECT_GE(n_chunks, 2u);
    EXPECT_EQ(n_named, n_chunks) << streamed.body;
    Answer shown = get("/v1/adapters/sql");
    EXPECT_EQ(shown.generation, created.generation);
    EXPECT_THAT(get("/v1/adapters").body, HasSubstr(created.generation));
    EXPECT_THAT(get("/v1/models").body, HasSubstr(R"("adapter_generation":")" + created.generation));
    expect_error(get("/v1/adapters/nobody"), 404, "adapter_not_found", "name");
}

TEST_F(HttpAdapters, ABlobIsTakenOnlyWithItsDigest) {
    const State before = state();
    const std::string path = "/v1/adapters/blobs/sha256:" + sha256_of("hello");
    expect_error(read(client().Put(path, "hullo", "a/b")), 400, "digest_mismatch", "");
    expect_error(read(client().Put(path, "hell", "a/b")), 400, "digest_mismatch", "");
    expect_error(read(client().Put(path, "", "a/b")), 400, "digest_mismatch", "");
    EXPECT_EQ(head(path), 404);
    EXPECT_EQ(state(), before);
    EXPECT_EQ(read(client().Put(path, "hello", "a/b")).status, 201);
    EXPECT_EQ(read(client().Put(path, "hello", "a/b")).status, 201) << "again";
    EXPECT_EQ(head(path), 200);
    for (const std::string& digest : {kHex, "md5:" + kHex, "sha256:" + kHex + "0", std::string("sha256:..%2F..%2Fx"),
                                      "sha256:" + std::string(64, 'A'), std::string("%2e%2e")}) {
        expect_error(read(client().Put("/v1/adapters/blobs/" + digest, "x", "a/b")), 400, "invalid_request", "digest");
    }
    EXPECT_EQ(get(path).status, 405) << "nobody reads back what another has sent";
}

TEST_F(HttpAdapters, ABlobThatIsTooLargeLeavesNothing) {
    context.uploads.file_bytes_max = 1000;
    const State before = state();
    const std::string body(1001, 'x');
    const std::string path = "/v1/adapters/blobs/sha256:" + sha256_of(body);
    EXPECT_EQ(read(client().Put(path, body, "a/b")).code, "lora_adapter_file_too_large");
    // Without a declared length nothing is taken.
    Answer chunked = read(client().Put(
        path,
        [&](size_t offset, httplib::DataSink& sink) {
            if (offset >= body.size()) {
                sink.done();
            } else {
                sink.write(body.data() + offset, std::min<size_t>(400, body.size() - offset));
            }
            return true;
        },
        "a/b"));
    expect_error(chunked, 411, "length_required", "");
    EXPECT_EQ(state(), before);
    put_blob(std::string(1000, 'x'));
}

TEST_F(HttpAdapters, AnUploadThatBreaksOffLeavesNothing) {
    const State before = state();
    const std::string body(200000, 'x');
    OwnedFd fd = connect_raw(listener->port());
    std::string request = "PUT /v1/adapters/blobs/sha256:" + sha256_of(body) +
                          " HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + body.substr(0, 100000);
    ASSERT_EQ(send(fd.get(), request.data(), request.size(), 0), ssize_t(request.size()));
    ASSERT_TRUE(lorad::testing::soon([&] { return context.uploads_now.n_taken() > 0; }));
    fd.reset();
    ASSERT_TRUE(lorad::testing::soon([&] { return context.uploads_now.n_taken() == 0; }));
    EXPECT_EQ(state(), before);
    EXPECT_EQ(head("/v1/adapters/blobs/sha256:" + sha256_of(body)), 404);
}

TEST_F(HttpAdapters, TooManyUploadsAtOnceAreToldToComeBack) {
    context.uploads_now.set_max(0);
    auto result = client().Put("/v1/adapters/blobs/sha256:" + sha256_of("a"), "a", "a/b");
    ASSERT_TRUE(bool(result));
    EXPECT_EQ(result->status, 429);
    EXPECT_EQ(result->get_header_value("Retry-After"), "1");
    EXPECT_EQ(read(result).code, "lora_load_busy");
    context.uploads_now.set_max(kUploadsMax);
}

TEST_F(HttpAdapters, RefusedRegistrationsChangeNothing) {
    ASSERT_EQ(register_demo("taken", "pirate").status, 201);
    const std::string good = uploaded_files("shout");
    const State before = state();
    const auto named = [&](const std::string& name) {
        return post("/v1/adapters", "{\"name\":\"" + name + "\"," + good + "}");
    };
    for (const char* name :
         {"../etc", "a/../b", "/root", "a\\u0000b", "a\\nb", "\\u007f", " a", "a ", "base", "\\u0085"})
        expect_error(named(name), 400, "invalid_lora_name", "name");
    expect_error(named(std::string(129, 'n')), 400, "invalid_lora_name", "name");
    expect_error(named("events"), 400, "invalid_lora_name", "name");
    expect_error(named(""), 400, "invalid_request", "name");
    expect_error(named("taken"), 400, "adapter_already_loaded", "name");
    const auto with = [&](const std::string& more) {
        return post("/v1/adapters", R"({"name":"taken",)" + good + more + "}");
    };
    expect_error(with(R"(,"replace":true,"expected_generation":")" + kHex + "\""), 409, "lora_generation_mismatch",
                 "expected_generation");
    expect_error(with(R"(,"expected_generation":")" + kHex + "\""), 400, "invalid_request", "expected_generation");
    expect_error(post("/v1/adapters", R"({"name":"x","name":"y",)" + good + "}"), 400, "invalid_request", "name");
    expect_error(post("/v1/adapters", R"({"name":"x","files":{"adapter_config.json":"sha256:)" + kHex + "\"}}"), 404,
                 "adapter_file_not_found", "files");
    expect_error(post("/v1/adapters", R"({"name":"x","files":{"../adapter_config.json":"sha256:)" + kHex + "\"}}"), 400,
                 "invalid_request", "files");
    expect_error(post("/v1/adapters", "{"), 400, "invalid_request", "");
    EXPECT_EQ(state(), before);
}

TEST_F(HttpAdapters, FilesThatAreNoAdapterAreRefusedAndStayForWhoeverSentThem) {
    const State before = state();
    const std::string config_blob = put_blob(file_text(demo_folder("pirate") + "/adapter_config.json"));
    const std::string pickle = put_blob("\x80\x02"
                                        "ccollections\nOrderedDict\n");
    const auto files = [&](const std::string& name, const std::string& digest) {
        return post("/v1/adapters", R"({"name":"x","files":{"adapter_config.json":")" + config_blob + "\",\"" + name +
                                        "\":\"" + digest + "\"}}");
    };
    Answer wrong_type = files("adapter_model.safetensors", pickle);
    EXPECT_EQ(wrong_type.status, 422) << wrong_type.body;
    EXPECT_EQ(wrong_type.code, "adapter_unsupported") << "pickles are refused by name";
    EXPECT_EQ(state().names, before.names);
    EXPECT_EQ(files("adapter_model.bin", pickle).status, 422) << "still there";
    // What was acknowledged is there for its uploader whatever was refused in between.
    const std::string weights = put_blob(file_text(demo_folder("pirate") + "/adapter_model.safetensors"));
    EXPECT_EQ(files("adapter_model.safetensors", weights).status, 201);
    EXPECT_EQ(client().Delete("/v1/adapters/x")->status, 200);
    registry.expire_uploads(unix_time_s() + adapters::kHoldSeconds + 10);
    EXPECT_EQ(state(), before) << "their time is over";
    EXPECT_EQ(files("adapter_model.bin", pickle).status, 404);
}

TEST_F(HttpAdapters, AnUploadOutlivesAnothersRemovalOfTheSameFiles) {
    register_demo("one", "pirate");
    const std::string files = uploaded_files("pirate");
    EXPECT_EQ(client().Delete("/v1/adapters/one")->status, 200);
    EXPECT_EQ(post("/v1/adapters", R"({"name":"mine",)" + files + "}").status, 201);
    EXPECT_EQ(client().Delete("/v1/adapters/mine")->status, 200);
    EXPECT_EQ(post("/v1/adapters", R"({"name":"again",)" + files + "}").status, 404) << "it has gone with its adapter";
}

TEST_F(HttpAdapters, WarningsAreInTheAnswerThatRegisters) {
    std::string peft = file_text(demo_folder("pirate") + "/adapter_config.json");
    const size_t targets = peft.find("\"target_modules\""), end = peft.find(']', targets);
    peft.replace(targets, end + 1 - targets, R"("target_modules":"(q)\\1.*")");
    const std::string answer =
        post("/v1/adapters", R"({"name":"told","files":{"adapter_config.json":")" + put_blob(peft) +
                                 R"(","adapter_model.safetensors":")" +
                                 put_blob(file_text(demo_folder("pirate") + "/adapter_model.safetensors")) + "\"}}")
            .body;
    EXPECT_THAT(answer, HasSubstr(R"("warnings":["target_modules: the expression)"));
    EXPECT_EQ(get("/v1/adapters/told").body.find("\"warnings\""), std::string::npos);
}

TEST_F(HttpAdapters, NoLinkBelowTheAdapterRootIsFollowed) {
    const lorad::testing::TempDir own;
    const std::filesystem::path root = own.path() / "root";
    std::filesystem::create_directory(root);
    std::filesystem::copy(demo_folder("pirate"), root / "sound");
    std::filesystem::copy(demo_folder("pirate"), root / "bent");
    std::ofstream(own.path() / "secret") << "{{ 'the secret' }}";
    std::filesystem::create_symlink(own.path() / "secret", root / "bent/chat_template.jinja");
    std::filesystem::create_symlink(demo_folder("pirate"), root / "link");
    context.adapter_root = root;
    const auto load = [&](const std::string& path) {
        return post("/v1/load_lora_adapter",
                    R"({"lora_name":"x","load_inplace":true,"lora_path":")" + (root / path).string() + "\"}");
    };
    EXPECT_EQ(load("sound").status, 200);
    EXPECT_EQ(load("./sound/").status, 200);
    for (const char* path : {"bent", "link", "link/.", "sound/../bent"}) {
        const Answer answer = load(path);
        EXPECT_EQ(answer.status, 403) << path << answer.body;
        EXPECT_EQ(answer.code, "adapter_path_forbidden") << path;
        EXPECT_THAT(answer.body, ::testing::Not(HasSubstr(own.path().string())));
        expect_error(post("/v1/adapters/validate", R"({"path":")" + (root / path).string() + "\"}"), 403,
                     "adapter_path_forbidden", "path");
    }
    EXPECT_EQ(load("../secret").status, 403);
    EXPECT_EQ(load("nothing").status, 404);
}

TEST_F(HttpAdapters, AFormRegistersASmallAdapterInOneCall) {
    Answer created = post_form(demo_form("one", "json"));
    ASSERT_EQ(created.status, 201) << created.body;
    EXPECT_EQ(created.generation, register_demo("two", "json").generation);
    EXPECT_EQ(completed(R"("model":"one")").second, created.generation);
    const State before = state();
    expect_error(post_form(demo_form("one", "shout")), 400, "adapter_already_loaded", "name");
    EXPECT_EQ(state(), before) << "what this form has stored is gone again";
    auto replacing = demo_form("one", "shout");
    replacing.push_back({"replace", "true", "", ""});
    replacing.push_back({"expected_generation", kHex, "", ""});
    expect_error(post_form(replacing), 409, "lora_generation_mismatch", "expected_generation");
    EXPECT_EQ(state(), before) << "what this form has stored is gone again";
    replacing.back().content = created.generation;
    EXPECT_EQ(post_form(replacing).status, 201);
}

TEST_F(HttpAdapters, BadFormsAreRefusedAndLeaveNothing) {
    const State before = state();
    auto form = demo_form("a", "json");
    form.push_back(form.back());
    expect_error(post_form(form), 400, "invalid_request", "\"adapter_model.safetensors\"");
    form = demo_form("a", "json");
    form[1].filename = "../adapter_config.json";
    expect_error(post_form(form), 400, "invalid_request", "files");
    form = demo_form("../a", "json");
    EXPECT_EQ(post_form(form).code, "invalid_lora_name");
    form = demo_form("a", "json");
    form.erase(form.begin());
    expect_error(post_form(form), 400, "invalid_request", "name");
    form = demo_form("a", "json");
    form.push_back({"replce", "true", "", ""});
    expect_error(post_form(form), 400, "invalid_request", "\"replce\"");
    form = demo_form("a", "json");
    form[2].content.resize(1000);
    EXPECT_EQ(post_form(form).status, 422);
    context.uploads.form_bytes_max = 1000;
    EXPECT_EQ(post_form(demo_form("a", "json")).status, 413);
    EXPECT_EQ(read(client().Post("/v1/adapters", "--b\r\n", "multipart/form-data; boundary=b")).status, 400);
    EXPECT_EQ(read(client().Post("/v1/adapters", "x", "multipart/form-data")).status, 400);
    EXPECT_EQ(state(), before);
    EXPECT_EQ(context.uploads_now.n_taken(), 0u);
}

TEST_F(HttpAdapters, ARequestMayNameASumOfAdapters) {
    const std::string a = register_demo("a", "pirate").generation, b = register_demo("b", "shout").generation;
    const uint32_t slot_a = slot_of("a"), slot_b = slot_of("b");
    auto mix = completed(R"("model":"base","adapters":[{"name":"a","scale":0.75},{"name":"b","scale":-0.5}])");
    EXPECT_EQ(mix.first, continued({{slot_a, 0.75f}, {slot_b, -0.5f}}));
    EXPECT_EQ(mix.second.size(), 64u);
    EXPECT_NE(mix.second, a);
    EXPECT_NE(mix.second, completed(R"("adapters":[{"name":"a","scale":0.5},{"name":"b","scale":-0.5}])").second);
    EXPECT_EQ(completed(R"("adapters":[{"name":"a"}])"), std::pair(continued({{slot_a, 1.0f}}), a));
    EXPECT_EQ(completed(R"("adapter":"b")"), std::pair(continued({{slot_b, 1.0f}}), b));
    for (const char* model : {"a", "base:a", "base::a"})
        EXPECT_EQ(completed("\"model\":\"" + std::string(model) + "\"").second, a) << model;
    // The base, to the bit: no adapter reaches the rows.
    const std::pair<std::string, std::string> base(continued({}), "");
    EXPECT_EQ(completed(R"("adapters":[])"), base);
    EXPECT_EQ(completed(R"("lora":[])"), base);
    EXPECT_EQ(completed(R"("adapters":[{"name":"a","scale":0},{"name":"b","scale":-0.0}])"), base);
    EXPECT_EQ(runner.n_broken(), 0u);

    const auto refused = [&](const std::string& fields) {
        return post("/v1/completions", "{\"prompt\":[1]," + fields + "}");
    };
    expect_error(refused(R"("adapters":[{"name":"a"},{"name":"nobody"}])"), 404, "adapter_not_found",
                 "adapters[1].name");
    expect_error(refused(R"("adapters":[{"name":"nobody","scale":0}])"), 404, "adapter_not_found", "adapters[0].name");
    expect_error(refused(R"("adapter":"nobody")"), 404, "adapter_not_found", "adapter");
    expect_error(refused(R"("model":"a","adapters":[{"name":"b"}])"), 400, "invalid_request", "adapters");
    expect_error(refused(R"("model":"a","lora":[])"), 400, "invalid_request", "lora");
    expect_error(refused(R"("model":"base::nobody")"), 404, "adapter_not_found", "model");
    expect_error(refused(R"("model":"base:")"), 404, "model_not_found", "model");
}

TEST_F(HttpAdapters, ANameMayStandForAMix) {
    register_demo("a", "pirate");
    register_demo("b", "shout");
    Answer mix =
        post("/v1/adapters", R"({"name":"m","adapters":[{"name":"a","scale":0.5},{"name":"b","scale":0.25}]})");
    ASSERT_EQ(mix.status, 201) << mix.body;
    const uint32_t slot_a = slot_of("a"), slot_b = slot_of("b");
    EXPECT_EQ(completed(R"("model":"m")"), std::pair(continued({{slot_a, 0.5f}, {slot_b, 0.25f}}), mix.generation));
    EXPECT_EQ(completed(R"("adapters":[{"name":"m","scale":2}])").first, continued({{slot_a, 1.0f}, {slot_b, 0.5f}}));
    EXPECT_THAT(get("/v1/adapters/m").body,
                HasSubstr(R"("adapters":[{"name":"a","scale":0.5},{"name":"b","scale":0.25}])"));
    expect_error(post("/v1/adapters", R"({"name":"n","adapters":[{"name":"nobody"}]})"), 404, "adapter_not_found",
                 "adapters");
    expect_error(post("/v1/adapters", R"({"name":"n","adapters":[{"name":"a","scale":0}]})"), 400, "invalid_request",
                 "adapters");
    EXPECT_EQ(get("/v1/adapters/n").status, 404);
}

TEST_F(HttpAdapters, LlamaServersNumbersAreStable) {
    register_demo("a", "pirate");
    context.lora_scales.add("a");
    EXPECT_EQ(get("/lora-adapters").body, R"([{"id":0,"path":"a","scale":0,"task_name":"","prompt_prefix":""}])");
    register_demo("b", "shout");
    EXPECT_THAT(get("/lora-adapters").body, HasSubstr(R"({"id":1,"path":"b")"));
    const uint32_t slot_a = slot_of("a"), slot_b = slot_of("b");
    EXPECT_EQ(completed(R"("lora":[{"id":1,"scale":0.5},{"id":0,"scale":0.25}])").first,
              continued({{slot_b, 0.5f}, {slot_a, 0.25f}}));
    EXPECT_EQ(post("/lora-adapters", R"([{"id":1,"scale":0.5}])").body, R"({"success":true})");
    EXPECT_EQ(completed(R"("model":"base")").first, continued({{slot_b, 0.5f}}))
        << "the scales hold for all who name none";
    EXPECT_EQ(completed(R"("lora":[])").first, continued({}));
    EXPECT_EQ(completed(R"("adapters":[])").first, continued({}));
    EXPECT_EQ(completed(R"("model":"a")").first, continued({{slot_a, 1.0f}}));
    EXPECT_EQ(del("/v1/adapters/b").status, 200);
    EXPECT_EQ(completed(R"("model":"base")").first, continued({})) << "one that has gone counts as 0";
    EXPECT_EQ(get("/lora-adapters").body.find("\"id\":1"), std::string::npos);
    register_demo("c", "json");
    EXPECT_THAT(get("/lora-adapters").body, HasSubstr(R"({"id":2,"path":"c")"));
    expect_error(post("/lora-adapters", R"([{"id":1,"scale":0.5}])"), 400, "invalid_request", "[0].id");
    expect_error(post("/v1/completions", R"({"prompt":[1],"lora":[{"id":9,"scale":1}]})"), 400, "invalid_request",
                 "lora[0].id");
    EXPECT_EQ(post("/lora-adapters", "[]").status, 200);
}

TEST_F(HttpAdapters, VllmsAndSglangsRoutesWorkOnTheSameNames) {
    const std::string folder = demo_folder("pirate");
    const auto body = [&](const std::string& more) {
        return R"({"lora_name":"v","lora_path":")" + folder + "\"" + more + "}";
    };
    httplib::Client text = client();
    auto plain = text.Post("/v1/load_lora_adapter", {{"Accept", "text/plain"}}, body(""), "application/json");
    ASSERT_TRUE(bool(plain));
    EXPECT_EQ(plain->body, "Success: LoRA adapter 'v' added successfully.");
    expect_error(post("/v1/load_lora_adapter", body("")), 400, "adapter_already_loaded", "lora_name");
    const std::string generation = get("/v1/adapters/v").generation;
    expect_error(post("/v1/load_lora_adapter", body(R"(,"load_inplace":true,"expected_generation":")" + kHex + "\"")),
                 409, "lora_generation_mismatch", "expected_generation");
    EXPECT_EQ(post("/v1/load_lora_adapter", body(R"(,"load_inplace":true,"expected_generation":")" + generation + "\""))
                  .status,
              200);
    expect_error(post("/v1/unload_lora_adapter", R"({"lora_name":"v","expected_generation":")" + kHex + "\"}"), 409,
                 "lora_generation_mismatch", "expected_generation");
    EXPECT_EQ(post("/v1/unload_lora_adapter", R"({"lora_name":"v","lora_int_id":null})").status, 200);

    Answer loaded = post("/load_lora_adapter", R"({"lora_name":"s","lora_path":")" + folder + R"(","pinned":true})");
    EXPECT_EQ(loaded.status, 200);
    EXPECT_EQ(loaded.body,
              R"({"success":true,"loaded_adapters":{"s":{"lora_id":")" + generation + R"(","pinned":true}}})");
    Answer again = post("/load_lora_adapter", R"({"lora_name":"s","lora_path":")" + folder + "\"}");
    EXPECT_EQ(again.status, 400);
    EXPECT_THAT(again.body, HasSubstr(R"("success":false,"error_message":)"));
    EXPECT_EQ(again.code, "adapter_already_loaded");
    EXPECT_EQ(post("/unload_lora_adapter", R"({"lora_name":"s"})").body, R"({"success":true,"loaded_adapters":{}})");
}

TEST_F(HttpAdapters, LoadsReadOnlyBelowTheRootWhereThereIsOne) {
    context.adapter_root = (lorad::testing::source_dir() / "deploy/demo-model/adapters").string();
    const auto load = [&](const std::string& path) {
        return post("/v1/load_lora_adapter", R"({"lora_name":"x","lora_path":")" + path + "\"}");
    };
    for (const std::string& path : {std::string("/etc"), demo_folder("../base"), demo_folder("pirate/../.."),
                                    context.adapter_root + "-other/x"}) {
        expect_error(load(path), 403, "adapter_path_forbidden", "lora_path");
    }
    EXPECT_EQ(load(demo_folder("nothing")).status, 404);
    EXPECT_EQ(load(demo_folder("shout/../pirate")).status, 200);
}

TEST_F(HttpAdapters, ValidationReportsWithoutChangingAnything) {
    const std::string generation = register_demo("a", "pirate").generation;
    const std::string files = uploaded_files("shout");
    const State before = state();
    const std::string of_files = post("/v1/adapters/validate", "{" + files + "}").body;
    EXPECT_EQ(of_files, post("/v1/adapters/validate", R"({"path":")" + demo_folder("shout") + "\"}").body);
    EXPECT_THAT(of_files, HasSubstr(R"("fits":true)"));
    EXPECT_THAT(post("/v1/adapters/a/validate", "").body, HasSubstr(generation));
    const std::string pickle = put_blob("\x80\x02"
                                        "cos\nsystem\n");
    Answer refused = post("/v1/adapters/validate", R"({"files":{"adapter_model.bin":")" + pickle + "\"}}");
    EXPECT_EQ(refused.status, 200);
    EXPECT_THAT(refused.body, HasSubstr(R"("fits":false)"));
    expect_error(post("/v1/adapters/nobody/validate", ""), 404, "adapter_not_found", "name");
    expect_error(post("/v1/adapters/validate", R"({"files":{"f":"sha256:)" + kHex + "\"}}"), 404,
                 "adapter_file_not_found", "files");
    EXPECT_EQ(post("/v1/adapters/validate", R"({"path":"/nonexistent"})").status, 200);
    context.adapter_root = demo_folder("pirate");
    expect_error(post("/v1/adapters/validate", R"({"path":"/etc"})"), 403, "adapter_path_forbidden", "path");
    EXPECT_EQ(state().names, before.names);
    EXPECT_EQ(state().device_bytes, before.device_bytes);
}

TEST_F(HttpAdapters, MetricsTellWhereAdaptersAre) {
    register_demo("a", "pirate");
    register_demo("b", "shout");
    completed(R"("model":"a")");
    EXPECT_EQ(metric(R"(vllm:lora_adapter_loaded{adapter_name="a",level="gpu",pinned="false"})"), 1.0);
    EXPECT_EQ(metric(R"(vllm:num_gpu_loaded_lora_adapters{model_name="base"})"), 1.0);
    EXPECT_EQ(metric(R"(lorad_adapters_registered{model_name="base"})"), 2.0);
    EXPECT_EQ(metric(R"(lorad_adapter_loads_total{model_name="base"})"), 1.0);
    EXPECT_EQ(metric(R"(lorad_adapter_device_bytes{model_name="base"})"), double(registry.device_bytes()));
}

TEST_F(HttpAdapters, AFormIsNoJson) {
    expect_error(read(client().Post("/v1/completions", "x", "multipart/form-data; boundary=b")), 415,
                 "unsupported_media_type", "");
}

TEST_F(HttpAdapters, RollbackGoesBackAndSaysSo) {
    const std::string first = register_demo("a", "pirate").generation;
    const std::string second = register_demo("a", "shout", R"(,"replace":true)").generation;
    EXPECT_NE(first, second);
    Answer back = post("/v1/adapters/a/rollback", "");
    EXPECT_EQ(back.status, 200) << back.body;
    EXPECT_EQ(back.generation, first);
    EXPECT_THAT(back.body, HasSubstr(R"("history":[{"generation":")" + second));
    EXPECT_EQ(completed(R"("model":"a")").second, first);
    EXPECT_EQ(post("/v1/adapters/a/rollback", R"({"generation":")" + second + "\"}").generation, second);
    EXPECT_EQ(post("/v1/adapters/a/rollback", R"({"generation":")" + kHex + "\"}").status, 409);
    expect_error(post("/v1/adapters/nobody/rollback", ""), 404, "adapter_not_found", "name");
    expect_error(post("/v1/adapters/a/rollback", R"({"generation":"x"})"), 400, "invalid_request", "generation");
}

TEST_F(HttpAdapters, ActivationBringsAnAdapterToTheDeviceAndPinsIt) {
    register_demo("a", "pirate");
    EXPECT_EQ(registry.find("a")->tier == adapters::Tier::kGpu, false) << "registering does not load";
    Answer active = post("/v1/adapters/a/activate", R"({"mode":"unmerged","pin":true})");
    EXPECT_EQ(active.status, 200) << active.body;
    EXPECT_THAT(active.body, HasSubstr(R"("tier":"gpu","mode":"unmerged","pinned":true)"));
    expect_error(post("/v1/adapters/a/activate", R"({"mode":"merged"})"), 400, "invalid_lora_load_policy", "mode");
    Answer idle = post("/v1/adapters/a/deactivate", "");
    EXPECT_EQ(idle.status, 200);
    EXPECT_THAT(idle.body, HasSubstr(R"("mode":"none","pinned":false)"));
    for (const char* call : {"activate", "deactivate"})
        expect_error(post("/v1/adapters/nobody/" + std::string(call), ""), 404, "adapter_not_found", "name");
}

TEST_F(HttpAdapters, NamesWithSlashesArePercentEncoded) {
    ASSERT_EQ(register_demo("org/sql v1", "pirate").status, 201);
    EXPECT_EQ(get("/v1/adapters/org%2Fsql%20v1").status, 200);
    EXPECT_EQ(get("/v1/adapters/org/sql%20v1").status, 404);
    EXPECT_EQ(get("/v1/models/org/sql%20v1").status, 200);
    EXPECT_EQ(post("/v1/adapters/org%2Fsql%20v1/activate", "{}").status, 200);
    EXPECT_EQ(completed(R"("model":"org/sql v1")").second.size(), 64u);
    EXPECT_EQ(del("/v1/adapters/org%2Fsql%20v1").status, 200);
}

TEST_F(HttpAdapters, OneOfManyCallsForANameWins) {
    const std::string files[] = {uploaded_files("pirate"), uploaded_files("shout")};
    std::atomic<int> n_created{0}, n_exist{0}, n_other{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&, i] {
            Answer answer = post("/v1/adapters", R"({"name":"a",)" + files[i % 2] + "}");
            (answer.status == 201 ? n_created : answer.code == "adapter_already_loaded" ? n_exist : n_other)++;
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(n_created, 1);
    EXPECT_EQ(n_exist, 7);
    // Of those that replace what they have seen, one wins, too.
    const std::string generation = registry.find("a")->generation;
    const std::string mine = R"(,"replace":true,"expected_generation":")" + generation + "\"}";
    const std::string other = register_demo("b", "json").generation;
    const std::string json = uploaded_files("json");
    std::atomic<int> n_replaced{0}, n_late{0};
    threads.clear();
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&] {
            Answer answer = post("/v1/adapters", R"({"name":"a",)" + json + mine);
            (answer.status == 201 ? n_replaced : answer.code == "lora_generation_mismatch" ? n_late : n_other)++;
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(n_other, 0);
    EXPECT_EQ(n_replaced + n_late, 8);
    EXPECT_EQ(n_replaced, 1);
    EXPECT_EQ(registry.find("a")->generation, other);
}

TEST_F(HttpAdapters, ListsComeInPagesWhereAskedFor) {
    for (const char* name : {"a", "b", "c/d"}) register_demo(name, "pirate");
    const auto page = [&](const std::string& query) {
        std::string names;
        Result<JsonDocument> document = parse_json(get("/v1/adapters" + query).body);
        EXPECT_TRUE(document.ok());
        if (!document.ok()) return names;
        for (const JsonValue& adapter : *document->root().find("data")->as_array())
            names += std::string(*adapter.string_or("id", "")) + " ";
        return names + (*document->root().find("has_more")->as_bool() ? "more" : "end");
    };
    EXPECT_EQ(page(""), "a b c/d end");
    EXPECT_EQ(page("?limit=3"), "a b c/d end");
    EXPECT_EQ(page("?limit=2"), "a b more");
    EXPECT_EQ(page("?limit=2&after=b"), "c/d end");
    EXPECT_EQ(page("?limit=2&after=aa"), "b c/d end") << "the name need not be there";
    EXPECT_EQ(page("?limit=1&after=c%2Fd"), "end");
    expect_error(get("/v1/adapters?limit=0"), 400, "invalid_request", "limit");
    expect_error(get("/v1/adapters?limit=1001"), 400, "invalid_request", "limit");
    expect_error(get("/v1/adapters?limit=x"), 400, "invalid_request", "limit");
    expect_error(get("/v1/adapters?after=a"), 400, "invalid_request", "after");
}

TEST_F(HttpAdapters, RemovalsSayWhatIsWrong) {
    register_demo("a", "pirate");
    expect_error(del("/v1/adapters/nobody"), 404, "adapter_not_found", "name");
    expect_error(del("/v1/adapters/a?mode=fast"), 400, "invalid_lora_load_policy", "mode");
    expect_error(del("/v1/adapters/a?timeout_ms=-1"), 400, "invalid_request", "timeout_ms");
    expect_error(del("/v1/adapters/a?timeout_ms=1e3"), 400, "invalid_request", "timeout_ms");
    expect_error(del("/v1/adapters/a?expected_generation=x"), 400, "invalid_request", "expected_generation");
    expect_error(del("/v1/adapters/a?expected_generation=" + kHex), 409, "lora_generation_mismatch",
                 "expected_generation");
    expect_error(del("/v1/adapters/a?force=1"), 400, "invalid_request", "force");
    EXPECT_EQ(get("/v1/adapters/a").status, 200);
    Answer gone = del("/v1/adapters/a?mode=now&timeout_ms=1000");
    EXPECT_EQ(gone.status, 200);
    EXPECT_THAT(gone.body, HasSubstr(R"("deleted":true,"in_flight":0)"));
    EXPECT_EQ(state(), State{}) << "files and device memory are free";
}

}  // namespace
}  // namespace lorad::server::http_adapters_test
