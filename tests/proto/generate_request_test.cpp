#include "proto/generate/generate_request.h"

#include <tuple>

#include <gtest/gtest.h>

#include "proto/error.h"

namespace lorad::proto::generate_request_test {
namespace {

constexpr uint32_t kVocab = 1000;

Result<GenerateRequest> completion(const std::string& more) {
    return parse_generate_request(R"({"model":"m","prompt":"hi")" + (more.empty() ? "" : "," + more) + "}",
                                  ApiKind::kCompletion, kVocab);
}
Result<GenerateRequest> chat(const std::string& messages, const std::string& more = "") {
    return parse_generate_request(R"({"messages":)" + messages + (more.empty() ? "" : "," + more) + "}", ApiKind::kChat,
                                  kVocab);
}

void expect_refused(const std::string& field, ErrorCode code, const std::string& param) {
    Result<GenerateRequest> request = completion(field);
    ASSERT_FALSE(request.ok()) << field;
    EXPECT_EQ(request.error().code, code) << field;
    EXPECT_EQ(request.error().param, param) << request.error().message;
    EXPECT_NE(request.error().message.find(param.substr(0, param.find('['))), std::string::npos)
        << request.error().message;
}

TEST(GenerateRequest, ReadsEveryHonouredParameter) {
    auto request = completion(R"("max_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"seed":-3,
        "stop":["a","b"],"stream":true,"return_token_ids":true,
        "ignore_eos":true,"min_tokens":2,"stop_token_ids":[5],"user":"u","unknown_field":{"x":[1]},
        "stream_options":{"include_usage":true,"other":1},"typical_p":0.7,"presence_penalty":-0.5,"frequency_penalty":1.5,
        "repetition_penalty":1.25,"logit_bias":{"7":-100,"3":2.5,"4":0},"allowed_token_ids":[9,3],"n":2,"echo":true,
        "logprobs":4,"priority":-3,"cache_salt":"s","skip_special_tokens":false,"include_stop_str_in_output":true,
        "return_tokens_as_token_ids":true,"metadata":{"a":"b"}  )");
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(request->model, "m");
    ASSERT_EQ(request->prompts.size(), 1u);
    EXPECT_EQ(request->prompts[0].text, "hi");
    EXPECT_EQ(request->n_tokens_max, 7u);
    EXPECT_FLOAT_EQ(*request->temperature, 0.5f);
    EXPECT_FLOAT_EQ(*request->top_p, 0.9f);
    EXPECT_EQ(request->top_k, 40u);
    EXPECT_FLOAT_EQ(*request->min_p, 0.1f);
    EXPECT_EQ(request->seed, uint64_t(-3));
    EXPECT_EQ(request->stop, (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(request->stream && request->include_usage && request->return_token_ids && request->ignore_eos);
    EXPECT_EQ(request->n_tokens_min, 2u);
    EXPECT_EQ(request->stop_token_ids, (std::vector<TokenId>{5}));
    EXPECT_EQ(request->user, "u");
    EXPECT_EQ(request->cache_salt, "s");
    EXPECT_EQ(request->priority, -3);
    EXPECT_EQ(std::tuple(request->n, request->best_of, request->n_logprobs.value_or(99)), std::tuple(2u, 2u, 4u));
    EXPECT_EQ(std::tuple(request->typical_p, request->presence_penalty, request->frequency_penalty,
                         *request->repetition_penalty),
              std::tuple(0.7f, -0.5f, 1.5f, 1.25f));
    ASSERT_EQ(request->logit_bias.size(), 2u);  // a bias of 0 is none
    EXPECT_EQ(std::pair(request->logit_bias[0].token, request->logit_bias[0].bias), std::pair(7, -100.0f));
    EXPECT_EQ(request->allowed_token_ids, (std::vector<TokenId>{3, 9}));
    EXPECT_TRUE(request->echo && request->include_stop && !request->skip_special_tokens && request->tokens_as_ids);
    EXPECT_EQ(request->ignored_fields, (std::vector<std::string>{"unknown_field", "stream_options.other"}));
}

TEST(GenerateRequest, NullIsAsGoodAsAbsent) {
    auto request = completion(
        R"("max_tokens":null,"temperature":null,"stop":null,"n":null,"logprobs":null,"tools":null,
        "stream":null,"stream_options":null,"seed":null,"logit_bias":null,"response_format":null)");
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_FALSE(request->n_tokens_max || request->temperature || request->seed || request->stream);
}

TEST(GenerateRequest, TopKOfMinusOneIsOff) {
    auto request = completion(R"("top_k":-1)");
    ASSERT_TRUE(request.ok());
    EXPECT_EQ(request->top_k, 0u);
}

TEST(GenerateRequest, MaxCompletionTokensIsMaxTokens) {
    EXPECT_EQ(completion(R"("max_completion_tokens":9)")->n_tokens_max, 9u);
    EXPECT_EQ(completion(R"("max_completion_tokens":9,"max_tokens":9)")->n_tokens_max, 9u);
    expect_refused(R"("max_completion_tokens":9,"max_tokens":8)", ErrorCode::kInvalidRequest, "max_completion_tokens");
}

TEST(GenerateRequest, OutOfRangeNamesTheField) {
    for (auto [field, param] : std::vector<std::pair<std::string, std::string>>{
             {R"("temperature":-0.1)", "temperature"},
             {R"("temperature":2.1)", "temperature"},
             {R"("temperature":"hot")", "temperature"},
             {R"("temperature":true)", "temperature"},
             {R"("top_p":0)", "top_p"},
             {R"("top_p":1.01)", "top_p"},
             {R"("min_p":-1)", "min_p"},
             {R"("min_p":1.5)", "min_p"},
             {R"("top_k":-2)", "top_k"},
             {R"("top_k":1.5)", "top_k"},
             {R"("max_tokens":0)", "max_tokens"},
             {R"("max_tokens":-5)", "max_tokens"},
             {R"("max_tokens":1e3)", "max_tokens"},
             {R"("max_tokens":99999999999)", "max_tokens"},
             {R"("seed":"x")", "seed"},
             {R"("seed":1.5)", "seed"},
             {R"("stop":5)", "stop"},
             {R"("stop":[""])", "stop[0]"},
             {R"("stop":["a",7])", "stop[1]"},
             {R"("stream":"yes")", "stream"},
             {R"("stream_options":{"include_usage":true})", "stream_options"},
             {R"("min_tokens":-1)", "min_tokens"},
             {R"("min_tokens":5,"max_tokens":4)", "min_tokens"},
             {R"("stop_token_ids":[1000])", "stop_token_ids[0]"},
             {R"("add_special_tokens":"yes")", "add_special_tokens"},
             {R"("user":5)", "user"},
             {R"("ignore_eos":1)", "ignore_eos"},
             {R"("adapter":5)", "adapter"},
             {R"("adapter":"")", "adapter"},
             {R"("adapters":"sql")", "adapters"},
             {R"("adapters":[{"scale":1}])", "adapters[0].name"},
             {R"("adapters":[{"name":"a"},{"name":"a"}])", "adapters[1].name"},
             {R"("adapters":[{"name":"a","scale":"1"}])", "adapters[0].scale"},
             {R"("adapters":[{"name":"a","scale":100.5}])", "adapters[0].scale"},
             {R"("adapters":[{"name":"a","scale":-1e30}])", "adapters[0].scale"},
             {R"("adapters":[{"name":"a","weight":1}])", "adapters[0].weight"},
             {R"("adapters":[],"lora":[])", "lora"},
             {R"("adapters":[],"adapter":"a")", "adapter"},
             {R"("lora":[{"id":0}])", "lora[0].scale"},
             {R"("lora":[{"scale":1}])", "lora[0].id"},
             {R"("lora":[{"id":-1,"scale":1}])", "lora[0].id"},
             {R"("lora":[{"id":0,"scale":1},{"id":0,"scale":2}])", "lora[1].id"},
             {R"("lora":{})", "lora"}}) {
        expect_refused(field, ErrorCode::kInvalidRequest, param);
    }
}

TEST(GenerateRequest, AdaptersAreNamesOrIdsWithScales) {
    EXPECT_FALSE(completion(R"("user":"x")")->adapters);
    auto one = completion(R"("adapter":"sql")");
    ASSERT_TRUE(one.ok());
    ASSERT_EQ(one->adapters->size(), 1u);
    EXPECT_EQ(one->adapters->at(0).name, "sql");
    EXPECT_EQ(one->adapters->at(0).scale, 1.0f);
    auto mix = completion(R"("adapters":[{"name":"a","scale":-0.5},{"name":"b"},{"name":"c","scale":0}])");
    ASSERT_TRUE(mix.ok()) << mix.error().message;
    ASSERT_EQ(mix->adapters->size(), 3u);
    EXPECT_EQ(mix->adapters->at(0).scale, -0.5f);
    EXPECT_EQ(mix->adapters->at(1).scale, 1.0f);
    EXPECT_EQ(mix->adapters->at(2).scale, 0.0f);
    EXPECT_TRUE(completion(R"("adapters":[])")->adapters->empty());
    auto ids = completion(R"("lora":[{"id":3,"scale":0.25}])");
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(ids->lora->at(0).id, 3u);
    EXPECT_EQ(ids->lora->at(0).scale, 0.25f);
    EXPECT_TRUE(completion(R"("lora":[])")->lora->empty());
}

TEST(GenerateRequest, AtMostEightAdaptersAreUsed) {
    std::string names = R"({"name":"a0"})", used = R"({"id":0,"scale":1})", unused = used;
    for (int i = 1; i < 9; ++i) {
        names += R"(,{"name":"a)" + std::to_string(i) + "\"}";
        used += R"(,{"id":)" + std::to_string(i) + R"(,"scale":1})";
        unused += R"(,{"id":)" + std::to_string(i) + R"(,"scale":0})";
    }
    expect_refused("\"adapters\":[" + names + "]", ErrorCode::kInvalidRequest, "adapters");
    expect_refused("\"lora\":[" + used + "]", ErrorCode::kInvalidRequest, "lora");
    EXPECT_TRUE(completion("\"lora\":[" + unused + "]").ok());
}

TEST(GenerateRequest, TooManyStopTokensAreRefused) {
    std::string ids = "1";
    for (size_t i = 1; i < kStopTokensMax; ++i) ids += ",1";
    EXPECT_TRUE(completion("\"stop_token_ids\":[" + ids + "]").ok());
    expect_refused("\"stop_token_ids\":[" + ids + ",1]", ErrorCode::kInvalidRequest, "stop_token_ids");
}

TEST(GenerateRequest, SpecialTokensAreAddedToPromptsAndToChatsOnRequest) {
    EXPECT_TRUE(completion("\"top_k\":1")->add_special_tokens);
    EXPECT_FALSE(completion("\"add_special_tokens\":false")->add_special_tokens);
    const std::string chat = R"({"messages":[{"role":"user","content":"x"}])";
    EXPECT_FALSE(parse_generate_request(chat + "}", ApiKind::kChat, 1000)->add_special_tokens);
    EXPECT_TRUE(
        parse_generate_request(chat + R"(,"add_special_tokens":true})", ApiKind::kChat, 1000)->add_special_tokens);
}

TEST(GenerateRequest, TooManyStopStringsAreRefused) {
    std::string list = R"("a")";
    for (int i = 0; i < 16; ++i) list += R"(,"b")";
    expect_refused("\"stop\":[" + list + "]", ErrorCode::kInvalidRequest, "stop");
}

TEST(GenerateRequest, WhatIsNotSupportedIsRefusedByName) {
    for (auto [field, param] :
         std::vector<std::pair<std::string, std::string>>{{R"("suffix":"x")", "suffix"},
                                                          {R"("use_beam_search":true)", "use_beam_search"},
                                                          {R"("length_penalty":1.5)", "length_penalty"},
                                                          {R"("top_logprobs":2)", "top_logprobs"},
                                                          {R"("chat_template_kwargs":{"a":1})", "chat_template_kwargs"},
                                                          {R"("messages":[{"role":"user","content":"x"}])", "messages"},
                                                          {R"("prompt_embeds":"x")", "prompt_embeds"},
                                                          {R"("vllm_xargs":{"a":1})", "vllm_xargs"},
                                                          {R"("n_predict":5)", "n_predict"},
                                                          {R"("repeat_penalty":1.1)", "repeat_penalty"},
                                                          {R"("mirostat":2)", "mirostat"},
                                                          {R"("dry_multiplier":0.8)", "dry_multiplier"},
                                                          {R"("xtc_probability":0.5)", "xtc_probability"},
                                                          {R"("samplers":["top_k"])", "samplers"}}) {
        expect_refused(field, ErrorCode::kUnsupportedParameter, param);
    }
}

TEST(GenerateRequest, HintsChangeNothingAndAreListed) {
    auto request = completion(
        R"("service_tier":"priority","reasoning_effort":"high","verbosity":"low","effort":"low","budget_tokens":5,
        "thinking_token_budget":5,"prediction":{"type":"content","content":"x"},"guided_decoding_backend":"xgrammar",
        "context_management":{})");
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(request->ignored_fields,
              (std::vector<std::string>{"service_tier", "reasoning_effort", "verbosity", "effort", "budget_tokens",
                                        "thinking_token_budget", "prediction", "guided_decoding_backend",
                                        "context_management"}));
}

TEST(GenerateRequest, NeutralValuesOfUnsupportedParametersAreAccepted) {
    auto request = completion(
        R"("top_logprobs":0,"suffix":"","logit_bias":{},"tools":[],"tool_choice":"none","logprobs":false,
        "response_format":{"type":"text"},"modalities":["text"],"service_tier":"auto","length_penalty":1.0)");
    EXPECT_TRUE(request.ok()) << request.error().message;
    // What clients of llama-server send with everything.
    request = completion(
        R"("repeat_penalty":1.0,"repeat_last_n":64,"mirostat":0,"mirostat_tau":5,"dry_multiplier":0,"dry_base":1.75,
        "xtc_probability":0,"xtc_threshold":0.1,"cache_prompt":true,"id_slot":-1,"request_id":"a","n_probs":0)");
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_TRUE(request->ignored_fields.empty());
}

TEST(GenerateRequest, PromptIsATextOrTokenIdsOrAListOfThem) {
    auto parse = [](const std::string& prompt) {
        return parse_generate_request("{\"prompt\":" + prompt + "}", ApiKind::kCompletion, kVocab);
    };
    EXPECT_EQ(parse("[1,999]")->prompts[0].ids, (std::vector<TokenId>{1, 999}));
    EXPECT_EQ(parse("[[1,2]]")->prompts[0].ids, (std::vector<TokenId>{1, 2}));
    EXPECT_EQ(parse("[\"a\"]")->prompts[0].text, "a");
    EXPECT_EQ(parse("[\"a\",\"b\"]")->prompts[1].text, "b");
    EXPECT_EQ(parse("[[1],[2,3]]")->prompts[1].ids, (std::vector<TokenId>{2, 3}));
    EXPECT_EQ(parse("[[1],[2,1000]]").error().param, "prompt[1][1]");
    for (const char* bad : {"[]", "[[]]", "5", "{}", "null", "[1000]", "[-1]", "[1,\"a\"]", "[1.5]", "[true]"}) {
        Result<GenerateRequest> request = parse(bad);
        ASSERT_FALSE(request.ok()) << bad;
        EXPECT_EQ(request.error().code, ErrorCode::kInvalidRequest) << bad;
        EXPECT_EQ(request.error().param.substr(0, 6), "prompt") << bad << ": " << request.error().message;
    }
    EXPECT_EQ(parse_generate_request("{}", ApiKind::kCompletion, kVocab).error().param, "prompt");
}

TEST(GenerateRequest, MessagesKeepTheirFieldsAndTheirParts) {
    auto request = chat(
        R"([{"role":"system","content":"s"},{"role":"user","name":"bo","content":[{"type":"text","text":"a"},
        {"type":"text","text":"b"}]},{"role":"assistant","content":null}])");
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(request->messages_json,
              R"([{"role":"system","content":"s"},{"role":"user","name":"bo","content":[{"type":"text","text":"a"},)"
              R"({"type":"text","text":"b"}]},{"role":"assistant","content":null}])");
    EXPECT_EQ(chat(R"([{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])",
                   R"("continue_final_message":true)")
                  ->continued_text,
              "a\nb");
}

