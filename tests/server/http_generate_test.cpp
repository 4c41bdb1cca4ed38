// What requests may ask of their answers: several prompts and answers, log-probabilities, echo.
#include "tests/server/http_fixture.h"

namespace lorad::server::http_generate_test {
namespace {

class GenerateTest : public HttpTest {
  protected:
    // The answer as JSON; a failed status fails the test.
    JsonDocument ask(const std::string& path, const std::string& body) {
        Answer answer = post(path, body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        auto document = parse_json(answer.body);
        EXPECT_TRUE(document.ok()) << answer.body;
        return document.ok() ? std::move(*document) : std::move(*parse_json("{}"));
    }
    JsonDocument complete(const std::string& fields) {
        return ask("/v1/completions", "{\"ignore_eos\":true," + fields + "}");
    }
    // The events of a stream but the last, [DONE].
    std::vector<std::string> events_of(const std::string& path, const std::string& body) {
        Answer answer = post(path, body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        std::vector<std::string> events;
        for (size_t at = 0; at < answer.body.size();) {
            size_t end = answer.body.find("\n\n", at);
            events.push_back(answer.body.substr(at + 6, end - at - 6));
            at = end + 2;
        }
        EXPECT_FALSE(events.empty());
        if (events.empty()) return events;
        EXPECT_EQ(events.back(), "[DONE]");
        events.pop_back();
        return events;
    }
    static std::vector<JsonValue> choices_of(const JsonDocument& document) {
        return *document.root().find("choices")->as_array();
    }
    static std::string expected(const std::vector<TokenId>& prompt, size_t n) {
        return text_of(fake_continuation(prompt, kNoAdapterSlot, n));
    }
};

TEST_F(GenerateTest, ChoicesAreNumberedPromptByPrompt) {
    JsonDocument answer = complete(R"("prompt":[[1,2],[3],[4,5,6]],"n":2,"max_tokens":4)");
    auto choices = choices_of(answer);
    ASSERT_EQ(choices.size(), 6u);
    const std::vector<std::vector<TokenId>> prompts{{1, 2}, {3}, {4, 5, 6}};
    for (size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(*choices[i].int_or("index", -1), int64_t(i));
        EXPECT_EQ(*choices[i].string_or("text", ""), expected(prompts[i / 2], 4));
    }
    JsonValue usage = *answer.root().find("usage");
    EXPECT_EQ(*usage.int_or("prompt_tokens", 0), 6);
    EXPECT_EQ(*usage.int_or("completion_tokens", 0), 24);
    EXPECT_EQ(*usage.int_or("total_tokens", 0), 30);
    EXPECT_TRUE(usage.find("prompt_tokens_details")->has("cached_tokens"));
    EXPECT_EQ(choices_of(complete(R"("prompt":["ab","cd"],"max_tokens":1)")).size(), 2u);
}

TEST_F(GenerateTest, StreamsOfSeveralChoicesInterleaveAndAddUp) {
    std::map<int64_t, std::string> texts;
    std::map<int64_t, std::string> reasons;
    runner.step_time_ = std::chrono::microseconds(2000);
    auto events = events_of("/v1/completions",
                            R"({"ignore_eos":true,"prompt":[[1,2],[3]],"n":2,"max_tokens":300,"stream":true,
                            "stream_options":{"include_usage":true,"continuous_usage_stats":true}})");
    std::vector<int64_t> order;
    for (const std::string& event : events) {
        auto document = parse_json(event);
        ASSERT_TRUE(document.ok()) << event;
        EXPECT_TRUE(document->root().find("usage")->is_object());
        for (const JsonValue& choice : choices_of(*document)) {
            int64_t index = *choice.int_or("index", -1);
            order.push_back(index);
            EXPECT_TRUE(reasons[index].empty()) << "a chunk after the end";
            texts[index] += *choice.string_or("text", "");
            reasons[index] = *choice.string_or("finish_reason", "");
        }
    }
    ASSERT_EQ(texts.size(), 4u);
    for (auto& [index, text] : texts) {
        EXPECT_EQ(text, expected(index < 2 ? std::vector<TokenId>{1, 2} : std::vector<TokenId>{3}, 300));
        EXPECT_EQ(reasons[index], "length");
    }
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end())) << "one after the other";
}

TEST_F(GenerateTest, SeedsOfSeveralAnswersDiffer) {
    auto texts = [&](const std::string& seed) {
        std::vector<std::string> out;
        JsonDocument answer = complete(
            R"("prompt":[1,2],"n":4,"max_tokens":8,"temperature":2.0,"logit_bias":{"1":50,"2":50,"3":50},"seed":)" +
            seed);
        for (const JsonValue& choice : choices_of(answer)) out.emplace_back(*choice.string_or("text", ""));
        return out;
    };
    std::vector<std::string> first = texts("7");
    EXPECT_EQ(texts("7"), first) << "a seed gives the same answers";
    EXPECT_NE(first[0], first[1]);
    EXPECT_NE(first[1], first[2]);
    EXPECT_NE(texts("8"), first);
}

TEST_F(GenerateTest, TheBestOfSeveralAnswersAreThoseWithTheHighestLogprobs) {
    const std::string fields =
        R"("prompt":[1,2],"max_tokens":4,"temperature":2.0,"logit_bias":{"1":49,"2":50},"seed":5,"logprobs":0,)";
    auto mean_of = [](const JsonValue& choice) {
        double sum = 0.0;
        auto logprobs = *choice.find("logprobs")->find("token_logprobs")->as_array();
        for (const JsonValue& value : logprobs) sum += *value.as_number();
        return sum / double(logprobs.size());
    };
    JsonDocument all = complete(fields + R"("n":6)"), best = complete(fields + R"("n":2,"best_of":6)");
    std::vector<double> means;
    for (const JsonValue& choice : choices_of(all)) means.push_back(mean_of(choice));
    std::sort(means.rbegin(), means.rend());
    ASSERT_EQ(choices_of(best).size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(*choices_of(best)[i].int_or("index", -1), int64_t(i));
        EXPECT_NEAR(mean_of(choices_of(best)[i]), means[i], 1e-6);
    }
    EXPECT_EQ(*best.root().find("usage")->int_or("completion_tokens", 0), 24) << "all are paid for";
}

TEST_F(GenerateTest, CompletionsShowLogprobsAsLists) {
    JsonDocument answer = complete(R"("prompt":"hi","max_tokens":3,"logprobs":2)");
    JsonValue logprobs = *choices_of(answer)[0].find("logprobs");
    auto tokens = *logprobs.find("tokens")->as_array();
    ASSERT_EQ(tokens.size(), 3u);
    std::string joined;
    auto offsets = *logprobs.find("text_offset")->as_array();
    for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(*offsets[i].as_int(), int64_t(joined.size()));
        joined += *tokens[i].as_string();
        EXPECT_NEAR(*logprobs.find("token_logprobs")->as_array()->at(i).as_number(), 0.0, 1e-6);
        EXPECT_EQ(logprobs.find("top_logprobs")->as_array()->at(i).size(), 2u);
    }
    EXPECT_EQ(joined, *choices_of(answer)[0].string_or("text", ""));
    EXPECT_TRUE(complete(R"("prompt":"hi","max_tokens":3)").root().find("choices")->as_array()->at(0).has("logprobs"));
}

