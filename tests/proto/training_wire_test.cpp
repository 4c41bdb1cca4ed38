// Bodies and answers of training, and forms that are taken apart while they come.
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "proto/multipart_stream.h"
#include "proto/training/fine_tuning_request.h"
#include "proto/training/training_write.h"

namespace lorad::proto {
namespace {

using nlohmann::json;

json body(const json& more = {}) {
    json out = {{"model", "base"}, {"training_file", "file-1"}};
    if (more.is_object()) out.update(more);
    return out;
}
FineTuningRequest parsed(const json& more) {
    auto request = parse_fine_tuning_request(body(more).dump());
    EXPECT_TRUE(request.ok()) << request.error().message;
    return request.ok() ? *request : FineTuningRequest();
}
// "CODE PARAM" of what is refused.
std::string refused(const json& more) {
    auto request = parse_fine_tuning_request(body(more).dump());
    if (request.ok()) return "taken";
    return (request.error().code == ErrorCode::kUnsupportedParameter ? "unsupported " : "invalid ") +
           request.error().param;
}

TEST(FineTuningRequests, OpenAiNamesAndOursAreRead) {
    const FineTuningRequest request = parsed(
        {{"suffix", "support"},
         {"seed", 7},
         {"metadata", {{"a", "b"}}},
         {"method",
          {{"type", "supervised"},
           {"supervised",
            {{"hyperparameters", {{"n_epochs", 4}, {"batch_size", "auto"}, {"learning_rate_multiplier", 0.5}}}}}}},
         {"lora_r", 8},
         {"lora_trainable_modules", "q_proj, v_proj"},
         {"exclude_modules", "layers.0.self_attn.q_proj"},
         {"modules_to_save", {"norm"}},
         {"lr_scheduler", "linear"},
         {"max_grad_norm", 0},
         {"packing", false},
         {"foo", 1}});
    EXPECT_EQ(request.suffix, "support");
    EXPECT_EQ(request.seed, 7u);
    EXPECT_EQ(request.recipe.n_epochs, 4u);
    EXPECT_FALSE(request.recipe.batch_size.has_value());
    EXPECT_EQ(request.recipe.learning_rate_multiplier, 0.5);
    EXPECT_EQ(request.recipe.lora_r, 8u);
    EXPECT_EQ(request.recipe.lora_trainable_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
    EXPECT_EQ(request.recipe.exclude_modules, std::vector<std::string>{"layers.0.self_attn.q_proj"});
    EXPECT_EQ(request.recipe.modules_to_save, std::vector<std::string>{"norm"});
    EXPECT_EQ(parsed({{"r", 4}}).recipe.lora_r, 4u);
    EXPECT_EQ(parsed({{"r", 4}}).form_fields, std::vector<std::string>{"r"});
    EXPECT_EQ(request.recipe.max_grad_norm, 0.0);
    EXPECT_EQ(request.ignored_fields, std::vector<std::string>{"foo"});
    EXPECT_EQ(parsed({{"hyperparameters", {{"n_epochs", 2}}}}).recipe.n_epochs, 2u);
}

TEST(FineTuningRequests, WhatIsNotDoneIsRefusedByName) {
    EXPECT_EQ(refused({{"method", {{"type", "dpo"}}}}), "unsupported method.type");
    EXPECT_EQ(refused({{"method", {{"type", "reinforcement"}}}}), "unsupported method.type");
    EXPECT_EQ(refused({{"method", {{"type", "supervised"}, {"dpo", json::object()}}}}), "unsupported method.dpo");
    EXPECT_EQ(refused({{"integrations", {{{"type", "wandb"}}}}}), "unsupported integrations");
    EXPECT_EQ(refused({{"integrations", json::array()}}), "taken");
    EXPECT_EQ(refused({{"bias", "none"}}), "taken");
    EXPECT_EQ(refused({{"bias", "some"}}), "invalid bias");
    EXPECT_EQ(refused({{"lora_bias", false}, {"init_lora_weights", true}, {"trainable_token_indices", nullptr}}),
              "taken");
    EXPECT_EQ(refused({{"init_lora_weights", "pissa"}}), "unsupported init_lora_weights");
    EXPECT_EQ(refused({{"trainable_token_indices", {1}}}), "unsupported trainable_token_indices");
    EXPECT_EQ(refused({{"target_parameters", {"mlp.experts.down_proj"}}}), "unsupported target_parameters");
    EXPECT_EQ(refused({{"use_dora", true}, {"lora_dropout", 0.1}}), "taken");
    EXPECT_EQ(refused({{"hyperparameters", {{"beta", 0.1}}}}), "unsupported hyperparameters.beta");
}

TEST(FineTuningRequests, RangesAndContradictionsAreTold) {
    EXPECT_EQ(refused({{"hyperparameters", {{"n_epochs", 51}}}}), "invalid hyperparameters.n_epochs");
    EXPECT_EQ(refused({{"lora_r", 513}}), "invalid lora_r");
    EXPECT_EQ(refused({{"lora_r", 0}}), "invalid lora_r");
    EXPECT_EQ(refused({{"learning_rate", -1}}), "invalid learning_rate");
    EXPECT_EQ(refused({{"lr_scheduler", "step"}}), "invalid lr_scheduler");
    EXPECT_EQ(refused({{"train_on", "user"}}), "invalid train_on");
    EXPECT_EQ(refused({{"validation_file", "file-2"}, {"validation_split", 0.1}}), "invalid validation_split");
    EXPECT_EQ(refused({{"early_stopping_patience", 2}}), "invalid early_stopping_patience");
    EXPECT_EQ(refused({{"eval_steps", 2}}), "invalid eval_steps");
    EXPECT_EQ(refused({{"lora_r", 8}, {"r", 4}}), "invalid r");
    EXPECT_EQ(refused({{"alpha_pattern", {{"q_proj", 0}}}}), "invalid alpha_pattern.q_proj");
    EXPECT_EQ(refused({{"lora_trainable_modules", "q_proj"}, {"target_modules", "k_proj"}}), "invalid target_modules");
    EXPECT_EQ(refused({{"hyperparameters", {{"n_epochs", 2}}},
                       {"method", {{"type", "supervised"}, {"supervised", {{"hyperparameters", {{"n_epochs", 3}}}}}}}}),
              "invalid hyperparameters");
    EXPECT_FALSE(parse_fine_tuning_request(R"({"model":"base"})").ok());
    EXPECT_FALSE(parse_fine_tuning_request("[]").ok());
}

TEST(FineTuningRequests, RecipesComeBackFromTheirJson) {
    FineTuningRequest request = parsed({{"lora_alpha", 3.5},
                                        {"rank_pattern", {{"q_proj", 4}}},
                                        {"alpha_pattern", {{"q_proj", 2.5}}},
                                        {"layers_to_transform", {0, 2}},
                                        {"exclude_modules", {"k_proj"}},
                                        {"bias", "lora_only"},
                                        {"lora_bias", true},
                                        {"warmup_steps", 3},
                                        {"max_steps", 9},
                                        {"overlong", "error"},
                                        {"shuffle", false},
                                        {"eval_steps", 5},
                                        {"validation_split", 0.25},
                                        {"early_stopping_patience", 2}});
    // Records may have what requests no longer may.
    EXPECT_TRUE(parse_recipe(R"({"seed":1,"alpha_pattern":{"q_proj":0}})").ok());
    const std::string text = recipe_json(request.recipe);
    const auto again = parse_recipe(text);
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(recipe_json(*again), text);
    EXPECT_EQ(again->layers_to_transform, (std::vector<uint32_t>{0, 2}));
    EXPECT_EQ(again->exclude_modules, std::vector<std::string>{"k_proj"});
    EXPECT_EQ(again->bias, "lora_only");
    EXPECT_TRUE(again->lora_bias);
    EXPECT_TRUE(again->refuse_overlong);
    EXPECT_FALSE(again->shuffle);
}

TEST(TrainingAnswers, HaveWhatOpenAiClientsRead) {
    JobObject job;
    job.id = "ftjob-1";
    job.status = "running";
    job.model = "base";
    job.training_file = "file-1";
    job.recipe.n_epochs = 3;
    const json shown = json::parse(job_json(job));
    for (const char* key : {"object",
                            "id",
                            "created_at",
                            "finished_at",
                            "estimated_finish",
                            "status",
                            "model",
                            "fine_tuned_model",
                            "organization_id",
                            "training_file",
                            "validation_file",
                            "result_files",
                            "trained_tokens",
                            "seed",
                            "error",
                            "user_provided_suffix",
                            "integrations",
                            "metadata",
                            "hyperparameters",
                            "method",
                            "lorad"})
        EXPECT_TRUE(shown.contains(key)) << key;
    EXPECT_EQ(shown["hyperparameters"],
              (json{{"n_epochs", 3}, {"batch_size", "auto"}, {"learning_rate_multiplier", "auto"}}));
    EXPECT_EQ(shown["method"]["supervised"]["hyperparameters"], shown["hyperparameters"]);
    EXPECT_TRUE(shown["fine_tuned_model"].is_null());
    JobEventObject event{"ftevent-1-1", "info", "m", 5, StepMetrics{.step = 3, .n_steps = 9, .train_loss = 0.5}};
    EXPECT_EQ(json::parse(job_event_json(event))["data"], (json{{"step", 3}, {"total_steps", 9}, {"train_loss", 0.5}}));
    const std::vector<std::string> objects{"{\"id\":\"a\"}"};
    EXPECT_EQ(json::parse(list_json(objects, true, "a", "a"))["has_more"], true);
}

TEST(TrainingWire, AnEventIsReadAsItWasWritten) {
    StepMetrics all{.step = 3, .n_steps = 9};
    std::optional<double>* numbers[] = {&all.train_loss,     &all.train_accuracy,  &all.valid_loss,
                                        &all.valid_accuracy, &all.full_valid_loss, &all.full_valid_accuracy,
                                        &all.learning_rate,  &all.grad_norm,       &all.tokens_per_s};
    double next = 0.1;
    for (std::optional<double>* number : numbers) *number = next *= 1.7;
    all.tokens = 1000;
    for (const JobEventObject& event :
         {JobEventObject{"ftevent-1-1", "warn", "\"quoted\"\n\xc3\xa9", 5, {}},
          JobEventObject{"ftevent-1-2", "info", "m", 6, StepMetrics{.step = 1, .n_steps = 2}},
          JobEventObject{"ftevent-1-3", "info", "m", 7, all}}) {
        const std::string text = job_event_json(event);
        const Result<JobEventObject> read = parse_job_event(text);
        ASSERT_TRUE(read.ok()) << read.error().message;
        EXPECT_EQ(job_event_json(*read), text);
        EXPECT_EQ(read->metrics.has_value(), event.metrics.has_value());
    }
    EXPECT_FALSE(parse_job_event(R"({"type":"metrics"})").ok());
    EXPECT_FALSE(parse_job_event(R"({"id":7})").ok());
}

// What a form held, part by part.
struct Parts {
    std::vector<std::pair<std::string, std::string>> all;
    MultipartSink sink() {
        return {.begin =
                    [this](const FormPart& part) {
                        all.emplace_back(part.name + (part.has_filename ? "/" + part.filename : ""), "");
                        return ok_status();
                    },
                .content =
                    [this](std::string_view content) {
                        all.back().second += content;
                        return ok_status();
                    },
                .end = [] { return ok_status(); }};
    }
};

TEST(MultipartStreams, ReadWhatTheWholeBodyHoldsHoweverItIsCut) {
    std::mt19937 random(7);
    const std::string bodies[] = {
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n--b\r\nContent-Disposition: "
        "form-data; name=\"file\"; filename=\"a.jsonl\"\r\nContent-Type: x/y\r\n\r\n"
        "one\r\n--c\r\n-\r\n--\r\ntwo\n\r\n--b--\r\nrest",
        "preamble\r\n--b  \r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n--b\r\nContent-Disposition: "
        "form-data; name=\"x\"\r\n\r\n\r\n\r\n--b--"};
    for (const std::string& text : bodies) {
        const auto whole = parse_multipart(text, "b");
        ASSERT_TRUE(whole.ok()) << whole.error().message;
        for (int trial = 0; trial < 50; ++trial) {
            Parts parts;
            MultipartStream stream("b", parts.sink());
            for (size_t at = 0; at < text.size();) {
                const size_t n = trial == 0 ? 1 : 1 + random() % 20;
                ASSERT_TRUE(stream.push(std::string_view(text).substr(at, n)).ok());
                at += n;
            }
            ASSERT_TRUE(stream.finish().ok());
            ASSERT_EQ(parts.all.size(), whole->size());
            for (size_t i = 0; i < whole->size(); ++i) EXPECT_EQ(parts.all[i].second, (*whole)[i].content);
        }
    }
}

TEST(MultipartStreams, MalformedOnesAreRefusedInBoundedMemory) {
    const auto read = [](const std::string& text) -> Status {
        Parts parts;
        MultipartStream stream("b", parts.sink());
        TRY(stream.push(text));
        return stream.finish();
    };
    EXPECT_FALSE(read("").ok());
    EXPECT_FALSE(read("--b\r\n\r\n\r\nx\r\n--b--").ok());
    EXPECT_FALSE(read("--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx").ok());
    EXPECT_FALSE(read("--b\r\n" + std::string(10'000, 'h')).ok());
    EXPECT_FALSE(read("--bx\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx\r\n--b--").ok());
    std::string many;
    for (int i = 0; i < 40; ++i) many += "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx\r\n";
    EXPECT_FALSE(read(many + "--b--").ok());
}

}  // namespace
}  // namespace lorad::proto
