// A chat template as any model or adapter may bring it, rendered with a small conversation: refused, or a text within bounds.
#include <cstdint>
#include <string_view>

#include "model/text.h"
#include "proto/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lorad;
    const std::string_view source(reinterpret_cast<const char*>(data), size);
    const auto made = model::ChatTemplate::from_source(source, R"({"bos_token":"<s>","eos_token":{"content":"</s>"}})");
    if (!made.ok()) {
        CHECK(!made.error().message.empty());
        return 0;
    }
    for (const char* input : {R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{}}}]}],
                                  "tools":[{"type":"function","function":{"name":"f"}}],"add_generation_prompt":true})",
                              R"({"messages":[]})"}) {
        const auto text = (*made)->render(input, 0);
        CHECK(text.ok() ? text->size() < (size_t{64} << 20) : !text.error().message.empty());
    }
    return 0;
}