TEST_F(GenerateTest, EchoBringsThePromptWithItsLogprobs) {
    std::vector<TokenId> prompt = bytes_of("hey");
    JsonDocument answer = complete(R"("prompt":"hey","max_tokens":2,"logprobs":1,"echo":true)");
    JsonValue choice = choices_of(answer)[0];
    EXPECT_EQ(*choice.string_or("text", ""), "hey" + expected(prompt, 2));
    JsonValue logprobs = *choice.find("logprobs");
    EXPECT_EQ(logprobs.find("tokens")->size(), 5u);
    auto values = *logprobs.find("token_logprobs")->as_array();
    EXPECT_TRUE(values[0].is_null());
    EXPECT_LT(*values[1].as_number(), -40.0);  // the fake expects something else
    EXPECT_NEAR(*values[4].as_number(), 0.0, 1e-6);
    EXPECT_TRUE(logprobs.find("top_logprobs")->as_array()->at(0).is_null());
    JsonDocument prompt_only = complete(R"("prompt":"hey","max_tokens":0,"logprobs":1,"echo":true)");
    EXPECT_EQ(*choices_of(prompt_only)[0].string_or("text", ""), "hey");
    EXPECT_EQ(*choices_of(prompt_only)[0].string_or("finish_reason", ""), "length");
    EXPECT_EQ(choices_of(prompt_only)[0].find("logprobs")->find("tokens")->size(), 3u);
    EXPECT_EQ(*prompt_only.root().find("usage")->int_or("completion_tokens", 9), 0);
}

