// Tinker's messages: what is read, what is refused by name, and any cut or flip of bytes.
#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "proto/tinker/protobuf.h"
#include "proto/tinker/tinker_data.h"
#include "proto/tinker/tinker_requests.h"

namespace lorad::proto {
namespace {

template <typename T>
std::string packed(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string request() {
    const std::string text = ProtoWriter().bytes(1, packed<int32_t>({5, 6, 7})).take();
    const std::string targets =
        ProtoWriter().bytes(1, packed<int64_t>({6, 7, 8})).number(3, 2).bytes(4, std::string("\x03", 1)).take();
    const std::string weights = ProtoWriter().bytes(1, packed<float>({0, 1, 0.5f})).number(3, 1).number(4, 3).take();
    const std::string datum = ProtoWriter()
                                  .bytes(1, ProtoWriter().bytes(1, text).take())
                                  .bytes(2, ProtoWriter().bytes(1, "target_tokens").bytes(2, targets).take())
                                  .bytes(2, ProtoWriter().bytes(1, "weights").bytes(2, weights).take())
                                  .bytes(3, "where they come from")
                                  .take();
    return ProtoWriter().bytes(1, "ts-x:train:0").number(2, 300).bytes(3, datum).bytes(4, "cross_entropy").take();
}

TEST(TinkerData, ACallIsRead) {
    const auto read = parse_tinker_forward_backward(request());
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_FALSE(read->refusal);
    EXPECT_EQ(read->model_id, "ts-x:train:0");
    EXPECT_EQ(read->seq_id, 300u);
    EXPECT_FALSE(read->is_forward_only);
    ASSERT_EQ(read->data.size(), 1u);
    EXPECT_EQ(read->data[0].tokens, (std::vector<TokenId>{5, 6, 7}));
    EXPECT_EQ(read->data[0].targets, (std::vector<TokenId>{6, 7, 8}));
    EXPECT_EQ(read->data[0].weights, (std::vector<float>{0, 1, 0.5f}));
    EXPECT_TRUE(read->data[0].sampled.empty());
}

TEST(TinkerData, NoCutAndNoFlipIsReadBeyondItsEnd) {
    const std::string whole = request();
    size_t n_refused = 0;
    for (size_t n = 0; n < whole.size(); ++n) {
        const auto read =
            parse_tinker_forward_backward(std::string(whole.data(), n));  // its own memory, for sanitizers
        n_refused += !read.ok() || read->refusal.has_value();
    }
    EXPECT_EQ(n_refused, whole.size());
    std::mt19937 random(1);
    for (int i = 0; i < 20'000; ++i) {
        std::string broken = whole;
        for (int k = 0; k < 3; ++k) broken[random() % broken.size()] = static_cast<char>(random());
        const auto read = parse_tinker_forward_backward(broken);
        if (!read.ok()) continue;
        for (const TinkerDatum& datum : read->data) {
            ASSERT_EQ(datum.targets.size(), datum.tokens.size());
            ASSERT_EQ(datum.weights.size(), datum.tokens.size());
        }
    }
}

TEST(TinkerData, SamplesAndPromptsAreWritten) {
    const std::string bytes =
        tinker_sample_output({{true, {7, 8}, {-0.5f, -1.0f}}, {false, {9}, {-2.0f}}}, {-1.0f, -2.0f, -3.0f}, 2, 4);
    ProtoReader reader(bytes, "sample");
    std::vector<ProtoField> fields;
    for (auto field = reader.next(); field.ok() && *field; field = reader.next()) fields.push_back(**field);
    ASSERT_EQ(fields.size(), 4u);
    ProtoReader first(fields[0].bytes, "sequence");
    EXPECT_EQ((*first.next())->value, 0u);
    EXPECT_EQ((*first.next())->bytes, packed<int32_t>({7, 8}));
    EXPECT_EQ((*first.next())->bytes, packed<float>({-0.5f, -1.0f}));
    ProtoReader second(fields[1].bytes, "sequence");
    EXPECT_EQ((*second.next())->value, 1u);
    float prompt[4];
    ASSERT_EQ(fields[2].bytes.size(), sizeof(prompt));
    std::memcpy(prompt, fields[2].bytes.data(), sizeof(prompt));
    EXPECT_TRUE(std::isnan(prompt[0]) && std::isnan(prompt[1]));
    EXPECT_EQ(prompt[2], -2.0f);
    EXPECT_EQ(prompt[3], -3.0f);
    EXPECT_EQ(fields[3].value, 4u);
}

TEST(TinkerRequests, AreReadOrRefusedByName) {
    const auto sample = parse_tinker_sample(
        R"({"sampling_session_id":"s","seq_id":3,"num_samples":2,"prompt":{"chunks":[{"type":"encoded_text","tokens":[1,2]}]},
            "sampling_params":{"max_tokens":5,"seed":-1,"stop":["x"],"temperature":0.5,"top_k":-1},"prompt_logprobs":true})",
        10);
    ASSERT_TRUE(sample.ok()) << sample.error().message;
    EXPECT_EQ(sample->generate.prompts[0].ids, (std::vector<TokenId>{1, 2}));
    EXPECT_EQ(sample->generate.best_of, 2u);
    EXPECT_EQ(sample->generate.top_k, 0u);
    EXPECT_EQ(sample->generate.stop, std::vector<std::string>{"x"});
    EXPECT_TRUE(sample->generate.ignore_eos);
    EXPECT_EQ(sample->generate.n_prompt_logprobs, 0u);
    const auto refusal = [](std::string_view params, std::string_view more) {
        const auto read = parse_tinker_sample("{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":" +
                                                  std::string(params) + std::string(more) + "}",
                                              10);
        return read.ok() ? std::string("taken") : read.error().message;
    };
    EXPECT_EQ(refusal("{}", ""), "taken");
    EXPECT_NE(refusal("{}", ",\"topk_prompt_logprobs\":1").find("topk_prompt_logprobs"), std::string::npos);
    EXPECT_NE(refusal("{\"top_p\":0}", "").find("top_p"), std::string::npos);
    EXPECT_NE(refusal("{\"min_p\":0.1}", "").find("min_p"), std::string::npos);
    EXPECT_NE(refusal("{\"stop\":[11]}", "").find("stop"), std::string::npos);
    const auto step = parse_tinker_optim_step(R"({"model_id":"m","seq_id":2,"adam_params":{"beta2":1}})");
    ASSERT_TRUE(step.ok());
    EXPECT_EQ(step->seq_id, 2u);
    EXPECT_TRUE(step->refusal) << "it takes its place in the order all the same";
    EXPECT_FALSE(parse_tinker_create_model(R"({"session_id":"s","base_model":"b"})").ok()) << "no lora_config";
    EXPECT_FALSE(parse_tinker_path("tinker://m/weights/../x", kTinkerWeights, "path").ok());
    EXPECT_FALSE(parse_tinker_path("tinker://m/weights/x", kTinkerSamplerWeights, "path").ok());
    EXPECT_EQ(parse_tinker_path("tinker://m/weights/x", kTinkerWeights, "path")->name, "x");
    const auto saved_as = [](const std::string& name) {
        return parse_tinker_save_for_sampler(R"({"model_id":"m","path":")" + name + "\"}")->refusal.has_value();
    };
    EXPECT_FALSE(saved_as("snapshot") || saved_as("snapshot-a") || saved_as("inflight-1"));
    EXPECT_TRUE(saved_as("snapshot-12") && saved_as("inflight")) << "as weights without a name are called";
}