TEST(GenerateRequest, ThoughtsOfTwoNamesAreOneField) {
    const auto thought = [](const std::string& fields) {
        return chat(R"([{"role":"user","content":"q"},{"role":"assistant","content":"a",)" + fields + "}]");
    };
    EXPECT_TRUE(thought(R"("reasoning":"r","reasoning_content":"r")").ok());
    EXPECT_TRUE(thought(R"("reasoning":"r","reasoning_content":null)").ok());
    auto refused = thought(R"("reasoning":"r","reasoning_content":"s")");
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().param, "messages[1].reasoning");
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidRequest);
}

TEST(GenerateRequest, WhatAnAssistantHasRefusedIsItsText) {
    EXPECT_EQ(
        chat(
            R"([{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"refusal","refusal":"I cannot."},{"type":"text","text":"b"}]}])")
            ->messages_json,
        R"([{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"I cannot."},{"type":"text","text":"b"}]}])");
    EXPECT_EQ(
        chat(R"([{"role":"assistant","content":null,"refusal":"No."},{"role":"user","content":"a"}])")->messages_json,
        R"([{"role":"assistant","refusal":"No.","content":"No."},{"role":"user","content":"a"}])");
    EXPECT_EQ(
        chat(R"([{"role":"assistant","content":"b","refusal":null},{"role":"user","content":"a"}])")->messages_json,
        R"([{"role":"assistant","content":"b","refusal":null},{"role":"user","content":"a"}])");
    EXPECT_EQ(chat(R"([{"role":"user","content":[{"type":"refusal"}]}])").error().param,
              "messages[0].content[0].refusal");
}