TEST_F(GenerateTest, PromptLogprobsHaveVllmsShape) {
    JsonDocument answer = complete(R"("prompt":"hey","max_tokens":1,"prompt_logprobs":1)");
    auto list = *choices_of(answer)[0].find("prompt_logprobs")->as_array();
    ASSERT_EQ(list.size(), 3u);
    EXPECT_TRUE(list[0].is_null());
    EXPECT_EQ(list[1].size(), 2u) << "the best one and the prompt's own";
    std::optional<JsonValue> own = list[1].find(std::to_string(int('e')));
    ASSERT_TRUE(own);
    EXPECT_GT(*own->int_or("rank", 0), 1);
    EXPECT_EQ(*own->string_or("decoded_token", ""), "<101>");
    JsonDocument chat = ask("/v1/chat/completions",
                            R"({"messages":[{"role":"user","content":"hey"}],"max_tokens":1,"prompt_logprobs":0})");
    EXPECT_EQ(chat.root().find("prompt_logprobs")->size(), 3u);
}

TEST_F(GenerateTest, ChatsShowLogprobsOfEachToken) {
    const std::string body =
        R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"ignore_eos":true,"logprobs":true,"top_logprobs":2)";
    JsonDocument answer = ask("/v1/chat/completions", body + "}");
    auto content = *choices_of(answer)[0].find("logprobs")->find("content")->as_array();
    ASSERT_EQ(content.size(), 3u);
    std::string joined;
    for (const JsonValue& token : content) {
        joined += *token.string_or("token", "");
        EXPECT_EQ(token.find("top_logprobs")->size(), 2u);
        EXPECT_EQ(token.find("bytes")->size(), token.string_or("token", "")->size());
    }
    EXPECT_EQ(joined, *choices_of(answer)[0].find("message")->string_or("content", ""));
    std::string streamed;
    for (const std::string& event : events_of("/v1/chat/completions", body + ",\"stream\":true}")) {
        auto document = parse_json(event);
        for (const JsonValue& choice : choices_of(*document)) {
            if (auto logprobs = choice.find("logprobs")) {
                for (const JsonValue& token : *logprobs->find("content")->as_array())
                    streamed += *token.string_or("token", "");
            }
        }
    }
    EXPECT_EQ(streamed, joined);
    JsonDocument by_id = ask("/v1/chat/completions", body + ",\"return_tokens_as_token_ids\":true}");
    EXPECT_EQ(
        choices_of(by_id)[0].find("logprobs")->find("content")->as_array()->at(0).string_or("token", "")->substr(0, 9),
        "token_id:");
}

TEST_F(GenerateTest, AStreamedChatBeginsWithItsRole) {
    const TokenId first = fake_continuation(bytes_of("hi"), kNoAdapterSlot, 1)[0];
    // Also where the first token gives no text: it is held back, or a stop string.
    for (const std::string& stop : {std::string("x"), "<" + std::to_string(first) + ">"}) {
        auto events = events_of(
            "/v1/chat/completions",
            R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"ignore_eos":true,"n":2,"stream":true,"stop":")" +
                stop + "\"}");
        std::map<int64_t, int> n_roles;
        for (const std::string& event : events) {
            auto document = parse_json(event);
            ASSERT_TRUE(document.ok());
            JsonValue choice = choices_of(*document)[0];
            int64_t index = *choice.int_or("index", -1);
            bool is_first = !n_roles.contains(index);
            n_roles[index] += choice.find("delta")->has("role");
            EXPECT_EQ(choice.find("delta")->has("role"), is_first) << event;
        }
        EXPECT_EQ(n_roles, (std::map<int64_t, int>{{0, 1}, {1, 1}}));
    }
}

TEST_F(GenerateTest, ThoughtsThatTheClientHasBegunGoOn) {
    context.separates_reasoning = true;
    auto message_of = [&](const std::string& begun) {
        JsonDocument answer = ask(
            "/v1/chat/completions",
            R"({"max_tokens":2,"ignore_eos":true,"continue_final_message":true,"messages":[{"role":"user","content":"hi"},)"
            R"({"role":"assistant","content":")" +
                begun + "\"}]}");
        JsonValue message = *choices_of(answer)[0].find("message");
        return std::pair(std::string(*message.string_or("reasoning_content", "")),
                         std::string(*message.string_or("content", "")));
    };
    auto text = [](const std::string& begun) { return expected(bytes_of("hi" + begun), 2); };
    EXPECT_EQ(message_of("<think>so"), std::pair(text("<think>so"), std::string()));
    EXPECT_EQ(message_of("<think>so</think>ok"), std::pair(std::string(), text("<think>so</think>ok")));
    EXPECT_EQ(message_of("a <think>so"), std::pair(std::string(), text("a <think>so")));
}

