#include "model/files/model_folder.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/files/model_files.h"
#include "tests/support/temp_dir.h"

namespace lorad::model::model_folder_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FolderOfOtherThings : public ::testing::Test {
  protected:
    std::filesystem::path write(const std::string& name, const std::string& text) {
        const std::filesystem::path path = dir_.path() / name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path, std::ios::binary) << text;
        return path;
    }
    // What is said of a path as the model.
    static std::string said_of(const std::filesystem::path& path) {
        const auto files = ModelFiles::open(path);
        if (!files.ok()) return files.error().message;
        const auto config = (*files)->config();
        return config.ok() ? "a model" : config.error().message;
    }

    lorad::testing::TempDir dir_;
};

TEST_F(FolderOfOtherThings, AGgufFileIsReadWhateverItIsCalled) {
    EXPECT_THAT(said_of(write("model.gguf", "GGUF\3")), HasSubstr("model.gguf: cut short: the version"));
    EXPECT_THAT(said_of(write("model.bin", "GGUF\3")), HasSubstr("model.bin: cut short: the version"));
    write("ggufs/q4.gguf", "GGUF\3");
    EXPECT_THAT(said_of(dir_.path() / "ggufs"), HasSubstr("q4.gguf: cut short"));
    // A folder with both is what its safetensors are.
    write("ggufs/model.safetensors", "x");
    EXPECT_THAT(said_of(dir_.path() / "ggufs"), HasSubstr("config.json: no such file"));
}

TEST_F(FolderOfOtherThings, OtherThingsAreNamed) {
    EXPECT_THAT(said_of(write("model.safetensors", "x")), HasSubstr("the folder that it lies in"));
    EXPECT_THAT(said_of(write("notes.txt", "x")), HasSubstr("a file; expected a Hugging Face model folder"));
    EXPECT_THAT(said_of(dir_.path() / "none"), HasSubstr("no such folder or file"));
    write("meta/params.json", "{}");
    EXPECT_THAT(said_of(dir_.path() / "meta"), HasSubstr("its maker's own form"));
}

TEST_F(FolderOfOtherThings, AnAdapterIsNamedWithItsBase) {
    write("adapter/adapter_config.json", R"({"base_model_name_or_path": "Qwen/Qwen2.5-7B", "r": 8})");
    EXPECT_THAT(said_of(dir_.path() / "adapter"),
                AllOf(HasSubstr("a LoRA adapter"), HasSubstr("\"Qwen/Qwen2.5-7B\""), HasSubstr("--lora NAME=DIR")));
    write("broken/adapter_config.json", "{");
    EXPECT_THAT(said_of(dir_.path() / "broken"),
                AllOf(HasSubstr("a LoRA adapter"), HasSubstr("its base model as the model")));
}

TEST_F(FolderOfOtherThings, FilesOfQuantizersSpeakWhereTheConfigDoesNot) {
    const std::string config =
        R"("architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-5, "max_position_embeddings": 128)";
    write("config.json", "{" + config + R"(, "quantization_config": null})");
    EXPECT_EQ(said_of(dir_.path()), "a model");
    write("hf_quant_config.json", R"({"producer": {"name": "modelopt"}})");
    EXPECT_THAT(said_of(dir_.path()), AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("NVIDIA's Model Optimizer"),
                                            HasSubstr("gptq, awq")));
    write("quant_config.json", R"({"zero_point": true, "q_group_size": 64, "w_bit": 4, "version": "GEMM"})");
    const auto awq = load_model_config(dir_.path());
    ASSERT_TRUE(awq.ok()) << awq.error().message;
    EXPECT_EQ(awq->quantization.summary(), "AWQ, 4 bits, groups of 64");
    write("quantize_config.json", R"({"bits": 3, "group_size": 128})");
    EXPECT_THAT(said_of(dir_.path()),
                AllOf(HasSubstr("quantize_config.json: bits: expected 4 or 8"), HasSubstr("found number 3")));
    write("quantize_config.json", R"({"bits": 8, "group_size": -1, "desc_act": true, "sym": true})");
    const auto gptq = load_model_config(dir_.path());
    ASSERT_TRUE(gptq.ok()) << gptq.error().message;
    EXPECT_EQ(gptq->quantization.summary(), "GPTQ, 8 bits, one group a row, symmetric, act-order");
    EXPECT_EQ(gptq->quantization.where, "quantize_config.json");
}

}  // namespace
}  // namespace lorad::model::model_folder_test
