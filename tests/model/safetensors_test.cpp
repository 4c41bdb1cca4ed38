#include "model/files/safetensors.h"

#include <cstring>
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace lorad::model::safetensors_test {
namespace {

using ::testing::HasSubstr;

std::string file_of(const std::string& header, size_t n_data_bytes) {
    std::string file(8, '\0');
    for (int i = 0; i < 8; ++i) file[static_cast<size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
    file += header;
    for (size_t i = 0; i < n_data_bytes; ++i) file += static_cast<char>(i);
    return file;
}

Result<std::vector<Tensor>> parse(const std::string& file) {
    return parse_safetensors(std::as_bytes(std::span(file)), ErrorCode::kAdapterInvalid);
}

std::string error_of(const std::string& header, size_t n_data_bytes) {
    const auto tensors = parse(file_of(header, n_data_bytes));
    if (tensors.ok()) return "accepted";
    EXPECT_EQ(tensors.error().code, ErrorCode::kAdapterInvalid);
    return tensors.error().message;
}

TEST(Safetensors, GivesTensorsSortedByNameWithTheirBytes) {
    const std::string file = file_of(
        R"({"b":{"dtype":"F16","shape":[2,3],"data_offsets":[8,20]},"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
        20);
    const auto tensors = parse(file);
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    ASSERT_EQ(tensors->size(), 2u);
    EXPECT_EQ((*tensors)[0].name, "a");
    EXPECT_EQ((*tensors)[0].dtype, DType::kF32);
    EXPECT_EQ((*tensors)[1].n_elements(), 6u);
    EXPECT_EQ((*tensors)[1].shape, (std::vector<uint64_t>{2, 3}));
    EXPECT_EQ(std::to_integer<int>((*tensors)[1].data[0]), 8);
}

TEST(Safetensors, TakesScalarsAndEmptyTensors) {
    const auto tensors = parse(file_of(
        R"({"e":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
        4));
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    EXPECT_EQ((*tensors)[0].n_elements(), 0u);
    EXPECT_EQ((*tensors)[1].n_elements(), 1u);
}

TEST(Safetensors, RejectsBadLengths) {
    EXPECT_THAT(parse("").error().message, HasSubstr("at least 8 bytes, found 0"));
    EXPECT_THAT(parse("1234").error().message, HasSubstr("found 4"));
    EXPECT_THAT(parse(std::string(8, '\xff')).error().message, HasSubstr("18446744073709551615 bytes"));
    EXPECT_THAT(parse(std::string("\0\0\0\0\0\0\0\x80", 8)).error().message, HasSubstr("9223372036854775808 bytes"));
    EXPECT_THAT(parse(std::string("\x10\0\0\0\0\0\0\0{}", 10)).error().message, HasSubstr("only 2 are left"));
    EXPECT_FALSE(parse(std::string(8, '\0')).ok());
}

TEST(Safetensors, RejectsHeadersThatAreNoTensorTable) {
    for (const char* header : {"", "nonsense", "[]", "{", R"({"a":7})", R"({"a":{}})", "{} x", "\xff{}",
                               R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})",
                               R"({"a":{"dtype":"F32","shape":[1]}})", R"({"__metadata__":{"a":7}})"}) {
        EXPECT_NE(error_of(header, 4), "accepted") << header;
    }
    EXPECT_NE(error_of(std::string(20000, '['), 0), "accepted");
    EXPECT_THAT(error_of(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("F33"));
    EXPECT_THAT(error_of(R"({"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("f32"));
}

TEST(Safetensors, RejectsRepeatedNames) {
    EXPECT_NE(
        error_of(
            R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
            4),
        "accepted");
    EXPECT_NE(error_of(R"({"a":{"dtype":"U8","shape":[2],"dtype":"I8","data_offsets":[0,2]}})", 2), "accepted");
}

TEST(Safetensors, RejectsShapesThatAreNotSizes) {
    for (const char* shape :
         {"[-1]", "[1.5]", "[1e0]", "7", "[\"1\"]", "[[1]]", "[1,1,1,1,1,1,1,1,1]", "[18446744073709551616]"}) {
        EXPECT_NE(error_of(std::string(R"({"a":{"dtype":"U8","shape":)") + shape + R"(,"data_offsets":[0,1]}})", 1),
                  "accepted")
            << shape;
    }
}

TEST(Safetensors, RejectsSizesThatOverflow) {
    EXPECT_THAT(error_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904,2],"data_offsets":[0,0]}})", 0),
                HasSubstr("overflows"));
    EXPECT_THAT(error_of(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
                HasSubstr("overflows"));
    EXPECT_THAT(error_of(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0),
                HasSubstr("overflows"));
}

