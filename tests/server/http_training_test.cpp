// /v1/files and /v1/fine_tuning/jobs over sockets, on a trainer of one number.
#include <nlohmann/json.hpp>

#include "tests/server/http_fixture.h"
#include "tests/server/training_fixture.h"

namespace lorad::server {
namespace {

using nlohmann::json;

class HttpTraining : public HttpTest {
  protected:
    HttpTraining() {
        training::TrainingLimits limits;
        limits.files.file_bytes_max = 100'000;
        service = *training::TrainingService::open(dir.path() / "training", host, limits);
        context.training = service.get();
    }
    ~HttpTraining() override {
        service->stop();
        context.training = nullptr;
    }
    httplib::Result upload(const std::string& content, const std::string& purpose = "fine-tune") {
        return client().Post("/v1/files",
                             httplib::MultipartFormDataItems{{"purpose", purpose, "", ""},
                                                             {"file", content, "data.jsonl", "application/jsonl"}});
    }
    std::string uploaded(const std::string& content) { return json::parse(upload(content)->body).at("id"); }
    json got(const std::string& path) {
        const Answer answer = get(path);
        EXPECT_EQ(answer.status, 200) << path << answer.body;
        return json::parse(answer.body);
    }
    json job_of(const std::string& file, json more = {}) {
        json body = {{"model", "base"},
                     {"training_file", file},
                     {"suffix", "mine"},
                     {"hyperparameters", {{"n_epochs", 2}, {"batch_size", 2}}}};
        if (more.is_object()) body.update(more);
        return body;
    }

