#include "proto/adapter_request.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lorad::proto::adapter_request_test {
namespace {

const std::string kHex(64, 'a');
const std::string kDigest = "sha256:" + kHex;

using Cases = std::vector<std::pair<std::string, std::string>>;  // body, param

template <typename Parse>
void expect_refused(Parse&& parse, const Cases& cases) {
    for (const auto& [body, param] : cases) {
        auto result = parse(body);
        ASSERT_FALSE(result.ok()) << body;
        EXPECT_EQ(result.error().param, param) << body << ": " << result.error().message;
    }
}

TEST(AdapterRequest, LoadTakesVllmsAndSglangsFields) {
    auto vllm =
        parse_load_adapter_request(R"({"lora_name":"a","lora_path":"/x","load_inplace":true,"expected_generation":")" +
                                   kHex + R"(","is_3d_lora_weight":false,"anything":1})");
    ASSERT_TRUE(vllm.ok()) << vllm.error().message;
    EXPECT_EQ(vllm->name, "a");
    EXPECT_EQ(vllm->path, "/x");
    EXPECT_TRUE(vllm->load_inplace);
    EXPECT_EQ(vllm->expected_generation, kHex);
    EXPECT_FALSE(vllm->pin);
    EXPECT_TRUE(parse_load_adapter_request(R"({"lora_name":"a","lora_path":"/x","pinned":true})")->pin);
}

TEST(AdapterRequest, WhatIsWrongInALoadIsNamed) {
    expect_refused(
        parse_load_adapter_request,
        {{R"({"lora_path":"/x"})", "lora_name"},
         {R"({"lora_name":"a"})", "lora_path"},
         {R"({"lora_name":5,"lora_path":"/x"})", "lora_name"},
         {R"({"lora_name":"events","lora_path":"/x"})", "lora_name"},
         {R"({"lora_name":"a","lora_path":""})", "lora_path"},
         {R"({"lora_name":"a","lora_path":"a\u0000b"})", "lora_path"},
         {R"({"lora_name":"a","lora_path":"/x","load_inplace":1})", "load_inplace"},
         {R"({"lora_name":"a","lora_path":"/x","is_3d_lora_weight":true})", "is_3d_lora_weight"},
         {R"({"lora_name":"a","lora_path":"/x","load_inplace":true,"expected_generation":"abc"})",
          "expected_generation"},
         {R"({"lora_name":"a","lora_path":"/x","expected_generation":")" + kHex + "\"}", "expected_generation"}});
}

TEST(AdapterRequest, RegisterIsFilesOrAMix) {
    auto files =
        parse_register_request(R"({"name":"a","files":{"adapter_config.json":")" + kDigest + R"("},"replace":true})");
    ASSERT_TRUE(files.ok()) << files.error().message;
    ASSERT_EQ(files->files.size(), 1u);
    EXPECT_EQ(files->files[0].file, "adapter_config.json");
    EXPECT_EQ(files->files[0].sha256, kHex);
    EXPECT_TRUE(files->replace);
    auto mix =
        parse_register_request(R"({"name":"m","adapters":[{"name":"a","scale":0.7},{"name":"b","scale":-0.3}]})");
    ASSERT_TRUE(mix.ok()) << mix.error().message;
    ASSERT_EQ(mix->mix.size(), 2u);
    EXPECT_EQ(mix->mix[1].scale, -0.3f);
}