TEST(Safetensors, RejectsRangesThatDoNotTileTheData) {
    const auto two = [](const char* first, const char* second, size_t n_data_bytes) {
        return error_of(std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + first +
                            R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}",
                        n_data_bytes);
    };
    EXPECT_EQ(two("[4,8]", "[0,4]", 8), "accepted");
    EXPECT_THAT(two("[0,4]", "[2,6]", 8), HasSubstr("overlap"));
    EXPECT_THAT(two("[0,4]", "[0,4]", 8), HasSubstr("overlap"));
    EXPECT_THAT(two("[0,4]", "[6,10]", 10), HasSubstr("gap"));
    EXPECT_THAT(two("[0,4]", "[4,8]", 10), HasSubstr("2 bytes follow"));
    EXPECT_THAT(two("[0,4]", "[4,8]", 7), HasSubstr("within the 7 data bytes"));
    EXPECT_THAT(two("[0,4]", "[8,4]", 8), HasSubstr("[8, 4]"));
    EXPECT_THAT(two("[0,4]", "[4,7]", 8), HasSubstr("takes 4 bytes"));
    EXPECT_NE(two("[0,4]", "[18446744073709551612,4]", 8), "accepted");
    EXPECT_NE(two("[0,4]", "[4]", 8), "accepted");
    EXPECT_NE(two("[0,4]", "[-4,0]", 8), "accepted");
}

// Any cut and any changed byte of a sound file gives an answer, never a crash or a span outside the file.
TEST(Safetensors, SurvivesDamage) {
    const std::string sound = file_of(
        R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F16","shape":[2,3],"data_offsets":[8,20]}})",
        20);
    std::mt19937 random(1);
    size_t n_accepted = 0;
    for (size_t round = 0; round < 20000; ++round) {
        std::string damaged = sound.substr(0, round % 5 == 0 ? random() % sound.size() : sound.size());
        for (size_t n = random() % 4; n > 0 && !damaged.empty(); --n)
            damaged[random() % damaged.size()] = static_cast<char>(random());
        const auto tensors = parse(damaged);
        if (!tensors.ok()) continue;
        ++n_accepted;
        for (const Tensor& tensor : *tensors) {
            const auto* begin = reinterpret_cast<const std::byte*>(damaged.data());
            ASSERT_TRUE(tensor.data.empty() || (tensor.data.data() >= begin &&
                                                tensor.data.data() + tensor.data.size() <= begin + damaged.size()));
        }
    }
    EXPECT_GT(n_accepted, 0u);  // damage to data bytes alone is not seen here
}

class ModelFolder : public ::testing::Test {
  protected:
    void write(const std::string& name, const std::string& text) {
        std::ofstream(dir_.path() / name, std::ios::binary) << text;
    }
    std::string folder_error() {
        const auto files = TensorFiles::map_folder(dir_.path());
        return files.ok() ? "accepted" : files.error().message;
    }
    static std::string one_tensor(const std::string& name) {
        return file_of(R"({")" + name + R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
    }
    lorad::testing::TempDir dir_;
};