// Each body, and each object in it, with a member that nobody knows.
TEST(TinkerRequests, UnknownFieldsAreRefusedByName) {
    const auto why = [](const auto& read) -> std::string {
        if (!read.ok()) return read.error().message;
        if constexpr (requires { read->refusal; }) return read->refusal ? read->refusal->message : "taken";
        return "taken";
    };
    const std::string unknown = R"("x_unknown":1)", lora = R"("lora_config":{"rank":4})", adam = R"("adam_params":{})";
    const auto create = [&](const std::string& more) {
        return why(parse_tinker_create_model(R"({"session_id":"s","base_model":"b",)" + more + "}"));
    };
    EXPECT_EQ(create(lora), "taken");
    EXPECT_NE(create(lora + "," + unknown).find("x_unknown"), std::string::npos);
    EXPECT_NE(create(R"("lora_config":{)" + unknown + "}").find("x_unknown"), std::string::npos);
    const auto update = [&](const std::string& more) {
        return why(parse_tinker_optim_step(R"({"model_id":"m","seq_id":2,)" + more + "}"));
    };
    EXPECT_EQ(update(adam), "taken");
    EXPECT_NE(update(adam + "," + unknown).find("x_unknown"), std::string::npos);
    EXPECT_NE(update(R"("adam_params":{)" + unknown + "}").find("x_unknown"), std::string::npos);
    const std::string save = R"({"model_id":"m","path":"p",)",
                      load = R"({"model_id":"m","path":"tinker://m/weights/p",)";
    for (const std::string& more : {R"("seq_id":2)" + std::string(), R"("seq_id":2,)" + unknown}) {
        const bool is_known = more.find("unknown") == std::string::npos;
        for (const std::string& told :
             {why(parse_tinker_save_for_sampler(save + more + "}")), why(parse_tinker_save_state(save + more + "}")),
              why(parse_tinker_load_state(load + more + "}"))}) {
            EXPECT_EQ(told == "taken", is_known) << told;
            EXPECT_EQ(told.find("x_unknown") == std::string::npos, is_known) << told;
        }
    }
    const std::string sampler = R"({"session_id":"s","base_model":"b")";
    EXPECT_EQ(why(parse_tinker_create_sampler(sampler + "}")), "taken");
    EXPECT_NE(why(parse_tinker_create_sampler(sampler + "," + unknown + "}")).find("x_unknown"), std::string::npos);
    const std::string sample = R"({"prompt":{"chunks":[{"tokens":[1]}]},"sampling_params":{})";
    EXPECT_NE(why(parse_tinker_sample(sample + "," + unknown + "}", 10)).find("x_unknown"), std::string::npos);
    const auto prompt = [&](const std::string& chunk, const std::string& more) {
        return why(parse_tinker_sample(
            R"({"prompt":{"chunks":[{"tokens":[1])" + chunk + "}]" + more + R"(},"sampling_params":{}})", 10));
    };
    EXPECT_EQ(prompt("", ""), "taken");
    EXPECT_NE(prompt("," + unknown, "").find("x_unknown"), std::string::npos);
    EXPECT_NE(prompt("", "," + unknown).find("x_unknown"), std::string::npos);
    EXPECT_EQ(create(lora + R"(,"optimizer_config":{"type":"adamw"})"), "taken");
    EXPECT_NE(create(lora + R"(,"optimizer_config":{"type":"adamw",)" + unknown + "}").find("x_unknown"),
              std::string::npos);
}

