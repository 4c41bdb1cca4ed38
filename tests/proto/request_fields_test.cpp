// What the bodies that ask for an answer have at their root: one table for all endpoints.
#include <algorithm>

#include <gtest/gtest.h>

#include "proto/generate/generate_request.h"
#include "proto/known_fields.h"
#include "proto/messages/messages_request.h"
#include "proto/responses/responses_request.h"

namespace lorad::proto::request_fields_test {
namespace {

constexpr Endpoint kAll[] = {Endpoint::kCompletions, Endpoint::kChats, Endpoint::kResponses, Endpoint::kMessages};

std::string body_of(Endpoint endpoint, const std::string& more) {
    switch (endpoint) {
        case Endpoint::kCompletions: return R"({"prompt":"a")" + more + "}";
        case Endpoint::kChats: return R"({"messages":[{"role":"user","content":"a"}])" + more + "}";
        case Endpoint::kResponses: return R"({"input":"a")" + more + "}";
        case Endpoint::kMessages: return R"({"max_tokens":9,"messages":[{"role":"user","content":"a"}])" + more + "}";
    }
    return {};
}

struct Read {
    std::optional<Error> error;
    std::vector<std::string> ignored;
};
Read read(Endpoint endpoint, const std::string& more) {
    const std::string body = body_of(endpoint, more);
    Result<GenerateRequest> request = make_error(ErrorCode::kInternal, "");
    if (endpoint == Endpoint::kCompletions) request = parse_generate_request(body, ApiKind::kCompletion, 1000);
    if (endpoint == Endpoint::kChats) request = parse_generate_request(body, ApiKind::kChat, 1000);
    if (endpoint == Endpoint::kMessages) request = parse_messages_request(body, MessagesUse::kGenerate, 1000);
    if (endpoint == Endpoint::kResponses) {
        Result<ResponsesRequest> response = parse_responses_request(body, 1000);
        request = response.ok() ? Result<GenerateRequest>(std::move(response->generate))
                                : Result<GenerateRequest>(response.error());
    }
    if (!request.ok()) return {request.error(), {}};
    return {std::nullopt, request->ignored_fields};
}

TEST(RequestFields, WhatOneEndpointKnowsAllKnow) {
    std::vector<std::string> names;
    for (const KnownField& field : request_fields(Endpoint::kChats)) names.emplace_back(field.name);
    for (Endpoint endpoint : kAll) {
        std::vector<std::string> own;
        for (const KnownField& field : request_fields(endpoint)) own.emplace_back(field.name);
        EXPECT_EQ(own, names);
    }
    std::ranges::sort(names);
    EXPECT_TRUE(std::ranges::adjacent_find(names) == names.end()) << "each once";
}

// Nothing that is known and not honoured is passed over: it is refused, or listed, or one of the values that change
// nothing.
TEST(RequestFields, WhatIsNotHonouredIsRefusedOrListed) {
    for (Endpoint endpoint : kAll) {
        for (const KnownField& field : request_fields(endpoint)) {
            if (field.honoured) continue;
            SCOPED_TRACE(std::string(field.name) + " " + std::to_string(int(endpoint)));
            const Read value = read(endpoint, ",\"" + std::string(field.name) + R"(":{"x":"y"})");
            if (field.hint == Neutral::kAny) {
                EXPECT_FALSE(value.error) << value.error->message;
                EXPECT_EQ(value.ignored, std::vector<std::string>{std::string(field.name)});
            } else if (field.neutral == Neutral::kAny) {
                EXPECT_FALSE(value.error) << value.error->message;
                EXPECT_TRUE(value.ignored.empty());
            } else {
                ASSERT_TRUE(value.error);
                EXPECT_EQ(value.error->code, ErrorCode::kUnsupportedParameter);
                EXPECT_EQ(value.error->param, field.name);
            }
            EXPECT_FALSE(read(endpoint, ",\"" + std::string(field.name) + "\":null").error);
        }
    }
}

TEST(RequestFields, RefusalsSayWhoHasTheField) {
    const auto message = [](Endpoint endpoint, const std::string& field) {
        return read(endpoint, "," + field).error->message;
    };
    EXPECT_EQ(message(Endpoint::kMessages, R"("echo":true)"),
              "echo: only /v1/completions has it; leave the parameter out");
    EXPECT_EQ(
        message(Endpoint::kResponses, R"("max_tokens":4)"),
        "max_tokens: only /v1/completions, /v1/chat/completions and /v1/messages have it; leave the parameter out");
    EXPECT_EQ(message(Endpoint::kChats, R"("input":"a")"), "input: only /v1/responses has it; leave the parameter out");
    EXPECT_EQ(message(Endpoint::kMessages, R"("n_predict":4)"),
              "n_predict: this server does not support number 4; leave the parameter out");
    EXPECT_EQ(message(Endpoint::kMessages, R"("n":2)"),
              "n: only /v1/completions and /v1/chat/completions have it; leave the parameter out");
}

TEST(RequestFields, MessagesTakeWhatTheirOwnWordsSay) {
    const auto request = [](const std::string& more) {
        return *parse_messages_request(body_of(Endpoint::kMessages, more), MessagesUse::kGenerate, 1000);
    };
    EXPECT_EQ(request(R"(,"user":"u")").user, "u");
    EXPECT_EQ(request(R"(,"user":"u","metadata":{"user_id":"u"})").user, "u");
    EXPECT_EQ(read(Endpoint::kMessages, R"(,"user":"u","metadata":{"user_id":"v"})").error->param, "user");
    const std::string tools = R"(,"tools":[{"name":"f","input_schema":{"type":"object"}}])";
    EXPECT_TRUE(request(tools).parallel_tool_calls);
    EXPECT_FALSE(request(tools + R"(,"parallel_tool_calls":false)").parallel_tool_calls);
    EXPECT_FALSE(request(tools + R"(,"parallel_tool_calls":false,"tool_choice":{"type":"auto"})").parallel_tool_calls);
}

}  // namespace
}  // namespace lorad::proto::request_fields_test