TEST_F(GenerateTest, MoreAnswersThanTheQueueHoldsAreTakenWhenNothingWaits) {
    // The fixture's queue holds 16 requests.
    EXPECT_EQ(choices_of(complete(R"("prompt":[1,2],"n":40,"max_tokens":2)")).size(), 40u);
    EXPECT_EQ(metric("lorad_requests_refused_total{model_name=\"base\"} "), 0.0);
}

TEST_F(GenerateTest, AStopTokenIsNoTextUnlessItIsWanted) {
    std::vector<TokenId> next = fake_continuation({1, 2}, kNoAdapterSlot, 3);
    const std::string fields =
        R"("prompt":[1,2],"max_tokens":9,"logprobs":0,"return_token_ids":true,"stop_token_ids":[)" +
        std::to_string(next[2]) + "]";
    JsonDocument without = complete(fields), with = complete(fields + R"(,"include_stop_str_in_output":true)");
    EXPECT_EQ(*choices_of(without)[0].string_or("text", ""), expected({1, 2}, 2));
    EXPECT_EQ(choices_of(without)[0].find("logprobs")->find("tokens")->size(), 2u);
    EXPECT_EQ(choices_of(without)[0].find("token_ids")->size(), 3u);
    EXPECT_EQ(*choices_of(with)[0].string_or("text", ""), expected({1, 2}, 3));
    for (const JsonDocument* answer : {&without, &with})
        EXPECT_EQ(*choices_of(*answer)[0].string_or("finish_reason", ""), "stop");
}

TEST_F(GenerateTest, FieldsThatNobodyKnowsAreListedOrRefused) {
    const std::string body = R"({"prompt":[1],"max_tokens":1,"temperatur":0.5,"x y\n":1,"metadata":{"a":1}})";
    auto result = client().Post("/v1/completions", body, "application/json");
    EXPECT_EQ(result->status, 200);
    // On the wire "x%20y%0A", which the client decodes.
    EXPECT_EQ(result->get_header_value("x-lorad-ignored-fields"), "temperatur, x y\n");
    auto plain = client().Post("/v1/completions", R"({"prompt":[1],"max_tokens":1})", "application/json");
    EXPECT_FALSE(plain->has_header("x-lorad-ignored-fields"));
    auto longer =
        client().Post("/v1/completions", "{\"prompt\":[1],\"max_tokens\":1,\"" + std::string(2000, 'x') + "\":1}",
                      "application/json");
    EXPECT_EQ(longer->get_header_value("x-lorad-ignored-fields"), "...");
    context.strict = true;
    Answer refused = post("/v1/completions", body);
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.param, "temperatur");
    Answer hint =
        post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"reasoning_effort":"low"})");
    EXPECT_EQ(hint.status, 400);
    EXPECT_EQ(hint.param, "reasoning_effort");
    EXPECT_EQ(post("/v1/completions", R"({"prompt":[1],"max_tokens":1})").status, 200);
}

TEST_F(GenerateTest, CachedTokensAreToldAlsoWhereAStopStringEndsTheAnswer) {
    std::string ids = "1";
    for (int i = 0; i < 199; ++i) ids += "," + std::to_string(i);
    const std::string fields = "\"prompt\":[" + ids + "],\"max_tokens\":4";
    auto cached = [](const JsonDocument& answer) {
        return *answer.root().find("usage")->find("prompt_tokens_details")->int_or("cached_tokens", -1);
    };
    JsonDocument first = complete(fields);
    EXPECT_EQ(cached(first), 0);
    EXPECT_EQ(cached(complete(fields)), 192);
    std::string text(*choices_of(first)[0].string_or("text", ""));
    std::string stop = text.substr(text.find('>') + 1);
    stop = stop.substr(0, stop.find('>') + 1);
    EXPECT_EQ(cached(complete(fields + ",\"stop\":\"" + stop + "\"")), 192);
    EXPECT_EQ(cached(complete(fields + R"(,"cache_salt":"other")")), 0) << "salts share nothing";
    EXPECT_EQ(cached(complete(fields + R"(,"prompt_logprobs":0)")), 0) << "all rows are wanted";
}

}  // namespace
}  // namespace lorad::server::http_generate_test
