// How errors about a translated body name the fields of the client's.
#include "proto/field_names.h"

#include <gtest/gtest.h>

#include "proto/generate_request.h"

namespace lorad::proto::field_names_test {
namespace {

Error renamed(const FieldNames& names, const std::string& param, const std::string& message) {
    return names.renamed(make_error(ErrorCode::kInvalidRequest, message, param));
}

TEST(FieldNames, NamesThatFollowOneAnotherAreNotRenamedTwice) {
    FieldNames names;
    names.add("tools[0]", "tools[2]");
    names.add("tools[2]", "tools[5]");
    names.add("tools[1]", "tools[0]");
    const Error error = renamed(names, "tools[0].function.name", "tools[0].function.name: as that of tools[2], and tools[1].function.name");
    EXPECT_EQ(error.param, "tools[2].function.name");
    EXPECT_EQ(error.message, "tools[2].function.name: as that of tools[5], and tools[0].function.name");
    EXPECT_EQ(renamed(names, "tool_choice", "neither tools[0] nor tools[2]").message, "neither tools[2] nor tools[5]");
}

TEST(FieldNames, TheLongestNameCountsAndWordsStay) {
    FieldNames names;
    names.add("messages[1]", "input[3]");
    names.add("messages[1].tool_calls[0]", "input[4]");
    names.add("max_tokens", "max_output_tokens");
    names.add("stop", "stop_sequences");
    EXPECT_EQ(renamed(names, "messages", "messages[1].tool_calls[0].id beside messages[1].role").message, "input[4].id beside input[3].role");
    EXPECT_EQ(renamed(names, "n", "n: a stop before max_tokens, not my_max_tokens or max_tokens_2").message,
              "n: a stop before max_output_tokens, not my_max_tokens or max_tokens_2");
    EXPECT_EQ(renamed(names, "stop", "stop: too many").message, "stop_sequences: too many");
    EXPECT_EQ(renamed(names, "", "of max_tokens").message, "of max_tokens") << "about no field";
}

TEST(FieldNames, AToolBehindOneThatIsNotAllowedIsNamedByItsPlace) {
    const std::string body = R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"x"}},)"
                             R"({"type":"function","function":{"name":"f","parameters":5}},{"type":"function","function":{"name":"g"}}],)"
                             R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[)"
                             R"({"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]}}})";
    const auto request = parse_generate_request(body, ApiKind::kChat, 1000);
    ASSERT_FALSE(request.ok());
    EXPECT_EQ(request.error().param, "tools[1].function.parameters");
    EXPECT_TRUE(request.error().message.starts_with("tools[1].function.parameters: ")) << request.error().message;
}

}  // namespace
}  // namespace lorad::proto::field_names_test
