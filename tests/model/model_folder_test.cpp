#include "model/model_folder.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/config.h"
#include "tests/support/temp_dir.h"

namespace lorad::model::model_folder_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FolderOfOtherThings : public ::testing::Test {
  protected:
    std::filesystem::path write(const std::string& name, const std::string& text) {
        const std::filesystem::path path = dir_.path() / name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path, std::ios::binary) << text;
        return path;
    }
    // What load_model_config says of a path.
    static std::string said_of(const std::filesystem::path& path) {
        const auto config = load_model_config(path);
        return config.ok() ? "a model" : config.error().message;
    }

    lorad::testing::TempDir dir_;
};

TEST_F(FolderOfOtherThings, AGgufFileIsNamedWhateverItIsCalled) {
    const auto expected = AllOf(HasSubstr("in GGUF"), HasSubstr("no base models yet"), HasSubstr("the Hugging Face folder that it was made from"));
    EXPECT_THAT(said_of(write("model.gguf", "GGUF\3")), expected);
    EXPECT_THAT(said_of(write("model.bin", "GGUF\3")), expected);
    write("ggufs/q4.gguf", "GGUF\3");
    EXPECT_THAT(said_of(dir_.path() / "ggufs"), AllOf(HasSubstr("the folder holds GGUF"), HasSubstr("no base models yet")));
}

TEST_F(FolderOfOtherThings, OtherThingsAreNamed) {
    EXPECT_THAT(said_of(write("model.safetensors", "x")), HasSubstr("the folder that it lies in"));
    EXPECT_THAT(said_of(write("notes.txt", "x")), HasSubstr("a file; expected a Hugging Face model folder"));
    EXPECT_THAT(said_of(dir_.path() / "none"), HasSubstr("no such folder"));
    write("meta/params.json", "{}");
    EXPECT_THAT(said_of(dir_.path() / "meta"), HasSubstr("its maker's own form"));
}

TEST_F(FolderOfOtherThings, AnAdapterIsNamedWithItsBase) {
    write("adapter/adapter_config.json", R"({"base_model_name_or_path": "Qwen/Qwen2.5-7B", "r": 8})");
    EXPECT_THAT(said_of(dir_.path() / "adapter"), AllOf(HasSubstr("a LoRA adapter"), HasSubstr("\"Qwen/Qwen2.5-7B\""), HasSubstr("--lora NAME=DIR")));
    write("broken/adapter_config.json", "{");
    EXPECT_THAT(said_of(dir_.path() / "broken"), AllOf(HasSubstr("a LoRA adapter"), HasSubstr("its base model as the model")));
}

TEST_F(FolderOfOtherThings, QuantizedWeightsAreNamedWithTheirKind) {
    const std::string config = R"("architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-5, "max_position_embeddings": 128)";
    const std::pair<const char*, const char*> cases[] = {
        {R"("quantization_config": {"quant_method": "gptq", "bits": 4})", "(gptq, 4 bits)"},
        {R"("quantization_config": {"quant_method": "awq", "w_bit": 4})", "(awq, 4 bits)"},
        {R"("quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false})", "(bitsandbytes, 4 bits)"},
        {R"("quantization_config": {"load_in_8bit": true})", "(8 bits)"},
        {R"("quantization_config": {"quant_method": "fp8"})", "(fp8)"},
        {R"("quantization": {"group_size": 64, "bits": 4})", "(4 bits)"},
        {R"("compression_config": {"quant_method": "compressed-tensors"})", "(compressed-tensors)"},
        {R"("quantization_config": 4)", "quantized weights, which"},
    };
    for (const auto& [field, kind] : cases) {
        write("config.json", "{" + config + ", " + field + "}");
        EXPECT_THAT(said_of(dir_.path()), AllOf(HasSubstr("quantized weights"), HasSubstr(kind), HasSubstr("does not read yet"), HasSubstr("f32, f16 and bf16"))) << field;
    }
    write("config.json", "{" + config + R"(, "quantization_config": null})");
    EXPECT_THAT(said_of(dir_.path()), Not(HasSubstr("quantized")));
    write("quantize_config.json", "{}");
    EXPECT_THAT(said_of(dir_.path()), AllOf(HasSubstr("quantize_config.json"), HasSubstr("does not read yet")));
}

}  // namespace
}  // namespace lorad::model::model_folder_test