TEST(GenerateRequest, BadMessagesNameTheirPlace) {
    for (auto [messages, param] : std::vector<std::pair<std::string, std::string>>{
             {"[]", "messages"},
             {"\"hi\"", "messages"},
             {"[5]", "messages[0]"},
             {R"([{"content":"a"}])", "messages[0].role"},
             {R"([{"role":"user"}])", "messages[0].content"},
             {R"([{"role":"user","content":5}])", "messages[0].content"},
             {R"([{"role":5,"content":"a"}])", "messages[0].role"},
             {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"}}) {
        Result<GenerateRequest> request = chat(messages);
        ASSERT_FALSE(request.ok()) << messages;
        EXPECT_EQ(request.error().code, ErrorCode::kInvalidRequest) << messages;
        EXPECT_EQ(request.error().param, param) << request.error().message;
    }
    Result<GenerateRequest> image =
        chat(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])");
    ASSERT_FALSE(image.ok());
    EXPECT_EQ(image.error().code, ErrorCode::kUnsupportedParameter);
}

TEST(GenerateRequest, ABodyThatIsNoObjectIsRefused) {
    for (const char* body :
         {"", "[]", "5", "null", "{", "{\"prompt\":\"a\"} x", "{\"prompt\":\"a\",\"prompt\":\"b\"}"}) {
        EXPECT_FALSE(parse_generate_request(body, ApiKind::kCompletion, kVocab).ok()) << body;
    }
}

TEST(ErrorTable, EveryCodeHasAStatusAndAWireCode) {
    for (int code = 0; code <= int(ErrorCode::kInternal); ++code) {
        const ErrorInfo& info = error_info(ErrorCode(code));
        EXPECT_EQ(info.code, ErrorCode(code));
        EXPECT_GE(info.http_status, 400);
        EXPECT_FALSE(info.wire_code.empty());
    }
}

TEST(ErrorTable, TheBodyIsOpenAisEnvelope) {
    EXPECT_EQ(
        error_body(make_error(ErrorCode::kModelNotFound, "no \"x\"", "model")),
        R"({"error":{"message":"no \"x\"","type":"invalid_request_error","param":"model","code":"model_not_found"}})");
    EXPECT_EQ(error_body(make_error(ErrorCode::kOverloaded, "busy")),
              R"({"error":{"message":"busy","type":"rate_limit_error","param":null,"code":"server_overloaded"}})");
}

}  // namespace
}  // namespace lorad::proto::generate_request_test
