// Which adapters a request names, in lorad's words and in other servers'.
#include <gtest/gtest.h>

#include "proto/generate/generate_request.h"

namespace lorad::proto::generate_adapters_test {
namespace {

Result<GenerateRequest> with(const std::string& fields) {
    return parse_generate_request(R"({"prompt":"x",)" + fields + "}", ApiKind::kCompletion, 1000);
}

TEST(GenerateAdapters, OtherServersWordsForOneAreUnderstood) {
    for (auto [fields, field] : std::vector<std::pair<std::string, std::string>>{
             {R"("adapter":"pirate")", "adapter"},
             {R"("lora_path":"pirate")", "lora_path"},
             {R"("lora_path":["pirate"])", "lora_path[0]"},
             {R"("lora_path":["pirate","pirate"])", "lora_path[1]"},
             {R"("adapter_id":"pirate")", "adapter_id"},
             {R"("parameters":{"adapter_id":"pirate"})", "parameters.adapter_id"},
             {R"("lora_request":{"lora_name":"pirate","lora_int_id":1,"lora_path":"/x"})", "lora_request.lora_name"},
             {R"("lora_request":[{"lora_name":"pirate"}])", "lora_request[0].lora_name"},
             {R"("lora_name":"pirate")", "lora_name"},
             {R"("adapter_name":"pirate")", "adapter_name"},
             {R"("adapter_id":"pirate","parameters":{"adapter_id":"pirate"})", "adapter_id"}}) {
        auto request = with(fields);
        ASSERT_TRUE(request.ok()) << fields << " " << request.error().message;
        ASSERT_TRUE(request->adapters && request->adapters->size() == 1) << fields;
        EXPECT_EQ(request->adapters->front().name, "pirate") << fields;
        EXPECT_EQ(request->adapters->front().scale, 1.0f);
        EXPECT_EQ(request->adapters_field, field);
        EXPECT_TRUE(request->ignored_fields.empty()) << fields;
    }
    for (const char* none :
         {R"("lora_path":null)", R"("lora_path":[null])", R"("adapter_id":"")", R"("adapter_id":"__base__")",
          R"("parameters":{})", R"("lora_request":null)", R"("lora_request":[])", R"("merged_adapters":null)",
          R"("lora_weights":null)", R"("adapter_parameters":{})", R"("extra_body":{})"}) {
        auto request = with(none);
        ASSERT_TRUE(request.ok()) << none << " " << request.error().message;
        EXPECT_FALSE(request->adapters) << none;
    }
    EXPECT_EQ(with(R"("adapter_id":"a","adapter_source":"local")")->ignored_fields,
              std::vector<std::string>{"adapter_source"});
    EXPECT_EQ(with(R"("exploration":0.5)")->ignored_fields, std::vector<std::string>{"exploration"});
    EXPECT_EQ(with(R"("parameters":{"adapter_id":"a","max_new_tokens":5})")->ignored_fields,
              std::vector<std::string>{"parameters.max_new_tokens"});
}

TEST(GenerateAdapters, WhatNamesSeveralOrNoneIsRefused) {
    for (auto [fields, param] : std::vector<std::pair<std::string, std::string>>{
             {R"("lora_path":["a","b"])", "lora_path"},
             {R"("lora_path":["a",null])", "lora_path"},
             {R"("lora_path":5)", "lora_path"},
             {R"("lora_request":{})", "lora_request.lora_name"},
             {R"("lora_request":"a")", "lora_request"},
             {R"("lora_request":[{"lora_name":"a"},{"lora_name":"b"}])", "lora_request"},
             {R"("parameters":"a")", "parameters"},
             {R"("parameters":{"merged_adapters":{"ids":["a"]}})", "parameters.merged_adapters"},
             {R"("merged_adapters":{"ids":["a"]})", "merged_adapters"},
             {R"("lora_weights":"a")", "lora_weights"},
             {R"("loraAdapters":["a"])", "loraAdapters"},
             {R"("adapter_parameters":{"ids":["a"]})", "adapter_parameters"},
             {R"("parameters":{"lora_id":"a"})", "parameters.lora_id"},
             {R"("extra_body":{"lora_path":"a"})", "extra_body"},
             {R"("adapter_id":"a","lora_path":"b")", "adapter_id"},
             {R"("adapters":[{"name":"a","scale":0.5}],"adapter_id":"a")", "adapter_id"},
             {R"("adapter":"")", "adapter"}}) {
        auto refused = with(fields);
        ASSERT_FALSE(refused.ok()) << fields;
        EXPECT_EQ(refused.error().param, param) << refused.error().message;
    }
}

}  // namespace
}  // namespace lorad::proto::generate_adapters_test