TEST_F(ModelFolder, FindsTensorsInShards) {
    write("one.safetensors", one_tensor("a"));
    write("two.safetensors", one_tensor("b"));
    write("model.safetensors.index.json",
          R"({"metadata":{"total_size":8},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
    const auto files = TensorFiles::map_folder(dir_.path());
    ASSERT_TRUE(files.ok()) << files.error().message;
    EXPECT_EQ(files->tensors().size(), 2u);
    EXPECT_NE(files->find("b"), nullptr);
    EXPECT_EQ(files->find("c"), nullptr);
    EXPECT_EQ(files->total_bytes(), 8u);
}

TEST_F(ModelFolder, NamesTheTensorsOfABareDecoderAsInAModelWithItsOutputLayer) {
    const auto names = [&] {
        const auto files = TensorFiles::map_folder(dir_.path());
        std::vector<std::string> all;
        EXPECT_TRUE(files.ok());
        for (const Tensor& tensor : files->tensors()) all.push_back(tensor.name);
        return all;
    };
    const std::string entry = R"(":{"dtype":"U8","shape":[1],"data_offsets":[)";
    write("model.safetensors",
          file_of(R"({"embed_tokens.weight)" + entry + R"(0,1]},"layers.0.a)" + entry + R"(1,2]},"lm_head.weight)" +
                      entry + R"(2,3]},"norm.weight)" + entry + R"(3,4]}})",
                  4));
    EXPECT_THAT(names(), ::testing::ElementsAre("lm_head.weight", "model.embed_tokens.weight", "model.layers.0.a",
                                                "model.norm.weight"));
    write("model.safetensors", file_of(R"({"embed_tokens.weight)" + entry + R"(0,1]},"norm.weight)" + entry +
                                           R"(1,2]},"model.norm.weight)" + entry + R"(2,3]}})",
                                       3));
    EXPECT_THAT(folder_error(), HasSubstr("tensor model.norm.weight: expected it once"));
    write("model.safetensors", one_tensor("layers.0.a"));
    EXPECT_THAT(names(), ::testing::ElementsAre("layers.0.a"));
}

TEST_F(ModelFolder, RefusesShardsOutsideTheFolder) {
    for (const char* shard : {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", "", "."}) {
        write("model.safetensors.index.json", std::string(R"({"weight_map":{"a":")") + shard + R"("}})");
        EXPECT_THAT(folder_error(), HasSubstr("name of a file in this folder")) << shard;
    }
}

TEST_F(ModelFolder, RefusesAnIndexThatTheShardsContradict) {
    write("one.safetensors", one_tensor("a"));
    write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})");
    EXPECT_THAT(folder_error(), HasSubstr("does not hold it"));
    write("model.safetensors.index.json", R"({"weight_map":{"a":"missing.safetensors"}})");
    EXPECT_THAT(folder_error(), HasSubstr("missing.safetensors"));
    write("two.safetensors", one_tensor("a"));
    write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
    EXPECT_THAT(folder_error(), HasSubstr("places in one.safetensors"));
}

TEST_F(ModelFolder, SaysWhatIsMissing) {
    EXPECT_THAT(folder_error(), HasSubstr("no model.safetensors"));
    write("pytorch_model.bin", "x");
    EXPECT_THAT(folder_error(), HasSubstr("pickle"));
    write("model.safetensors", "short");
    EXPECT_THAT(folder_error(), HasSubstr("model.safetensors: not a safetensors file"));
}

TEST_F(ModelFolder, ReadsASmallFileIntoMemoryAndRefusesALargeOne) {
    write("adapter.safetensors", one_tensor("a"));
    const auto size = std::filesystem::file_size(dir_.path() / "adapter.safetensors");
    const auto files = TensorFiles::read(dir_.path() / "adapter.safetensors", size, ErrorCode::kAdapterInvalid);
    ASSERT_TRUE(files.ok()) << files.error().message;
    EXPECT_EQ(files->tensors().size(), 1u);
    const auto refused = TensorFiles::read(dir_.path() / "adapter.safetensors", size - 1, ErrorCode::kAdapterInvalid);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kAdapterInvalid);
    EXPECT_FALSE(TensorFiles::read(dir_.path(), size, ErrorCode::kAdapterInvalid).ok());
    EXPECT_FALSE(TensorFiles::read(dir_.path() / "none", size, ErrorCode::kAdapterInvalid).ok());
}

}  // namespace
}  // namespace lorad::model::safetensors_test