TEST(AdapterRequest, WhatIsWrongInARegistrationIsNamed) {
    const auto with_file = [](const std::string& file, const std::string& digest) {
        return R"({"name":"a","files":{")" + file + R"(":")" + digest + "\"}}";
    };
    const std::string f = with_file("f", kDigest);
    expect_refused(parse_register_request,
                   {{"", ""},
                    {"[]", ""},
                    {R"({"files":{}})", "name"},
                    {R"({"name":"a"})", "files"},
                    {R"({"name":"a","files":{}})", "files"},
                    {R"({"name":"a","files":{"f":")" + kDigest + R"("},"adapters":[{"name":"b"}]})", "files"},
                    {R"({"name":"a","adapters":[]})", "adapters"},
                    {R"({"name":"blobs","adapters":[{"name":"b"}]})", "name"},
                    {with_file("../f", kDigest), "files"},
                    {with_file("a/f", kDigest), "files"},
                    {with_file("a\\\\f", kDigest), "files"},
                    {with_file("a\\u0007f", kDigest), "files"},
                    {with_file(".f", kDigest), "files"},
                    {with_file("", kDigest), "files"},
                    {with_file(std::string(256, 'f'), kDigest), "files"},
                    {with_file("f", kHex), "files.f"},
                    {with_file("f", "sha256:" + std::string(64, 'A')), "files.f"},
                    {with_file("f", kDigest + "0"), "files.f"},
                    {with_file("f", "md5:" + kHex), "files.f"},
                    {R"({"name":"a","files":{"f":7}})", "files.f"},
                    {f.substr(0, f.size() - 1) + R"(,"expected_generation":")" + kHex + "\"}", "expected_generation"},
                    {f.substr(0, f.size() - 1) + R"(,"expected_generaton":")" + kHex + "\"}", "expected_generaton"},
                    {f.substr(0, f.size() - 1) + R"(,"replace":"yes"})", "replace"}});
    // A key that occurs twice.
    EXPECT_FALSE(parse_register_request(R"({"name":"a","name":"b","files":{"f":")" + kDigest + "\"}}").ok());
    EXPECT_FALSE(
        parse_register_request(R"({"name":"a","files":{"f":")" + kDigest + R"(","f":")" + kDigest + "\"}}").ok());
    std::string many;
    for (int i = 0; i < 17; ++i) many += (i ? ",\"f" : "\"f") + std::to_string(i) + "\":\"" + kDigest + "\"";
    expect_refused(parse_register_request, {{R"({"name":"a","files":{)" + many + "}}", "files"}});
}

TEST(AdapterRequest, ActivateHasDefaultsAndAClosedListOfModes) {
    for (const char* body : {"", " \n", "{}"}) {
        auto request = parse_activate_request(body);
        ASSERT_TRUE(request.ok()) << body;
        EXPECT_EQ(request->mode, "unmerged");
        EXPECT_FALSE(request->pin);
    }
    EXPECT_EQ(parse_activate_request(R"({"mode":"merged","pin":true})")->mode, "merged");
    EXPECT_EQ(parse_activate_request(R"({"mode":"fast"})").error().code, ErrorCode::kInvalidLoadPolicy);
    expect_refused(parse_activate_request,
                   {{R"({"mode":1})", "mode"}, {R"({"pin":1})", "pin"}, {R"({"pinned":true})", "pinned"}, {"5", ""}});
}

TEST(AdapterRequest, RollbackAndValidateNameWhatIsWrong) {
    EXPECT_TRUE(parse_rollback_request("")->generation.empty());
    EXPECT_EQ(parse_rollback_request(R"({"generation":")" + kHex + "\"}")->generation, kHex);
    expect_refused(
        parse_rollback_request,
        {{R"({"generation":"x"})", "generation"}, {R"({"to":"x"})", "to"}, {R"({"generation":1})", "generation"}});
    EXPECT_EQ(parse_validate_request(R"({"path":"/a"})")->path, "/a");
    expect_refused(parse_validate_request, {{"{}", "files"},
                                            {R"({"path":""})", "path"},
                                            {R"({"path":"/a","files":{"f":")" + kDigest + "\"}}", "files"},
                                            {R"({"lora_path":"/a"})", "lora_path"}});
    EXPECT_TRUE(parse_empty_request("").ok());
    EXPECT_TRUE(parse_empty_request("{}").ok());
    EXPECT_FALSE(parse_empty_request(R"({"mode":"now"})").ok());
}

TEST(AdapterRequest, LoraScalesAreAListOfIdsAndScales) {
    auto list = parse_lora_scales_request(R"([{"id":0,"scale":0.5},{"id":7,"scale":-1}])");
    ASSERT_TRUE(list.ok());
    EXPECT_EQ(list->scales.at(1).id, 7u);
    EXPECT_EQ(list->scales.at(1).scale, -1.0f);
    EXPECT_TRUE(parse_lora_scales_request("[]")->scales.empty());
    expect_refused(parse_lora_scales_request, {{"{}", ""},
                                               {R"([{"id":0,"scale":0.5},{"id":0,"scale":0.5}])", "[1].id"},
                                               {R"([{"id":0,"scale":1e9}])", "[0].scale"},
                                               {R"([{"id":1.5,"scale":1}])", "[0].id"}});
}

}  // namespace
}  // namespace lorad::proto::adapter_request_test