    lorad::testing::TempDir dir;
    training::FakeHost host;
    std::unique_ptr<training::TrainingService> service;
};

TEST_F(HttpTraining, FilesComeAndGo) {
    const std::string content = training::token_lines(3);
    const auto answer = upload(content);
    ASSERT_EQ(answer->status, 200) << answer->body;
    const json file = json::parse(answer->body);
    EXPECT_EQ(file["bytes"], content.size());
    EXPECT_EQ(file["filename"], "data.jsonl");
    const std::string path = "/v1/files/" + file["id"].get<std::string>();
    EXPECT_EQ(got(path), file);
    EXPECT_EQ(got("/v1/files")["data"], json::array({file}));
    EXPECT_EQ(got("/v1/files?purpose=batch")["data"], json::array());
    EXPECT_EQ(get(path + "/content").body, content);
    const json report = json::parse(post(path + "/check", "").body);
    EXPECT_EQ(report["sequences"], 3);
    EXPECT_EQ(report["problems"], json::array());
    EXPECT_EQ(json::parse(client().Delete(path)->body),
              (json{{"id", file["id"]}, {"object", "file"}, {"deleted", true}}));
    EXPECT_EQ(get(path).status, 404);
    EXPECT_EQ(get(path).param, "file_id");
}

TEST_F(HttpTraining, FormsThatAreNoneAreRefused) {
    EXPECT_EQ(read(upload("x", "batch")).code, "unsupported_parameter");
    EXPECT_EQ(read(upload(std::string(100'001, 'x'))).code, "request_too_large");
    EXPECT_EQ(read(client().Post("/v1/files", "{}", "application/json")).code, "unsupported_media_type");
    EXPECT_EQ(read(client().Post("/v1/files", httplib::MultipartFormDataItems{{"purpose", "fine-tune", "", ""}})).param,
              "file");
    EXPECT_EQ(read(client().Post("/v1/files", httplib::MultipartFormDataItems{{"file", "x", "a", ""}})).param,
              "purpose");
    EXPECT_EQ(
        read(client().Post("/v1/files", httplib::MultipartFormDataItems{{"purpose", "fine-tune", "", ""},
                                                                        {"expires_after[seconds]", "60", "", ""}}))
            .code,
        "unsupported_parameter");
    EXPECT_EQ(read(client().Post("/v1/files", httplib::MultipartFormDataItems{{"purpose", "fine-tune", "", ""},
                                                                              {"tenant", "a", "", ""}}))
                  .param,
              "tenant");
    EXPECT_EQ(got("/v1/files")["data"], json::array());
    EXPECT_EQ(get("/v1/files?limit=0").param, "limit");
    EXPECT_EQ(get("/v1/files?after=nothing").param, "after");
}

TEST_F(HttpTraining, AJobIsMadeFollowedAndDone) {
    const std::string file = uploaded(training::token_lines(6));
    const Answer answer =
        post("/v1/fine_tuning/jobs", job_of(file, {{"metadata", {{"k", "v"}}}, {"lora_r", 4}}).dump());
    ASSERT_EQ(answer.status, 200) << answer.body;
    const std::string id = json::parse(answer.body)["id"], path = "/v1/fine_tuning/jobs/" + id;
    EXPECT_EQ(json::parse(answer.body)["status"], "validating_files");
    EXPECT_EQ(got("/v1/fine_tuning/jobs?metadata[k]=v")["data"].size(), 1u);
    EXPECT_EQ(got("/v1/fine_tuning/jobs?metadata[k]=w")["data"].size(), 0u);
    EXPECT_EQ(read(client().Delete("/v1/files/" + file)).status, 409);
    service->start();
    // The stream ends by itself when the job does.
    const Answer stream = get(path + "/events?stream=true");
    EXPECT_EQ(stream.type, "text/event-stream");
    EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
    const json job = got(path);
    EXPECT_EQ(job["status"], "succeeded");
    EXPECT_EQ(job["fine_tuned_model"], "mine");
    EXPECT_EQ(job["lorad"]["recipe"]["lora_r"], 4);
    EXPECT_EQ(job["lorad"]["data"]["sequences"], 6);
    const json events = got(path + "/events?limit=2");
    ASSERT_EQ(events["data"].size(), 2u);
    EXPECT_TRUE(events["has_more"]);
    const json next = got(path + "/events?limit=2&after=" + events["last_id"].get<std::string>());
    EXPECT_NE(next["data"][0], events["data"][1]);
    const json checkpoints = got(path + "/checkpoints");
    ASSERT_EQ(checkpoints["data"].size(), 2u);
    EXPECT_EQ(checkpoints["data"][0]["step_number"], 6);
    const Answer archive = get(path + "/adapter");
    EXPECT_EQ(archive.type, "application/x-tar");
    EXPECT_EQ(archive.body.size() % 512, 0u);
    EXPECT_EQ(archive.body.substr(257, 5), "ustar");
    const std::string first = checkpoints["data"][1]["id"];
    EXPECT_EQ(get(path + "/adapter?checkpoint=" + first).status, 200);
    EXPECT_EQ(get(path + "/adapter?checkpoint=ftckpt-0").status, 404);
    EXPECT_EQ(post(path + "/checkpoints/" + first + "/publish", "").status, 200);
    EXPECT_NE(host.generation_of("mine"), job["lorad"]["generation"]);
    EXPECT_EQ(post(path + "/cancel", "").code, "invalid_request");
}

TEST_F(HttpTraining, WhatCannotBeTrainedIsToldInOpenAisEnvelope) {
    const std::string file = uploaded(training::token_lines(3));
    const auto code_of = [&](const json& body) {
        const Answer answer = post("/v1/fine_tuning/jobs", body.dump());
        return std::to_string(answer.status) + " " + answer.code + " " + answer.param;
    };
    EXPECT_EQ(code_of(job_of("file-nothing")), "400 invalid_request training_file");
    EXPECT_EQ(code_of(job_of(file, {{"model", "nobody"}})), "404 model_not_found model");
    EXPECT_EQ(code_of(job_of(file, {{"init_from", "nobody"}})), "404 adapter_not_found init_from");
    EXPECT_EQ(code_of(job_of(file, {{"suffix", "base"}})), "400 invalid_lora_name suffix");
    ASSERT_EQ(register_demo("there", "pirate").status, 201);
    EXPECT_EQ(code_of(job_of(file, {{"init_from", "there"}, {"lora_r", 8}})), "400 invalid_request lora_r");
    EXPECT_EQ(code_of(job_of(file, {{"model", "there"}, {"lora_r", nullptr}, {"use_dora", true}})),
              "400 invalid_request use_dora");
    EXPECT_EQ(code_of(job_of(file, {{"init_from", "there@nothing"}, {"lora_r", nullptr}})),
              "404 adapter_not_found init_from");
    EXPECT_EQ(code_of(job_of(file, {{"method", {{"type", "dpo"}}}})), "400 unsupported_parameter method.type");
    EXPECT_EQ(code_of(job_of(file, {{"max_seq_length", 100'000}})), "400 invalid_request max_seq_length");
    EXPECT_EQ(get("/v1/fine_tuning/jobs/ftjob-0").status, 404);
    EXPECT_EQ(post("/v1/fine_tuning/jobs/ftjob-0/cancel", "").status, 404);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(post("/v1/fine_tuning/jobs", job_of(file).dump()).status, 200);
    EXPECT_EQ(code_of(job_of(file)), "429 rate_limited ");
    context.training = nullptr;
    EXPECT_EQ(get("/v1/files").status, 404);
    EXPECT_NE(get("/v1/fine_tuning/jobs").message.find("trains nothing"), std::string::npos);
}

}  // namespace
}  // namespace lorad::server