// What clients send, then the same with a member that nobody knows.
TEST(TinkerRequests, BodiesOfSessionsAndOfOneIdAreStrictToo) {
    const auto why = [](const auto& read) { return read.ok() ? std::string("taken") : read.error().message; };
    const auto check = [&](const auto& parse, const std::string& body) {
        SCOPED_TRACE(body);
        EXPECT_EQ(why(parse(body)), "taken");
        std::string more = body;
        more.replace(0, 1, body == "{}" ? R"({"x_unknown":1)" : R"({"x_unknown":1,)");
        EXPECT_NE(why(parse(more)).find("x_unknown"), std::string::npos) << why(parse(more));
        EXPECT_NE(why(parse("[]")), "taken");
        EXPECT_NE(why(parse("")), "taken");
    };
    const auto id_of = [](std::string_view member) {
        return [member](std::string_view body) { return parse_tinker_id(body, member); };
    };
    check(check_tinker_client, R"({"sdk_version":"0.38"})");
    check(check_tinker_telemetry, R"({"events":[{"x":1}],"platform":"p","sdk_version":"0","session_id":"s",
                                      "process_uuid":"u"})");
    const std::string session = R"({"tags":["a"],"user_metadata":{"k":1},"sdk_version":"0","project_id":"p",
                                    "display_name":"d","type":"create_session"})";
    check(parse_tinker_create_session, session);
    check(parse_tinker_create_session, R"({"tags":[],"sdk_version":"0"})");
    EXPECT_EQ(parse_tinker_create_session(session)->ignored_fields,
              (std::vector<std::string>{"tags", "user_metadata", "project_id", "display_name"}));
    EXPECT_TRUE(parse_tinker_create_session(R"({"tags":[],"user_metadata":{}})")->ignored_fields.empty());
    EXPECT_NE(why(parse_tinker_create_session(R"({"tags":[1]})")).find("tags[0]"), std::string::npos);
    EXPECT_NE(why(parse_tinker_create_session(R"({"project_id":1})")).find("project_id"), std::string::npos);
    check(check_tinker_finish_session, R"({"reason":{"type":"success"},"detail":"done"})");
    check(check_tinker_finish_session, "{}");
    EXPECT_NE(why(check_tinker_finish_session(R"({"reason":{"why":1}})")).find("why"), std::string::npos);
    check(id_of("session_id"), R"({"session_id":"s","type":"session_heartbeat"})");
    check(id_of("model_id"), R"({"model_id":"m","type":"get_info"})");
    EXPECT_NE(why(parse_tinker_id(R"({"model_id":"m","session_id":"s"})", "model_id")).find("session_id"),
              std::string::npos)
        << "another body's member";
    check(parse_tinker_retrieve, R"({"request_id":"r","allow_metadata_only":false})");
    EXPECT_NE(why(parse_tinker_retrieve(R"({"request_id":"r","allow_metadata_only":1})")).find("allow_metadata_only"),
              std::string::npos);
}

}  // namespace
}  // namespace lorad::proto
