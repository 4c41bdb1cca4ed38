// /api/v1 over sockets, on a trainer of one number: values, order, futures, bounds, tenants, refusals.
#include <cmath>

#include <nlohmann/json.hpp>

#include "proto/tinker/protobuf.h"
#include "server/http/tinker_samples.h"
#include "server/tinker/model_sessions.h"
#include "tests/server/http_fixture.h"
#include "tests/server/training_fixture.h"

namespace lorad::server::http_tinker_test {
namespace {

using nlohmann::json;
using proto::ProtoReader;
using proto::ProtoWriter;

template <typename T>
std::string packed(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string tensor(uint64_t type, const std::string& bytes, size_t n) {
    return ProtoWriter().bytes(1, bytes).number(3, type).number(4, n).take();
}
std::string floats(const std::vector<float>& values) { return tensor(1, packed(values), values.size()); }
std::string whole(const std::vector<int64_t>& values) { return tensor(2, packed(values), values.size()); }

// A sequence of as many tokens as there are targets.
std::string datum(const std::vector<int64_t>& targets, const std::map<std::string, std::vector<float>>& inputs) {
    const std::vector<int32_t> tokens(targets.size(), 1);
    const std::string text = ProtoWriter().bytes(1, packed(tokens)).take();
    ProtoWriter out;
    out.bytes(1, ProtoWriter().bytes(1, text).take());
    out.bytes(2, ProtoWriter().bytes(1, "target_tokens").bytes(2, whole(targets)).take());
    for (const auto& [name, values] : inputs)
        out.bytes(2, ProtoWriter().bytes(1, name).bytes(2, floats(values)).take());
    return out.take();
}

std::string call_of(const std::string& model, uint64_t seq, const std::string& loss,
                    const std::vector<std::string>& data, bool is_forward_only = false) {
    ProtoWriter out;
    out.bytes(1, model).number(2, seq);
    for (const std::string& one : data) out.bytes(3, one);
    return out.bytes(4, loss).number(6, is_forward_only ? 1 : 0).take();
}

struct Output {
    std::map<std::string, double> metrics;
    std::vector<std::vector<float>> log_probabilities;
};

Output parse_output(const std::string& bytes) {
    Output output;
    ProtoReader reader(bytes, "output");
    for (auto field = reader.next(); field.ok() && *field; field = reader.next()) {
        if ((*field)->number == 3) {
            ProtoReader entry((*field)->bytes, "metric");
            const std::string name((*entry.next())->bytes);
            const uint64_t bits = (*entry.next())->value;
            output.metrics[name] = std::bit_cast<double>(bits);
        } else if ((*field)->number == 2) {
            ProtoReader record((*field)->bytes, "record");
            ProtoReader entry((*record.next())->bytes, "field");
            EXPECT_EQ((*entry.next())->bytes, "logprobs");
            ProtoReader batched((*entry.next())->bytes, "tensor");
            const std::string_view data = (*batched.next())->bytes, offsets = (*batched.next())->bytes;
            for (size_t i = 0; i + 8 < offsets.size(); i += 8) {
                int64_t begin = 0, end = 0;
                std::memcpy(&begin, offsets.data() + i, 8);
                std::memcpy(&end, offsets.data() + i + 8, 8);
                std::vector<float> values(static_cast<size_t>(end - begin) / 4);
                std::memcpy(values.data(), data.data() + begin, static_cast<size_t>(end - begin));
                output.log_probabilities.push_back(values);
            }
        }
    }
    return output;
}

class HttpTinker : public HttpTest {
  protected:
    HttpTinker() {
        service = *training::TrainingService::open(dir.path() / "training", host, {});
        tinker::SessionLimits limits;
        limits.n_positions_max = 64;
        limits.n_snapshots_max = 1;
        models = std::make_unique<tinker::ModelSessions>(host, tinker::StateStore(dir.path() / "states", "base", {}),
                                                         weights(), limits, [this] { service->wake(); });
        service->set_called_work(models.get());
        service->start();
        context.training = service.get();
        context.tinker = models.get();
        context.tinker_samples = &samples;
    }
    ~HttpTinker() override {
        service->stop();
        context.training = nullptr;
        context.tinker = nullptr;
    }

    tinker::SavedWeights weights() const {
        return *tinker::SavedWeights::open(dir.path() / "weights", {.n_max = 2, .bytes_max = 1000});
    }
    bool is_soon(const std::function<bool()>& condition) const {
        for (int i = 0; i < 500 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return condition();
    }
    // Within some seconds.
    bool has_result(const json& future) const {
        return models->wait("", future.at("request_id").get<std::string>(), std::chrono::seconds(5)).result.has_value();
    }

    json ok(const Answer& answer) {
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.status == 200 ? json::parse(answer.body) : json();
    }
    json posted(const std::string& path, const json& body) { return ok(post("/api/v1/" + path, body.dump())); }
    std::string new_session() { return posted("create_session", {{"tags", json::array()}}).at("session_id"); }
    // Fetches until it is there.
    Answer fetched(const std::string& request_id) {
        for (int i = 0; i < 20; ++i) {
            const Answer answer = post("/api/v1/retrieve_future", json{{"request_id", request_id}}.dump());
            if (answer.body.find("try_again") == std::string::npos) return answer;
        }
        ADD_FAILURE() << "no result";
        return {};
    }
    json result(const json& future) { return ok(fetched(future.at("request_id"))); }
    std::string new_model(const std::string& session, int number = 0) {
        const json future = posted("create_model", {{"session_id", session},
                                                    {"model_seq_id", number},
                                                    {"base_model", "base"},
                                                    {"lora_config", {{"rank", 4}, {"seed", 1}}}});
        return result(future).at("model_id");
    }
    json forward_backward(const std::string& body) {
        return ok(read(client().Post("/api/v1/forward_backward", body, "application/x-protobuf")));
    }
    Output output(const json& future) {
        const Answer answer = fetched(future.at("request_id"));
        EXPECT_EQ(answer.type, "application/x-protobuf") << answer.body;
        return parse_output(answer.body);
    }
    std::string failure(const json& future, const std::string& category = "user") {
        const json answer = result(future);
        EXPECT_EQ(answer.value("category", ""), category) << answer;
        return answer.value("error", "");
    }
    json optim_step(const std::string& model, uint64_t seq, double rate) {
        return posted("optim_step", {{"model_id", model}, {"seq_id", seq}, {"adam_params", {{"learning_rate", rate}}}});
    }

    lorad::testing::TempDir dir;
    training::FakeHost host;
    std::unique_ptr<training::TrainingService> service;
    std::unique_ptr<tinker::ModelSessions> models;
    TinkerSamples samples;
};

TEST_F(HttpTinker, GradientsOfCallsAddUpToAnUpdate) {
    const std::string model = new_model(new_session());
    const json info = posted("get_info", {{"model_id", model}});
    EXPECT_EQ(info["model_data"]["model_name"], "base");
    EXPECT_EQ(info["lora_rank"], 4);
    // w is 0: the log-probability of target y is -y^2 / 1000.
    const Output first = output(forward_backward(call_of(
        model, 1, "cross_entropy", {datum({10, 20}, {{"weights", {1, 0.5}}}), datum({30}, {{"weights", {0}}})})));
    ASSERT_EQ(first.log_probabilities.size(), 2u);
    EXPECT_NEAR(first.log_probabilities[0][1], -0.4, 1e-6);
    EXPECT_NEAR(first.log_probabilities[1][0], -0.9, 1e-6) << "also where the weight is 0";
    EXPECT_NEAR(first.metrics.at("loss:sum"), 0.1 + 0.5 * 0.4, 1e-6);
    // v = advantage * exp(-0.1 - -0.3)
    const double ratio = std::exp(-0.1 - -0.3);
    const Output second = output(forward_backward(call_of(
        model, 2, "importance_sampling", {datum({10, 20}, {{"advantages", {2, 0}}, {"logprobs", {-0.3f, 0}}})})));
    EXPECT_NEAR(second.metrics.at("loss:sum"), -2 * ratio, 1e-5);
    EXPECT_NEAR(second.metrics.at("rollout_train_logprobs_abs_diff:max"), 0.2, 1e-6);
    const double gradient = (1 * 2 * -10.0 + 0.5 * 2 * -20.0 + 2 * ratio * 2 * -10.0) / 1000;
    const json step = result(optim_step(model, 3, 100.0));
    EXPECT_NEAR(step["metrics"]["grad_norm"].get<double>(), -gradient, 1e-6);
    const double w = -100 * gradient;
    const Output after =
        output(forward_backward(call_of(model, 4, "cross_entropy", {datum({10}, {{"weights", {1}}})}, true)));
    EXPECT_NEAR(after.log_probabilities[0][0], -std::pow(w - 10, 2) / 1000, 1e-6);
    EXPECT_EQ(result(optim_step(model, 5, 1.0))["metrics"]["grad_norm"], 0.0) << "forward calls add no gradients";
}

TEST_F(HttpTinker, CallsAreWorkedOffInTheirOrderAndARepeatedOneIsTheSame) {
    const std::string model = new_model(new_session());
    const std::string body = call_of(model, 1, "cross_entropy", {datum({10}, {{"weights", {1}}})});
    const json update = optim_step(model, 2, 100.0);  // before what it updates by
    const Answer early =
        post("/api/v1/optim_step", json{{"model_id", model}, {"seq_id", 9000}, {"adam_params", json::object()}}.dump());
    EXPECT_EQ(early.status, 400);
    EXPECT_EQ(early.param, "seq_id");
    const json first = forward_backward(body), again = forward_backward(body);
    EXPECT_EQ(first["request_id"], again["request_id"]);
    EXPECT_NEAR(result(update)["metrics"]["grad_norm"].get<double>(), 0.02, 1e-9);
    EXPECT_NEAR(output(first).metrics.at("loss:sum"), 0.1, 1e-6);
    EXPECT_EQ(optim_step(model, 2, 1.0)["request_id"], update["request_id"]);
}

TEST_F(HttpTinker, WhatIsWrongFailsItsFutureAndNoneBehindIt) {
    const std::string model = new_model(new_session());
    const auto failure_of = [&](uint64_t seq, const std::string& loss, const std::string& one) {
        return failure(forward_backward(call_of(model, seq, loss, {one})));
    };
    EXPECT_NE(failure_of(1, "ppo", datum({10}, {})).find("loss_fn: \"ppo\" is not there"), std::string::npos);
    EXPECT_NE(failure_of(2, "cross_entropy", datum({10}, {{"weights", {1, 2}}})).find("weights: 2 values: expected 1"),
              std::string::npos);
    EXPECT_NE(failure_of(3, "cross_entropy", datum({10}, {{"advantages", {1}}})).find("\"advantages\""),
              std::string::npos);
    EXPECT_NE(failure_of(4, "importance_sampling", datum({10}, {{"advantages", {1}}})).find("logprobs is missing"),
              std::string::npos);
    EXPECT_NE(
        failure(posted("optim_step", {{"model_id", model}, {"seq_id", 5}, {"optimizer_params", {{"type", "dimuon"}}}}))
            .find("optimizer_params"),
        std::string::npos);
    EXPECT_NE(failure_of(6, "cross_entropy", ProtoWriter().bytes(1, ProtoWriter().bytes(2, "png").take()).take())
                  .find("images are not trained on"),
              std::string::npos);
    EXPECT_NE(failure(posted("save_weights", {{"model_id", model}, {"seq_id", 7}, {"path", "a/b"}})).find("path:"),
              std::string::npos);
    EXPECT_NEAR(output(forward_backward(call_of(model, 8, "cross_entropy", {datum({10}, {{"weights", {1}}})})))
                    .metrics.at("loss:sum"),
                0.1, 1e-6);
    EXPECT_NEAR(result(optim_step(model, 9, 0))["metrics"]["grad_norm"].get<double>(), 0.02, 1e-9);
    // Gradients that are none are forgotten, and told.
    forward_backward(
        call_of(model, 10, "importance_sampling", {datum({10}, {{"advantages", {1}}, {"logprobs", {-INFINITY}}})}));
    EXPECT_NE(failure(optim_step(model, 11, 1.0)).find("not finite"), std::string::npos);
    // What is no call of a model is refused at once.
    EXPECT_EQ(read(client().Post("/api/v1/forward_backward", "\xff\xff", "application/x-protobuf")).status, 400);
    EXPECT_EQ(read(client().Post("/api/v1/forward_backward", "{}", "application/json")).code, "unsupported_media_type");
    EXPECT_EQ(post("/api/v1/optim_step", R"({"model_id":"x","adam_params":{}})").status, 404);
    EXPECT_EQ(get("/api/v1/training_runs").status, 404);
    EXPECT_NE(get("/api/v1/training_runs").message.find("is not there"), std::string::npos);
    const Answer gone = post("/api/v1/retrieve_future", R"({"request_id":"req-x"})");
    EXPECT_EQ(gone.status, 410) << "the client repeats the call itself";
}

TEST_F(HttpTinker, WeightsBecomeAdaptersAndStatesGoOn) {
    const std::string session = new_session(), model = new_model(session);
    forward_backward(call_of(model, 1, "cross_entropy", {datum({10}, {{"weights", {1}}})}));
    optim_step(model, 2, 100.0);  // w is 2
    const json saved =
        result(posted("save_weights_for_sampler", {{"model_id", model}, {"seq_id", 3}, {"path", "one"}}));
    EXPECT_EQ(saved["path"], "tinker://" + model + "/sampler_weights/one");
    const std::string name = tinker::ModelSessions::adapter_name(model, "one");
    EXPECT_EQ(host.generation_of(name), std::to_string(2.0f));
    const json state = result(posted("save_weights", {{"model_id", model}, {"seq_id", 4}, {"path", "kept"}}));
    optim_step(model, 5, 0.0);
    EXPECT_NE(failure(posted("save_weights", {{"model_id", model}, {"seq_id", 6}, {"path", "kept"}}))
                  .find("overwrite is false"),
              std::string::npos);
    const json loaded = result(posted(
        "load_weights", {{"session_id", session}, {"model_seq_id", 1}, {"path", state["path"]}, {"optimizer", true}}));
    EXPECT_EQ(loaded["model_id"], session + ":train:1");
    EXPECT_NEAR(output(forward_backward(
                           call_of(session + ":train:1", 1, "cross_entropy", {datum({10}, {{"weights", {1}}})}, true)))
                    .log_probabilities[0][0],
                -0.064, 1e-6);
    // Snapshots without a name: the last one is kept.
    for (int i = 0; i < 2; ++i) {
        const json snapshot = result(posted("save_weights_for_sampler",
                                            {{"model_id", model}, {"seq_id", 7 + i}, {"sampling_session_seq_id", i}}));
        const json sampler = ok(get("/api/v1/samplers/" + snapshot["sampling_session_id"].get<std::string>()));
        EXPECT_EQ(sampler["base_model"], "base");
    }
    EXPECT_EQ(host.generation_of(tinker::ModelSessions::adapter_name(model, "snapshot-0")), "");
    EXPECT_EQ(host.generation_of(tinker::ModelSessions::adapter_name(model, "snapshot-1")), std::to_string(2.0f));
    EXPECT_EQ(failure(posted("load_weights", {{"model_id", model}, {"seq_id", 9}, {"path", "tinker://x/weights/y"}}))
                  .substr(0, 5),
              "path:");
    // With the session its models and their snapshots go; weights with a name stay.
    EXPECT_EQ(post("/api/v1/sessions/" + session + "/finish", "{}").status, 200);
    EXPECT_TRUE(is_soon([&] { return models->n_models() == 0; }));
    EXPECT_TRUE(
        is_soon([&] { return host.generation_of(tinker::ModelSessions::adapter_name(model, "snapshot-1")).empty(); }));
    EXPECT_EQ(host.generation_of(name), std::to_string(2.0f));
    EXPECT_EQ(post("/api/v1/get_info", json{{"model_id", model}}.dump()).status, 404);
    EXPECT_EQ(post("/api/v1/session_heartbeat", json{{"session_id", session}}.dump()).status, 410);
}

// Each route reads its body by the reader that knows its fields.
TEST_F(HttpTinker, NoRouteTakesAFieldThatNobodyKnows) {
    const std::string session = new_session(), model = new_model(session);
    const json of_session{{"session_id", session}}, of_model{{"model_id", model}}, of_request{{"request_id", "req-x"}};
    const std::vector<std::pair<std::string, json>> bodies = {
        {"client/config", json::object()},
        {"client/dynamic_config", json::object()},
        {"telemetry", json::object()},
        {"create_session", {{"tags", json::array()}}},
        {"session_heartbeat", of_session},
        {"sessions/" + session + "/finish", json::object()},
        {"create_model", {{"session_id", session}, {"base_model", "base"}, {"lora_config", {{"rank", 4}}}}},
        {"unload_model", of_model},
        {"get_info", of_model},
        {"create_sampling_session", {{"session_id", session}, {"base_model", "base"}}},
        {"asample", json::parse(R"({"prompt":{"chunks":[{"tokens":[1]}]},"sampling_params":{}})")},
        {"retrieve_future", of_request},
        {"cancel_future", of_request}};
    for (const auto& [path, body] : bodies) {
        json more = body;
        more["x_unknown"] = 1;
        const Answer answer = post("/api/v1/" + path, more.dump());
        EXPECT_EQ(answer.status, 400) << path << answer.body;
        EXPECT_EQ(answer.param, "x_unknown") << path << answer.body;
    }
    EXPECT_EQ(post("/api/v1/get_info", of_model.dump()).status, 200) << "nothing of this ended it";
    auto told = client().Post("/api/v1/create_session", R"({"tags":["a"],"project_id":"p"})", "application/json");
    ASSERT_TRUE(told);
    EXPECT_EQ(told->get_header_value("x-lorad-ignored-fields"), "tags, project_id");
}

TEST_F(HttpTinker, BoundsHoldAndTenantsSeeTheirOwnAlone) {
    const std::string session = new_session();
    const std::string model = new_model(session, 0);
    new_model(session, 1);
    const Answer third =
        post("/api/v1/create_model",
             json{{"session_id", session}, {"model_seq_id", 2}, {"base_model", "base"}, {"lora_config", {{"rank", 4}}}}
                 .dump());
    EXPECT_EQ(third.status, 403) << third.body;
    EXPECT_NE(third.message.find("2 models of this key"), std::string::npos);
    EXPECT_EQ(
        post("/api/v1/create_model",
             json{{"session_id", session}, {"model_seq_id", 3}, {"base_model", "other"}, {"lora_config", {{"rank", 4}}}}
                 .dump())
            .code,
        "model_not_found");
    EXPECT_FALSE(models->info("other", model).ok());
    EXPECT_FALSE(models->heartbeat("other", session).ok());
    EXPECT_FALSE(models->add_call("other", model, 1, {}).ok());
    EXPECT_FALSE(models->unload("other", model).ok());
    const json future = optim_step(model, 1, 0);
    EXPECT_FALSE(models->wait("other", future["request_id"].get<std::string>(), {}).is_known);
    result(future);
    // The first of the order is taken whatever waits; of those behind it as many as may.
    uint64_t seq = 3;
    while (models->add_call("", model, seq, {.kind = tinker::CallKind::kUpdate}).ok()) ++seq;
    EXPECT_EQ(seq, 3u + models->limits().n_calls_max);
    const auto refused = models->add_call("", model, seq, {.kind = tinker::CallKind::kUpdate});
    EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
    EXPECT_TRUE(models->add_call("", model, 2, {.kind = tinker::CallKind::kUpdate}).ok());
    const json unloaded = result(posted("unload_model", {{"model_id", model}}));
    EXPECT_EQ(unloaded["model_id"], model);
    EXPECT_EQ(post("/api/v1/get_info", json{{"model_id", model}}.dump()).status, 404);
}

TEST_F(HttpTinker, ASaveHoldsUpItsOwnModelAlone) {
    const std::string session = new_session(), slow = new_model(session, 0), other = new_model(session, 1);
    training::Gate disk;
    disk.set_closed(true);
    host.on_publish = [&] { disk.pass(); };
    const auto forward = [&](const std::string& model, uint64_t seq) {
        return forward_backward(call_of(model, seq, "cross_entropy", {datum({10}, {{"weights", {1}}})}));
    };
    const json saved = posted("save_weights_for_sampler", {{"model_id", slow}, {"seq_id", 1}, {"path", "one"}});
    const json next = forward(slow, 2);
    disk.wait_for_one();
    EXPECT_TRUE(has_result(forward(other, 1))) << "the training thread waits for no disk";
    EXPECT_TRUE(has_result(optim_step(other, 2, 100.0)));
    const json state = posted("save_weights", {{"model_id", other}, {"seq_id", 3}, {"path", "kept"}});
    EXPECT_FALSE(models->wait("", saved["request_id"].get<std::string>(), {}).result);
    EXPECT_FALSE(models->wait("", next["request_id"].get<std::string>(), {}).result);
    disk.set_closed(false);
    EXPECT_EQ(result(saved)["path"], "tinker://" + slow + "/sampler_weights/one");
    EXPECT_NEAR(output(next).metrics.at("loss:sum"), 0.1, 1e-6);
    EXPECT_EQ(result(state)["path"], "tinker://" + other + "/weights/kept");
    EXPECT_EQ(result(posted("load_weights", {{"model_id", other}, {"seq_id", 4}, {"path", result(state)["path"]}}))
                  .at("type"),
              "load_weights");
}

TEST_F(HttpTinker, WhatIsBeingSavedWhenItsModelEndsIsSavedOrNothingIsLeft) {
    const std::string session = new_session();
    for (const bool is_named : {true, false}) {
        const std::string model = new_model(session, is_named ? 0 : 1);
        training::Gate disk;
        disk.set_closed(true);
        host.on_publish = [&] { disk.pass(); };
        json call{{"model_id", model}, {"seq_id", 1}};
        call[is_named ? "path" : "sampling_session_seq_id"] = is_named ? json("one") : json(1);
        const json saved = posted("save_weights_for_sampler", call);
        disk.wait_for_one();
        result(posted("unload_model", {{"model_id", model}}));
        EXPECT_TRUE(is_soon([&] { return models->n_models() == 0; }));
        disk.set_closed(false);
        EXPECT_EQ(result(saved).value("type", ""), "save_weights_for_sampler");
        const std::string name = tinker::ModelSessions::adapter_name(model, is_named ? "one" : "snapshot-1");
        EXPECT_TRUE(is_soon([&] { return host.generation_of(name).empty() != is_named; })) << is_named;
        host.on_publish = {};
    }
}

TEST_F(HttpTinker, AKeyKeepsAsManyWeightsAsItMayAndNoneOfAProcessThatWasKilled) {
    const std::string model = new_model(new_session());
    uint64_t seq = 0;
    const auto save = [&](const std::string& name) {
        return posted("save_weights_for_sampler", {{"model_id", model}, {"seq_id", ++seq}, {"path", name}});
    };
    const auto adapter = [&](const std::string& name) { return tinker::ModelSessions::adapter_name(model, name); };
    result(save("one"));
    result(save("two"));
    EXPECT_NE(failure(save("three")).find("2 weights of this key are kept as adapters"), std::string::npos);
    EXPECT_EQ(host.generation_of(adapter("three")), "");
    EXPECT_EQ(result(save("two")).value("type", ""), "save_weights_for_sampler") << "another generation of it";
    result(
        posted("save_weights_for_sampler", {{"model_id", model}, {"seq_id", ++seq}, {"sampling_session_seq_id", 1}}));
    EXPECT_NE(host.generation_of(adapter("snapshot-1")), "") << "what goes with its model does not count";
    host.remove(adapter("one"));
    result(save("three"));
    // As the next process finds it.
    tinker::SavedWeights found = weights();
    const auto is_there = [&](const std::string& name) { return !host.generation_of(name).empty(); };
    EXPECT_EQ(found.add("four", {"", 1, false}, is_there).error().code, ErrorCode::kForbidden);
    EXPECT_TRUE(found.add("four", {"another", 1, false}, is_there).ok());
    host.remove(adapter("two"));
    EXPECT_NE(found.add("four", {"", 1000, false}, is_there).error().message.find("1004 bytes"), std::string::npos);
    const std::filesystem::path unfinished = dir.path() / "states" / "someone" / "state.new";
    std::filesystem::create_directories(unfinished.parent_path());
    std::ofstream(unfinished) << "half";
    const tinker::ModelSessions next(host, tinker::StateStore(dir.path() / "states", "base", {}), weights(), {}, [] {});
    EXPECT_EQ(host.generation_of(adapter("snapshot-1")), "");
    EXPECT_NE(host.generation_of(adapter("three")), "");
    EXPECT_TRUE(weights().temporary().empty());
    EXPECT_FALSE(std::filesystem::exists(unfinished));
}

TEST_F(HttpTinker, AModelThatFindsNoRoomBesideOthersWaits) {
    const std::string session = new_session(), model = new_model(session, 0);
    host.refusal_beside = make_error(ErrorCode::kOutOfMemory, "no room");
    const json future =
        posted("create_model",
               {{"session_id", session}, {"model_seq_id", 1}, {"base_model", "base"}, {"lora_config", {{"rank", 4}}}});
    for (int i = 0; i < 500; ++i) {
        if (models->wait("", future["request_id"].get<std::string>(), std::chrono::milliseconds(10)).waits_for_room)
            break;
    }
    const auto waits = models->wait("", future["request_id"].get<std::string>(), {});
    EXPECT_TRUE(waits.waits_for_room);
    EXPECT_FALSE(waits.result);
    result(posted("unload_model", {{"model_id", model}}));
    EXPECT_EQ(result(future)["model_id"], session + ":train:1");
}

}  // namespace
}  // namespace lorad::server::http_tinker_test
